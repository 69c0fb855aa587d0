//! `kvfs kv`.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use bytes::Bytes;
use kvfs_rpc::client::Range;
use kvfs_rpc::proto::{KeyValue, KeyspaceInfo};
use kvfs_store::KeyRange;

use crate::args::{KvArgs, KvCommand, KvRange, TableForm};
use crate::error::{CliError, Code, Result};
use crate::keys::Keys;
use crate::names::Table;
use crate::output::{Object, get_bytes, print, put_bytes};
use crate::units::counted;

/// Entries asked for at a time in a scan.
const PAGE_ENTRIES: u64 = 1000;

/// Key or keyspace not found: like `grep`, an answer rather than a failure.
const NOT_FOUND: u8 = 1;

pub(crate) fn run(args: &KvArgs) -> Result<ExitCode> {
    use KvCommand::{Export, Get, Keyspaces, Scan};
    let reads = matches!(args.command, Get { .. } | Scan { .. } | Keyspaces { .. } | Export { .. });
    if let (false, Some(name)) = (reads, &args.snapshot) {
        let message = format!("snapshot \"{name}\" is read-only; get, scan, export and keyspaces read it");
        return Err(CliError::new(Code::Usage, message));
    }
    let mut keys = Keys::open(args.store.as_deref(), args.snapshot.as_deref(), reads)?;
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
        KvCommand::Get { keyspace, key } => return get(keys, keyspace, key.as_bytes()),
        KvCommand::Del { keyspace, key } => {
            let existed = keys.delete(keyspace, key.as_bytes())?;
            return Ok(if existed { ExitCode::SUCCESS } else { ExitCode::from(NOT_FOUND) });
        }
        KvCommand::DeleteRange { keyspace, range, .. } => {
            let KeyRange { start, end } = bounds(&range_of(range));
            keys.delete_range(keyspace, &start, end.as_deref())?;
        }
        KvCommand::Drop { keyspace } => keys.drop_keyspace(keyspace)?,
        KvCommand::Scan { keyspace, range, limit, reverse, json } => {
            let range = Range { reverse: *reverse, limit: PAGE_ENTRIES, ..range_of(range) };
            scan(keys, keyspace, range, limit.unwrap_or(u64::MAX), *json)?;
        }
        KvCommand::Export { keyspace, range } => export(keys, keyspace, range_of(range))?,
        KvCommand::Import { keyspace } => {
            let count = keys.import(keyspace, &mut read_entries())?;
            eprintln!("{}", counted(count, "key"));
        }
        KvCommand::Keyspaces { form } => keyspaces(&keys.keyspaces()?, *form)?,
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

fn range_of(range: &KvRange) -> Range {
    let bytes = |text: &Option<OsString>| text.as_ref().map(|text| Bytes::copy_from_slice(text.as_bytes()));
    Range {
        prefix: bytes(&range.prefix).unwrap_or_default(),
        start: bytes(&range.start).unwrap_or_default(),
        end: bytes(&range.end),
        ..Range::default()
    }
}

/// The keys of a range, without a prefix.
fn bounds(range: &Range) -> KeyRange {
    let asked = KeyRange { start: range.start.clone(), end: range.end.clone() };
    KeyRange::prefix(&range.prefix).within(&asked)
}

/// What `export` has written, line by line.
fn read_entries() -> impl Iterator<Item = Result<KeyValue>> {
    let mut lines = io::stdin().lock().split(b'\n').enumerate();
    std::iter::from_fn(move || {
        loop {
            let (at, line) = lines.next()?;
            let line = match line {
                Ok(line) if line.trim_ascii().is_empty() => continue,
                line => line.map_err(|error| stream_error("read", &error)),
            };
            return Some(line.and_then(|line| entry_of(&line, at + 1)));
        }
    })
}

fn entry_of(line: &[u8], number: usize) -> Result<KeyValue> {
    let object = serde_json::from_slice::<serde_json::Value>(line).ok();
    let member = |name| object.as_ref().and_then(|object| get_bytes(object, name)).map(Bytes::from);
    if let (Some(key), Some(value)) = (member("key"), member("value")) {
        return Ok(KeyValue { key, value });
    }
    let message = format!("line {number} of the input is no {{\"key\": …, \"value\": …}}");
    Err(CliError::new(Code::Usage, message))
}

fn export(keys: &mut Keys, keyspace: &str, range: Range) -> Result<()> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    keys.export(keyspace, range, &mut |entry| {
        print_entry(&mut out, &entry, true).map_err(|error| stream_error("write", &error))
    })?;
    out.flush().map_err(|error| stream_error("write", &error))
}

fn value_bytes(value: Option<&OsStr>) -> Result<Vec<u8>> {
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

fn get(keys: &mut Keys, keyspace: &str, key: &[u8]) -> Result<ExitCode> {
    let Some(value) = keys.get(keyspace, key)? else { return Ok(ExitCode::from(NOT_FOUND)) };
    let mut out = io::stdout().lock();
    let newline: &[u8] = if out.is_terminal() { b"\n" } else { b"" };
    out.write_all(&value)
        .and_then(|()| out.write_all(newline))
        .and_then(|()| out.flush())
        .map_err(|error| stream_error("write", &error))?;
    Ok(ExitCode::SUCCESS)
}

/// Page by page, so that a slow reader (a pager, say) holds nothing back.
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
    if json {
        let mut object = Object::new();
        put_bytes(&mut object, "key", Some(&entry.key));
        put_bytes(&mut object, "value", Some(&entry.value));
        return writeln!(out, "{}", serde_json::Value::Object(object));
    }
    out.write_all(&entry.key)?;
    out.write_all(b"\t")?;
    out.write_all(&entry.value)?;
    out.write_all(b"\n")
}

fn keyspaces(all: &[KeyspaceInfo], form: TableForm) -> Result<()> {
    if form.json {
        let object = |info: &KeyspaceInfo| {
            let mode = format!("{:04o}", info.mode);
            serde_json::json!({ "name": info.name, "uid": info.uid, "gid": info.gid, "mode": mode })
        };
        return print(&format!("{}\n", serde_json::Value::Array(all.iter().map(object).collect())));
    }
    let mut text = String::new();
    for info in all {
        // Made by other ways than this command: without an owner.
        let of = |id: u32, table: Table| match id {
            u32::MAX => "-".to_owned(),
            id => table.shown(id, form.numeric),
        };
        let (user, group) = (of(info.uid, Table::Users), of(info.gid, Table::Groups));
        let _ = writeln!(text, "{}  {user:>8}  {group:>8}  {}", letters(info.mode), info.name);
    }
    print(&text)
}

/// `rw-r-----`.
fn letters(mode: u32) -> String {
    let letter = |bit: u32, letter: char| if mode & bit == 0 { '-' } else { letter };
    [6, 3, 0].iter().flat_map(|shift| [letter(4 << shift, 'r'), letter(2 << shift, 'w'), '-']).collect()
}
