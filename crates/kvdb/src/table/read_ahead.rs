//! Read-ahead along walks over the device.
//!
//! Files that were written together lie one behind the other, and so do the rows of a directory; both are
//! mostly read in about that order. A reader that notices that reads advance reads a *window*: one large
//! request instead of many small ones (limits of the medium: a small read costs as much as a large one).
//! Half-way through it the next one is planned, which a thread reads meanwhile.
//!
//! Thread safety: one small lock for each piece, held for a few instructions.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use kvfs_locks::{Mutex, class};
use kvfs_store::BLOCK_BYTES;

use super::storage::Storage;
use super::upcoming::ZoneHold;
use super::windows::{Owner, Window};

/// The first window when a walk is noticed (bytes); it doubles up to the read-ahead of the options.
const WINDOW_BYTES_MIN: u64 = 64 << 10;

/// A read that begins this close to an end of the last one still belongs to the walk (bytes).
pub(super) const GAP_BYTES_MAX: u64 = 256 << 10;

/// Walks that one piece tells apart: as many programs may go through it at the same time, or places that one
/// goes to by turns. With more of them, more of the reads anywhere in a small file look like steps of a walk.
const WALKS_MAX: usize = 4;

/// Which way a reader goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

/// The device addresses that were read last, and how much at once.
#[derive(Debug)]
struct Walk {
    last: Range<u64>,
    window_bytes: u64,
}

/// How a walk may come to a place that is not close to where it was: in another zone, or past what others
/// share.
#[derive(Debug, Clone)]
pub(super) struct Jump {
    /// What comes before the place, in the order of keys.
    pub(super) from: Range<u64>,
    /// What lies together there (bytes).
    pub(super) bytes_max: u64,
}

/// Whether `wanted` goes on where `last` was, without a jump.
pub(super) fn is_near(last: &Range<u64>, wanted: &Range<u64>) -> bool {
    let reach = last.start.saturating_sub(GAP_BYTES_MAX)..=last.end + GAP_BYTES_MAX;
    reach.contains(&wanted.start) || reach.contains(&wanted.end)
}

/// Notices walks over the device addresses of one piece.
#[derive(Debug)]
pub(super) struct ReadAhead {
    owner: Owner,
    /// Least recently gone on first.
    walks: Mutex<VecDeque<Walk>, class::KvdbTableReadAheadWalks>,
}

impl ReadAhead {
    pub(super) fn new(owner: Owner) -> Self {
        Self { owner, walks: Mutex::default() }
    }

    /// The owner of its windows.
    pub(super) fn owner(&self) -> Owner {
        self.owner
    }

