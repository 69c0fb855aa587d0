//! What was read ahead and is not asked for yet: a few large buffers, used again and again.
//!
//! Purpose: a walk over small files or rows costs one large request for many of them. The bytes stay as
//! they came from the device, unverified, until somebody asks for a block in them; so what is never asked
//! for costs no checksum and no place in the block cache, and no page of memory is touched for the first
//! time (on a virtual machine that costs more than the copy). Large ones lie in huge pages: see
//! [`AlignedBuf::zeroed_in_huge_pages`].
//!
//! Thread safety: all methods take `&self`. One lock, held for a few instructions; under it that of a piece's walks may be
//! taken. A window is read by the first who comes to it, be it the thread that reads ahead; who asks for it meanwhile waits.
//!
//! Invariants: a window belongs to one piece and holds nothing but bytes of zones that the piece has
//! references on; a piece is immutable, so whatever of a window lies in the piece's own extents stays true.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use kvfs_device::{AlignedBuf, HUGE_PAGE_BYTES, SECTOR_BYTES};
use parking_lot::Mutex;

use super::read_ahead::Direction;
use super::upcoming::{Request, Upcoming, ZoneHold};
use crate::cache::{Accountant, Charge, Pool};

/// Most bytes that all windows together hold, if memory allows.
const BYTES_MAX: u64 = 16 << 20;
/// Share of the block cache's budget that windows may take: one in this many parts.
const BUDGET_DIVISOR: u64 = 16;
/// One window has at most one in this many parts of what all may have, so that there can be a few; twice as many where the next
/// ones are read, too.
const SHARE_DIVISOR: u64 = 4;
/// The next window is read along with the use of one from this size on (bytes): to wake a thread costs as much as the
/// device needs for some tens of KiB.
const FOLLOWED_BYTES_MIN: usize = 128 << 10;
/// A walk that has so much of a window left, or less, is through: no block of rows is larger as a rule, and the last one of a
/// window may lie in it only in part (bytes).
const PASSED_BYTES_MAX: usize = 48 << 10;
/// A window that nobody has come to, while so many times as many were made or wanted as there are, waits for nobody.
const STALE_AFTER: u64 = 4;
const HALF_A_HUGE_PAGE: usize = HUGE_PAGE_BYTES / 2;
/// Windows that there may be however little memory is left: one that is used, one that is read.
const COUNT_MIN: usize = 2;

/// Who a window belongs to; each open piece has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner(u64);

/// Bytes of one piece that were read ahead, or are about to be.
pub(super) struct Window {
    owner: Owner,
    /// Device address of the first byte.
    addr: u64,
    len: usize,
    memory: Arc<Memory>,
    /// What its bytes will lie in, if there was one to be used again.
    empty: Mutex<Option<Buffer>>,
    /// `None` in it when the read failed.
    data: OnceLock<Option<Buffer>>,
    /// Bytes that were asked for so far; more than once counts again.
    bytes_asked: AtomicUsize,
    /// From so many on it is worth a plan for the next one.
    bytes_asked_min: AtomicUsize,
    /// A walk has come to its end.
    is_passed: AtomicBool,
    /// By the clock of all windows.
    used_at: AtomicU64,
    /// The next one was planned.
    is_followed: AtomicBool,
}

struct Buffer {
    bytes: AlignedBuf,
    _charge: Charge,
}

/// Where buffers come from.
struct Memory {
    accountant: Arc<Accountant>,
    /// The other half of a huge page.
    spare: Mutex<Option<AlignedBuf>>,
}

impl Memory {
    /// A new buffer for `len` bytes.
    fn buffer(&self, len: usize) -> Buffer {
        let bytes = match buffer_bytes(len) {
            HALF_A_HUGE_PAGE => self.half_a_huge_page(),
            bytes => AlignedBuf::zeroed(bytes),
        };
        let charge = self.accountant.guard(Pool::Io, bytes.len() as u64);
        Buffer { bytes, _charge: charge }
    }

    fn half_a_huge_page(&self) -> AlignedBuf {
        let mut spare = self.spare.lock();
        spare.take().unwrap_or_else(|| {
            let mut halves = AlignedBuf::zeroed_in_huge_pages(HALF_A_HUGE_PAGE, 2);
            *spare = halves.pop();
            halves.swap_remove(0)
        })
    }
}

