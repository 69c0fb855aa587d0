//! Keys beside files: in the same order, and in the same transactions.
//!
//! Thread safety: see the crate; one thread at a time uses a cursor.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_client::{KeyCursor, Keys};
use kvfs_kv::KeyChange;
use kvfs_store::KeyRange;
use libc::{mode_t, size_t, ssize_t};

use crate::failure::{Failure, Result, call, end, refuse};
use crate::foreign::{Changes, Data, Text, TextBuffer, allocated, missing, put};
use crate::process::{Acting, Process};

fn of(process: Option<&Process>) -> Result<Keys<'_>> {
    Ok(crate::process::of(process)?.keys())
}

fn no_key<T>() -> Result<T> {
    refuse(libc::ENOENT, "there is no such key")
}

fn range(start: Option<&[u8]>, end: Option<&[u8]>) -> KeyRange {
    let bytes = Bytes::copy_from_slice;
    KeyRange { start: start.map(bytes).unwrap_or_default(), end: end.map(bytes) }
}

/// The value under a key, in memory that the caller frees with `kvfs_free`, a zero byte behind it; its length
/// is put to `value_size`, which may be NULL. ENOENT: there is no such key, or no such keyspace. EACCES: the
/// keyspace is another user's.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_kv_get(
    process: Option<&Process>,
    keyspace: Text,
    key: Data,
    key_size: size_t,
    value_size: Option<&mut MaybeUninit<size_t>>,
) -> *mut c_void {
    call(|| {
        let value = of(process)?.get(keyspace.name()?, key.bytes(key_size)?)?;
        let Some(value) = value else { return no_key() };
        let memory = allocated(&value)?;
        if value_size.is_some() {
            put(value_size, value.len())?;
        }
        Ok(memory)
    })
}

/// Puts a value under a key; the keyspace is made if there is none. It is durable after a sync, or, in a
/// transaction, with that.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_kv_put(
    process: Option<&Process>,
    keyspace: Text,
    key: Data,
    key_size: size_t,
    value: Data,
    value_size: size_t,
) -> c_int {
    call(|| {
        let key = Bytes::copy_from_slice(key.bytes(key_size)?);
        let value = Bytes::copy_from_slice(value.bytes(value_size)?);
        of(process)?.write(keyspace.name()?, vec![KeyChange::Put { key, value }])?;
        Ok(0)
    })
}

/// Makes `count` changes at once, all or none, as one write; the keyspace is made if there is none. EINVAL:
/// of one of them the key is empty or too long, or the value too long. E2BIG: there are more than 10,000, or
/// a daemon has the store, and all keys and values are more than 1 MiB.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_kv_write(
    process: Option<&Process>,
    keyspace: Text,
    changes: Changes,
    count: size_t,
) -> c_int {
    call(|| {
        let (keys, changes) = (of(process)?, changes.all(count)?);
        let mut staged = Vec::with_capacity(changes.len());
        for change in changes {
            let (key, value) = change.parts()?;
            let key = Bytes::copy_from_slice(key);
            staged.push(match value.map(Bytes::copy_from_slice) {
                Some(value) => KeyChange::Put { key, value },
                None => KeyChange::Delete { key },
            });
        }
        keys.write(keyspace.name()?, staged)?;
        Ok(0)
    })
}

/// Removes a key. Returns 1, or 0 if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_kv_delete(
    process: Option<&Process>,
    keyspace: Text,
    key: Data,
    key_size: size_t,
) -> c_int {
    call(|| Ok(of(process)?.delete(keyspace.name()?, key.bytes(key_size)?)?.into()))
}

/// Removes the keys from `start` (NULL: the first) up to, but without, `end` (NULL: all behind).
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_kv_delete_range(
    process: Option<&Process>,
    keyspace: Text,
    start: Data,
    start_size: size_t,
    end: Data,
    end_size: size_t,
) -> c_int {
    call(|| {
        let range = range(start.optional(start_size)?, end.optional(end_size)?);
        of(process)?.delete_range(keyspace.name()?, range)?;
        Ok(0)
    })
}

