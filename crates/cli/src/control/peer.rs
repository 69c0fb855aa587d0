//! Who is at the other end of a control connection.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use kvfs_rpc::server::peer_groups;
use rustix::net::sockopt::socket_peercred;

use super::descriptor;

/// Set in the numbers of connections to the key-value socket, which has numbers of its own.
const KEYS_BIT: u64 = 1 << 63;

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
    /// None for this process itself, and for connections to the other socket.
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

    /// Whoever is at the other end of a connection to the key-value socket.
    pub(crate) fn of_keys(peer: &kvfs_rpc::server::Peer) -> Self {
        Self { number: Self::keys_line(peer.connection), uid: peer.uid, pid: peer.pid, stream: None }
    }

    /// The number that stands for a connection to the key-value socket.
    pub(crate) fn keys_line(connection: u64) -> u64 {
        connection | KEYS_BIT
    }

    /// Whoever makes a call on the mount.
    pub(crate) fn of_mount(uid: u32, pid: u32) -> Self {
        Self { number: 0, uid, pid, stream: None }
    }

    /// This process, which has opened the store itself.
    pub(crate) fn own() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { number: 0, uid, pid: std::process::id(), stream: None }
    }

    /// Its group; where there is no connection that tells, nobody's.
    pub(crate) fn gid(&self) -> u32 {
        let credentials = self.stream.as_ref().and_then(|stream| socket_peercred(stream).ok());
        credentials.map_or(u32::MAX, |credentials| credentials.gid.as_raw())
    }

    /// Whether it is of the group. Where there is no connection that tells, it is of none.
    pub(crate) fn is_of_group(&self, gid: u32) -> bool {
        let Some(stream) = &self.stream else { return false };
        self.gid() == gid || peer_groups(stream).is_ok_and(|groups| groups.contains(&gid))
    }

    /// Whether it may use what belongs to `uid`.
    pub(crate) fn may_act_for(&self, uid: u32) -> bool {
        may_act_for(self.uid, uid)
    }

    /// The connection stays as long as its owner lives, whatever passes on it. Returns a handle to cut it, if
    /// cutting it is for us to do.
    pub(crate) fn keep(&self) -> io::Result<Option<UnixStream>> {
        let Some(stream) = &self.stream else { return Ok(None) };
        let stream = stream.try_clone()?;
        stream.set_read_timeout(None)?;
        Ok(Some(stream))
    }

    /// The descriptor that follows the request.
    pub(crate) fn receive_descriptor(&self) -> io::Result<OwnedFd> {
        descriptor::receive(self.stream.as_ref().ok_or(io::ErrorKind::NotConnected)?)
    }
}
