//! `kvfs quota`.

mod project;

use std::process::ExitCode;

use crate::args::{ProjectCommand, QuotaArgs, QuotaCommand, QuotaOf, TableForm};
use crate::control::{self, LimitChanges, QuotaOwner, QuotaRequest, QuotaRow, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Code, Result};
use crate::names::Table;
use crate::output::print as print_text;
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
        (
            Response::Quotas { now, rows },
            &(QuotaCommand::Get { form, exclusive, .. } | QuotaCommand::Report { form, exclusive }),
        ) => print(&rows, now, form, exclusive)?,
        (Response::ProjectTrees(trees), QuotaCommand::Project(ProjectCommand::List { form })) => {
            project::print(&trees, *form)?;
        }
        _ => return Err(control::confused()),
    }
    Ok(ExitCode::SUCCESS)
}

/// What the store is asked; `None`: it was done by calls on the mount.
fn request(command: &QuotaCommand) -> Result<Option<QuotaRequest>> {
    Ok(Some(match command {
        &QuotaCommand::On { abort_open } => QuotaRequest::On { abort_open },
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
        &QuotaCommand::Get { ref of, exclusive, .. } => {
            let own = QuotaOwner::User(rustix::process::geteuid().as_raw());
            QuotaRequest::Get { owner: owner(of)?.unwrap_or(own), exclusive }
        }
        &QuotaCommand::Report { exclusive, .. } => QuotaRequest::Report { exclusive },
        QuotaCommand::Project(ProjectCommand::List { .. }) => QuotaRequest::ProjectTrees,
        QuotaCommand::Project(command) => return project::run(command).map(|()| None),
    }))
}

fn owner(of: &QuotaOf) -> Result<Option<QuotaOwner>> {
    Ok(match (&of.user, &of.group, &of.project) {
        (Some(user), ..) => Some(QuotaOwner::User(Table::Users.number(user)?)),
        (_, Some(group), _) => Some(QuotaOwner::Group(Table::Groups.number(group)?)),
        (.., Some(project)) => Some(QuotaOwner::Project(Table::Projects.number(project)?)),
        (None, None, None) => None,
    })
}

fn print(rows: &[QuotaRow], now: u64, form: TableForm, exclusive: bool) -> Result<()> {
    if !form.json {
        return print_text(&as_text(rows, now, form.numeric, exclusive));
    }
    let list: Vec<_> = rows.iter().map(|row| as_json(row, now)).collect();
    print_text(&format!("{}\n", serde_json::Value::Array(list)))
}

fn parts(owner: QuotaOwner) -> (Table, u32) {
    match owner {
        QuotaOwner::User(id) => (Table::Users, id),
        QuotaOwner::Group(id) => (Table::Groups, id),
        QuotaOwner::Project(id) => (Table::Projects, id),
    }
}

/// With a column more where exclusive bytes were asked for.
fn as_text(rows: &[QuotaRow], now: u64, numeric: bool, exclusive: bool) -> String {
    let more = |shown: String| if exclusive { format!("  {shown:>9}") } else { String::new() };
    let mut text = format!(
        "{:7}  {:16}  {:>9}{}  {:>9}  {:>9}  {:8}  {:>10}  {:>10}  {:>10}  GRACE\n",
        "",
        "WHO",
        "BYTES",
        more("EXCLUSIVE".to_owned()),
        "SOFT",
        "HARD",
        "GRACE",
        "INODES",
        "SOFT",
        "HARD"
    );
    for row in rows {
        let (table, id) = parts(row.owner);
        let (kind, name) = (table.what(), table.shown(id, numeric));
        let LimitChanges { bytes_soft, bytes_hard, inodes_soft, inodes_hard, .. } = row.limits;
        let size = |limit: Option<u64>| limit.filter(|&limit| limit > 0).map_or("-".into(), human_bytes);
        let count =
            |limit: Option<u64>| limit.filter(|&limit| limit > 0).map_or("-".into(), |n| n.to_string());
        let line = format!(
            "{kind:7}  {name:16}  {:>9}{}  {:>9}  {:>9}  {:8}  {:>10}  {:>10}  {:>10}  {}",
            human_bytes(row.bytes),
            more(row.bytes_exclusive.map_or("-".into(), human_bytes)),
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
    text
}

/// What is left of a time of grace.
fn left(until: Option<u64>, now: u64) -> String {
    match until {
        None => String::new(),
        Some(until) if until < now => "over".to_owned(),
        Some(until) => crate::units::human_duration(std::time::Duration::from_secs(until - now)),
    }
}

fn as_json(row: &QuotaRow, now: u64) -> serde_json::Value {
    let (table, id) = parts(row.owner);
    let left = |until: Option<u64>| until.map(|until| until.saturating_sub(now));
    serde_json::json!({
        "kind": table.what(),
        "id": id,
        "name": table.name(id),
        "bytes": row.bytes,
        "bytes_exclusive": row.bytes_exclusive,
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
    fn exclusive_bytes_have_a_column_where_they_were_asked_for() {
        let none = Some(0);
        let limits = LimitChanges {
            bytes_soft: none,
            bytes_hard: Some(20 << 30),
            inodes_soft: none,
            inodes_hard: none,
            grace_seconds: none,
        };
        let row = |id, bytes_exclusive| QuotaRow {
            owner: QuotaOwner::Project(id),
            bytes: 3 << 20,
            bytes_exclusive,
            inodes: 7,
            limits,
            bytes_until: None,
            inodes_until: None,
        };
        let asked = [row(42, Some(1 << 20)), row(43, Some(0))];
        let text = as_text(&asked, 0, true, true);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains(" BYTES  EXCLUSIVE       SOFT "), "{text}");
        assert!(lines[1].contains(" 3.0 MiB    1.0 MiB          -   20.0 GiB "), "{text}");
        assert!(lines[2].contains(" 3.0 MiB        0 B          -   20.0 GiB "), "{text}");
        assert_eq!(lines[0].find("EXCLUSIVE").map(|at| at + 9), lines[1].find("1.0 MiB").map(|at| at + 7));
        let not_asked = as_text(&[row(42, None)], 0, true, false);
        assert!(!not_asked.contains("EXCLUSIVE") && not_asked.contains("3.0 MiB          -   20.0 GiB"));
        assert_eq!(as_json(&asked[0], 0)["bytes_exclusive"], 1 << 20);
        assert!(as_json(&row(42, None), 0)["bytes_exclusive"].is_null());
    }
}
