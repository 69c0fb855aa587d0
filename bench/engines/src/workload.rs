//! The workloads: four stores, each filled and then used.
//!
//! Thread safety: runs on the calling thread.

use crate::engine::{Config, Engine, Kind, Pair};
use anyhow::{Result, ensure};
use kvfs_bench::counters::{Meter, Probe, device_stat_under};
use kvfs_bench::results::{Class, Sample, WorkloadInfo};
use kvfs_bench::{host, interrupt};
use kvfs_device::Rng;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

const KEY_BYTES: usize = 16;
const PAIR_BYTES: usize = 64;
const BLOCK_BYTES: usize = 4096;
/// Pairs that are written together.
const PAIRS_PER_BATCH: u64 = 64;
/// Blocks that are: 128 KiB, what a file system is given at once.
const BLOCKS_PER_BATCH: u64 = 32;
/// Each process may have this beyond the memory of its engine: code, stacks, and what allocators hold on to.
const PROGRAM_BYTES: u64 = 96 << 20;
/// Ranges that are deleted; together they are half of everything.
const RANGES: u64 = 100;

/// What is filled, and then used.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StoreName {
    Ordered,
    Random,
    BlocksOrdered,
    BlocksRandom,
}

impl StoreName {
    /// As `--only` takes it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Random => "random",
            Self::BlocksOrdered => "blocks-ordered",
            Self::BlocksRandom => "blocks-random",
        }
    }
}

/// How much is done.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// For caches and memtables.
    pub(crate) memory_bytes: u64,
    pub(crate) pairs: u64,
    pub(crate) blocks: u64,
}

impl Sizes {
    /// Stores of four times the memory.
    pub(crate) fn new(memory_bytes: u64) -> Self {
        let data_bytes = 4 * memory_bytes;
        Self { memory_bytes, pairs: data_bytes / PAIR_BYTES as u64, blocks: data_bytes / BLOCK_BYTES as u64 }
    }

    /// Small stores: to try the harness.
    pub(crate) fn trial() -> Self {
        Self { memory_bytes: 16 << 20, pairs: 50_000, blocks: 2_000 }
    }

    /// All that the process of an engine may have.
    pub(crate) fn process_bytes(self) -> u64 {
        self.memory_bytes + PROGRAM_BYTES
    }

    fn reads(self) -> u64 {
        self.pairs / 10
    }

    fn config(self, is_blocks: bool) -> Config {
        let data_bytes =
            if is_blocks { self.blocks * BLOCK_BYTES as u64 } else { self.pairs * PAIR_BYTES as u64 };
        Config { memory_bytes: self.memory_bytes, process_bytes: self.process_bytes(), data_bytes, is_blocks }
    }
}

/// The rows that these stores give.
pub(crate) fn infos(sizes: Sizes, stores: &[StoreName]) -> Vec<WorkloadInfo> {
    stores.iter().flat_map(|&store| infos_of(sizes, store)).collect()
}

fn infos_of(sizes: Sizes, store: StoreName) -> Vec<WorkloadInfo> {
    let (pairs, blocks, reads) = (sizes.pairs, sizes.blocks, sizes.reads());
    let memory_mib = sizes.memory_bytes >> 20;
    let info = |key: &str, title: String, class| WorkloadInfo {
        key: key.into(),
        title,
        group: "engine".into(),
        class,
    };
    match store {
        StoreName::Ordered => vec![
            info(
                "engine-fill-seq",
                format!("fill {pairs} x 64 B in order, {memory_mib} MiB"),
                Class::SyncAtEnd,
            ),
            info("engine-delete-range", format!("delete {RANGES} ranges, half of it"), Class::SyncAtEnd),
        ],
        StoreName::Random => vec![
            info("engine-fill-random", format!("fill {pairs} x 64 B at random"), Class::SyncAtEnd),
            info("engine-point-read", format!("{reads} x point read"), Class::Cold),
            info("engine-scan", "scan of everything".into(), Class::Cold),
            info("engine-mixed", format!("{reads} x read or write"), Class::SyncAtEnd),
        ],
        StoreName::BlocksOrdered => {
            vec![info("engine-blocks-seq", format!("fill {blocks} x 4 KiB in order"), Class::SyncAtEnd)]
        }
        StoreName::BlocksRandom => {
            vec![info("engine-blocks-random", format!("fill {blocks} x 4 KiB at random"), Class::SyncAtEnd)]
        }
    }
}

