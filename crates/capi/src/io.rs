//! Reading and writing.
//!
//! Thread safety: see the crate.

use std::ffi::{c_int, c_uint};

use kvfs_posix::{Fd, linux};
use libc::{off_t, size_t, ssize_t};

use crate::failure::{Result, call, refuse};
use crate::foreign::{Buffer, Data, Vectors};
use crate::process::{Process, of, with};

fn checked(offset: off_t) -> Result<u64> {
    u64::try_from(offset).or_else(|_| refuse(libc::EINVAL, "an offset before the beginning"))
}

/// read(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_read(
    process: Option<&Process>,
    fd: c_int,
    mut buffer: Buffer,
    size: size_t,
) -> ssize_t {
    call(|| Ok(of(process)?.read(Fd(fd), buffer.bytes(size)?)? as ssize_t))
}

/// pread(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_pread(
    process: Option<&Process>,
    fd: c_int,
    mut buffer: Buffer,
    size: size_t,
    offset: off_t,
) -> ssize_t {
    call(|| Ok(of(process)?.pread(Fd(fd), buffer.bytes(size)?, checked(offset)?)? as ssize_t))
}

/// write(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_write(process: Option<&Process>, fd: c_int, data: Data, size: size_t) -> ssize_t {
    call(|| Ok(of(process)?.write(Fd(fd), data.bytes(size)?)? as ssize_t))
}

/// pwrite(2). To the end of the file, if it is open with `O_APPEND`, as on Linux.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_pwrite(
    process: Option<&Process>,
    fd: c_int,
    data: Data,
    size: size_t,
    offset: off_t,
) -> ssize_t {
    call(|| Ok(of(process)?.pwrite(Fd(fd), data.bytes(size)?, checked(offset)?)? as ssize_t))
}

/// readv(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_readv(
    process: Option<&Process>,
    fd: c_int,
    mut vectors: Vectors,
    count: c_int,
) -> ssize_t {
    call(|| Ok(of(process)?.readv(Fd(fd), &mut vectors.room(count)?)? as ssize_t))
}

/// preadv(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_preadv(
    process: Option<&Process>,
    fd: c_int,
    mut vectors: Vectors,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    call(|| Ok(of(process)?.preadv(Fd(fd), &mut vectors.room(count)?, checked(offset)?)? as ssize_t))
}

/// writev(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_writev(
    process: Option<&Process>,
    fd: c_int,
    vectors: Vectors,
    count: c_int,
) -> ssize_t {
    call(|| Ok(of(process)?.writev(Fd(fd), &vectors.data(count)?)? as ssize_t))
}

/// pwritev(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_pwritev(
    process: Option<&Process>,
    fd: c_int,
    vectors: Vectors,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    call(|| Ok(of(process)?.pwritev(Fd(fd), &vectors.data(count)?, checked(offset)?)? as ssize_t))
}

/// preadv2(2). Offset -1: that of the open file. `flags`: 0 or `RWF_HIPRI`, which changes nothing;
/// EOPNOTSUPP: others.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_preadv2(
    process: Option<&Process>,
    fd: c_int,
    mut vectors: Vectors,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    call(|| {
        if flags & !libc::RWF_HIPRI != 0 {
            return refuse(libc::EOPNOTSUPP, "flags that are not supported");
        }
        let (posix, mut room) = (of(process)?, vectors.room(count)?);
        let len = match offset {
            -1 => posix.readv(Fd(fd), &mut room)?,
            _ => posix.preadv(Fd(fd), &mut room, checked(offset)?)?,
        };
        Ok(len as ssize_t)
    })
}

/// pwritev2(2). Offset -1: that of the open file. `flags`: of `RWF_DSYNC`, `RWF_SYNC`, and `RWF_HIPRI`, which
/// changes nothing; EOPNOTSUPP: others.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_pwritev2(
    process: Option<&Process>,
    fd: c_int,
    vectors: Vectors,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    call(|| {
        let syncs = libc::RWF_DSYNC | libc::RWF_SYNC;
        if flags & !(libc::RWF_HIPRI | syncs) != 0 {
            return refuse(libc::EOPNOTSUPP, "flags that are not supported");
        }
        let (posix, data) = (of(process)?, vectors.data(count)?);
        let len = match offset {
            -1 => posix.writev(Fd(fd), &data)?,
            _ => posix.pwritev(Fd(fd), &data, checked(offset)?)?,
        };
        if flags & syncs != 0 {
            posix.fsync(Fd(fd))?;
        }
        Ok(len as ssize_t)
    })
}

/// lseek(2), with `SEEK_SET`, `SEEK_CUR`, `SEEK_END`, `SEEK_DATA`, `SEEK_HOLE`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_lseek(process: Option<&Process>, fd: c_int, offset: off_t, whence: c_int) -> off_t {
    call(|| {
        let whence = linux::whence(whence as u32)?;
        Ok(of(process)?.lseek(Fd(fd), offset, whence)? as off_t)
    })
}

/// fsync(2): the file survives a power cut when this returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fsync(process: Option<&Process>, fd: c_int) -> c_int {
    with(process, |posix| posix.fsync(Fd(fd)))
}

/// fdatasync(2); does what `kvfs_fsync` does.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fdatasync(process: Option<&Process>, fd: c_int) -> c_int {
    kvfs_fsync(process, fd)
}

/// sync(2), of the store alone, with a result: 0, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_sync(process: Option<&Process>) -> c_int {
    with(process, kvfs_client::Process::sync)
}

/// truncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_truncate(
    process: Option<&Process>,
    path: crate::foreign::Text,
    length: off_t,
) -> c_int {
    call(|| {
        of(process)?.truncate(crate::places::CheckedPlace::path(&path)?.0, checked(length)?)?;
        Ok(0)
    })
}

/// ftruncate(2).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_ftruncate(process: Option<&Process>, fd: c_int, length: off_t) -> c_int {
    call(|| {
        of(process)?.truncate(Fd(fd), checked(length)?)?;
        Ok(0)
    })
}

/// fallocate(2): `mode` is 0, `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`,
/// `FALLOC_FL_ZERO_RANGE` with or without `FALLOC_FL_KEEP_SIZE`; EOPNOTSUPP: others.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fallocate(
    process: Option<&Process>,
    fd: c_int,
    mode: c_int,
    offset: off_t,
    length: off_t,
) -> c_int {
    call(|| {
        of(process)?.fallocate(
            Fd(fd),
            linux::fallocate_mode(mode as u32)?,
            checked(offset)?,
            checked(length)?,
        )?;
        Ok(0)
    })
}

/// `copy_file_range(2)`: offsets may be NULL; `flags` is 0.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_copy_file_range(
    process: Option<&Process>,
    from: c_int,
    from_offset: Option<&mut off_t>,
    to: c_int,
    to_offset: Option<&mut off_t>,
    length: size_t,
    flags: c_uint,
) -> ssize_t {
    call(|| {
        if flags != 0 {
            return refuse(libc::EINVAL, "flags that mean nothing here");
        }
        let read_at = from_offset.as_deref().map(|offset| checked(*offset)).transpose()?;
        let write_at = to_offset.as_deref().map(|offset| checked(*offset)).transpose()?;
        let copied = of(process)?.copy_file_range(Fd(from), read_at, Fd(to), write_at, length as u64)?;
        for offset in [from_offset, to_offset].into_iter().flatten() {
            *offset += copied as off_t;
        }
        Ok(copied as ssize_t)
    })
}
