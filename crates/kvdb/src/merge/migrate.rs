//! Migration: blocks that lie on another tier than their file wishes, or than how often they are asked for
//! says, are moved there, by rewrites of the pieces that refer to them.
//!
//! Which they are is not remembered: a wish that has changed, a device that has come, a tier that had no
//! room, all are found by going over the pieces of files with a wish. So a crash loses nothing but time. In
//! the background that is done when there are [`Signs`] that it may find anything, and in a small part of the
//! time.
//!
//! Thread safety: any thread; one in the background. Each piece is rewritten in a claim of its run, beside
//! reads, writes and merges. Invariants: each rewrite is one edit, so that a migration may end behind any of
//! them; it takes no zone of the reserve, and begins no piece of which the other tier has no room for a part,
//! so that each makes what is left less.

mod background;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::{BLOCK_BYTES, Cursor, KeyRange, KeyspaceKind, Result, Seqno, Tier};

use self::background::Looks;
use super::giving_way::{GivingWay, SHARE_DIVISOR, SHARE_DIVISOR_HOT};
use super::limited::Limited;
use super::rewrite::{Target, pass_over};
use super::rounds::Rounds;
use super::{Merger, StepConfig};
use crate::compaction::{Pace, Victims};
use crate::format::PieceDesc;
use crate::layers::Layers;
use crate::memtable::{Merger as MergeOperator, first_block_at_or_after, split_block_key};
use crate::runtime::ok_unless_full;
use crate::space::{Budget, Lane, TierWishes, Zones};
use crate::table::Piece;
use crate::version::Run;

/// What lies on another tier than it wishes to, and could lie there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MigrationPlan {
    /// Bytes on slow devices that wish to lie on fast ones.
    pub bytes_to_fast: u64,
    /// Bytes on fast devices that wish to lie on slow ones.
    pub bytes_to_slow: u64,
    /// Of both, what the tier that it wishes for has room for now.
    pub bytes_movable: u64,
}

impl MigrationPlan {
    /// Both.
    pub fn bytes(&self) -> u64 {
        self.bytes_to_fast + self.bytes_to_slow
    }

    fn bytes_to(&mut self, tier: Tier) -> &mut u64 {
        match tier {
            Tier::Fast => &mut self.bytes_to_fast,
            Tier::Slow => &mut self.bytes_to_slow,
        }
    }
}

/// What migrations have done since the store was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MigrationInfo {
    /// What lies on another tier than it wishes to, as the last look tells (bytes).
    pub bytes_left: u64,
    /// How long ago that was; `None`: nothing was looked at yet. Zero where nothing can lie on another tier.
    pub looked_ago: Option<Duration>,
    /// What was moved (bytes).
    pub bytes_moved: u64,
    /// Whether something is being moved just now.
    pub is_moving: bool,
    /// How long that took which was moved.
    pub took: Duration,
    /// Most bytes that are moved each second; 0: any number.
    pub limit: u64,
    /// Why the background did not get on when it last tried; `None`: it did.
    pub trouble: Option<String>,
    /// From so many reads on, lately, blocks are hot; 0: none are.
    pub hot_from: u8,
}

/// A piece with something of it.
struct Found {
    target: Target,
    plan: MigrationPlan,
    by_heat: ByHeat,
}

/// What of it has another place by how often it is asked for, and not by a wish.
#[derive(Debug, Clone, Copy, Default)]
struct ByHeat {
    /// What only makes room on crowded fast devices.
    bytes_cold: u64,
    bytes_hot: u64,
    /// How often that was asked for, all stretches together.
    count: u64,
}

impl Found {
    /// All of it only makes room.
    fn is_cold(&self) -> bool {
        self.by_heat.bytes_cold == self.plan.bytes()
    }

    /// While others read, it may take one part in so many of the time.
    fn share_divisor(&self) -> u32 {
        let is_hot = self.by_heat.bytes_hot * 2 > self.plan.bytes();
        if is_hot { SHARE_DIVISOR_HOT } else { SHARE_DIVISOR }
    }

    /// What spares most reads of slow devices, for what is moved, comes first.
    fn order(&self) -> Reverse<u64> {
        const SCALE: u64 = 1 << 20;
        Reverse(self.by_heat.count.saturating_mul(SCALE) / self.plan.bytes().max(1))
    }
}

/// What a look has found, and the first thing that it could not read.
struct Looked {
    found: Vec<Found>,
    unread: Result<()>,
}

/// What came of a round over pieces that were found.
#[derive(Debug)]
struct Round {
    has_moved: bool,
    /// A tier had room for a part of it.
    had_room: bool,
    /// It was told to end.
    is_ended: bool,
    /// The first thing that it could not read.
    unread: Result<()>,
}

