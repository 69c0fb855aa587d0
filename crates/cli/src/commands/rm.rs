//! `kvfs rm`.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use crate::args::RmArgs;
use crate::control::{self, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Code, Result};
use crate::mounts::{self, MountedStore};
use crate::output::print;

/// A name that is to go.
struct Doomed {
    /// Without symbolic links and dots, but for the name itself.
    path: PathBuf,
    is_directory: bool,
    mount: MountedStore,
}

pub(crate) fn run(args: &RmArgs) -> Result<ExitCode> {
    let found: Vec<_> =
        args.paths.iter().filter_map(|path| find(path, args).transpose()).collect::<Result<_>>()?;
    let Some(first) = found.first() else { return Ok(ExitCode::SUCCESS) };
    if let Some(other) = found.iter().find(|doomed| doomed.mount.device != first.mount.device) {
        let (one, two) = (first.path.display(), other.path.display());
        let message = format!("{one} and {two} are on different mounts, so they need a command for each");
        return Err(CliError::new(Code::Usage, message));
    }
    if first.mount.is_view { remove_by_calls(&found) } else { remove_in_transaction(&found, args.json) }
}

/// What is at `path`; `None`: nothing, and that is all right.
fn find(path: &Path, args: &RmArgs) -> Result<Option<Doomed>> {
    let refused = |why: &str| Err(CliError::new(Code::Usage, format!("{}: {why}", path.display())));
    let is_dot = path.as_os_str().as_bytes().ends_with(b"/.");
    let Some(Component::Normal(name)) = path.components().next_back().filter(|_| !is_dot) else {
        return refused("a name is removed, not \".\", \"..\" or the root");
    };
    let attributes = match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound && args.force => return Ok(None),
        attributes => attributes.map_err(|error| CliError::io("remove", path, &error))?,
    };
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let above = above.canonicalize().map_err(|error| CliError::io("resolve", above, &error))?;
    let device = above.metadata().map_err(|error| CliError::io("look at", &above, &error))?.dev();
    let doomed = Doomed {
        path: above.join(name),
        is_directory: attributes.is_dir(),
        mount: mounts::on(&above)?
            .ok_or_else(|| mounts::required(path).err().unwrap_or_else(control::confused))?,
    };
    if doomed.mount.options.split(',').any(|option| option == "ro") {
        return refused("it is on a read-only mount");
    }
    if doomed.is_directory && !args.recursive {
        return refused("it is a directory; -r removes it with all that is below");
    }
    let covered = mounts::table()?.into_iter().find(|mount| mount.point.starts_with(&doomed.path));
    if let Some(mount) = covered.filter(|_| doomed.is_directory) {
        return refused(&format!("something is mounted on {}: unmount it before", mount.point.display()));
    }
    if attributes.dev() != device {
        return refused("it is on another mount than the directory that it is in");
    }
    Ok(Some(doomed))
}

fn remove_in_transaction(found: &[Doomed], is_json: bool) -> Result<ExitCode> {
    let paths = found.iter().map(path_in_store).collect();
    let mount = &found[0].mount.dir;
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

/// In the view of a transaction, or on a branch.
fn remove_by_calls(found: &[Doomed]) -> Result<ExitCode> {
    for Doomed { path, is_directory, .. } in found {
        let removed = if *is_directory { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        removed.map_err(|error| CliError::io("remove", path, &error))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// As raw bytes, from the root of the store.
fn path_in_store(Doomed { path, mount, .. }: &Doomed) -> Vec<u8> {
    let below = path.strip_prefix(&mount.dir).unwrap_or(path);
    mount.root.join(below).into_os_string().as_bytes().to_vec()
}
