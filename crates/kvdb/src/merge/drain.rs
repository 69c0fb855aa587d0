//! Draining: all that lies in a stretch of zones is moved elsewhere, as far as it can be read and finds room,
//! so that a device can leave the store.
//!
//! Thread safety: any thread; each piece is rewritten in a claim of its run, beside reads, writes and merges.
//! Invariants: nothing new goes to these zones; each rewrite is one edit, so that a drain may end behind any
//! of them, and goes on where it ended; it takes no zone of the reserve, and begins no piece of which the
//! other devices have no room for a part, so that each makes what is left less.

use std::ops::Range;

use kvfs_store::Result;

use super::rewrite::{Target, pass_over};
use super::rounds::Rounds;
use super::{Merger, StepConfig};
use crate::compaction::Victims;
use crate::runtime::ok_unless_full;
use crate::space::{Budget, Lane, ZoneState, Zones};

/// The drain leaves the reserve to deletions and merges.
const BUDGET: Budget = Budget::Ordinary;

/// How a drain has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Nothing lies there any more.
    Empty,
    /// It was told to end.
    Ended,
    /// Transactions, or readers of old versions, hold what is left.
    Held,
    /// Checkpoints of transactions, which outlive a restart, hold some of what is left.
    Kept,
    /// What is left finds no space elsewhere.
    NoSpace,
}

/// What lies in the zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Left {
    bytes: u64,
    /// Those that are not free.
    zones: usize,
}

impl Left {
    /// O(zones).
    fn within(wanted: &Range<u32>, zones: &Zones) -> Self {
        let rows = zones.rows().into_iter();
        let rows = rows.filter(|row| wanted.contains(&row.zone.0) && row.state != ZoneState::Free);
        rows.fold(Self { bytes: 0, zones: 0 }, |left, row| Self {
            bytes: left.bytes + row.bytes_live,
            zones: left.zones + 1,
        })
    }
}

/// A piece with something in the zones.
struct Found {
    target: Target,
    zones: Vec<u32>,
    bytes: u64,
}

/// What has come of going over the pieces once.
struct Round {
    is_told_to_end: bool,
    /// A piece, or a part of it, had room elsewhere.
    had_room: bool,
    /// Others took that room.
    was_full: bool,
    /// The first error of what can't be read.
    unread: Result<()>,
}

/// Moves everything out of `zones`, until `goes_on` says no: before each piece it is told how many bytes are
/// left. What can't be read stays.
///
/// # Errors
/// I/O errors and corruption, when all that can be read has been moved.
pub(crate) fn drain(
    merger: &Merger,
    zones: &Range<u32>,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Drained> {
    let runtime = &merger.runtime;
    let (mut rounds, mut has_flushed) = (Rounds::of(merger), false);
    let mut left = Left::within(zones, &runtime.ctx.zones);
    while left.zones > 0 {
        runtime.check_writable()?;
        let mut found = find(merger, zones);
        if !has_flushed && found.iter().map(|found| found.bytes).sum::<u64>() < left.bytes {
            // What the journal has bound there comes into runs.
            merger.flusher.flush_everything()?;
            (found, has_flushed) = (find(merger, zones), true);
        }
        let round = rewrite_all(merger, found, left.bytes, goes_on, &|| {
            Left::within(zones, &runtime.ctx.zones).bytes
        })?;
        let before = std::mem::replace(&mut left, Left::within(zones, &runtime.ctx.zones));
        if left.zones > 0 && (round.is_told_to_end || runtime.is_stopping()) {
            return Ok(Drained::Ended);
        }
        if left < before {
            rounds.got_on();
            has_flushed = false;
        } else if !round.had_room {
            return Ok(Drained::NoSpace);
        } else if !rounds.wait_for_others() {
            round.unread?;
            return Ok(if round.was_full { Drained::NoSpace } else { Drained::Held });
        } else if rounds.is_last_in_vain() {
            round.unread?;
        }
    }
    Ok(Drained::Empty)
}

/// The pieces with something in the zones. O(pieces).
fn find(merger: &Merger, zones: &Range<u32>) -> Vec<Found> {
    let view = merger.live.view();
    let mut all = Vec::new();
    for (keyspace, runs) in view.version.keyspaces() {
        for (run, piece) in runs.iter().flat_map(|run| run.pieces.iter().map(|piece| (run.id, piece.desc())))
        {
            let uses = piece.zones.iter().filter(|zone_use| zones.contains(&zone_use.zone.0));
            let bytes = uses.clone().map(|zone_use| zone_use.bytes).sum();
            let zones: Vec<u32> = uses.map(|zone_use| zone_use.zone.0).collect();
            let target = Target { keyspace, run, piece: piece.id };
            all.extend((!zones.is_empty()).then_some(Found { target, zones, bytes }));
        }
    }
    all
}

/// Rewrites these pieces, each as far as what it has in the zones finds room elsewhere. `bytes_left`: what is
/// left by now.
fn rewrite_all(
    merger: &Merger,
    found: Vec<Found>,
    mut left: u64,
    goes_on: &mut dyn FnMut(u64) -> bool,
    bytes_left: &dyn Fn() -> u64,
) -> Result<Round> {
    let runtime = &merger.runtime;
    let worth = u64::from(runtime.ctx.zones.zone_bytes());
    // Where there is none, it is not for want of room.
    let had_room = found.is_empty();
    let mut round = Round { is_told_to_end: !goes_on(left), had_room, was_full: false, unread: Ok(()) };
    for Found { target, zones, bytes } in found {
        if round.is_told_to_end || runtime.is_stopping() {
            break;
        }
        if runtime.ctx.zones.fits_rewrite(bytes.min(worth), runtime.ctx.zones.free_bytes(BUDGET)) {
            round.had_room = true;
            let victims = Victims::new(zones, worth).leaving_rest();
            let config = merger.stepper.step_config(Lane::FIRST, BUDGET, Some(merger.pace()));
            let config = StepConfig { victims, ..config };
            let rewritten = merger.rewrite_all(&[target], &config, false, &mut |_, _| goes_on(left));
            let rewritten = ok_unless_full(rewritten.map(drop)).map(|fits| round.was_full |= !fits);
            pass_over(&mut round.unread, rewritten, &runtime.health)?;
            left = bytes_left();
            round.is_told_to_end = !goes_on(left);
        }
    }
    Ok(round)
}
