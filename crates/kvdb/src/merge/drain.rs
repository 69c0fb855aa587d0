//! Draining: all that lies in a stretch of zones is moved elsewhere, as far as it can be read, so that a device can leave the store.
//!
//! Thread safety: any thread; each piece is rewritten in a claim of its run, beside reads, writes and merges. Invariants: nothing new
//! goes to these zones; each rewrite is one edit, so that a drain may end behind any of them, and goes on where it ended.

use std::ops::Range;

use kvfs_store::{Result, StoreError};

use super::rounds::Rounds;
use super::{Merger, StepConfig};
use crate::compaction::Victims;
use crate::space::{Budget, Lane, ZoneState, Zones};

/// How a drain has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Nothing lies there any more.
    Empty,
    /// It was told to end.
    Ended,
    /// Transactions, or readers of old versions, hold what is left.
    Held,
    /// What is left finds no space elsewhere.
    NoSpace,
}

/// Moves everything out of `zones`, until `goes_on` says no: before each piece it is told how many bytes are left. What can't be read
/// stays.
///
/// # Errors
/// I/O errors and corruption, when all that can be read has been moved.
pub(crate) fn drain(
    merger: &Merger,
    zones: &Range<u32>,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Drained> {
    let runtime = &merger.runtime;
    let mut rounds = Rounds::of(merger);
    let mut left = in_use(&runtime.ctx.zones, zones);
    while !left.is_empty() {
        runtime.check_writable()?;
        // What the journal has bound there comes into runs.
        merger.flusher.flush_everything()?;
        let bytes: u64 = left.iter().map(|&(_, bytes)| bytes).sum();
        let victims = left.iter().map(|&(zone, _)| zone).collect();
        let victims = Victims::new(victims, runtime.ctx.zones.zone_bytes().into());
        let config = merger.stepper.step_config(Lane::FIRST, Budget::Ordinary, Some(merger.pace()));
        let config = StepConfig { victims, ..config };
        let mut is_told_to_end = false;
        let mut tell = |done: usize, all: usize| {
            is_told_to_end = !goes_on(bytes - bytes * done as u64 / all.max(1) as u64);
            !is_told_to_end
        };
        let emptied = if tell(0, 1) { merger.empty(&config, false, &mut tell).map(drop) } else { Ok(()) };
        let before = left.len();
        left = in_use(&runtime.ctx.zones, zones);
        let gets_on = if left.len() < before {
            rounds.got_on();
            true
        } else {
            rounds.wait_for_others()
        };
        match emptied {
            _ if left.is_empty() => {}
            _ if is_told_to_end || runtime.is_stopping() => return Ok(Drained::Ended),
            // Others may make space.
            Err(StoreError::Full) if !gets_on => return Ok(Drained::NoSpace),
            Ok(()) if !gets_on => return Ok(Drained::Held),
            Err(error) if rounds.is_last_in_vain() && !matches!(error, StoreError::Full) => {
                return Err(error);
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(Drained::Empty)
}

/// Those of `wanted` that are not free, with their live bytes.
fn in_use(zones: &Zones, wanted: &Range<u32>) -> Vec<(u32, u64)> {
    let rows = zones.rows().into_iter();
    let rows = rows.filter(|row| wanted.contains(&row.zone.0) && row.state != ZoneState::Free);
    rows.map(|row| (row.zone.0, row.bytes_live)).collect()
}
