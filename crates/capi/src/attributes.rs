//! What files are, and who may use them how.
//!
//! Thread safety: see the crate.

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;

use kvfs_fs::{SetTime, Timestamp};
use kvfs_posix::{Access, Fd, Place};
use libc::{gid_t, mode_t, stat, statvfs, statx, uid_t, utimbuf};

use crate::failure::{Result, call, refuse};
use crate::foreign::{Text, Times, put};
use crate::layout;
use crate::places::CheckedPlace;
use crate::process::{Process, of, with};

const CWD: c_int = libc::AT_FDCWD;
/// The kernel keeps it for itself.
const STATX_RESERVED: c_uint = 1 << 31;
const FOLLOW_FLAGS: c_int = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;

fn stat_of(
    process: Option<&Process>,
    place: Place<'_>,
    buffer: Option<&mut MaybeUninit<stat>>,
) -> Result<c_int> {
    put(buffer, layout::stat(&of(process)?.stat(place)?))?;
    Ok(0)
}

/// stat(2). Of a directory, `st_size` is the number of its entries; `st_dev` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_stat(
    process: Option<&Process>,
    path: Text,
    buffer: Option<&mut MaybeUninit<stat>>,
) -> c_int {
    call(|| stat_of(process, CheckedPlace::path(&path)?.0, buffer))
}

/// lstat(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_lstat(
    process: Option<&Process>,
    path: Text,
    buffer: Option<&mut MaybeUninit<stat>>,
) -> c_int {
    call(|| stat_of(process, CheckedPlace::link(&path)?.0, buffer))
}

/// fstat(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fstat(
    process: Option<&Process>,
    fd: c_int,
    buffer: Option<&mut MaybeUninit<stat>>,
) -> c_int {
    call(|| stat_of(process, Fd(fd).into(), buffer))
}

/// fstatat(2): `flags` of `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fstatat(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    buffer: Option<&mut MaybeUninit<stat>>,
    flags: c_int,
) -> c_int {
    call(|| stat_of(process, CheckedPlace::flagged(directory, &path, flags, FOLLOW_FLAGS)?.0, buffer))
}

/// statx(2): all that is known, whatever `mask` asks for, the time of birth as well. `flags` of
/// `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH`, and those about synchronization, which change nothing.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_statx(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    flags: c_int,
    mask: c_uint,
    buffer: Option<&mut MaybeUninit<statx>>,
) -> c_int {
    call(|| {
        if mask & STATX_RESERVED != 0 {
            return refuse(libc::EINVAL, "a mask that means nothing");
        }
        let known = FOLLOW_FLAGS | libc::AT_STATX_SYNC_TYPE;
        let attr = of(process)?.stat(CheckedPlace::flagged(directory, &path, flags, known)?.0)?;
        put(buffer, layout::statx(&attr))?;
        Ok(0)
    })
}

/// statvfs(3): of the store.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_statvfs(
    process: Option<&Process>,
    path: Text,
    buffer: Option<&mut MaybeUninit<statvfs>>,
) -> c_int {
    call(|| {
        put(buffer, layout::statvfs(&of(process)?.statvfs(CheckedPlace::path(&path)?.0)?))?;
        Ok(0)
    })
}

/// fstatvfs(3).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fstatvfs(
    process: Option<&Process>,
    fd: c_int,
    buffer: Option<&mut MaybeUninit<statvfs>>,
) -> c_int {
    call(|| {
        put(buffer, layout::statvfs(&of(process)?.statvfs(Fd(fd))?))?;
        Ok(0)
    })
}

/// access(2): `how` is `F_OK`, or of `R_OK`, `W_OK`, `X_OK`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_access(process: Option<&Process>, path: Text, how: c_int) -> c_int {
    kvfs_faccessat(process, CWD, path, how, 0)
}

