//! `kvfs snapshot`.

mod arrival;
mod pull;
mod push;
mod receive;
mod send;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::txn::print_changes;
use crate::args::{SnapshotArgs, SnapshotCommand};
use crate::control::{self, Request, Response, SnapshotLine, SnapshotRequest};
use crate::endpoint::{Endpoint, expect_main_line};
use crate::error::{CliError, Code, Result};
use crate::places::{self, Limits};
use crate::progress::tell_none;
use crate::units::{changed, date_time, human_duration};

pub(crate) fn run(args: &SnapshotArgs) -> Result<ExitCode> {
    use SnapshotCommand::{Create, Diff, List, Pull, Push, Receive, Restore, Send};
    let store = args.store.as_deref();
    match &args.command {
        Receive(receive) => return receive::run(store, receive),
        Pull(pull) => return pull::run(store, pull),
        Push(push) => return push::run(store, push),
        Send(send) => send::check(send)?,
        Create { .. } => expect_main_line(store, "a snapshot is one of the main line")?,
        Restore { .. } => expect_main_line(store, "a snapshot is restored on the main line")?,
        _ => {}
    }
    let only_reads =
        matches!(args.command, List { .. } | Diff { .. } | Restore { dry_run: true, .. } | Send(_));
    Endpoint::with(args.store.as_deref(), only_reads, |endpoint| answer(endpoint, &args.command))?;
    Ok(ExitCode::SUCCESS)
}

fn answer(endpoint: &mut Endpoint, command: &SnapshotCommand) -> Result<()> {
    match command {
        SnapshotCommand::Create { name, flush, private } => {
            done(endpoint, SnapshotRequest::Create { name: name.clone(), flush: *flush, private: *private })
        }
        SnapshotCommand::Set { name, private, .. } => {
            done(endpoint, SnapshotRequest::SetPrivate { name: name.clone(), private: *private })
        }
        SnapshotCommand::Delete { name } => done(endpoint, SnapshotRequest::Delete { name: name.clone() }),
        SnapshotCommand::List { json } => list(endpoint, *json),
        SnapshotCommand::Diff { before, after, paths, stat, json } => {
            diff(endpoint, (Some(before), after.as_ref()), paths, (*stat, *json))
        }
        // Seen from now, the snapshot is what comes.
        SnapshotCommand::Restore { name, paths, dry_run: true, json } => {
            diff(endpoint, (None, Some(name)), paths, (false, *json))
        }
        SnapshotCommand::Restore { name, paths, dry_run: false, json } => {
            restore(endpoint, name, paths, *json)
        }
        SnapshotCommand::Send(args) => send::run(endpoint, args),
        SnapshotCommand::Push(_) | SnapshotCommand::Receive(_) | SnapshotCommand::Pull(_) => {
            Err(CliError::new(Code::Usage, "this command reaches the store by itself"))
        }
    }
}

fn ask(endpoint: &mut Endpoint, request: SnapshotRequest) -> Result<Response> {
    endpoint.call(&Request::Snapshot(request))
}

fn done(endpoint: &mut Endpoint, request: SnapshotRequest) -> Result<()> {
    match ask(endpoint, request)? {
        Response::Done => Ok(()),
        _ => Err(control::confused()),
    }
}

fn list(endpoint: &mut Endpoint, json: bool) -> Result<()> {
    let Response::Snapshots { now, lines } = ask(endpoint, SnapshotRequest::List)? else {
        return Err(control::confused());
    };
    if json {
        let list: Vec<_> = lines.iter().map(as_json).collect();
        println!("{}", serde_json::Value::Array(list));
    } else if lines.is_empty() {
        tell_none("snapshots");
    } else {
        println!("{:19}  {:>8}  NAME", "CREATED (UTC)", "AGE");
        for SnapshotLine { name, created, is_private, .. } in &lines {
            let (time, age) = (date_time(*created), human_duration(age(now, *created)));
            println!("{time:19}  {age:>8}  {name}{}", if *is_private { "  (private)" } else { "" });
        }
    }
    Ok(())
}

fn age(now: Duration, created: Duration) -> Duration {
    now.saturating_sub(created)
}

fn as_json(line: &SnapshotLine) -> serde_json::Value {
    serde_json::json!({
        "name": line.name,
        "position": line.position,
        "created": line.created.as_secs_f64(),
        "private": line.is_private,
    })
}

/// Prints what leads from one side to the other (`None`: now); with `paths` only what is at and below them.
fn diff(
    endpoint: &mut Endpoint,
    (before, after): (Option<&String>, Option<&String>),
    paths: &[String],
    form: (bool, bool),
) -> Result<()> {
    let only = places::parse(paths)?;
    print_changes(form, &Limits { only: &only, skip: &[] }, |from, limit| {
        let (before, after) = (before.cloned(), after.cloned());
        match ask(endpoint, SnapshotRequest::Diff { before, after, from, limit })? {
            Response::Diff { lines, more } => Ok((lines, more)),
            _ => Err(control::confused()),
        }
    })
}

fn restore(endpoint: &mut Endpoint, name: &str, paths: &[String], json: bool) -> Result<()> {
    let request = SnapshotRequest::Restore { name: name.to_owned(), paths: paths.to_vec() };
    let Response::Restored { txn, names, inodes, keys } = ask(endpoint, request)? else {
        return Err(control::confused());
    };
    let line = if json {
        serde_json::json!({ "transaction": txn, "names": names, "inodes": inodes, "keys": keys }).to_string()
    } else if (names, inodes, keys) == (0, 0, 0) {
        format!("nothing has changed since \"{name}\"")
    } else {
        format!("restored \"{name}\" as transaction {txn}: {}", changed(names, inodes, keys))
    };
    std::io::Write::write_all(&mut std::io::stdout(), format!("{line}\n").as_bytes())
        .map_err(|error| CliError::io("write", Path::new("standard output"), &error))
}
