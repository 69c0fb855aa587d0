//! Where the server is: its socket is reached so that no other server takes its place.
//!
//! The owner of a store may replace its socket, or the store's directory, by a link to those of another store
//! which this process may use. So no link is followed in the place of the socket, the directory is the one
//! that `kvfs exec` has found, and nothing is said to a server of another user than root, this process's user
//! and the one that `kvfs exec` has found.
//!
//! Thread safety: any thread, signal handler, or child of vfork; nothing is allocated.

use std::ffi::{CStr, CString, OsStr};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::server::Errno;
use crate::sys;

/// What the kernel shows for users that a namespace has no number for.
const UID_UNMAPPED: u32 = 65534;

/// What a map of users that has all of them says.
const ALL_USERS: [&[u8]; 3] = [b"0", b"0", b"4294967295"];

/// Of the server.
struct Place {
    directory: CString,
    /// That of its socket there.
    name: CString,
    /// A user that it may be of.
    owner: Option<u32>,
    /// File system and inode of the directory.
    identity: Option<(u64, u64)>,
}

static PLACE: OnceLock<Place> = OnceLock::new();

/// Keeps the path of the server's socket, and what `kvfs exec` says of it. Returns `false` if there can be no
/// such server.
#[must_use]
pub(super) fn set_up(socket: &OsStr, expected: &str) -> bool {
    let path = Path::new(socket);
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return false };
    // A path without a directory is one of the current directory.
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let (Ok(directory), Ok(name)) =
        (CString::new(directory.as_os_str().as_bytes()), CString::new(name.as_bytes()))
    else {
        return false;
    };
    let mut parts = expected.split(':');
    let owner = parts.next().and_then(|owner| owner.parse().ok());
    let mut number = || parts.next().and_then(|number| number.parse().ok());
    let identity = number().zip(number());
    PLACE.set(Place { directory, name, owner, identity }).is_ok()
}

/// A connection to the server, to which nothing was said, and the user of the server.
///
/// # Errors
/// EACCES: a user may not have it, or what is there is not the server. EIO: it can't be reached.
pub(super) fn connect() -> Result<(OwnedFd, u32), Errno> {
    // Whatever else keeps the server from answering, the program can only fail.
    let refused = |errno| if errno == rustix::io::Errno::ACCESS { libc::EACCES } else { libc::EIO };
    let place = PLACE.get().ok_or(libc::EIO)?;
    let path = place.socket().map_err(refused)?;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(rustix::io::Errno::raw_os_error)?;
    // This very socket, whatever has its name by now.
    let mut buffer = [0; 32];
    let _ = write!(&mut buffer[..31], "/proc/self/fd/{}", path.as_raw_fd());
    let address = CStr::from_bytes_until_nul(&buffer).map_err(|_| libc::EIO)?;
    let address = SocketAddrUnix::new(address).map_err(refused)?;
    rustix::net::connect(&socket, &address).map_err(refused)?;
    let user = user_of(&socket).ok_or(libc::EIO)?;
    if place.may_be_of(user) { Ok((socket, user)) } else { Err(libc::EACCES) }
}

impl Place {
    /// The socket, as a place. ACCESS: what is there is another one.
    fn socket(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let directory = openat(CWD, &*self.directory, flags | OFlags::DIRECTORY, Mode::empty())?;
        let found = fstat(&directory)?;
        if self.identity.is_some_and(|identity| identity != (found.st_dev, found.st_ino)) {
            return Err(rustix::io::Errno::ACCESS);
        }
        let socket = openat(&directory, &*self.name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let found = fstat(&socket)?;
        let is_socket = FileType::from_raw_mode(found.st_mode) == FileType::Socket;
        if is_socket && self.may_be_of(found.st_uid) { Ok(socket) } else { Err(rustix::io::Errno::ACCESS) }
    }

    fn may_be_of(&self, user: u32) -> bool {
        let own = sys::call(libc::SYS_geteuid as u64, &[0; 6]) as u32;
        user == 0 || Some(user) == self.owner || user == own || (user == UID_UNMAPPED && !has_all_users())
    }
}

/// Whether the namespace of this process has a number for each user. In another one the kernel shows root, as
/// all users that are not in it, as one number.
fn has_all_users() -> bool {
    let mut buffer = [0; 128];
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let map = openat(CWD, c"/proc/self/uid_map", flags, Mode::empty());
    let Ok(len) = map.and_then(|map| rustix::io::read(map, &mut buffer)) else { return true };
    let words = buffer[..len].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.eq(ALL_USERS)
}

/// Whose process is behind a socket.
fn user_of(socket: &OwnedFd) -> Option<u32> {
    // struct ucred: process, user, group.
    let (mut found, mut len) = ([0_u32; 3], 12_u32);
    let (option, space) = (libc::SO_PEERCRED as u64, found.as_mut_ptr() as u64);
    let args = [socket.as_raw_fd() as u64, libc::SOL_SOCKET as u64, option, space, &raw mut len as u64, 0];
    (sys::call(libc::SYS_getsockopt as u64, &args) == 0).then_some(found[1])
}
