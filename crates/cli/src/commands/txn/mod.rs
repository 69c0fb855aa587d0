//! `kvfs txn`.

mod begun;
mod content;
mod cover;
mod diff;
pub(crate) mod init;
mod join;
mod list;
mod lock;
pub(crate) mod processes;
mod retry;
mod run;
pub(crate) mod supervise;
mod undo;

pub(crate) use begun::Begun;
pub(crate) use diff::print_changes;
pub(crate) use join::cannot_run;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::args::{BeginArgs, IsolationArg, RunArgs, TxnArgs, TxnCommand};
use crate::control::{self, Begin, Client, Daemon, Request, Response};
use crate::endpoint::{expect_main_line, find_store, reach_public};
use crate::error::{CliError, Code, Result};
use crate::mounts::{self, MountedStore};

/// Tells commands in a transaction which one it is.
pub(crate) const TXN_VARIABLE: &str = "KVFS_TXN";
/// And of which store.
pub(crate) const STORE_VARIABLE: &str = "KVFS_TXN_STORE";

/// Longest label (bytes): the beginning of a command line says enough.
const LABEL_LEN_MAX: usize = 80;

pub(crate) fn run(args: &TxnArgs) -> Result<ExitCode> {
    let store = args.store.as_deref();
    match &args.command {
        TxnCommand::Run(run) if run.retry > 0 => retry::run(store, run),
        TxnCommand::Run(run) => run::run(store, run),
        TxnCommand::Begin(begin) => print_begun(store, begin),
        TxnCommand::Join { id, command } => join::run(store, *id, command),
        TxnCommand::Commit { id, is_async } => {
            simple(store, &Request::Commit { id: *id, durable: !is_async })
        }
        TxnCommand::Abort { id } => simple(store, &Request::Abort { id: *id }),
        TxnCommand::List { committed: true, form } => undo::list(store, *form),
        TxnCommand::List { committed: false, form } => list::run(store, *form),
        TxnCommand::Diff { id, paths, content: true, .. } => diff::run_with_content(store, *id, paths),
        TxnCommand::Diff { id, paths, stat, json, .. } => diff::run(store, *id, paths, (*stat, *json)),
        TxnCommand::Undo { id, paths, skip, force, dry_run, json } => {
            let selection = undo::selection(paths, skip, *force)?;
            undo::run(store, *id, &selection, *dry_run, *json)
        }
        TxnCommand::Lock(lock) => lock::run(store, lock),
        TxnCommand::Init { parent, kill_children, command } => init::run(*parent, *kill_children, command),
    }
}

/// Runs a command of this program in a transaction of its own on the main line of a mount: all of it happens,
/// or nothing.
pub(crate) fn run_own(mount: &Path, command: Vec<OsString>) -> Result<ExitCode> {
    let begin = BeginArgs { isolation: IsolationArg::Si, timeout: None, idle_timeout: None, nice: 0 };
    let (retry, review, kill_children, is_async, conflict_to) = (0, false, false, false, None);
    run::run(Some(mount), &RunArgs { begin, retry, review, kill_children, is_async, conflict_to, command })
}

/// The daemon of the store that `target` means: a store, a path on its mount, or the current directory.
pub(crate) fn connect(target: Option<&Path>) -> Result<(Client, MountedStore)> {
    match connect_by_store(target) {
        Err(error) => {
            let (client, dir, mounted) = reach_public(target, error)?;
            let seen =
                mounts::list()?.into_iter().rfind(|mount| mount.dir == dir && mount.store == mounted.store);
            Ok((client, seen.unwrap_or(mounted)))
        }
        connected => connected,
    }
}

/// By the socket in the store's directory.
fn connect_by_store(target: Option<&Path>) -> Result<(Client, MountedStore)> {
    let (store, mounted) = find_store(target)?;
    match control::connect(&store)? {
        Daemon::Serving { client, dir } => {
            let seen = mounts::list()?.into_iter().rfind(|mount| mount.dir == dir);
            let mount = seen.or(mounted).unwrap_or(MountedStore {
                dir,
                store: store.path().to_owned(),
                ..MountedStore::default()
            });
            Ok((client, mount))
        }
        Daemon::Closing(_) | Daemon::Absent => {
            let dead = mounted.as_ref().and_then(MountedStore::obituary);
            let why = dead.unwrap_or_else(|| {
                format!("{} is not mounted; this needs `kvfs mount`", store.path().display())
            });
            Err(CliError::new(Code::NotMounted, why))
        }
    }
}

/// As [`connect`], for what is about the main line: a path on a branch or in another transaction does not
/// mean it.
fn connect_to_main(target: Option<&Path>) -> Result<(Client, MountedStore)> {
    expect_main_line(target, "a transaction begins on the main line")?;
    connect(target)
}

/// Refuses what mounts views, where the daemon mounts nothing.
fn expect_mount(mount: &MountedStore, what: &str) -> Result<()> {
    if !mount.dir.as_os_str().is_empty() {
        return Ok(());
    }
    let store = mount.store.display();
    let message = format!(
        "{store} is served without a mount (`kvfs serve`), and {what} needs `kvfs mount`; `kvfs txn begin -s {store}` \
         begins a transaction for programs that use it without a mount"
    );
    Err(CliError::new(Code::NotMounted, message))
}

fn simple(store: Option<&Path>, request: &Request) -> Result<ExitCode> {
    let (mut client, _) = connect(store)?;
    match client.call(request)? {
        Response::Done | Response::Aborted { .. } | Response::TxnCommitted { .. } => Ok(ExitCode::SUCCESS),
        _ => Err(control::confused()),
    }
}

/// Returns the number of the new transaction, and where its view is mounted, if it is.
fn begin(client: &mut Client, args: &BeginArgs, label: String, tied: bool) -> Result<(u64, PathBuf)> {
    use std::os::unix::ffi::OsStringExt;
    let begin = Begin {
        serializable: args.isolation == IsolationArg::Serializable,
        timeout: args.timeout,
        idle_max: args.idle_timeout,
        nice: args.nice,
        label,
        tied,
    };
    match client.call(&Request::Begin(begin))? {
        Response::Begun { id, view } => Ok((id, OsString::from_vec(view).into())),
        _ => Err(control::confused()),
    }
}

fn print_begun(store: Option<&Path>, args: &BeginArgs) -> Result<ExitCode> {
    let (mut client, _) = connect_to_main(store)?;
    let (id, view) = begin(&mut client, args, "txn begin".to_owned(), false)?;
    // At once, so that `| head -n 1` takes it whole.
    let view = if client.is_public() || view.as_os_str().is_empty() {
        String::new()
    } else {
        format!("{}\n", view.display())
    };
    if let Err(error) = std::io::stdout().write_all(format!("{id}\n{view}").as_bytes()) {
        // Its number is known to no other process, so none would end it.
        begun::abort(&mut client, id)?;
        return Err(CliError::io("write", Path::new("standard output"), &error));
    }
    Ok(ExitCode::SUCCESS)
}

/// What a command is called in lists and messages.
fn label(command: &[impl AsRef<OsStr>]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    let line = words.join(" ").replace(|c: char| c.is_control(), " ");
    if line.len() <= LABEL_LEN_MAX {
        return line;
    }
    format!("{}…", &line[..line.floor_char_boundary(LABEL_LEN_MAX)])
}
