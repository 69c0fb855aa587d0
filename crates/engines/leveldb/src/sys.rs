//! The C API of `LevelDB` (`leveldb/c.h`), as far as it is used, behind types that free what they hold.
//!
//! Thread safety: a database, its snapshots and its options are used by all threads, which `LevelDB` allows;
//! batches and iterators by one at a time. Invariants: a pointer is not null; what belongs to a database
//! keeps it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// A type of which only pointers are known.
macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] struct $name { _opaque: [u8; 0] })* };
}

opaque!(CBatch CCache CDb CFilter CIterator COptions CReadOptions CSnapshot CWriteOptions);

// SAFETY: the declarations are those of `leveldb/c.h`.
#[link(name = "leveldb")]
unsafe extern "C" {
    fn leveldb_open(options: *const COptions, name: *const c_char, error: *mut *mut c_char) -> *mut CDb;
    fn leveldb_close(db: *mut CDb);
    fn leveldb_write(
        db: *mut CDb,
        options: *const CWriteOptions,
        batch: *mut CBatch,
        error: *mut *mut c_char,
    );
    fn leveldb_get(
        db: *mut CDb,
        options: *const CReadOptions,
        key: *const c_char,
        key_len: usize,
        value_len: *mut usize,
        error: *mut *mut c_char,
    ) -> *mut c_char;
    fn leveldb_create_iterator(db: *mut CDb, options: *const CReadOptions) -> *mut CIterator;
    fn leveldb_create_snapshot(db: *mut CDb) -> *const CSnapshot;
    fn leveldb_release_snapshot(db: *mut CDb, snapshot: *const CSnapshot);
    fn leveldb_property_value(db: *mut CDb, name: *const c_char) -> *mut c_char;
    fn leveldb_approximate_sizes(
        db: *mut CDb,
        count: c_int,
        starts: *const *const c_char,
        start_lens: *const usize,
        ends: *const *const c_char,
        end_lens: *const usize,
        sizes: *mut u64,
    );
    fn leveldb_compact_range(
        db: *mut CDb,
        start: *const c_char,
        start_len: usize,
        end: *const c_char,
        end_len: usize,
    );
    fn leveldb_iter_destroy(iterator: *mut CIterator);
    fn leveldb_iter_valid(iterator: *const CIterator) -> u8;
    fn leveldb_iter_seek_to_last(iterator: *mut CIterator);
    fn leveldb_iter_seek(iterator: *mut CIterator, key: *const c_char, len: usize);
    fn leveldb_iter_next(iterator: *mut CIterator);
    fn leveldb_iter_prev(iterator: *mut CIterator);
    fn leveldb_iter_key(iterator: *const CIterator, len: *mut usize) -> *const c_char;
    fn leveldb_iter_value(iterator: *const CIterator, len: *mut usize) -> *const c_char;
    fn leveldb_iter_get_error(iterator: *const CIterator, error: *mut *mut c_char);
    fn leveldb_writebatch_create() -> *mut CBatch;
    fn leveldb_writebatch_destroy(batch: *mut CBatch);
    fn leveldb_writebatch_put(
        batch: *mut CBatch,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    fn leveldb_writebatch_delete(batch: *mut CBatch, key: *const c_char, len: usize);
    fn leveldb_options_create() -> *mut COptions;
    fn leveldb_options_destroy(options: *mut COptions);
    fn leveldb_options_set_filter_policy(options: *mut COptions, filter: *mut CFilter);
    fn leveldb_options_set_create_if_missing(options: *mut COptions, yes: u8);
    fn leveldb_options_set_error_if_exists(options: *mut COptions, yes: u8);
    fn leveldb_options_set_paranoid_checks(options: *mut COptions, yes: u8);
    fn leveldb_options_set_write_buffer_size(options: *mut COptions, bytes: usize);
    fn leveldb_options_set_max_open_files(options: *mut COptions, count: c_int);
    fn leveldb_options_set_cache(options: *mut COptions, cache: *mut CCache);
    fn leveldb_options_set_max_file_size(options: *mut COptions, bytes: usize);
    fn leveldb_options_set_compression(options: *mut COptions, kind: c_int);
    fn leveldb_filterpolicy_create_bloom(bits_per_key: c_int) -> *mut CFilter;
    fn leveldb_filterpolicy_destroy(filter: *mut CFilter);
    fn leveldb_readoptions_create() -> *mut CReadOptions;
    fn leveldb_readoptions_destroy(options: *mut CReadOptions);
    fn leveldb_readoptions_set_verify_checksums(options: *mut CReadOptions, yes: u8);
    fn leveldb_readoptions_set_snapshot(options: *mut CReadOptions, snapshot: *const CSnapshot);
    fn leveldb_writeoptions_create() -> *mut CWriteOptions;
    fn leveldb_writeoptions_destroy(options: *mut CWriteOptions);
    fn leveldb_cache_create_lru(bytes: usize) -> *mut CCache;
    fn leveldb_cache_destroy(cache: *mut CCache);
    fn leveldb_free(memory: *mut c_void);
}

/// `leveldb_no_compression`.
const NO_COMPRESSION: c_int = 0;

/// Each key has so many bits in the filter of its table.
const FILTER_BITS: c_int = 10;

/// How a database is opened.
pub(crate) struct Tuning {
    /// It is made, and must not be there.
    pub(crate) creates: bool,
    pub(crate) cache_bytes: usize,
    pub(crate) write_buffer_bytes: usize,
    pub(crate) file_bytes: usize,
    pub(crate) open_files: i32,
}

/// Bytes that the library has allocated.
struct Owned(*mut c_char);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the library has allocated it (or it is null, which free(3) takes), and it is freed once.
        unsafe { leveldb_free(self.0.cast()) };
    }
}