    /// Which addresses to read when `wanted` ones are needed and not at hand: more than that, up to
    /// `bytes_max`, when they are close to what was read before, or a walk can have jumped to them; `None`
    /// when not. If they are planned for, the walk that will need them is still in a window, `held`.
    fn window(
        &self,
        wanted: Range<u64>,
        jump: Option<&Jump>,
        held: Option<&Range<u64>>,
        direction: Direction,
        bytes_max: u64,
    ) -> Option<Range<u64>> {
        let mut walks = self.walks.lock();
        let (mut known, mut lies_together) = (take_walk(&mut walks, &wanted), u64::MAX);
        if known.is_none() {
            // The walk that it comes from stays: it may go back there.
            let from = jump.and_then(|jump| walks.iter().rfind(|walk| is_near(&walk.last, &jump.from)));
            let window_bytes = match (from, held) {
                (Some(walk), _) => Some(walk.window_bytes),
                (None, Some(held)) => Some(held.end - held.start),
                (None, None) => None,
            };
            let at = match direction {
                Direction::Forward => wanted.start,
                Direction::Backward => wanted.end,
            };
            known = window_bytes.map(|window_bytes| Walk { last: at..at, window_bytes });
            lies_together = jump.map_or(u64::MAX, |jump| jump.bytes_max);
        }
        let Some(mut walk) = known else {
            put_walk(&mut walks, Walk { last: wanted, window_bytes: 0 });
            return None;
        };
        // What a reader that is ahead of it left out: only the gap, since beyond it everything was read.
        let gap = match direction {
            Direction::Forward if wanted.end <= walk.last.start => Some(wanted.start..walk.last.start),
            Direction::Backward if wanted.start >= walk.last.end => Some(walk.last.end..wanted.end),
            _ => None,
        };
        if gap.is_some() {
            // Where no walk was noticed yet, it is only two reads by chance, against the direction.
            let is_noticed = walk.window_bytes > 0;
            if !is_noticed {
                walk.last = wanted;
            }
            put_walk(&mut walks, walk);
            return gap.filter(|_| is_noticed);
        }
        walk.window_bytes = (walk.window_bytes * 2).max(WINDOW_BYTES_MIN).min(bytes_max);
        let bytes = walk.window_bytes.min(lies_together).max(wanted.end - wanted.start);
        let window = match direction {
            Direction::Forward => wanted.start..wanted.start + bytes,
            Direction::Backward => wanted.end.saturating_sub(bytes)..wanted.end,
        };
        walk.last = match held.filter(|held| held.start <= window.end && window.start <= held.end) {
            Some(held) => held.start.min(window.start)..held.end.max(window.end),
            None => window.clone(),
        };
        put_walk(&mut walks, walk);
        // What a walk passes by on its way is not worth a window.
        Some(window).filter(|_| lies_together > wanted.end - wanted.start)
    }

    /// Takes note of a large read that needed no window: the walk goes on behind it. Whether it begins where
    /// that had come to.
    fn passed(&self, read: Range<u64>) -> bool {
        let mut walks = self.walks.lock();
        let known = take_walk(&mut walks, &read);
        let goes_on =
            known.as_ref().is_some_and(|Walk { last, .. }| last.start < read.start && read.start <= last.end);
        let window_bytes = known.map_or(0, |walk| walk.window_bytes);
        put_walk(&mut walks, Walk { last: read, window_bytes });
        goes_on
    }

    /// Whether a walk has been at all of `range`, or is about to: with several requests at a time, one may
    /// overtake another.
    fn has_passed(&self, range: &Range<u64>) -> bool {
        self.walks.lock().iter().any(|Walk { last, .. }| last.start <= range.start && range.end <= last.end)
    }
}

/// Takes out the walk that goes on at `wanted`.
fn take_walk(walks: &mut VecDeque<Walk>, wanted: &Range<u64>) -> Option<Walk> {
    let at = walks.iter().rposition(|walk| is_near(&walk.last, wanted))?;
    walks.remove(at)
}

/// Puts a walk behind the others, of which the oldest goes if there are too many.
fn put_walk(walks: &mut VecDeque<Walk>, walk: Walk) {
    if walks.len() == WALKS_MAX {
        walks.pop_front();
    }
    walks.push_back(walk);
}

impl Storage {
    /// A window that holds at least `len_min` of the bytes at `addr` if they were read ahead, or all `len`
    /// of them (if they lie in one zone) if a walk is under way. `None`: read just what is needed. A window
    /// that can't be read is none, since that says nothing about its parts; nor does one with a part that
    /// does not verify say what the device has there: see [`Self::discard_window`].
    pub(super) fn ahead(
        &self,
        addr: u64,
        (len_min, len): (usize, usize),
        jump: impl FnOnce() -> Option<Jump>,
        direction: Direction,
    ) -> Option<Arc<Window>> {
        if let Some(window) = self.window_at(addr, len_min) {
            return Some(window);
        }
        let window = self.window_around(addr..addr + len as u64, jump().as_ref(), None, direction)?;
        let (owner, len) = (self.read_ahead().owner, (window.end - window.start) as usize);
        self.ctx().windows.load(owner, window.start, len, |buf, addr| self.read(buf, addr))
    }

