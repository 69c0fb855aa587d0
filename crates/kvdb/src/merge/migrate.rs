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

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::{BLOCK_BYTES, Cursor, KeyRange, KeyspaceKind, Result, Seqno, Tier};

use super::giving_way::GivingWay;
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
use crate::version::{Run, RunId};

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
    /// All of it only makes room on crowded fast devices.
    is_cold: bool,
}

/// What a look has found, and the first thing that it could not read.
struct Looked {
    found: Vec<Found>,
    unread: Result<()>,
}

/// How long the background waits before it goes over the pieces again, and before it does after an opening.
const LOOK_WAIT_MIN: Duration = Duration::from_secs(30);
/// It waits so many times as long as going over them has taken.
const LOOK_WAIT_FACTOR: u32 = 50;
/// The same for zones of crowded fast devices.
const ROOM_WAIT_MIN: Duration = Duration::from_secs(1);
const ROOM_WAIT_FACTOR: u32 = 4;
/// When something was left, it is tried again after so long, whatever has changed.
const LEFT_WAIT: Duration = Duration::from_mins(10);

/// How going over the pieces, and moving what was found, has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// Nothing is left.
    All,
    /// Much was moved, and more was found meanwhile.
    Some,
    /// The devices that it is to lie on have no room for what is left.
    NoRoom,
    /// Merges, transactions or readers hold what is left.
    Held,
    /// It was told to end.
    Ended,
}

impl Moved {
    /// For people; `None`: it gets on.
    fn trouble(self) -> Option<&'static str> {
        match self {
            Self::All | Self::Some => None,
            Self::NoRoom => Some("the devices that it is to lie on have no room for it"),
            Self::Held => Some("merges, transactions or readers of old states hold it"),
            Self::Ended => Some("a device is drained first"),
        }
    }
}

const BUDGET_SPENT: &str = "fast devices have been written to as much as the placement allows by now";

/// Where these are as before, there is nothing new to move.
#[derive(Debug, PartialEq, Eq)]
struct Signs {
    /// Runs with wishes.
    runs: Vec<RunId>,
    /// Of memtables that have some: up to where they go.
    tables: Vec<Seqno>,
    /// Devices that take anything new.
    devices: Vec<u32>,
    has_room: [bool; 2],
}

/// When the background goes over the pieces.
#[derive(Default)]
struct Looks {
    /// Before it did for the last time.
    seen: Option<Signs>,
    not_before: Option<Duration>,
    /// When zones of crowded fast devices are emptied again.
    room_not_before: Duration,
    /// Something was left.
    again_at: Option<Duration>,
}

