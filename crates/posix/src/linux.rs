//! Numbers by which programs of Linux name what is meant.
//!
//! Thread safety: functions.

use kvfs_fs::{FallocateMode, RenameMode, XattrMode};
use rustix::io::Errno;

use crate::Whence;
use crate::error::{PosixError, Result, refuse};

const MEANINGLESS: PosixError = PosixError::new(Errno::INVAL, "flags that mean nothing here");

/// The flags of `renameat2`.
///
/// # Errors
/// EINVAL: others than `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, `RENAME_WHITEOUT`; the second one with another.
pub fn rename_mode(flags: u32) -> Result<RenameMode> {
    RenameMode::from_flags(flags).ok_or(MEANINGLESS)
}

/// The other way round.
pub fn rename_flags(mode: RenameMode) -> u32 {
    match mode {
        RenameMode::Replace => 0,
        RenameMode::NoReplace => 1,
        RenameMode::Exchange => 2,
        RenameMode::Whiteout => 4,
        RenameMode::WhiteoutNoReplace => 5,
    }
}

/// The flags of `setxattr`.
///
/// # Errors
/// EINVAL: others than `XATTR_CREATE` and `XATTR_REPLACE`, or both.
pub fn xattr_mode(flags: u32) -> Result<XattrMode> {
    XattrMode::from_flags(flags).ok_or(MEANINGLESS)
}

/// The other way round.
pub fn xattr_flags(mode: XattrMode) -> u32 {
    match mode {
        XattrMode::Set => 0,
        XattrMode::Create => 1,
        XattrMode::Replace => 2,
    }
}

/// The mode of `fallocate`.
///
/// # Errors
/// EOPNOTSUPP: other ways than allocation, holes and zeros.
pub fn fallocate_mode(mode: u32) -> Result<FallocateMode> {
    let unsupported = PosixError::new(Errno::OPNOTSUPP, "a way of fallocate that is not supported");
    FallocateMode::from_flags(mode).ok_or(unsupported)
}

/// The other way round.
pub fn fallocate_flags(mode: FallocateMode) -> u32 {
    match mode {
        FallocateMode::Allocate { keep_size } => u32::from(keep_size),
        FallocateMode::PunchHole => 0x03,
        FallocateMode::ZeroRange { keep_size } => 0x10 | u32::from(keep_size),
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

/// The other way round.
pub fn whence_number(whence: Whence) -> u32 {
    match whence {
        Whence::Start => 0,
        Whence::Current => 1,
        Whence::End => 2,
        Whence::Data => 3,
        Whence::Hole => 4,
    }
}
