//! Keeps the resident set of the daemon under its ceiling.
//!
//! The accountants count what they hand out; what the allocator makes of it, fragments above all, only the
//! kernel can tell. So the daemon looks at its resident set and moves the engine's share: caches give way
//! while the process is close below the ceiling, and get the room back, slowly, when it is well below.
//! What comes between two looks, such as memtables that fill in a burst while the pages of evicted blocks
//! are still shared with others, is what the promise of the ceiling has its margin for.
//!
//! Thread safety: one thread, which ends when the [`Keeper`] is dropped. Invariant: the reserve stays within
//! [`Memory::reserve_bounds`], so caches keep a floor, however much memory others take.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvfs_fs::FileSystem;

use crate::allocator;
use kvfs_open::{Memory, OpenedEngine};

/// How often it is looked at.
const PERIOD: Duration = Duration::from_millis(100);

/// The resident set is kept between seven eighths and fifteen sixteenths of the ceiling.
const ROOM_DIVISOR_MIN: u64 = 16;
const ROOM_DIVISOR_MAX: u64 = 8;

/// Caches grow by one in this many parts of the ceiling a step.
const GROWTH_DIVISOR: u64 = 256;

/// How much is left for what is not accounted.
struct Reserve {
    memory: Memory,
    bytes: u64,
}

impl Reserve {
    fn new(memory: Memory) -> Self {
        Self { memory, bytes: memory.reserve_bytes() }
    }

    /// The greatest resident set with which nothing has to give way (bytes).
    fn resident_max(&self) -> u64 {
        let ceiling = self.memory.bytes();
        ceiling - ceiling / ROOM_DIVISOR_MIN
    }

    /// What the engine may take while locks of transactions take `lock_bytes`, which it gives up at once
    /// (bytes).
    fn engine_bytes(&self, lock_bytes: u64) -> u64 {
        let least = self.memory.engine_bytes(*self.memory.reserve_bounds().end());
        self.memory.engine_bytes(self.bytes).saturating_sub(lock_bytes).max(least)
    }

    /// Takes in a measurement. What is too much goes at once: of what a cache gives up, fragments keep a
    /// part.
    fn step(&mut self, resident: u64) {
        let ceiling = self.memory.bytes();
        let bounds = self.memory.reserve_bounds();
        let resident_max = self.resident_max();
        let bytes = if resident > resident_max {
            self.bytes.saturating_add(resident - resident_max)
        } else if resident < ceiling - ceiling / ROOM_DIVISOR_MAX {
            self.bytes.saturating_sub(ceiling / GROWTH_DIVISOR)
        } else {
            self.bytes
        };
        self.bytes = bytes.clamp(*bounds.start(), *bounds.end());
    }
}

/// The thread that looks.
pub(super) struct Keeper {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts it.
    pub(super) fn start(engine: OpenedEngine, fs: Arc<FileSystem>, memory: Memory) -> io::Result<Self> {
        let statm = File::open("/proc/self/statm")?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let body = move || keep(&engine, &fs, &statm, Reserve::new(memory), &stop);
        let thread = thread::Builder::new().name("kvfs-memory".into()).spawn(body)?;
        Ok(Self { stopping, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        if thread.join().is_err() {
            tracing::error!("the thread that watches the memory panicked");
        }
    }
}

fn keep(engine: &OpenedEngine, fs: &FileSystem, statm: &File, mut reserve: Reserve, stopping: &AtomicBool) {
    let mut share = reserve.engine_bytes(0);
    while !stopping.load(Ordering::Acquire) {
        thread::park_timeout(PERIOD);
        match resident_for_good(statm, reserve.resident_max()) {
            Ok(resident) => reserve.step(resident),
            Err(error) => tracing::debug!(%error, "the resident set is not known"),
        }
        let share_before = std::mem::replace(&mut share, reserve.engine_bytes(fs.admission().stats().bytes));
        if share != share_before {
            engine.set_memory_bytes(share);
        }
    }
}

/// The resident set (bytes). Above `resident_max` the allocator first gives back what it keeps for reuse:
/// else each step would take from the caches what the one before it has set free already.
fn resident_for_good(statm: &File, resident_max: u64) -> io::Result<u64> {
    let resident = resident_bytes(statm)?;
    if resident <= resident_max {
        return Ok(resident);
    }
    allocator::give_back_now();
    resident_bytes(statm)
}

/// The second number of `/proc/self/statm`: resident pages.
fn resident_bytes(statm: &File) -> io::Result<u64> {
    let mut text = [0; 128];
    let len = statm.read_at(&mut text, 0)?;
    let numbers = str::from_utf8(&text[..len]).map_err(io::Error::other)?;
    let pages = numbers.split_ascii_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| io::Error::other("statm in an unknown form"))?;
    Ok(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn reserve() -> Reserve {
        Reserve::new(Memory::new(Some(256 * MIB)).expect("is enough"))
    }

    #[test]
    fn locks_are_charged_to_the_engine_down_to_its_floor() {
        let reserve = reserve();
        let alone = reserve.engine_bytes(0);
        assert_eq!(reserve.engine_bytes(20 * MIB), alone - 20 * MIB);
        assert_eq!(reserve.engine_bytes(256 * MIB), reserve.memory.engine_bytes(160 * MIB));
    }

    #[test]
    fn caches_give_way_at_once_and_come_back_slowly() {
        let mut reserve = reserve();
        let start = reserve.bytes;
        reserve.step(250 * MIB);
        assert_eq!(reserve.bytes, start + 10 * MIB);
        reserve.step(230 * MIB);
        assert_eq!(reserve.bytes, start + 10 * MIB, "where it should be, nothing moves");
        reserve.step(200 * MIB);
        assert_eq!(reserve.bytes, start + 9 * MIB);
    }

    #[test]
    fn the_reserve_is_bounded_on_both_sides() {
        let mut reserve = reserve();
        (0..100).for_each(|_| reserve.step(u64::MAX));
        assert_eq!(reserve.bytes, 160 * MIB);
        (0..1000).for_each(|_| reserve.step(0));
        assert_eq!(reserve.bytes, 32 * MIB);
    }

    #[test]
    fn the_resident_set_is_known() {
        let statm = File::open("/proc/self/statm").expect("is there");
        assert!(resident_bytes(&statm).expect("is readable") > MIB / 4);
    }
}
