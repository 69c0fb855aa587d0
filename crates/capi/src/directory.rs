//! Directory streams.
//!
//! Thread safety: one thread at a time uses a stream. Invariant: a stream keeps its process.

use std::ffi::{c_int, c_long};
use std::sync::Arc;

use kvfs_client::Directory as Stream;
use kvfs_posix::{DirectoryEntry, Fd};
use libc::dirent;

use crate::failure::{Failure, Result, call, end, refuse};
use crate::foreign::{Text, blank, missing};
use crate::places::CheckedPlace;
use crate::process::{Acting, Process};

/// A directory that is being listed.
// The order of the fields is that in which they go.
pub struct Directory {
    /// Borrows from what `_acting` keeps.
    stream: Stream<'static>,
    _acting: Arc<Acting>,
    /// What was read last.
    entry: dirent,
}

fn streamed(
    acting: &Arc<Acting>,
    open: impl for<'p> FnOnce(&'p kvfs_client::Process) -> Result<Stream<'p>>,
) -> Result<Box<Directory>> {
    let acting = Arc::clone(acting);
    let stream = open(&acting.posix)?;
    // SAFETY: the process lies in the `Arc`, does not move, and lives as long as `_acting`, which goes after
    // the stream.
    let stream = unsafe { std::mem::transmute::<Stream<'_>, Stream<'static>>(stream) };
    Ok(Box::new(Directory { stream, _acting: acting, entry: blank() }))
}

fn acting(process: Option<&Process>) -> Result<&Arc<Acting>> {
    Ok(&process.ok_or_else(missing)?.acting)
}

/// opendir(3). Close the stream with `kvfs_closedir`.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_opendir(process: Option<&Process>, path: Text) -> Option<Box<Directory>> {
    call(|| {
        let place = CheckedPlace::path(&path)?.0;
        streamed(acting(process)?, |posix| posix.opendir(place).map_err(Failure::from)).map(Some)
    })
}

/// fdopendir(3): the descriptor is the stream's from then on.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_fdopendir(process: Option<&Process>, fd: c_int) -> Option<Box<Directory>> {
    call(|| streamed(acting(process)?, |posix| posix.fdopendir(Fd(fd)).map_err(Failure::from)).map(Some))
}

/// readdir(3): the next entry, valid until the next call on the stream. At the end NULL, and `errno` is not
/// changed.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_readdir(directory: Option<&mut Directory>) -> *const dirent {
    call(|| {
        let directory = directory.ok_or_else(missing)?;
        match directory.stream.read()? {
            None => Ok(std::ptr::null()),
            Some(entry) => {
                write_entry(&mut directory.entry, &entry)?;
                Ok(&raw const directory.entry)
            }
        }
    })
}

fn write_entry(place: &mut dirent, entry: &DirectoryEntry) -> Result<()> {
    if entry.name.len() >= place.d_name.len() {
        return refuse(libc::EOVERFLOW, "a name that is too long");
    }
    place.d_ino = entry.inode;
    place.d_off = entry.offset as i64;
    place.d_reclen = size_of::<dirent>() as u16;
    // Numbered as in <dirent.h>.
    place.d_type = entry.kind as u8;
    for (byte, value) in place.d_name.iter_mut().zip(entry.name.iter().chain(&[0])) {
        *byte = *value as _;
    }
    Ok(())
}

/// telldir(3).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_telldir(directory: Option<&mut Directory>) -> c_long {
    call(|| Ok(directory.ok_or_else(missing)?.stream.tell() as c_long))
}

/// seekdir(3): to where `kvfs_telldir` was, or the `d_off` of an entry says.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_seekdir(directory: Option<&mut Directory>, offset: c_long) {
    let _: c_int = call(|| {
        directory.ok_or_else(missing)?.stream.seek(offset as u64);
        Ok(0)
    });
}

/// rewinddir(3).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_rewinddir(directory: Option<&mut Directory>) {
    let _: c_int = call(|| {
        directory.ok_or_else(missing)?.stream.rewind();
        Ok(0)
    });
}

/// dirfd(3): a descriptor of the process that has opened the stream.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_dirfd(directory: Option<&mut Directory>) -> c_int {
    call(|| Ok(directory.ok_or_else(missing)?.stream.fd().0))
}

/// closedir(3).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_closedir(directory: Option<Box<Directory>>) -> c_int {
    call(|| {
        end(directory.ok_or_else(missing)?);
        Ok(0)
    })
}
