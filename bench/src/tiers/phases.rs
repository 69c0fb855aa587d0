//! What is done with each target, in this order: filled; worked on until what is popular lies where it
//! belongs; timed; where there are two tiers, worked on while other files become popular, and while a cold
//! file moves; at last a tree of sources.
//!
//! Thread safety: belongs to one thread.

use crate::load::{self, Kind, Load, Operation};
use crate::sizes::Sizes;
use crate::target::{Migration, Target};
use anyhow::{Context, Result, ensure};
use kvfs_bench::counters::{Meter, Probe, Usage};
use kvfs_bench::host;
use kvfs_bench::programs::Programs;
use kvfs_bench::results::Class;
use kvfs_device::Rng;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A row.
pub(crate) struct Row {
    pub(crate) key: &'static str,
    pub(crate) title: &'static str,
    pub(crate) class: Class,
}

const fn row(key: &'static str, title: &'static str, class: Class) -> Row {
    Row { key, title, class }
}

pub(crate) const ROWS: &[Row] = &[
    row("tiers-mix", "10,000 reads, overwrites of 4 KiB", Class::SyncAtEnd),
    row("tiers-p99-read", "99 % of reads stay below", Class::Cold),
    row("tiers-p99-sync", "99 % of fsyncs stay below", Class::SyncEach),
    row("tiers-p99-read-moving", "the same while a file moves", Class::Cold),
    row("tiers-p99-sync-moving", "the same while a file moves", Class::SyncEach),
    row("tiers-moved", "others popular: until 0.9 of the rate", Class::SyncAtEnd),
    row("tiers-untar", "untar", Class::SyncAtEnd),
    row("tiers-copy", "cp -a of the tree", Class::SyncAtEnd),
    row("tiers-grep", "grep -r", Class::Cold),
];

const OPERATIONS: f64 = 10_000.0;
/// Nothing has moved for so long: what is popular lies where it belongs.
const QUIET: Duration = Duration::from_secs(45);
/// Of a store without a second tier.
const WARM_UP: Duration = Duration::from_secs(5);
const STEADY_LIMIT: Duration = Duration::from_mins(10);
const RECOVERED: f64 = 0.9;
/// So many seconds in a row.
const RECOVERED_SECONDS: u32 = 3;
const RECOVERY_LIMIT: Duration = Duration::from_mins(10);
const MOVE_LIMIT: Duration = Duration::from_mins(5);
const COLD_FILE: &str = "cold";

/// What the phases of a target share.
pub(crate) struct Phases<'a> {
    pub(crate) target: &'a mut Target,
    pub(crate) has_two_tiers: bool,
    pub(crate) sizes: &'a Sizes,
    pub(crate) seed: u64,
    pub(crate) tarball: &'a Path,
    /// Row, seconds.
    pub(crate) found: Vec<(&'static str, f64, Usage)>,
}

