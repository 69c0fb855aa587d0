//! Draining: all that lies in a stretch of zones is moved elsewhere, so that a device can leave the store.
//!
//! Thread safety: any thread; each piece is rewritten in a claim of its run, beside reads, writes and merges. Invariants: nothing new
//! goes to these zones; each rewrite is one edit, so that a drain may end behind any of them, and goes on where it ended.

use std::ops::Range;

use kvfs_store::Result;

use super::defrag::WAIT_FOR_OTHERS;
use super::{Merger, StepConfig};
use crate::compaction::Victims;
use crate::runtime::ok_unless_full;
use crate::space::{Budget, Lane, ZoneState, Zones};

/// Rounds that free nothing, while no merge is under way, before it ends: others may hold what is left.
const ROUNDS_IN_VAIN_MAX: u32 = 16;

/// Moves everything out of `zones`, until `goes_on` says no: before each piece it is told how many bytes are left. False: it said
/// no, or transactions and readers hold what is left, or there is too little space elsewhere.
///
/// # Errors
/// I/O errors, corruption.
pub(crate) fn drain(
    merger: &Merger,
    zones: &Range<u32>,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<bool> {
    let runtime = &merger.runtime;
    runtime.check_writable()?;
    let mut in_vain = 0;
    let mut left = in_use(&runtime.ctx.zones, zones);
    while !left.is_empty() {
        // What the journal has bound there comes into runs.
        merger.flusher.flush_everything()?;
        let bytes: u64 = left.iter().map(|&(_, bytes)| bytes).sum();
        let victims = left.iter().map(|&(zone, _)| zone).collect();
        let victims = Victims::new(victims, runtime.ctx.zones.zone_bytes().into());
        let config = merger.stepper.step_config(Lane::FIRST, Budget::Deleting, Some(merger.pace()));
        let config = StepConfig { victims, ..config };
        let mut is_told_to_end = false;
        let mut tell = |done: usize, all: usize| {
            is_told_to_end = !goes_on(bytes - bytes * done as u64 / all.max(1) as u64);
            !is_told_to_end
        };
        if tell(0, 1) {
            ok_unless_full(merger.empty(&config, false, &mut tell).map(drop))?;
        }
        let before = left.len();
        left = in_use(&runtime.ctx.zones, zones);
        if left.len() < before {
            in_vain = 0;
        } else {
            in_vain += u32::from(merger.claims() == 0);
            runtime.timer.wait(WAIT_FOR_OTHERS);
        }
        if is_told_to_end || runtime.is_stopping() || in_vain == ROUNDS_IN_VAIN_MAX {
            return Ok(left.is_empty());
        }
    }
    Ok(true)
}

/// Those of `wanted` that are not free, with their live bytes.
fn in_use(zones: &Zones, wanted: &Range<u32>) -> Vec<(u32, u64)> {
    let rows = zones.rows().into_iter();
    let rows = rows.filter(|row| wanted.contains(&row.zone.0) && row.state != ZoneState::Free);
    rows.map(|row| (row.zone.0, row.bytes_live)).collect()
}
