//! The engines: how a store of each is made, used by the library, and used bare.
//!
//! Thread safety: belongs to one thread.

use super::bare::{Call, replay};
use super::recorder::Recorder;
use super::{REPEATS, Scene, timed};
use anyhow::{Context, Result};
use kvfs_bench::calls::{Calls, Library};
use kvfs_bench::host;
use kvfs_device::FileDevice;
use kvfs_engine_memory::MemoryStore;
use kvfs_fs::{FileSystem, MkfsOptions, MountOptions};
use kvfs_kvdb::{CreateOptions, Db, Options};
use kvfs_posix::Volume;
use kvfs_store::Store;
use kvfs_store::clock::{Clock, SystemClock};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// For caches and memtables of each engine (bytes).
pub(crate) const MEMORY_BYTES: u64 = 256 << 20;

const CAPACITY_BYTES: u64 = 2 << 30;

/// Times of all works, for each store.
#[derive(Default)]
pub(crate) struct Runs {
    pub(crate) library: Vec<Vec<f64>>,
    pub(crate) bare: Vec<Vec<f64>>,
}

/// An engine.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// Measures it in an empty directory.
    pub(crate) measure: fn(&Path, &Scene) -> Result<Runs>,
}

/// Those of this build.
pub(crate) const SUBJECTS: &[Subject] = &[
    Subject { name: "kvdb", measure: |dir, scene| by_store(dir, scene, open_kvdb) },
    #[cfg(feature = "engines")]
    Subject { name: "rocksdb", measure: super::database::measure::<kvfs_engine_rocksdb::Rocks> },
    #[cfg(feature = "engines")]
    Subject { name: "leveldb", measure: super::database::measure::<kvfs_engine_leveldb::Level> },
    Subject { name: "memory", measure: |dir, scene| by_store(dir, scene, open_memory) },
];

/// A store, and how it is closed.
struct Open {
    store: Arc<dyn Store>,
    close: Box<dyn FnOnce() -> Result<()>>,
}

fn open_kvdb(dir: &Path) -> Result<Open> {
    let device = Arc::new(FileDevice::create(dir.join("device"), CAPACITY_BYTES)?);
    Db::create(device.clone(), &CreateOptions::new(CAPACITY_BYTES, [7; 16]))?;
    let db = Db::open(device, Options::with_memory(MEMORY_BYTES), Arc::new(SystemClock::new()))?;
    let store: Arc<dyn Store> = db.clone();
    Ok(Open { store, close: Box::new(move || Ok(db.close()?)) })
}

#[expect(clippy::unnecessary_wraps, reason = "its type is that of openings that may fail")]
fn open_memory(_dir: &Path) -> Result<Open> {
    Ok(Open { store: Arc::new(MemoryStore::new(CAPACITY_BYTES, [7; 16])), close: Box::new(|| Ok(())) })
}

/// Of an engine whose own calls are those of the store.
fn by_store(dir: &Path, scene: &Scene, open: fn(&Path) -> Result<Open>) -> Result<Runs> {
    let fresh = Fresh::new(dir)?;
    let Open { store, close } = open(fresh.path())?;
    let recorder = Arc::new(Recorder::over(store));
    let mut traces: Vec<Vec<Call>> = Vec::new();
    let seen: Arc<dyn Store> = recorder.clone();
    use_library(&seen, scene, || recorder.begin(), || traces.push(recorder.take()))?;
    drop((seen, recorder));
    close()?;
    drop(fresh);
    let mut runs = Runs::default();
    for _ in 0..REPEATS {
        host::touch_free_memory()?;
        let fresh = Fresh::new(dir)?;
        let Open { store, close } = open(fresh.path())?;
        runs.library.push(use_library(&store, scene, || (), || ())?);
        drop(store);
        close()?;
        drop(fresh);
        let fresh = Fresh::new(dir)?;
        let Open { store, close } = open(fresh.path())?;
        make_files(&store)?;
        runs.bare.push(each(&traces, |trace| replay(&*store, trace))?);
        drop(store);
        close()?;
        drop(fresh);
    }
    Ok(runs)
}

/// Times a replay of each trace.
pub(crate) fn each<T>(traces: &[Vec<T>], mut replay: impl FnMut(&[T]) -> Result<()>) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for trace in traces {
        let start = Instant::now();
        replay(trace)?;
        times.push(start.elapsed().as_secs_f64());
    }
    Ok(times)
}

/// An empty file system.
pub(crate) fn make_files(store: &Arc<dyn Store>) -> Result<()> {
    FileSystem::mkfs(store, &SystemClock::new(), &MkfsOptions { mode: 0o755, ..MkfsOptions::default() })?;
    store.sync(store.position())?;
    Ok(())
}

/// Has the library do all works on a fresh store; `begun` is called before the first, `behind` after each.
pub(crate) fn use_library(
    store: &Arc<dyn Store>,
    scene: &Scene,
    begun: impl FnOnce(),
    mut behind: impl FnMut(),
) -> Result<Vec<f64>> {
    make_files(store)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let fs = FileSystem::open(Arc::clone(store), clock, MountOptions::default())?;
    let volume = Volume::over(Arc::new(fs))?;
    let calls = Library::new(&volume, "/")?;
    calls.sync()?;
    begun();
    let times = timed(&calls, scene, || {
        behind();
        Ok(())
    })?;
    drop(calls);
    volume.unmount()?;
    Ok(times)
}

/// A directory of a store, which goes with it.
pub(crate) struct Fresh(PathBuf);

impl Fresh {
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let path = parent.join("store");
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}