impl Phases<'_> {
    pub(crate) fn run(&mut self) -> Result<()> {
        self.fill()?;
        let Sizes { data_bytes, hot_bytes, .. } = *self.sizes;
        let mut load = Load::open(self.target.dir(), data_bytes, hot_bytes, self.seed)?;
        self.settle(&load)?;
        let operations = self.time(&load)?;
        if self.has_two_tiers {
            let rate = OPERATIONS / self.found.last().context("timed above")?.1;
            load.move_elsewhere();
            self.recover(&load, rate)?;
            self.settle(&load)?;
            self.move_cold_file(&load)?;
        } else {
            self.note_latencies(&operations, "tiers-p99-read", "tiers-p99-sync");
        }
        drop(load);
        self.tree()
    }

    fn note(&mut self, key: &'static str, seconds: f64, usage: Usage) {
        eprintln!("    {key}: {}", kvfs_bench::report::seconds_text(seconds));
        self.found.push((key, seconds, usage));
    }

    fn fill(&mut self) -> Result<()> {
        let start = Instant::now();
        load::fill(self.target.dir(), self.sizes.data_bytes, self.seed)?;
        let cold = self.target.dir().join(COLD_FILE);
        load::write_file(&cold, self.sizes.moving_bytes, &mut Rng::new(self.seed + 1))?;
        self.target.sync()?;
        eprintln!("    filled in {:.0} s", start.elapsed().as_secs_f64());
        self.target.mount_again()
    }

    /// Works until nothing moves any more.
    fn settle(&self, load: &Load) -> Result<()> {
        if !self.has_two_tiers {
            return load.run(|second| Ok(second.at < WARM_UP)).map(drop);
        }
        let (mut before, mut quiet_since) = (Migration::default(), Duration::ZERO);
        load.run(|second| {
            let now = self.target.migration()?;
            if now.moving || now.moved_bytes != before.moved_bytes {
                quiet_since = second.at;
            }
            before = now;
            ensure!(second.at < STEADY_LIMIT, "it has not come to rest within {STEADY_LIMIT:?}: {now:?}");
            Ok(second.at < quiet_since + QUIET)
        })?;
        eprintln!(
            "    at rest after {:.0} s, {} MiB moved",
            quiet_since.as_secs_f64(),
            before.moved_bytes >> 20
        );
        Ok(())
    }

    fn time(&mut self, load: &Load) -> Result<Vec<Operation>> {
        let mut meter = Meter::start(Probe::default())?;
        let start = Instant::now();
        let operations = load.run(|second| Ok(second.at < self.sizes.timing))?;
        let seconds = start.elapsed().as_secs_f64();
        meter.stop()?;
        let count = operations.iter().filter(|it| it.kind != Kind::Sync).count();
        self.note("tiers-mix", seconds * OPERATIONS / count as f64, meter.finish()?);
        Ok(operations)
    }

    fn note_latencies(&mut self, operations: &[Operation], read: &'static str, sync: &'static str) {
        for (key, kind) in [(read, Kind::Read), (sync, Kind::Sync)] {
            match load::at_99(operations, kind) {
                Some(seconds) => self.note(key, seconds, Usage::default()),
                None => eprintln!("    {key}: too few to tell"),
            }
        }
    }

    /// Until the load is as fast as it was.
    fn recover(&mut self, load: &Load, rate: f64) -> Result<()> {
        let (mut in_row, mut since, mut rates) = (0, Duration::ZERO, Vec::new());
        load.run(|second| {
            rates.push(second.rate);
            if second.rate >= RECOVERED * rate {
                in_row += 1;
            } else {
                (in_row, since) = (0, second.at);
            }
            ensure!(second.at < RECOVERY_LIMIT, "only {:.0} of {rate:.0} each second", second.rate);
            Ok(in_row < RECOVERED_SECONDS)
        })?;
        let every_tenth: Vec<_> = rates.iter().step_by(10).map(|rate| format!("{rate:.0}")).collect();
        eprintln!("    {rate:.0} each second; others popular, each tenth second: {}", every_tenth.join(" "));
        self.note("tiers-moved", since.as_secs_f64(), Usage::default());
        Ok(())
    }

    /// Latencies without and with a migration.
    fn move_cold_file(&mut self, load: &Load) -> Result<()> {
        let before = load.run(|second| Ok(second.at < self.sizes.timing))?;
        self.note_latencies(&before, "tiers-p99-read", "tiers-p99-sync");
        let mut while_moving = Vec::new();
        for tier in ["fast", "slow"] {
            let moved = self.target.migration()?.moved_bytes;
            self.target.wish(&self.target.dir().join(COLD_FILE), tier)?;
            let (mut begin, mut end) = (None, Duration::ZERO);
            let operations = load.run(|second| {
                let now = self.target.migration()?;
                if now.moving {
                    begin.get_or_insert(second.at);
                    end = second.at;
                }
                ensure!(
                    second.at < MOVE_LIMIT,
                    "the file has not moved to {tier} within {MOVE_LIMIT:?}: {now:?}"
                );
                Ok(now.moving || now.moved_bytes < moved + self.sizes.moving_bytes / 2)
            })?;
            let begin = begin.unwrap_or_default();
            eprintln!(
                "    to {tier} within {:.0} s, from {:.0} s on",
                end.saturating_sub(begin).as_secs_f64(),
                begin.as_secs_f64()
            );
            while_moving.extend(operations.into_iter().filter(|it| it.ended >= begin && it.ended <= end));
        }
        self.note_latencies(&while_moving, "tiers-p99-read-moving", "tiers-p99-sync-moving");
        Ok(())
    }

    fn tree(&mut self) -> Result<()> {
        let dir: PathBuf = self.target.dir().join("tree");
        let copy = self.target.dir().join("copy");
        std::fs::create_dir(&dir)?;
        let words = ["tar".as_ref(), "xf".as_ref(), self.tarball.as_os_str(), "-C".as_ref(), dir.as_os_str()];
        self.time_program("tiers-untar", &words)?;
        self.time_program("tiers-copy", &["cp".as_ref(), "-a".as_ref(), dir.as_os_str(), copy.as_os_str()])?;
        self.target.mount_again()?;
        let start = Instant::now();
        host::grep_in_vain(&dir)?;
        self.note("tiers-grep", start.elapsed().as_secs_f64(), Usage::default());
        Ok(())
    }

    fn time_program(&mut self, key: &'static str, words: &[&OsStr]) -> Result<()> {
        let mut meter = Meter::start(Probe::default())?;
        let start = Instant::now();
        Programs::on_mount(self.target.dir()).run_durably(words)?;
        let seconds = start.elapsed().as_secs_f64();
        meter.stop()?;
        self.note(key, seconds, meter.finish()?);
        Ok(())
    }
}
