//! Options of a mount that the FUSE layer leaves to us, and which of them change while it is there.
//!
//! Thread safety: plain values.

use std::path::PathBuf;
use std::time::Duration;

use kvfs_fuse::mount::MountOptions;
use kvfs_kvdb::{Placement, Policy};
use kvfs_open::Memory;
use kvfs_service::Remount;

use crate::daemon::metrics::MetricsPlace;
use crate::error::{CliError, Code, Result};
use crate::names::Table;
use crate::units::{parse_duration, parse_duration_or_ever, parse_size};

/// Longest commit interval that makes sense (seconds).
pub(super) const COMMIT_SECONDS_MAX: f64 = 3600.0;

/// Transactions that can be taken back, and how long, unless told otherwise.
pub(super) const UNDO_COUNT: usize = 16;
pub(super) const UNDO_AGE: Duration = Duration::from_hours(1);

/// Each one that is kept is two more positions of which merges keep the versions.
pub(super) const UNDO_COUNT_MAX: usize = 1000;

/// How long a transaction may go without an operation, unless told otherwise: what is forgotten is not kept
/// for good, and what a user comes back to after a day's work is.
pub(super) const TXN_IDLE: Duration = Duration::from_hours(8);

/// Operations that take as long are told of in the log, unless told otherwise.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// Less would not even keep up with an idle store (bytes each second).
pub(super) const IO_LIMIT_MIN: u64 = 64 << 10;

/// With less there would be a sync for each large request (bytes).
pub(super) const DIRTY_BYTES_MIN: u64 = 1 << 20;

/// More threads than this do not help.
pub(super) const WORKERS_MAX: u16 = 256;

/// Options that the FUSE layer leaves to us.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct Ours {
    pub(super) nonempty: bool,
    pub(super) writeback: bool,
    pub(super) nosteer: bool,
    pub(super) io_uring: bool,
    pub(super) noacl: bool,
    pub(super) lazytime: bool,
    pub(super) nobtime: bool,
    pub(super) commit_interval: Option<Duration>,
    pub(super) dirty_bytes: Option<u64>,
    pub(super) undo_count: Option<usize>,
    pub(super) undo_age: Option<Duration>,
    pub(super) txn_idle: Option<Duration>,
    pub(super) slow: Option<Duration>,
    pub(super) metrics: Option<MetricsPlace>,
    pub(super) create: bool,
    pub(super) size: Option<u64>,
    pub(super) memory: Option<u64>,
    pub(super) workers: Option<u16>,
    pub(super) io_limit: Option<u64>,
    pub(super) cache: Option<Policy>,
    pub(super) placement: Option<Placement>,
    pub(super) cache_trace: Option<PathBuf>,
    pub(super) private_snapshots: bool,
    pub(super) cache_bytes: Option<u64>,
    pub(super) local_journal: bool,
    pub(super) take_over: bool,
    pub(super) lease: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) follow: bool,
    pub(super) store_owner: Option<u32>,
}

