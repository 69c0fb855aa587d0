//! The journal: a circular write-ahead log over a fixed area, with group commit.
//!
//! Purpose: a batch is appended to the open group in memory; a group goes to the device in one
//! piece when a client syncs or when it has grown large, and one flush serves all clients that wait.
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

mod allocation;
mod bound;
mod codec;
mod end;
mod gate;
mod gather;
mod group;
mod group_commit_delay;
mod header;
mod log;
mod monitor;
mod recovery;
pub(crate) mod salvage;

use std::sync::Arc;

use kvfs_device::{AlignedBuf, Device};
use kvfs_store::clock::Clock;
use kvfs_store::{Result, Seqno, StoreError};

use crate::cache::Accountant;
use crate::format::{FRAME_HEADER_BYTES, Superblock, group_len};
use codec::Entry;
pub(crate) use codec::{CommitMark, CommitNote, Record, SpilledCommit};
pub(crate) use gather::{Binder, Wanted};
use log::{Log, State};
use monitor::Waking;
pub(crate) use recovery::{Recovered, Replayed};

/// Reads every record of a group's payload; the records come to no more than the payload holds. Then finds
/// all that lies elsewhere, and nothing of it.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_payload(payload: &bytes::Bytes) {
    let (mut reader, mut reads) = (codec::BatchReader::new(payload), Vec::new());
    while let Ok(Some(read)) = reader.next() {
        let bytes: usize = read.ops.iter().map(kvfs_store::Op::payload_bytes).sum();
        let crcs: usize = read.places.iter().map(|(_, place)| place.crcs.len()).sum();
        assert!(bytes + 4 * crcs <= payload.len(), "a record holds more than its payload");
        reads.push(read);
    }
    for finds in [true, false] {
        let zeros = |place: &crate::space::Place| {
            bytes::Bytes::from(vec![0; place.crcs.len().min(16) * kvfs_store::BLOCK_BYTES])
        };
        let missing = bound::fetch(&mut reads, 0, |place| {
            Ok(if finds { bound::Found::Blocks(zeros(place)) } else { bound::Found::Others })
        });
        assert!(missing.is_ok(), "nothing was read");
    }
}

/// The payload of a group with one record.
#[cfg(feature = "fuzzing")]
pub(crate) fn payload_of(batch: &kvfs_store::Batch) -> Vec<u8> {
    let mut payload = Vec::new();
    codec::encode(
        1,
        Entry::Batch(Record {
            batch,
            bindings: &crate::space::Bindings::default(),
            mark: None,
            holder: None,
        }),
        &mut payload,
    );
    payload
}

/// A place in the journal's endless stream (bytes from its beginning).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Lsn(pub u64);

/// Where the journal lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalArea {
    /// Device address of its first byte.
    pub addr: u64,
    /// Length (bytes), a multiple of 4096.
    pub len: u64,
    /// What the checksums start with; see [`Superblock::salt`].
    pub salt: u32,
    /// It is allocated in parts of so many bytes, each before the log enters it.
    pub part_bytes: u64,
}

