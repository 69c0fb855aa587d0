//! The `BLKDISCARD` call, which rustix does not offer.
//!
//! Thread safety: a plain system call.

use rustix::io::Result;
use rustix::ioctl::{self, Opcode, Setter, opcode};
use std::os::fd::AsFd;

/// `_IO(0x12, 119)` of `linux/fs.h`; its argument is `{ start, length }` in bytes.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Tells the block device `file` that `len` bytes at `offset` hold nothing any more.
pub(super) fn blkdiscard(file: impl AsFd, offset: u64, len: u64) -> Result<()> {
    // SAFETY: `BLKDISCARD` reads two u64 through its argument and writes nothing, which is what
    // `Setter` with this input passes; on other kinds of file the kernel refuses the call.
    unsafe { ioctl::ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}
