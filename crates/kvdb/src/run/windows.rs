//! What was read ahead and is not asked for yet: a few large buffers, used again and again.
//!
//! Purpose: a walk over small files or rows costs one large request for many of them. The bytes stay as
//! they came from the device, unverified, until somebody asks for a block in them; so what is never asked
//! for costs no checksum and no place in the block cache, and no page of memory is touched for the first
//! time (on a virtual machine that costs more than the copy).
//!
//! Thread safety: all methods take `&self`. One lock, held for a few instructions; a second one for each
//! window, held exclusively while it is read from the device, so that who asks for it meanwhile waits.
//!
//! Invariants: a window belongs to one piece and holds nothing but bytes of zones that the piece has
//! references on; a piece is immutable, so whatever of a window lies in the piece's own extents stays true.

use std::collections::VecDeque;
use std::sync::Arc;

use kvfs_device::{AlignedBuf, SECTOR_BYTES};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::cache::{Accountant, Charge, Pool};

/// Most bytes that all windows together hold, if memory allows.
const BYTES_MAX: u64 = 16 << 20;
/// Share of the block cache's budget that windows may take: one in this many parts.
const BUDGET_DIVISOR: u64 = 16;
/// Windows that there may be however little memory is left: one that is used, one that is read.
const COUNT_MIN: usize = 2;

/// Who a window belongs to; each open piece has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner(u64);

/// Bytes of one piece that were read ahead.
pub(super) struct Window {
    owner: Owner,
    /// Device address of the first byte.
    addr: u64,
    len: usize,
    /// `None` when the read failed.
    data: RwLock<Option<Buffer>>,
}

struct Buffer {
    bytes: AlignedBuf,
    _charge: Charge,
}

/// The bytes of a window, which stay as long as this lives.
pub(super) struct WindowBytes<'a> {
    guard: RwLockReadGuard<'a, Option<Buffer>>,
    addr: u64,
}

impl WindowBytes<'_> {
    /// The bytes at a device address.
    ///
    /// # Panics
    /// When they are not in the window.
    pub(super) fn at(&self, addr: u64, len: usize) -> &[u8] {
        let start = (addr - self.addr) as usize;
        let bytes = self.guard.as_ref().map_or(&[][..], |buffer| buffer.bytes.as_ref());
        &bytes[start..start + len]
    }
}

impl Window {
    /// Bytes from `addr` to the end of the window.
    pub(super) fn bytes_from(&self, addr: u64) -> usize {
        self.len - (addr - self.addr) as usize
    }

    fn holds(&self, owner: Owner, addr: u64, len: usize) -> bool {
        self.owner == owner && self.addr <= addr && addr + len as u64 <= self.addr + self.len as u64
    }

    /// Its bytes, once they are there; `None` when they could not be read.
    pub(super) fn bytes(&self) -> Option<WindowBytes<'_>> {
        let guard = self.data.read();
        guard.is_some().then_some(WindowBytes { guard, addr: self.addr })
    }
}

#[derive(Default)]
struct Slots {
    /// Least recently used first.
    windows: VecDeque<Arc<Window>>,
    owners: u64,
}

/// The windows of all pieces of a store.
pub struct Windows {
    accountant: Arc<Accountant>,
    slots: Mutex<Slots>,
}

impl Windows {
    /// No window yet; each will be counted by `accountant`.
    pub fn new(accountant: Arc<Accountant>) -> Self {
        Self { accountant, slots: Mutex::default() }
    }

    pub(super) fn new_owner(&self) -> Owner {
        let mut slots = self.slots.lock();
        slots.owners += 1;
        Owner(slots.owners)
    }

    /// The window that holds these bytes. O(windows), which are a few.
    pub(super) fn find(&self, owner: Owner, addr: u64, len: usize) -> Option<Arc<Window>> {
        let mut slots = self.slots.lock();
        let at = slots.windows.iter().rposition(|window| window.holds(owner, addr, len))?;
        let window = slots.windows.remove(at)?;
        slots.windows.push_back(Arc::clone(&window));
        Some(window)
    }

    /// Drops the windows of an owner that is gone.
    pub(super) fn forget(&self, owner: Owner) {
        self.slots.lock().windows.retain(|window| window.owner != owner);
    }

    /// Bytes that one window may have so that there can be a few of them; whole sectors.
    pub(super) fn window_bytes_max(&self) -> u64 {
        self.bytes_max() / 4 / SECTOR_BYTES as u64 * SECTOR_BYTES as u64
    }

    fn bytes_max(&self) -> u64 {
        (self.accountant.cache_budget() / BUDGET_DIVISOR).min(BYTES_MAX)
    }

    /// A new window, filled by `read`; whoever looks for its bytes meanwhile waits for them. `None` when
    /// `read` fails, or every window is in use.
    pub(super) fn load<E>(
        &self,
        owner: Owner,
        addr: u64,
        len: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Option<Arc<Window>> {
        let window = Arc::new(Window { owner, addr, len, data: RwLock::default() });
        let mut data = window.data.write();
        let mut recycled = None;
        {
            let mut slots = self.slots.lock();
            if !self.make_room(&mut slots, len, &mut recycled) {
                return None;
            }
            slots.windows.push_back(Arc::clone(&window));
        }
        let mut buffer = recycled.unwrap_or_else(|| Buffer {
            bytes: AlignedBuf::zeroed(len),
            _charge: self.accountant.guard(Pool::Io, len as u64),
        });
        if read(&mut buffer.bytes.as_mut()[..len]).is_err() {
            drop(data);
            self.slots.lock().windows.retain(|other| !Arc::ptr_eq(other, &window));
            return None;
        }
        *data = Some(buffer);
        drop(data);
        Some(window)
    }

    /// Drops the least recently used windows until there is room for one more, and keeps a buffer of the
    /// right size if there is one among them. False when what is there is in use.
    fn make_room(&self, slots: &mut Slots, len: usize, recycled: &mut Option<Buffer>) -> bool {
        let bytes_max = self.bytes_max();
        let is_full = |slots: &Slots| {
            let bytes: usize = slots.windows.iter().map(|window| window.len).sum();
            slots.windows.len() >= COUNT_MIN && (bytes + len) as u64 > bytes_max
        };
        while is_full(slots) {
            // Alone in the list: nobody can come to use it while the list is locked.
            let unused = slots.windows.iter().position(|window| Arc::strong_count(window) == 1);
            let Some(window) = unused.and_then(|at| slots.windows.remove(at)) else { return false };
            let buffer = Arc::into_inner(window).and_then(|window| window.data.into_inner());
            if let Some(buffer) = buffer
                && buffer.bytes.len() == len.next_multiple_of(SECTOR_BYTES)
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
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    fn load(windows: &Windows, owner: Owner, addr: u64, len: usize, byte: u8) -> Option<Arc<Window>> {
        windows.load(owner, addr, len, |buf| {
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
        assert!(windows.load(owner, 1 << 20, 64 * KIB, |_| Err("broken")).is_none());
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
}
