//! Replays accesses of the block cache, recorded or made up, with every policy and several sizes, by the
//! engine's own cache.
//!
//! What counts is not the hit rate alone: a miss on a slow device costs as much as many on a fast one, so the
//! table has the time that a lookup waits for devices on average, and the goal is about that.

mod load;
mod replay;
mod sizes;
mod synthetic;
mod table;

use anyhow::{Result, bail};
use clap::Parser;
use kvfs_bench::goals::Bound;
use kvfs_kvdb::Policy;
use std::path::PathBuf;
use std::process::ExitCode;

use load::Load;
use replay::{Costs, Outcome};
use sizes::Size;
use synthetic::{Shape, Synthetic};

/// What `tiered` is to reach where there are both classes of devices: its time for a lookup, divided by that
/// of `lru`.
const TIERED_GOAL: Bound = Bound::AtMost(0.9);

/// Replay accesses of the block cache with every policy.
///
/// A trace is recorded by `kvfs mount -o cache_trace=FILE`; loads are made up by --synthetic.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  cache-sim --synthetic zipf,scan,loop,shift,placed
  cache-sim cache.trace --sizes 64M,256M,1G
  cache-sim cache.trace --policies lru,tiered --slow-ms 12 --json"
)]
struct Args {
    /// A trace of the block cache
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,

    /// Made-up loads, separated by commas
    #[arg(long, value_name = "LOAD", value_enum, value_delimiter = ',')]
    synthetic: Vec<Shape>,

    /// Sizes of the cache: bytes, such as 64M, or shares of what the load touches, such as 10%
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "2%,5%,10%,20%,40%")]
    sizes: Vec<Size>,

    /// Only these policies
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    policies: Vec<Policy>,

    /// What a miss on a fast device costs (milliseconds)
    #[arg(long, default_value_t = 0.1, value_name = "MS")]
    fast_ms: f64,

    /// What a miss on a slow device costs (milliseconds)
    #[arg(long, default_value_t = 8.0, value_name = "MS")]
    slow_ms: f64,

    /// Lookups of a made-up load
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    lookups: u64,

    /// Blocks of a made-up load
    #[arg(long, default_value_t = 50_000, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(100..))]
    blocks: u32,

    /// What made-up loads follow from
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Print every outcome as a line of JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    fn loads(&self) -> Result<Vec<Load>> {
        let mut loads = Vec::new();
        if let Some(path) = &self.trace {
            loads.push(Load::read(path)?);
        }
        for &shape in &self.synthetic {
            let wish = Synthetic { shape, blocks: self.blocks, lookups: self.lookups, seed: self.seed };
            loads.push(wish.load());
        }
        if loads.is_empty() {
            bail!("name a trace, or loads to make up: --synthetic zipf,scan,loop,shift,placed");
        }
        Ok(loads)
    }
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let costs = Costs { fast_ms: args.fast_ms, slow_ms: args.slow_ms };
    let policies = if args.policies.is_empty() { Policy::ALL.to_vec() } else { args.policies.clone() };
    for load in args.loads()? {
        let mut outcomes = Vec::new();
        for size in &args.sizes {
            let bytes = size.bytes(load.footprint_bytes());
            outcomes.extend(policies.iter().map(|&policy| Outcome::of(&load, policy, bytes)));
        }
        if args.json {
            print!("{}", table::json(&load, &outcomes, costs)?);
        } else {
            print!("{}", table::text(&load, &outcomes, costs, TIERED_GOAL));
        }
    }
    Ok(ExitCode::SUCCESS)
}
