//! Opening and making stores: device → engine → file system.

use std::path::Path;
use std::sync::Arc;

use kvfs_device::{Device, FileDevice, OpenError};
use kvfs_fs::{FileSystem, FsError, MkfsOptions, MountOptions};
use kvfs_kvdb::{CreateOptions, Db, Options};
use kvfs_store::Store;
use kvfs_store::clock::{Clock, SystemClock};

use crate::error::{CliError, Code, Result};
use crate::store_dir::StoreDir;

/// The memory ceiling and how it is divided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    bytes: u64,
}

impl Default for Memory {
    /// A quarter of RAM, at most 2 GiB.
    fn default() -> Self {
        let info = rustix::system::sysinfo();
        let ram = info.totalram.saturating_mul(u64::from(info.mem_unit));
        Self { bytes: (ram / 4).min(2 << 30) }
    }
}

impl Memory {
    /// Least that works (bytes).
    const BYTES_MIN: u64 = 64 << 20;

    pub(crate) fn new(bytes: Option<u64>) -> Result<Self> {
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        if bytes < Self::BYTES_MIN {
            return Err(CliError::new(Code::Failed, "--memory must be at least 64M"));
        }
        Ok(Self { bytes })
    }

    /// For the table of what the kernel knows: an eighth, and half as much again for content between
    /// lookup and read.
    fn node_bytes(self) -> u64 {
        self.bytes / 8
    }

    fn content_bytes(self) -> u64 {
        self.bytes / 32
    }

    fn engine_bytes(self) -> u64 {
        self.bytes - self.node_bytes() - self.content_bytes()
    }
}

/// An open store with its file system. Field order is drop order: the file system before the engine.
pub(crate) struct OpenStore {
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) db: Arc<Db>,
}

impl OpenStore {
    /// Opens everything; the journal is replayed.
    pub(crate) fn open(dir: &StoreDir, memory: Memory, read_only: bool) -> Result<Self> {
        let options = MountOptions { read_only, ..MountOptions::default() };
        Self::open_with(dir, memory, options, None)
    }

    pub(crate) fn open_with(
        dir: &StoreDir,
        memory: Memory,
        mount: MountOptions,
        commit_interval: Option<std::time::Duration>,
    ) -> Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let device = open_device(dir, mount.read_only)?;
        let mut options = Options::with_memory(memory.engine_bytes());
        options.read_only = mount.read_only;
        if let Some(interval) = commit_interval {
            options.commit_interval = interval;
        }
        let db = Db::open(device, options, Arc::clone(&clock)).map_err(|error| explain_open(dir, error))?;
        let mount = MountOptions {
            node_bytes_max: memory.node_bytes(),
            content_bytes_max: memory.content_bytes(),
            ..mount
        };
        let store: Arc<dyn Store> = Arc::clone(&db) as Arc<dyn Store>;
        let fs = FileSystem::open(store, clock, mount).map_err(|error| explain_fs(dir, &error))?;
        Ok(Self { fs: Arc::new(fs), db })
    }

    /// Makes everything durable.
    pub(crate) fn sync(&self) -> Result<()> {
        Ok(self.db.sync(self.db.position())?)
    }
}

/// Makes the engine's structures and an empty file system on `device`.
pub(crate) fn make(dir: &StoreDir, device: Arc<dyn Device>, capacity_bytes: u64, inline: u32) -> Result<()> {
    let mut uuid = [0; 16];
    let filled = rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty());
    if filled != Ok(uuid.len()) {
        return Err(CliError::new(Code::Failed, "the kernel gave no random bytes for the store's identity"));
    }
    Db::create(Arc::clone(&device), &CreateOptions::new(capacity_bytes, uuid))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let db = Db::open(device, Options::with_memory(Memory::BYTES_MIN), Arc::clone(&clock))?;
    let store: Arc<dyn Store> = Arc::clone(&db) as Arc<dyn Store>;
    let options = MkfsOptions {
        inline_len_max: inline,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        mode: 0o755,
    };
    FileSystem::mkfs(&store, clock.as_ref(), &options).map_err(|error| explain_fs(dir, &error))?;
    drop(store);
    db.close()?;
    Ok(())
}

fn open_device(dir: &StoreDir, read_only: bool) -> Result<Arc<dyn Device>> {
    match FileDevice::open(&dir.device_path(), read_only) {
        Ok(device) => Ok(Arc::new(device)),
        Err(error) => Err(explain_device(dir.path(), &error)),
    }
}

/// What a device that can't be opened means to the user.
pub(crate) fn explain_device(store: &Path, error: &OpenError) -> CliError {
    let code = match error {
        OpenError::InUse { .. } => Code::InUse,
        OpenError::NotFound { .. } => Code::NotAStore,
        OpenError::Permission { .. } => Code::Denied,
        _ => Code::Failed,
    };
    let hint = if code == Code::InUse { "; it is mounted already, or another kvfs command works on it" } else { "" };
    CliError::new(code, format!("cannot open the store {}: {error}{hint}", store.display()))
}

fn explain_open(dir: &StoreDir, error: kvfs_store::StoreError) -> CliError {
    let base = CliError::from(error);
    CliError::new(base.code, format!("cannot open the store {}: {}", dir.path().display(), base.message))
}

fn explain_fs(dir: &StoreDir, error: &FsError) -> CliError {
    let code = match error {
        FsError::Format { .. } => Code::NotAStore,
        FsError::NoSpace => Code::NoSpace,
        FsError::Corrupt { .. } => Code::Damaged,
        _ => Code::Failed,
    };
    CliError::new(code, format!("the file system in {}: {error}", dir.path().display()))
}
