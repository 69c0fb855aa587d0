//! `kvfs kv`.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::args::{KvArgs, KvCommand};
use crate::control::{Entry, Request, Response, ScanRange};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Result};

/// Entries asked for at a time in a scan.
const PAGE_ENTRIES: u64 = 1000;

/// Key or keyspace not found: like `grep`, an answer rather than a failure.
const NOT_FOUND: u8 = 1;

pub(crate) fn run(args: &KvArgs) -> Result<ExitCode> {
    let writes = matches!(args.command, KvCommand::Put { .. } | KvCommand::Del { .. });
    let mut endpoint = Endpoint::open(args.store.as_deref(), !writes)?;
    if !matches!(args.command, KvCommand::Keyspaces { .. }) {
        endpoint.join_txn()?;
    }
    let code = answer(&mut endpoint, &args.command)?;
    endpoint.close()?;
    Ok(code)
}

fn answer(endpoint: &mut Endpoint, command: &KvCommand) -> Result<ExitCode> {
    match command {
        KvCommand::Put { keyspace, key, value } => {
            let value = value_bytes(value.as_deref())?;
            endpoint.call(&Request::Put {
                keyspace: keyspace.clone(),
                key: key.clone().into_bytes(),
                value,
            })?;
            Ok(ExitCode::SUCCESS)
        }
        KvCommand::Get { keyspace, key } => get(endpoint, keyspace, key),
        KvCommand::Del { keyspace, key } => {
            let request = Request::Delete { keyspace: keyspace.clone(), key: key.clone().into_bytes() };
            let Response::Deleted(existed) = endpoint.call(&request)? else {
                return Err(Endpoint::confused());
            };
            Ok(if existed { ExitCode::SUCCESS } else { ExitCode::from(NOT_FOUND) })
        }
        KvCommand::Scan { keyspace, prefix, start, end, limit, reverse, json } => {
            let bytes = |text: &Option<String>| text.clone().map(String::into_bytes);
            let range = ScanRange {
                prefix: bytes(prefix).unwrap_or_default(),
                start: bytes(start),
                end: bytes(end),
                reverse: *reverse,
                limit: PAGE_ENTRIES,
            };
            scan(endpoint, keyspace, range, limit.unwrap_or(u64::MAX), *json)
        }
        KvCommand::Keyspaces { json } => keyspaces(endpoint, *json),
    }
}

fn value_bytes(value: Option<&str>) -> Result<Vec<u8>> {
    match value {
        Some(text) if text != "-" => Ok(text.as_bytes().to_vec()),
        _ => {
            let mut bytes = Vec::new();
            // One byte more than the limit is enough to see that it is exceeded.
            let most = kvfs_store::VALUE_LEN_MAX as u64 + 1;
            io::stdin()
                .lock()
                .take(most)
                .read_to_end(&mut bytes)
                .map_err(|error| stream_error("read", &error))?;
            Ok(bytes)
        }
    }
}

fn stream_error(what: &str, error: &io::Error) -> CliError {
    CliError::io(what, Path::new("standard input or output"), error)
}

fn get(endpoint: &mut Endpoint, keyspace: &str, key: &str) -> Result<ExitCode> {
    let request = Request::Get { keyspace: keyspace.to_owned(), key: key.as_bytes().to_vec() };
    let Response::Value(value) = endpoint.call(&request)? else { return Err(Endpoint::confused()) };
    let Some(value) = value else { return Ok(ExitCode::from(NOT_FOUND)) };
    let mut out = io::stdout().lock();
    let newline: &[u8] = if out.is_terminal() { b"\n" } else { b"" };
    out.write_all(&value)
        .and_then(|()| out.write_all(newline))
        .map_err(|error| stream_error("write", &error))?;
    Ok(ExitCode::SUCCESS)
}

fn scan(
    endpoint: &mut Endpoint,
    keyspace: &str,
    mut range: ScanRange,
    limit: u64,
    json: bool,
) -> Result<ExitCode> {
    let mut left = limit;
    let mut out = io::BufWriter::new(io::stdout().lock());
    while left > 0 {
        range.limit = left.min(PAGE_ENTRIES);
        let request = Request::Scan { keyspace: keyspace.to_owned(), range: range.clone() };
        let Response::Page { entries, more } = endpoint.call(&request)? else {
            return Err(Endpoint::confused());
        };
        for entry in &entries {
            print_entry(&mut out, entry, json).map_err(|error| stream_error("write", &error))?;
        }
        left -= (entries.len() as u64).min(left);
        let Some(last) = entries.last().filter(|_| more) else { break };
        continue_after(&mut range, &last.key);
    }
    out.flush().map_err(|error| stream_error("write", &error))?;
    Ok(ExitCode::SUCCESS)
}

/// The next page begins behind `key`.
fn continue_after(range: &mut ScanRange, key: &[u8]) {
    if range.reverse {
        range.end = Some(key.to_vec());
    } else {
        range.start = Some([key, b"\0"].concat());
    }
}

fn print_entry(out: &mut impl Write, entry: &Entry, json: bool) -> io::Result<()> {
    let (key, value) = (String::from_utf8_lossy(&entry.key), String::from_utf8_lossy(&entry.value));
    if json {
        writeln!(out, "{}", serde_json::json!({ "key": key, "value": value }))
    } else {
        writeln!(out, "{key}\t{value}")
    }
}

fn keyspaces(endpoint: &mut Endpoint, json: bool) -> Result<ExitCode> {
    let Response::Keyspaces(names) = endpoint.call(&Request::Keyspaces)? else {
        return Err(Endpoint::confused());
    };
    if json {
        println!("{}", serde_json::json!(names));
    } else {
        for name in names {
            println!("{name}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