impl Ours {
    /// False: the option is unknown.
    pub(super) fn apply(&mut self, option: &str, mount: &mut MountOptions) -> Result<bool> {
        match option.split_once('=') {
            None if option == "nonempty" => self.nonempty = true,
            None if option == "writeback" => self.writeback = true,
            None if option == "nosteer" => self.nosteer = true,
            None if option == "io_uring" => self.io_uring = true,
            None if option == "acl" => self.noacl = false,
            None if option == "noacl" => self.noacl = true,
            None if option == "lazytime" => self.lazytime = true,
            None if option == "nolazytime" => self.lazytime = false,
            None if option == "nobtime" => self.nobtime = true,
            None if option == "no_allow_other" => mount.allow_other = false,
            Some(("commit", seconds)) => self.commit_interval = Some(parse_commit(seconds)?),
            Some(("dirty_bytes", size)) => self.dirty_bytes = parse_dirty_bytes(option, size)?,
            Some(("undo_count", count)) => self.undo_count = Some(parse_undo_count(count)?),
            Some(("undo_age", age)) => self.undo_age = Some(parse_undo_age(age)?),
            Some(("slow", time)) => self.slow = Some(parse_slow(time)?),
            Some(("metrics", place)) => self.metrics = Some(parse_metrics(place)?),
            Some(("txn_idle", time)) => self.txn_idle = Some(parse_txn_idle(time)?),
            None if option == "private_snapshots" => self.private_snapshots = true,
            None if option == "take_over" => self.take_over = true,
            Some(("timeout", time)) => self.timeout = Some(parse_timeout(time)?),
            Some(("lease", time)) => self.lease = Some(parse_lease(time)?),
            Some(("durability", place)) => self.local_journal = parse_durability(place)?,
            None if option == "follow" => self.follow = true,
            Some(("cache_size", size)) => self.cache_bytes = Some(parse_bytes(option, size)?),
            None if option == "create" => self.create = true,
            Some(("size", size)) => self.size = Some(parse_bytes(option, size)?),
            Some(("memory", size)) => self.memory = Some(parse_bytes(option, size)?),
            Some(("workers", count)) => self.workers = Some(parse_workers(count)?),
            Some(("store_owner", name)) => self.store_owner = Some(parse_owner(option, name)?),
            Some(("cache", policy)) => self.cache = Some(parse_cache_policy(policy)?),
            Some(("placement", policy)) => self.placement = Some(parse_placement(policy)?),
            Some(("cache_trace", path)) if !path.is_empty() => self.cache_trace = Some(path.into()),
            Some(("io_limit", size)) => self.io_limit = parse_io_limit(option, size)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// What a mount was asked for: what the FUSE layer knows, and the rest. Switches of the command stand among
/// the options.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(super) mount: MountOptions,
    pub(super) ours: Ours,
}

impl Asked {
    /// Takes the options of a list, later ones win.
    pub(super) fn apply(&mut self, list: &str, sloppy: bool) -> Result<()> {
        let rest = self.mount.apply(list).map_err(|error| CliError::new(Code::Usage, error.to_string()))?;
        for option in rest {
            if !self.ours.apply(option, &mut self.mount)? && !sloppy {
                return Err(CliError::new(
                    Code::Usage,
                    format!("unknown mount option \"{option}\"; `kvfs mount --help` lists them"),
                ));
            }
        }
        Ok(())
    }

    /// What a remount by these options changes beside what the kernel keeps. (What `/etc/fstab` says comes
    /// along with each remount, so what is as before is no reason to refuse.)
    ///
    /// # Errors
    /// An option is unknown, makes no sense, or differs from what the mount has and can't change while it is
    /// there.
    pub(crate) fn remount(&self, options: &[String]) -> Result<Remount> {
        let mut wanted = self.clone();
        for option in options {
            wanted.apply(option, false)?;
        }
        let (kept, asked) = (self.fixed()?, wanted.fixed()?);
        if let Some(at) = (0..kept.len()).find(|&at| kept[at] != asked[at]) {
            let name = kept[at].0;
            let is_of = |option: &&String| {
                let mut alone = self.clone();
                alone.apply(option, false).is_ok() && alone.fixed().is_ok_and(|fixed| fixed[at] != kept[at])
            };
            let option = options.iter().rfind(is_of).map_or(name, String::as_str);
            let instead = if name == "size" {
                "`kvfs grow` makes a store larger"
            } else {
                "unmount, and mount it again"
            };
            return Err(CliError::new(Code::Usage, format!("{option} needs another mount: {instead}")));
        }
        // Of the list alone: what the mount began with may have been changed since.
        let mut named = Self { mount: MountOptions::default(), ours: Ours::default() };
        for option in options {
            named.apply(option, false)?;
        }
        let Ours { commit_interval, placement, .. } = named.ours;
        Ok(Remount { commit_interval, placement: placement.map(|placement| placement.to_string()) })
    }

    /// What stays as it is as long as the mount is there: names, and values that are equal where the effect
    /// is. `create`, `nonempty` and `take_over` are about the moment of the mount alone.
    fn fixed(&self) -> Result<Vec<(&'static str, String)>> {
        let Self { mount, ours } = self;
        let memory = Memory::new(ours.memory)?.bytes();
        let time = |time: Option<Duration>, otherwise: Duration| format!("{:?}", time.unwrap_or(otherwise));
        Ok(vec![
            ("noatime", format!("{:?}", mount.atime)),
            ("nodiratime", mount.nodiratime.to_string()),
            ("allow_other", mount.allow_other.to_string()),
            ("default_permissions", mount.default_permissions.to_string()),
            ("max_read", mount.read_bytes_max.to_string()),
            ("writeback", ours.writeback.to_string()),
            ("nosteer", ours.nosteer.to_string()),
            ("io_uring", ours.io_uring.to_string()),
            ("noacl", ours.noacl.to_string()),
            ("lazytime", ours.lazytime.to_string()),
            ("nobtime", ours.nobtime.to_string()),
            ("private_snapshots", ours.private_snapshots.to_string()),
            ("undo_count", ours.undo_count.unwrap_or(UNDO_COUNT).to_string()),
            ("undo_age", time(ours.undo_age, UNDO_AGE)),
            ("txn_idle", time(ours.txn_idle, TXN_IDLE)),
            ("slow", time(ours.slow, SLOW)),
            ("metrics", format!("{:?}", ours.metrics)),
            ("size", format!("{:?}", ours.size)),
            ("memory", memory.to_string()),
            ("workers", format!("{:?}", ours.workers)),
            ("io_limit", format!("{:?}", ours.io_limit)),
            ("dirty_bytes", format!("{:?}", ours.dirty_bytes)),
            ("cache", ours.cache.unwrap_or_default().to_string()),
            ("cache_size", format!("{:?}", ours.cache_bytes)),
            ("timeout", format!("{:?}", ours.timeout)),
            ("lease", format!("{:?}", ours.lease)),
            ("durability", ours.local_journal.to_string()),
            ("follow", ours.follow.to_string()),
            ("cache_trace", format!("{:?}", ours.cache_trace)),
            ("store_owner", format!("{:?}", ours.store_owner)),
        ])
    }
}

fn parse_commit(text: &str) -> Result<Duration> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= COMMIT_SECONDS_MAX => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(CliError::new(
            Code::Usage,
            format!("commit={text}: seconds, more than 0 and at most {COMMIT_SECONDS_MAX}"),
        )),
    }
}

