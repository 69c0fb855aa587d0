//! A fresh store for each measurement.
//!
//! Thread safety: a store is shared by reference.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use kvfs_device::FileDevice;
use kvfs_kvdb::{CreateOptions, Db, Options};
use kvfs_store::clock::{Clock, SystemClock};

/// An engine over a file of its own, removed at the end.
pub(crate) struct Rig {
    pub(crate) db: Arc<Db>,
    path: PathBuf,
}

impl Rig {
    /// `bytes` of space, `memory_bytes` of memory.
    pub(crate) fn new(dir: &Path, bytes: u64, memory_bytes: u64) -> Result<Self> {
        let path = dir.join("device");
        let device = Arc::new(FileDevice::create(&path, bytes)?);
        Db::create(device.clone(), &CreateOptions::new(bytes, [7; 16]))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let db = Db::open(device, Options::with_memory(memory_bytes), clock)?;
        Ok(Self { db, path })
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Err(error) = self.db.close() {
            eprintln!("the store does not close: {error}");
        }
        if let Err(error) = fs::remove_file(&self.path) {
            eprintln!("{} stays: {error}", self.path.display());
        }
    }
}
