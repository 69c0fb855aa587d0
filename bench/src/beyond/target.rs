//! What is measured: file systems whose data is in object storage.
//!
//! Thread safety: each value belongs to one thread. Invariants: what was mounted is unmounted when it is
//! dropped; a cold start has nothing of an earlier mount but what is in object storage and, for those that
//! have one, their database of metadata.

use crate::storage::{ACCESS_KEY, BUCKET, REGION, SECRET_KEY, Storage};
use anyhow::Result;
use kvfs_bench::daemon::Daemon;
use kvfs_bench::host;
use kvfs_bench::memory::MemoryPeak;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum TargetName {
    /// kvfs, engine slatedb
    Kvfs,
    /// The same with a journal on the local disk, which is what fsync waits for; not by default, since no
    /// rival promises so little
    KvfsLocal,
    /// `JuiceFS` with its metadata in `SQLite`
    Juicefs,
    /// s3fs, each file an object; not by default, for the time that it takes
    S3fs,
    /// No file system: the client `object_store` alone, for large files
    Bare,
}

impl TargetName {
    /// In results and goals.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Kvfs => "kvfs",
            Self::KvfsLocal => "kvfs-local",
            Self::Juicefs => "juicefs",
            Self::S3fs => "s3fs",
            Self::Bare => "bare",
        }
    }

    pub(crate) fn about(self, programs: &Programs) -> String {
        let version = |program: &Path| host::version(&program.to_string_lossy(), "--version");
        match self {
            Self::Kvfs => format!(
                "{}; engine slatedb, local cache of {CACHE_MIB} MiB; fsync: in object storage",
                version(&programs.kvfs)
            ),
            Self::KvfsLocal => format!(
                "{}; engine slatedb, local cache of {CACHE_MIB} MiB; fsync: in a journal on the local disk, and in object storage a \
                 second later",
                version(&programs.kvfs)
            ),
            Self::Juicefs => format!(
                "{}; metadata in SQLite on the local disk, local cache of {CACHE_MIB} MiB; close and fsync: content in object storage",
                version(&programs.juicefs)
            ),
            Self::S3fs => format!(
                "{}; local cache; close and fsync: the file in object storage",
                version(Path::new("s3fs"))
            ),
            Self::Bare => "object_store; eight requests of 8 MiB at a time".into(),
        }
    }
}

/// What each file system may keep of its objects on the local disk.
const CACHE_MIB: u64 = 4096;

/// Where the programs are.
pub(crate) struct Programs {
    pub(crate) kvfs: PathBuf,
    pub(crate) juicefs: PathBuf,
    pub(crate) server: PathBuf,
}

/// A new file system that is mounted.
pub(crate) struct Target<'a> {
    name: TargetName,
    programs: &'a Programs,
    storage: &'a Storage,
    /// Its local files; nothing else is there.
    local: PathBuf,
    dir: PathBuf,
    daemon: Option<Daemon>,
    peak: MemoryPeak,
}

impl<'a> Target<'a> {
    /// Made in `storage`, which is empty, and mounted below `work`.
    pub(crate) fn new(
        name: TargetName,
        programs: &'a Programs,
        storage: &'a Storage,
        work: &Path,
    ) -> Result<Self> {
        let (local, dir) = (work.join("local"), work.join("mnt"));
        for dir in [&local, &dir] {
            fs::create_dir_all(dir)?;
        }
        let (daemon, peak) = (None, MemoryPeak::default());
        let mut target = Self { name, programs, storage, local, dir, daemon, peak };
        target.make()?;
        target.mount()?;
        Ok(target)
    }

    /// Where it is mounted.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Everything that was written is durable, wherever the file system promises that.
    pub(crate) fn sync(&self) -> Result<()> {
        host::make_durable(&self.dir)
    }

    /// Nothing is cached on this machine, of objects neither.
    pub(crate) fn make_cold(&mut self) -> Result<()> {
        self.unmount()?;
        let cache = match self.name {
            // It has nothing there that is not in object storage.
            TargetName::Kvfs | TargetName::KvfsLocal => self.local.clone(),
            _ => self.local.join("cache"),
        };
        if cache.exists() {
            fs::remove_dir_all(&cache)?;
        }
        fs::create_dir_all(&self.local)?;
        host::drop_caches()?;
        self.mount()
    }

