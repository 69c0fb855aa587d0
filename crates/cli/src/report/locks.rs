//! Locks as a table and as JSON.

use std::fmt::{self, Write};

use crate::control::{DoomLine, LockLine, LockLines, PartyLine, WaiterLine};
use crate::names::Table;
use crate::output::printable;
use crate::units::human_duration;

/// A page as rows of a table, with a heading before the first lock of all pages; users by number
/// where that is asked for.
pub(crate) fn page(
    out: &mut impl Write,
    page: &LockLines,
    numeric: bool,
    has_heading: &mut bool,
) -> fmt::Result {
    for doomed in &page.doomed {
        doomed_row(out, doomed, numeric)?;
    }
    for lock in &page.locks {
        if !std::mem::replace(has_heading, true) {
            heading(out)?;
        }
        rows(out, lock, numeric)?;
    }
    Ok(())
}

/// The heading of a table.
fn heading(out: &mut impl Write) -> fmt::Result {
    writeln!(out, "{:9}  {:>8}  {:44}  NAME", "MODE", "AGE", "HOLDER")
}

/// A lock with its waiters, as rows of a table.
fn rows(out: &mut impl Write, lock: &LockLine, numeric: bool) -> fmt::Result {
    row(out, &lock.mode, &human_duration(lock.age), &party(&lock.holder, numeric), &lock.name)?;
    for waiter in &lock.waiters {
        let waits = format!("  waits: {}", party(&waiter.waiter, numeric));
        row(out, &waiter.mode, &human_duration(waiter.waited), &waits, &waiter.name)?;
    }
    let more = lock.waiters_count.saturating_sub(lock.waiters.len() as u64);
    if more > 0 {
        writeln!(out, "{:9}  {:>8}    and {more} more wait", "", "")?;
    }
    Ok(())
}

/// A transaction that can't go on.
fn doomed_row(out: &mut impl Write, doomed: &DoomLine, numeric: bool) -> fmt::Result {
    writeln!(out, "{} can't be committed: {}", party(&doomed.party, numeric), printable(&doomed.why))
}

fn row(out: &mut impl Write, mode: &str, age: &str, party: &str, name: &str) -> fmt::Result {
    writeln!(out, "{mode:9}  {age:>8}  {party:44}  {}", printable(name))
}

fn party(party: &PartyLine, numeric: bool) -> String {
    let label = printable(&party.label);
    let doomed = if party.is_doomed { ", doomed" } else { "" };
    match (party.txn, party.uid) {
        (Some(id), Some(uid)) => {
            let user = Table::Users.shown(uid, numeric);
            format!("transaction {id} ({label}, pid {}, user {user}{doomed})", party.pid)
        }
        (Some(id), None) => format!("transaction {id}"),
        (None, _) if party.pid == 0 => "main line".to_owned(),
        (None, _) if label.is_empty() => format!("main line (pid {})", party.pid),
        (None, _) => format!("main line ({label}, pid {})", party.pid),
    }
}

/// A lock as one JSON object.
pub(crate) fn as_json(lock: &LockLine) -> serde_json::Value {
    let waiter = |waiter: &WaiterLine| {
        serde_json::json!({
            "waiter": party_json(&waiter.waiter),
            "name": waiter.name,
            "mode": waiter.mode,
            "waited_seconds": waiter.waited.as_secs_f64(),
        })
    };
    serde_json::json!({
        "holder": party_json(&lock.holder),
        "name": lock.name,
        "mode": lock.mode,
        "age_seconds": lock.age.as_secs_f64(),
        "waiters": lock.waiters.iter().map(waiter).collect::<Vec<_>>(),
        "waiters_count": lock.waiters_count,
    })
}

/// A transaction that can't go on, as one JSON object.
pub(crate) fn doomed_json(doomed: &DoomLine) -> serde_json::Value {
    serde_json::json!({ "doomed": party_json(&doomed.party), "why": doomed.why })
}

fn party_json(party: &PartyLine) -> serde_json::Value {
    serde_json::json!({
        "party": if party.txn.is_some() { "transaction" } else { "main line" },
        "txn": party.txn,
        "uid": party.uid,
        "pid": if party.pid == 0 { None } else { Some(party.pid) },
        "command": if party.label.is_empty() { None } else { Some(&party.label) },
        "doomed": party.is_doomed,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn party_of(txn: Option<u64>, label: &str) -> PartyLine {
        let uid = txn.map(|_| 0);
        PartyLine { txn, uid, pid: 7, label: label.to_owned(), is_doomed: false }
    }

    #[test]
    fn a_lock_is_a_row_and_so_is_each_waiter_whatever_names_hold() {
        let waiter = WaiterLine {
            waiter: party_of(None, "git"),
            name: "/odd\nname".to_owned(),
            mode: "shared".to_owned(),
            waited: Duration::from_millis(900),
        };
        let lock = LockLine {
            holder: party_of(Some(17), "make\tinstall"),
            name: "/odd\nname".to_owned(),
            mode: "exclusive".to_owned(),
            age: Duration::from_secs(12),
            waiters: vec![waiter],
            waiters_count: 5,
        };
        let mut text = String::new();
        heading(&mut text).expect("writes");
        rows(&mut text, &lock, false).expect("writes");
        let lines: Vec<_> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "MODE AGE HOLDER NAME",
                "exclusive 12 s transaction 17 (make\\tinstall, pid 7, user root) /odd\\nname",
                "shared 0 s waits: main line (git, pid 7) /odd\\nname",
                "and 4 more wait",
            ]
        );
        let json = as_json(&lock);
        assert_eq!(json["holder"]["txn"], 17);
        assert_eq!(json["waiters"][0]["waiter"]["party"], "main line");
        assert_eq!(json["waiters"][0]["waiter"]["command"], "git");
        assert_eq!(json["name"], "/odd\nname");
    }
}