/// faccessat(2): `flags` of `AT_EACCESS`, which changes nothing, `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_faccessat(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    how: c_int,
    flags: c_int,
) -> c_int {
    call(|| {
        if how & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
            return refuse(libc::EINVAL, "no kind of access");
        }
        let place = CheckedPlace::flagged(directory, &path, flags, FOLLOW_FLAGS | libc::AT_EACCESS)?.0;
        let access = Access {
            reads: how & libc::R_OK != 0,
            writes: how & libc::W_OK != 0,
            executes: how & libc::X_OK != 0,
        };
        of(process)?.access(place, access)?;
        Ok(0)
    })
}

/// chmod(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_chmod(process: Option<&Process>, path: Text, mode: mode_t) -> c_int {
    kvfs_fchmodat(process, CWD, path, mode, 0)
}

/// fchmod(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fchmod(process: Option<&Process>, fd: c_int, mode: mode_t) -> c_int {
    with(process, |posix| posix.chmod(Fd(fd), mode))
}

/// fchmodat(2): `flags` of `AT_SYMLINK_NOFOLLOW` (EOPNOTSUPP: it is a symbolic link), `AT_EMPTY_PATH`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fchmodat(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    mode: mode_t,
    flags: c_int,
) -> c_int {
    call(|| {
        of(process)?.chmod(CheckedPlace::flagged(directory, &path, flags, FOLLOW_FLAGS)?.0, mode)?;
        Ok(0)
    })
}

/// -1 leaves one.
fn chosen(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

/// chown(2): -1 leaves user or group as it is.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_chown(process: Option<&Process>, path: Text, uid: uid_t, gid: gid_t) -> c_int {
    kvfs_fchownat(process, CWD, path, uid, gid, 0)
}

/// lchown(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_lchown(process: Option<&Process>, path: Text, uid: uid_t, gid: gid_t) -> c_int {
    kvfs_fchownat(process, CWD, path, uid, gid, libc::AT_SYMLINK_NOFOLLOW)
}

/// fchown(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fchown(process: Option<&Process>, fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
    with(process, |posix| posix.chown(Fd(fd), chosen(uid), chosen(gid)))
}

/// fchownat(2): `flags` of `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fchownat(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    uid: uid_t,
    gid: gid_t,
    flags: c_int,
) -> c_int {
    call(|| {
        let place = CheckedPlace::flagged(directory, &path, flags, FOLLOW_FLAGS)?.0;
        of(process)?.chown(place, chosen(uid), chosen(gid))?;
        Ok(0)
    })
}

/// utime(2): NULL means now.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_utime(process: Option<&Process>, path: Text, times: Option<&utimbuf>) -> c_int {
    call(|| {
        let at = |seconds| SetTime::At(Timestamp { seconds, nanos: 0 });
        let (atime, mtime) =
            times.map_or((SetTime::Now, SetTime::Now), |times| (at(times.actime), at(times.modtime)));
        of(process)?.utimens(CheckedPlace::path(&path)?.0, Some(atime), Some(mtime))?;
        Ok(0)
    })
}

fn set_times(process: Option<&Process>, place: Place<'_>, times: &Times) -> Result<c_int> {
    let set = |time: &libc::timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        _ => layout::timestamp(time).map(SetTime::At).map(Some),
    };
    let (atime, mtime) = match times.both() {
        None => (Some(SetTime::Now), Some(SetTime::Now)),
        Some([atime, mtime]) => (set(&atime)?, set(&mtime)?),
    };
    of(process)?.utimens(place, atime, mtime)?;
    Ok(0)
}

/// utimensat(2): `times` are two, or NULL: now; `UTIME_NOW` and `UTIME_OMIT` mean what they do on Linux.
/// `flags` of `AT_SYMLINK_NOFOLLOW`, `AT_EMPTY_PATH`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_utimensat(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    times: Times,
    flags: c_int,
) -> c_int {
    call(|| set_times(process, CheckedPlace::flagged(directory, &path, flags, FOLLOW_FLAGS)?.0, &times))
}

/// futimens(3).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_futimens(process: Option<&Process>, fd: c_int, times: Times) -> c_int {
    call(|| set_times(process, Fd(fd).into(), &times))
}
