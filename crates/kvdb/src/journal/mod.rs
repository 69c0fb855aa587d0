//! The journal: a circular write-ahead log over a fixed area, with group commit.
//!
//! Purpose: a batch is appended to the open group in memory; a group goes to the device in one
//! piece when somebody syncs or when it has grown large, and one flush serves everybody who waits.
//! Recovery replays the groups from the tail to the first one that does not verify. Layout:
//! `docs/FORMAT.md`, "Journal". (Journal with periodic commit: TableFS 3.2; group commit is future
//! work of the KVFS thesis.)
//!
//! Thread safety: all calls take `&self`. The caller appends in seqno order under a lock of its own;
//! syncs come from any thread. While a leader writes or flushes, others go on appending.
//!
//! Invariants:
//! * an [`Lsn`] is the byte offset in an endless stream; the group at `lsn` lies at
//!   `area + lsn mod area length`, and wraps physically at the end of the area;
//! * writes of groups are issued one at a time, in order, so what a flush covers is a prefix;
//! * one `(epoch, lsn)` is written at most once, and no group of an earlier epoch survives behind
//!   the end that an opening found: so a group can only be accepted in the log that it was written to;
//! * the blocks that a group binds are written before the group: a flush that covers it covers them;
//! * after a failed write or flush every append and sync fails until the store is opened again.

mod bound;
mod codec;
mod gate;
mod group;
mod header;
mod log;
mod monitor;
mod patience;
mod recovery;
pub(crate) mod salvage;

use std::sync::Arc;

use kvfs_device::{AlignedBuf, Device};
use kvfs_store::clock::Clock;
use kvfs_store::{Result, Seqno, StoreError};

use crate::cache::Accountant;
use crate::format::Superblock;
use codec::Entry;
pub use codec::{CommitMark, CommitNote, Record, SpilledCommit};
use log::{Log, State};
use monitor::Waking;
pub use recovery::{Recovered, Replayed};

/// A place in the journal's endless stream (bytes from its beginning).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// Where the journal lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalArea {
    /// Device address of its first byte.
    pub addr: u64,
    /// Length (bytes), a multiple of 4096.
    pub len: u64,
    /// What the checksums start with; see [`Superblock::salt`].
    pub salt: u32,
}

impl JournalArea {
    /// The area that the superblock names.
    pub fn of(superblock: &Superblock) -> Self {
        let zone_bytes = u64::from(superblock.zone_bytes);
        Self {
            addr: u64::from(superblock.journal_first.0) * zone_bytes,
            len: u64::from(superblock.journal_zones) * zone_bytes,
            salt: superblock.salt(),
        }
    }

    /// Calls `each` with the device address and the range of a buffer of `len` bytes that lies at
    /// `lsn`: once, or twice where it wraps.
    fn for_each_stretch<E>(
        &self,
        lsn: u64,
        len: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < len {
            let offset = (lsn + done as u64) % self.len;
            let stretch = (len - done).min((self.len - offset) as usize);
            each(self.addr + offset, done..done + stretch)?;
            done += stretch;
        }
        Ok(())
    }
}

/// A batch that was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Where the open group begins that took it.
    pub lsn: Lsn,
    /// That group has just passed 1 MiB: somebody should call [`Journal::write_out`] soon. Said once per group, to
    /// nobody while a write is under way. Who appends need not wait for it: from 4 MiB on appending waits itself.
    pub is_due: bool,
}

/// Why a batch was not appended.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The area is full: flush memtables and [`Journal::retire`] what they held, then try again.
    #[error("the journal area is full")]
    AreaFull,
    /// Anything else; nothing was appended, unless the journal has failed for good.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Counters since the journal was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalStats {
    /// Batches appended.
    pub batches: u64,
    /// Groups written.
    pub groups: u64,
    /// Bytes written to the area, padding included.
    pub bytes_written: u64,
    /// Bytes of blocks that were written to their final place in its stead.
    pub bytes_bound: u64,
    /// Device flushes.
    pub flushes: u64,
}

/// An open journal.
pub struct Journal {
    log: Log<Waking<State>>,
}

/// Zeros are written in pieces of so many bytes.
const ZERO_BYTES: usize = 1 << 20;

impl Journal {
    /// Prepares the area of a new store: writes zeros, which also allocates it in a sparse file,
    /// and flushes.
    ///
    /// # Errors
    /// I/O errors.
    pub fn create(device: &dyn Device, area: JournalArea) -> Result<()> {
        let zeros = AlignedBuf::zeroed(ZERO_BYTES);
        let mut addr = area.addr;
        let end = area.addr + area.len;
        while addr < end {
            let len = (end - addr).min(zeros.len() as u64);
            device
                .write_at(&zeros.as_ref()[..len as usize], addr)
                .map_err(|error| StoreError::io(format!("clearing the journal at byte {addr}"), error))?;
            addr += len;
        }
        device.flush().map_err(|error| StoreError::io("clearing the journal", error))
    }

