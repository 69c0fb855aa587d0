//! A store of the engine alone, which is closed and opened again.
//!
//! Thread safety: belongs to one thread; the engine has its own. Invariant: its file is removed at the end.

use anyhow::{Context, Result};
use kvfs_device::FileDevice;
use kvfs_kvdb::{CreateOptions, Db, MergeOptions, Options};
use kvfs_store::clock::SystemClock;
use kvfs_store::{Keyspace, KeyspaceKind, Store};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How it is made and opened.
#[derive(Clone)]
pub(crate) struct RigOptions {
    pub(crate) capacity_bytes: u64,
    pub(crate) memory_bytes: u64,
    /// `None`: by the capacity.
    pub(crate) zone_bytes: Option<u32>,
    /// From so many contiguous bytes on a merge leaves them where they are.
    pub(crate) stitch_bytes_min: u64,
}

/// Which runs are merged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Merging {
    /// Those that are due.
    Due,
    /// All of them, into one: then it is known what is dead. No zone is emptied for that.
    All,
}

/// An engine over a file of its own.
pub(crate) struct Rig {
    options: RigOptions,
    path: PathBuf,
    /// `None` while it is closed.
    open: Option<(Arc<Db>, Keyspace)>,
}

impl Rig {
    pub(crate) fn new(dir: &Path, options: RigOptions) -> Result<Self> {
        let path = dir.join("device");
        let device = Arc::new(FileDevice::create(&path, options.capacity_bytes)?);
        let mut rig = Self { options, path, open: None };
        let mut create = CreateOptions::new(rig.options.capacity_bytes, [7; 16]);
        create.zone_bytes = rig.options.zone_bytes.unwrap_or(create.zone_bytes);
        Db::create(device.clone(), &create)?;
        rig.open_on(device, Merging::Due)?;
        Ok(rig)
    }

    fn open_on(&mut self, device: Arc<FileDevice>, merging: Merging) -> Result<()> {
        let mut options = Options::with_memory(self.options.memory_bytes);
        options.merge.stitch_bytes_min = self.options.stitch_bytes_min;
        if merging == Merging::All {
            options.merge = MergeOptions { class_runs: 2, class_bytes_min: u64::MAX, ..options.merge };
        }
        let db = Db::open(device, options, Arc::new(SystemClock::new()))?;
        let keyspace = db.open_keyspace("blocks", KeyspaceKind::Block, None)?;
        self.open = Some((db, keyspace));
        Ok(())
    }

    /// Closes it and opens it again.
    pub(crate) fn reopen(&mut self, merging: Merging) -> Result<()> {
        self.close()?;
        self.open_on(Arc::new(FileDevice::open(&self.path, false)?), merging)
    }

    pub(crate) fn db(&self) -> Result<&Arc<Db>> {
        Ok(&self.open()?.0)
    }

    pub(crate) fn open(&self) -> Result<&(Arc<Db>, Keyspace)> {
        self.open.as_ref().context("the store is closed")
    }

    /// A counter of the engine.
    pub(crate) fn stat(&self, name: &str) -> Result<u64> {
        let stats = self.db()?.stats();
        let found = stats.into_iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value).with_context(|| format!("the engine does not count {name}"))
    }

    fn close(&mut self) -> Result<()> {
        if let Some((db, _)) = self.open.take() {
            db.close()?;
        }
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            eprintln!("the store does not close: {error:#}");
        }
        if let Err(error) = fs::remove_file(&self.path) {
            eprintln!("{} stays: {error}", self.path.display());
        }
    }
}
