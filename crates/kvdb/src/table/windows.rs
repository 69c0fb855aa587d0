//! What was read ahead and is not asked for yet: a few large buffers, used again and again.
//!
//! Purpose: a walk over small files or rows costs one large request for many of them. The bytes stay as
//! they came from the device, unverified, until a reader asks for a block in them; so what is never asked
//! for costs no checksum and no place in the block cache, and no page of memory is touched for the first
//! time (on a virtual machine that costs more than the copy). Large ones lie in huge pages: see
//! [`AlignedBuf::zeroed_in_huge_pages`].
//!
//! Thread safety: all methods take `&self`. One lock, held for a few instructions; under it that of a piece's
//! walks may be taken. A window is read by the first thread that comes to it, be it the one that reads ahead;
//! one that asks for it meanwhile waits.
//!
//! Invariants: a window belongs to one piece and holds nothing but bytes of zones that the piece has
//! references on; a piece is immutable, so whatever of a window lies in the piece's own extents stays true.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use kvfs_device::{AlignedBuf, HUGE_PAGE_BYTES, SECTOR_BYTES};
use kvfs_locks::{Mutex, class};

use super::read_ahead::Direction;
use super::upcoming::{Request, Upcoming, ZoneHold};
use crate::cache::{Accountant, Charge, Pool};

/// Most bytes that all windows together hold, if memory allows.
const BYTES_MAX: u64 = 16 << 20;
/// Share of the block cache's budget that windows may take: one in this many parts.
const BUDGET_DIVISOR: u64 = 16;
/// One window has at most one in this many parts of what all may have, so that there can be a few; twice as
/// many where the next ones are read, too.
const SHARE_DIVISOR: u64 = 4;
/// The next window is read along with the use of one from this size on (bytes): to wake a thread costs as
/// much as the device needs for some tens of KiB.
const FOLLOWED_BYTES_MIN: usize = 128 << 10;
/// A walk that has so much of a window left, or less, is through: no block of rows is larger as a rule, and
/// the last one of a window may lie in it only in part (bytes).
const PASSED_BYTES_MAX: usize = 48 << 10;
/// A window that no reader has come to, while so many times as many were made or wanted as there are, waits
/// for none.
const STALE_AFTER: u64 = 4;
const HALF_A_HUGE_PAGE: usize = HUGE_PAGE_BYTES / 2;
/// Windows that there may be however little memory is left: one that is used, one that is read.
const COUNT_MIN: usize = 2;

/// The owner of a window; each open piece has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner(u64);

/// How readers go through a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// From one end to the other, and beyond it.
    Walk,
    /// So many bytes of it, in any order, and no more.
    Advised { bytes: usize },
}

/// Bytes of one piece that were read ahead, or are about to be.
pub(super) struct Window {
    owner: Owner,
    /// Device address of the first byte.
    addr: u64,
    len: usize,
    intended: Use,
    memory: Arc<Memory>,
    /// What its bytes will lie in, if there was one to be used again.
    empty: Mutex<Option<Buffer>, class::KvdbTableWindowsEmpty>,
    /// `None` in it when the read failed.
    data: OnceLock<Option<Buffer>>,
    /// Bytes that were asked for so far; more than once counts again.
    bytes_asked: AtomicUsize,
    /// From so many on it is worth a plan for the next one.
    bytes_asked_min: AtomicUsize,
    /// Its readers are through with it.
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
    spare: Mutex<Option<AlignedBuf>, class::KvdbTableWindowsSpare>,
}

