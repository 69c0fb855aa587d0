//! The engines that a store can have, and how one other than kvdb is made and opened.
//!
//! Purpose: the one list of engines. Which one a store has, its directory says ([`mark`]); what an engine is
//! asked for beside its `Store` is `kvfs_store::EngineStore`. `docs/engines.md` says how to add one.
//!
//! Thread safety: functions and plain values. Invariant: a store of an engine is claimed before the engine
//! sees it, so that one process at a time has it open, or several that only read.

#[cfg(any(feature = "leveldb", feature = "rocksdb"))]
mod database;
pub(crate) mod mark;
#[cfg(feature = "slatedb")]
mod slatedb;

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use kvfs_engine_memory::MemoryStore;
use kvfs_fs::{FileSystem, MkfsOptions};
use kvfs_kvdb::CreateOptions;
use kvfs_service::ErrorKind;
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{EngineStore, Store};

use crate::error::{Error, Result, explain_fs};
use crate::make::NewStore;
use crate::open::OpenOptions;
use crate::store_dir::StoreDir;
pub use mark::EngineMark;

/// An engine, of this build or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineKind {
    /// kvfs's own, with everything that kvfs can do.
    #[default]
    Kvdb,
    /// `RocksDB`, if this build has it.
    RocksDb,
    /// `LevelDB`, if this build has it.
    LevelDb,
    /// `SlateDB`, in object storage, if this build has it.
    SlateDb,
    /// In memory, for as long as it is open.
    Memory,
}

impl EngineKind {
    /// Those that this build has.
    pub fn built() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kind| kind.is_built())
    }

    const ALL: [Self; 5] = [Self::Kvdb, Self::RocksDb, Self::LevelDb, Self::SlateDb, Self::Memory];

    /// As commands and stores call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvdb => "kvdb",
            Self::RocksDb => "rocksdb",
            Self::LevelDb => "leveldb",
            Self::SlateDb => "slatedb",
            Self::Memory => "memory",
        }
    }

    /// The engine of that name, of this build or not.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether this build has it.
    pub fn is_built(self) -> bool {
        match self {
            Self::Kvdb | Self::Memory => true,
            Self::RocksDb => cfg!(feature = "rocksdb"),
            Self::LevelDb => cfg!(feature = "leveldb"),
            Self::SlateDb => cfg!(feature = "slatedb"),
        }
    }

    /// Whether it keeps everything in object storage.
    pub fn is_remote(self) -> bool {
        self == Self::SlateDb
    }

    /// Whether several processes may have a store open that only read. `LevelDB` writes at each opening.
    fn shares_readers(self) -> bool {
        self != Self::LevelDb
    }

    /// Whether what it holds ends when it is closed.
    pub fn is_volatile(self) -> bool {
        self == Self::Memory
    }

    /// Refuses an engine that this build lacks; `what` needs it.
    fn expect_built(self, what: &dyn fmt::Display) -> Result<()> {
        if self.is_built() {
            return Ok(());
        }
        let name = self.name();
        let message = format!(
            "{what} needs the engine {name}, which this kvfs was built without; `make build-{name}` builds one with it (the \
             feature \"{name}\" of kvfs-cli)"
        );
        Err(Error::new(ErrorKind::Usage, message))
    }
}

/// What a store in object storage may come to, which tells of no bound (bytes).
const OBJECTS_BYTES_MAX: u64 = 1 << 50;

/// A place in object storage.
#[derive(Debug, Clone, Copy)]
pub struct Objects<'a> {
    /// Bucket and prefix, such as `s3://bucket/prefix`, or a directory.
    pub url: &'a str,
    /// A server that speaks S3; `None`: that of the URL.
    pub endpoint: Option<&'a str>,
}

/// An open engine other than kvdb.
pub struct PluggedEngine {
    /// The engine.
    pub store: Arc<dyn EngineStore>,
    /// The lock of its mark.
    _claim: OwnedFd,
}

