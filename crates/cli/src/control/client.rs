//! The command's end of the control socket.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvfs_rpc::peer_credentials;
use kvfs_service::lines::HealthLine;
use kvfs_store::progress::Unit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::descriptor;
use super::protocol::{Request, Response, read_frame, write_request};
use crate::daemon::public;
use crate::error::{CliError, Code, Result};
use crate::progress::Bar;
use crate::store_dir::StoreDir;

/// A daemon that is asked how it is, is given this time to answer.
const HEALTH_TIME_MAX: Duration = Duration::from_secs(2);

/// A process that has closed its connection is given this time to be gone.
const EXIT_TIME_MAX: Duration = Duration::from_secs(10);

/// The first words of a connection.
fn hello() -> Request {
    Request::Hello { version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// What is behind the control socket of a store.
#[derive(Debug)]
pub(crate) enum Daemon {
    /// No daemon.
    Absent,
    /// The store is mounted.
    Serving { client: Client, dir: PathBuf },
    /// It was mounted, and is being closed.
    Closing(Client),
}

/// A connection to a mounted store's daemon.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    /// By the socket for the users of the mount.
    is_public: bool,
}

impl Client {
    /// Connects to the daemon, if there is one.
    pub(crate) fn connect(store: &StoreDir) -> Result<Daemon> {
        Self::greet(store.connect_control(), &store.control_name(), None)
    }

    /// Connects to the daemon of the mounts that show `source`, by the socket for their users.
    pub(crate) fn connect_public(source: &Path) -> Result<Daemon> {
        Self::greet(public::connect(source), &public::control_socket(source), Some(source))
    }

    /// The first words on a connection to `socket`; `public`: the source of the store that is to be served there.
    fn greet(stream: io::Result<UnixStream>, socket: &Path, public: Option<&Path>) -> Result<Daemon> {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(Daemon::Absent);
            }
            Err(error) => return Err(CliError::io("reach the daemon at", socket, &error)),
        };
        let mut client = Self { stream, is_public: public.is_some() };
        match client.exchange(&hello()) {
            Ok(Some(Response::Serving { source, .. }))
                if public.is_some_and(|expected| expected != Path::new(&source)) =>
            {
                let message = format!("the daemon at {} serves another store, {source}", socket.display());
                Err(CliError::new(Code::Failed, message))
            }
            Ok(Some(Response::Serving { dir, .. })) => {
                Ok(Daemon::Serving { client, dir: OsString::from_vec(dir).into() })
            }
            Ok(Some(Response::Closing)) => Ok(Daemon::Closing(client)),
            Ok(Some(Response::Failed { code, message })) => {
                Err(CliError::new(Code::from_number(code), message))
            }
            // It exited between our connecting and its answer.
            Ok(None) => Ok(Daemon::Absent),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) =>
            {
                Ok(Daemon::Absent)
            }
            Ok(Some(_)) => Err(Self::confused()),
            Err(error) => Err(Self::lost(&error)),
        }
    }

    /// Whether the store of the daemon behind `stream` works; `None`: it does not say so within a moment, or is closing it.
    pub(crate) fn health(stream: UnixStream) -> Option<HealthLine> {
        stream.set_read_timeout(Some(HEALTH_TIME_MAX)).ok()?;
        stream.set_write_timeout(Some(HEALTH_TIME_MAX)).ok()?;
        let mut client = Self { stream, is_public: false };
        let Ok(Some(Response::Serving { .. })) = client.exchange(&hello()) else { return None };
        match client.exchange(&Request::Health) {
            Ok(Some(Response::Health(health))) => Some(health),
            _ => None,
        }
    }

    /// Whether the daemon makes the mounts of views itself, for [`Self::take_view`].
    pub(crate) fn is_public(&self) -> bool {
        self.is_public
    }

    /// The mount of a transaction's view, to be attached here.
    pub(crate) fn take_view(&mut self, id: u64) -> Result<OwnedFd> {
        match self.call(&Request::Mount { id })? {
            Response::Done => descriptor::receive(&self.stream).map_err(|error| Self::lost(&error)),
            _ => Err(Self::confused()),
        }
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Option<Response>> {
        let written = write_request(&mut self.stream, request);
        // A daemon that turns a client away answers before it is asked, and hangs up.
        match (read_frame(&mut self.stream), written) {
            (Ok(Some(answer)), _) => Ok(Some(answer)),
            (_, Err(error)) => Err(error),
            (read, Ok(())) => read,
        }
    }

    /// Sends one request and waits for its answer; a failure that the daemon reports becomes an error.
    /// [`Response::Closing`]: nothing was done.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Response> {
        let bar = Bar::new("waiting for the daemon");
        write_request(&mut self.stream, request).map_err(|error| Self::lost(&error))?;
        match read_answer(&mut self.stream, &bar).map_err(|error| Self::lost(&error))? {
            Some(Response::Failed { code, message }) => Err(CliError::new(Code::from_number(code), message)),
            Some(response) => Ok(response),
            None => Err(CliError::new(Code::NotMounted, "the daemon ended before it answered")),
        }
    }

    /// Hands over the connection of the transaction's view, which was mounted here.
    pub(crate) fn attach(&mut self, id: u64, device: BorrowedFd<'_>) -> Result<()> {
        write_request(&mut self.stream, &Request::Attach { id })
            .and_then(|()| descriptor::send(&self.stream, device))
            .map_err(|error| Self::lost(&error))?;
        let bar = Bar::new("waiting for the daemon");
        match read_answer(&mut self.stream, &bar).map_err(|error| Self::lost(&error))? {
            Some(Response::Done) => Ok(()),
            Some(Response::Failed { code, message }) => Err(CliError::new(Code::from_number(code), message)),
            Some(_) => Err(Self::confused()),
            None => Err(CliError::new(Code::NotMounted, "the daemon ended before it answered")),
        }
    }

    /// The connection, to be watched: nothing comes unasked, save its end.
    pub(crate) fn line(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Asks to be told when the store is closed; [`Closing::wait`] then waits for it.
    pub(crate) fn await_closed(mut self) -> Result<Closing> {
        let Response::Done = self.call(&Request::AwaitClosed)? else { return Err(Self::confused()) };
        // It has just answered, so the number is still its own.
        let process = process_of(&self.stream);
        Ok(Closing { stream: self.stream, process })
    }

    fn lost(error: &io::Error) -> CliError {
        CliError::new(Code::NotMounted, format!("lost the daemon: {error}"))
    }

    /// The daemon answered something else than was asked.
    pub(crate) fn confused() -> CliError {
        CliError::new(Code::Failed, "the daemon gave an answer of another kind; is it of another version?")
    }
}

