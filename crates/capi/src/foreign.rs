//! Memory that C hands over or gets back: the only place that reaches it.
//!
//! Purpose: types for the parameters of exported functions that are laid out as the pointers of C are. Rust
//! code can't make them, so a value of them always comes from a caller in C, which has promised what `kvfs.h`
//! says: a pointer is null, or leads to as much memory as the function says, which no other thread changes
//! during the call.
//!
//! Thread safety: plain values. Invariant: a null pointer is an error (EFAULT), never dereferenced; no
//! reference outlives its call.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use libc::{iovec, size_t};

use crate::failure::{Failure, Result, refuse};

/// More changes than any memory holds.
const CHANGES_MAX: size_t = isize::MAX as size_t / size_of::<Change>();

/// Most buffers of one call, as on Linux.
const IOV_MAX: c_int = 1024;

/// A string that ends in a zero byte.
#[repr(transparent)]
#[derive(Debug)]
pub struct Text(*const c_char);

impl Text {
    /// The string without its end.
    pub(crate) fn bytes(&self) -> Result<&[u8]> {
        if self.0.is_null() {
            return no_memory();
        }
        // SAFETY: not null, so the caller in C has given a string, which stays during the call; `self` does
        // not outlive it.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The string, if there is one.
    pub(crate) fn optional(&self) -> Result<Option<&[u8]>> {
        if self.0.is_null() { Ok(None) } else { self.bytes().map(Some) }
    }

    /// The string, which has to be UTF-8.
    pub(crate) fn name(&self) -> Result<&str> {
        std::str::from_utf8(self.bytes()?).or_else(|_| refuse(libc::EINVAL, "a name that is not UTF-8"))
    }
}

/// Bytes to be read.
#[repr(transparent)]
#[derive(Debug)]
pub struct Data(*const c_void);

impl Data {
    /// The `len` bytes. Null is as good as any pointer where there are none.
    pub(crate) fn bytes(&self, len: size_t) -> Result<&[u8]> {
        if len == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() || len > isize::MAX as usize {
            return no_memory();
        }
        // SAFETY: not null, so the caller in C has given `len` bytes that stay during the call; `self` does
        // not outlive it.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), len) })
    }

    /// The `len` bytes; `None` for null.
    pub(crate) fn optional(&self, len: size_t) -> Result<Option<&[u8]>> {
        if self.0.is_null() { Ok(None) } else { self.bytes(len).map(Some) }
    }
}

/// Group ids.
#[repr(transparent)]
#[derive(Debug)]
pub struct Groups(*const libc::gid_t);

impl Groups {
    /// The `len` ids.
    pub(crate) fn ids(&self, len: size_t) -> Result<&[libc::gid_t]> {
        if len == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() || len > (1 << 16) {
            return no_memory();
        }
        // SAFETY: not null, so the caller in C has given `len` ids that stay during the call; `self` does not
        // outlive it.
        Ok(unsafe { std::slice::from_raw_parts(self.0, len) })
    }
}

/// Room for bytes.
#[repr(transparent)]
#[derive(Debug)]
pub struct Buffer(*mut c_void);

impl Buffer {
    /// The `len` bytes. Null is as good as any pointer where there are none.
    pub(crate) fn bytes(&mut self, len: size_t) -> Result<&mut [u8]> {
        if len == 0 {
            return Ok(&mut []);
        }
        if self.0.is_null() || len > isize::MAX as usize {
            return no_memory();
        }
        // SAFETY: not null, so the caller in C has given `len` bytes that only this call uses meanwhile;
        // `self` does not outlive it.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), len) })
    }

    /// As `readlink` does it: as much of `content` as fits.
    pub(crate) fn fill(&mut self, len: size_t, content: &[u8]) -> Result<isize> {
        let len = len.min(content.len());
        self.bytes(len)?.copy_from_slice(&content[..len]);
        Ok(len as isize)
    }

