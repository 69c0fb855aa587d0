//! Extended attributes.
//!
//! Thread safety: see the crate.

use std::ffi::c_int;

use kvfs_posix::{Fd, Place, linux};
use libc::{size_t, ssize_t};

use crate::failure::{Result, call};
use crate::foreign::{Buffer, Data, Text, TextBuffer};
use crate::places::CheckedPlace;
use crate::process::{Process, of};

fn get(
    process: Option<&Process>,
    place: Place<'_>,
    name: &Text,
    mut buffer: Buffer,
    size: size_t,
) -> Result<ssize_t> {
    let value = of(process)?.getxattr(place, name.bytes()?)?;
    buffer.fill_whole(size, &value)
}

/// getxattr(2): size 0 asks for the length. ERANGE: the buffer is too small.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_getxattr(
    process: Option<&Process>,
    path: Text,
    name: Text,
    buffer: Buffer,
    size: size_t,
) -> ssize_t {
    call(|| get(process, CheckedPlace::path(&path)?.0, &name, buffer, size))
}

/// lgetxattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_lgetxattr(
    process: Option<&Process>,
    path: Text,
    name: Text,
    buffer: Buffer,
    size: size_t,
) -> ssize_t {
    call(|| get(process, CheckedPlace::link(&path)?.0, &name, buffer, size))
}

/// fgetxattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fgetxattr(
    process: Option<&Process>,
    fd: c_int,
    name: Text,
    buffer: Buffer,
    size: size_t,
) -> ssize_t {
    call(|| get(process, Fd(fd).into(), &name, buffer, size))
}

fn set(
    process: Option<&Process>,
    place: Place<'_>,
    name: &Text,
    (value, size): (Data, size_t),
    flags: c_int,
) -> Result<c_int> {
    let mode = linux::xattr_mode(flags as u32)?;
    of(process)?.setxattr(place, name.bytes()?, value.bytes(size)?, mode)?;
    Ok(0)
}

/// setxattr(2): `flags` is 0, `XATTR_CREATE` or `XATTR_REPLACE`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_setxattr(
    process: Option<&Process>,
    path: Text,
    name: Text,
    value: Data,
    size: size_t,
    flags: c_int,
) -> c_int {
    call(|| set(process, CheckedPlace::path(&path)?.0, &name, (value, size), flags))
}

/// lsetxattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_lsetxattr(
    process: Option<&Process>,
    path: Text,
    name: Text,
    value: Data,
    size: size_t,
    flags: c_int,
) -> c_int {
    call(|| set(process, CheckedPlace::link(&path)?.0, &name, (value, size), flags))
}

/// fsetxattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fsetxattr(
    process: Option<&Process>,
    fd: c_int,
    name: Text,
    value: Data,
    size: size_t,
    flags: c_int,
) -> c_int {
    call(|| set(process, Fd(fd).into(), &name, (value, size), flags))
}

fn list(
    process: Option<&Process>,
    place: Place<'_>,
    mut buffer: TextBuffer,
    size: size_t,
) -> Result<ssize_t> {
    buffer.fill_names(size, of(process)?.listxattr(place)?)
}

/// listxattr(2): names, each with a zero byte behind it; size 0 asks for the length.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_listxattr(
    process: Option<&Process>,
    path: Text,
    buffer: TextBuffer,
    size: size_t,
) -> ssize_t {
    call(|| list(process, CheckedPlace::path(&path)?.0, buffer, size))
}

/// llistxattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_llistxattr(
    process: Option<&Process>,
    path: Text,
    buffer: TextBuffer,
    size: size_t,
) -> ssize_t {
    call(|| list(process, CheckedPlace::link(&path)?.0, buffer, size))
}

/// flistxattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_flistxattr(
    process: Option<&Process>,
    fd: c_int,
    buffer: TextBuffer,
    size: size_t,
) -> ssize_t {
    call(|| list(process, Fd(fd).into(), buffer, size))
}

/// removexattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_removexattr(process: Option<&Process>, path: Text, name: Text) -> c_int {
    call(|| {
        of(process)?.removexattr(CheckedPlace::path(&path)?.0, name.bytes()?)?;
        Ok(0)
    })
}

/// lremovexattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_lremovexattr(process: Option<&Process>, path: Text, name: Text) -> c_int {
    call(|| {
        of(process)?.removexattr(CheckedPlace::link(&path)?.0, name.bytes()?)?;
        Ok(0)
    })
}

/// fremovexattr(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fremovexattr(process: Option<&Process>, fd: c_int, name: Text) -> c_int {
    call(|| {
        of(process)?.removexattr(Fd(fd), name.bytes()?)?;
        Ok(0)
    })
}
