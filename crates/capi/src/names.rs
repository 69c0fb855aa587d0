//! Making, renaming and removing names.
//!
//! Thread safety: see the crate.

use std::ffi::{c_int, c_uint};

use kvfs_posix::linux;
use libc::{dev_t, mode_t, size_t, ssize_t};

use crate::failure::{call, refuse};
use crate::foreign::{Text, TextBuffer};
use crate::layout::rdev;
use crate::places::CheckedPlace;
use crate::process::{Process, of};

const CWD: c_int = libc::AT_FDCWD;

/// mkdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_mkdir(process: Option<&Process>, path: Text, mode: mode_t) -> c_int {
    kvfs_mkdirat(process, CWD, path, mode)
}

/// mkdirat(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_mkdirat(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    mode: mode_t,
) -> c_int {
    call(|| {
        of(process)?.mkdir(CheckedPlace::at(directory, &path)?.0, mode)?;
        Ok(0)
    })
}

/// rmdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_rmdir(process: Option<&Process>, path: Text) -> c_int {
    kvfs_unlinkat(process, CWD, path, libc::AT_REMOVEDIR)
}

/// mknod(2): a file, fifo, socket or device node.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_mknod(process: Option<&Process>, path: Text, mode: mode_t, device: dev_t) -> c_int {
    kvfs_mknodat(process, CWD, path, mode, device)
}

/// mknodat(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_mknodat(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    mode: mode_t,
    device: dev_t,
) -> c_int {
    call(|| {
        of(process)?.mknod(CheckedPlace::at(directory, &path)?.0, mode, rdev(device)?)?;
        Ok(0)
    })
}

/// mkfifo(3).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_mkfifo(process: Option<&Process>, path: Text, mode: mode_t) -> c_int {
    kvfs_mknod(process, path, (mode & 0o7777) | libc::S_IFIFO, 0)
}

/// symlink(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_symlink(process: Option<&Process>, target: Text, path: Text) -> c_int {
    kvfs_symlinkat(process, target, CWD, path)
}

/// symlinkat(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_symlinkat(
    process: Option<&Process>,
    target: Text,
    directory: c_int,
    path: Text,
) -> c_int {
    call(|| {
        of(process)?.symlink(target.bytes()?, CheckedPlace::at(directory, &path)?.0)?;
        Ok(0)
    })
}

/// readlink(2): no zero byte is put behind the content.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_readlink(
    process: Option<&Process>,
    path: Text,
    buffer: TextBuffer,
    size: size_t,
) -> ssize_t {
    kvfs_readlinkat(process, CWD, path, buffer, size)
}

/// readlinkat(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_readlinkat(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    mut buffer: TextBuffer,
    size: size_t,
) -> ssize_t {
    call(|| {
        if size == 0 {
            return refuse(libc::EINVAL, "a buffer without room");
        }
        let content = of(process)?.readlink(CheckedPlace::at(directory, &path)?.0.no_follow())?;
        buffer.room().fill(size, &content)
    })
}

/// link(2): of a symbolic link itself.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_link(process: Option<&Process>, old_path: Text, new_path: Text) -> c_int {
    kvfs_linkat(process, CWD, old_path, CWD, new_path, 0)
}

/// linkat(2): `flags` is 0, or of `AT_SYMLINK_FOLLOW`, `AT_EMPTY_PATH`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_linkat(
    process: Option<&Process>,
    old_directory: c_int,
    old_path: Text,
    new_directory: c_int,
    new_path: Text,
    flags: c_int,
) -> c_int {
    call(|| {
        let known = libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH;
        let old = CheckedPlace::flagged(old_directory, &old_path, flags, known)?.0;
        let old = if flags & libc::AT_SYMLINK_FOLLOW == 0 { old.no_follow() } else { old };
        of(process)?.link(old, CheckedPlace::at(new_directory, &new_path)?.0)?;
        Ok(0)
    })
}

/// unlink(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_unlink(process: Option<&Process>, path: Text) -> c_int {
    kvfs_unlinkat(process, CWD, path, 0)
}

/// unlinkat(2): `flags` is 0 or `AT_REMOVEDIR`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_unlinkat(
    process: Option<&Process>,
    directory: c_int,
    path: Text,
    flags: c_int,
) -> c_int {
    call(|| {
        let (posix, place) = (of(process)?, CheckedPlace::at(directory, &path)?.0);
        match flags {
            0 => posix.unlink(place)?,
            libc::AT_REMOVEDIR => posix.rmdir(place)?,
            _ => return refuse(libc::EINVAL, "flags that mean nothing here"),
        }
        Ok(0)
    })
}

/// remove(3): a name, or an empty directory.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_remove(process: Option<&Process>, path: Text) -> c_int {
    call(|| {
        of(process)?.remove(CheckedPlace::path(&path)?.0)?;
        Ok(0)
    })
}

/// Removes a name, and a directory with all that is below: all of it or nothing, and for user 0 in constant
/// time; its space comes back in the background. Outside of transactions it is one of its own, durable when
/// this returns.
///
/// EACCES, EPERM: something in it may not be removed, and `kvfs_last_error` says what. ECANCELED: a
/// transaction is in the way. Others as for rmdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_remove_tree(process: Option<&Process>, path: Text) -> c_int {
    call(|| {
        of(process)?.remove_tree(CheckedPlace::path(&path)?.0)?;
        Ok(0)
    })
}

/// Makes a name, and a directory with all that is below, a second time where nothing is yet: all of it or
/// nothing. Content is not copied, but shared until it is overwritten. Outside of transactions it is one of
/// its own, durable when this returns.
///
/// EEXIST. EINVAL: the root, or the new one lies in the old one. EACCES, EPERM: something in it may not be
/// read, or is a device, and `kvfs_last_error` says what. ECANCELED: a transaction is in the way. Others as
/// for mkdir(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_clone_tree(process: Option<&Process>, old_path: Text, new_path: Text) -> c_int {
    call(|| {
        let old = CheckedPlace::path(&old_path)?.0;
        of(process)?.clone_tree(old, CheckedPlace::path(&new_path)?.0)?;
        Ok(0)
    })
}

/// rename(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_rename(process: Option<&Process>, old_path: Text, new_path: Text) -> c_int {
    kvfs_renameat2(process, CWD, old_path, CWD, new_path, 0)
}

/// renameat(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_renameat(
    process: Option<&Process>,
    old_directory: c_int,
    old_path: Text,
    new_directory: c_int,
    new_path: Text,
) -> c_int {
    kvfs_renameat2(process, old_directory, old_path, new_directory, new_path, 0)
}

/// renameat2(2): `flags` is 0, `RENAME_NOREPLACE`, `RENAME_EXCHANGE`, or `RENAME_WHITEOUT` with
/// `RENAME_NOREPLACE` or without.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_renameat2(
    process: Option<&Process>,
    old_directory: c_int,
    old_path: Text,
    new_directory: c_int,
    new_path: Text,
    flags: c_uint,
) -> c_int {
    call(|| {
        let mode = linux::rename_mode(flags)?;
        let old = CheckedPlace::at(old_directory, &old_path)?.0;
        of(process)?.rename(old, CheckedPlace::at(new_directory, &new_path)?.0, mode)?;
        Ok(0)
    })
}
