//! The workloads: what is timed, each checked for having done its work. A file holds those that share a file
//! system.
//!
//! Thread safety: a workload runs on the calling thread; one that reads with several joins them before it
//! ends.

mod append;
mod exec;
mod files;
mod library;
pub(crate) mod million;
mod small;
mod stream;
mod tablefs;
mod tree;

use anyhow::Result;
use clap::ValueEnum;
use kvfs_bench::calls::Calls;
use kvfs_bench::programs::Programs;
use kvfs_bench::results::Class;
use kvfs_device::Rng;
use std::path::{Path, PathBuf};

/// How much each workload does.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Empty files in one directory.
    pub(crate) files: u32,
    /// How many of them are looked at or changed in random order.
    pub(crate) sampled: u32,
    /// Files of 512 bytes.
    pub(crate) small: u32,
    /// How many of them are read.
    pub(crate) small_reads: u32,
    pub(crate) renames: u32,
    pub(crate) appends: u32,
    pub(crate) stream_bytes: u64,
    /// Reads of 4 KiB at random places.
    pub(crate) random_reads: u32,
    /// Writes of 4 KiB at random places.
    pub(crate) overwrites: u32,
    /// Writes of four bytes at random places.
    pub(crate) tiny_overwrites: u32,
    /// Files that are made in little memory.
    pub(crate) million: u32,
    /// Files of the experiments of `TableFS`; most of the others have a part of them.
    pub(crate) tablefs: u32,
    /// Files in one directory.
    pub(crate) large: u32,
    pub(crate) tarball: PathBuf,
}

impl Sizes {
    /// `divisor` 1 gives those that the goals are meant for.
    pub(crate) fn new(divisor: u32, tarball: PathBuf) -> Self {
        Self {
            files: 200_000 / divisor,
            sampled: 50_000 / divisor,
            small: 100_000 / divisor,
            small_reads: 20_000 / divisor,
            renames: 100,
            appends: 5_000 / divisor,
            stream_bytes: (4 << 30) / u64::from(divisor.next_power_of_two()),
            random_reads: 20_000 / divisor,
            overwrites: 50_000 / divisor,
            tiny_overwrites: 10_000 / divisor,
            million: 1_000_000 / divisor,
            tablefs: 400_000 / divisor,
            large: 10_000_000 / divisor,
            tarball,
        }
    }
}

/// What the file system's caches hold when the timing begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Mounted as it was; everything written out and the kernel's caches dropped.
    Settled,
    /// As settled, and mounted anew.
    Cold,
    /// Written out; the caches hold what was used last.
    Warm,
}

/// What a workload works with.
pub(crate) struct Job<'a> {
    /// A directory of its own scenario.
    pub(crate) dir: &'a Path,
    /// Calls beneath it, where the scenario is one for the library, too.
    pub(crate) calls: &'a dyn Calls,
    /// Programs in it, where the scenario is one for `kvfs exec`, too.
    pub(crate) programs: &'a Programs,
    pub(crate) sizes: &'a Sizes,
}

/// One timed piece of work.
pub(crate) struct Workload {
    /// Its name in options, results and goals.
    pub(crate) key: &'static str,
    pub(crate) title: fn(&Sizes) -> String,
    pub(crate) class: Class,
    pub(crate) start: Start,
    /// Untimed, before caches are brought into the state of `start`.
    pub(crate) prepare: fn(&Job) -> Result<()>,
    /// What is timed.
    pub(crate) run: fn(&Job) -> Result<()>,
}

/// Workloads that share one file system, in this order.
pub(crate) struct Scenario {
    pub(crate) name: ScenarioName,
    pub(crate) workloads: &'static [Workload],
}

/// Names for the scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScenarioName {
    /// Many empty files in one directory: create, list, stat, change, remove
    Files,
    /// Many files of 512 bytes: create, read
    Small,
    /// A source tree: unpack, find, grep, rename, remove
    Tree,
    /// What a distribution has installed: copy, find, grep
    Installed,
    /// One large file: write, read, in order and at random, overwrite, remove
    Stream,
    /// Append and fsync
    Append,
    /// A source tree by programs under `kvfs exec`, and on mounts: unpack, copy, git status, remove
    Exec,
    /// Empty and small files by the library, and by system calls
    Library,
    /// The experiments of `TableFS`, by the library and by system calls
    Tablefs,
    /// Ten million files in one directory, by the library
    Large,
    /// A million files with client and daemon in a cgroup of 512 MiB
    Million,
}

impl ScenarioName {
    /// For groups in the results.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Small => "small",
            Self::Tree => "tree",
            Self::Installed => "installed",
            Self::Stream => "stream",
            Self::Append => "append",
            Self::Exec => "exec",
            Self::Library => "library",
            Self::Tablefs => "tablefs",
            Self::Large => "large",
            Self::Million => "million",
        }
    }

    /// Whether its workloads go by [`Job::calls`] alone, so that the library can do them.
    pub(crate) fn is_by_calls(self) -> bool {
        matches!(self, Self::Library | Self::Tablefs | Self::Large)
    }

    /// Whether a source tree is unpacked.
    pub(crate) fn needs_source(self) -> bool {
        matches!(self, Self::Tree | Self::Exec)
    }
}

/// All of them, in the order of the tables.
pub(crate) const SCENARIOS: &[Scenario] = &[
    files::SCENARIO,
    small::SCENARIO,
    tree::SCENARIO,
    tree::INSTALLED,
    stream::SCENARIO,
    append::SCENARIO,
    exec::SCENARIO,
    library::SCENARIO,
    tablefs::SCENARIO,
    tablefs::LARGE,
    million::SCENARIO,
];

/// For workloads that need no preparation.
#[expect(clippy::unnecessary_wraps, reason = "its type is that of preparations that may fail")]
fn nothing(_: &Job) -> Result<()> {
    Ok(())
}

/// `count` different numbers below `from`, in random order, the same ones every time.
fn sample(from: u32, count: u32, seed: u64) -> Vec<u32> {
    let mut all: Vec<u32> = (0..from).collect();
    let mut rng = Rng::new(seed);
    let count = count.min(from) as usize;
    for place in 0..count {
        let other = place as u64 + rng.below((all.len() - place) as u64);
        all.swap(place, other as usize);
    }
    all.truncate(count);
    all
}

/// Thousands with a separator.
fn number(value: u32) -> String {
    kvfs_bench::units::grouped(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_hold_nothing_twice() {
        let mut drawn = sample(1000, 400, 7);
        assert_eq!(drawn, sample(1000, 400, 7));
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 400);
        assert!(drawn.iter().all(|&number| number < 1000));
    }

    #[test]
    fn keys_are_unique() {
        let mut keys: Vec<&str> =
            SCENARIOS.iter().flat_map(|scenario| scenario.workloads).map(|workload| workload.key).collect();
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), count);
    }
}
