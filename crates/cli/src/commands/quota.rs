//! `kvfs quota`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::args::{QuotaArgs, QuotaCommand, QuotaOf};
use crate::control::{LimitChanges, QuotaOwner, QuotaRequest, QuotaRow, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Code, Result};
use crate::units::human_bytes;

pub(crate) fn run(args: &QuotaArgs) -> Result<ExitCode> {
    let only_reads = matches!(args.command, QuotaCommand::Get { .. } | QuotaCommand::Report { .. });
    let request = request(&args.command)?;
    let request = Request::Quota(request);
    let answer = Endpoint::with(args.store.as_deref(), only_reads, |endpoint| endpoint.call(&request))?;
    match (answer, &args.command) {
        (Response::Done, _) => {}
        (Response::Quotas { now, rows }, QuotaCommand::Get { json, .. } | QuotaCommand::Report { json }) => {
            print(&rows, now, *json)?;
        }
        _ => return Err(Endpoint::confused()),
    }
    Ok(ExitCode::SUCCESS)
}

fn request(command: &QuotaCommand) -> Result<QuotaRequest> {
    Ok(match command {
        QuotaCommand::On => QuotaRequest::On,
        QuotaCommand::Off => QuotaRequest::Off,
        QuotaCommand::Set { of, bytes_soft, bytes_hard, inodes_soft, inodes_hard, grace } => {
            let owner = owner(of)?
                .ok_or_else(|| CliError::new(Code::Usage, "whose limits? give --user or --group"))?;
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
    })
}

fn owner(of: &QuotaOf) -> Result<Option<QuotaOwner>> {
    Ok(match (&of.user, &of.group) {
        (Some(user), _) => Some(QuotaOwner::User(number(user, Path::new("/etc/passwd"), "user")?)),
        (_, Some(group)) => Some(QuotaOwner::Group(number(group, Path::new("/etc/group"), "group")?)),
        (None, None) => None,
    })
}

/// The number of a user or group: itself, or what `table` says of the name.
fn number(name: &str, table: &Path, what: &str) -> Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let text = std::fs::read_to_string(table).map_err(|error| CliError::io("read", table, &error))?;
    find_number(&text, name).ok_or_else(|| {
        let table = table.display();
        CliError::new(Code::Usage, format!("no {what} \"{name}\" in {table}; give the number"))
    })
}

fn find_number(table: &str, name: &str) -> Option<u32> {
    let mut lines = table.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?)
}

fn find_name(table: &str, number: u32) -> Option<&str> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then_some(name)
    })
}

fn print(rows: &[QuotaRow], now: u64, json: bool) -> Result<()> {
    let table = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (users, groups) = (table("/etc/passwd"), table("/etc/group"));
    let parts = |row: &QuotaRow| match row.owner {
        QuotaOwner::User(id) => ("user", id, find_name(&users, id).map(str::to_owned)),
        QuotaOwner::Group(id) => ("group", id, find_name(&groups, id).map(str::to_owned)),
    };
    let mut text;
    if json {
        let list: Vec<_> = rows.iter().map(|row| as_json(row, parts(row), now)).collect();
        text = format!("{}\n", serde_json::Value::Array(list));
    } else {
        text = format!(
            "{:5}  {:16}  {:>9}  {:>9}  {:>9}  {:8}  {:>10}  {:>10}  {:>10}  GRACE\n",
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
                "{kind:5}  {name:16}  {:>9}  {:>9}  {:>9}  {:8}  {:>10}  {:>10}  {:>10}  {}",
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
        assert_eq!(find_number(table, "anna"), Some(1000));
        assert_eq!(find_number(table, "x"), None);
        assert_eq!(find_name(table, 0), Some("root"));
        assert_eq!(find_name(table, 7), None);
        assert_eq!(number("17", Path::new("/nowhere"), "user").ok(), Some(17));
    }
}
