//! Migration in the background: when it goes over the pieces, and what it does in between.
//!
//! A call of [`Migrator::advance`] does one round, of half a minute at most: devices that are to be emptied,
//! and crowded ones, come before the next one, which goes by what is hot then. Looks take a small part of the
//! time, whatever comes of them.
//!
//! Thread safety: one thread at a time; the others find the lock taken, and go on.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kvfs_store::{Result, Seqno, Tier};

use super::{Looked, Migrator, Round};
use crate::merge::giving_way::SHARE_DIVISOR;
use crate::runtime::ok_unless_full;
use crate::version::RunId;

/// How long the background waits before it goes over the pieces again, and before it does after an opening.
const LOOK_WAIT_MIN: Duration = Duration::from_secs(30);
/// It waits so many times as long as going over them has taken.
const LOOK_WAIT_FACTOR: u32 = 50;
/// The same for zones of crowded fast devices.
const ROOM_WAIT_MIN: Duration = Duration::from_secs(1);
const ROOM_WAIT_FACTOR: u32 = 4;
/// When something was left, it is tried again after so long, whatever has changed.
const LEFT_WAIT: Duration = Duration::from_mins(10);

/// How going over the pieces, and moving some of what was found, has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// Nothing was found.
    All,
    /// Something was moved, and there may be more.
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
pub(super) struct Looks {
    /// Before it did for the last time.
    seen: Option<Signs>,
    not_before: Option<Duration>,
    /// When the time of the last one is a small part of all that has passed since.
    paid_at: Duration,
    /// When it has something to go on with; `None`: something else has to happen first.
    goes_on_at: Option<Duration>,
    /// When zones of crowded fast devices are emptied again.
    room_not_before: Duration,
    /// Something was left.
    again_at: Option<Duration>,
}

impl Migrator {
    /// One round over what was found; it begins no piece from `until` on.
    fn move_some(
        &self,
        looked: Looked,
        until: Duration,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Moved> {
        if looked.found.is_empty() {
            return looked.unread.map(|()| Moved::All);
        }
        let Round { has_moved, had_room, is_ended, unread } =
            self.move_found(&looked.found, until, goes_on)?;
        if has_moved {
            return Ok(Moved::Some);
        }
        unread?;
        Ok(match (is_ended, had_room) {
            (true, _) => Moved::Ended,
            (false, true) => Moved::Held,
            (false, false) => Moved::NoRoom,
        })
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
        let end = clock.monotonic();
        let took = end.saturating_sub(begin);
        // What could not be read then can't be read at once.
        let wait = if emptied.is_ok() { ROOM_WAIT_MIN.max(took * ROOM_WAIT_FACTOR) } else { LEFT_WAIT };
        looks.room_not_before = end + wait;
        if emptied? {
            // What found no room before may find some now.
            looks.not_before = Some(looks.paid_at);
            looks.again_at = Some(end);
            looks.goes_on_at = Some(looks.room_not_before);
        }
        Ok(())
    }

    /// Whether there were any.
    fn empty_crowded_zones(&self, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        if !self.zones().endurance().has_for_moves() {
            return Ok(false);
        }
        let victims = self.merger.victims.on_crowded_fast_devices();
        if !victims.any() {
            return Ok(false);
        }
        let left = self.bytes_left.load(Ordering::Relaxed);
        let config = self.step_config(victims, SHARE_DIVISOR);
        ok_unless_full(self.merger.empty(&config, false, &mut |_, _| goes_on(left)).map(drop))
    }

    /// In the background: migrates when it may find something to move, and has not looked for it lately;
    /// until `goes_on` says no, or for about half a minute: then it is to be called again.
    ///
    /// # Errors
    /// As [`Migrator::migrate`].
    pub(crate) fn advance(&self, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let Some(mut looks) = self.looks.try_lock() else { return Ok(()) };
        looks.goes_on_at = None;
        // What can't be read of one zone is no reason to move nothing.
        let emptied = self.keep_fast_room(&mut looks, goes_on);
        self.look(&mut looks, goes_on).and(emptied)
    }

    /// How long [`Self::advance`] has nothing to do, at most `max`.
    pub(crate) fn rest(&self, max: Duration) -> Duration {
        let Some(looks) = self.looks.try_lock() else { return max };
        let now = self.merger.runtime.clock.monotonic();
        looks.goes_on_at.map_or(max, |at| at.saturating_sub(now).min(max))
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
        let rest = LOOK_WAIT_MIN.max(looked * LOOK_WAIT_FACTOR);
        let moved = found.and_then(|found| self.move_some(found, begin + rest, goes_on));
        let end = clock.monotonic();
        looks.paid_at = begin + looked * LOOK_WAIT_FACTOR;
        let again_in = match moved {
            Ok(Moved::All) => None,
            Ok(Moved::Some | Moved::Held) => Some(Duration::ZERO),
            _ => Some(LEFT_WAIT),
        };
        looks.again_at = again_in.map(|time| end + time);
        let gets_on = matches!(moved, Ok(Moved::Some));
        let not_before = if gets_on { looks.paid_at } else { end + rest };
        looks.not_before = Some(not_before);
        let goes_on_at = gets_on.then_some(not_before);
        looks.goes_on_at = looks.goes_on_at.into_iter().chain(goes_on_at).min();
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