fn parse_bytes(option: &str, text: &str) -> Result<u64> {
    parse_size(text).map_err(|error| CliError::new(Code::Usage, format!("{option}: {error}")))
}

/// 0: no bound.
fn parse_dirty_bytes(option: &str, text: &str) -> Result<Option<u64>> {
    let bytes = parse_bytes(option, text)?;
    if (1..DIRTY_BYTES_MIN).contains(&bytes) {
        let least = format!("{option}: at least {} MiB, or 0 for no bound", DIRTY_BYTES_MIN >> 20);
        return Err(CliError::new(Code::Usage, least));
    }
    Ok(Some(bytes).filter(|&bytes| bytes > 0))
}

/// 0: none.
fn parse_io_limit(option: &str, text: &str) -> Result<Option<u64>> {
    let bytes = parse_bytes(option, text)?;
    if (1..IO_LIMIT_MIN).contains(&bytes) {
        let least = format!("{option}: at least {} KiB each second, or 0 for no limit", IO_LIMIT_MIN >> 10);
        return Err(CliError::new(Code::Usage, least));
    }
    Ok(Some(bytes).filter(|&bytes| bytes > 0))
}

fn parse_cache_policy(text: &str) -> Result<Policy> {
    text.parse().map_err(|error| CliError::new(Code::Usage, format!("cache={text}: {error}")))
}

fn parse_placement(text: &str) -> Result<Placement> {
    text.parse().map_err(|error| CliError::new(Code::Usage, format!("placement={text}: {error}")))
}

fn parse_owner(option: &str, name: &str) -> Result<u32> {
    Table::Users.number(name).map_err(|error| CliError::new(error.code, format!("{option}: {error}")))
}

fn parse_workers(text: &str) -> Result<u16> {
    let count = text.parse().ok().filter(|count| (1..=WORKERS_MAX).contains(count));
    count.ok_or_else(|| {
        CliError::new(Code::Usage, format!("workers={text}: a number from 1 to {WORKERS_MAX}"))
    })
}

fn parse_undo_count(text: &str) -> Result<usize> {
    let count = text.parse().ok().filter(|&count| count <= UNDO_COUNT_MAX);
    count.ok_or_else(|| {
        CliError::new(Code::Usage, format!("undo_count={text}: a number, at most {UNDO_COUNT_MAX}"))
    })
}

fn parse_undo_age(text: &str) -> Result<Duration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    parse_duration(text).map_err(|error| CliError::new(Code::Usage, format!("undo_age={text}: {error}")))
}

fn parse_txn_idle(text: &str) -> Result<Duration> {
    parse_duration_or_ever(text)
        .map_err(|error| CliError::new(Code::Usage, format!("txn_idle={text}: {error}")))
}

fn parse_slow(text: &str) -> Result<Duration> {
    parse_duration_or_ever(text).map_err(|error| CliError::new(Code::Usage, format!("slow={text}: {error}")))
}

/// Whether the local disk is enough.
fn parse_durability(text: &str) -> Result<bool> {
    match text {
        "local" => Ok(true),
        "storage" => Ok(false),
        _ => Err(CliError::new(
            Code::Usage,
            format!(
                "durability={text}: storage (a sync waits for object storage) or local (for a journal on the local disk)"
            ),
        )),
    }
}

fn parse_lease(text: &str) -> Result<Duration> {
    parse_duration(text).map_err(|error| CliError::new(Code::Usage, format!("lease={text}: {error}")))
}

/// Zero: for ever.
fn parse_timeout(text: &str) -> Result<Duration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    parse_duration(text).map_err(|error| CliError::new(Code::Usage, format!("timeout={text}: {error}")))
}

fn parse_metrics(text: &str) -> Result<MetricsPlace> {
    text.parse().map_err(|error| CliError::new(Code::Usage, format!("metrics={text}: {error}")))
}

#[cfg(test)]
mod tests;
