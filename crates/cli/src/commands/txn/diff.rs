//! `kvfs txn diff`, and how comparisons are printed.

use std::io::{BufWriter, StdoutLock, Write};
use std::path::Path;
use std::process::ExitCode;

use super::connect;
use super::content::Contents;
use crate::control::{ChangeLine, Client, Request, Response};
use crate::error::{CliError, Result};
use crate::units::human_bytes;

/// Lines asked for at a time: the daemon compares anew for each page, and a page must fit a frame.
const PAGE_LINES: u64 = 20_000;

/// Lines, and whether more follow.
type Page = (Vec<ChangeLine>, bool);

pub(super) fn run(store: Option<&Path>, id: u64, stat: bool, json: bool) -> Result<ExitCode> {
    let (mut client, _) = connect(store)?;
    print(&mut client, id, stat, json)?;
    Ok(ExitCode::SUCCESS)
}

/// As [`run`], with what differs inside of files.
pub(super) fn run_with_content(store: Option<&Path>, id: u64) -> Result<ExitCode> {
    let (mut client, mounted) = connect(store)?;
    let mut page = pages(&mut client, id);
    // Asked first: it knows whether there is such a transaction, and whose it is.
    let first = page(0, PAGE_LINES)?;
    let contents = Contents::of(&mounted.dir, id)?;
    let mut first = Some(first);
    each_line(
        |from, limit| first.take().map_or_else(|| page(from, limit), Ok),
        |out, line| {
            writeln!(out, "{}", as_text(line))?;
            contents.write(out, line)
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what transaction `id` changes.
pub(super) fn print(client: &mut Client, id: u64, stat: bool, json: bool) -> Result<()> {
    print_changes(stat, json, pages(client, id))
}

fn pages(client: &mut Client, id: u64) -> impl FnMut(u64, u64) -> Result<Page> {
    move |from, limit| match client.call(&Request::Diff { id, from, limit })? {
        Response::Diff { lines, more } => Ok((lines, more)),
        _ => Err(Client::confused()),
    }
}

/// Prints a comparison, of which `page` gives so many lines from one on, and whether more follow.
pub(crate) fn print_changes(
    stat: bool,
    json: bool,
    page: impl FnMut(u64, u64) -> Result<Page>,
) -> Result<()> {
    let mut counts = Counts::default();
    each_line(page, |out, line| {
        counts.add(line);
        match (stat, json) {
            (true, _) => Ok(()),
            (false, true) => writeln!(out, "{}", as_json(line)),
            (false, false) => writeln!(out, "{}", as_text(line)),
        }
    })?;
    if stat {
        let line = if json { counts.as_json().to_string() } else { counts.as_text() };
        writeln!(std::io::stdout(), "{line}").map_err(|error| unwritable(&error))?;
    }
    Ok(())
}

/// Writes every line of a comparison to standard output.
fn each_line(
    mut page: impl FnMut(u64, u64) -> Result<Page>,
    mut write: impl FnMut(&mut BufWriter<StdoutLock<'static>>, &ChangeLine) -> std::io::Result<()>,
) -> Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut from = 0;
    loop {
        let (lines, more) = page(from, PAGE_LINES)?;
        from += lines.len() as u64;
        for line in &lines {
            write(&mut out, line).map_err(|error| unwritable(&error))?;
        }
        if !more || lines.is_empty() {
            return out.flush().map_err(|error| unwritable(&error));
        }
    }
}

fn unwritable(error: &std::io::Error) -> CliError {
    CliError::io("write", Path::new("standard output"), error)
}

#[derive(Default)]
struct Counts {
    added: u64,
    removed: u64,
    changed: u64,
    renamed: u64,
    bytes: u64,
}

impl Counts {
    fn add(&mut self, line: &ChangeLine) {
        match line.sign {
            '+' => self.added += 1,
            '-' => self.removed += 1,
            '>' => self.renamed += 1,
            _ => self.changed += 1,
        }
        self.bytes += line.bytes.unwrap_or(0);
    }

    fn as_text(&self) -> String {
        let Self { added, removed, changed, renamed, bytes } = self;
        let bytes = human_bytes(*bytes);
        format!("{added} added, {removed} removed, {changed} changed, {renamed} renamed, {bytes}")
    }

    fn as_json(&self) -> serde_json::Value {
        serde_json::json!({
            "added": self.added,
            "removed": self.removed,
            "changed": self.changed,
            "renamed": self.renamed,
            "bytes": self.bytes,
        })
    }
}

pub(super) fn as_text(line: &ChangeLine) -> String {
    let place = String::from_utf8_lossy(&line.place);
    let slash = if line.kind == "directory" { "/" } else { "" };
    let from =
        line.from.as_ref().map_or_else(String::new, |from| format!("{} → ", String::from_utf8_lossy(from)));
    let bytes = line.bytes.map_or_else(String::new, |bytes| format!("  {}", human_bytes(bytes)));
    let key = if line.kind == "key" { "key " } else { "" };
    format!("{} {key}{from}{place}{slash}{bytes}", line.sign)
}

pub(super) fn as_json(line: &ChangeLine) -> serde_json::Value {
    let change = match line.sign {
        '+' => "added",
        '-' => "removed",
        '>' => "renamed",
        _ => "changed",
    };
    serde_json::json!({
        "change": change,
        "kind": line.kind,
        "place": String::from_utf8_lossy(&line.place),
        "from": line.from.as_ref().map(|from| String::from_utf8_lossy(from)),
        "bytes": line.bytes,
    })
}
