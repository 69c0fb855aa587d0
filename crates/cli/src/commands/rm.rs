//! `kvfs rm`.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use super::place::{Place, from_above, not_found, tree_error};
use crate::args::RmArgs;
use crate::control::{self, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::output::print;
use crate::progress::tell;

/// A name that is to go.
struct Doomed {
    place: Place,
    is_directory: bool,
}

pub(crate) fn run(args: &RmArgs) -> Result<ExitCode> {
    let found: Vec<_> =
        args.paths.iter().filter_map(|path| find(path, args).transpose()).collect::<Result<_>>()?;
    let Some(first) = found.first() else { return Ok(ExitCode::SUCCESS) };
    if let Some(other) = found.iter().find(|doomed| doomed.place.mount.device != first.place.mount.device) {
        let (one, two) = (first.place.path.display(), other.place.path.display());
        let message = format!("{one} and {two} are on different mounts, so they need a command for each");
        return Err(CliError::new(Code::Usage, message));
    }
    let is_view = first.place.mount.is_view;
    if is_view { remove_in_view(&found, args.json) } else { remove_in_transaction(&found, args.json) }
}

/// What is at `path`; `None`: nothing, and that is all right.
fn find(path: &Path, args: &RmArgs) -> Result<Option<Doomed>> {
    let refused = |why: &str| Err(CliError::new(Code::Usage, format!("{}: {why}", path.display())));
    let is_dot = path.as_os_str().as_bytes().ends_with(b"/.");
    if is_dot || Place::name_of(path).is_none() {
        return refused("a name is removed, not \".\", \"..\" or the root");
    }
    let attributes = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound && args.force => return Ok(None),
        attributes => attributes.map_err(|error| not_found("remove", path, &error))?,
    };
    let place = Place::of(path)?;
    let above = place.above();
    let device = above.metadata().map_err(|error| CliError::io("look at", above, &error))?.dev();
    let doomed = Doomed { place, is_directory: attributes.is_dir() };
    if doomed.place.mount.is_read_only() {
        return refused("it is on a read-only mount");
    }
    if doomed.is_directory && !args.recursive {
        return refused("it is a directory; -r removes it with all that is below");
    }
    let covered = mounts::table()?.into_iter().find(|mount| mount.point.starts_with(&doomed.place.path));
    if let Some(mount) = covered.filter(|_| doomed.is_directory) {
        return refused(&format!("something is mounted on {}: unmount it before", mount.point.display()));
    }
    if attributes.dev() != device {
        return refused("it is on another mount than the directory that it is in");
    }
    Ok(Some(doomed))
}

fn remove_in_transaction(found: &[Doomed], is_json: bool) -> Result<ExitCode> {
    let paths = found.iter().map(|doomed| doomed.place.in_store()).collect();
    let mount = &found[0].place.mount.dir;
    let answer =
        Endpoint::with(Some(mount), false, |endpoint| endpoint.call(&Request::RemoveTrees { paths }))?;
    let Response::Removed { txn, trees, is_kept } = answer else { return Err(control::confused()) };
    if is_json {
        let line = serde_json::json!({ "transaction": txn, "trees": trees, "can_be_undone": is_kept });
        print(&format!("{line}\n"))?;
    } else {
        let undo = if is_kept { format!("; undo: kvfs txn undo {txn}") } else { String::new() };
        let what = if trees == 1 { String::new() } else { format!(": {trees} trees") };
        eprintln!("kvfs: removed as transaction {txn}{what}{undo}");
    }
    Ok(ExitCode::SUCCESS)
}

/// In the view of a transaction, or on a branch, of which it becomes a part.
fn remove_in_view(found: &[Doomed], is_json: bool) -> Result<ExitCode> {
    for Doomed { place, .. } in found {
        let removed = from_above(&[place], |top, below| top.remove_tree(below[0]));
        removed.map_err(|error| tree_error("remove", &place.path, error))?;
    }
    if is_json {
        let line = serde_json::json!({ "transaction": null, "trees": found.len(), "can_be_undone": false });
        print(&format!("{line}\n"))?;
    } else {
        tell("removed, as a part of this transaction or branch");
    }
    Ok(ExitCode::SUCCESS)
}