/// Size of the buffer for a window of `len` bytes: large ones lie in huge pages, two in each.
fn buffer_bytes(len: usize) -> usize {
    let is_large = (HALF_A_HUGE_PAGE / 2 + 1..=HALF_A_HUGE_PAGE).contains(&len);
    if is_large { HALF_A_HUGE_PAGE } else { len.next_multiple_of(SECTOR_BYTES) }
}

/// The bytes of a window, which stay as long as this lives.
pub(super) struct WindowBytes<'a> {
    buffer: &'a Buffer,
    addr: u64,
}

impl WindowBytes<'_> {
    /// The bytes at a device address.
    ///
    /// # Panics
    /// When they are not in the window.
    pub(super) fn at(&self, addr: u64, len: usize) -> &[u8] {
        let start = (addr - self.addr) as usize;
        &self.buffer.bytes.as_ref()[start..start + len]
    }
}

impl Window {
    /// Bytes from `addr` to the end of the window.
    pub(super) fn bytes_from(&self, addr: u64) -> usize {
        self.len - (addr - self.addr) as usize
    }

    /// Its device addresses.
    pub(super) fn range(&self) -> Range<u64> {
        self.addr..self.addr + self.len as u64
    }

    fn holds(&self, owner: Owner, addr: u64, len: usize) -> bool {
        self.owner == owner && self.addr <= addr && addr + len as u64 <= self.range().end
    }

    /// Reads its bytes, or waits for somebody who does; at once if they are there. False: they could not be read.
    pub(super) fn fill<E>(&self, read: impl FnOnce(&mut [u8], u64) -> Result<(), E>) -> bool {
        let fill = || {
            let mut buffer = self.empty.lock().take().unwrap_or_else(|| self.memory.buffer(self.len));
            read(&mut buffer.bytes.as_mut()[..self.len], self.addr).is_ok().then_some(buffer)
        };
        self.data.get_or_init(fill).is_some()
    }

    fn into_buffer(self) -> Option<Buffer> {
        self.data.into_inner().flatten().or(self.empty.into_inner())
    }

    /// Its bytes, if they were read.
    pub(super) fn bytes(&self) -> Option<WindowBytes<'_>> {
        let buffer = self.data.get()?.as_ref()?;
        Some(WindowBytes { buffer, addr: self.addr })
    }

    /// Takes note that somebody who goes in `direction` has asked for `len` bytes at `addr`. Whether it is time to read the next
    /// one: he walks, and is half-way through.
    pub(super) fn note_use(&self, addr: u64, len: usize, direction: Direction) -> bool {
        let asked = self.bytes_asked.fetch_add(len, Ordering::Relaxed) + len;
        let left = match direction {
            Direction::Forward => self.bytes_from(addr).saturating_sub(len),
            Direction::Backward => (addr - self.addr) as usize,
        };
        // A single look-up is no walk.
        if left <= PASSED_BYTES_MAX.max(len) && asked >= self.len / 4 {
            self.is_passed.store(true, Ordering::Relaxed);
        }
        left <= self.len / 2
            && asked >= self.bytes_asked_min.load(Ordering::Relaxed)
            && self.len >= FOLLOWED_BYTES_MIN
            && !self.is_followed.load(Ordering::Relaxed)
    }

    /// Has one of those who find it due plan the next one; after a failure it is due again an eighth of the window later.
    pub(super) fn follow(&self, plan: impl FnOnce() -> bool) {
        if !self.is_followed.swap(true, Ordering::Relaxed) && !plan() {
            let asked = self.bytes_asked.load(Ordering::Relaxed);
            self.bytes_asked_min.store(asked + self.len / 8, Ordering::Relaxed);
            self.is_followed.store(false, Ordering::Relaxed);
        }
    }
}

/// Why a window is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Now,
    /// A walk comes to it soon: nothing goes for it that somebody is in, or will be, as far as one can tell.
    Soon,
}

#[derive(Default)]
struct Slots {
    /// Least recently used first.
    windows: VecDeque<Arc<Window>>,
    owners: u64,
    /// Windows that were made or wanted so far.
    clock: u64,
}

