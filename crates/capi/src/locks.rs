//! Advisory locks.
//!
//! Thread safety: see the crate.

use std::ffi::c_int;
use std::ops::Range;

use kvfs_posix::{Fd, RangeLock, Whence};
use libc::{
    F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_SETLK, F_SETLKW, F_UNLCK, F_WRLCK, flock,
};

use crate::failure::{Result, call, refuse};
use crate::foreign::missing;
use crate::process::{Process, of};

/// flock(2): `LOCK_SH`, `LOCK_EX` or `LOCK_UN`, with `LOCK_NB` or without.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_flock(process: Option<&Process>, fd: c_int, operation: c_int) -> c_int {
    call(|| {
        let is_exclusive = match operation & !libc::LOCK_NB {
            libc::LOCK_SH => Some(false),
            libc::LOCK_EX => Some(true),
            libc::LOCK_UN => None,
            _ => return refuse(libc::EINVAL, "no operation of flock"),
        };
        of(process)?.flock(Fd(fd), is_exclusive, operation & libc::LOCK_NB == 0)?;
        Ok(0)
    })
}

/// fcntl(2) with `F_GETLK`, `F_SETLK`, `F_SETLKW` (of the process) and `F_OFD_GETLK`, `F_OFD_SETLK`,
/// `F_OFD_SETLKW` (of the open file). Where a lock is in the way, its `l_pid` is -1.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fcntl_lock(
    process: Option<&Process>,
    fd: c_int,
    command: c_int,
    lock: Option<&mut flock>,
) -> c_int {
    call(|| {
        let (posix, lock) = (of(process)?, lock.ok_or_else(missing)?);
        let (of_file, asks, waits) = match command {
            F_GETLK => (false, true, false),
            F_SETLK => (false, false, false),
            F_SETLKW => (false, false, true),
            F_OFD_GETLK => (true, true, false),
            F_OFD_SETLK => (true, false, false),
            F_OFD_SETLKW => (true, false, true),
            _ => return refuse(libc::EINVAL, "no command that is about locks"),
        };
        let range = range_of(posix, Fd(fd), lock)?;
        let is_exclusive = match c_int::from(lock.l_type) {
            F_RDLCK => false,
            F_WRLCK => true,
            F_UNLCK if !asks => {
                posix.unlock_range(Fd(fd), &range, of_file)?;
                return Ok(0);
            }
            _ => return refuse(libc::EINVAL, "no type of lock"),
        };
        let wanted = RangeLock { range, is_exclusive };
        if asks {
            tell(lock, posix.find_lock(Fd(fd), &wanted, of_file)?.as_ref());
        } else {
            posix.lock_range(Fd(fd), &wanted, of_file, waits)?;
        }
        Ok(0)
    })
}

/// What the lock of C is about.
fn range_of(posix: &kvfs_client::Process, fd: Fd, lock: &flock) -> Result<Range<u64>> {
    let base = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => posix.lseek(fd, 0, Whence::Current)?,
        libc::SEEK_END => posix.stat(fd)?.size,
        _ => return refuse(libc::EINVAL, "ranges are counted from nothing else"),
    };
    let negative = || refuse(libc::EINVAL, "a range before the beginning");
    let Some(start) = base.checked_add_signed(lock.l_start) else { return negative() };
    match lock.l_len {
        0 => Ok(start..u64::MAX),
        len if len > 0 => Ok(start..start.saturating_add(len as u64)),
        len => start.checked_add_signed(len).map_or_else(negative, |first| Ok(first..start)),
    }
}

fn tell(lock: &mut flock, found: Option<&RangeLock>) {
    let Some(found) = found else {
        lock.l_type = F_UNLCK as i16;
        return;
    };
    lock.l_type = if found.is_exclusive { F_WRLCK } else { F_RDLCK } as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = found.range.start as i64;
    lock.l_len = if found.range.end == u64::MAX { 0 } else { (found.range.end - found.range.start) as i64 };
    lock.l_pid = -1;
}
