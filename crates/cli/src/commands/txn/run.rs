//! `kvfs txn run`: begin, a view in a mount namespace of its own, the command, commit or abort.
//!
//! The transaction is tied to the control connection of this process: however it ends, nothing is left open.
//! One thread, because namespaces ask for it.

use std::fs;
use std::io::{BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use kvfs_fuse::mount::{MountOptions, mount_in_namespace, open_place};
use rustix::process::Pid;

use super::begun;
use super::content::Contents;
use super::cover::{Cover, open_view};
use super::processes::{self, Process};
use super::supervise::{Ended, SIGNALED, Watch};
use super::{
    STORE_VARIABLE, TXN_VARIABLE, begin, cannot_run, connect_to_main, diff, expect_mount, init, label,
};

use crate::args::RunArgs;
use crate::control::{self, Client, Request, Response};
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
    let conflict_to = args.conflict_to.map(listener).transpose()?;
    let watch = Watch::begin(&[])?;
    let (mut client, mount) = connect_to_main(store)?;
    expect_mount(&mount, "txn run")?;
    let (id, _) = begin(&mut client, &args.begin, label(&args.command), true)?;
    let late = args.begin.timeout.map(|timeout| watch.now() + timeout);
    Run { client: &mut client, mount: &mount, id, args, watch: &watch, late, conflict_to }.attempt()
}

/// A transaction that runs a command.
struct Run<'r> {
    client: &'r mut Client,
    mount: &'r MountedStore,
    id: u64,
    args: &'r RunArgs,
    watch: &'r Watch,
    /// When its time is over, by the watch's clock.
    late: Option<Duration>,
    /// Is told of a conflict.
    conflict_to: Option<fs::File>,
}