impl JournalArea {
    /// The area that the superblock names.
    pub(crate) fn of(superblock: &Superblock) -> Self {
        let zone_bytes = u64::from(superblock.zone_bytes);
        Self {
            addr: u64::from(superblock.journal_first.0) * zone_bytes,
            len: u64::from(superblock.journal_zones) * zone_bytes,
            salt: superblock.salt(),
            part_bytes: JOURNAL_PART_BYTES,
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
pub(crate) struct Appended {
    /// Where the open group begins that took it.
    pub lsn: Lsn,
    /// That group has just passed 1 MiB: a thread should call [`Journal::write_out`] soon. Said once per
    /// group, and not while a write is under way. The writer need not wait for it: from 4 MiB on appending
    /// waits itself.
    pub is_due: bool,
}

/// What an append finds room by, at one moment. Each of its places only ever moves on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// See [`Journal::head`].
    pub head: Lsn,
    /// See [`Journal::tail`].
    pub tail: Lsn,
    /// The area has its space up to here.
    pub end: Lsn,
}

impl Room {
    /// Whether the log is empty and begins at the start of its area: then only more of the area makes more
    /// room.
    pub(crate) fn is_whole(&self, area_bytes: u64) -> bool {
        self.head == self.tail && self.head.0.is_multiple_of(area_bytes)
    }
}

/// Why a batch was not appended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppendError {
    /// The area is full as far as it has its space: flush memtables and [`Journal::retire`] what they held,
    /// then try again.
    #[error("the journal area is full")]
    AreaFull(Room),
    /// Anything else; nothing was appended, unless the journal has failed for good.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Counters since the journal was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct JournalStats {
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
pub(crate) struct Journal {
    log: Log<Waking<State>>,
    incomplete_bytes: u64,
}

/// The area is allocated in parts of so many bytes, unless told otherwise. A commit of a transaction that has
/// not spilled fits the first one.
pub(crate) const JOURNAL_PART_BYTES: u64 = 16 << 20;

/// Zeros are written in pieces of so many bytes.
const ZERO_BYTES: usize = 1 << 20;

impl Journal {
    /// Prepares the area of a new store: makes the device as long where it can grow, writes zeros where it
    /// was that long already, and flushes. What has been added is allocated when the log comes there.
    ///
    /// # Errors
    /// `Full` when the device can't grow; I/O errors.
    pub(crate) fn create(device: &dyn Device, area: JournalArea) -> Result<()> {
        let zeros = AlignedBuf::zeroed(ZERO_BYTES);
        let mut addr = area.addr;
        let end = device.len_bytes().min(area.addr + area.len);
        device.extend(area.addr + area.len).map_err(|error| match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::Unsupported => StoreError::Full,
            _ => StoreError::io("making room for the journal", error),
        })?;
        while addr < end {
            let len = (end - addr).min(zeros.len() as u64);
            device
                .write_at(&zeros.as_ref()[..len as usize], addr)
                .map_err(|error| StoreError::io(format!("clearing the journal at byte {addr}"), error))?;
            addr += len;
        }
        device.flush().map_err(|error| StoreError::io("clearing the journal", error))
    }

    /// Replays the journal from `tail` and opens it for appending behind what was found. `epoch` is the
    /// number of this opening, already durable in the superblock. Of batches up to `flushed` the bound blocks
    /// are left out: they are in runs. What was replayed is durable when this returns, and what a crash left
    /// behind its end is wiped. `clock` tells how long flushes take.
    ///
    /// # Errors
    /// I/O errors; `Corrupt` when a group that had been flushed is damaged; errors of `replay`.
    pub(crate) fn open(
        device: Arc<dyn Device>,
        area: JournalArea,
        epoch: u64,
        (tail, flushed): (Lsn, Seqno),
        clock: Arc<dyn Clock>,
        replay: &mut dyn FnMut(Replayed) -> Result<()>,
    ) -> Result<Self> {
        let recovered = recovery::replay(device.as_ref(), area, epoch, (tail, flushed), replay)?;
        recovery::wipe_remains(device.as_ref(), area, &recovered)?;
        let state = State::new(&area, tail, recovered.head, recovered.last_seqno);
        let incomplete_bytes = recovered.incomplete_bytes;
        let journal = Self { log: Log::new(device, area, epoch, clock, state), incomplete_bytes };
        // Without space the store opens all the same: writes make some, or are refused.
        journal.allocate_ahead();
        Ok(journal)
    }

    /// See [`Recovered::incomplete_bytes`].
    pub(crate) fn incomplete_bytes(&self) -> u64 {
        self.incomplete_bytes
    }

    /// Counts the memory of its groups, written and to come, from now on (the pool of buffers).
    #[must_use]
    pub(crate) fn charged_to(self, accountant: Arc<Accountant>) -> Self {
        self.log.charge_to(accountant);
        self
    }

    /// Small writes that follow each other in their file get their places there from now on.
    pub(crate) fn bind_by(&self, binder: Arc<dyn Binder>) {
        self.log.bind_by(binder);
    }

    /// Whether a place may still be found for anything that was appended: not behind [`Journal::write_out`].
    pub(crate) fn may_bind(&self) -> bool {
        self.log.may_bind()
    }

    /// As [`Journal::open`], but only reads: for stores that are opened read-only, and for checks.
    /// `epoch` is one more than the superblock's.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub(crate) fn replay(
        device: &dyn Device,
        area: JournalArea,
        epoch: u64,
        (tail, flushed): (Lsn, Seqno),
        replay: &mut dyn FnMut(Replayed) -> Result<()>,
    ) -> Result<Recovered> {
        recovery::replay(device, area, epoch, (tail, flushed), replay)
    }

