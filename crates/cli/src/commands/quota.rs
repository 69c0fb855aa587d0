//! `kvfs quota`.

mod project;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::args::{ProjectCommand, QuotaArgs, QuotaCommand, QuotaOf};
use crate::control::{LimitChanges, QuotaOwner, QuotaRequest, QuotaRow, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Code, Result};
use crate::units::human_bytes;

pub(crate) fn run(args: &QuotaArgs) -> Result<ExitCode> {
    let only_reads = matches!(
        args.command,
        QuotaCommand::Get { .. } | QuotaCommand::Report { .. } | QuotaCommand::Project(_)
    );
    let Some(request) = request(&args.command)? else { return Ok(ExitCode::SUCCESS) };
    let request = Request::Quota(request);
    let answer = Endpoint::with(args.store.as_deref(), only_reads, |endpoint| endpoint.call(&request))?;
    match (answer, &args.command) {
        (Response::Done, _) => {}
        (Response::Quotas { now, rows }, QuotaCommand::Get { json, .. } | QuotaCommand::Report { json }) => {
            print(&rows, now, *json)?;
        }
        (Response::ProjectTrees(trees), QuotaCommand::Project(ProjectCommand::List { json })) => {
            project::print(&trees, *json)?;
        }
        _ => return Err(Endpoint::confused()),
    }
    Ok(ExitCode::SUCCESS)
}

/// What the store is asked; `None`: it was done by calls on the mount.
fn request(command: &QuotaCommand) -> Result<Option<QuotaRequest>> {
    Ok(Some(match command {
        QuotaCommand::On => QuotaRequest::On,
        QuotaCommand::Off => QuotaRequest::Off,
        QuotaCommand::Set { of, bytes_soft, bytes_hard, inodes_soft, inodes_hard, grace } => {
            let owner = owner(of)?.ok_or_else(|| {
                CliError::new(Code::Usage, "whose limits? give --user, --group or --project")
            })?;
            let changes = LimitChanges {
                bytes_soft: *bytes_soft,
                bytes_hard: *bytes_hard,
                inodes_soft: *inodes_soft,
                inodes_hard: *inodes_hard,
                grace_seconds: grace.map(|grace| grace.as_secs()),
            };
            QuotaRequest::Set(owner, changes)
        }
        QuotaCommand::Get { of, .. } => {
            let own = QuotaOwner::User(rustix::process::geteuid().as_raw());
            QuotaRequest::Get(owner(of)?.unwrap_or(own))
        }
        QuotaCommand::Report { .. } => QuotaRequest::Report,
        QuotaCommand::Project(ProjectCommand::List { .. }) => QuotaRequest::ProjectTrees,
        QuotaCommand::Project(command) => return project::run(command).map(|()| None),
    }))
}

fn owner(of: &QuotaOf) -> Result<Option<QuotaOwner>> {
    Ok(match (&of.user, &of.group, &of.project) {
        (Some(user), ..) => Some(QuotaOwner::User(number(user, &USERS)?)),
        (_, Some(group), _) => Some(QuotaOwner::Group(number(group, &GROUPS)?)),
        (.., Some(project)) => Some(QuotaOwner::Project(number(project, &PROJECTS)?)),
        (None, None, None) => None,
    })
}

/// A file that has names and numbers in lines of fields between colons; the name is the first.
struct Table {
    path: &'static str,
    what: &'static str,
    /// Fields between name and number.
    skipped: usize,
}

const USERS: Table = Table { path: "/etc/passwd", what: "user", skipped: 1 };
const GROUPS: Table = Table { path: "/etc/group", what: "group", skipped: 1 };
const PROJECTS: Table = Table { path: "/etc/projid", what: "project", skipped: 0 };

/// The number of a user, group or project: itself, or what `table` says of the name.
fn number(name: &str, table: &Table) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let Table { path, what, skipped } = *table;
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.map_err(|error| CliError::io("read", Path::new(path), &error))?,
    };
    find_number(&text, name, skipped)
        .ok_or_else(|| CliError::new(Code::Usage, format!("no {what} \"{name}\" in {path}; give the number")))
}

fn find_number(table: &str, name: &str, skipped: usize) -> Option<u32> {
    let mut lines = table.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next()? == name).then(|| fields.nth(skipped)?.trim().parse().ok())?)
}

