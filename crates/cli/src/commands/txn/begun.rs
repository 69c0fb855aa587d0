//! A transaction that belongs to a command: committed when that succeeds, else nothing happened.
//!
//! It is tied to the control connection of this process: however that ends, nothing is left open.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use kvfs_service::ErrorKind;

use super::supervise::SIGNALED;
use super::{begin, connect_to_main, label};
use crate::args::BeginArgs;
use crate::control::{self, Client, Daemon, Request, Response};
use crate::error::{CliError, Code, Result};
use crate::progress::tell;
use crate::store_dir::StoreDir;
use crate::units::human_duration;

/// See the module.
pub(crate) struct Begun {
    client: Client,
    store: PathBuf,
    id: u64,
}

impl Begun {
    /// Begins a transaction for `command`, without a view of its own.
    pub(crate) fn begin(store: Option<&Path>, args: &BeginArgs, command: &[OsString]) -> Result<Self> {
        let (mut client, mount) = connect_to_main(store)?;
        let (id, _) = begin(&mut client, args, label(command), true)?;
        Ok(Self { client, store: mount.store, id })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Something happens on it when the daemon ends the transaction.
    pub(crate) fn line(&self) -> BorrowedFd<'_> {
        self.client.line()
    }

    pub(crate) fn commit(&mut self, durable: bool) -> Result<ExitCode> {
        commit(&mut self.client, self.id, durable)
    }

    /// The command has failed.
    pub(crate) fn drop_after(&mut self, code: u8) -> Result<ExitCode> {
        drop_after(&mut self.client, self.id, code)
    }

    /// A signal has ended it.
    pub(crate) fn drop_told(&mut self, signal: u8) -> Result<ExitCode> {
        drop_told(&mut self.client, self.id, signal)
    }

    pub(crate) fn timed_out(&self, timeout: Option<Duration>) -> CliError {
        timed_out(self.id, timeout)
    }

    /// The daemon has ended it.
    pub(crate) fn cut(&self) -> CliError {
        cut(&self.store, self.id)
    }
}

pub(super) fn commit(client: &mut Client, id: u64, durable: bool) -> Result<ExitCode> {
    let answer = client.ask(&Request::Commit { id, durable }).map_err(|error| {
        CliError::new(
            Code::Failed,
            format!(
                "lost the daemon during the commit of transaction {id}: look whether it took place ({error})"
            ),
        )
    })?;
    match answer.map_err(CliError::from) {
        Ok(Response::TxnCommitted { has_changes, is_kept }) => {
            tell(&match (has_changes, is_kept) {
                (false, _) => "nothing was changed".to_owned(),
                (true, true) => format!("committed as {id}; undo: kvfs txn undo {id}"),
                (true, false) => format!("committed as {id}"),
            });
            Ok(ExitCode::SUCCESS)
        }
        Ok(_) => Err(control::confused()),
        Err(error) if error.code == Code::Conflict => {
            Err(CliError::new(Code::Conflict, format!("{error}; nothing happened, try again")))
        }
        Err(error) => Err(error),
    }
}

/// Returns why the transaction could not have been committed, if so.
pub(super) fn abort(client: &mut Client, id: u64) -> Result<Option<String>> {
    match client.call(&Request::Abort { id })? {
        Response::Aborted { doomed } => Ok(doomed),
        _ => Err(control::confused()),
    }
}

pub(super) fn drop_after(client: &mut Client, id: u64, code: u8) -> Result<ExitCode> {
    if let Some(why) = abort(client, id)? {
        // It failed because its files did.
        let message =
            format!("transaction {id}: {why}; the command ended with {code}; nothing happened, try again");
        return Err(CliError::new(Code::Conflict, message));
    }
    tell(&format!("dropped: the command exited with {code}; nothing happened"));
    Ok(ExitCode::from(code))
}

pub(super) fn drop_told(client: &mut Client, id: u64, signal: u8) -> Result<ExitCode> {
    abort(client, id)?;
    tell(&format!("dropped: ended by signal {signal}; nothing happened"));
    Ok(ExitCode::from(SIGNALED as u8 + signal))
}

pub(super) fn timed_out(id: u64, timeout: Option<Duration>) -> CliError {
    let time = timeout.map(human_duration).unwrap_or_default();
    let message =
        format!("transaction {id} took longer than its time of {time} (--timeout); nothing happened");
    CliError::new(Code::TimedOut, message)
}

/// What is said of a transaction that the daemon of `store` has ended: the daemon knows why.
pub(super) fn cut(store: &Path, id: u64) -> CliError {
    // By the socket for users of the mount where the store's directory is closed.
    let daemon = StoreDir::open(store).and_then(|store| control::connect(&store));
    let (code, what) = match daemon.or_else(|_| control::connect_public(store)) {
        Ok(Daemon::Serving { mut client, .. }) => {
            let why = client.call(&Request::Abort { id }).err();
            let why = why.filter(|error| error.kind() == ErrorKind::Conflict).map(|error| error.to_string());
            (Code::Conflict, why.unwrap_or_else(|| format!("transaction {id} was aborted from outside")))
        }
        Ok(Daemon::Closing(_) | Daemon::Absent) => (
            Code::NotMounted,
            format!("transaction {id} was aborted: {} was unmounted, or its daemon died", store.display()),
        ),
        Err(error) => {
            (Code::NotMounted, format!("transaction {id} was aborted, and why is not known ({error})"))
        }
    };
    CliError::new(code, format!("{what}; nothing happened"))
}