    /// Replays the journal from `tail` and opens it for appending behind what was found. `epoch` is
    /// the number of this opening, already durable in the superblock. Of batches up to `flushed` the bound blocks are
    /// left out: they are in runs. What was replayed is durable when this returns, and what a crash left behind its end
    /// is wiped. `clock` tells how long flushes take.
    ///
    /// # Errors
    /// I/O errors; `Corrupt` when a group that had been flushed is damaged; errors of `replay`.
    pub fn open(
        device: Arc<dyn Device>,
        area: JournalArea,
        epoch: u64,
        (tail, flushed): (Lsn, Seqno),
        clock: Arc<dyn Clock>,
        replay: &mut dyn FnMut(Replayed) -> Result<()>,
    ) -> Result<Self> {
        let recovered = recovery::replay(device.as_ref(), area, epoch, (tail, flushed), replay)?;
        recovery::wipe_remains(device.as_ref(), area, &recovered)?;
        let state = State::new(tail, recovered.head, recovered.last_seqno);
        Ok(Self { log: Log::new(device, area, epoch, clock, state) })
    }

    /// Counts the memory of its groups, written and to come, from now on (the pool of buffers).
    #[must_use]
    pub fn charged_to(self, accountant: Arc<Accountant>) -> Self {
        self.log.charge_to(accountant);
        self
    }

    /// As [`Journal::open`], but only reads: for stores that are opened read-only, and for checks.
    /// `epoch` is one more than the superblock's.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn replay(
        device: &dyn Device,
        area: JournalArea,
        epoch: u64,
        (tail, flushed): (Lsn, Seqno),
        replay: &mut dyn FnMut(Replayed) -> Result<()>,
    ) -> Result<Recovered> {
        recovery::replay(device, area, epoch, (tail, flushed), replay)
    }

    /// Appends a batch, whose first operation has seqno `base`, to the open group. Call it in
    /// seqno order. Costs one copy of the payload, without bound blocks; waits for a write when the group has passed
    /// 4 MiB.
    ///
    /// # Errors
    /// The area is full; the batch can never fit; a failure, which is sticky.
    pub fn append(&self, base: Seqno, record: Record<'_>) -> Result<Appended, AppendError> {
        self.log.append(base, Entry::Batch(record))
    }

    /// As [`Journal::append`], for the commit of a transaction whose operations are in runs.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn append_spilled(&self, base: Seqno, commit: &SpilledCommit) -> Result<Appended, AppendError> {
        self.log.append(base, Entry::Spilled(commit))
    }

    /// Whether any batch of so many operations with so much payload fits the area, when that is empty.
    pub fn holds(&self, ops: u64, payload_bytes: u64) -> bool {
        let len = header::HEADER_BYTES as u64 + codec::encoded_len_max_of(ops, payload_bytes);
        header::group_len(len) <= self.log.area().len
    }

    /// Returns when everything appended at or below `seqno` survives a power cut. The first of
    /// several callers writes and flushes for all; seqnos never appended here count as durable.
    ///
    /// # Errors
    /// `Failed`; sticky.
    pub fn sync(&self, seqno: Seqno) -> Result<()> {
        self.log.sync(seqno)
    }

    /// Writes the open group, if it holds anything, without flush.
    ///
    /// # Errors
    /// `Failed`; sticky.
    pub fn write_out(&self) -> Result<()> {
        self.log.write_out()
    }

    /// Everything appended at or below this survives a power cut. 0 at first in an empty journal.
    pub fn durable_seqno(&self) -> Seqno {
        self.log.read(State::durable_seqno)
    }

    /// The last seqno appended (or replayed); 0 if none.
    pub fn appended_seqno(&self) -> Seqno {
        self.log.read(State::appended_seqno)
    }

    /// Where recovery would begin.
    pub fn tail(&self) -> Lsn {
        self.log.read(|state| Lsn(state.tail()))
    }

    /// Where the open group begins: every batch appended from now on lies at or behind it.
    pub fn head(&self) -> Lsn {
        self.log.read(|state| Lsn(state.head()))
    }

    /// Bytes of the area that hold or await groups which are not retired.
    pub fn used_bytes(&self) -> u64 {
        self.log.read(State::used_bytes)
    }

    /// Length of the area (bytes).
    pub fn area_bytes(&self) -> u64 {
        self.log.area().len
    }

    /// Counters.
    pub fn stats(&self) -> JournalStats {
        self.log.read(State::stats)
    }

    /// The space before `tail` may be overwritten. Call it only when the manifest's new tail is
    /// durable. A tail before the present one changes nothing.
    pub fn retire(&self, tail: Lsn) {
        self.log.retire(tail);
    }
}

#[cfg(test)]
mod tests;