impl Memory {
    /// A new buffer for `len` bytes.
    fn buffer(&self, len: usize) -> Buffer {
        let bytes = match buffer_bytes(len) {
            HALF_A_HUGE_PAGE => self.half_a_huge_page(),
            bytes => AlignedBuf::zeroed(bytes),
        };
        let charge = self.accountant.charge(Pool::Io, bytes.len() as u64);
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

/// Size of the buffer for a window of `len` bytes, so that another one can use it again: large ones lie in
/// huge pages, two in each.
fn buffer_bytes(len: usize) -> usize {
    if len <= HALF_A_HUGE_PAGE {
        len.next_power_of_two().max(SECTOR_BYTES)
    } else {
        len.next_multiple_of(SECTOR_BYTES)
    }
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

    /// Reads its bytes, or waits for a thread that does; at once if they are there. False: they could not be
    /// read.
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

    /// Takes note that a reader that goes in `direction` has asked for `len` bytes at `addr`. Whether it is
    /// time to read the next one: the reader walks, and is half-way through.
    pub(super) fn note_use(&self, addr: u64, len: usize, direction: Direction) -> bool {
        let asked = self.bytes_asked.fetch_add(len, Ordering::Relaxed) + len;
        let left = match direction {
            Direction::Forward => self.bytes_from(addr).saturating_sub(len),
            Direction::Backward => (addr - self.addr) as usize,
        };
        let is_passed = match self.intended {
            // A single look-up is no walk.
            Use::Walk => left <= PASSED_BYTES_MAX.max(len) && asked >= self.len / 4,
            Use::Advised { bytes } => asked >= bytes,
        };
        if is_passed {
            self.is_passed.store(true, Ordering::Relaxed);
        }
        self.intended == Use::Walk
            && left <= self.len / 2
            && asked >= self.bytes_asked_min.load(Ordering::Relaxed)
            && self.len >= FOLLOWED_BYTES_MIN
            && !self.is_followed.load(Ordering::Relaxed)
    }

    /// Has one of the readers that find it due plan the next one; after a failure it is due again an eighth
    /// of the window later.
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
    /// A walk comes to it soon: nothing goes for it that a reader is in, or will be, as far as one can tell.
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
pub(crate) struct Windows {
    memory: Arc<Memory>,
    slots: Mutex<Slots, class::KvdbTableWindowsSlots>,
    upcoming: Upcoming,
}

impl Windows {
    /// No window yet; each will be counted by `accountant`.
    pub(crate) fn new(accountant: Arc<Accountant>) -> Self {
        let memory = Arc::new(Memory { accountant, spare: Mutex::default() });
        Self { memory, slots: Mutex::default(), upcoming: Upcoming::default() }
    }

    /// Reads what walks are about to come to, until [`Self::close`]. Without it nothing is read before it is
    /// needed.
    pub(crate) fn serve(&self) {
        self.upcoming.serve();
    }

    /// Ends [`Self::serve`], now or when it begins.
    pub(crate) fn close(&self) {
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

    /// A new window, filled by `read`; a reader that looks for its bytes meanwhile waits for them. `None`
    /// when `read` fails, or every window is in use.
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
            self.insert(&mut slots, owner, addr, len, Use::Walk, recycled)
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
            self.discard(window);
        }
        is_filled
    }

    /// Drops a window whose bytes are not those of the device.
    pub(super) fn discard(&self, window: &Arc<Window>) {
        self.slots.lock().windows.retain(|other| !Arc::ptr_eq(other, window));
    }

    /// Whether a thread reads what will be needed.
    pub(super) fn can_plan(&self) -> bool {
        self.upcoming.has_room()
    }

    /// A new window, where `place` says if there is room for `len_max` bytes, that is read by [`Self::serve`]
    /// if no reader needs it before; whether there is one. Nothing may be done to what `hold` refers to until
    /// then.
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
            self.insert(&mut slots, owner, place.start, len, Use::Walk, recycled)
        };
        self.upcoming.push(Request::Window { window, hold });
        true
    }

    /// Has `follow` called by [`Self::serve`], which it may use to [`Self::load_advised`]. It must own what
    /// it goes by. Nothing where no thread serves, or is behind.
    pub(crate) fn advise(&self, follow: Box<dyn FnOnce() + Send>) {
        if self.can_plan() {
            self.upcoming.push(Request::Advice(follow));
        }
    }

    /// Reads a window of which readers will ask for `bytes_advised` in any order, unless there is one, or no
    /// room for it.
    pub(super) fn load_advised<E>(
        &self,
        owner: Owner,
        range: &Range<u64>,
        bytes_advised: usize,
        read: impl FnOnce(&mut [u8], u64) -> Result<(), E>,
    ) {
        let len = (range.end - range.start) as usize;
        let window = {
            let mut slots = self.slots.lock();
            let mut recycled = None;
            if slots.windows.iter().any(|window| window.holds(owner, range.start, len))
                || !self.make_room(&mut slots, len, Need::Soon, &mut recycled)
            {
                return;
            }
            self.insert(&mut slots, owner, range.start, len, Use::Advised { bytes: bytes_advised }, recycled)
        };
        self.fill(&window, read);
    }

    fn insert(
        &self,
        slots: &mut Slots,
        owner: Owner,
        addr: u64,
        len: usize,
        intended: Use,
        recycled: Option<Buffer>,
    ) -> Arc<Window> {
        let empty = recycled.filter(|buffer| buffer.bytes.len() == buffer_bytes(len));
        let window = Arc::new(Window {
            owner,
            addr,
            len,
            intended,
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
        // Alone in the list: no thread can come to use it while the list is locked.
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
    /// Waits until what is planned was read, so that how many requests there are does not depend on which
    /// comes first. No reader may be in a window meanwhile.
    pub(super) fn wait_for_reads(&self) {
        while self.slots.lock().windows.iter().any(|window| Arc::strong_count(window) > 1) {
            std::thread::yield_now();
        }
    }

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
mod tests;
