//! Ending a FUSE connection whatever shows it: attached or not, here or in another mount namespace.
//!
//! The kernel lists its connections in the file system `fusectl`, each by the number of its device. What is
//! written to `abort` there fails every request, and wakes who waits for one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where the list is mounted, as a rule.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends the connection that serves the file system of this number, the device of what is mounted. As
/// [`super::Unmount::Abort`], where the mount can't be reached, or has none of its own.
///
/// # Errors
/// There is no such connection, it is another user's, or the list is mounted nowhere and this process may not
/// mount it.
pub fn abort((major, minor): (u32, u32)) -> io::Result<()> {
    if major != 0 {
        return Err(Errno::NODEV.into());
    }
    let file = match open_abort(CWD, &format!("{CONNECTIONS}/{minor}/abort")) {
        Err(Errno::NOENT) => open_abort(own_list()?, &format!("{minor}/abort"))?,
        opened => opened?,
    };
    rustix::io::write(file, b"1")?;
    Ok(())
}

fn open_abort(dir: impl AsFd, path: &str) -> Result<OwnedFd, Errno> {
    openat(dir, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

/// The list, attached nowhere.
fn own_list() -> Result<OwnedFd, Errno> {
    let fs = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}
