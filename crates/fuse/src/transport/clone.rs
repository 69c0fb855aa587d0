//! The one system call without a safe wrapper: a second descriptor of a FUSE connection.
#![expect(unsafe_code, reason = "rustix has no safe form of this ioctl")]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

/// `FUSE_DEV_IOC_CLONE`.
const FUSE_DEV_IOC_CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Attaches the freshly opened `/dev/fuse` descriptor `fresh` to the connection of `original`.
pub(super) fn attach(fresh: BorrowedFd<'_>, original: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the opcode takes a pointer to a u32 that it only reads, and `Setter` passes exactly that.
    unsafe { ioctl(fresh, Setter::<FUSE_DEV_IOC_CLONE, u32>::new(original.as_raw_fd() as u32)) }
}