impl Run<'_> {
    /// Everything after the begin. When this fails, the end of the connection aborts.
    fn attempt(&mut self) -> Result<ExitCode> {
        let id = self.id;
        warn_of_descriptors(&self.mount.dir);
        let main = self.args.review.then(|| open_root(&self.mount.dir)).transpose()?;
        // Whatever the view of a transaction whose time is over has failed with.
        self.show_view().map_err(|error| if self.is_late() { self.timed_out() } else { error })?;
        processes::adopt_orphans()?;
        let mut command = command(self.mount, id, self.args);
        let child =
            self.watch.spawn(&mut command).map_err(|error| cannot_run(command.get_program(), &error))?;
        let first = Process::of(Pid::from_child(&child));
        let ended = self.watch.wait(&child, Some(self.client.line()), self.late)?;
        if !matches!(ended, Ended::Exit(code) if i32::from(code) <= SIGNALED) {
            // The process above the command may have been killed; what it watched over is here then.
            processes::kill_all(first.as_ref());
        }
        // What ends this process now aborts.
        self.watch.release();
        match ended {
            Ended::Exit(0) => match self.review(main.as_ref())? {
                Verdict::Commit => {
                    self.watch.hold();
                    begun::commit(self.client, id, !self.args.is_async).map_err(|error| self.failed(error))
                }
                Verdict::Drop => {
                    begun::abort(self.client, id)?;
                    eprintln!("kvfs: transaction {id} was aborted; nothing happened");
                    // Declining a review is no success.
                    Ok(ExitCode::FAILURE)
                }
            },
            Ended::Exit(code) => begun::drop_after(self.client, id, code).map_err(|error| self.failed(error)),
            Ended::Told(signal) => begun::drop_told(self.client, id, signal),
            Ended::Late => Err(self.timed_out()),
            Ended::Cut if self.is_late() => Err(self.timed_out()),
            Ended::Cut => Err(begun::cut(&self.mount.store, id)),
        }
    }

    /// Tells the process that tries again of a conflict with another writer, unless a signal was to end the
    /// command. Gives what the user is told: what has failed after the transaction's time was over, has
    /// failed for that.
    fn failed(&mut self, error: CliError) -> CliError {
        if error.code != Code::Conflict {
            return error;
        }
        if self.is_late() {
            return self.timed_out();
        }
        if let Some(listener) = self.conflict_to.as_mut().filter(|_| !self.watch.has_heard())
            && let Err(error) = listener.write_all(CONFLICT_MARK)
        {
            eprintln!("kvfs: the conflict is not tried again: {error}");
        }
        error
    }

    fn is_late(&self) -> bool {
        self.late.is_some_and(|late| self.watch.now() >= late)
    }

    fn timed_out(&self) -> CliError {
        begun::timed_out(self.id, self.args.begin.timeout)
    }

    /// Mounts the view in the place of the main line, for this process and its children alone.
    fn show_view(&mut self) -> Result<()> {
        let mut options = MountOptions {
            source: self.mount.store.clone(),
            subtype: mounts::VIEW_SUBTYPE.to_owned(),
            allow_other: true,
            ..MountOptions::default()
        };
        options.apply(&self.mount.options).map_err(|error| CliError::new(Code::Failed, error.to_string()))?;
        namespace::enter()?;
        let cover = Cover::of(self.mount)?;
        let (point, place) = cover.uncover(self.mount)?;
        if self.client.is_public() {
            namespace::attach(&self.client.take_view(self.id)?, &place, &point)?;
        } else {
            let device =
                mount_in_namespace(&place, &point, &options).map_err(|error| explain_mount(&error))?;
            // Only the daemon has it from here on, so that the connection ends with the view.
            self.client.attach(self.id, device.as_fd())?;
            drop(device);
        }
        cover.show(&open_view(&point)?, Some(&point))
    }

    /// Whether the person at the terminal wants the commit, if that was to be asked. `main`: the main line's
    /// root.
    fn review(&mut self, main: Option<&OwnedFd>) -> Result<Verdict> {
        let Some(main) = main else { return Ok(Verdict::Commit) };
        let id = self.id;
        match self.client.call(&Request::Diff { id, from: 0, limit: 1 })? {
            Response::Diff { lines, .. } if lines.is_empty() => return Ok(Verdict::Commit),
            Response::Diff { .. } => {}
            _ => return Err(control::confused()),
        }
        diff::print(self.client, id, false, false)?;
        let failed = |error: std::io::Error| CliError::io("ask at", Path::new("/dev/tty"), &error);
        let terminal = fs::OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(failed)?;
        let mut answers = std::io::BufReader::new(&terminal);
        loop {
            write!(&terminal, "Commit transaction {id}? [y]es, [N]o, [d]iff ").map_err(failed)?;
            let mut answer = String::new();
            answers.read_line(&mut answer).map_err(failed)?;
            match answer.trim() {
                "y" | "Y" | "yes" => return Ok(Verdict::Commit),
                "d" | "D" | "diff" => {
                    let main = main.try_clone().map_err(failed)?;
                    let contents = Contents::between(main, open_root(&self.mount.dir)?);
                    diff::print_with_content(self.client, id, &contents)?;
                }
                _ => return Ok(Verdict::Drop),
            }
        }
    }
}

/// What comes of a command that has succeeded.
enum Verdict {
    Commit,
    Drop,
}

/// The root of what is mounted on `dir`, for a comparison; also after its mount has gone from this namespace.
fn open_root(dir: &Path) -> Result<OwnedFd> {
    open_place(dir).map_err(|error| CliError::io("look at", dir, &error))
}

fn command(mount: &MountedStore, id: u64, args: &RunArgs) -> Command {
    let mut command = init::command(args.kill_children, &args.command);
    command.env(TXN_VARIABLE, id.to_string()).env(STORE_VARIABLE, &mount.store);
    command
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

/// The process that tries again, at the other end of a pipe that is open for this process.
fn listener(descriptor: i32) -> Result<fs::File> {
    let path = format!("/proc/self/fd/{descriptor}");
    let opened = fs::OpenOptions::new().write(true).open(&path);
    opened.map_err(|error| CliError::io("open", Path::new(&path), &error))
}