/// Runs a call that may leave a message.
fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T, String> {
    let mut error = ptr::null_mut();
    let done = call(&raw mut error);
    if error.is_null() {
        return Ok(done);
    }
    let message = Owned(error);
    // SAFETY: a message is a string that ends in a zero, and lives as long as `message`.
    Err(unsafe { CStr::from_ptr(message.0) }.to_string_lossy().into_owned())
}

/// Options of reads that compare blocks with their checksums.
fn read_options() -> *mut CReadOptions {
    // SAFETY: the options are made here, and not seen by others yet.
    unsafe {
        let options = leveldb_readoptions_create();
        leveldb_readoptions_set_verify_checksums(options, 1);
        options
    }
}

/// An open database.
pub(crate) struct RawDb {
    db: *mut CDb,
    options: *mut COptions,
    cache: *mut CCache,
    filter: *mut CFilter,
    reads: *mut CReadOptions,
    writes: *mut CWriteOptions,
    /// Given back behind the database, whose path leads through it.
    _anchor: Option<OwnedFd>,
}

// SAFETY: `LevelDB` lets threads use a database at once, and its options are only read.
unsafe impl Send for RawDb {}
// SAFETY: as above.
unsafe impl Sync for RawDb {}

impl Drop for RawDb {
    fn drop(&mut self) {
        // SAFETY: snapshots and iterators keep the database, so none is left; what its options refer to goes
        // behind it.
        unsafe {
            if !self.db.is_null() {
                leveldb_close(self.db);
            }
            leveldb_options_destroy(self.options);
            leveldb_cache_destroy(self.cache);
            leveldb_filterpolicy_destroy(self.filter);
            leveldb_readoptions_destroy(self.reads);
            leveldb_writeoptions_destroy(self.writes);
        }
    }
}

impl RawDb {
    pub(crate) fn open(path: &Path, tuning: &Tuning, anchor: Option<OwnedFd>) -> Result<Self, String> {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: all of these are made here; the options refer to cache and filter, which the database gets
        // to own.
        let mut raw = unsafe {
            let (options, cache) = (leveldb_options_create(), leveldb_cache_create_lru(tuning.cache_bytes));
            let filter = leveldb_filterpolicy_create_bloom(FILTER_BITS);
            leveldb_options_set_cache(options, cache);
            leveldb_options_set_filter_policy(options, filter);
            leveldb_options_set_create_if_missing(options, u8::from(tuning.creates));
            leveldb_options_set_error_if_exists(options, u8::from(tuning.creates));
            leveldb_options_set_paranoid_checks(options, 1);
            leveldb_options_set_write_buffer_size(options, tuning.write_buffer_bytes);
            leveldb_options_set_max_file_size(options, tuning.file_bytes);
            leveldb_options_set_max_open_files(options, tuning.open_files);
            leveldb_options_set_compression(options, NO_COMPRESSION);
            let (reads, writes) = (read_options(), leveldb_writeoptions_create());
            Self { db: ptr::null_mut(), options, cache, filter, reads, writes, _anchor: anchor }
        };
        // SAFETY: options and path are whole, and live beyond the call.
        raw.db = checked(|error| unsafe { leveldb_open(raw.options, path.as_ptr(), error) })?;
        Ok(raw)
    }