/// A connection whose daemon was asked to tell when it has closed the store.
#[derive(Debug)]
pub(crate) struct Closing {
    stream: UnixStream,
    /// The daemon; `None`: it has no number here, as in another PID namespace.
    process: Option<OwnedFd>,
}

impl Closing {
    /// Waits until the daemon has closed the store and exited. False: it did not get on for `time_max`.
    ///
    /// The daemon's failure to close becomes an error.
    pub(crate) fn wait(mut self, time_max: Duration) -> Result<bool> {
        let lost = |error: io::Error| Client::lost(&error);
        self.stream.set_read_timeout(Some(time_max)).map_err(lost)?;
        let bar = Bar::new("waiting for the daemon to write everything out");
        match read_answer(&mut self.stream, &bar) {
            Ok(Some(Response::Failed { code, message })) => {
                Err(CliError::new(Code::from_number(code), message))
            }
            Ok(Some(_)) => {
                // The connection ends as the process does.
                match self.stream.read(&mut [0]) {
                    Err(error) if is_timeout(&error) => Ok(false),
                    _ => {
                        self.wait_for_exit();
                        Ok(true)
                    }
                }
            }
            Err(error) if is_timeout(&error) => Ok(false),
            Ok(None) | Err(_) => Err(CliError::new(
                Code::Failed,
                "the daemon ended without closing the store; the next mount replays its journal",
            )),
        }
    }
}

impl Closing {
    /// Waits until the process is gone, which has closed its descriptors already. Only a kernel that is stuck takes
    /// longer than [`EXIT_TIME_MAX`]; the store is closed all the same.
    fn wait_for_exit(&self) {
        let Some(process) = &self.process else { return };
        let left = Timespec { tv_sec: EXIT_TIME_MAX.as_secs().cast_signed(), tv_nsec: 0 };
        let waited = retry_on_intr(|| poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)));
        if !matches!(waited, Ok(1..)) {
            tracing::debug!(?waited, "the daemon has closed the store, and its process is still there");
        }
    }
}

/// A handle of the process at the other end, if it is not this one.
fn process_of(stream: &UnixStream) -> Option<OwnedFd> {
    let pid = peer_credentials(stream).ok()?.pid.try_into().ok().and_then(Pid::from_raw)?;
    if pid == getpid() {
        return None;
    }
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// The next frame that is no news of progress, which `bar` shows.
fn read_answer(stream: &mut UnixStream, bar: &Bar) -> io::Result<Option<Response>> {
    loop {
        match read_frame(stream)? {
            Some(Response::Progress { stage, is_bytes, done, total }) => {
                bar.show(&stage, if is_bytes { Unit::Bytes } else { Unit::Items }, done, total);
            }
            answer => return Ok(answer),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
