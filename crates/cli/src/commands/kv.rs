//! `kvfs kv`.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use bytes::Bytes;
use kvfs_rpc::client::Range;
use kvfs_rpc::proto::{KeyValue, KeyspaceInfo};

use crate::args::{KvArgs, KvCommand};
use crate::error::{CliError, Result};
use crate::keys::Keys;

/// Entries asked for at a time in a scan.
const PAGE_ENTRIES: u64 = 1000;

/// Key or keyspace not found: like `grep`, an answer rather than a failure.
const NOT_FOUND: u8 = 1;

pub(crate) fn run(args: &KvArgs) -> Result<ExitCode> {
    let reads =
        matches!(args.command, KvCommand::Get { .. } | KvCommand::Scan { .. } | KvCommand::Keyspaces { .. });
    let mut keys = Keys::open(args.store.as_deref(), reads)?;
    let code = answer(&mut keys, &args.command)?;
    keys.close()?;
    Ok(code)
}

fn answer(keys: &mut Keys, command: &KvCommand) -> Result<ExitCode> {
    match command {
        KvCommand::Put { keyspace, key, value } => {
            let value = value_bytes(value.as_deref())?;
            keys.put(keyspace, key.as_bytes(), &value)?;
        }
        KvCommand::Get { keyspace, key } => return get(keys, keyspace, key),
        KvCommand::Del { keyspace, key } => {
            let existed = keys.delete(keyspace, key.as_bytes())?;
            return Ok(if existed { ExitCode::SUCCESS } else { ExitCode::from(NOT_FOUND) });
        }
        KvCommand::Scan { keyspace, prefix, start, end, limit, reverse, json } => {
            let bytes = |text: &Option<String>| text.clone().map(Bytes::from);
            let range = Range {
                prefix: bytes(prefix).unwrap_or_default(),
                start: bytes(start).unwrap_or_default(),
                end: bytes(end),
                reverse: *reverse,
                limit: PAGE_ENTRIES,
            };
            scan(keys, keyspace, range, limit.unwrap_or(u64::MAX), *json)?;
        }
        KvCommand::Keyspaces { json } => keyspaces(&keys.keyspaces()?, *json),
        KvCommand::Chmod { mode, keyspace } => {
            keys.change_keyspace(keyspace, [Some(*mode), None, None])?;
        }
        KvCommand::Chown { owner, keyspace } => {
            let (uid, gid) = *owner;
            keys.change_keyspace(keyspace, [None, uid, gid])?;
        }
    }
    Ok(ExitCode::SUCCESS)
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

fn get(keys: &mut Keys, keyspace: &str, key: &str) -> Result<ExitCode> {
    let Some(value) = keys.get(keyspace, key.as_bytes())? else { return Ok(ExitCode::from(NOT_FOUND)) };
    let mut out = io::stdout().lock();
    let newline: &[u8] = if out.is_terminal() { b"\n" } else { b"" };
    out.write_all(&value)
        .and_then(|()| out.write_all(newline))
        .map_err(|error| stream_error("write", &error))?;
    Ok(ExitCode::SUCCESS)
}

/// Page by page, so that a reader who takes his time (a pager, say) holds nothing back.
fn scan(keys: &mut Keys, keyspace: &str, mut range: Range, limit: u64, json: bool) -> Result<()> {
    let mut left = limit;
    let mut out = io::BufWriter::new(io::stdout().lock());
    while left > 0 {
        range.limit = left.min(PAGE_ENTRIES);
        let entries = keys.page(keyspace, &range)?;
        for entry in &entries {
            print_entry(&mut out, entry, json).map_err(|error| stream_error("write", &error))?;
        }
        left -= (entries.len() as u64).min(left);
        let Some(last) = entries.last() else { break };
        continue_after(&mut range, &last.key);
    }
    out.flush().map_err(|error| stream_error("write", &error))
}

/// The next page begins behind `key`.
fn continue_after(range: &mut Range, key: &[u8]) {
    if range.reverse {
        range.end = Some(Bytes::copy_from_slice(key));
    } else {
        range.start = [key, b"\0"].concat().into();
    }
}

fn print_entry(out: &mut impl Write, entry: &KeyValue, json: bool) -> io::Result<()> {
    let (key, value) = (String::from_utf8_lossy(&entry.key), String::from_utf8_lossy(&entry.value));
    if json {
        writeln!(out, "{}", serde_json::json!({ "key": key, "value": value }))
    } else {
        writeln!(out, "{key}\t{value}")
    }
}

fn keyspaces(all: &[KeyspaceInfo], json: bool) {
    if json {
        let object = |info: &KeyspaceInfo| {
            let mode = format!("{:04o}", info.mode);
            serde_json::json!({ "name": info.name, "uid": info.uid, "gid": info.gid, "mode": mode })
        };
        println!("{}", serde_json::Value::Array(all.iter().map(object).collect()));
        return;
    }
    for info in all {
        // Made by other ways than this command: nobody in particular.
        let id = |id: u32| if id == u32::MAX { "-".to_owned() } else { id.to_string() };
        println!("{}  {:>5}  {:>5}  {}", letters(info.mode), id(info.uid), id(info.gid), info.name);
    }
}

/// `rw-r-----`.
fn letters(mode: u32) -> String {
    let letter = |bit: u32, letter: char| if mode & bit == 0 { '-' } else { letter };
    [6, 3, 0].iter().flat_map(|shift| [letter(4 << shift, 'r'), letter(2 << shift, 'w'), '-']).collect()
}
