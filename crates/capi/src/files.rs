//! Opening and closing files, and what descriptors are.
//!
//! Thread safety: see the crate.

use std::ffi::{c_int, c_long};

use kvfs_posix::Fd;
use libc::mode_t;
use rustix::fs::OFlags;

use crate::failure::{call, refuse};
use crate::foreign::Text;
use crate::places::CheckedPlace;
use crate::process::{Process, of, with};

fn open_flags(flags: c_int) -> OFlags {
    OFlags::from_bits_retain(flags as u32)
}

/// open(2). `mode` counts if the file is made. All of `O_APPEND`, `O_CLOEXEC`, `O_CREAT`, `O_DIRECTORY`,
/// `O_DSYNC`, `O_EXCL`, `O_NOATIME`, `O_NOFOLLOW`, `O_PATH`, `O_SYNC`, `O_TMPFILE`, `O_TRUNC`; `O_DIRECT`,
/// `O_NOCTTY`, `O_NONBLOCK` change nothing.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_open(process: Option<&Process>, path: Text, flags: c_int, mode: mode_t) -> c_int {
    call(|| Ok(of(process)?.open(CheckedPlace::path(&path)?.0, open_flags(flags), mode)?.0))
}

/// openat(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_openat(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    flags: c_int,
    mode: mode_t,
) -> c_int {
    call(|| Ok(of(process)?.open(CheckedPlace::at(directory, &path)?.0, open_flags(flags), mode)?.0))
}

/// creat(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_creat(process: Option<&Process>, path: Text, mode: mode_t) -> c_int {
    kvfs_open(process, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode)
}

/// close(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_close(process: Option<&Process>, fd: c_int) -> c_int {
    with(process, |posix| posix.close(Fd(fd)))
}

/// dup(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_dup(process: Option<&Process>, fd: c_int) -> c_int {
    call(|| Ok(of(process)?.dup(Fd(fd), 0, false)?.0))
}

/// dup2(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_dup2(process: Option<&Process>, fd: c_int, new_fd: c_int) -> c_int {
    call(|| Ok(of(process)?.dup_to(Fd(fd), Fd(new_fd), false)?.0))
}

/// dup3(2): `flags` is 0 or `O_CLOEXEC`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_dup3(process: Option<&Process>, fd: c_int, new_fd: c_int, flags: c_int) -> c_int {
    call(|| {
        if flags & !libc::O_CLOEXEC != 0 || fd == new_fd {
            return refuse(libc::EINVAL, "a descriptor onto itself, or flags that mean nothing here");
        }
        Ok(of(process)?.dup_to(Fd(fd), Fd(new_fd), flags != 0)?.0)
    })
}

/// fcntl(2) with `F_DUPFD`, `F_DUPFD_CLOEXEC`, `F_GETFD`, `F_SETFD`, `F_GETFL`, `F_SETFL`; locks are taken by
/// `kvfs_fcntl_lock`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fcntl(
    process: Option<&Process>,
    fd: c_int,
    command: c_int,
    argument: c_long,
) -> c_int {
    call(|| {
        let (posix, fd) = (of(process)?, Fd(fd));
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                let least = i32::try_from(argument).unwrap_or(-1);
                Ok(posix.dup(fd, least, command == libc::F_DUPFD_CLOEXEC)?.0)
            }
            libc::F_GETFD => Ok(if posix.closes_on_exec(fd)? { libc::FD_CLOEXEC } else { 0 }),
            libc::F_SETFD => {
                posix.set_closes_on_exec(fd, argument & c_long::from(libc::FD_CLOEXEC) != 0)?;
                Ok(0)
            }
            libc::F_GETFL => Ok(posix.flags(fd)?.bits() as c_int),
            libc::F_SETFL => {
                posix.set_flags(fd, open_flags(argument as c_int))?;
                Ok(0)
            }
            _ => refuse(libc::EINVAL, "no command of fcntl that is known here"),
        }
    })
}