/// Moves blocks between tiers.
pub(crate) struct Migrator {
    merger: Arc<Merger>,
    looks: Mutex<Looks, class::KvdbMergeMigrateLooks>,
    /// That of merges, and the limit; readers of slow devices come before it.
    pace: Arc<dyn Pace>,
    /// See [`MigrationInfo::limit`].
    limit: Arc<AtomicU64>,
    bytes_moved: AtomicU64,
    /// Time of moving (us), and since when something is being moved.
    moving_us: AtomicU64,
    moving_since: Mutex<Option<Duration>, class::KvdbMergeMigrateMovingSince>,
    /// As far as the last look tells.
    bytes_left: AtomicU64,
    /// When that was (us by the clock, and one more); 0: there was none.
    looked_at: AtomicU64,
    /// See [`MigrationInfo::trouble`].
    trouble: Mutex<Option<String>, class::KvdbMergeMigrateTrouble>,
}

impl Migrator {
    pub(crate) fn new(merger: &Arc<Merger>) -> Self {
        let limit = Arc::new(AtomicU64::new(0));
        let now = Arc::clone(&limit);
        let pace = Limited::over(merger.pace(), merger, move || now.load(Ordering::Relaxed));
        Self {
            merger: Arc::clone(merger),
            looks: Mutex::default(),
            pace,
            limit,
            bytes_moved: AtomicU64::new(0),
            moving_us: AtomicU64::new(0),
            moving_since: Mutex::default(),
            bytes_left: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            trouble: Mutex::default(),
        }
    }

