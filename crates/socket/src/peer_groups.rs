//! The supplementary groups of a peer: an option of sockets without a safe wrapper.
#![expect(unsafe_code, reason = "no safe form of SO_PEERGROUPS")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Groups that are asked for at first; few users have more.
const GROUPS_FIRST: usize = 32;

/// As many as Linux allows.
const GROUPS_MAX: usize = 65536;

/// The supplementary groups of the process that connected to a socket of the system.
///
/// # Errors
/// The descriptor is no such socket, or is not connected.
pub fn peer_groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let descriptor = socket.as_fd().as_raw_fd();
    let mut groups = vec![0_u32; GROUPS_FIRST];
    loop {
        let mut len = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the descriptor is open, since it is borrowed; the buffer is valid for writes of `len`
        // bytes, and any bytes are numbers.
        let result = unsafe {
            libc::getsockopt(
                descriptor,
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let count = len as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        let is_more = error.raw_os_error() == Some(libc::ERANGE) && count > groups.len();
        if !is_more || count > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::peer_groups;

    #[test]
    fn the_groups_of_this_process_are_found() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut found = peer_groups(&one).unwrap();
        found.sort_unstable();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let mut expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}