    /// As [`Self::ahead`] for `len` bytes of blocks, forward; plans what lies behind them in the same zone.
    pub(super) fn blocks_ahead(&self, addr: u64, len: usize) -> Option<Arc<Window>> {
        let window = self.ahead(addr, (BLOCK_BYTES, len), || None, Direction::Forward)?;
        let next = window.range().end;
        if window.note_use(addr, len, Direction::Forward)
            && self.can_plan()
            && self.zone_extent(addr).is_some_and(|own| own.end > next)
        {
            self.plan(&window, next..next + BLOCK_BYTES as u64, None, Direction::Forward);
        }
        Some(window)
    }

    /// The window that a walk needs, all in one zone.
    fn window_around(
        &self,
        wanted: Range<u64>,
        jump: Option<&Jump>,
        held: Option<&Range<u64>>,
        direction: Direction,
    ) -> Option<Range<u64>> {
        let own = self.zone_extent(wanted.start)?;
        let plan = self.read_ahead().window(wanted, jump, held, direction, self.window_bytes_max())?;
        Some(plan.start.max(own.start)..plan.end.min(own.end))
    }

    /// Most bytes that are read ahead at once.
    pub(super) fn window_bytes_max(&self) -> u64 {
        (self.ctx().options.read_ahead_bytes as u64).min(self.ctx().windows.window_bytes_max())
    }

    /// The window that holds all of these bytes, if they were read ahead.
    pub(super) fn window_at(&self, addr: u64, len: usize) -> Option<Arc<Window>> {
        let windows = &self.ctx().windows;
        let window = windows.find(self.read_ahead().owner, addr, len)?;
        windows.fill(&window, |buf, addr| self.read(buf, addr)).then_some(window)
    }

    /// Drops a window with a part that does not verify. That part must be read alone then.
    pub(super) fn discard_window(&self, window: &Arc<Window>) {
        self.ctx().windows.discard(window);
    }

    /// Lets the window be read that a walk needs after `window`, when it asks for the bytes at `next`. A plan
    /// that can't be made is tried again later in the window.
    pub(super) fn plan(&self, window: &Window, next: Range<u64>, jump: Option<&Jump>, direction: Direction) {
        window.follow(|| {
            let together = jump.map_or(u64::MAX, |jump| jump.bytes_max);
            let bytes_max = self.window_bytes_max().min(together).max(next.end - next.start);
            let place = || self.window_around(next.clone(), jump, Some(&window.range()), direction);
            self.plan_at(next.clone(), bytes_max, place)
        });
    }

    /// As [`Self::plan`], for a reader that goes forward by `len` bytes at a time and has come to the end of
    /// `held`. Nothing where a window can't hold that much: what it gains would cost it one more request.
    /// Whether it is read, or will be.
    pub(super) fn plan_large(&self, held: &Range<u64>, len: usize) -> bool {
        let (len, bytes_max) = (len as u64, self.window_bytes_max());
        let next = held.end..held.end + len;
        let is_written = |own: Range<u64>| own.end > next.start;
        if len > bytes_max || !self.can_plan() || !self.zone_extent(next.start).is_some_and(is_written) {
            return false;
        }
        let place = || {
            if self.read_ahead().has_passed(&next) {
                return None;
            }
            let window = self.window_around(next.clone(), None, Some(held), Direction::Forward)?;
            Some(window.start..window.end.min(window.start + bytes_max))
        };
        self.plan_at(next.start..next.start + 1, bytes_max, place)
    }

    /// Lets a window of at most `bytes_max` be read, unless there is one that holds `needed`. Whether there
    /// is.
    fn plan_at(
        &self,
        needed: Range<u64>,
        bytes_max: u64,
        place: impl FnOnce() -> Option<Range<u64>>,
    ) -> bool {
        if self.has_window(&needed) {
            return true;
        }
        let Some(hold) = self.zone_hold(needed.start) else { return false };
        self.ctx().windows.plan(self.read_ahead().owner, bytes_max as usize, hold, place)
    }