    pub(crate) fn info(&self) -> MigrationInfo {
        let since = *self.moving_since.lock();
        let now = self.merger.runtime.clock.monotonic();
        let current = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let looked_at = self.looked_at.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_micros);
        let looked_ago = looked_at.map(|at| now.saturating_sub(at));
        let nothing_to_look_for = (!self.zones().are_of_both_tiers()).then_some(Duration::ZERO);
        MigrationInfo {
            bytes_left: self.bytes_left.load(Ordering::Relaxed),
            looked_ago: nothing_to_look_for.or(looked_ago),
            bytes_moved: self.bytes_moved.load(Ordering::Relaxed),
            is_moving: since.is_some(),
            took: Duration::from_micros(self.moving_us.load(Ordering::Relaxed)) + current,
            limit: self.limit.load(Ordering::Relaxed),
            trouble: self.trouble.lock().clone(),
            hot_from: self.zones().heat().levels().0,
        }
    }

    /// Moves at most so many bytes each second from now on; 0: any number.
    pub(crate) fn set_limit(&self, bytes_per_second: u64) {
        self.limit.store(bytes_per_second, Ordering::Relaxed);
    }

    /// Names and values of counters.
    pub(crate) fn list(&self) -> [(&'static str, u64); 4] {
        let (hot_from, cold_below) = self.zones().heat().levels();
        [
            ("heat.hot_from", hot_from.into()),
            ("heat.cold_below", cold_below.into()),
            ("migration.bytes_left", self.bytes_left.load(Ordering::Relaxed)),
            ("migration.bytes_moved", self.bytes_moved.load(Ordering::Relaxed)),
        ]
    }

    /// What a migration would move. Reads the indexes of all pieces that may have blocks of files with a
    /// wish; those that can't be read count for nothing.
    ///
    /// # Errors
    /// Failures of the store.
    pub(crate) fn plan(&self) -> Result<MigrationPlan> {
        let mut plan = MigrationPlan::default();
        for Found { plan: of_piece, .. } in self.find_misplaced()?.found {
            plan.bytes_to_fast += of_piece.bytes_to_fast;
            plan.bytes_to_slow += of_piece.bytes_to_slow;
        }
        let movable = |tier, bytes: u64| bytes.min(self.zones().room_on(tier));
        plan.bytes_movable =
            movable(Tier::Fast, plan.bytes_to_fast) + movable(Tier::Slow, plan.bytes_to_slow);
        Ok(plan)
    }

    fn zones(&self) -> &Zones {
        &self.merger.runtime.ctx.zones
    }

    /// What can't be read is passed over.
    fn find_misplaced(&self) -> Result<Looked> {
        let (mut found, mut unread) = (Vec::new(), Ok(()));
        let live = &self.merger.live;
        let view = live.view();
        let placed_by: HashMap<u32, u32> = live.placed_by().into_iter().collect();
        let has_levels = self.zones().heat().has_levels();
        for (keyspace, runs) in view.version.keyspaces() {
            let rows = placed_by.get(&keyspace).copied();
            let is_of_blocks = self.merger.keyspaces.kind(keyspace)? == KeyspaceKind::Block;
            if !is_of_blocks || (rows.is_none() && !has_levels) {
                continue;
            }
            let wishes = live.tier_wishes(keyspace, None);
            for run in runs {
                for piece in &run.pieces {
                    if self.merger.runtime.is_stopping() {
                        return Ok(Looked { found, unread });
                    }
                    let layers = || Layers { view: view.clone(), seqno: Seqno::MAX, own: None };
                    let has_wishes = |rows| has_wishes_for(layers(), rows, piece.desc());
                    let may_wish =
                        || -> Result<bool> { Ok(has_levels || rows.map_or(Ok(false), has_wishes)?) };
                    let misplaced = || self.misplaced_in(run, piece, wishes.as_deref());
                    let of_piece = may_wish().and_then(|may| if may { misplaced() } else { Ok(None) });
                    let target = Target { keyspace, run: run.id, piece: piece.desc().id };
                    let of_piece = of_piece.map(|of_piece| {
                        found.extend(of_piece.map(|(plan, by_heat)| Found { target, plan, by_heat }));
                    });
                    pass_over(&mut unread, of_piece, &self.merger.runtime.health)?;
                }
            }
        }
        found.sort_by_key(Found::order);
        self.bytes_left.store(bytes_of(&found), Ordering::Relaxed);
        let now = self.merger.runtime.clock.monotonic().as_micros() as u64;
        self.looked_at.store(now.saturating_add(1), Ordering::Relaxed);
        Ok(Looked { found, unread })
    }

    /// Of what the run still has of the piece. `None`: nothing.
    fn misplaced_in(
        &self,
        run: &Run,
        piece: &Piece,
        wishes: Option<&dyn TierWishes>,
    ) -> Result<Option<(MigrationPlan, ByHeat)>> {
        let (zones, heat) = (self.zones(), self.zones().heat());
        let (mut plan, mut by_heat) = (MigrationPlan::default(), ByHeat::default());
        let index = piece.index()?;
        for layer in index.layers() {
            let (mut prefix, mut wish) = (bytes::Bytes::new(), None);
            for at in 0..layer.len() {
                let region = layer.region(at);
                let bound = first_block_at_or_after(region.prefix, &run.lower_bound);
                if bound.is_none_or(|bound| bound >= region.end()) {
                    continue;
                }
                if prefix != *region.prefix {
                    prefix = region.prefix.clone();
                    wish = wishes.and_then(|wishes| wishes.tier_of(&prefix));
                }
                if wish.is_some() || region.unit.is_some() || !heat.has_levels() {
                    let by_heat = || heat.wish_of(&prefix, region.first, region.count.into());
                    let wish = wish.or_else(by_heat);
                    if let Some(tier) = wish.filter(|_| zones.is_misplaced(region.addr, wish)) {
                        *plan.bytes_to(tier) += u64::from(region.extent().len);
                    }
                    continue;
                }
                for part in heat.parts_of(region.first, region.count.into()) {
                    let blocks = part.end - part.start;
                    let wish = heat.wish_of(&prefix, part.start, blocks);
                    let Some(tier) = wish.filter(|_| zones.is_misplaced(region.addr, wish)) else { continue };
                    let bytes = blocks * BLOCK_BYTES as u64;
                    *plan.bytes_to(tier) += bytes;
                    match tier {
                        Tier::Slow => by_heat.bytes_cold += bytes,
                        Tier::Fast => {
                            by_heat.bytes_hot += bytes;
                            by_heat.count += u64::from(heat.count(&prefix, part.start));
                        }
                    }
                }
            }
        }
        Ok((plan.bytes() > 0).then_some((plan, by_heat)))
    }

    /// Whether a tier that blocks of a piece wish for has room for them, or for so many that it is worth the
    /// rewrite.
    fn has_room_for(&self, plan: &MigrationPlan) -> bool {
        let zones = self.zones();
        let worth = u64::from(zones.zone_bytes());
        let fits = |tier, bytes: u64| bytes > 0 && zones.fits_rewrite(bytes.min(worth), zones.room_on(tier));
        fits(Tier::Fast, plan.bytes_to_fast) || fits(Tier::Slow, plan.bytes_to_slow)
    }

    /// Moves what lies on another tier than it wishes, until `goes_on` says no: before each piece it is told
    /// how many bytes are left. True: nothing is left. False: it said no, or merges and readers hold what is
    /// left, or the tier that it wishes for has no room.
    ///
    /// # Errors
    /// I/O errors and corruption, when all that can be read has been moved.
    pub(crate) fn migrate(&self, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        self.merger.runtime.check_writable()?;
        if !self.zones().are_of_both_tiers() {
            return Ok(true);
        }
        // What the journal has bound comes into runs.
        self.merger.flusher.flush_everything()?;
        self.zones().settle_heat();
        let mut rounds = Rounds::of(&self.merger);
        let mut looked = self.find_misplaced()?;
        while !looked.found.is_empty() {
            let before = bytes_of(&looked.found);
            let round = self.move_found(&looked.found, Duration::MAX, goes_on)?;
            if round.is_ended {
                return Ok(false);
            }
            looked = self.find_misplaced()?;
            // What becomes hot meanwhile may be more than what was moved.
            if bytes_of(&looked.found) >= before {
                round.unread?;
                if !round.had_room || !rounds.wait_for_others() {
                    return Ok(false);
                }
            }
        }
        looked.unread.map(|()| true)
    }

    /// One round over what was found, what is hottest first; it begins no piece from `until` on.
    fn move_found(
        &self,
        found: &[Found],
        until: Duration,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Round> {
        let runtime = &self.merger.runtime;
        let mut left = bytes_of(found);
        let mut round = Round { has_moved: false, had_room: false, is_ended: false, unread: Ok(()) };
        for piece in found {
            round.is_ended = runtime.is_stopping() || !goes_on(left);
            if round.is_ended || runtime.clock.monotonic() >= until {
                break;
            }
            let is_needed = !piece.is_cold() || self.zones().is_fast_crowded();
            if is_needed && self.has_room_for(&piece.plan) {
                round.had_room = true;
                match self.rewrite(piece, &mut || goes_on(left)) {
                    Ok(moved) => round.has_moved |= moved,
                    error => pass_over(&mut round.unread, error.map(drop), &runtime.health)?,
                }
            }
            left -= piece.plan.bytes();
        }
        Ok(round)
    }

    /// Rewrites what `victims` names, at the pace of what moves between tiers.
    fn step_config(&self, victims: Victims, share_divisor: u32) -> StepConfig {
        let merger = &self.merger;
        let pace = GivingWay::over(Arc::clone(&self.pace), merger, share_divisor);
        let config = merger.stepper.step_config(Lane::FIRST, Budget::Ordinary, Some(pace));
        StepConfig { victims, ..config }
    }

    /// Whether anything was moved: the piece was there, free to be rewritten, and found space.
    fn rewrite(&self, found: &Found, goes_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        let (merger, target) = (&self.merger, found.target);
        let begin = merger.runtime.clock.monotonic();
        *self.moving_since.lock() = Some(begin);
        let copied = Arc::new(AtomicU64::new(0));
        let config = self.step_config(Victims::misplaced(Arc::clone(&copied)), found.share_divisor());
        let was_there = self.is_there(target);
        let rewritten = merger.rewrite_all(&[target], &config, false, &mut |_, _| goes_on());
        let took = merger.runtime.clock.monotonic().saturating_sub(begin);
        *self.moving_since.lock() = None;
        ok_unless_full(rewritten.map(drop))?;
        let copied = copied.load(Ordering::Relaxed);
        let has_moved = was_there && !self.is_there(target) && copied > 0;
        if has_moved {
            self.moving_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
            self.bytes_moved.fetch_add(copied, Ordering::Relaxed);
            // Others look at what is left, too.
            let less = |left: u64| Some(left.saturating_sub(copied));
            let _ = self.bytes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        Ok(has_moved)
    }

    fn is_there(&self, target: Target) -> bool {
        let view = self.merger.live.view();
        let mut runs = view.version.runs(target.keyspace).iter().filter(|run| run.id == target.run);
        runs.any(|run| run.pieces.iter().any(|piece| piece.desc().id == target.piece))
    }
}

fn bytes_of(found: &[Found]) -> u64 {
    found.iter().map(|found| found.plan.bytes()).sum()
}

/// Whether any of the prefixes that the piece may have blocks of has a row. (Those that have rows are of one
/// length.)
fn has_wishes_for(layers: Layers, rows: u32, desc: &PieceDesc) -> Result<bool> {
    let (Some((first, _)), Some((last, _))) =
        (split_block_key(&desc.first_key), split_block_key(&desc.last_key))
    else {
        return Ok(true);
    };
    let mut end = last.to_vec();
    end.push(0);
    let range = KeyRange::new(first.to_vec(), end);
    let mut cursor = layers.cursor(rows, range, MergeOperator::new("tiers", None));
    cursor.next()?;
    Ok(cursor.entry().is_some())
}
