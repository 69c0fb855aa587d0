//! Numbers by which programs of Linux name what is meant.
//!
//! Thread safety: functions.

use kvfs_fs::{FallocateMode, RenameMode, XattrMode};
use rustix::fs::{FallocateFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::Whence;
use crate::error::{Result, refuse};

/// The flags of `renameat2`.
///
/// # Errors
/// EINVAL: others than `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`; the second one with another.
pub fn rename_mode(flags: u32) -> Result<RenameMode> {
    match RenameFlags::from_bits_retain(flags) {
        flags if flags.is_empty() => Ok(RenameMode::Replace),
        RenameFlags::NOREPLACE => Ok(RenameMode::NoReplace),
        RenameFlags::EXCHANGE => Ok(RenameMode::Exchange),
        RenameFlags::WHITEOUT => Ok(RenameMode::Whiteout),
        flags if flags == RenameFlags::WHITEOUT | RenameFlags::NOREPLACE => Ok(RenameMode::WhiteoutNoReplace),
        _ => refuse(Errno::INVAL, "flags that mean nothing here"),
    }
}

/// The flags of `setxattr`.
///
/// # Errors
/// EINVAL: others than `XATTR_CREATE` and `XATTR_REPLACE`, or both.
pub fn xattr_mode(flags: u32) -> Result<XattrMode> {
    match XattrFlags::from_bits_retain(flags) {
        flags if flags.is_empty() => Ok(XattrMode::Set),
        XattrFlags::CREATE => Ok(XattrMode::Create),
        XattrFlags::REPLACE => Ok(XattrMode::Replace),
        _ => refuse(Errno::INVAL, "flags that mean nothing here"),
    }
}

/// The mode of `fallocate`.
///
/// # Errors
/// EOPNOTSUPP: other ways than allocation, holes and zeros.
pub fn fallocate_mode(mode: u32) -> Result<FallocateMode> {
    let mode = FallocateFlags::from_bits_retain(mode);
    let keep_size = mode.contains(FallocateFlags::KEEP_SIZE);
    match mode.difference(FallocateFlags::KEEP_SIZE) {
        mode if mode.is_empty() => Ok(FallocateMode::Allocate { keep_size }),
        FallocateFlags::PUNCH_HOLE if keep_size => Ok(FallocateMode::PunchHole),
        FallocateFlags::ZERO_RANGE => Ok(FallocateMode::ZeroRange { keep_size }),
        _ => refuse(Errno::OPNOTSUPP, "a way of fallocate that is not supported"),
    }
}

/// What `lseek` counts from: `SEEK_SET`, `SEEK_CUR`, `SEEK_END`, `SEEK_DATA`, `SEEK_HOLE`.
///
/// # Errors
/// EINVAL: another number.
pub fn whence(number: u32) -> Result<Whence> {
    match number {
        0 => Ok(Whence::Start),
        1 => Ok(Whence::Current),
        2 => Ok(Whence::End),
        3 => Ok(Whence::Data),
        4 => Ok(Whence::Hole),
        _ => refuse(Errno::INVAL, "lseek counts from nothing else"),
    }
}