/// Opens the engine that `mark` names, in the directory `dir`.
pub(crate) fn open(dir: &StoreDir, mark: &EngineMark, options: &OpenOptions) -> Result<PluggedEngine> {
    mark.kind.expect_built(&format_args!("the store {}", dir.path().display()))?;
    check_options(mark.kind, options)?;
    let claim = EngineMark::claim(dir, options.read_only && mark.kind.shares_readers())?;
    let store = match mark.kind {
        EngineKind::Memory => open_memory(dir, mark, options)?,
        #[cfg(feature = "rocksdb")]
        EngineKind::RocksDb => database::open::<kvfs_engine_rocksdb::Rocks>(dir, options)?,
        #[cfg(not(feature = "rocksdb"))]
        EngineKind::RocksDb => unreachable!("it is refused"),
        #[cfg(feature = "leveldb")]
        EngineKind::LevelDb => database::open::<kvfs_engine_leveldb::Level>(dir, options)?,
        #[cfg(not(feature = "leveldb"))]
        EngineKind::LevelDb => unreachable!("it is refused"),
        #[cfg(feature = "slatedb")]
        EngineKind::SlateDb => slatedb::open(dir, options)?,
        #[cfg(not(feature = "slatedb"))]
        EngineKind::SlateDb => unreachable!("it is refused"),
        EngineKind::Kvdb => unreachable!("no mark names kvdb"),
    };
    Ok(PluggedEngine { store, _claim: claim })
}

/// Makes the store that `new` says in an empty directory. How much it may come to (bytes).
pub(crate) fn make(dir: &StoreDir, new: &NewStore<'_>) -> Result<u64> {
    make_engine(dir, new, true)?;
    // What is there without it is no store.
    mark_of(new).write(dir)?;
    capacity_bytes(dir, new.engine)
}

/// How much a store may come to (bytes).
pub(crate) fn capacity_bytes(dir: &StoreDir, engine: EngineKind) -> Result<u64> {
    match engine {
        EngineKind::Memory => Ok(OpenOptions::default().memory.store_bytes()),
        EngineKind::SlateDb => Ok(OBJECTS_BYTES_MAX),
        EngineKind::Kvdb | EngineKind::RocksDb | EngineKind::LevelDb => dir.free_bytes(),
    }
}

/// What the directory of that store says of its engine.
pub(crate) fn mark_of(new: &NewStore<'_>) -> EngineMark {
    EngineMark { kind: new.engine, inline: new.inline }
}

/// As [`make`], without the mark, and where `has_files` does not ask for it without a file system.
pub(crate) fn make_engine(dir: &StoreDir, new: &NewStore<'_>, has_files: bool) -> Result<()> {
    new.engine.expect_built(&"the new store")?;
    check_new(new)?;
    #[cfg(feature = "rocksdb")]
    if new.engine == EngineKind::RocksDb {
        let files = has_files.then(|| mkfs_options(dir, new.inline));
        database::make::<kvfs_engine_rocksdb::Rocks>(dir, files.as_ref())?;
    }
    #[cfg(feature = "leveldb")]
    if new.engine == EngineKind::LevelDb {
        let files = has_files.then(|| mkfs_options(dir, new.inline));
        database::make::<kvfs_engine_leveldb::Level>(dir, files.as_ref())?;
    }
    #[cfg(feature = "slatedb")]
    if let Some(objects) = new.objects.filter(|_| new.engine == EngineKind::SlateDb) {
        slatedb::make(dir, &objects, has_files.then(|| mkfs_options(dir, new.inline)).as_ref())?;
    }
    // The one in memory is made at each opening.
    let _ = (dir, has_files);
    Ok(())
}

/// Refuses a URL in a build without object storage.
pub(crate) fn expect_remote(url: &str) -> Result<()> {
    EngineKind::SlateDb.expect_built(&format_args!("the store {url}"))
}

/// What tells a place apart from all others, in one word; the build has object storage.
pub(crate) fn name_of(objects: &Objects<'_>) -> Result<String> {
    #[cfg(feature = "slatedb")]
    return slatedb::name_of(objects);
    #[cfg(not(feature = "slatedb"))]
    unreachable!("{} is refused", objects.url)
}

impl StoreDir {
    /// Where the objects of the store are, if they are files that are there: without symbolic links.
    ///
    /// # Errors
    /// The directory does not say; I/O errors.
    pub fn objects_directory(&self) -> Result<Option<PathBuf>> {
        #[cfg(feature = "slatedb")]
        if self.engine()? == EngineKind::SlateDb {
            return slatedb::objects_directory(self);
        }
        Ok(None)
    }
}

/// Refuses a place at which there is no store; the build has object storage.
pub(crate) fn expect_store(objects: &Objects<'_>) -> Result<()> {
    #[cfg(feature = "slatedb")]
    return slatedb::expect_store(objects);
    #[cfg(not(feature = "slatedb"))]
    unreachable!("{} is refused", objects.url)
}

/// Has the empty directory name the store that is at the place of `new`. What is there stays as it is,
/// whatever comes of this.
pub(crate) fn adopt(dir: &StoreDir, new: &NewStore<'_>) -> Result<()> {
    #[cfg(feature = "slatedb")]
    if let Some(objects) = &new.objects {
        slatedb::adopt(dir, objects)?;
    }
    mark_of(new).write(dir)
}

