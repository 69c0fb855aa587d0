//! `kvfs exec`: a program on a store without a mount.
//!
//! The program is given a library that brings its system calls to the server of the store
//! (docs/decisions/interception.md). Where there is no server yet, one is begun that ends with its last
//! client: this process is one of them, for as long as the command runs.

mod library;
mod server;
mod session;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::process::{Command, ExitCode};

use super::txn::supervise::{Ended, SIGNALED, Watch};
use super::txn::{Begun, STORE_VARIABLE, TXN_VARIABLE, cannot_run, init, processes};
use crate::args::{ExecArgs, StaticArg};
use crate::endpoint::EXEC_STORE_VARIABLE;
use crate::error::{CliError, Code, Result};
use server::Server;
use session::Session;

/// Longest place (bytes), as the library takes it.
const PLACE_LEN_MAX: usize = 255;

/// A shell starts the command, so that one that lies in the store is found, too.
const STARTER: [&str; 3] = ["/bin/sh", "-c", "exec \"$0\" \"$@\""];

pub(crate) fn run(args: &ExecArgs) -> Result<ExitCode> {
    check_place(&args.at)?;
    let library = library::find()?;
    let watch = Watch::begin(&[])?;
    let server = Server::reach(args.store.as_deref(), args.create)?;
    let mut txn =
        if args.txn { Some(Begun::begin(args.store.as_deref(), &args.begin, &args.command)?) } else { None };
    let session = Session::begin()?;
    let late = args.begin.timeout.filter(|_| args.txn).map(|timeout| watch.now() + timeout);
    processes::adopt_orphans()?;
    let mut command = command(args, &library, &session, &server, txn.as_ref().map(Begun::id));
    let child = watch.spawn(&mut command).map_err(|error| cannot_run(command.get_program(), &error))?;
    let ended = watch.wait(&child, txn.as_ref().map(Begun::line), late)?;
    // Above the command of a transaction is a process that may have been killed.
    let is_ended = |code: u8| txn.is_none() || i32::from(code) <= SIGNALED;
    if !matches!(ended, Ended::Exit(code) if is_ended(code)) {
        processes::kill_all(None);
    }
    let done = match &mut txn {
        Some(txn) => finish(txn, ended, &server, args),
        None => Ok(ExitCode::from(status(ended))),
    };
    drop(txn);
    server.leave();
    done
}

/// Commits or drops.
fn finish(txn: &mut Begun, ended: Ended, server: &Server, args: &ExecArgs) -> Result<ExitCode> {
    match ended {
        Ended::Exit(0) => server.settle(txn.id()).and_then(|()| txn.commit(true)),
        Ended::Exit(code) => txn.drop_after(code),
        Ended::Told(signal) => txn.drop_told(signal),
        Ended::Late => Err(txn.timed_out(args.begin.timeout)),
        Ended::Cut => Err(txn.cut()),
    }
}

fn status(ended: Ended) -> u8 {
    match ended {
        Ended::Exit(code) => code,
        Ended::Told(signal) => SIGNALED as u8 + signal,
        // Of transactions.
        Ended::Late | Ended::Cut => Code::Failed as u8,
    }
}

/// An absolute path with no `.` and no `..` in it, and not all of the file system.
fn check_place(place: &Path) -> Result<()> {
    let mut parts = place.components();
    let is_absolute = parts.next() == Some(Component::RootDir);
    let mut names = 0;
    let is_plain = parts.all(|part| {
        names += 1;
        matches!(part, Component::Normal(_))
    });
    let bytes = place.as_os_str().as_bytes();
    if is_absolute && is_plain && names > 0 && bytes.len() <= PLACE_LEN_MAX && !bytes.ends_with(b"/") {
        return Ok(());
    }
    let message = format!(
        "--at {}: an absolute path like /kvfs is needed, of at most {PLACE_LEN_MAX} bytes",
        place.display()
    );
    Err(CliError::new(Code::Usage, message))
}

fn command(args: &ExecArgs, library: &Path, session: &Session, server: &Server, txn: Option<u64>) -> Command {
    let starter = STARTER.map(OsString::from).into_iter();
    let words: Vec<OsString> = starter.chain(args.command.iter().cloned()).collect();
    let mut command = if txn.is_some() {
        // It is committed when all that the command leaves behind has ended.
        init::command(false, &words)
    } else {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    };
    command.env("LD_PRELOAD", preloaded(library, std::env::var_os("LD_PRELOAD").as_deref()));
    command.env("KVFS_EXEC_PREFIX", &args.at);
    command.env("KVFS_EXEC_SOCKET", server.socket());
    command.env("KVFS_EXEC_EXPECTED", server.expected());
    command.env("KVFS_EXEC_RUN", session.directory());
    command.env(EXEC_STORE_VARIABLE, server.place());
    command.env(
        "KVFS_EXEC_STATIC",
        match args.of_static {
            StaticArg::Refuse => "refuse",
            StaticArg::Warn => "warn",
            StaticArg::Allow => "allow",
        },
    );
    command.env_remove("KVFS_EXEC_TXN");
    if let Some(id) = txn {
        command.env("KVFS_EXEC_TXN", id.to_string());
        command.env(TXN_VARIABLE, id.to_string()).env(STORE_VARIABLE, server.store());
    }
    command
}

/// The libraries to be loaded first, ours in front of those that are set already.
fn preloaded(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    let others = before.unwrap_or_default().as_bytes().split(|byte| matches!(byte, b' ' | b':'));
    for other in others.filter(|other| !other.is_empty() && !other.ends_with(library::NAME.as_bytes())) {
        list.push(":");
        list.push(OsStr::from_bytes(other));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_absolute_and_plain() {
        for place in ["/kvfs", "/a/b.c"] {
            check_place(Path::new(place)).expect(place);
        }
        for place in ["", "/", "kvfs", "/a/../b", "/kvfs/"] {
            assert_eq!(check_place(Path::new(place)).expect_err(place).code, Code::Usage, "{place}");
        }
    }

    #[test]
    fn libraries_that_are_set_are_kept_behind_ours() {
        let ours = Path::new("/new/libkvfs_preload.so");
        let list = preloaded(ours, Some(OsStr::new("/a.so /old/libkvfs_preload.so:/b.so")));
        assert_eq!(list, "/new/libkvfs_preload.so:/a.so:/b.so");
        assert_eq!(preloaded(ours, None), ours);
    }
}
