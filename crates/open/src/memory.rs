//! How much memory a store may take, and for what.
//!
//! Thread safety: plain values.

use std::ops::RangeInclusive;

use kvfs_service::ErrorKind;

use crate::error::{Error, Result};

/// Least that works (bytes).
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// What a mounted view takes while nothing is asked of it: three threads, tables, a connection (bytes).
const VIEW_BYTES: u64 = 256 << 10;

/// The memory ceiling and how it is divided.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    bytes: u64,
}

impl Default for Memory {
    /// A quarter of RAM, at most 2 GiB.
    fn default() -> Self {
        let info = rustix::system::sysinfo();
        let ram = info.totalram.saturating_mul(u64::from(info.mem_unit));
        Self { bytes: (ram / 4).min(2 << 30) }
    }
}

impl Memory {
    /// So many bytes; `None`: as the machine has.
    ///
    /// # Errors
    /// Less than [`MEMORY_BYTES_MIN`].
    pub fn new(bytes: Option<u64>) -> Result<Self> {
        let Some(bytes) = bytes else { return Ok(Self::default()) };
        if bytes < MEMORY_BYTES_MIN {
            return Err(Error::new(ErrorKind::Usage, "the memory ceiling (--memory) must be at least 64M"));
        }
        Ok(Self { bytes })
    }

    /// For the table of what the kernel knows.
    pub(crate) fn node_bytes(self) -> u64 {
        self.bytes / 16
    }

    /// For the content of small files between lookup and read.
    pub(crate) fn content_bytes(self) -> u64 {
        self.bytes / 32
    }

    /// For locks of transactions. What they take of it, the engine's caches give up meanwhile.
    pub(crate) fn lock_bytes(self) -> u64 {
        self.bytes / 4
    }

    /// For request buffers that wait for reuse.
    pub fn io_bytes(self) -> u64 {
        self.bytes / 16
    }

    /// For what requests that wait for a transaction have to write; caches give way to it. Some of the
    /// largest requests fit a user's half.
    pub fn waiting_bytes(self) -> usize {
        (self.bytes / 8).clamp(16 << 20, 256 << 20) as usize
    }

    /// For requests and answers of the key-value socket that are under way; one of the largest messages, of
    /// `len_max` bytes, fits a user's half.
    pub fn message_bytes(self, len_max: usize) -> usize {
        ((self.bytes / 16) as usize).clamp(2 * len_max + (2 << 20), 64 << 20)
    }

    /// How many views of transactions users other than root may have mounted in all: a sixteenth goes to
    /// their threads and tables.
    pub fn views_max(self) -> usize {
        ((self.bytes / 16 / VIEW_BYTES) as usize).clamp(16, 1024)
    }

    /// The ceiling (bytes).
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// What the allocator loses to rounding and fragments, and what merges hold for a moment, is not
    /// accounted: room is left for it, as much as the daemon measures between these bounds (bytes).
    pub fn reserve_bounds(self) -> RangeInclusive<u64> {
        self.bytes / 8..=self.bytes / 8 * 5
    }

    /// The room for what is not accounted before anything was measured (bytes).
    pub fn reserve_bytes(self) -> u64 {
        self.bytes / 4
    }

    /// What a store in memory may hold (bytes).
    pub fn store_bytes(self) -> u64 {
        self.engine_bytes(self.reserve_bytes())
    }

    /// What the engine may take when `reserve` is left for what is not accounted (bytes).
    pub fn engine_bytes(self, reserve: u64) -> u64 {
        self.bytes - self.node_bytes() - self.content_bytes() - self.io_bytes() - reserve
    }
}