    /// The value of a key, by way of `read`.
    pub(crate) fn get<T>(
        &self,
        at: Option<&RawSnapshot>,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, String> {
        let options = at.map_or(self.reads, |at| at.reads);
        let mut len = 0;
        // SAFETY: the database is open, the key lives beyond the call, and a snapshot in the options, too.
        let found = checked(|error| unsafe {
            leveldb_get(self.db, options, key.as_ptr().cast(), key.len(), &raw mut len, error)
        })?;
        if found.is_null() {
            return Ok(None);
        }
        let value = Owned(found);
        // SAFETY: the library has returned so many bytes, which live as long as `value`.
        Ok(Some(read(unsafe { std::slice::from_raw_parts(value.0.cast(), len) })))
    }

    /// Atomically; not synced.
    pub(crate) fn write(&self, batch: &mut RawBatch) -> Result<(), String> {
        // SAFETY: database and batch are whole, and the batch is the caller's alone.
        checked(|error| unsafe { leveldb_write(self.db, self.writes, batch.0, error) })
    }

    /// A number that the database tells of itself.
    pub(crate) fn property(&self, name: &str) -> Option<u64> {
        let name = CString::new(name).ok()?;
        // SAFETY: the name ends in a zero and lives beyond the call; what comes back is null or the
        // library's.
        let value = Owned(unsafe { leveldb_property_value(self.db, name.as_ptr()) });
        if value.0.is_null() {
            return None;
        }
        // SAFETY: it is a string that ends in a zero, and lives as long as `value`.
        unsafe { CStr::from_ptr(value.0) }.to_str().ok()?.parse().ok()
    }

    /// What the tables hold of a range (bytes; an estimate).
    pub(crate) fn table_bytes(&self, start: &[u8], end: &[u8]) -> u64 {
        let (starts, start_lens) = ([start.as_ptr().cast::<c_char>()], [start.len()]);
        let (ends, end_lens) = ([end.as_ptr().cast::<c_char>()], [end.len()]);
        let mut bytes = 0;
        let (starts, start_lens) = (starts.as_ptr(), start_lens.as_ptr());
        // SAFETY: each list has one member, as is said, and lives beyond the call.
        unsafe {
            leveldb_approximate_sizes(
                self.db,
                1,
                starts,
                start_lens,
                ends.as_ptr(),
                end_lens.as_ptr(),
                &raw mut bytes,
            );
        }
        bytes
    }

    /// Merges the tables that have keys from `start` to `end`. The memtable is written out before, whatever
    /// its keys.
    pub(crate) fn compact(&self, start: &[u8], end: &[u8]) {
        // SAFETY: both keys live beyond the call.
        unsafe {
            leveldb_compact_range(
                self.db,
                start.as_ptr().cast(),
                start.len(),
                end.as_ptr().cast(),
                end.len(),
            );
        }
    }
}

/// A state that stays as it is.
pub(crate) struct RawSnapshot {
    db: Arc<RawDb>,
    snapshot: *const CSnapshot,
    reads: *mut CReadOptions,
}

// SAFETY: a snapshot is a number that `LevelDB` keeps in a list, under its own lock; the options are only
// read.
unsafe impl Send for RawSnapshot {}
// SAFETY: as above.
unsafe impl Sync for RawSnapshot {}

impl RawSnapshot {
    pub(crate) fn newest(db: &Arc<RawDb>) -> Self {
        let reads = read_options();
        // SAFETY: the database is open, and kept; the options are not seen by others yet.
        let snapshot = unsafe {
            let snapshot = leveldb_create_snapshot(db.db);
            leveldb_readoptions_set_snapshot(reads, snapshot);
            snapshot
        };
        Self { db: Arc::clone(db), snapshot, reads }
    }
}

impl Drop for RawSnapshot {
    fn drop(&mut self) {
        // SAFETY: the database is open still; readers keep the snapshot, so none is left.
        unsafe {
            leveldb_readoptions_destroy(self.reads);
            leveldb_release_snapshot(self.db.db, self.snapshot);
        }
    }
}

/// What is written at once.
pub(crate) struct RawBatch(*mut CBatch);

impl RawBatch {
    pub(crate) fn new() -> Self {
        // SAFETY: the call needs nothing.
        Self(unsafe { leveldb_writebatch_create() })
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) {
        let (key_len, value_len) = (key.len(), value.len());
        // SAFETY: key and value live beyond the call, which copies them.
        unsafe {
            leveldb_writebatch_put(self.0, key.as_ptr().cast(), key_len, value.as_ptr().cast(), value_len);
        }
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        // SAFETY: the key lives beyond the call, which copies it.
        unsafe { leveldb_writebatch_delete(self.0, key.as_ptr().cast(), key.len()) };
    }
}

impl Drop for RawBatch {
    fn drop(&mut self) {
        // SAFETY: it is whole, and destroyed once.
        unsafe { leveldb_writebatch_destroy(self.0) };
    }
}

/// A walk over the keys of one state.
pub(crate) struct RawIterator {
    iterator: *mut CIterator,
    /// Kept for it.
    _db: Arc<RawDb>,
    _at: Option<Arc<RawSnapshot>>,
}

// SAFETY: an iterator may be used by another thread than it was made by, as long as it is one at a time.
unsafe impl Send for RawIterator {}

impl RawIterator {
    pub(crate) fn new(db: &Arc<RawDb>, at: Option<&Arc<RawSnapshot>>) -> Self {
        let options = at.map_or(db.reads, |at| at.reads);
        // SAFETY: database and snapshot are kept beside the iterator.
        let iterator = unsafe { leveldb_create_iterator(db.db, options) };
        Self { iterator, _db: Arc::clone(db), _at: at.cloned() }
    }

