//! Keys beside files: in the same order, and in the same transactions.
//!
//! Thread safety: see the crate; one thread at a time uses a cursor.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{FileSystem, FsError, settled};
use kvfs_kv::{AccessError, KeyChange, KeyspaceUser, UserKeyspaces, View, ViewKind};
use kvfs_service::is_master;
use kvfs_store::{KeyRange, Keyspace};
use libc::{mode_t, size_t, ssize_t};

use crate::failure::{Failure, Result, call, end, refuse};
use crate::foreign::{Changes, Data, Text, TextBuffer, allocated, missing, put};
use crate::process::{Acting, Process};

/// A process, as far as keys are concerned.
struct KeyUser<'p> {
    acting: &'p Arc<Acting>,
    /// What it sees.
    fs: &'p FileSystem,
}

fn of(process: Option<&Process>) -> Result<KeyUser<'_>> {
    let acting = &process.ok_or_else(missing)?.acting;
    Ok(KeyUser { acting, fs: acting.fs()? })
}

impl KeyUser<'_> {
    /// The keyspaces, as the user of the process may use them.
    fn keyspaces(&self) -> UserKeyspaces<'_, FileSystem> {
        let user = KeyspaceUser {
            uid: self.acting.identity.uid,
            gid: self.acting.identity.gid,
            groups: &self.acting.identity.groups,
            is_master: is_master(self.fs, self.acting.identity.uid),
        };
        self.fs.keys().of_user(user, usize::MAX)
    }

    /// Whether it sees a snapshot.
    fn is_snapshot(&self) -> bool {
        self.fs.kind() == ViewKind::Snapshot
    }

    /// Where keys are read; `None`: there are none.
    fn readable(&self, name: &Text) -> Result<Option<Keyspace>> {
        Ok(self.keyspaces().readable(name.name()?)?)
    }

    fn apply(&self, keyspace: Keyspace, change: &KeyChange) -> Result<()> {
        settled(|caller| self.fs.keys().apply(caller, vec![(keyspace, change.clone())]))?;
        Ok(())
    }
}

fn no_key<T>() -> Result<T> {
    refuse(libc::ENOENT, "there is no such key")
}

fn range(start: Option<&[u8]>, end: Option<&[u8]>) -> KeyRange {
    let bytes = Bytes::copy_from_slice;
    KeyRange { start: start.map(bytes).unwrap_or_default(), end: end.map(bytes) }
}

/// The value under a key, in memory that the caller frees with `kvfs_free`, a zero byte behind it; its length is put to `value_size`,
/// which may be NULL. ENOENT: there is no such key, or no such keyspace. EACCES: the keyspace is another user's.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_kv_get(
    process: Option<&Process>,
    keyspace: Text,
    key: Data,
    key_size: size_t,
    value_size: Option<&mut MaybeUninit<size_t>>,
) -> *mut c_void {
    call(|| {
        let user = of(process)?;
        let key = key.bytes(key_size)?;
        let Some(keyspace) = user.readable(&keyspace)? else { return no_key() };
        let value = settled(|caller| user.fs.keys().get(caller, keyspace, key))?;
        let Some(value) = value else { return no_key() };
        let memory = allocated(&value)?;
        if value_size.is_some() {
            put(value_size, value.len())?;
        }
        Ok(memory)
    })
}

/// Puts a value under a key; the keyspace is made if there is none. It is durable after a sync, or, in a transaction, with that.
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
        let user = of(process)?;
        let key = Bytes::copy_from_slice(key.bytes(key_size)?);
        let value = Bytes::copy_from_slice(value.bytes(value_size)?);
        let keyspace = user.keyspaces().writable(keyspace.name()?)?;
        user.apply(keyspace, &KeyChange::Put { key, value })?;
        Ok(0)
    })
}

