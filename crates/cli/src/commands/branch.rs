//! `kvfs branch`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::txn::print_changes;
use crate::args::{BranchArgs, BranchCommand};
use crate::control::{BranchLine, BranchRequest, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Result};
use crate::units::{date_time, human_bytes};

pub(crate) fn run(args: &BranchArgs) -> Result<ExitCode> {
    // Also a comparison opens the branch.
    let only_reads = matches!(args.command, BranchCommand::List { .. });
    Endpoint::with(args.store.as_deref(), only_reads, |endpoint| answer(endpoint, &args.command))?;
    Ok(ExitCode::SUCCESS)
}

fn answer(endpoint: &mut Endpoint, command: &BranchCommand) -> Result<()> {
    let done = |endpoint: &mut Endpoint, request| match ask(endpoint, request)? {
        Response::Done => Ok(()),
        _ => Err(Endpoint::confused()),
    };
    match command.clone_request()? {
        Some(request) => done(endpoint, request),
        None => match command {
            BranchCommand::Diff { name, stat, json } => diff(endpoint, name, *stat, *json),
            BranchCommand::List { json } => list(endpoint, *json),
            _ => Err(Endpoint::confused()),
        },
    }
}

impl BranchCommand {
    /// What is asked, where the answer is only that it is done.
    fn clone_request(&self) -> Result<Option<BranchRequest>> {
        Ok(Some(match self {
            Self::Create { name, flush } => BranchRequest::Create { name: name.clone(), flush: *flush },
            Self::Mount { name, dir } => {
                let dir = dir.canonicalize().map_err(|error| CliError::io("mount on", dir, &error))?;
                BranchRequest::Mount { name: name.clone(), dir: dir.as_os_str().as_bytes().to_vec() }
            }
            Self::Umount { name } => BranchRequest::Unmount { name: name.clone() },
            Self::Merge { name } => BranchRequest::Merge { name: name.clone() },
            Self::Delete { name } => BranchRequest::Delete { name: name.clone() },
            Self::List { .. } | Self::Diff { .. } => return Ok(None),
        }))
    }
}

fn ask(endpoint: &mut Endpoint, request: BranchRequest) -> Result<Response> {
    endpoint.call(&Request::Branch(request))
}

fn diff(endpoint: &mut Endpoint, name: &str, stat: bool, json: bool) -> Result<()> {
    print_changes(stat, json, |from, limit| {
        match ask(endpoint, BranchRequest::Diff { name: name.to_owned(), from, limit })? {
            Response::Diff { lines, more } => Ok((lines, more)),
            _ => Err(Endpoint::confused()),
        }
    })
}

fn list(endpoint: &mut Endpoint, json: bool) -> Result<()> {
    use std::io::Write;
    let Response::Branches { lines, .. } = ask(endpoint, BranchRequest::List)? else {
        return Err(Endpoint::confused());
    };
    let mut text = String::new();
    if json {
        let list: Vec<_> = lines.iter().map(as_json).collect();
        text = format!("{}\n", serde_json::Value::Array(list));
    } else if !lines.is_empty() {
        text = format!("{:19}  {:>9}  {:20}  MOUNTED ON\n", "CREATED (UTC)", "SIZE", "NAME");
        for line in &lines {
            let BranchLine { name, created, bytes, .. } = line;
            let (created, bytes, dir) = (date_time(*created), human_bytes(*bytes), dir_of(line));
            let row = format!("{created:19}  {bytes:>9}  {name:20}  {}", dir.display());
            text.push_str(row.trim_end());
            text.push('\n');
        }
    }
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| CliError::io("write", Path::new("standard output"), &error))
}

fn dir_of(line: &BranchLine) -> PathBuf {
    OsString::from_vec(line.dir.clone()).into()
}

fn as_json(line: &BranchLine) -> serde_json::Value {
    let dir = Some(dir_of(line)).filter(|dir| !dir.as_os_str().is_empty());
    serde_json::json!({
        "name": line.name,
        "transaction": line.id,
        "uid": line.uid,
        "created": line.created.as_secs_f64(),
        "bytes": line.bytes,
        "mounted": dir.map(|dir| dir.display().to_string()),
    })
}
