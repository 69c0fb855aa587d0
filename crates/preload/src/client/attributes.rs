//! What files are, and what may be done with them.
//!
//! Thread safety: see the back end.

use kvfs_lane::{Attributes, FsNumbers, Reply, Time};

use super::{Done, ask, at, do_it, error, records};
use crate::call::Call;
use crate::sys::{self, word};

const EMPTY: i32 = libc::AT_EMPTY_PATH;
const NOFOLLOW: i32 = libc::AT_SYMLINK_NOFOLLOW;

/// Each of them.
pub(super) fn serve(call: &Call<'_>) -> Done {
    let args = call.args;
    match call.nr as i64 {
        libc::SYS_stat | libc::SYS_fstat => stat(call, args[1], 0),
        libc::SYS_lstat => stat(call, args[1], NOFOLLOW),
        libc::SYS_newfstatat => stat(call, args[2], args[3] as i32),
        libc::SYS_statx => statx(call, args[4], args[2] as i32),
        libc::SYS_access => access(call, args[1], 0),
        libc::SYS_faccessat => access(call, args[2], 0),
        libc::SYS_faccessat2 => access(call, args[2], args[3] as i32),
        libc::SYS_chmod | libc::SYS_fchmod => chmod(call, args[1], 0),
        libc::SYS_fchmodat => chmod(call, args[2], 0),
        // fchmodat2
        452 => chmod(call, args[2], args[3] as i32),
        libc::SYS_chown | libc::SYS_fchown => chown(call, args[1], args[2], 0),
        libc::SYS_lchown => chown(call, args[1], args[2], NOFOLLOW),
        libc::SYS_fchownat => chown(call, args[2], args[3], args[4] as i32),
        libc::SYS_utime => utime(call, args[1]),
        libc::SYS_utimes => utimes(call, args[1]),
        libc::SYS_futimesat => utimes(call, args[2]),
        libc::SYS_utimensat => utimensat(call, args[2], args[3] as i32),
        libc::SYS_truncate | libc::SYS_ftruncate => {
            let Ok(size) = u64::try_from(args[1] as i64) else { return error(libc::EINVAL) };
            do_it(call, &kvfs_lane::Call::Truncate { at: at(call, 0, true, false)?, size })
        }
        libc::SYS_statfs | libc::SYS_fstatfs => statfs(call, args[1]),
        // Of later kernels.
        _ => error(libc::ENOSYS),
    }
}

/// Where the path of a call with flags leads.
fn flagged<'a>(call: &Call<'a>, flags: i32) -> Result<kvfs_lane::At<'a>, super::Verdict> {
    at(call, 0, flags & NOFOLLOW == 0, flags & EMPTY != 0)
}

fn describe<T>(
    call: &Call<'_>,
    flags: i32,
    tell: impl FnOnce(&Attributes) -> T,
) -> Result<T, super::Verdict> {
    ask(call, &kvfs_lane::Call::Stat { at: flagged(call, flags)? }, |reply, _| match reply {
        Reply::Attributes(found) => Some(tell(&found)),
        _ => None,
    })
}

fn stat(call: &Call<'_>, address: u64, flags: i32) -> Done {
    describe(call, flags, |found| sys::put_words(address, &records::stat(found)))?;
    Ok(0)
}

fn statx(call: &Call<'_>, address: u64, flags: i32) -> Done {
    describe(call, flags, |found| sys::put_words(address, &records::statx(found)))?;
    Ok(0)
}

/// The size of an open file.
pub(super) fn size(call: &Call<'_>) -> Result<u64, super::Verdict> {
    describe(call, 0, |found| found.size)
}

fn access(call: &Call<'_>, access: u64, flags: i32) -> Done {
    let access = access as u32;
    if access > 7 {
        return error(libc::EINVAL);
    }
    do_it(call, &kvfs_lane::Call::Access { at: flagged(call, flags)?, access })
}

fn chmod(call: &Call<'_>, mode: u64, flags: i32) -> Done {
    do_it(call, &kvfs_lane::Call::Chmod { at: flagged(call, flags)?, mode: mode as u32 & 0o7777 })
}

fn chown(call: &Call<'_>, uid: u64, gid: u64, flags: i32) -> Done {
    let [uid, gid] = [uid, gid].map(|id| Some(id as u32).filter(|id| *id != u32::MAX));
    do_it(call, &kvfs_lane::Call::Chown { at: flagged(call, flags)?, uid, gid })
}

fn set_times(call: &Call<'_>, flags: i32, atime: Option<Time>, mtime: Option<Time>) -> Done {
    do_it(call, &kvfs_lane::Call::Utimens { at: flagged(call, flags)?, atime, mtime })
}

fn utime(call: &Call<'_>, times: u64) -> Done {
    if times == 0 {
        return set_times(call, 0, Some(Time::Now), Some(Time::Now));
    }
    let time = |index| Some(Time::At { seconds: word(times, index) as i64, nanos: 0 });
    set_times(call, 0, time(0), time(1))
}

fn utimes(call: &Call<'_>, times: u64) -> Done {
    if times == 0 {
        return set_times(call, 0, Some(Time::Now), Some(Time::Now));
    }
    let time = |index| {
        let micros = u32::try_from(word(times, index + 1)).ok().filter(|micros| *micros < 1_000_000)?;
        Some(Time::At { seconds: word(times, index) as i64, nanos: micros * 1000 })
    };
    match (time(0), time(2)) {
        (Some(atime), Some(mtime)) => set_times(call, 0, Some(atime), Some(mtime)),
        _ => error(libc::EINVAL),
    }
}

fn utimensat(call: &Call<'_>, times: u64, flags: i32) -> Done {
    // Without a path the directory is the file.
    let flags = if call.args[1] == 0 { flags | EMPTY } else { flags };
    if times == 0 {
        return set_times(call, flags, Some(Time::Now), Some(Time::Now));
    }
    let time = |index| match word(times, index + 1) as i64 {
        libc::UTIME_NOW => Ok(Some(Time::Now)),
        libc::UTIME_OMIT => Ok(None),
        nanos @ 0..1_000_000_000 => {
            Ok(Some(Time::At { seconds: word(times, index) as i64, nanos: nanos as u32 }))
        }
        _ => Err(super::fail(libc::EINVAL)),
    };
    set_times(call, flags, time(0)?, time(2)?)
}

fn statfs(call: &Call<'_>, address: u64) -> Done {
    let tell = |found: &FsNumbers| sys::put_words(address, &records::statfs(found));
    ask(call, &kvfs_lane::Call::StatFs { at: at(call, 0, true, false)? }, |reply, _| match reply {
        Reply::FileSystem(found) => {
            tell(&found);
            Some(0)
        }
        _ => None,
    })
}
