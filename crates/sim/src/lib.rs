//! Seeded workloads, checkers and crash tests.
//!
//! Purpose: every engine must answer like the reference model, under any operations, in any
//! configuration, and after any crash. [`ops`] generates operations from a seed, [`store_check`]
//! runs them on a [`store_check::Subject`] and compares each answer, [`crash_check`] decides whether
//! what a crash left is a legal prefix of history, [`shrink`] makes failing lists short. For engines
//! on a device ([`engine`]), [`crash_sweep`] opens the image of a crash at every event,
//! [`fault_sweep`] fails every device call in turn, and [`flip_sweep`] flips bits of the medium.
//!
//! Thread safety: a run is single-threaded, so that a seed replays it exactly.
//!
//! Invariants: the same seed and profile give the same operations on every machine.

pub mod crash_check;
pub mod crash_sweep;
pub mod engine;
pub mod fault_sweep;
pub mod flip_sweep;
mod generate;
pub mod merge;
pub mod named;
pub mod ops;
mod session;
pub mod shrink;
pub mod spaces;
pub mod store_check;
pub mod txns;
pub mod undo;

use std::env;

/// Seeds of a test: `rounds_default` of them from `seed_default` on, unless `KVFS_SIM_SEED` (first
/// seed) or `KVFS_SIM_ROUNDS` (how many) say otherwise. A seed given without rounds runs alone.
pub fn seeds(seed_default: u64, rounds_default: u64) -> impl Iterator<Item = u64> {
    let seed = number_from_env("KVFS_SIM_SEED");
    let rounds =
        number_from_env("KVFS_SIM_ROUNDS").unwrap_or(if seed.is_some() { 1 } else { rounds_default });
    let first = seed.unwrap_or(seed_default);
    (0..rounds).map(move |round| first.wrapping_add(round))
}

/// What the run of `seed` has of these: the same when it is replayed alone.
pub fn of_seed<T: Copy>(seed: u64, choices: &[T]) -> T {
    choices[(seed % choices.len() as u64) as usize]
}

fn number_from_env(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}
