//! What a process has of its server, on pages that a fork leaves empty in the child.
//!
//! Thread safety: atomics; a lane belongs to the one who has claimed it, be it a thread, a signal handler
//! that interrupts it, or a child of vfork, which shares this memory.
//!
//! Invariant: all zeros is the state of a process that has nothing yet.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use kvfs_lane::ClientLane;

use crate::sys;

/// Calls that are under way at once over lanes that are kept; more have a lane each that is not.
const LANES: usize = 64;

/// Placeholders that are kept for files to be opened.
pub(super) const SPARES: usize = 64;

const EMPTY: u32 = 0;
const IDLE: u32 = 1;
const BUSY: u32 = 2;

/// See the module.
pub(super) struct Page {
    /// The process whose page it is; 0: nothing is known yet.
    pub(super) pid: AtomicI32,
    /// The number of the connection and one; 0: there is none.
    pub(super) socket: AtomicI32,
    /// Whether a request is under way on the connection.
    pub(super) asking: AtomicU32,
    /// Whether the process has taken a lock of a range.
    pub(super) has_locks: AtomicBool,
    /// The number of the directory of placeholders and one; 0: there is none.
    pub(super) directory: AtomicI32,
    /// A number and one that is kept for the memory of a lane; 0: none is.
    pub(super) reserve: AtomicI32,
    /// Counts connections that have ended: what they had is not the next one's.
    pub(super) generation: AtomicU32,
    /// How many placeholders were asked for at last.
    pub(super) batch: AtomicU32,
    /// Handles of placeholders that are not used yet; 0: none.
    pub(super) spares: [AtomicU64; SPARES],
    lanes: [Slot; LANES],
}

struct Slot {
    state: AtomicU32,
    /// Of the connection that the lane is of; changed while the slot is busy.
    generation: AtomicU32,
    lane: UnsafeCell<MaybeUninit<ClientLane>>,
}

// SAFETY: the lane is reached by the one who has made the slot busy.
unsafe impl Sync for Slot {}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(null_mut());

/// Makes the page. Returns `false` if the kernel refuses.
#[must_use]
pub(super) fn set_up() -> bool {
    let len = size_of::<Page>().next_multiple_of(4096) as u64;
    let (mode, kind) =
        ((libc::PROT_READ | libc::PROT_WRITE) as u64, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64);
    let start = sys::call(libc::SYS_mmap as u64, &[0, len, mode, kind, u64::MAX, 0]);
    if start < 0 {
        return false;
    }
    let advice = libc::MADV_WIPEONFORK as u64;
    if sys::call(libc::SYS_madvise as u64, &[start as u64, len, advice, 0, 0, 0]) < 0 {
        return false;
    }
    PAGE.store(start as *mut Page, Ordering::Release);
    true
}

/// The page of the process, once it is set up.
pub(super) fn page() -> Option<&'static Page> {
    // SAFETY: mapped for as long as the process lives, zeroed, aligned; atomics alone are shared, and slots
    // as they say.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

impl Page {
    /// A lane of a connection that is idle, or room for one; `None`: all are busy. One of a connection that
    /// has ended makes room.
    pub(super) fn claim(&self, generation: u32) -> Option<Claimed<'_>> {
        let mut claimed = [IDLE, EMPTY].into_iter().find_map(|state| {
            let mut slots = self.lanes.iter();
            slots.find_map(|slot| {
                let claimed = slot.state.compare_exchange(state, BUSY, Ordering::Acquire, Ordering::Relaxed);
                claimed.ok().map(|_| Claimed { slot, has_lane: state == IDLE })
            })
        })?;
        if claimed.slot.generation.swap(generation, Ordering::Relaxed) != generation {
            claimed.lose();
        }
        Some(claimed)
    }
}

/// A slot that is this one's alone until it is dropped.
pub(super) struct Claimed<'p> {
    slot: &'p Slot,
    has_lane: bool,
}

impl Claimed<'_> {
    /// The lane, if there is one.
    pub(super) fn lane(&mut self) -> Option<&mut ClientLane> {
        // SAFETY: the slot is busy by this claim, and a lane was put into it.
        self.has_lane.then(|| unsafe { (*self.slot.lane.get()).assume_init_mut() })
    }

    /// Puts a lane where none is.
    pub(super) fn put(&mut self, lane: ClientLane) -> &mut ClientLane {
        self.lose();
        self.has_lane = true;
        // SAFETY: the slot is busy by this claim.
        unsafe { (*self.slot.lane.get()).write(lane) }
    }

    /// Ends the lane.
    pub(super) fn lose(&mut self) {
        if self.has_lane {
            self.has_lane = false;
            // SAFETY: the slot is busy by this claim, and had a lane until now.
            unsafe { (*self.slot.lane.get()).assume_init_read() }.end();
        }
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane() {
            lane.finish();
        }
        self.slot.state.store(if self.has_lane { IDLE } else { EMPTY }, Ordering::Release);
    }
}
