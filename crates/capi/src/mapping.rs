//! Files in memory.
//!
//! Thread safety: a mapping is one thread's at a time.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use kvfs_posix::Fd;
use libc::{off_t, size_t};

use crate::failure::{call, end, refuse};
use crate::foreign::missing;
use crate::process::{Process, of};

/// A piece of a file in memory.
pub struct Mapping {
    inner: kvfs_client::Mapping,
}

/// Copies `length` bytes of an open file from `offset` on into memory, with zeros behind its end: mmap(2) for
/// files whose blocks no memory shows. `fd` has to stay open until the last `kvfs_mapping_sync`. Free it with
/// `kvfs_unmap`.
///
/// EBADF: not open for reading. EINVAL: no length, or an offset below 0. ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_map(
    process: Option<&Process>,
    fd: c_int,
    offset: off_t,
    length: size_t,
) -> Option<Box<Mapping>> {
    call(|| {
        let Ok(offset) = u64::try_from(offset) else { return refuse(libc::EINVAL, "an offset below 0") };
        let inner = kvfs_client::Mapping::new(of(process)?, Fd(fd), offset, length)?;
        Ok(Some(Box::new(Mapping { inner })))
    })
}

/// The memory, `length` bytes that may be read and written until `kvfs_unmap`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_mapping_data(mapping: Option<&mut Mapping>) -> *mut c_void {
    mapping.map_or(null_mut(), |mapping| mapping.inner.bytes_mut().as_mut_ptr().cast())
}

/// Writes the bytes that were changed to the file, no further than it goes; what others have written between
/// and behind them stays. Others that map or read it see them then; `kvfs_fsync` makes them durable.
///
/// EBADF: not open for writing. ENODEV: open for appending.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_mapping_sync(process: Option<&Process>, mapping: Option<&mut Mapping>) -> c_int {
    call(|| {
        mapping.ok_or_else(missing)?.inner.sync(of(process)?)?;
        Ok(0)
    })
}

/// Frees a mapping. What was changed since the last `kvfs_mapping_sync` is lost. NULL: nothing happens.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_unmap(mapping: Option<Box<Mapping>>) {
    end(mapping);
}
