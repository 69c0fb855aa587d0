//! A listening socket in a directory that another user may write to.
//!
//! Thread safety: `&self` may be shared. Invariants: no symbolic link is followed, whatever changes in the
//! directory meanwhile; the mode is given to the socket that was bound, and to nothing else.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

/// Connections that wait to be accepted, as the standard library has it.
const BACKLOG: i32 = 128;

/// See the module. Its name is removed on drop.
#[derive(Debug)]
pub struct BoundSocket {
    directory: Arc<OwnedFd>,
    name: &'static str,
    listener: UnixListener,
    /// Device and number of its inode; none once its name is removed.
    inode: Option<(u64, u64)>,
}

impl BoundSocket {
    /// Binds `name` in `directory`, replacing what a killed daemon left there. The caller must own the lock
    /// of the store: then no living daemon is behind it.
    ///
    /// # Errors
    /// The name can't be replaced, or the socket not be bound.
    pub fn bind(directory: Arc<OwnedFd>, name: &'static str, mode: u32) -> io::Result<Self> {
        match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mode = Mode::from_raw_mode(mode);
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // A socket is bound with the mode of its descriptor, as far as the umask lets it.
        rustix::fs::fchmod(&socket, mode)?;
        // The last part of the path is made, and never followed.
        rustix::net::bind(&socket, &SocketAddrUnix::new(by_descriptor(&directory).join(name))?)?;
        let (bound, found) = look(&directory, name)?;
        if found.st_mode & 0o777 != mode.bits() {
            rustix::fs::chmod(by_descriptor(&bound), mode)?;
        }
        rustix::net::listen(&socket, BACKLOG)?;
        let inode = Some((found.st_dev, found.st_ino));
        Ok(Self { directory, name, listener: socket.into(), inode })
    }

    /// What accepts.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Makes the present and each later accept fail.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn shut_down(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.listener, Shutdown::Both)?)
    }

    /// Removes its name, unless something else has it by now.
    ///
    /// # Errors
    /// The name can't be removed.
    pub fn remove(&mut self) -> io::Result<()> {
        let Some(inode) = self.inode.take() else { return Ok(()) };
        match rustix::fs::statat(&self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if (found.st_dev, found.st_ino) == inode => {
                Ok(rustix::fs::unlinkat(&self.directory, self.name, AtFlags::empty())?)
            }
            _ => Ok(()),
        }
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!(name = self.name, %error, "cannot remove a socket");
        }
    }
}

/// What has just been bound, if nothing else has taken its name.
fn look(directory: &OwnedFd, name: &str) -> io::Result<(OwnedFd, Stat)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let bound = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&bound)?;
    let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::Socket
        && found.st_uid == rustix::process::geteuid().as_raw()
        && found.st_nlink == 1;
    if !is_ours {
        return Err(io::Error::other(format!("{name} was replaced while it was bound")));
    }
    Ok((bound, found))
}

fn by_descriptor(descriptor: &OwnedFd) -> PathBuf {
    Path::new("/proc/self/fd").join(descriptor.as_raw_fd().to_string())
}
