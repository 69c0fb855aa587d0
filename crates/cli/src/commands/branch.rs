//! `kvfs branch`.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::txn::print_changes;
use crate::args::{BranchArgs, BranchCommand, TableForm};
use crate::control::{
    self, BranchLine, BranchRequest, DirectoryLine, PlaceLine, Request, Response, SelectionLine,
};
use crate::endpoint::{Endpoint, expect_main_line};
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::names::Table;
use crate::output::{print, printable, printable_bytes, printable_path, with_bytes};
use crate::places::{self, Limits};
use crate::progress::tell_none;
use crate::units::{date_time, human_bytes};

pub(crate) fn run(args: &BranchArgs) -> Result<ExitCode> {
    // Also a comparison opens the branch.
    let only_reads = matches!(args.command, BranchCommand::List { .. });
    let mut store = args.store.clone();
    let mut directory = b"/".to_vec();
    if let BranchCommand::Create { dir, of: None, .. } = &args.command {
        if let Some(dir) = dir {
            (store, directory) = find_directory(args.store.as_deref(), dir)?;
        }
        expect_main_line(store.as_deref(), "a branch is one of the main line, or made with --of")?;
    }
    Endpoint::with(store.as_deref(), only_reads, |endpoint| answer(endpoint, &args.command, &directory))?;
    Ok(ExitCode::SUCCESS)
}

/// The store of a directory that is to be branched, and its path from the root of that as raw bytes. A path
/// that is not on the mount of `store` is one from its root.
fn find_directory(store: Option<&Path>, dir: &Path) -> Result<(Option<PathBuf>, Vec<u8>)> {
    let wanted = store.map(|store| {
        let mount = mounts::containing(store)?;
        mount.map_or_else(|| mounts::resolve(store), |mount| Ok(mount.store))
    });
    let wanted = wanted.transpose()?;
    let found = dir.canonicalize();
    let mount = found.as_ref().map_or(Ok(None), |found| mounts::on(found))?;
    if let (Ok(found), Some(mount)) = (&found, mount)
        && wanted.as_ref().is_none_or(|wanted| *wanted == mount.store)
    {
        let below = found.strip_prefix(&mount.dir).unwrap_or(found);
        let path = mount.root.join(below).into_os_string().into_vec();
        // A path on a branch is refused by what is asked next.
        return Ok((Some(if mount.is_view { found.clone() } else { mount.dir }), path));
    }
    match (store, found) {
        (Some(store), _) => Ok((Some(store.to_owned()), dir.as_os_str().as_bytes().to_vec())),
        (None, Err(error)) => Err(CliError::io("branch", dir, &error)),
        (None, Ok(found)) => Err(mounts::required(&found).err().unwrap_or_else(control::confused)),
    }
}

fn answer(endpoint: &mut Endpoint, command: &BranchCommand, directory: &[u8]) -> Result<()> {
    let done = |endpoint: &mut Endpoint, request| match ask(endpoint, request)? {
        Response::Done => Ok(()),
        _ => Err(control::confused()),
    };
    match command.clone_request(directory)? {
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
    fn clone_request(&self, directory: &[u8]) -> Result<Option<BranchRequest>> {
        Ok(Some(match self {
            Self::Create { name, of: Some(parent), flush, .. } => {
                BranchRequest::Fork { name: name.clone(), parent: parent.clone(), flush: *flush }
            }
            Self::Create { name, from, flush, .. } => BranchRequest::Create {
                name: name.clone(),
                directory: directory.to_vec(),
                from: from.clone(),
                flush: *flush,
            },
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
    if lines.is_empty() && !form.json {
        tell_none("branches");
        return Ok(());
    }
    let mut text;
    if form.json {
        let list: Vec<_> = lines.iter().map(as_json).collect();
        text = format!("{}\n", serde_json::Value::Array(list));
    } else {
        let head = ("CREATED (UTC)", "USER", "SIZE", "NAME", "OF");
        text = format!(
            "{:19}  {:>8}  {:>9}  {:20}  {:20}  MOUNTED ON\n",
            head.0, head.1, head.2, head.3, head.4
        );
        for line in &lines {
            let BranchLine { name, created, bytes, uid, .. } = line;
            let user = Table::Users.shown(*uid, form.numeric);
            let (created, bytes, dir) = (date_time(*created), human_bytes(*bytes), dir_of(line));
            let of = line.parent.as_ref().map_or_else(|| directory_of(line), |name| format!("branch {name}"));
            let row =
                format!("{created:19}  {user:>8}  {bytes:>9}  {name:20}  {of:20}  {}", printable_path(&dir));
            text.push_str(row.trim_end());
            text.push('\n');
            if let Some(why) = &line.not_kept {
                let why = printable(why);
                let _ = writeln!(text, "{:19}  not kept yet, since it was unmounted: {why}", "");
            }
        }
    }
    print(&text)
}

/// What it is a branch of, and what has become of that on the main line.
fn directory_of(line: &BranchLine) -> String {
    let Some(DirectoryLine { path, now }) = &line.directory else { return "/".to_owned() };
    let shown = printable_bytes(path);
    match now {
        Some(now) if now == path => shown,
        Some(now) => format!("{shown} (now {})", printable_bytes(now)),
        None => format!("{shown} (removed)"),
    }
}

fn dir_of(line: &BranchLine) -> PathBuf {
    OsString::from_vec(line.dir.clone()).into()
}

fn as_json(line: &BranchLine) -> serde_json::Value {
    let value = serde_json::json!({
        "name": line.name,
        "transaction": line.id,
        "uid": line.uid,
        "created": line.created.as_secs_f64(),
        "bytes": line.bytes,
        "parent": line.parent,
        "not_kept": line.not_kept,
    });
    let directory = line.directory.as_ref();
    let now = directory.map_or(Some(b"/".as_slice()), |of| of.now.as_deref());
    let value = with_bytes(value, "directory", Some(directory.map_or(b"/", |of| &of.path)));
    let value = with_bytes(value, "directory_now", now);
    with_bytes(value, "mounted", Some(&*line.dir).filter(|dir| !dir.is_empty()))
}