/// The windows of all pieces of a store.
pub struct Windows {
    memory: Arc<Memory>,
    slots: Mutex<Slots>,
    upcoming: Upcoming,
}

impl Windows {
    /// No window yet; each will be counted by `accountant`.
    pub fn new(accountant: Arc<Accountant>) -> Self {
        let memory = Arc::new(Memory { accountant, spare: Mutex::default() });
        Self { memory, slots: Mutex::default(), upcoming: Upcoming::default() }
    }

    /// Reads what walks are about to come to, until [`Self::close`]. Without it nothing is read before it is needed.
    pub fn serve(&self) {
        self.upcoming.serve();
    }

    /// Ends [`Self::serve`], now or when it begins.
    pub fn close(&self) {
        self.upcoming.close();
    }

    pub(super) fn new_owner(&self) -> Owner {
        let mut slots = self.slots.lock();
        slots.owners += 1;
        Owner(slots.owners)
    }

    /// The window that holds these bytes, or will. O(windows), which are a few.
    pub(super) fn find(&self, owner: Owner, addr: u64, len: usize) -> Option<Arc<Window>> {
        let mut slots = self.slots.lock();
        let at = slots.windows.iter().rposition(|window| window.holds(owner, addr, len))?;
        let window = slots.windows.remove(at)?;
        window.used_at.store(slots.clock, Ordering::Relaxed);
        slots.windows.push_back(Arc::clone(&window));
        Some(window)
    }

    /// Whether [`Self::find`] would find one.
    pub(super) fn holds(&self, owner: Owner, addr: u64, len: usize) -> bool {
        self.slots.lock().windows.iter().any(|window| window.holds(owner, addr, len))
    }

    /// Drops the windows of an owner that is gone.
    pub(super) fn forget(&self, owner: Owner) {
        self.slots.lock().windows.retain(|window| window.owner != owner);
    }

    /// Bytes that one window may have so that there can be a few of them; whole sectors.
    pub(super) fn window_bytes_max(&self) -> u64 {
        let (alone, followed) = (self.bytes_max() / SHARE_DIVISOR, self.bytes_max() / (2 * SHARE_DIVISOR));
        let bytes =
            if followed >= FOLLOWED_BYTES_MIN as u64 && self.upcoming.is_served() { followed } else { alone };
        bytes / SECTOR_BYTES as u64 * SECTOR_BYTES as u64
    }

    fn bytes_max(&self) -> u64 {
        (self.memory.accountant.cache_budget() / BUDGET_DIVISOR).min(BYTES_MAX)
    }

    /// A new window, filled by `read`; whoever looks for its bytes meanwhile waits for them. `None` when
    /// `read` fails, or every window is in use.
    pub(super) fn load<E>(
        &self,
        owner: Owner,
        addr: u64,
        len: usize,
        read: impl FnOnce(&mut [u8], u64) -> Result<(), E>,
    ) -> Option<Arc<Window>> {
        let window = {
            let mut slots = self.slots.lock();
            let mut recycled = None;
            if !self.make_room(&mut slots, len, Need::Now, &mut recycled) {
                return None;
            }
            self.insert(&mut slots, owner, addr, len, recycled)
        };
        self.fill(&window, read).then_some(window)
    }

    /// As [`Window::fill`]; what can't be read is dropped.
    pub(super) fn fill<E>(
        &self,
        window: &Arc<Window>,
        read: impl FnOnce(&mut [u8], u64) -> Result<(), E>,
    ) -> bool {
        let is_filled = window.fill(read);
        if !is_filled {
            self.slots.lock().windows.retain(|other| !Arc::ptr_eq(other, window));
        }
        is_filled
    }

    /// Whether somebody reads what will be needed.
    pub(super) fn can_plan(&self) -> bool {
        self.upcoming.has_room()
    }