/// Removes what a failed [`make`] has left.
pub(crate) fn remove(dir: &StoreDir) -> std::io::Result<()> {
    #[cfg(any(feature = "leveldb", feature = "rocksdb"))]
    for kind in [EngineKind::RocksDb, EngineKind::LevelDb] {
        database::remove(dir, kind.name())?;
    }
    #[cfg(feature = "slatedb")]
    slatedb::remove(dir)?;
    mark::remove(dir)
}

/// Refuses a place in object storage to an engine that has none, and an engine that has to a store without
/// one.
pub(crate) fn check_objects(new: &NewStore<'_>) -> Result<()> {
    let name = new.engine.name();
    let message = match (new.objects, new.engine.is_remote()) {
        (Some(_), false) => {
            format!("a store of engine {name} has no objects (--url); one of engine slatedb has")
        }
        (None, true) => {
            new.engine.expect_built(&"the new store")?;
            format!(
                "a store of engine {name} needs a place for its objects, such as --url s3://bucket/prefix"
            )
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Usage, message))
}

fn check_new(new: &NewStore<'_>) -> Result<()> {
    let lacking = [
        (new.size.is_some(), "size of its own (--size): it takes what is there"),
        (!new.others.is_empty(), "devices (--device)"),
        (new.placement.is_some(), "placement (--placement)"),
    ];
    expect_none(new.engine, &lacking)
}

pub(crate) fn check_options(engine: EngineKind, options: &OpenOptions) -> Result<()> {
    let is_remote = engine.is_remote();
    let of_remote = [
        (options.cache_bytes.is_some(), "cache on a local disk (-o cache_size)"),
        (options.lease.is_some(), "mount elsewhere that could take it over (-o lease)"),
        (options.timeout.is_some(), "object storage to wait for (-o timeout)"),
        (options.journals_locally, "other place to be durable in (-o durability=local)"),
        (options.takes_over, "mount elsewhere that it could be taken from (-o take_over)"),
        (options.follows, "mount elsewhere whose changes it could show (-o follow)"),
    ];
    if let Some((_, what)) = of_remote.iter().find(|(is_asked_for, _)| *is_asked_for && !is_remote) {
        let message = format!("a store of engine {} has no {what}; one of engine slatedb has", engine.name());
        return Err(Error::new(ErrorKind::Usage, message));
    }
    if options.follows && !options.read_only {
        let message =
            "follow shows what another mount writes, and writes nothing itself: it needs ro (-o ro,follow)";
        return Err(Error::new(ErrorKind::Usage, message));
    }
    if engine == EngineKind::Kvdb {
        return Ok(());
    }
    let lacking = [
        (options.placement.is_some(), "placement (-o placement)"),
        (
            engine == EngineKind::LevelDb && options.io_limit.is_some(),
            "limit of what is written in the background (-o io_limit)",
        ),
        (options.dirty_bytes.is_some(), "bound of what is not durable yet (-o dirty_bytes)"),
        (options.cache_policy != kvfs_kvdb::Policy::default(), "choice of caches (-o cache)"),
        (is_remote && options.io_limit.is_some(), "limit of merges (-o io_limit)"),
    ];
    expect_none(engine, &lacking)
}

fn expect_none(engine: EngineKind, lacking: &[(bool, &str)]) -> Result<()> {
    let found = lacking.iter().find(|(is_asked_for, _)| *is_asked_for);
    found.map_or(Ok(()), |(_, what)| {
        let message = format!("a store of engine {} has no {}; one of engine kvdb has", engine.name(), what);
        Err(Error::new(ErrorKind::Usage, message))
    })
}

fn mkfs_options(dir: &StoreDir, inline: u64) -> MkfsOptions {
    let (uid, gid) = dir.beneficiary();
    MkfsOptions { inline_len_max: inline as u32, uid, gid, mode: 0o755 }
}

/// An empty file system, new each time.
fn open_memory(dir: &StoreDir, mark: &EngineMark, options: &OpenOptions) -> Result<Arc<dyn EngineStore>> {
    let uuid = CreateOptions::with_new_uuid(0)?.uuid;
    let memory = Arc::new(MemoryStore::new(options.memory.store_bytes(), uuid));
    make_files(&(Arc::clone(&memory) as Arc<dyn Store>), dir, &mkfs_options(dir, mark.inline))?;
    Ok(memory)
}

fn make_files(store: &Arc<dyn Store>, dir: &StoreDir, options: &MkfsOptions) -> Result<()> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    FileSystem::mkfs(store, clock.as_ref(), options).map_err(|error| explain_fs(dir, error))
}