    /// As `getxattr` does it: all of `content`; nothing, if there is no room at all, so that the caller
    /// learns how much there is.
    pub(crate) fn fill_whole(&mut self, len: size_t, content: &[u8]) -> Result<isize> {
        if len == 0 {
            return Ok(content.len() as isize);
        }
        if content.len() > len {
            return refuse(libc::ERANGE, "the buffer is too small");
        }
        self.fill(len, content)
    }
}

/// Room for text.
#[repr(transparent)]
#[derive(Debug)]
pub struct TextBuffer(Buffer);

impl TextBuffer {
    /// The room.
    pub(crate) fn room(&mut self) -> &mut Buffer {
        &mut self.0
    }

    /// As `listxattr` does it: names, each with a zero byte behind it.
    pub(crate) fn fill_names<N: Into<Vec<u8>>>(
        &mut self,
        len: size_t,
        names: impl IntoIterator<Item = N>,
    ) -> Result<isize> {
        let list: Vec<u8> = names.into_iter().flat_map(|name| name.into().into_iter().chain([0])).collect();
        self.0.fill_whole(len, &list)
    }

    /// `text` and a zero byte behind it. Returns where it is.
    pub(crate) fn fill(&mut self, len: size_t, text: &[u8]) -> Result<*mut c_char> {
        if len == 0 {
            return refuse(libc::EINVAL, "a buffer without room");
        }
        if text.len() >= len {
            return refuse(libc::ERANGE, "the buffer is too small");
        }
        let room = self.0.bytes(len)?;
        room[..text.len()].copy_from_slice(text);
        room[text.len()] = 0;
        Ok(self.0.0.cast())
    }
}

/// Buffers, one after the other.
#[repr(transparent)]
#[derive(Debug)]
pub struct Vectors(*const iovec);

impl Vectors {
    fn all(&self, count: c_int) -> Result<&[iovec]> {
        if !(0..=IOV_MAX).contains(&count) {
            return refuse(libc::EINVAL, "no number of buffers that one call takes");
        }
        if count == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() {
            return no_memory();
        }
        // SAFETY: not null, so the caller in C has given `count` of them that stay during the call; `self`
        // does not outlive it.
        let all: &[iovec] = unsafe { std::slice::from_raw_parts(self.0, count as usize) };
        let total = all.iter().try_fold(0_usize, |sum, one| sum.checked_add(one.iov_len));
        if total.is_none_or(|total| total > isize::MAX as usize) {
            return refuse(libc::EINVAL, "more bytes than one call takes");
        }
        if all.iter().any(|one| one.iov_base.is_null() && one.iov_len > 0) {
            return no_memory();
        }
        Ok(all)
    }

    /// To be written.
    pub(crate) fn data(&self, count: c_int) -> Result<Vec<IoSlice<'_>>> {
        let slice = |one: &iovec| {
            if one.iov_len == 0 {
                return IoSlice::new(&[]);
            }
            // SAFETY: not null, see `all`, so the caller in C has given so many bytes that stay during the
            // call.
            IoSlice::new(unsafe { std::slice::from_raw_parts(one.iov_base.cast(), one.iov_len) })
        };
        Ok(self.all(count)?.iter().map(slice).collect())
    }

    /// To be filled.
    pub(crate) fn room(&mut self, count: c_int) -> Result<Vec<IoSliceMut<'_>>> {
        let slice = |one: &iovec| {
            if one.iov_len == 0 {
                return IoSliceMut::new(&mut []);
            }
            // SAFETY: not null, see `all`, so the caller in C has given so many bytes that only this call
            // uses meanwhile.
            IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(one.iov_base.cast(), one.iov_len) })
        };
        Ok(self.all(count)?.iter().map(slice).collect())
    }
}

/// A change of a key, for `kvfs_kv_write`.
#[repr(C)]
#[derive(Debug)]
pub struct Change {
    /// Which key.
    pub key: *const c_void,
    /// Length of the key.
    pub key_size: size_t,
    /// What is put there; NULL: the key is removed.
    pub value: *const c_void,
    /// Length of the value.
    pub value_size: size_t,
}

