//! A process of a server: each method is one call of a [`Connection`].
//!
//! Thread safety: everything is `&self`; as many calls are under way as threads call.
//!
//! Invariants: descriptors have the numbers of the server; the umask is kept here, and goes with what makes a
//! file.

mod files;
mod io;
mod names;

use std::sync::atomic::{AtomicU32, Ordering};

use kvfs_lane::{At, Bytes, Call, Connection, LaneError, NUMBERED, Reply};
use kvfs_posix::{Fd, Place, PosixError, Result};
use rustix::io::Errno;

/// Bits that new files don't get unless told otherwise.
const UMASK: u32 = 0o022;

/// See the module.
#[derive(Debug)]
pub(crate) struct Served {
    connection: Connection,
    umask: AtomicU32,
}

impl Served {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection, umask: AtomicU32::new(UMASK) }
    }

    pub(crate) fn fork(&self) -> Result<Self> {
        let connection = self.connection.fork().map_err(|error| failed(&error))?;
        Ok(Self { connection, umask: AtomicU32::new(self.mask()) })
    }

    pub(crate) fn umask(&self, mask: u32) -> u32 {
        self.umask.swap(mask & 0o777, Ordering::Relaxed)
    }

    pub(crate) fn exec(&self) -> Result<()> {
        self.done(&Call::Exec, &[])
    }

    fn mask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    /// Calls, and gives `read` the reply and its payload.
    pub(crate) fn call<T>(
        &self,
        call: &Call<'_>,
        payload: &[u8],
        read: impl FnOnce(Reply, &[u8]) -> Option<T>,
    ) -> Result<T> {
        let answered = self.connection.call(call, payload, |reply, payload| match reply {
            Reply::Unknown => Err(remote(Errno::BADF, "not an open descriptor")),
            Reply::Failed { errno } => {
                let message = String::from_utf8_lossy(payload).into();
                Err(PosixError::Explained { errno: Errno::from_raw_os_error(errno), message })
            }
            reply => {
                read(reply, payload).ok_or_else(|| remote(Errno::PROTO, "an answer to another question"))
            }
        });
        answered.map_err(|error| unanswered(error, call))?
    }

    pub(crate) fn done(&self, call: &Call<'_>, payload: &[u8]) -> Result<()> {
        self.call(call, payload, |reply, _| (reply == Reply::Done).then_some(()))
    }

    pub(crate) fn bytes(&self, call: &Call<'_>) -> Result<Vec<u8>> {
        self.call(call, &[], |reply, payload| (reply == Reply::Done).then(|| payload.to_vec()))
    }

    pub(crate) fn number(&self, call: &Call<'_>, payload: &[u8]) -> Result<u64> {
        self.call(call, payload, |reply, _| match reply {
            Reply::Number(number) => Some(number),
            _ => None,
        })
    }

    fn opened(&self, call: &Call<'_>) -> Result<Fd> {
        self.call(call, &[], |reply, _| match reply {
            Reply::Opened { handle } => Some(Fd((handle & !NUMBERED) as i32)),
            _ => None,
        })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // What it has ends now, not when the server notices; without a server it has.
        let _ = self.done(&Call::Exit, &[]);
    }
}

/// By which the server knows a descriptor.
fn handle(fd: Fd) -> u64 {
    NUMBERED | u64::from(fd.0 as u32)
}

fn at<'a>(place: impl Into<Place<'a>>) -> At<'a> {
    let place = place.into();
    let (base, path) = (place.base().map(handle), place.name().map(Bytes));
    At { base, path, follows: place.follows(), is_named: place.is_named() }
}

/// Why no answer came to a call.
pub(crate) fn unanswered(error: LaneError, call: &Call<'_>) -> PosixError {
    match (error, call) {
        (LaneError::TooLong, Call::WriteKeys { .. }) => {
            remote(Errno::TOOBIG, "keys and values of one call are more than 1 MiB")
        }
        (LaneError::TooLong, Call::Setxattr { .. }) => remote(Errno::TOOBIG, "the value is too long"),
        (LaneError::TooLong, _) => remote(Errno::NAMETOOLONG, "the path is too long"),
        (LaneError::Io(error), _) => failed(&error),
        (error @ LaneError::Malformed, _) => remote(Errno::PROTO, error),
        (error, _) => remote(Errno::NOTCONN, error),
    }
}

fn remote(errno: Errno, message: impl std::fmt::Display) -> PosixError {
    PosixError::Explained { errno, message: message.to_string().into() }
}

/// A failure of the socket or the memory that is shared.
pub(crate) fn failed(error: &std::io::Error) -> PosixError {
    use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, PermissionDenied};
    let errno = match (error.kind(), error.raw_os_error()) {
        (BrokenPipe | ConnectionRefused | ConnectionReset | NotFound, _) => Errno::NOTCONN,
        (_, Some(number)) => Errno::from_raw_os_error(number),
        (PermissionDenied, None) => Errno::ACCESS,
        (_, None) => Errno::NOTCONN,
    };
    remote(errno, format!("the server of the store: {error}"))
}