    /// A new window, where `place` says if there is room for `len_max` bytes, that is read by [`Self::serve`] if nobody needs
    /// it before; whether there is one. Nothing may be done to what `hold` refers to until then.
    pub(super) fn plan(
        &self,
        owner: Owner,
        len_max: usize,
        hold: ZoneHold,
        place: impl FnOnce() -> Option<Range<u64>>,
    ) -> bool {
        let window = {
            let mut slots = self.slots.lock();
            let mut recycled = None;
            if !self.make_room(&mut slots, len_max, Need::Soon, &mut recycled) {
                return false;
            }
            let Some(place) = place() else { return false };
            let len = (place.end - place.start) as usize;
            self.insert(&mut slots, owner, place.start, len, recycled)
        };
        self.upcoming.push(Request { window, hold });
        true
    }

    fn insert(
        &self,
        slots: &mut Slots,
        owner: Owner,
        addr: u64,
        len: usize,
        recycled: Option<Buffer>,
    ) -> Arc<Window> {
        let empty = recycled.filter(|buffer| buffer.bytes.len() == buffer_bytes(len));
        let window = Arc::new(Window {
            owner,
            addr,
            len,
            memory: Arc::clone(&self.memory),
            empty: Mutex::new(empty),
            data: OnceLock::new(),
            bytes_asked: AtomicUsize::new(0),
            bytes_asked_min: AtomicUsize::new(len / 4),
            is_passed: AtomicBool::new(false),
            used_at: AtomicU64::new(slots.clock),
            is_followed: AtomicBool::new(false),
        });
        slots.windows.push_back(Arc::clone(&window));
        window
    }

    /// Drops the least recently used windows until there is room for one more, and keeps a buffer of the
    /// right size if there is one among them. False when what is there must stay.
    fn make_room(&self, slots: &mut Slots, len: usize, need: Need, recycled: &mut Option<Buffer>) -> bool {
        slots.clock += 1;
        let (bytes_max, clock) = (self.bytes_max(), slots.clock);
        let stale_after = STALE_AFTER * slots.windows.len() as u64;
        let is_full = |slots: &Slots| {
            let bytes: usize = slots.windows.iter().map(|window| buffer_bytes(window.len)).sum();
            slots.windows.len() >= COUNT_MIN && (bytes + buffer_bytes(len)) as u64 > bytes_max
        };
        // Alone in the list: nobody can come to use it while the list is locked.
        let may_go = |window: &Arc<Window>| {
            let is_left = window.is_passed.load(Ordering::Relaxed)
                || clock - window.used_at.load(Ordering::Relaxed) > stale_after;
            Arc::strong_count(window) == 1 && (need == Need::Now || is_left)
        };
        while is_full(slots) {
            let unused = slots.windows.iter().position(may_go);
            let Some(window) = unused.and_then(|at| slots.windows.remove(at)) else { return false };
            let buffer = Arc::into_inner(window).and_then(Window::into_buffer);
            if let Some(buffer) = buffer
                && buffer.bytes.len() == buffer_bytes(len)
            {
                *recycled = Some(buffer);
            }
        }
        true
    }
}

impl std::fmt::Debug for Windows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Windows").field("count", &self.slots.lock().windows.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Windows {
    /// Has a thread of its own read what is planned while `body` runs, even if that panics.
    pub(super) fn while_served(&self, body: impl FnOnce()) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.serve());
            let _closes = self.upcoming.closes();
            body();
        });
    }
}

#[cfg(test)]
mod tests {
    use kvfs_device::{Device, MemoryDevice};

    use super::*;
    use crate::format::{Extent, ZoneId, ZoneUse};
    use crate::zone::{Budget, Stream, Zones};

    const KIB: usize = 1 << 10;

    fn load(windows: &Windows, owner: Owner, addr: u64, len: usize, byte: u8) -> Option<Arc<Window>> {
        windows.load(owner, addr, len, |buf, _| {
            buf.fill(byte);
            Ok::<_, ()>(())
        })
    }