    /// Appends a batch, whose first operation has seqno `base`, to the open group. Call it in seqno order.
    /// Costs one copy of the payload, without bound blocks; waits for a write when the group has passed 4
    /// MiB.
    ///
    /// # Errors
    /// The area is full; the batch can never fit; a failure, which is sticky.
    pub(crate) fn append(&self, base: Seqno, record: Record<'_>) -> Result<Appended, AppendError> {
        self.log.append(base, Entry::Batch(record))
    }

    /// As [`Journal::append`], for the commit of a transaction whose operations are in runs.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub(crate) fn append_spilled(
        &self,
        base: Seqno,
        commit: &SpilledCommit,
    ) -> Result<Appended, AppendError> {
        self.log.append(base, Entry::Spilled(commit))
    }

    /// Whether any batch of so many operations with so much payload fits the area, when that is empty.
    pub(crate) fn holds(&self, ops: u64, payload_bytes: u64) -> bool {
        let len = FRAME_HEADER_BYTES as u64 + codec::encoded_len_max_of(ops, payload_bytes);
        group_len(len) <= self.log.area().len
    }

    /// Returns when everything appended at or below `seqno` survives a power cut. The first of
    /// several callers writes and flushes for all; seqnos never appended here count as durable.
    ///
    /// # Errors
    /// `Failed`; sticky.
    pub(crate) fn sync(&self, seqno: Seqno) -> Result<()> {
        self.log.sync(seqno)
    }

    /// Writes the open group, if it holds anything, without flush.
    ///
    /// # Errors
    /// `Failed`; sticky.
    pub(crate) fn write_out(&self) -> Result<()> {
        self.log.write_out()
    }

    /// Ends the log, so that the next opening need not look behind it: nothing is appended any more. For a
    /// store that is being closed, when everything is synced. Where there is no room for it, the log just
    /// ends. Once is enough.
    ///
    /// # Errors
    /// I/O errors; all that was synced is safe.
    pub(crate) fn end(&self) -> Result<()> {
        self.log.end()
    }

    /// Everything appended at or below this survives a power cut. 0 at first in an empty journal.
    pub(crate) fn durable_seqno(&self) -> Seqno {
        self.log.read(State::durable_seqno)
    }

    /// The last seqno appended (or replayed); 0 if none.
    #[cfg(test)]
    pub(crate) fn appended_seqno(&self) -> Seqno {
        self.log.read(State::appended_seqno)
    }

    /// Where recovery would begin.
    pub(crate) fn tail(&self) -> Lsn {
        self.log.read(|state| Lsn(state.tail()))
    }

    /// What an append would find now.
    pub(crate) fn room(&self) -> Room {
        self.log.read(State::room)
    }

    /// Where the open group begins: every batch appended from now on lies at or behind it.
    pub(crate) fn head(&self) -> Lsn {
        self.log.read(|state| Lsn(state.head()))
    }

    /// Bytes of the area that hold or await groups which are not retired.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.log.read(State::used_bytes)
    }

    /// Length of the area (bytes).
    pub(crate) fn area_bytes(&self) -> u64 {
        self.log.area().len
    }

    /// Allocates the next part of the area, so that the log can go on; false: it is allocated as far as its
    /// oldest group allows. Waits for the device.
    ///
    /// # Errors
    /// I/O errors, `StorageFull` above all; never sticky.
    pub(crate) fn allocate_part(&self) -> std::io::Result<bool> {
        self.log.allocate_part()
    }

    /// As [`Journal::allocate_part`] when the log comes close to the end of what is allocated; a failure is
    /// left to the append that needs the part.
    pub(crate) fn allocate_ahead(&self) {
        while self.log.is_short() {
            match self.log.allocate_part() {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(%error, "no space for the next part of the journal");
                    return;
                }
            }
        }
    }

    /// Where the log can begin anew, at the start of the area: `None` unless every group is retired and the
    /// log ends elsewhere.
    pub(crate) fn next_start(&self) -> Option<Lsn> {
        self.log.next_start()
    }

    /// The log goes on at `start`, which [`Journal::next_start`] gave. The caller must have made it the
    /// manifest's tail, durably, and have kept every append out since it asked.
    pub(crate) fn restart(&self, start: Lsn) {
        self.log.restart(start);
    }

    /// Counters.
    pub(crate) fn stats(&self) -> JournalStats {
        self.log.read(State::stats)
    }

    /// The space before `tail` may be overwritten. Call it only when the manifest's new tail is
    /// durable. A tail before the present one changes nothing.
    pub(crate) fn retire(&self, tail: Lsn) {
        self.log.retire(tail);
    }
}

#[cfg(test)]
mod tests;
