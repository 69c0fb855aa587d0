//! The process at the other end of a connection, as the kernel names it.

use std::io;
use std::sync::Arc;

use kvfs_socket::peer_groups;
use tokio::net::UnixStream;

/// The other end of a connection. It does not change while the connection lasts.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Of the connection; unique in a server's life.
    pub connection: u64,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Process id; 0: outside of what this process sees.
    pub pid: u32,
    /// Its own and all other groups.
    pub groups: Arc<[u32]>,
    /// Root, or the store's owner, whose device it is anyway.
    pub is_master: bool,
}

impl Peer {
    pub(super) fn of(connection: u64, stream: &UnixStream, masters: &[u32]) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let (uid, gid) = (credentials.uid(), credentials.gid());
        let mut groups = peer_groups(stream)?;
        groups.push(gid);
        Ok(Self {
            connection,
            uid,
            gid,
            pid: credentials.pid().unwrap_or(0).max(0) as u32,
            groups: groups.into(),
            is_master: masters.contains(&uid),
        })
    }
}