    #[test]
    fn a_window_is_found_by_its_owner_and_every_part() {
        let windows = Windows::new(Accountant::new(64 << 20));
        let (mine, other) = (windows.new_owner(), windows.new_owner());
        load(&windows, mine, 1 << 20, 64 * KIB, 7).expect("room");
        let found = windows.find(mine, (1 << 20) + 4096, 4096).expect("within");
        assert_eq!(found.bytes().expect("read").at((1 << 20) + 4096, 4096), [7; 4096]);
        assert_eq!(found.bytes_from((1 << 20) + 4096), 60 * KIB);
        assert!(windows.find(other, 1 << 20, 4096).is_none());
        assert!(windows.find(mine, (1 << 20) + 60 * KIB as u64, 8192).is_none(), "past its end");
        windows.forget(mine);
        assert!(windows.find(mine, 1 << 20, 4096).is_none());
    }

    #[test]
    fn a_failed_read_leaves_no_window() {
        let accountant = Accountant::new(64 << 20);
        let windows = Windows::new(Arc::clone(&accountant));
        let owner = windows.new_owner();
        assert!(windows.load(owner, 1 << 20, 64 * KIB, |_, _| Err("broken")).is_none());
        assert!(windows.find(owner, 1 << 20, 4096).is_none());
        assert_eq!(accountant.used(Pool::Io), 0);
    }

    #[test]
    fn windows_stay_within_their_share_and_the_oldest_goes_first() {
        let accountant = Accountant::new(32 << 20);
        let windows = Windows::new(Arc::clone(&accountant));
        let owner = windows.new_owner();
        for n in 0..64 {
            load(&windows, owner, n << 20, 256 * KIB, n as u8).expect("room");
            assert!(accountant.used(Pool::Io) <= 2 << 20, "a sixteenth of the ceiling");
        }
        assert!(windows.find(owner, 63 << 20, 4096).is_some());
        assert!(windows.find(owner, 56 << 20, 4096).is_none());
        let held: Vec<_> = (57..64).filter_map(|n| windows.find(owner, n << 20, 4096)).collect();
        assert!(load(&windows, owner, 99 << 20, 256 * KIB, 0).is_none(), "all are in use");
        drop(held);
        assert!(load(&windows, owner, 99 << 20, 256 * KIB, 0).is_some());
    }

    #[test]
    fn however_little_memory_there_is_two_windows_fit() {
        let windows = Windows::new(Accountant::new(0));
        let owner = windows.new_owner();
        for n in 0..3 {
            load(&windows, owner, n << 20, 64 * KIB, 0).expect("room");
        }
        assert!(windows.find(owner, 0, 1).is_none());
        assert!(windows.find(owner, 1 << 20, 1).is_some() && windows.find(owner, 2 << 20, 1).is_some());
    }

    /// What a piece has in a zone, full of sevens.
    struct Stored {
        device: Arc<dyn Device>,
        zones: Arc<Zones>,
        extent: Extent,
    }

    impl Stored {
        fn new() -> Self {
            let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
            let zones = Zones::new(Arc::clone(&device), 1 << 20, 64 << 20, ZoneId(1));
            let extent = zones.allocate(Stream::FlushTuple, 512 << 10, Budget::Ordinary).expect("empty");
            device.write_at(&vec![7; 512 * KIB], extent.addr).expect("memory");
            Self { device, zones, extent }
        }

        /// The address of its `n`th 64 KiB.
        fn at(&self, n: u64) -> u64 {
            self.extent.addr + (n << 16)
        }

        fn plan(&self, windows: &Windows, owner: Owner, n: u64) {
            let zone_use =
                ZoneUse { zone: self.zones.zone_of(self.extent.addr), bytes: 4096, pieces: 1, end: 4096 };
            let hold = ZoneHold::new(Arc::clone(&self.device), Arc::clone(&self.zones), zone_use);
            windows.plan(owner, 64 * KIB, hold, || Some(self.at(n)..self.at(n + 1)));
        }

        fn holds(&self) -> u64 {
            let bytes_live: u64 = self.zones.rows().iter().map(|zone| zone.bytes_live).sum();
            (bytes_live - u64::from(self.extent.len)) / 4096
        }
    }