/// One engine's run.
pub(crate) struct Bench<'a> {
    pub(crate) kind: &'a Kind,
    pub(crate) dir: &'a Path,
    pub(crate) sizes: Sizes,
    pub(crate) run: u32,
    /// Is given every timing as soon as it is there.
    pub(crate) report: &'a mut dyn FnMut(Sample) -> Result<()>,
}

impl Bench<'_> {
    /// All workloads of these stores, each of them a fresh one.
    pub(crate) fn all(&mut self, stores: &[StoreName]) -> Result<()> {
        stores.iter().try_for_each(|store| match store {
            StoreName::Ordered => self.ordered(),
            StoreName::Random => self.random(),
            StoreName::BlocksOrdered => self.blocks("engine-blocks-seq", false),
            StoreName::BlocksRandom => self.blocks("engine-blocks-random", true),
        })
    }

    fn ordered(&mut self) -> Result<()> {
        let pairs = self.sizes.pairs;
        let store = self.fresh("ordered")?;
        let mut engine = self.open(&store, false)?;
        self.timed("engine-fill-seq", &mut *engine, |engine| fill_pairs(engine, 0..pairs, ordered_key))?;
        engine.close()?;
        let mut engine = self.open(&store, false)?;
        let (every, length) = (pairs / RANGES, pairs / RANGES / 2);
        self.timed("engine-delete-range", &mut *engine, |engine| {
            for range in 0..RANGES {
                let first = range * every;
                engine.delete_range(&ordered_key(first), &ordered_key(first + length))?;
            }
            engine.sync()
        })?;
        let left = count(&mut *engine)?;
        ensure!(left == pairs - RANGES * length, "{left} pairs are left");
        engine.close()?;
        Ok(fs::remove_dir_all(store)?)
    }

    fn random(&mut self) -> Result<()> {
        let (pairs, reads) = (self.sizes.pairs, self.sizes.reads());
        let store = self.fresh("random")?;
        let mut engine = self.open(&store, false)?;
        self.timed("engine-fill-random", &mut *engine, |engine| fill_pairs(engine, 0..pairs, random_key))?;
        engine.close()?;
        let mut engine = self.open(&store, false)?;
        self.timed("engine-point-read", &mut *engine, |engine| {
            let mut rng = Rng::new(2);
            (0..reads).try_for_each(|_| read(engine, rng.below(pairs)))
        })?;
        engine.close()?;
        let mut engine = self.open(&store, false)?;
        self.timed("engine-scan", &mut *engine, |engine| {
            let found = count(engine)?;
            ensure!(found == pairs, "{found} pairs are found");
            Ok(())
        })?;
        self.timed("engine-mixed", &mut *engine, |engine| {
            let mut rng = Rng::new(3);
            for number in 0..reads {
                if number % 2 == 0 {
                    read(engine, rng.below(pairs))?;
                } else {
                    engine.write(vec![pair(random_key(rng.below(pairs)), number)])?;
                }
            }
            engine.sync()
        })?;
        engine.close()?;
        Ok(fs::remove_dir_all(store)?)
    }

    fn blocks(&mut self, workload: &'static str, is_random: bool) -> Result<()> {
        let blocks = self.sizes.blocks;
        let store = self.fresh("blocks")?;
        let mut numbers: Vec<u64> = (0..blocks).collect();
        if is_random {
            Rng::new(4).shuffle(&mut numbers);
        }
        let mut engine = self.open(&store, true)?;
        self.timed(workload, &mut *engine, |engine| {
            let mut rng = Rng::new(5);
            for batch in numbers.chunks(BLOCKS_PER_BATCH as usize) {
                interrupt::check()?;
                let block = |&number: &u64| {
                    let mut value = vec![0; BLOCK_BYTES];
                    rng.fill(&mut value);
                    (ordered_key(number), value)
                };
                engine.write(batch.iter().map(block).collect())?;
            }
            engine.sync()
        })?;
        for number in [0, blocks / 2, blocks - 1] {
            let found = engine.get(&ordered_key(number))?;
            ensure!(found.is_some_and(|value| value.len() == BLOCK_BYTES), "block {number} is not there");
        }
        engine.close()?;
        Ok(fs::remove_dir_all(store)?)
    }

    fn fresh(&self, name: &str) -> Result<PathBuf> {
        let store = self.dir.join(name);
        fs::create_dir(&store)?;
        Ok(store)
    }

    /// With the kernel's caches dropped.
    fn open(&self, store: &Path, is_blocks: bool) -> Result<Box<dyn Engine>> {
        host::drop_caches()?;
        (self.kind.open)(store, &self.sizes.config(is_blocks))
    }

    fn timed(
        &mut self,
        workload: &'static str,
        engine: &mut dyn Engine,
        mut work: impl FnMut(&mut dyn Engine) -> Result<()>,
    ) -> Result<()> {
        let probe = Probe { device_stat: device_stat_under(self.dir)?, daemon: None };
        let mut meter = Meter::start(probe)?;
        let start = Instant::now();
        work(engine)?;
        let seconds = start.elapsed().as_secs_f64();
        meter.stop()?;
        engine.sync()?;
        host::sync_file_system(self.dir)?;
        let usage = meter.finish()?;
        let target = self.kind.name.to_owned();
        (self.report)(Sample {
            workload: workload.into(),
            target,
            run: self.run,
            seconds,
            usage,
            details: Vec::new(),
        })
    }
}

