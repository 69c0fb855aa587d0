//! The command's end of the control socket.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use kvfs_store::clock::Clock;

use super::protocol::{Request, Response, read_frame, write_frame};
use crate::error::{CliError, Code, Result};

/// A connection to a mounted store's daemon.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects, or `None` when no daemon listens: the store is not mounted.
    pub(crate) fn connect(socket: &Path) -> Result<Option<Self>> {
        match UnixStream::connect(socket) {
            Ok(stream) => Ok(Some(Self { stream })),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
            Err(error) => Err(CliError::io("reach the daemon at", socket, &error)),
        }
    }

    /// Sends one request and waits for its answer; a failure that the daemon reports becomes an error.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Response> {
        let lost = |error: io::Error| CliError::new(Code::NotMounted, format!("lost the daemon: {error}"));
        write_frame(&mut self.stream, request).map_err(lost)?;
        match read_frame(&mut self.stream).map_err(lost)? {
            Some(Response::Failed { code, message }) => Err(CliError::new(Code::from_number(code), message)),
            Some(response) => Ok(response),
            None => Err(CliError::new(Code::NotMounted, "the daemon closed the connection")),
        }
    }

    /// Waits until the daemon has closed the connection, which it does last of all; false when it did
    /// not in `time_max`.
    pub(crate) fn wait_closed(mut self, time_max: Duration, clock: &dyn Clock) -> bool {
        let deadline = clock.monotonic() + time_max;
        while clock.monotonic() < deadline {
            if self.stream.set_read_timeout(Some(Duration::from_secs(1))).is_err() {
                return true;
            }
            match self.stream.read(&mut [0]) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
                _ => return true,
            }
        }
        false
    }
}
