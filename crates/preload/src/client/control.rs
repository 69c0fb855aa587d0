//! What else is done to open files: flags, locks, syncs, advice; and what only sockets, pipes and terminals
//! can do.
//!
//! Thread safety: see the back end.

use std::sync::atomic::Ordering::Relaxed;

use kvfs_lane::{LockRange, Reply};

use super::{Done, ask, attributes, do_it, error, first, number, opening, page};
use crate::call::Call;
use crate::slow::Verdict;
use crate::sys::{self, word};

/// `O_LARGEFILE` as the kernel shows it.
const LARGE: isize = 0o100_000;

/// Each of them.
pub(super) fn serve(call: &Call<'_>) -> Done {
    let args = call.args;
    if call.nr as i64 == libc::SYS_close {
        let fd = args[0] as i32;
        opening::release(fd..=fd);
        return Err(Verdict::Native);
    }
    let handle = first(call)?;
    match call.nr as i64 {
        libc::SYS_fcntl => fcntl(call, handle, args[1] as i32, args[2]),
        libc::SYS_flock => flock(call, handle, args[1] as i32),
        libc::SYS_fsync | libc::SYS_fdatasync => do_it(call, &kvfs_lane::Call::Sync { handle }),
        libc::SYS_syncfs => known(call, handle).and_then(|_| do_it(call, &kvfs_lane::Call::SyncAll)),
        libc::SYS_fallocate => {
            let (mode, offset, len) = (args[1] as u32, args[2], args[3]);
            do_it(call, &kvfs_lane::Call::Allocate { handle, mode, offset, len })
        }
        libc::SYS_ioctl => ioctl(call, handle, args[1], args[2]),
        // Whosever socket it is, advice does nothing.
        libc::SYS_readahead | libc::SYS_fadvise64 | libc::SYS_sync_file_range => Ok(0),
        // As of every file.
        libc::SYS_epoll_ctl => known(call, handle).and_then(|_| error(libc::EPERM)),
        libc::SYS_getdents => known(call, handle).and_then(|_| error(libc::EINVAL)),
        451 => known(call, handle).and_then(|_| error(libc::EOPNOTSUPP)),
        _ => known(call, handle).and_then(|_| error(libc::ENOTSOCK)),
    }
}

/// Fails as the kernel would have it, unless the descriptor is the store's.
fn known(call: &Call<'_>, handle: u64) -> Done {
    number(call, &kvfs_lane::Call::Flags { handle })
}

fn fcntl(call: &Call<'_>, handle: u64, command: i32, argument: u64) -> Done {
    match command {
        libc::F_GETFL => Ok(known(call, handle)? | LARGE),
        libc::F_SETFL => do_it(call, &kvfs_lane::Call::SetFlags { handle, flags: argument as u32 }),
        libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            let (lock, is_of_file) = (lock(call, argument)?, command >= libc::F_OFD_GETLK);
            let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
            let lock = LockRange { of_file: is_of_file, ..lock };
            if !is_of_file && let Some(page) = page::page() {
                page.has_locks.store(true, Relaxed);
            }
            do_it(call, &kvfs_lane::Call::Lock { handle, lock, waits })
        }
        libc::F_GETLK | libc::F_OFD_GETLK => {
            let lock = LockRange { of_file: command == libc::F_OFD_GETLK, ..lock(call, argument)? };
            find_lock(call, handle, lock, argument)
        }
        libc::F_GETLEASE => Ok(libc::F_UNLCK as isize),
        libc::F_SETLEASE => error(libc::EAGAIN),
        libc::F_GETFD | libc::F_SETFD | libc::F_GETOWN | libc::F_SETOWN => Err(Verdict::Native),
        _ => known(call, handle).and_then(|_| error(libc::EINVAL)),
    }
}

/// What struct flock asks for: type and whence, start, length, process.
fn lock(call: &Call<'_>, address: u64) -> Result<LockRange, Verdict> {
    let invalid = super::fail(libc::EINVAL);
    let head = word(address, 0);
    let (kind, whence) = (head as i16, (head >> 16) as i16);
    let (start, len) = (word(address, 1) as i64, word(address, 2) as i64);
    let base = match i32::from(whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => {
            let (handle, whence) = (first(call)?, libc::SEEK_CUR as u32);
            number(call, &kvfs_lane::Call::Seek { handle, offset: 0, whence })? as i64
        }
        libc::SEEK_END => attributes::size(call)? as i64,
        _ => return Err(invalid),
    };
    let start = base.checked_add(start).ok_or(super::fail(libc::EOVERFLOW))?;
    // A length below 0 is that of the range in front.
    let (start, end) = match len {
        0 => (start, None),
        len if len < 0 => (start.checked_add(len).ok_or(invalid)?, Some(start)),
        len => (start, Some(start.checked_add(len).ok_or(super::fail(libc::EOVERFLOW))?)),
    };
    let is_exclusive = match i32::from(kind) {
        libc::F_RDLCK => Some(false),
        libc::F_WRLCK => Some(true),
        libc::F_UNLCK => None,
        _ => return Err(invalid),
    };
    let start = u64::try_from(start).map_err(|_| invalid)?;
    let end = end.map_or(u64::MAX, |end| end as u64);
    Ok(LockRange { start, end, is_exclusive, of_file: false })
}

fn find_lock(call: &Call<'_>, handle: u64, lock: LockRange, address: u64) -> Done {
    let found = ask(call, &kvfs_lane::Call::FindLock { handle, lock }, |reply, _| match reply {
        Reply::Locked(found) => Some(found),
        _ => None,
    })?;
    let Some(found) = found else {
        let head = word(address, 0) & !0xffff | libc::F_UNLCK as u64;
        sys::put_words(address, &[head]);
        return Ok(0);
    };
    let kind = if found.is_exclusive == Some(true) { libc::F_WRLCK } else { libc::F_RDLCK };
    let len = if found.end == u64::MAX { 0 } else { found.end - found.start };
    // The process is unknown: its number is that of a lock of an open file.
    let pid = u64::from(u32::MAX) | word(address, 3) & !u64::from(u32::MAX);
    sys::put_words(address, &[kind as u64, found.start, len, pid]);
    Ok(0)
}

fn flock(call: &Call<'_>, handle: u64, operation: i32) -> Done {
    let waits = operation & libc::LOCK_NB == 0;
    let is_exclusive = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => Some(false),
        libc::LOCK_EX => Some(true),
        libc::LOCK_UN => None,
        _ => return error(libc::EINVAL),
    };
    do_it(call, &kvfs_lane::Call::Flock { handle, is_exclusive, waits })
}

fn ioctl(call: &Call<'_>, handle: u64, request: u64, argument: u64) -> Done {
    const FICLONE: u64 = 0x4004_9409;
    const FICLONERANGE: u64 = 0x4020_940d;
    match request {
        libc::FIOCLEX | libc::FIONCLEX => Err(Verdict::Native),
        libc::FIONBIO => known(call, handle).map(|_| 0),
        libc::FIONREAD => {
            let whence = libc::SEEK_CUR as u32;
            let at = number(call, &kvfs_lane::Call::Seek { handle, offset: 0, whence })? as u64;
            let rest = attributes::size(call)?.saturating_sub(at).min(i32::MAX as u64);
            sys::bytes(argument, 4).copy_from_slice(&(rest as u32).to_ne_bytes());
            Ok(0)
        }
        // No socket can do it, either.
        FICLONE | FICLONERANGE => error(libc::EOPNOTSUPP),
        _ => known(call, handle).and_then(|_| error(libc::ENOTTY)),
    }
}
