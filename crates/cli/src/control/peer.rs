//! Who is at the other end of a control connection.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::socket_peercred;

use super::descriptor;

/// Whether user `actor` may use, and see, what belongs to `uid`.
pub(crate) fn may_act_for(actor: u32, uid: u32) -> bool {
    actor == 0 || actor == uid
}

/// The other end, as the kernel says.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Of the connection; unique in a daemon's life.
    pub(crate) number: u64,
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    /// None for this process itself.
    stream: Option<UnixStream>,
}

impl Peer {
    pub(super) fn of(number: u64, stream: &UnixStream) -> io::Result<Self> {
        let credentials = socket_peercred(stream)?;
        Ok(Self {
            number,
            uid: credentials.uid.as_raw(),
            pid: credentials.pid.as_raw_nonzero().get() as u32,
            stream: Some(stream.try_clone()?),
        })
    }

    /// This process, which has opened the store itself.
    pub(crate) fn own() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { number: 0, uid, pid: std::process::id(), stream: None }
    }

    /// Whether it may use what belongs to `uid`.
    pub(crate) fn may_act_for(&self, uid: u32) -> bool {
        may_act_for(self.uid, uid)
    }

    /// The connection stays as long as its owner lives, whatever passes on it. Returns a handle to cut it.
    pub(crate) fn keep(&self) -> io::Result<UnixStream> {
        let stream = self.stream.as_ref().ok_or(io::ErrorKind::NotConnected)?.try_clone()?;
        stream.set_read_timeout(None)?;
        Ok(stream)
    }

    /// The descriptor that follows the request.
    pub(crate) fn receive_descriptor(&self) -> io::Result<OwnedFd> {
        descriptor::receive(self.stream.as_ref().ok_or(io::ErrorKind::NotConnected)?)
    }
}