/// A walk over keys, in their order, as they are at its beginning.
// The order of the fields is that in which they go.
pub struct Cursor {
    inner: KeyCursor,
    acting: Arc<Acting>,
}

/// A walk over the keys from `start` (NULL: the first) up to, but without, `end` (NULL: the last one comes,
/// too). It stands before the first one. Free it with `kvfs_cursor_free`.
///
/// Of a store that a daemon has, outside of transactions, the walk reads some 64 KiB at a time: what others
/// change behind that is seen.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_kv_scan(
    process: Option<&Process>,
    keyspace: Text,
    start: Data,
    start_size: size_t,
    end: Data,
    end_size: size_t,
) -> Option<Box<Cursor>> {
    call(|| {
        let range = range(start.optional(start_size)?, end.optional(end_size)?);
        let inner = of(process)?.cursor(keyspace.name()?, range)?;
        let acting = Arc::clone(&process.ok_or_else(missing)?.acting);
        Ok(Some(Box::new(Cursor { inner, acting })))
    })
}

fn moved(
    cursor: Option<&mut Cursor>,
    step: impl FnOnce(&mut KeyCursor, &kvfs_client::Process) -> kvfs_posix::Result<()>,
) -> c_int {
    call(|| {
        let Cursor { inner, acting } = cursor.ok_or_else(missing)?;
        step(inner, &acting.posix)?;
        Ok(inner.entry().is_some().into())
    })
}

/// Goes to the next key. Returns 1, or 0 behind the last one.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_cursor_next(cursor: Option<&mut Cursor>) -> c_int {
    moved(cursor, KeyCursor::next)
}

/// Goes to the key before; from the beginning of the walk, to the last one. Returns 1, or 0 before the first
/// one.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_cursor_prev(cursor: Option<&mut Cursor>) -> c_int {
    moved(cursor, KeyCursor::prev)
}

fn part(
    cursor: Option<&mut Cursor>,
    size: Option<&mut MaybeUninit<size_t>>,
    choose: impl for<'e> FnOnce((&'e [u8], &'e Bytes)) -> &'e [u8],
) -> *const c_void {
    call(|| {
        let entry = cursor.ok_or_else(missing)?.inner.entry();
        let bytes = entry.map(choose).ok_or_else(|| Failure::new(libc::EINVAL, "the cursor is at no key"))?;
        put(size, bytes.len())?;
        Ok(bytes.as_ptr().cast())
    })
}

/// The key at which the walk is, until it goes on; its length is put to `size`. EINVAL: it is at none.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_cursor_key(
    cursor: Option<&mut Cursor>,
    size: Option<&mut MaybeUninit<size_t>>,
) -> *const c_void {
    part(cursor, size, |(key, _)| key)
}

/// The value at which the walk is, until it goes on; its length is put to `size`. EINVAL: it is at none.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_cursor_value(
    cursor: Option<&mut Cursor>,
    size: Option<&mut MaybeUninit<size_t>>,
) -> *const c_void {
    part(cursor, size, |(_, value)| value)
}

/// Ends a walk. NULL: nothing happens.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_cursor_free(cursor: Option<Box<Cursor>>) {
    end(cursor);
}

/// Makes a keyspace, durably; `mode` says who may read (4) and write (2) keys, as of a file. EEXIST: there is
/// one.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_keyspace_create(process: Option<&Process>, name: Text, mode: mode_t) -> c_int {
    call(|| {
        of(process)?.create_keyspace(name.name()?, mode)?;
        Ok(0)
    })
}

/// Removes a keyspace with all its keys; outside of transactions. ENOENT: there is none. EPERM: it is another
/// user's.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_keyspace_drop(process: Option<&Process>, name: Text) -> c_int {
    call(|| {
        of(process)?.drop_keyspace(name.name()?)?;
        Ok(0)
    })
}

/// The names of the keyspaces that the user may use, each with a zero byte behind it. Returns the length;
/// size 0 asks for it. ERANGE: the buffer is too small.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_keyspace_list(
    process: Option<&Process>,
    mut buffer: TextBuffer,
    size: size_t,
) -> ssize_t {
    call(|| buffer.fill_names(size, of(process)?.list_keyspaces()?))
}
