//! The process at the other end of a control connection.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use kvfs_locks::{Mutex, class};
use kvfs_service::{Caller, Connection};
use kvfs_socket::{peer_credentials, peer_groups};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::descriptor;

/// The caller, with the connection that it has come by.
#[derive(Debug)]
pub struct Peer {
    pub(crate) caller: Caller,
    /// None for this process itself.
    connection: Option<Arc<Stream>>,
    /// Follows the next answer.
    outgoing: Mutex<Option<OwnedFd>, class::ControlPeerOutgoing>,
}

/// One descriptor, however many transactions are tied to the connection.
#[derive(Debug)]
struct Stream(UnixStream);

impl Connection for Stream {
    fn gid(&self) -> Option<u32> {
        peer_credentials(&self.0).ok().map(|credentials| credentials.gid)
    }

    fn groups(&self) -> Vec<u32> {
        peer_groups(&self.0).unwrap_or_default()
    }

    fn keep(&self) -> io::Result<()> {
        self.0.set_read_timeout(None)
    }

    fn cut(&self) {
        // It may have ended by itself.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    fn is_there(&self) -> bool {
        is_there(&self.0)
    }
}

/// Whether the other end of a connection has not closed it.
pub(crate) fn is_there(stream: &UnixStream) -> bool {
    let mut end = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // An error says nothing of the other end.
    !matches!(retry_on_intr(|| poll(&mut end, Some(&now))), Ok(1..))
}

impl Peer {
    pub(crate) fn of(number: u64, stream: &UnixStream) -> io::Result<Self> {
        let credentials = peer_credentials(stream)?;
        let connection = Arc::new(Stream(stream.try_clone()?));
        let shared = Arc::clone(&connection) as Arc<dyn Connection>;
        let caller = Caller::on(shared, number, credentials.uid, credentials.pid);
        Ok(Self { caller, connection: Some(connection), outgoing: Mutex::default() })
    }

    /// This process, which has opened the store itself.
    pub fn own() -> Self {
        Self { caller: Caller::own(), connection: None, outgoing: Mutex::default() }
    }

    /// Any user, without a connection.
    #[cfg(test)]
    pub(crate) fn of_user(uid: u32) -> Self {
        Self { caller: Caller::of_mount(uid, 1), connection: None, outgoing: Mutex::default() }
    }

    /// A connection that passes for one of user `uid`'s.
    #[cfg(test)]
    pub(crate) fn on(stream: &UnixStream, uid: u32) -> io::Result<Self> {
        let connection = Some(Arc::new(Stream(stream.try_clone()?)));
        Ok(Self { connection, ..Self::of_user(uid) })
    }

    /// The descriptor is to follow the answer.
    pub(crate) fn give_descriptor(&self, descriptor: OwnedFd) {
        *self.outgoing.lock() = Some(descriptor);
    }

    /// Sends the descriptor that follows the answer, if one does.
    pub(crate) fn send_descriptor(&self) -> io::Result<()> {
        let outgoing = self.outgoing.lock().take();
        match (outgoing, &self.connection) {
            (Some(outgoing), Some(connection)) => descriptor::send(&connection.0, outgoing.as_fd()),
            _ => Ok(()),
        }
    }

    /// The descriptor that follows the request is left to the kernel: in this process it is never open, so
    /// nothing here waits for what its owner has put behind it.
    pub(crate) fn discard_descriptor(&self) {
        if let Some(connection) = &self.connection
            && let Err(error) = (&connection.0).read_exact(&mut [0])
        {
            tracing::debug!(%error, "no descriptor follows");
        }
    }

    /// The descriptor that follows the request.
    pub(crate) fn receive_descriptor(&self) -> io::Result<OwnedFd> {
        descriptor::receive(&self.connection.as_ref().ok_or(io::ErrorKind::NotConnected)?.0)
    }
}
