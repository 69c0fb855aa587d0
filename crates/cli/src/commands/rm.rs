//! `kvfs rm`.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use kvfs_rpc::client::{ClientError, calls};
use rustix::io::Errno;

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
    let is_view = first.mount.is_view;
    if is_view { remove_in_view(&found, args.json) } else { remove_in_transaction(&found, args.json) }
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
        attributes => attributes.map_err(|error| not_there(path, &error))?,
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

/// With the directory in which it was looked for, where the path does not say it.
fn not_there(path: &Path, error: &std::io::Error) -> CliError {
    let looked_in = std::env::current_dir().ok().filter(|_| path.is_relative());
    let place = looked_in.map(|dir| format!(" in {}", dir.display())).unwrap_or_default();
    let CliError { code, .. } = CliError::io("remove", path, error);
    let why = match error.kind() {
        ErrorKind::NotFound => "no such file or directory".to_owned(),
        _ => error.to_string(),
    };
    CliError::new(code, format!("cannot remove {}{place}: {why}", path.display()))
}

fn remove_in_transaction(found: &[Doomed], is_json: bool) -> Result<ExitCode> {
    let paths = found.iter().map(|doomed| doomed.mount.path_in_store(&doomed.path)).collect();
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

/// In the view of a transaction, or on a branch, of which it becomes a part.
fn remove_in_view(found: &[Doomed], is_json: bool) -> Result<ExitCode> {
    for doomed in found {
        let removed = from_above(&doomed.mount, &[&doomed.path], |top, below| top.remove_tree(below[0]));
        removed.map_err(|error| tree_error("remove", &doomed.path, error))?;
    }
    if is_json {
        let line = serde_json::json!({ "transaction": null, "trees": found.len(), "can_be_undone": false });
        print(&format!("{line}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a call on the lowest directory above all of these paths that may be opened, with what they are from there.
pub(super) fn from_above<T>(
    mount: &MountedStore,
    paths: &[&Path],
    call: impl Fn(&calls::Mount, &[&[u8]]) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let mut refused = ClientError::NotMounted(mount.dir.clone());
    let above = paths.first().into_iter().flat_map(|path| path.ancestors().skip(1));
    let in_common = |directory: &&Path| {
        paths.iter().all(|path| path.parent().is_some_and(|above| above.starts_with(directory)))
    };
    for directory in above.take_while(|above| above.starts_with(&mount.dir)).filter(in_common) {
        match calls::Mount::open(directory) {
            Ok(top) => {
                let below = paths.iter().map(|path| path.strip_prefix(directory).unwrap_or(path));
                let below: Vec<&[u8]> = below.map(|path| path.as_os_str().as_bytes()).collect();
                return call(&top, &below).map_err(|error| match error {
                    ClientError::Tree { errno, text } => {
                        let text = format!("{}/{text}", directory.display());
                        ClientError::Tree { errno, text }
                    }
                    error => error,
                });
            }
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Why a call on a tree failed.
pub(super) fn tree_error(verb: &str, path: &Path, error: ClientError) -> CliError {
    match error {
        ClientError::Io(error) => CliError::io(verb, path, &error),
        ClientError::Tree { errno, text } => CliError::new(code_of(errno), text),
        error => CliError::new(Code::Failed, error.to_string()),
    }
}

fn code_of(errno: i32) -> Code {
    match Errno::from_raw_os_error(errno) {
        Errno::ACCESS | Errno::PERM => Code::Denied,
        Errno::BUSY => Code::InUse,
        Errno::NOSPC | Errno::DQUOT => Code::NoSpace,
        Errno::CANCELED => Code::Conflict,
        _ => Code::Failed,
    }
}