    /// Whether it makes sense to plan ahead.
    pub(super) fn can_plan(&self) -> bool {
        self.ctx().windows.can_plan()
    }

    /// Whether all of `range` was read ahead, or will be.
    pub(super) fn has_window(&self, range: &Range<u64>) -> bool {
        self.ctx().windows.holds(self.read_ahead().owner, range.start, (range.end - range.start) as usize)
    }

    fn zone_hold(&self, addr: u64) -> Option<ZoneHold> {
        let zone_use = *self.zone_use(addr)?;
        Some(ZoneHold::new(Arc::clone(&self.ctx().device), Arc::clone(&self.ctx().zones), zone_use))
    }

    /// Takes note of a read past all windows. Whether it goes on where a walk had come to.
    pub(super) fn passed(&self, addr: u64, len: usize) -> bool {
        self.read_ahead().passed(addr..addr + len as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Accountant;
    use crate::table::Windows;

    const MAX: u64 = 512 << 10;

    fn read_ahead() -> ReadAhead {
        ReadAhead::new(Windows::new(Accountant::new(64 << 20)).new_owner())
    }

    fn forward(ahead: &ReadAhead, addr: u64, len: u64) -> Option<u64> {
        let window = ahead.window(addr..addr + len, None, None, Direction::Forward, MAX)?;
        assert_eq!(window.start, addr);
        Some(window.end - window.start)
    }

    #[test]
    fn windows_grow_along_a_walk_and_not_for_scattered_reads() {
        let ahead = read_ahead();
        assert_eq!(forward(&ahead, 10 << 20, 4096), None, "the first read says nothing");
        let mut addr = (10 << 20) + 4096;
        for expected in [64, 128, 256, 512, 512] {
            assert_eq!(forward(&ahead, addr, 8192), Some(expected << 10));
            addr += (expected << 10) + 4096;
        }
        assert_eq!(forward(&ahead, 1 << 20, 4096), None, "far before");
        assert_eq!(forward(&ahead, 90 << 20, 4096), None, "far behind");
        assert_eq!(forward(&ahead, addr, 4096), Some(MAX), "the walk goes on");
    }

    #[test]
    fn a_walk_may_go_backwards() {
        let ahead = read_ahead();
        let mut end = 20 << 20;
        for expected in [None, Some(64), Some(128)] {
            let window = ahead.window(end - 4096..end, None, None, Direction::Backward, MAX);
            assert_eq!(window, expected.map(|kib| end - (kib << 10)..end));
            end -= expected.map_or(4096, |kib| kib << 10);
        }
    }

    #[test]
    fn a_walk_goes_on_in_another_zone() {
        let ahead = read_ahead();
        let jump = |from: u64, to: u64, direction| {
            let jump = Jump { from: from..from + 4096, bytes_max: 300 << 10 };
            ahead.window(to..to + 4096, Some(&jump), None, direction, MAX)
        };
        assert_eq!(forward(&ahead, 10 << 20, 4096), None);
        assert_eq!(forward(&ahead, (10 << 20) + 4096, 4096), Some(64 << 10));
        let to = 40 << 20;
        assert_eq!(jump(90 << 20, to, Direction::Forward), None, "no reader came from there");
        let to = 50 << 20;
        assert_eq!(jump((10 << 20) + 65536, to, Direction::Forward), Some(to..to + (128 << 10)));
        assert_eq!(forward(&ahead, (10 << 20) + 4096 + (64 << 10), 4096), Some(128 << 10), "it may go back");
        assert_eq!(forward(&ahead, to + (128 << 10), 4096), Some(256 << 10), "and on from there");
        let lone = Jump { from: to..to + 4096, bytes_max: 4096 };
        let passed_by = ahead.window(90 << 20..(90 << 20) + 4096, Some(&lone), None, Direction::Forward, MAX);
        assert_eq!(passed_by, None, "a block by itself");
        let to = 60 << 20;
        let window = jump((50 << 20) + (300 << 10), to, Direction::Backward);
        assert_eq!(window, Some(to + 4096 - (300 << 10)..to + 4096), "no more than lies together");
    }

    #[test]
    fn a_walk_that_is_planned_for_is_still_where_it_was() {
        let ahead = read_ahead();
        let at = |kib: u64| (10 << 20) + (kib << 10);
        assert_eq!(forward(&ahead, at(0), 4096), None);
        let mut addr = at(4);
        for expected in [64, 128, 256, 512] {
            assert_eq!(forward(&ahead, addr, 4096), Some(expected << 10));
            addr += expected << 10;
        }
        let held = addr - (512 << 10)..addr;
        let plan =
            |ahead: &ReadAhead| ahead.window(addr..addr + 4096, None, Some(&held), Direction::Forward, MAX);
        assert_eq!(plan(&ahead), Some(addr..addr + MAX));
        assert_eq!(plan(&read_ahead()), Some(addr..addr + MAX), "though others pushed the walk out");
        let far = Jump { from: held.clone(), bytes_max: 100 << 10 };
        let planned =
            read_ahead().window(1 << 20..(1 << 20) + 4096, Some(&far), Some(&held), Direction::Forward, MAX);
        assert_eq!(planned, Some(1 << 20..(1 << 20) + (100 << 10)), "and though it lies far before");
        let middle = held.start + (100 << 10);
        assert_eq!(forward(&ahead, middle, 4096), Some(MAX), "the window it was in was dropped");
    }

    #[test]
    fn what_a_walk_left_out_is_read_up_to_where_it_began() {
        let ahead = read_ahead();
        assert_eq!(forward(&ahead, 10 << 20, 4096), None);
        assert_eq!(forward(&ahead, (10 << 20) + 20480, 4096), Some(64 << 10));
        assert_eq!(forward(&ahead, (10 << 20) + 8192, 4096), Some(12288));
        assert_eq!(forward(&ahead, (10 << 20) + 20480 + (64 << 10), 4096), Some(128 << 10), "it goes on");
    }

    #[test]
    fn two_reads_against_the_direction_are_no_walk() {
        let ahead = read_ahead();
        assert_eq!(forward(&ahead, 10 << 20, 4096), None);
        assert_eq!(forward(&ahead, (10 << 20) - (100 << 10), 4096), None);
        assert_eq!(forward(&ahead, (10 << 20) - (96 << 10), 4096), Some(64 << 10), "but this goes on");
    }

    #[test]
    fn a_large_read_does_not_end_a_walk() {
        let ahead = read_ahead();
        assert_eq!(forward(&ahead, 10 << 20, 4096), None);
        assert_eq!(forward(&ahead, (10 << 20) + 4096, 4096), Some(64 << 10));
        let large = (10 << 20) + 4096 + (64 << 10);
        assert!(ahead.passed(large..large + (4 << 20)), "right behind it");
        assert_eq!(forward(&ahead, large + (4 << 20), 4096), Some(128 << 10));
    }

    #[test]
    fn large_reads_are_a_walk_where_one_begins_at_the_end_of_another() {
        let ahead = read_ahead();
        let at = |mib: u64| (10 + mib) << 20..(11 + mib) << 20;
        assert!(!ahead.passed(at(0)), "the first read says nothing");
        assert!(!ahead.passed(at(0)), "the same again");
        assert!(!ahead.passed(at(20)), "elsewhere");
        assert!(ahead.passed(at(1)) && ahead.passed(at(2)));
        assert!(!ahead.passed(at(19)), "before another one");
        assert!(!ahead.passed((30 << 20) + 4096..31 << 20), "with a gap");
        let part = |start: u64, end: u64| (start << 10)..(end << 10);
        assert!(
            ahead.has_passed(&part(12 << 10, 13 << 10)) && ahead.has_passed(&part((12 << 10) + 1, 13 << 10))
        );
        assert!(
            !ahead.has_passed(&part(12 << 10, (13 << 10) + 1))
                && !ahead.has_passed(&part(11 << 10, 13 << 10))
        );
    }
}