    #[test]
    fn what_is_planned_is_read_by_who_serves_or_who_needs_it_first() {
        let (stored, windows) = (Stored::new(), Windows::new(Accountant::new(64 << 20)));
        let nines = |buf: &mut [u8], _: u64| {
            buf.fill(9);
            Ok::<_, ()>(())
        };
        let owner = windows.new_owner();
        assert!(!windows.can_plan(), "nobody serves");
        stored.plan(&windows, owner, 0);
        let early = windows.find(owner, stored.at(0), 4096).expect("planned");
        assert!(early.bytes().is_none() && stored.holds() == 1);
        assert!(windows.fill(&early, nines));
        windows.while_served(|| {
            stored.plan(&windows, owner, 1);
            while stored.holds() > 0 {
                std::thread::yield_now();
            }
            let late = windows.find(owner, stored.at(1), 4096).expect("planned");
            assert!(windows.can_plan() && windows.fill(&late, nines));
            assert_eq!(
                late.bytes().expect("read").at(stored.at(1), 4096),
                [7; 4096],
                "not read a second time"
            );
        });
        assert_eq!(early.bytes().expect("read").at(stored.at(0), 4096), [9; 4096], "nor this");
        stored.plan(&windows, owner, 2);
        assert!(stored.holds() == 0 && !windows.can_plan(), "nothing is held for who has ended");
    }

    #[test]
    fn what_is_planned_pushes_out_only_what_walks_are_through_with() {
        let (stored, windows) = (Stored::new(), Windows::new(Accountant::new(0)));
        let owner = windows.new_owner();
        let first = load(&windows, owner, 32 << 20, 64 * KIB, 0).expect("room");
        stored.plan(&windows, owner, 0);
        stored.plan(&windows, owner, 1);
        assert!(windows.find(owner, stored.at(1), 1).is_none(), "somebody is in the first one");
        first.note_use((32 << 20) + 32768, 4096, Direction::Forward);
        stored.plan(&windows, owner, 1);
        assert!(windows.find(owner, stored.at(1), 1).is_none(), "no walk, but a look-up");
        first.note_use((32 << 20) + 36864, 16384, Direction::Forward);
        drop(first);
        stored.plan(&windows, owner, 1);
        stored.plan(&windows, owner, 2);
        windows.close();
        assert!(windows.find(owner, 32 << 20, 1).is_none(), "he has left it");
        assert!(windows.find(owner, stored.at(0), 1).is_some());
        assert!(windows.find(owner, stored.at(1), 1).is_some());
        assert!(windows.find(owner, stored.at(2), 1).is_none(), "no room for it");
    }

    #[test]
    fn what_was_planned_for_nobody_goes_in_the_end() {
        let (stored, windows) = (Stored::new(), Windows::new(Accountant::new(0)));
        let owner = windows.new_owner();
        // Without the queue nothing else refers to them.
        windows.close();
        stored.plan(&windows, owner, 0);
        stored.plan(&windows, owner, 1);
        for _ in 0..20 {
            stored.plan(&windows, owner, 2);
            assert!(windows.find(owner, stored.at(1), 1).is_some(), "somebody comes to it again and again");
        }
        assert!(windows.find(owner, stored.at(0), 1).is_none());
        assert!(windows.find(owner, stored.at(2), 1).is_some());
    }

    #[test]
    fn a_walk_wants_the_next_window_half_way_through_until_there_is_one() {
        let windows = Windows::new(Accountant::new(64 << 20));
        let owner = windows.new_owner();
        let at = |kib: u64| (1 << 20) + (kib << 10);
        let load = || load(&windows, owner, 1 << 20, 256 * KIB, 0).expect("room");
        let window = load();
        for kib in [0, 32, 64] {
            assert!(!window.note_use(at(kib), 32 * KIB, Direction::Forward));
        }
        assert!(window.note_use(at(96), 32 * KIB, Direction::Forward));
        window.follow(|| false);
        assert!(!window.note_use(at(128), 16 * KIB, Direction::Forward), "it was refused just now");
        assert!(window.note_use(at(144), 16 * KIB, Direction::Forward), "it was refused");
        window.follow(|| true);
        assert!(!window.note_use(at(160), 64 * KIB, Direction::Forward), "once");
        let window = load();
        assert!(!window.note_use(at(192), 4 * KIB, Direction::Forward), "a single look is no walk");
        let window = load();
        assert!(!window.note_use(at(160), 96 * KIB, Direction::Backward));
        assert!(window.note_use(at(128), 32 * KIB, Direction::Backward));
    }
}