/// Changes of keys.
#[repr(transparent)]
#[derive(Debug)]
pub struct Changes(*const Change);

/// One of [`Changes`].
#[derive(Debug)]
pub(crate) struct CheckedChange<'c> {
    key: (Data, size_t),
    value: (Data, size_t),
    _changes: PhantomData<&'c Changes>,
}

impl CheckedChange<'_> {
    /// Key, and value to be put; `None`: the key is removed.
    pub(crate) fn parts(&self) -> Result<(&[u8], Option<&[u8]>)> {
        Ok((self.key.0.bytes(self.key.1)?, self.value.0.optional(self.value.1)?))
    }
}

impl Changes {
    /// The `count` changes.
    pub(crate) fn all(&self, count: size_t) -> Result<Vec<CheckedChange<'_>>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() || count > CHANGES_MAX {
            return no_memory();
        }
        // SAFETY: not null, so the caller in C has given `count` of them that stay during the call; `self`
        // does not outlive it.
        let all = unsafe { std::slice::from_raw_parts(self.0, count) };
        let checked = |change: &Change| CheckedChange {
            key: (Data(change.key), change.key_size),
            value: (Data(change.value), change.value_size),
            _changes: PhantomData,
        };
        Ok(all.iter().map(checked).collect())
    }
}

/// Two points in time, or null: now.
#[repr(transparent)]
#[derive(Debug)]
pub struct Times(*const libc::timespec);

impl Times {
    /// Of the last access, and of the last change.
    pub(crate) fn both(&self) -> Option<[libc::timespec; 2]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, so the caller in C has given two of them that stay during the call.
        Some(unsafe { *self.0.cast() })
    }
}

/// Memory of `malloc` with `content`, and a zero byte behind it; the caller gives it back by `kvfs_free`.
pub(crate) fn allocated(content: &[u8]) -> Result<*mut c_void> {
    let len = content.len() + 1;
    // SAFETY: malloc asks for nothing.
    let memory = unsafe { libc::malloc(len) };
    if memory.is_null() {
        return refuse(libc::ENOMEM, "no memory");
    }
    // SAFETY: so much was allocated, and nothing else knows it yet.
    let room = unsafe { std::slice::from_raw_parts_mut(memory.cast::<MaybeUninit<u8>>(), len) };
    for (byte, value) in room.iter_mut().zip(content.iter().chain(&[0])) {
        byte.write(*value);
    }
    Ok(memory)
}

/// Gives back what a function of this library has allocated for the caller. NULL: nothing happens.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_free(memory: Owned) {
    // SAFETY: null, or from `allocated`, as the caller in C has promised.
    unsafe { libc::free(memory.0) }
}

/// Memory that [`allocated`] has given.
#[repr(transparent)]
#[derive(Debug)]
pub struct Owned(*mut c_void);

/// Structures of the system for which all bits zero are a value.
///
/// # Safety
/// They are.
pub(crate) unsafe trait Plain {}

// SAFETY: integers alone.
unsafe impl Plain for libc::stat {}
// SAFETY: integers alone.
unsafe impl Plain for libc::statx {}
// SAFETY: integers alone.
unsafe impl Plain for libc::statvfs {}
// SAFETY: integers and an array of them.
unsafe impl Plain for libc::dirent {}

/// All bits zero.
pub(crate) fn blank<T: Plain>() -> T {
    // SAFETY: `Plain` says that they are a value.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// The `errno` of this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the place is this thread's.
    unsafe { *libc::__errno_location() }
}

/// Sets the `errno` of this thread.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the place is this thread's.
    unsafe { *libc::__errno_location() = errno }
}

/// Where a result is to be put.
pub(crate) fn put<T>(place: Option<&mut MaybeUninit<T>>, value: T) -> Result<()> {
    place.ok_or_else(missing)?.write(value);
    Ok(())
}

/// A null pointer where none may be.
pub(crate) fn missing() -> Failure {
    Failure::new(libc::EFAULT, "a null pointer")
}

fn no_memory<T>() -> Result<T> {
    Err(missing())
}