    pub(crate) fn seek_to_last(&mut self) {
        // SAFETY: the iterator is whole, and this thread's alone; here and below.
        unsafe { leveldb_iter_seek_to_last(self.iterator) };
    }

    pub(crate) fn seek(&mut self, key: &[u8]) {
        // SAFETY: the key lives beyond the call.
        unsafe { leveldb_iter_seek(self.iterator, key.as_ptr().cast(), key.len()) };
    }

    /// The iterator is on an entry.
    pub(crate) fn next(&mut self) {
        if self.is_valid() {
            // SAFETY: as above, and it is on an entry.
            unsafe { leveldb_iter_next(self.iterator) };
        }
    }

    /// The iterator is on an entry.
    pub(crate) fn prev(&mut self) {
        if self.is_valid() {
            // SAFETY: as above, and it is on an entry.
            unsafe { leveldb_iter_prev(self.iterator) };
        }
    }

    pub(crate) fn is_valid(&self) -> bool {
        // SAFETY: as above.
        unsafe { leveldb_iter_valid(self.iterator) != 0 }
    }

    pub(crate) fn key(&self) -> Option<&[u8]> {
        let mut len = 0;
        // SAFETY: it is on an entry; what it returns stays until it is moved, for which it is borrowed
        // mutably.
        self.is_valid().then(|| unsafe {
            let key = leveldb_iter_key(self.iterator, &raw mut len);
            std::slice::from_raw_parts(key.cast(), len)
        })
    }

    pub(crate) fn value(&self) -> Option<&[u8]> {
        let mut len = 0;
        // SAFETY: as for the key.
        self.is_valid().then(|| unsafe {
            let value = leveldb_iter_value(self.iterator, &raw mut len);
            std::slice::from_raw_parts(value.cast(), len)
        })
    }

    /// Where it is on no entry: whether that is an end.
    pub(crate) fn check(&self) -> Result<(), String> {
        // SAFETY: as above.
        checked(|error| unsafe { leveldb_iter_get_error(self.iterator, error) })
    }
}

impl Drop for RawIterator {
    fn drop(&mut self) {
        // SAFETY: it is whole, and destroyed once, before what it walks over.
        unsafe { leveldb_iter_destroy(self.iterator) };
    }
}
