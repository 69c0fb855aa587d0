//! `kvfs branch`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::ExitCode;

use super::txn::print_changes;
use crate::args::{BranchArgs, BranchCommand, TableForm};
use crate::control::{self, BranchLine, BranchRequest, PlaceLine, Request, Response, SelectionLine};
use crate::endpoint::{Endpoint, expect_main_line};
use crate::error::{CliError, Code, Result};
use crate::names::Table;
use crate::output::print;
use crate::places::{self, Limits};
use crate::units::{date_time, human_bytes};

pub(crate) fn run(args: &BranchArgs) -> Result<ExitCode> {
    // Also a comparison opens the branch.
    let only_reads = matches!(args.command, BranchCommand::List { .. });
    if matches!(args.command, BranchCommand::Create { .. }) {
        expect_main_line(args.store.as_deref(), "a branch is one of the main line")?;
    }
    Endpoint::with(args.store.as_deref(), only_reads, |endpoint| answer(endpoint, &args.command))?;
    Ok(ExitCode::SUCCESS)
}

fn answer(endpoint: &mut Endpoint, command: &BranchCommand) -> Result<()> {
    let done = |endpoint: &mut Endpoint, request| match ask(endpoint, request)? {
        Response::Done => Ok(()),
        _ => Err(control::confused()),
    };
    match command.clone_request()? {
        Some(request) => done(endpoint, request),
        None => match command {
            BranchCommand::Diff { name, paths, stat, json } => diff(endpoint, name, paths, (*stat, *json)),
            BranchCommand::List { form } => list(endpoint, *form),
            _ => Err(control::confused()),
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
            Self::Merge { name, prefer } => {
                BranchRequest::Merge { name: name.clone(), selection: preferred(prefer)? }
            }
            Self::Delete { name } => BranchRequest::Delete { name: name.clone() },
            Self::List { .. } | Self::Diff { .. } => return Ok(None),
        }))
    }
}

fn ask(endpoint: &mut Endpoint, request: BranchRequest) -> Result<Response> {
    endpoint.call(&Request::Branch(request))
}

/// Which side stays where: `branch` or `main`, and places behind it, once or several times.
fn preferred(words: &[String]) -> Result<Option<SelectionLine>> {
    let mut selection = SelectionLine::default();
    let mut words = words.iter().peekable();
    if words.peek().is_none() {
        return Ok(None);
    }
    while let Some(side) = words.next() {
        let mut paths = Vec::new();
        while let Some(path) = words.next_if(|word| !matches!(word.as_str(), "branch" | "main")) {
            paths.push(path.clone());
        }
        let places = if paths.is_empty() { vec![PlaceLine::All] } else { places::parse(&paths)? };
        match side.as_str() {
            "branch" => selection.force.extend(places),
            "main" => selection.keep.extend(places),
            _ => {
                let message =
                    format!("--prefer branch or --prefer main, and paths behind it, not \"{side}\"");
                return Err(CliError::new(Code::Usage, message));
            }
        }
    }
    Ok(Some(selection))
}

fn diff(endpoint: &mut Endpoint, name: &str, paths: &[String], form: (bool, bool)) -> Result<()> {
    let only = places::parse(paths)?;
    print_changes(form, &Limits { only: &only, skip: &[] }, |from, limit| {
        match ask(endpoint, BranchRequest::Diff { name: name.to_owned(), from, limit })? {
            Response::Diff { lines, more } => Ok((lines, more)),
            _ => Err(control::confused()),
        }
    })
}

fn list(endpoint: &mut Endpoint, form: TableForm) -> Result<()> {
    let Response::Branches { lines, .. } = ask(endpoint, BranchRequest::List)? else {
        return Err(control::confused());
    };
    let mut text = String::new();
    if form.json {
        let list: Vec<_> = lines.iter().map(as_json).collect();
        text = format!("{}\n", serde_json::Value::Array(list));
    } else if !lines.is_empty() {
        text = format!("{:19}  {:>8}  {:>9}  {:20}  MOUNTED ON\n", "CREATED (UTC)", "USER", "SIZE", "NAME");
        for line in &lines {
            let BranchLine { name, created, bytes, uid, .. } = line;
            let user = Table::Users.shown(*uid, form.numeric);
            let (created, bytes, dir) = (date_time(*created), human_bytes(*bytes), dir_of(line));
            let row = format!("{created:19}  {user:>8}  {bytes:>9}  {name:20}  {}", dir.display());
            text.push_str(row.trim_end());
            text.push('\n');
        }
    }
    print(&text)
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
