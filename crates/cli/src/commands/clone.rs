//! `kvfs clone`.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use super::place::{Place, from_above, not_found, tree_error};
use crate::args::CloneArgs;
use crate::control::{self, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Code, Result};
use crate::output::print;
use crate::progress::tell;
use crate::units::human_bytes;

pub(crate) fn run(args: &CloneArgs) -> Result<ExitCode> {
    let source = place(&args.source)?;
    let attributes = source.path.symlink_metadata();
    attributes.map_err(|error| not_found("clone", &args.source, &error))?;
    let target = target_place(args, &source)?;
    if source.mount.device != target.mount.device {
        let (one, two) = (source.path.display(), target.path.display());
        let message = format!("{one} and {two} are on different mounts: what is cloned stays in its store");
        return Err(CliError::new(Code::Usage, message));
    }
    if target.mount.is_read_only() {
        return Err(CliError::new(Code::Usage, format!("{}: a read-only mount", target.path.display())));
    }
    if target.mount.is_view {
        return clone_in_view(args, &source, &target);
    }
    let request = Request::CloneTree { source: source.in_store(), target: target.in_store() };
    let answer = Endpoint::with(Some(&target.mount.dir), false, |endpoint| endpoint.call(&request))?;
    let Response::Cloned { txn, names, bytes, is_kept } = answer else { return Err(control::confused()) };
    if args.json {
        let line = serde_json::json!({
            "transaction": txn, "names": names, "bytes_shared": bytes, "can_be_undone": is_kept,
        });
        print(&format!("{line}\n"))?;
    } else {
        let undo = if is_kept { format!("; undo: kvfs txn undo {txn}") } else { String::new() };
        let what = if names == 1 { String::new() } else { format!(": {names} names") };
        let shared = if bytes == 0 { String::new() } else { format!(", {} shared", human_bytes(bytes)) };
        eprintln!("kvfs: cloned as transaction {txn}{what}{shared}{undo}");
    }
    Ok(ExitCode::SUCCESS)
}

/// In the view of a transaction, or on a branch, of which it becomes a part.
fn clone_in_view(args: &CloneArgs, source: &Place, target: &Place) -> Result<ExitCode> {
    let cloned = from_above(&[source, target], |top, below| {
        // What the kernel keeps of files that are being written comes along.
        top.sync_all()?;
        top.clone_tree(below[0], below[1])
    });
    cloned.map_err(|error| tree_error("clone", &source.path, error))?;
    if args.json {
        let line = serde_json::json!({ "transaction": null, "can_be_undone": false });
        print(&format!("{line}\n"))?;
    } else {
        tell("cloned, as a part of this transaction or branch");
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the clone is to be: in the target, if that is a directory.
fn target_place(args: &CloneArgs, source: &Place) -> Result<Place> {
    let exists = || {
        let message = format!("{}: it is there already, and is not overwritten", args.target.display());
        Err(CliError::new(Code::Failed, message))
    };
    match args.target.metadata() {
        Ok(found) if found.is_dir() => {
            let name = source.path.file_name().unwrap_or_default();
            let target = place(&args.target.join(name))?;
            if target.path.symlink_metadata().is_ok() { exists() } else { Ok(target) }
        }
        Ok(_) => exists(),
        Err(error) if error.kind() == ErrorKind::NotFound && args.target.symlink_metadata().is_err() => {
            place(&args.target)
        }
        Err(error) => Err(CliError::io("look at", &args.target, &error)),
    }
}

/// The directory of `path` must be there.
fn place(path: &Path) -> Result<Place> {
    if Place::name_of(path).is_none() {
        let message = format!("{}: a name is cloned, not \"..\" or the root", path.display());
        return Err(CliError::new(Code::Usage, message));
    }
    Place::of(path)
}
