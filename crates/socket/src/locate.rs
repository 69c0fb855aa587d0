//! Which store a path means, and where a socket of its daemon is.
//!
//! Thread safety: plain functions and values.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::address::Address;
use crate::public;

/// A store that a daemon serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Its directory.
    pub store: PathBuf,
}

/// Where a socket was reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketPlace {
    /// Its path.
    pub path: PathBuf,
    /// The owner of the store's directory, whose daemon is to be behind it, as [`Located::socket`] tells.
    pub owner: Option<u32>,
    /// File system and inode of the directory that it is in.
    pub directory: (u64, u64),
}

impl Located {
    /// The socket `name`, and the owner of the store's directory, whose daemon is to be behind it; that of a
    /// mount of root's for all users, where the store's directory is closed.
    pub fn socket(&self, name: &str) -> (PathBuf, Option<u32>) {
        let socket = self.store.join(name);
        if std::fs::symlink_metadata(&socket).is_err()
            && let Ok((public, owner)) = public::socket(&self.store, name)
            && std::fs::symlink_metadata(&public).is_ok()
        {
            return (public, Some(owner));
        }
        let owner = std::fs::metadata(&self.store).ok().map(|found| found.uid());
        (socket, owner)
    }

    /// How the socket `name` is reached, and the owner as [`Self::socket`] tells. A symbolic link in its
    /// place, which the owner of the store may have made, leads nowhere: it could lead to another store that
    /// the caller may use.
    ///
    /// # Errors
    /// No socket is there; `PermissionDenied`: it is of a user that may not serve the store.
    pub fn address(&self, name: &str) -> io::Result<(Address, Option<u32>)> {
        let (address, place) = self.reach(name)?;
        Ok((address, place.owner))
    }

    fn reach(&self, name: &str) -> io::Result<(Address, SocketPlace)> {
        let (path, owner) = self.socket(name);
        let directory = path.parent().unwrap_or(&self.store);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory: OwnedFd = rustix::fs::open(directory, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&directory)?;
        let address = Address::beneath(directory, name, |uid| public::may_serve(uid, owner))?;
        Ok((address, SocketPlace { path, owner, directory: (found.st_dev, found.st_ino) }))
    }

    /// Connects to the socket `name`.
    ///
    /// # Errors
    /// No daemon listens; `TimedOut`: it accepts nothing; `PermissionDenied`: one of a user that may not
    /// serve the store.
    pub fn connect(&self, name: &str) -> io::Result<UnixStream> {
        Ok(self.connect_placed(name)?.0)
    }

    /// As [`Self::connect`]; tells where the socket was reached, too.
    ///
    /// # Errors
    /// As there.
    pub fn connect_placed(&self, name: &str) -> io::Result<(UnixStream, SocketPlace)> {
        let (address, place) = self.reach(name)?;
        let stream = crate::connect(address.path())?;
        public::expect_daemon_of(&stream, place.owner)?;
        Ok((stream, place))
    }
}

/// The store that `path` means: its directory, if the socket `name` is there, or anything on its mount or on
/// a view of a transaction. `None`: neither.
///
/// # Errors
/// The path, or the mount table, can't be read.
pub fn locate(path: &Path, name: &str) -> io::Result<Option<Located>> {
    let resolved = path.canonicalize()?;
    if std::fs::symlink_metadata(resolved.join(name)).is_ok() {
        return Ok(Some(Located { store: resolved }));
    }
    // A store of root's without a mount, whose directory is closed.
    if public::socket(&resolved, name).is_ok_and(|(socket, _)| std::fs::symlink_metadata(socket).is_ok()) {
        return Ok(Some(Located { store: resolved }));
    }
    let below = mounts()?.into_iter().filter(|mount| resolved.starts_with(&mount.point));
    let found = below.max_by_key(|mount| mount.point.as_os_str().len());
    Ok(found.map(|Mounted { store, .. }| Located { store }))
}

/// A mount of a store, or of a view of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// Where.
    pub point: PathBuf,
    /// The store's directory.
    pub store: PathBuf,
    /// The number of its file system, as files on it have it (`st_dev`).
    device: u64,
}

/// The mount of a store whose files have `device` as the number of their file system, if there is one.
///
/// # Errors
/// The mount table can't be read.
pub fn mount_of_device(device: u64) -> io::Result<Option<Mounted>> {
    Ok(mounts()?.into_iter().find(|mount| mount.device == device))
}

fn mounts() -> io::Result<Vec<Mounted>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|&b| b == b'\n').filter_map(parse_line).collect())
}

/// The mount, if the line of the mount table is about one of ours.
fn parse_line(line: &[u8]) -> Option<Mounted> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = fields.iter().position(|&field| field == b"-")?;
    let is_ours = matches!(fields.get(dash + 1)?, &b"fuse.kvfs" | &b"fuse.kvfs-txn");
    let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    is_ours.then_some(Mounted {
        point: unescape(fields.get(4)?),
        store: unescape(fields.get(dash + 2)?),
        device: rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
    })
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let digits = field.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if field[at] == b'\\' => {
                out.push(byte);
                at += 4;
            }
            _ => {
                out.push(field[at]);
                at += 1;
            }
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_found_in_the_table() {
        let line = b"91 29 0:52 / /me/my\\040mnt rw shared:7 - fuse.kvfs /me/st\\134ore rw";
        let device = rustix::fs::makedev(0, 52);
        let mounted = Mounted { point: "/me/my mnt".into(), store: "/me/st\\ore".into(), device };
        assert_eq!(parse_line(line), Some(mounted));
        assert!(parse_line(b"92 29 0:53 / /mnt rw - fuse.kvfs-txn /store rw").is_some());
        assert_eq!(parse_line(b"36 35 98:0 / / rw - ext4 /dev/root rw"), None);
        assert_eq!(parse_line(b""), None);
    }
}