fn find_name(table: &str, number: u32, skipped: usize) -> Option<&str> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(skipped)?.trim().parse() == Ok(number)).then_some(name)
    })
}

fn print(rows: &[QuotaRow], now: u64, json: bool) -> Result<()> {
    let names =
        [USERS, GROUPS, PROJECTS].map(|table| std::fs::read_to_string(table.path).unwrap_or_default());
    let parts = |row: &QuotaRow| {
        let (text, table, id) = match row.owner {
            QuotaOwner::User(id) => (&names[0], USERS, id),
            QuotaOwner::Group(id) => (&names[1], GROUPS, id),
            QuotaOwner::Project(id) => (&names[2], PROJECTS, id),
        };
        (table.what, id, find_name(text, id, table.skipped).map(str::to_owned))
    };
    let mut text;
    if json {
        let list: Vec<_> = rows.iter().map(|row| as_json(row, parts(row), now)).collect();
        text = format!("{}\n", serde_json::Value::Array(list));
    } else {
        text = format!(
            "{:7}  {:16}  {:>9}  {:>9}  {:>9}  {:8}  {:>10}  {:>10}  {:>10}  GRACE\n",
            "", "WHO", "BYTES", "SOFT", "HARD", "GRACE", "INODES", "SOFT", "HARD"
        );
        for row in rows {
            let (kind, id, name) = parts(row);
            let name = name.unwrap_or_else(|| id.to_string());
            let LimitChanges { bytes_soft, bytes_hard, inodes_soft, inodes_hard, .. } = row.limits;
            let size = |limit: Option<u64>| limit.filter(|&limit| limit > 0).map_or("-".into(), human_bytes);
            let count =
                |limit: Option<u64>| limit.filter(|&limit| limit > 0).map_or("-".into(), |n| n.to_string());
            let line = format!(
                "{kind:7}  {name:16}  {:>9}  {:>9}  {:>9}  {:8}  {:>10}  {:>10}  {:>10}  {}",
                human_bytes(row.bytes),
                size(bytes_soft),
                size(bytes_hard),
                left(row.bytes_until, now),
                row.inodes,
                count(inodes_soft),
                count(inodes_hard),
                left(row.inodes_until, now),
            );
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| CliError::io("write", Path::new("standard output"), &error))
}

/// What is left of a time of grace.
fn left(until: Option<u64>, now: u64) -> String {
    match until {
        None => String::new(),
        Some(until) if until < now => "over".to_owned(),
        Some(until) => crate::units::human_duration(std::time::Duration::from_secs(until - now)),
    }
}

fn as_json(row: &QuotaRow, (kind, id, name): (&str, u32, Option<String>), now: u64) -> serde_json::Value {
    let left = |until: Option<u64>| until.map(|until| until.saturating_sub(now));
    serde_json::json!({
        "kind": kind,
        "id": id,
        "name": name,
        "bytes": row.bytes,
        "bytes_soft": row.limits.bytes_soft,
        "bytes_hard": row.limits.bytes_hard,
        "bytes_grace_left": left(row.bytes_until),
        "inodes": row.inodes,
        "inodes_soft": row.limits.inodes_soft,
        "inodes_hard": row.limits.inodes_hard,
        "inodes_grace_left": left(row.inodes_until),
        "grace": row.limits.grace_seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_found_in_tables() {
        let table = "root:x:0:0::/root:/bin/sh\nanna:x:1000:1000::/home/anna:/bin/sh\nbroken\n";
        assert_eq!(find_number(table, "anna", 1), Some(1000));
        assert_eq!(find_number(table, "x", 1), None);
        assert_eq!(find_name(table, 0, 1), Some("root"));
        assert_eq!(find_name(table, 7, 1), None);
        let projects = "web:42\nlogs:7\n";
        assert_eq!(find_number(projects, "logs", 0), Some(7));
        assert_eq!(find_name(projects, 42, 0), Some("web"));
        let nowhere = Table { path: "/nowhere", ..PROJECTS };
        assert_eq!(number("17", &nowhere).ok(), Some(17));
        assert!(number("web", &nowhere).is_err());
    }
}