    /// What its daemons took at most.
    pub(crate) fn remove(mut self) -> Result<MemoryPeak> {
        self.unmount()?;
        fs::remove_dir_all(&self.local)?;
        Ok(self.peak)
    }

    fn database(&self) -> String {
        format!("sqlite3://{}", self.local.join("metadata.db").display())
    }

    fn make(&self) -> Result<()> {
        let mut command = match self.name {
            TargetName::Kvfs | TargetName::KvfsLocal => {
                let mut command = kvfs(&self.programs.kvfs, self.storage, &self.local);
                command.args(["mkfs", STORE_URL]);
                command
            }
            TargetName::Juicefs => {
                let mut command = Command::new(&self.programs.juicefs);
                let bucket = format!("{}/{BUCKET}", self.storage.endpoint());
                command.args(["format", "--storage", "s3", "--trash-days", "0", "--bucket", &bucket]);
                command.args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]).arg(self.database());
                command.arg("volume");
                command
            }
            TargetName::S3fs => {
                let secret = self.local.join("secret");
                fs::write(&secret, format!("{ACCESS_KEY}:{SECRET_KEY}\n"))?;
                return Ok(fs::set_permissions(secret, fs::Permissions::from_mode(0o600))?);
            }
            TargetName::Bare => return Ok(()),
        };
        host::succeed(&mut command).map(drop)
    }

    fn mount(&mut self) -> Result<()> {
        let log = self.local.with_extension("log");
        let mut command = match self.name {
            TargetName::Kvfs => mount_kvfs(&self.programs.kvfs, self.storage, &self.local, "storage"),
            TargetName::KvfsLocal => mount_kvfs(&self.programs.kvfs, self.storage, &self.local, "local"),
            TargetName::Juicefs => {
                let mut command = Command::new(&self.programs.juicefs);
                command.args([
                    "mount",
                    "--no-usage-report",
                    "--no-syslog",
                    "--enable-xattr",
                    "--backup-meta",
                    "0",
                ]);
                command.arg("--cache-dir").arg(self.local.join("cache"));
                command.args(["--cache-size", &CACHE_MIB.to_string()]).arg(self.database());
                command
            }
            TargetName::S3fs => {
                let mut command = Command::new("s3fs");
                let (secret, cache) = (self.local.join("secret"), self.local.join("cache"));
                command.arg("-f").arg("-o").arg(format!(
                    "url={},use_path_request_style,passwd_file={},use_cache={}",
                    self.storage.endpoint(),
                    secret.display(),
                    cache.display()
                ));
                command.arg(BUCKET);
                command
            }
            TargetName::Bare => return Ok(()),
        };
        command.arg(&self.dir);
        self.daemon = Some(Daemon::start(command, &self.dir, &log)?);
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(daemon) = self.daemon.take() else { return Ok(()) };
        let (name, dir, programs) = (self.name, self.dir.as_os_str(), self.programs);
        let peak = daemon.stop(|_| {
            match name {
                TargetName::Kvfs | TargetName::KvfsLocal => {
                    host::run(&programs.kvfs, &["umount".as_ref(), dir])
                }
                TargetName::Juicefs => host::run(&programs.juicefs, &["umount".as_ref(), dir]),
                TargetName::S3fs | TargetName::Bare => host::run("umount", &[dir]),
            }
            .map(drop)
        })?;
        self.peak = self.peak.max(peak);
        Ok(())
    }
}

/// Of the one store of a bucket.
pub(crate) const STORE_URL: &str = "s3://bucket/store";

/// A command of kvfs that finds object storage, and has its local files in `local`.
pub(crate) fn kvfs(program: &Path, storage: &Storage, local: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("KVFS_STATE_DIR", local)
        .env("AWS_ENDPOINT_URL", storage.endpoint())
        .env("AWS_REGION", REGION);
    command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    command
}

/// As [`kvfs`]: mounts the store in the foreground; the directory is what is missing. Syncs wait for
/// `durability`.
pub(crate) fn mount_kvfs(program: &Path, storage: &Storage, local: &Path, durability: &str) -> Command {
    let mut command = kvfs(program, storage, local);
    let options = format!("cache_size={CACHE_MIB}M,durability={durability}");
    command.args(["mount", "--foreground", "-o", &options, STORE_URL]);
    command
}