/// Makes `count` changes at once, all or none, as one write; the keyspace is made if there is none. EINVAL: of one of them the key is
/// empty or too long, or the value too long.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_kv_write(
    process: Option<&Process>,
    keyspace: Text,
    changes: Changes,
    count: size_t,
) -> c_int {
    call(|| {
        let (user, changes) = (of(process)?, changes.all(count)?);
        let keyspace = user.keyspaces().writable(keyspace.name()?)?;
        let mut staged = Vec::with_capacity(changes.len());
        for change in changes {
            let (key, value) = change.parts()?;
            let key = Bytes::copy_from_slice(key);
            staged.push(match value.map(Bytes::copy_from_slice) {
                Some(value) => (keyspace, KeyChange::Put { key, value }),
                None => (keyspace, KeyChange::Delete { key }),
            });
        }
        settled(|caller| user.fs.keys().apply(caller, staged.clone()))?;
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
    call(|| {
        let (user, key) = (of(process)?, key.bytes(key_size)?);
        let Some(keyspace) = user.keyspaces().existing(keyspace.name()?, kvfs_kv::Access::Write)? else {
            return Ok(0);
        };
        let (_, existed) = settled(|caller| user.fs.keys().set(caller, keyspace, key, None))?;
        Ok(existed.into())
    })
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
        let user = of(process)?;
        let range = range(start.optional(start_size)?, end.optional(end_size)?);
        let Some(keyspace) = user.keyspaces().existing(keyspace.name()?, kvfs_kv::Access::Write)? else {
            return Ok(0);
        };
        user.apply(keyspace, &KeyChange::DeleteRange(range))?;
        Ok(0)
    })
}

/// A walk over keys, in their order, as they are at its beginning.
// The order of the fields is that in which they go.
pub struct Cursor {
    /// `None`: there is no keyspace.
    inner: Option<Box<dyn kvfs_store::Cursor>>,
    _acting: Arc<Acting>,
}

/// A walk over the keys from `start` (NULL: the first) up to, but without, `end` (NULL: the last one comes, too). It stands before the
/// first one. Free it with `kvfs_cursor_free`.
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
        let user = of(process)?;
        let range = range(start.optional(start_size)?, end.optional(end_size)?);
        let open = |keyspace| settled(|caller| user.fs.keys().cursor(caller, keyspace, range.clone()));
        let inner = user.readable(&keyspace)?.map(open).transpose()?;
        Ok(Some(Box::new(Cursor { inner, _acting: Arc::clone(user.acting) })))
    })
}

fn moved(
    cursor: Option<&mut Cursor>,
    step: impl FnOnce(&mut dyn kvfs_store::Cursor) -> kvfs_store::Result<()>,
) -> c_int {
    call(|| {
        let Some(inner) = &mut cursor.ok_or_else(missing)?.inner else { return Ok(0) };
        step(&mut **inner)?;
        Ok(inner.entry().is_some().into())
    })
}

/// Goes to the next key. Returns 1, or 0 behind the last one.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_cursor_next(cursor: Option<&mut Cursor>) -> c_int {
    moved(cursor, |inner| inner.next())
}

/// Goes to the key before; from the beginning of the walk, to the last one. Returns 1, or 0 before the first one.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_cursor_prev(cursor: Option<&mut Cursor>) -> c_int {
    moved(cursor, |inner| inner.prev())
}

fn part(
    cursor: Option<&mut Cursor>,
    size: Option<&mut MaybeUninit<size_t>>,
    choose: impl for<'e> FnOnce((&'e [u8], &'e Bytes)) -> &'e [u8],
) -> *const c_void {
    call(|| {
        let inner = cursor.ok_or_else(missing)?.inner.as_ref();
        let entry = inner.and_then(|inner| inner.entry());
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

/// Makes a keyspace, durably; `mode` says who may read (4) and write (2) keys, as of a file. EEXIST: there is one.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_keyspace_create(process: Option<&Process>, name: Text, mode: mode_t) -> c_int {
    call(|| {
        of(process)?.keyspaces().create(name.name()?, Some(mode), true)?;
        Ok(0)
    })
}

/// Removes a keyspace with all its keys; outside of transactions. ENOENT: there is none. EPERM: it is another user's.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_keyspace_drop(process: Option<&Process>, name: Text) -> c_int {
    call(|| {
        let (user, name) = (of(process)?, name.name()?);
        let dropped = settled(|caller| match user.keyspaces().drop_keyspace(caller, name) {
            // Again, when it is free.
            Err(AccessError::View(error @ FsError::Parked(_))) => Err(error),
            done => Ok(done),
        })?;
        user.fs.sync(dropped?)?;
        Ok(0)
    })
}

/// The names of the keyspaces that the user may use, each with a zero byte behind it. Returns the length; size 0 asks for it. ERANGE:
/// the buffer is too small.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_keyspace_list(
    process: Option<&Process>,
    mut buffer: TextBuffer,
    size: size_t,
) -> ssize_t {
    call(|| {
        let user = of(process)?;
        let all = user.keyspaces().list(user.is_snapshot())?;
        buffer.fill_names(size, all.into_iter().map(|(name, _)| name))
    })
}
