//! `kvfs txn diff`, and how comparisons are printed.

use std::io::{BufWriter, StdoutLock, Write};
use std::path::Path;
use std::process::ExitCode;

use super::connect;
use super::content::Contents;
use crate::control::{self, ChangeLine, Client, FactsLine, Request, Response};
use crate::error::{CliError, Result};
use crate::names;
use crate::output::{Object, printable_bytes, put_bytes};
use crate::places::{self, Limits};
use crate::units::human_bytes;

/// Lines asked for at a time: but for snapshots, the daemon compares anew for each page, and a page must fit
/// a frame.
const PAGE_LINES: u64 = 20_000;

/// Lines, and whether more follow.
type Page = (Vec<ChangeLine>, bool);

/// `form`: counts only, for machines.
pub(super) fn run(store: Option<&Path>, id: u64, paths: &[String], form: (bool, bool)) -> Result<ExitCode> {
    let (mut client, _) = connect(store)?;
    let only = places::parse(paths)?;
    print_changes(form, &Limits { only: &only, skip: &[] }, pages(&mut client, id))?;
    Ok(ExitCode::SUCCESS)
}

/// As [`run`], with what differs inside of files.
pub(super) fn run_with_content(store: Option<&Path>, id: u64, paths: &[String]) -> Result<ExitCode> {
    let only = places::parse(paths)?;
    let limits = Limits { only: &only, skip: &[] };
    let (mut client, mounted) = connect(store)?;
    let mut page = pages(&mut client, id);
    // Asked first: it knows whether there is such a transaction, and whose it is.
    let first = page(0, PAGE_LINES)?;
    let contents = Contents::of(&mounted.dir, id)?;
    let mut first = Some(first);
    each_line(
        &limits,
        |from, limit| first.take().map_or_else(|| page(from, limit), Ok),
        |out, line| {
            writeln!(out, "{}", as_text(line))?;
            contents.write(out, line)
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

/// As [`print`], with what differs inside of files.
pub(super) fn print_with_content(client: &mut Client, id: u64, contents: &Contents) -> Result<()> {
    each_line(&Limits::default(), pages(client, id), |out, line| {
        writeln!(out, "{}", as_text(line))?;
        contents.write(out, line)
    })
}

/// Prints what transaction `id` changes.
pub(super) fn print(client: &mut Client, id: u64, stat: bool, json: bool) -> Result<()> {
    print_changes((stat, json), &Limits::default(), pages(client, id))
}

fn pages(client: &mut Client, id: u64) -> impl FnMut(u64, u64) -> Result<Page> {
    move |from, limit| match client.call(&Request::Diff { id, from, limit })? {
        Response::Diff { lines, more } => Ok((lines, more)),
        _ => Err(control::confused()),
    }
}

/// Prints what `limits` leave of a comparison, of which `page` gives so many lines from one on, and whether
/// more follow. `form`: counts only, for machines.
pub(crate) fn print_changes(
    (stat, json): (bool, bool),
    limits: &Limits<'_>,
    page: impl FnMut(u64, u64) -> Result<Page>,
) -> Result<()> {
    let mut counts = Counts::default();
    each_line(limits, page, |out, line| {
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
    limits: &Limits<'_>,
    mut page: impl FnMut(u64, u64) -> Result<Page>,
    mut write: impl FnMut(&mut BufWriter<StdoutLock<'static>>, &ChangeLine) -> std::io::Result<()>,
) -> Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut from = 0;
    loop {
        let (lines, more) = page(from, PAGE_LINES)?;
        from += lines.len() as u64;
        for line in lines.iter().filter(|line| limits.contain(line)) {
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
    let place = printable_bytes(&line.place);
    let slash = if line.kind == "directory" { "/" } else { "" };
    let from = line.from.as_ref().map_or_else(String::new, |from| format!("{} → ", printable_bytes(from)));
    let key = if line.kind == "key" { "key " } else { "" };
    let mut text = format!("{} {key}{from}{place}{slash}", line.sign);
    let facts = facts_text(line);
    if facts.is_empty() {
        if let Some(bytes) = line.bytes {
            text = format!("{text}  {}", human_bytes(bytes));
        }
        return text;
    }
    format!("{text}  {}", facts.join(", "))
}

/// What is told of both sides: one word where they agree, `old → new` where they don't.
fn facts_text(line: &ChangeLine) -> Vec<String> {
    let both = |old: Option<String>, new: Option<String>| match (old, new) {
        (Some(old), Some(new)) if old != new => Some(format!("{old} → {new}")),
        (old, new) => new.or(old),
    };
    let turned =
        |old: Option<String>, new: Option<String>| both(old.clone(), new.clone()).filter(|_| old != new);
    let (before, after) = (line.before.as_ref(), line.after.as_ref());
    let size = |facts: Option<&FactsLine>| match facts? {
        FactsLine::File { bytes, .. } if line.kind == "file" => Some(human_bytes(*bytes)),
        FactsLine::Key { bytes, .. } => Some(human_bytes(*bytes)),
        FactsLine::File { .. } => None,
    };
    let mode = |facts: Option<&FactsLine>| match facts? {
        FactsLine::File { mode, .. } => Some(format!("{mode:04o}")),
        FactsLine::Key { .. } => None,
    };
    let owner = |facts: Option<&FactsLine>| match facts? {
        FactsLine::File { uid, gid, .. } => Some(format!("{}:{}", names::user(*uid), names::group(*gid))),
        FactsLine::Key { .. } => None,
    };
    let content = |facts: Option<&FactsLine>| match facts? {
        FactsLine::File { target, .. } => target.as_ref().map(|target| quoted(target)),
        FactsLine::Key { value, bytes } => {
            let rest = if (value.len() as u64) < *bytes { "…" } else { "" };
            Some(format!("{}{rest}", quoted(&value[..value.len().min(TEXT_VALUE_LEN_MAX)])))
        }
    };
    let label = |label: &str, text: Option<String>| text.map(|text| format!("{label}{text}"));
    [
        both(size(before), size(after)),
        label("mode ", turned(mode(before), mode(after))),
        label("owner ", turned(owner(before), owner(after))),
        both(content(before), content(after)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Bytes of a value in a line for people.
const TEXT_VALUE_LEN_MAX: usize = 60;

fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", String::from_utf8_lossy(bytes).escape_debug())
}

pub(super) fn as_json(line: &ChangeLine) -> serde_json::Value {
    let change = match line.sign {
        '+' => "added",
        '-' => "removed",
        '>' => "renamed",
        _ => "changed",
    };
    let mut object = Object::new();
    object.insert("change".into(), change.into());
    object.insert("kind".into(), line.kind.clone().into());
    put_bytes(&mut object, "place", Some(&line.place));
    if line.keyspace.is_some() {
        object.insert("keyspace".into(), line.keyspace.clone().into());
    }
    put_bytes(&mut object, "from", line.from.as_deref());
    object.insert("bytes".into(), line.bytes.into());
    object.insert("before".into(), facts_json(line.before.as_ref()));
    object.insert("after".into(), facts_json(line.after.as_ref()));
    object.into()
}

fn facts_json(facts: Option<&FactsLine>) -> serde_json::Value {
    let mut object = Object::new();
    match facts {
        None => return serde_json::Value::Null,
        Some(FactsLine::File { mode, uid, gid, bytes, target }) => {
            object.insert("mode".into(), format!("{mode:04o}").into());
            object.insert("uid".into(), (*uid).into());
            object.insert("gid".into(), (*gid).into());
            object.insert("bytes".into(), (*bytes).into());
            if target.is_some() {
                put_bytes(&mut object, "target", target.as_deref());
            }
        }
        Some(FactsLine::Key { value, bytes }) => {
            put_bytes(&mut object, "value", Some(value));
            object.insert("bytes".into(), (*bytes).into());
        }
    }
    object.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(before: Option<FactsLine>, after: Option<FactsLine>, kind: &str) -> ChangeLine {
        let place = if kind == "key" { b"tags/a\xff".to_vec() } else { b"/a".to_vec() };
        let keyspace = (kind == "key").then(|| "tags".to_owned());
        let (sign, kind) = ('~', kind.to_owned());
        ChangeLine { sign, kind, place, keyspace, from: None, bytes: Some(1), before, after }
    }

    #[test]
    fn change_of_mode_owner_and_size_shows_old_and_new() {
        let of =
            |mode, bytes| Some(FactsLine::File { mode, uid: 4_000_001, gid: 4_000_002, bytes, target: None });
        assert_eq!(as_text(&line(of(0o644, 2), of(0o600, 3), "file")), "~ /a  2 B → 3 B, mode 0644 → 0600");
        assert_eq!(as_text(&line(of(0o644, 2), of(0o644, 2), "file")), "~ /a  2 B");
        let json = as_json(&line(of(0o644, 2), of(0o600, 3), "file"));
        assert_eq!((&json["before"]["mode"], &json["after"]["bytes"]), (&"0644".into(), &3.into()));
    }

    #[test]
    fn change_of_a_key_shows_both_values_and_keeps_bytes() {
        let of = |value: &[u8]| Some(FactsLine::Key { value: value.to_vec(), bytes: value.len() as u64 });
        let changed = line(of(b"old"), of(b"n\xff"), "key");
        assert_eq!(as_text(&changed), "~ key tags/a\u{fffd}  3 B → 2 B, \"old\" → \"n\u{fffd}\"");
        let json = as_json(&changed);
        assert_eq!(json["place_base64"], "dGFncy9h/w==");
        assert_eq!(
            (&json["before"]["value"], &json["after"]["value_base64"]),
            (&"old".into(), &"bv8=".into())
        );
    }

    #[test]
    fn change_of_a_symbolic_link_shows_both_targets() {
        let of = |target: &[u8]| {
            Some(FactsLine::File { mode: 0o777, uid: 0, gid: 0, bytes: 1, target: Some(target.to_vec()) })
        };
        assert_eq!(as_text(&line(of(b"x"), of(b"y"), "link")), "~ /a  \"x\" → \"y\"");
    }
}
