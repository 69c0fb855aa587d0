//! How a socket in a store's directory is reached. The address of a socket has room for 107 bytes, a path for
//! 4095: the socket is reached through a descriptor of its directory when its path is longer, and where
//! another user may write to the directory.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

/// Longest path that fits an address (bytes), the ending zero taken off.
const ADDRESS_LEN_MAX: usize = 107;

/// A path to give to bind(2) or connect(2), good for as long as this lives.
#[derive(Debug)]
pub struct Address {
    path: PathBuf,
    _descriptor: Option<File>,
}

impl Address {
    /// How `socket` is reached.
    ///
    /// # Errors
    /// The directory can't be opened.
    pub fn of(socket: &Path) -> io::Result<Self> {
        if socket.as_os_str().len() <= ADDRESS_LEN_MAX {
            return Ok(Self { path: socket.to_owned(), _descriptor: None });
        }
        let (Some(parent), Some(name)) = (socket.parent(), socket.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a socket needs a directory and a name"));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory: OwnedFd = rustix::fs::open(parent, flags, Mode::empty())?;
        let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _descriptor: Some(directory.into()) })
    }

    /// How the socket `name` in `directory` is reached: that very socket, even if its name leads elsewhere by
    /// the time of connect(2). Symbolic links are not followed. `may_trust` decides by the owner of the
    /// socket.
    ///
    /// # Errors
    /// Nothing is there, or something else than a socket, or the socket of an owner that is not trusted.
    pub fn beneath(
        directory: impl AsFd,
        name: &str,
        may_trust: impl FnOnce(u32) -> bool,
    ) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket: OwnedFd = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&socket)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
            return Err(io::Error::other(format!("{name} is not a socket; remove it")));
        }
        if !may_trust(found.st_uid) {
            let message = format!("{name} belongs to user {}, not to the owner of the store", found.st_uid);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        let path = Path::new("/proc/self/fd").join(socket.as_raw_fd().to_string());
        Ok(Self { path, _descriptor: Some(socket.into()) })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_socket_deep_below_is_reached() {
        let root = std::env::temp_dir().join(format!("rpc-address-{}", std::process::id()));
        let deep = root.join("d".repeat(100)).join("e".repeat(100));
        std::fs::create_dir_all(&deep).expect("makes directories");
        let socket = deep.join("control.sock");
        let bound = Address::of(&socket).expect("address");
        let listener = UnixListener::bind(bound.path()).expect("binds");
        drop(bound);
        assert!(socket.exists());
        let address = Address::of(&socket).expect("address");
        UnixStream::connect(address.path()).expect("connects");
        drop(listener);
        std::fs::remove_dir_all(&root).expect("cleans up");
    }
}
