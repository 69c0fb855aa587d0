//! Chooses which unflushed writes survive a crash.
//!
//! Thread safety: pure functions of their arguments. Invariant: the choice follows from the seed.

use super::event::Event;
use crate::{ATOMIC_BYTES, Rng};

/// Which unflushed writes survive a crash; all of these are legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashMode {
    /// None: the device kept everything in its volatile cache.
    DropAll,
    /// All, as by `kill -9` without a power cut.
    KeepAll,
    /// The first few, the last of them torn.
    KeepPrefix,
    /// The last few only: later writes overtook earlier ones.
    KeepSuffix,
    /// Each write wholly or not at all, at random.
    KeepSubset,
    /// Each piece of [`ATOMIC_BYTES`] of each write on its own, at random.
    Tear,
    /// One of the other modes, chosen by the seed.
    Any,
}

impl CrashMode {
    /// Every mode but [`CrashMode::Any`], for tests that go through them.
    pub const EACH: [Self; 6] =
        [Self::DropAll, Self::KeepAll, Self::KeepPrefix, Self::KeepSuffix, Self::KeepSubset, Self::Tear];
}

/// What becomes of one event.
enum Fate {
    Lost,
    Kept,
    /// Each piece survives with this probability in sixteenths.
    Torn(u64),
}

impl Fate {
    fn kept_if(kept: bool) -> Self {
        if kept { Self::Kept } else { Self::Lost }
    }
}

/// Calls `keep` with every event, or part of one, that survives, in their order.
pub(super) fn select(events: &[Event], rng: &mut Rng, mode: CrashMode, mut keep: impl FnMut(&Event)) {
    let mode = match mode {
        CrashMode::Any => CrashMode::EACH[rng.index(CrashMode::EACH.len())],
        mode => mode,
    };
    let pivot = rng.index(events.len() + 1);
    let density = rng.range(1, 16);
    for (index, event) in events.iter().enumerate() {
        let fate = match mode {
            CrashMode::KeepAll => Fate::Kept,
            CrashMode::KeepPrefix if index == pivot => Fate::Torn(density),
            CrashMode::KeepPrefix => Fate::kept_if(index < pivot),
            CrashMode::KeepSuffix => Fate::kept_if(index >= pivot),
            CrashMode::KeepSubset => Fate::kept_if(rng.chance(density, 16)),
            // Each write gets a density of its own, so that some lose one piece and some keep one.
            CrashMode::Tear => Fate::Torn(rng.below(17)),
            CrashMode::DropAll | CrashMode::Any => Fate::Lost,
        };
        match fate {
            Fate::Lost => {}
            Fate::Kept => keep(event),
            Fate::Torn(sixteenths) => tear(event, rng, sixteenths, &mut keep),
        }
    }
}

/// Keeps random pieces of `event`; what has no pieces survives wholly or not.
fn tear(event: &Event, rng: &mut Rng, sixteenths: u64, keep: &mut impl FnMut(&Event)) {
    let Some((_, payload)) = event.bytes() else {
        if rng.chance(sixteenths, 16) {
            keep(event);
        }
        return;
    };
    let piece_bytes = ATOMIC_BYTES as u64;
    let pieces = payload.len() / piece_bytes;
    let mut start = 0;
    // Neighbours that survive together are handed on as one.
    for piece in 0..pieces {
        if !rng.chance(sixteenths, 16) {
            if start < piece {
                keep(&event.part(start * piece_bytes, piece * piece_bytes));
            }
            start = piece + 1;
        }
    }
    if start < pieces {
        keep(&event.part(start * piece_bytes, pieces * piece_bytes));
    }
}
