//! Opening a store by its path, with the few options that most programs need.
//!
//! Thread safety: plain data. Invariant: a file that is there is never made anew.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvfs_device::{Device, FileDevice, OpenError};
use kvfs_store::clock::SystemClock;
use kvfs_store::{Compression, Result, StoreError};

use crate::db::Db;
use crate::runtime::options::{CreateOptions, Options};

/// How large a store may become, unless told otherwise (bytes). The file grows with use.
const CAPACITY_BYTES: u64 = 64 << 30;

/// What a store is opened with: five options, and [`Builder::expert`] for the rest.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use kvfs_kvdb::Db;
/// use kvfs_store::{Batch, Durability, KeyspaceKind, Read, Store};
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("store");
/// let db = Db::builder().memory_bytes(64 << 20).capacity_bytes(1 << 30).open(&path)?;
/// let words = db.open_keyspace("words", KeyspaceKind::Tuple, None)?;
/// let mut batch = Batch::new();
/// batch.put(words, "kv", "key-value");
/// batch.put(words, "fs", "file system");
/// db.apply(batch, Durability::Synced)?;
/// assert_eq!(db.get(words, b"kv")?.as_deref(), Some(&b"key-value"[..]));
/// db.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Builder {
    capacity_bytes: u64,
    options: Options,
}

impl Default for Builder {
    fn default() -> Self {
        Self { capacity_bytes: CAPACITY_BYTES, options: Options::with_memory(256 << 20) }
    }
}

impl Builder {
    /// Ceiling for everything that the engine keeps in memory (bytes); 256 MiB unless told otherwise. Sets
    /// what depends on it: call this before [`Builder::expert`].
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        let Options { commit_interval, compression, read_only, .. } = self.options;
        self.options = Options { commit_interval, compression, read_only, ..Options::with_memory(bytes) };
        self
    }

    /// Most bytes that a store takes which is made now, at least 24 MiB; 64 GiB unless told otherwise. A
    /// store that is there keeps its own.
    #[must_use]
    pub fn capacity_bytes(mut self, bytes: u64) -> Self {
        self.capacity_bytes = bytes;
        self
    }

    /// Longest time that an applied batch stays unsynced; a second unless told otherwise.
    #[must_use]
    pub fn commit_interval(mut self, interval: Duration) -> Self {
        self.options.commit_interval = interval;
        self
    }

    /// How keyspaces are stored that are made from now on; as they are unless told otherwise.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.options.compression = compression;
        self
    }

    /// Refuses every write; the store must be there.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.options.read_only = read_only;
        self
    }

    /// Everything else that can be set.
    #[must_use]
    pub fn expert(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// Opens the store in the file or on the block device `path`. A file that is absent is made, unless the
    /// store is to be read only.
    ///
    /// # Errors
    /// The device can't be opened, or another process has it; what is there is no store; the capacity is too
    /// small; damage; I/O errors.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Arc<Db>> {
        let path = path.as_ref();
        let is_there = path
            .try_exists()
            .map_err(|error| StoreError::io(format!("looking for {}", path.display()), error))?;
        let device = if is_there || self.options.read_only {
            Arc::new(
                FileDevice::open(path, self.options.read_only).map_err(|error| open_failed(path, error))?,
            )
        } else {
            self.create(path)?
        };
        Db::open(device, self.options, Arc::new(SystemClock::new()))
    }

    /// Makes an empty store. One that can't be finished leaves no file behind.
    fn create(&self, path: &Path) -> Result<Arc<FileDevice>> {
        let options = CreateOptions::with_new_uuid(self.capacity_bytes)?;
        let device = Arc::new(FileDevice::create(path, 0).map_err(|error| open_failed(path, error))?);
        let created = Db::create(Arc::clone(&device) as Arc<dyn Device>, &options);
        let Err(error) = created else { return Ok(device) };
        if let Err(left) = device.remove_file() {
            tracing::warn!(error = %left, path = %path.display(), "a file that is no store is left");
        }
        Err(error)
    }
}

fn open_failed(path: &Path, error: OpenError) -> StoreError {
    StoreError::io(format!("opening {}", path.display()), std::io::Error::other(error))
}

impl Db {
    /// Options for [`Builder::open`].
    pub fn builder() -> Builder {
        Builder::default()
    }
}

#[cfg(test)]
mod tests {
    use kvfs_store::{Batch, Durability, KeyspaceKind, Read, Store};

    use super::*;

    #[test]
    fn store_opened_again_has_what_was_applied_and_read_only_refuses_writes() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("store");
        let builder = || Db::builder().memory_bytes(64 << 20).capacity_bytes(256 << 20);
        assert!(builder().read_only(true).open(&path).is_err(), "nothing is there");
        assert!(!path.exists());
        let put = |db: &Db, value: &'static str| {
            let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
            let mut batch = Batch::new();
            batch.put(rows, "key", value);
            db.apply(batch, Durability::Synced)
        };
        let db = builder().open(&path).expect("makes");
        put(&db, "one").expect("applies");
        db.close().expect("closes");
        drop(db);
        let db = builder().read_only(true).open(&path).expect("opens");
        assert!(matches!(put(&db, "two"), Err(StoreError::ReadOnly)));
        let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
        assert_eq!(db.get(rows, b"key").expect("reads").as_deref(), Some(&b"one"[..]));
    }

    #[test]
    fn capacity_that_holds_no_store_leaves_no_file_and_other_contents_stay() {
        let dir = tempfile::tempdir().expect("makes a directory");
        let path = dir.path().join("store");
        let builder = || Db::builder().memory_bytes(64 << 20).capacity_bytes(1 << 20);
        assert!(matches!(builder().open(&path), Err(StoreError::Full)));
        assert!(!path.exists());
        std::fs::write(&path, "a letter").expect("writes");
        assert!(builder().open(&path).is_err());
        assert_eq!(std::fs::read(&path).expect("reads"), b"a letter");
    }
}
