//! The command's end of the control socket.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvfs_rpc::address::Address;
use kvfs_store::progress::Unit;

use super::descriptor;
use super::protocol::{Request, Response, read_frame, write_frame};
use crate::error::{CliError, Code, Result};
use crate::progress::Bar;

/// What is behind the control socket of a store.
#[derive(Debug)]
pub(crate) enum Daemon {
    /// Nobody.
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
}

impl Client {
    /// Connects to the daemon, if there is one.
    pub(crate) fn connect(socket: &Path) -> Result<Daemon> {
        let stream = match Address::of(socket).and_then(|address| UnixStream::connect(address.path())) {
            Ok(stream) => stream,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(Daemon::Absent);
            }
            Err(error) => return Err(CliError::io("reach the daemon at", socket, &error)),
        };
        let mut client = Self { stream };
        let hello = Request::Hello { version: env!("CARGO_PKG_VERSION").to_owned() };
        match client.exchange(&hello) {
            Ok(Some(Response::Serving { dir })) => {
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

    fn exchange(&mut self, request: &Request) -> io::Result<Option<Response>> {
        write_frame(&mut self.stream, request)?;
        read_frame(&mut self.stream)
    }

    /// Sends one request and waits for its answer; a failure that the daemon reports becomes an error.
    /// [`Response::Closing`]: nothing was done.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Response> {
        let bar = Bar::new("waiting for the daemon");
        write_frame(&mut self.stream, request).map_err(|error| Self::lost(&error))?;
        match read_answer(&mut self.stream, &bar).map_err(|error| Self::lost(&error))? {
            Some(Response::Failed { code, message }) => Err(CliError::new(Code::from_number(code), message)),
            Some(response) => Ok(response),
            None => Err(CliError::new(Code::NotMounted, "the daemon ended before it answered")),
        }
    }

    /// Hands over the connection of the transaction's view, which was mounted here.
    pub(crate) fn attach(&mut self, id: u64, device: BorrowedFd<'_>) -> Result<()> {
        write_frame(&mut self.stream, &Request::Attach { id })
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
        Ok(Closing { stream: self.stream })
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
                // The connection ends with the process.
                match self.stream.read(&mut [0]) {
                    Err(error) if is_timeout(&error) => Ok(false),
                    _ => Ok(true),
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
