//! `kvfs txn run`: begin, a view in namespaces of its own, the command, commit or abort.
//!
//! The transaction is tied to the control connection of this process: however it ends, nothing is left open.
//! One thread, because namespaces ask for it.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use kvfs_fuse::mount::{MountOptions, mount_in_namespace};

use super::join::{cannot_run, re_enter};
use super::supervise::{Ended, Watch};
use super::{STORE_VARIABLE, TXN_VARIABLE, begin, below, connect, diff, label};
use crate::args::RunArgs;
use crate::control::{Client, Request, Response};
use crate::daemon::explain_mount;
use crate::error::{CliError, Code, Result};
use crate::mounts::{self, MountedStore};
use crate::namespace;

/// What tells a conflict apart from a command's own exit status.
pub(super) const CONFLICT_MARK: &[u8] = b"c";

pub(super) fn run(store: Option<&Path>, args: &RunArgs) -> Result<ExitCode> {
    if let Some(id) = std::env::var_os(TXN_VARIABLE) {
        let id = id.to_string_lossy().into_owned();
        return Err(CliError::new(Code::Usage, format!("this is transaction {id} already; they don't nest")));
    }
    // Now, because later /proc is that of the command.
    let conflict_to = args.conflict_to.map(listener).transpose()?;
    let mut watch = Watch::begin()?;
    let (mut client, mount) = connect(store)?;
    let (id, _) = begin(&mut client, &args.begin, label(&args.command), true)?;
    let done = attempt(&mut client, &mount, id, args, &mut watch);
    if let (Err(error), Some(mut listener)) = (&done, conflict_to)
        && error.code == Code::Conflict
        && let Err(error) = listener.write_all(CONFLICT_MARK)
    {
        eprintln!("kvfs: nobody hears of the conflict: {error}");
    }
    done
}

/// Everything after the begin. When this fails, the end of the connection aborts.
fn attempt(
    client: &mut Client,
    mount: &MountedStore,
    id: u64,
    args: &RunArgs,
    watch: &mut Watch,
) -> Result<ExitCode> {
    warn_of_descriptors(&mount.dir);
    let is_root = rustix::process::geteuid().is_root();
    show_view(client, mount, id)?;
    let mut child = start(mount, id, &args.command, is_root)?;
    let ended = watch.wait(&mut child, Some(client.line()))?;
    match ended {
        Ended::Exit(0) if !args.review || approved(client, id)? => {
            commit(client, id, !args.is_async)?;
            Ok(ExitCode::SUCCESS)
        }
        Ended::Exit(0) => {
            abort(client, id)?;
            eprintln!("kvfs: transaction {id} was aborted; nothing happened");
            // Declining a review is no success.
            Ok(ExitCode::FAILURE)
        }
        Ended::Exit(code) => match abort(client, id)? {
            // The command failed because its files did.
            Some(why) => Err(CliError::new(
                Code::Conflict,
                format!(
                    "transaction {id}: {why}; the command ended with {code}; nothing happened, try again"
                ),
            )),
            None => Ok(ExitCode::from(code)),
        },
        Ended::Told(signal) => {
            abort(client, id)?;
            Ok(ExitCode::from(128 + signal))
        }
        Ended::Cut => Err(CliError::new(
            Code::Conflict,
            format!(
                "transaction {id} was aborted from outside (time-out, `kvfs txn abort`, or unmount); nothing happened"
            ),
        )),
    }
}

/// Mounts the view in the place of the main line, for this process and its children alone.
fn show_view(client: &mut Client, mount: &MountedStore, id: u64) -> Result<()> {
    let here = std::env::current_dir().ok().filter(|here| below(here, mount).is_some());
    let mut options = MountOptions {
        source: mount.store.to_string_lossy().into_owned(),
        subtype: mounts::VIEW_SUBTYPE.to_owned(),
        allow_other: true,
        ..MountOptions::default()
    };
    options.apply(&mount.options).map_err(|error| CliError::new(Code::Failed, error.to_string()))?;
    namespace::enter(true)?;
    namespace::uncover(&mount.dir);
    let device = mount_in_namespace(&mount.dir, &options).map_err(|error| explain_mount(&error))?;
    client.attach(id, device.as_fd())?;
    // Only the daemon has it from here on, so that the connection ends with the view.
    drop(device);
    re_enter(here.as_deref())
}

fn start(mount: &MountedStore, id: u64, command: &[OsString], is_root: bool) -> Result<Child> {
    let program = OsString::from("/proc/self/exe");
    Command::new(&program)
        .args(["txn", "init", "--parent", &std::process::id().to_string()])
        .args(is_root.then_some("--proc"))
        .arg("--")
        .args(command)
        .env(TXN_VARIABLE, id.to_string())
        .env(STORE_VARIABLE, &mount.store)
        .spawn()
        .map_err(|error| cannot_run(&program, &error))
}

fn commit(client: &mut Client, id: u64, durable: bool) -> Result<()> {
    match client.call(&Request::Commit { id, durable }) {
        Ok(Response::Done) => Ok(()),
        Ok(_) => Err(Client::confused()),
        Err(error) if error.code == Code::Conflict => {
            Err(CliError::new(Code::Conflict, format!("{error}; nothing happened, try again")))
        }
        Err(error) if error.code == Code::NotMounted => Err(CliError::new(
            Code::Failed,
            format!(
                "lost the daemon during the commit of transaction {id}: look whether it took place ({error})"
            ),
        )),
        Err(error) => Err(error),
    }
}

/// Returns why the transaction could not have been committed, if so.
fn abort(client: &mut Client, id: u64) -> Result<Option<String>> {
    match client.call(&Request::Abort { id })? {
        Response::Aborted { doomed } => Ok(doomed),
        _ => Err(Client::confused()),
    }
}

/// Whether the person at the terminal wants the commit.
fn approved(client: &mut Client, id: u64) -> Result<bool> {
    diff::print(client, id, false, false)?;
    let failed = |error: std::io::Error| CliError::io("ask at", Path::new("/dev/tty"), &error);
    let terminal = fs::OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(failed)?;
    write!(&terminal, "Commit transaction {id}? [y/N] ").map_err(failed)?;
    let mut answer = String::new();
    std::io::BufReader::new(&terminal).read_line(&mut answer).map_err(failed)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Descriptors that were opened before lead around the transaction.
fn warn_of_descriptors(dir: &Path) {
    let Ok(root) = fs::metadata(dir) else { return };
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return };
    for entry in open.flatten() {
        let leads = fs::metadata(entry.path()).is_ok_and(|found| found.dev() == root.dev());
        if leads {
            let path = fs::read_link(entry.path()).unwrap_or_else(|_| PathBuf::from("?"));
            eprintln!(
                "kvfs: warning: descriptor {} ({}) was opened outside of the transaction; what is written to it \
                 is not part of it",
                entry.file_name().to_string_lossy(),
                path.display()
            );
        }
    }
}

/// Whoever tries again, at the other end of a pipe that he left open for this process.
fn listener(descriptor: i32) -> Result<fs::File> {
    let path = format!("/proc/self/fd/{descriptor}");
    let opened = fs::OpenOptions::new().write(true).open(&path);
    opened.map_err(|error| CliError::io("open", Path::new(&path), &error))
}
