//! What is replayed: accesses in their order.
//!
//! Thread safety: immutable once made. Invariant: a trace is decoded anew at each replay, so that a long one
//! fits in memory.

use anyhow::{Context, Result, ensure};
use kvfs_bench::units::{Unit, grouped};
use kvfs_kvdb::{CacheAccess, CacheEvent, CacheTrace};
use kvfs_store::Tier;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

enum Source {
    Trace(Vec<u8>),
    Made(Vec<CacheAccess>),
}

/// See the module.
pub(crate) struct Load {
    pub(crate) name: String,
    source: Source,
    /// Lookups by class.
    lookups: [u64; Tier::ALL.len()],
    blocks: usize,
    footprint_bytes: u64,
    /// What is wrong with the end of a trace.
    damage: Option<String>,
}

impl Load {
    /// Of a file that the engine has recorded.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let trace = CacheTrace::new(&bytes).with_context(|| path.display().to_string())?;
        let damage = trace.clone().find_map(Result::err).map(|error| error.to_string());
        let load = Self::new(path.display().to_string(), Source::Trace(bytes), damage);
        ensure!(load.blocks > 0, "{}: no block was asked for in this trace", path.display());
        Ok(load)
    }

    /// Of accesses that were made up.
    pub(crate) fn made(name: &str, accesses: Vec<CacheAccess>) -> Self {
        Self::new(name.to_owned(), Source::Made(accesses), None)
    }

    fn new(name: String, source: Source, damage: Option<String>) -> Self {
        let mut load = Self { name, source, lookups: [0; 2], blocks: 0, footprint_bytes: 0, damage };
        let (mut sizes, mut lookups) = (HashMap::new(), [0; 2]);
        for access in load.accesses() {
            if matches!(access.event, CacheEvent::Hit | CacheEvent::Miss) {
                lookups[access.tier as usize] += 1;
            }
            if access.bytes > 0 {
                sizes.insert((access.zone, access.generation, access.offset), u64::from(access.bytes));
            }
        }
        (load.lookups, load.blocks, load.footprint_bytes) = (lookups, sizes.len(), sizes.values().sum());
        load
    }

    /// In their order; what is damaged is left out.
    pub(crate) fn accesses(&self) -> Box<dyn Iterator<Item = CacheAccess> + '_> {
        match &self.source {
            Source::Trace(bytes) => match CacheTrace::new(bytes) {
                Ok(trace) => Box::new(trace.filter_map(Result::ok)),
                Err(_) => Box::new(std::iter::empty()),
            },
            Source::Made(accesses) => Box::new(accesses.iter().copied()),
        }
    }

    /// What all its blocks have together.
    pub(crate) fn footprint_bytes(&self) -> u64 {
        self.footprint_bytes
    }

    /// Whether blocks of both classes are asked for.
    pub(crate) fn has_both_tiers(&self) -> bool {
        self.lookups.iter().all(|&lookups| lookups > 0)
    }

    /// For people.
    pub(crate) fn title(&self) -> String {
        let total: u64 = self.lookups.iter().sum();
        let slow = self.lookups[Tier::Slow as usize] as f64 / total.max(1) as f64;
        let damage = self.damage.as_ref().map_or_else(String::new, |damage| format!("\n  {damage}"));
        format!(
            "{}: {} lookups, {} of slow devices, of {} blocks of {}{damage}",
            self.name,
            grouped(total),
            Unit::Share.text(slow),
            grouped(self.blocks as u64),
            Unit::Bytes.text(self.footprint_bytes as f64),
        )
    }
}
