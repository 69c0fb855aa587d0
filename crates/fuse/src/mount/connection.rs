//! Ending a FUSE connection whatever shows it: attached or not, here or in another mount namespace.
//!
//! The kernel lists its connections in the file system `fusectl`, each by the number of its device. What is
//! written to `abort` there fails every request, and wakes who waits for one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where the list is mounted, as a rule.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Ends the connection that serves the file system of this number, the device of what is mounted.
///
/// # Errors
/// There is no such connection, it is another user's, or the list is mounted nowhere and this process may not
/// mount it.
pub(super) fn abort((major, minor): (u32, u32)) -> io::Result<()> {
    if major != 0 {
        return Err(Errno::NODEV.into());
    }
    rustix::io::write(find(minor)?, b"1")?;
    Ok(())
}

/// Ends the connection of `device`, an open descriptor of `/dev/fuse`, and no other one. False: it has ended
/// already.
///
/// # Errors
/// It is another user's, or the list is mounted nowhere and this process may not mount it. `Unsupported`: the
/// kernel (before 6.15) does not tell which connection is the descriptor's, or that has none.
pub fn abort_of(device: BorrowedFd<'_>) -> io::Result<bool> {
    // Once the file system is gone, another one may have the number, which the descriptor shows still. The
    // file is of the connection that has it when the file is opened, and writes nothing to a later one: of
    // `device`, if the connection of that has not ended until then.
    let file = find(number_of(device)?);
    if has_ended(device)? {
        return Ok(false);
    }
    rustix::io::write(file?, b"1")?;
    Ok(true)
}

/// The number of the connection, as the list has it.
fn number_of(device: BorrowedFd<'_>) -> io::Result<u32> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd()))?;
    let number = info.lines().find_map(|line| line.strip_prefix("fuse_connection:")?.trim().parse().ok());
    number.ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "the kernel does not tell the connection of a descriptor")
    })
}

/// Whether the connection was aborted, or its file system is gone.
fn has_ended(device: BorrowedFd<'_>) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(device, PollFlags::empty())];
    retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())))?;
    Ok(polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP))
}

fn find(number: u32) -> Result<OwnedFd, Errno> {
    match open_abort(CWD, &format!("{CONNECTIONS}/{number}/abort")) {
        Err(Errno::NOENT) => open_abort(own_list()?, &format!("{number}/abort")),
        opened => opened,
    }
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::mount::{MountOptions, mount_detached};
    use crate::transport::DEVICE_PATH;

    #[test]
    fn abort_by_a_descriptor_spares_the_next_connection_of_its_number() {
        let test = "abort_by_a_descriptor_spares_the_next_connection_of_its_number";
        if !rustix::process::geteuid().is_root() || !Path::new(DEVICE_PATH).exists() {
            eprintln!("SKIPPED {test}: needs root, and {DEVICE_PATH}");
            return;
        }
        let (mount, device) = mount_detached(&MountOptions::default()).expect("mounts");
        let number = match number_of(device.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                eprintln!("SKIPPED {test}: {error}");
                return;
            }
            number => number.expect("is told"),
        };
        drop(mount);
        while !has_ended(device.as_fd()).expect("is told") {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        // The kernel gives the lowest number that is free: of several, one has it.
        let next: Vec<_> =
            (0..8).map(|_| mount_detached(&MountOptions::default()).expect("mounts")).collect();
        assert_eq!(number_of(device.as_fd()).expect("is told"), number, "it is shown still");
        assert!(!abort_of(device.as_fd()).expect("is told"));
        for (_, device) in &next {
            assert!(!has_ended(device.as_fd()).expect("is told"), "another one was aborted");
            assert!(abort_of(device.as_fd()).expect("is allowed"));
            assert!(has_ended(device.as_fd()).expect("is told"));
            assert!(!abort_of(device.as_fd()).expect("is told"), "it has ended");
        }
        let unmounted = rustix::fs::open(DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let error = abort_of(unmounted.expect("opens").as_fd()).expect_err("has none");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