fn fill_pairs(engine: &mut dyn Engine, numbers: std::ops::Range<u64>, key: fn(u64) -> Vec<u8>) -> Result<()> {
    for first in numbers.clone().step_by(PAIRS_PER_BATCH as usize) {
        if first % (1 << 16) == 0 {
            interrupt::check()?;
        }
        let end = numbers.end.min(first + PAIRS_PER_BATCH);
        engine.write((first..end).map(|number| pair(key(number), number)).collect())?;
    }
    engine.sync()
}

fn ordered_key(number: u64) -> Vec<u8> {
    let mut key = vec![0; KEY_BYTES];
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// Each number has another key.
fn random_key(number: u64) -> Vec<u8> {
    let mut key = vec![0; KEY_BYTES];
    Rng::new(number).fill(&mut key[..8]);
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn pair(key: Vec<u8>, seed: u64) -> Pair {
    let mut value = vec![0; PAIR_BYTES - KEY_BYTES];
    Rng::new(!seed).fill(&mut value);
    (key, value)
}

fn read(engine: &mut dyn Engine, number: u64) -> Result<()> {
    let found = engine.get(&random_key(number))?;
    ensure!(found.is_some_and(|value| value.len() == PAIR_BYTES - KEY_BYTES), "pair {number} is not found");
    Ok(())
}

fn count(engine: &mut dyn Engine) -> Result<u64> {
    let mut found = 0;
    let mut bytes = 0;
    engine.scan(&[], &mut |key, value| {
        found += 1;
        bytes += key.len() + value.len();
        true
    })?;
    ensure!(bytes as u64 == found * PAIR_BYTES as u64, "{bytes} bytes in {found} pairs");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::KINDS;
    use clap::ValueEnum;

    #[test]
    fn every_engine_does_every_workload() {
        let sizes = Sizes { memory_bytes: 16 << 20, pairs: 2_000, blocks: 100 };
        let all = StoreName::value_variants();
        for kind in KINDS {
            let dir = std::env::temp_dir().join(format!("kvfs-engines-{}-{}", kind.name, std::process::id()));
            fs::create_dir(&dir).expect("a new directory");
            let mut seen = Vec::new();
            let mut report = |sample: Sample| {
                seen.push(sample.workload);
                Ok(())
            };
            let ended = Bench { kind, dir: &dir, sizes, run: 0, report: &mut report }.all(all);
            fs::remove_dir_all(&dir).expect("removed");
            // Caches are dropped by root only.
            if rustix_is_root() {
                ended.unwrap_or_else(|error| panic!("{}: {error:#}", kind.name));
                let expected: Vec<String> = infos(sizes, all).into_iter().map(|info| info.key).collect();
                assert_eq!(seen, expected, "{}", kind.name);
            }
        }
    }

    fn rustix_is_root() -> bool {
        host::check_rights().is_ok()
    }
}