/// Moves blocks between tiers.
pub(crate) struct Migrator {
    merger: Arc<Merger>,
    looks: Mutex<Looks, class::KvdbMergeMigrateLooks>,
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
        let pace = Limited::over(GivingWay::over(merger), merger, move || now.load(Ordering::Relaxed));
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
                        found.extend(of_piece.map(|(plan, is_cold)| Found { target, plan, is_cold }));
                    });
                    pass_over(&mut unread, of_piece, &self.merger.runtime.health)?;
                }
            }
        }
        let left = found.iter().map(|found| found.plan.bytes()).sum();
        self.bytes_left.store(left, Ordering::Relaxed);
        let now = self.merger.runtime.clock.monotonic().as_micros() as u64;
        self.looked_at.store(now.saturating_add(1), Ordering::Relaxed);
        Ok(Looked { found, unread })
    }

    /// Of what the run still has of the piece; whether all of it is there because it is cold. `None`:
    /// nothing.
    fn misplaced_in(
        &self,
        run: &Run,
        piece: &Piece,
        wishes: Option<&dyn TierWishes>,
    ) -> Result<Option<(MigrationPlan, bool)>> {
        let (zones, heat) = (self.zones(), self.zones().heat());
        let mut plan = MigrationPlan::default();
        let mut bytes_cold = 0;
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
                    if let Some(tier) = wish.filter(|_| zones.is_misplaced(region.addr, wish)) {
                        *plan.bytes_to(tier) += blocks * BLOCK_BYTES as u64;
                        bytes_cold += if tier == Tier::Slow { blocks * BLOCK_BYTES as u64 } else { 0 };
                    }
                }
            }
        }
        Ok((plan.bytes() > 0).then(|| (plan, bytes_cold == plan.bytes())))
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
        Ok(self.move_all(self.find_misplaced()?, goes_on)? == Moved::All)
    }

    fn move_all(&self, mut looked: Looked, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<Moved> {
        let runtime = &self.merger.runtime;
        let (mut rounds, mut has_moved) = (Rounds::of(&self.merger), false);
        while !looked.found.is_empty() {
            let before = bytes_of(&looked.found);
            let mut left = before;
            let (mut had_room, mut unread) = (false, Ok(()));
            for Found { target, plan, is_cold } in &looked.found {
                if runtime.is_stopping() || !goes_on(left) {
                    return Ok(if has_moved { Moved::Some } else { Moved::Ended });
                }
                let is_needed = !is_cold || self.zones().is_fast_crowded();
                if is_needed && self.has_room_for(plan) {
                    had_room = true;
                    match self.rewrite(*target, &mut || goes_on(left)) {
                        Ok(moved) => has_moved |= moved,
                        error => pass_over(&mut unread, error.map(drop), &runtime.health)?,
                    }
                }
                left -= plan.bytes();
            }
            looked = self.find_misplaced()?;
            // What becomes hot meanwhile may be more than what was moved.
            if bytes_of(&looked.found) >= before {
                unread?;
                let gets_on = had_room && rounds.wait_for_others();
                match (gets_on, has_moved, had_room) {
                    (true, ..) => {}
                    (false, true, _) => return Ok(Moved::Some),
                    (false, false, true) => return Ok(Moved::Held),
                    (false, false, false) => return Ok(Moved::NoRoom),
                }
            }
        }
        looked.unread.map(|()| Moved::All)
    }

    /// Rewrites what `victims` names, at the pace of what moves between tiers.
    fn step_config(&self, victims: Victims) -> StepConfig {
        let config =
            self.merger.stepper.step_config(Lane::FIRST, Budget::Ordinary, Some(Arc::clone(&self.pace)));
        StepConfig { victims, ..config }
    }

    /// Whether anything was moved: the piece was there, free to be rewritten, and found space.
    fn rewrite(&self, target: Target, goes_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        let merger = &self.merger;
        let begin = merger.runtime.clock.monotonic();
        *self.moving_since.lock() = Some(begin);
        let copied = Arc::new(AtomicU64::new(0));
        let config = self.step_config(Victims::misplaced(Arc::clone(&copied)));
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

    /// From time to time: empties zones of fast devices that are full of what is dead, although the store has
    /// space elsewhere. Else what is new, and what is hot, would find no room there.
    fn keep_fast_room(&self, looks: &mut Looks, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let clock = &self.merger.runtime.clock;
        let begin = clock.monotonic();
        if !self.zones().are_of_both_tiers() || begin < looks.room_not_before {
            return Ok(());
        }
        let emptied = self.empty_crowded_zones(goes_on);
        let took = clock.monotonic().saturating_sub(begin);
        // What could not be read then can't be read at once.
        let wait = if emptied.is_ok() { ROOM_WAIT_MIN.max(took * ROOM_WAIT_FACTOR) } else { LEFT_WAIT };
        looks.room_not_before = begin + took + wait;
        emptied
    }

    fn empty_crowded_zones(&self, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        if !self.zones().endurance().has_for_moves() {
            return Ok(());
        }
        let victims = self.merger.victims.on_crowded_fast_devices();
        if !victims.any() {
            return Ok(());
        }
        let left = self.bytes_left.load(Ordering::Relaxed);
        let emptied = self.merger.empty(&self.step_config(victims), false, &mut |_, _| goes_on(left));
        ok_unless_full(emptied.map(drop)).map(drop)
    }

    /// In the background: migrates when it may find something to move, and has not looked for it lately;
    /// until `goes_on` says no.
    ///
    /// # Errors
    /// As [`Migrator::migrate`].
    pub(crate) fn advance(&self, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let Some(mut looks) = self.looks.try_lock() else { return Ok(()) };
        // What can't be read of one zone is no reason to move nothing.
        let emptied = self.keep_fast_room(&mut looks, goes_on);
        self.look(&mut looks, goes_on).and(emptied)
    }

    fn look(&self, looks: &mut Looks, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let clock = &self.merger.runtime.clock;
        let begin = clock.monotonic();
        let not_before = *looks.not_before.get_or_insert(begin + LOOK_WAIT_MIN);
        if begin < not_before || !self.zones().are_of_both_tiers() {
            return Ok(());
        }
        let signs = Some(self.signs());
        let is_unsettled = self.zones().is_heat_unsettled();
        if signs == looks.seen && !is_unsettled && looks.again_at.is_none_or(|at| begin < at) {
            return Ok(());
        }
        self.zones().settle_heat();
        looks.seen = signs;
        let found = self.find_misplaced();
        let looked = clock.monotonic().saturating_sub(begin);
        let moved = found.and_then(|found| self.move_all(found, goes_on));
        let end = clock.monotonic();
        looks.not_before = Some(end + LOOK_WAIT_MIN.max(looked * LOOK_WAIT_FACTOR));
        looks.again_at = match moved {
            Ok(Moved::All) => None,
            Ok(Moved::Some) => Some(end),
            _ => Some(end + LEFT_WAIT),
        };
        *self.trouble.lock() = match &moved {
            Ok(Moved::NoRoom) if !self.zones().endurance().has_for_moves() => Some(BUDGET_SPENT.to_owned()),
            Ok(moved) => moved.trouble().map(str::to_owned),
            Err(error) => Some(error.to_string()),
        };
        moved.map(drop)
    }

    fn signs(&self) -> Signs {
        let view = self.merger.live.view();
        let rows: Vec<u32> = self.merger.live.placed_by().into_iter().map(|(_, rows)| rows).collect();
        let runs = rows.iter().flat_map(|&rows| view.version.runs(rows)).map(|run| run.id).collect();
        let with_rows = view.tables().filter(|table| table.keyspaces().iter().any(|id| rows.contains(id)));
        let tables = with_rows.filter_map(|table| table.seqno_range()).map(|(_, last)| last).collect();
        let members = self.zones().members().into_iter().filter(|member| member.takes_new);
        let devices = members.map(|member| member.id).collect();
        let has_room = Tier::ALL.map(|tier| self.zones().room_on(tier) > 0);
        Signs { runs, tables, devices, has_room }
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
