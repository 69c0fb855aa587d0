//! `kvfs txn undo`, and `kvfs txn list --committed`.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::connect;
use super::diff::{as_json, as_text, print_changes};
use crate::args::TableForm;
use crate::control::{
    self, CommittedLine, ObstacleLine, PlaceLine, Request, Response, SelectionLine, UndoRequest,
};
use crate::error::{Code, Result};
use crate::names::{self, Table};
use crate::places::{self, Limits};
use crate::progress::tell_none;
use crate::units::{changed, date_time, human_bytes, human_duration};

/// Most obstacles that a message names.
const SHOWN_MAX: usize = 20;

/// What the command line says.
pub(super) fn selection(paths: &[String], skip: &[String], force: bool) -> Result<SelectionLine> {
    let force = if force { vec![PlaceLine::All] } else { Vec::new() };
    Ok(SelectionLine { only: places::parse(paths)?, skip: places::parse(skip)?, force, keep: Vec::new() })
}

pub(super) fn run(
    store: Option<&Path>,
    id: u64,
    selection: &SelectionLine,
    dry_run: bool,
    json: bool,
) -> Result<ExitCode> {
    let (mut client, _) = connect(store)?;
    if dry_run {
        let limits = Limits { only: &selection.only, skip: &selection.skip };
        print_changes((false, json), &limits, |from, limit| {
            match client.call(&Request::Undo(UndoRequest::Diff { id, from, limit }))? {
                Response::Diff { lines, more } => Ok((lines, more)),
                _ => Err(control::confused()),
            }
        })?;
    }
    let (selection, is_forced) = (selection.clone(), !selection.force.is_empty());
    let request =
        if dry_run { UndoRequest::Check { id, selection } } else { UndoRequest::TakeBack { id, selection } };
    match client.call(&Request::Undo(request))? {
        Response::Done => Ok(ExitCode::SUCCESS),
        Response::Restored { txn, names, inodes, keys } => {
            if json {
                let counts = serde_json::json!({
                    "undone": id, "transaction": txn, "names": names, "inodes": inodes, "keys": keys,
                });
                println!("{counts}");
            } else {
                let what = changed(names, inodes, keys);
                println!("took back transaction {id} as transaction {txn}: {what}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Response::Refused { now, count, lines } => {
            if json {
                let obstacles: Vec<_> = lines.iter().map(obstacle_json).collect();
                println!("{}", serde_json::json!({ "undone": null, "count": count, "obstacles": obstacles }));
            }
            eprintln!("kvfs: {}", message((id, is_forced), now, count, &lines));
            Ok(ExitCode::from(Code::BuiltOn as u8))
        }
        _ => Err(control::confused()),
    }
}

/// Why a transaction is not taken back.
fn message((id, is_forced): (u64, bool), now: Duration, count: u64, lines: &[ObstacleLine]) -> String {
    let mut text = format!("transaction {id} can't be taken back, since this has changed after it:");
    for line in lines.iter().take(SHOWN_MAX) {
        let by = line.by.as_ref().map_or_else(
            || "  (outside of any transaction that is kept)".to_owned(),
            |by| {
                let ago = human_duration(now.saturating_sub(by.committed));
                let user = names::user(by.uid);
                format!("  (transaction {}: {}, pid {}, user {user}, {ago} ago)", by.id, by.label, by.pid)
            },
        );
        let _ = write!(text, "\n  {}{by}", as_text(&line.change));
    }
    let rest = count.saturating_sub(lines.len().min(SHOWN_MAX) as u64);
    if rest > 0 {
        let _ = write!(text, "\n  … and {rest} more");
    }
    let _ = write!(text, "\nnothing was done; `kvfs txn undo {id} --skip PATH` leaves a place as it is, ");
    text.push_str(if is_forced {
        "and `--force` overwrites none of these for this user"
    } else {
        "`--force` overwrites what has changed since"
    });
    text
}

fn obstacle_json(line: &ObstacleLine) -> serde_json::Value {
    let mut value = as_json(&line.change);
    value["by"] = line.by.as_ref().map_or(serde_json::Value::Null, |by| {
        serde_json::json!({
            "transaction": by.id, "uid": by.uid, "pid": by.pid, "command": by.label,
            "committed": by.committed.as_secs_f64(),
        })
    });
    value
}

/// The transactions that can be taken back.
pub(super) fn list(store: Option<&Path>, form: TableForm) -> Result<ExitCode> {
    let (mut client, _) = connect(store)?;
    let Response::Committed { now, count_max, age_max, lines } =
        client.call(&Request::Undo(UndoRequest::List))?
    else {
        return Err(control::confused());
    };
    if form.json {
        let list: Vec<_> = lines.iter().map(committed_json).collect();
        println!("{}", serde_json::Value::Array(list));
        return Ok(ExitCode::SUCCESS);
    }
    if lines.is_empty() {
        tell_none("committed transactions are kept");
    } else {
        println!(
            "{:>6}  {:19}  {:>8}  {:>8}  {:>10}  {:>9}  COMMAND",
            "ID", "COMMITTED (UTC)", "AGE", "USER", "OPERATIONS", "KEPT"
        );
    }
    for line in &lines {
        println!(
            "{:>6}  {:19}  {:>8}  {:>8}  {:>10}  {:>9}  {} (pid {})",
            line.id,
            date_time(line.committed),
            human_duration(now.saturating_sub(line.committed)),
            Table::Users.shown(line.uid, form.numeric),
            line.operations,
            human_bytes(line.bytes_kept),
            line.label,
            line.pid
        );
    }
    if count_max == 0 || age_max.is_zero() {
        eprintln!("nothing is kept for undo here (mount option undo_count=0 or undo_age=0)");
    }
    Ok(ExitCode::SUCCESS)
}

fn committed_json(line: &CommittedLine) -> serde_json::Value {
    serde_json::json!({
        "id": line.id,
        "uid": line.uid,
        "pid": line.pid,
        "command": line.label,
        "committed": line.committed.as_secs_f64(),
        "operations": line.operations,
        "bytes_kept": line.bytes_kept,
    })
}
