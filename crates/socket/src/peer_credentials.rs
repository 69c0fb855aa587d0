//! Process and user of a peer: an option of sockets without a safe wrapper for peers of other PID namespaces.
//!
//! Thread safety: one system call.
#![expect(unsafe_code, reason = "rustix takes a peer without a number here, as in a container, for an error")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Which process made the other end of a socket, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerCredentials {
    /// 0: it has no number in the PID namespace of this process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Asks the kernel for the process at the other end of a socket of the system.
///
/// # Errors
/// The descriptor is no such socket, or is not connected.
pub fn peer_credentials(socket: &impl AsFd) -> io::Result<PeerCredentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&found) as libc::socklen_t;
    // SAFETY: the descriptor is open, since it is borrowed; the buffer is valid for writes of `len` bytes,
    // and any bytes are numbers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of_val(&found) {
        return Err(io::Error::other("the kernel does not tell the peer"));
    }
    Ok(PeerCredentials { pid: found.pid as u32, uid: found.uid, gid: found.gid })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::peer_credentials;

    #[test]
    fn credentials_of_this_process_are_found() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let found = peer_credentials(&one).expect("tells");
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!((found.pid, found.uid, found.gid), (std::process::id(), uid, gid));
        let (read, _write) = std::io::pipe().expect("a pipe");
        assert!(peer_credentials(&read).is_err(), "no socket");
    }
}
