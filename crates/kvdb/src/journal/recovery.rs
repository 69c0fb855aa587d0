//! Reading the journal after a crash: which groups count, and what is left behind them.
//!
//! The log ends at the first place where no valid group of this journal begins. A crash can do that
//! only behind what was flushed; so if a later group tells that the place *had been* flushed, this
//! is not a torn write but damage, and recovery refuses rather than drop synced data in silence. It
//! also refuses when the area holds groups from beyond a lap after the tail: only a manifest that
//! has lost its newest edits names a tail that was overwritten since.
//!
//! Blocks that a group binds lie outside of the area. They are part of the group: where one of them is not
//! what the group says, it does not verify. But those of batches that are in runs are not looked at: their
//! place may hold something else by now. And those on a device that is missing, where a store is only read,
//! can't be: they count as written.
//!
//! Where a group was begun there that is not whole, nothing tells a torn write, which was acknowledged to no
//! caller, from damage to the last one that was: it is reported, and the log ends there.
//!
//! A store that was closed has told so at the end of its log ([`super::end`]): then nothing behind it is
//! looked at.
//!
//! Groups that a crash left behind the end (written later, arrived earlier) must never count, not
//! even when a later opening fills the gap exactly or when a later tail points at one of them.
//! Within a log the epochs forbid the former; [`wipe_remains`] overwrites their headers before
//! anything is appended, which forbids both.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::{AlignedBuf, Device};
use kvfs_store::{Batch, Op, Result, Seqno, StoreError};

use super::bound::{self, PlaceReader};
use super::codec::{BatchReader, CommitMark, Read, SpilledCommit};
use super::end::is_end;
use super::header::Header;
use super::{JournalArea, Lsn};
use crate::format::{DecodeError, Extent, SECTOR_BYTES};
use crate::space::{Bindings, Bound, Place, Zones};

/// The journal is read ahead in pieces of so many bytes.
const WINDOW_BYTES: u64 = 1 << 20;

/// A batch as it comes out of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Replayed {
    /// Seqno of the first operation.
    pub base: Seqno,
    /// The operations.
    pub batch: Batch,
    /// Where the blocks lie that the journal has bound, by the numbers of their operations, ascending.
    pub places: Vec<(usize, Place)>,
    /// Operations whose blocks lie on a device that is missing, and how many blocks each has put: in the
    /// batch they put none.
    pub unreadable: Vec<(usize, u64)>,
    /// The transaction whose commit it is.
    pub mark: Option<CommitMark>,
    /// In the place of operations: the commit of a transaction that has spilled.
    pub spilled: Option<SpilledCommit>,
    /// Where the batch's group begins.
    pub lsn: Lsn,
}

/// What recovery found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Where recovery began.
    pub tail: Lsn,
    /// The end of the log: the next group goes here.
    pub head: Lsn,
    /// The last seqno replayed; 0 if none.
    pub last_seqno: Seqno,
    /// The highest position that a replayed group knew to be flushed.
    pub flushed_before: Lsn,
    /// Number of groups replayed.
    pub groups: u64,
    /// Length of the group at the end of the log whose header is there and whose payload is not what it says:
    /// it was never acknowledged, or is damaged. 0 if none.
    pub incomplete_bytes: u64,
    /// The epoch of the last group; 0 if none.
    epoch: u64,
    /// Where groups begin that a crash left behind the end.
    remains: Vec<u64>,
}

/// Replays the groups from `tail` on; the openings before `epoch` wrote them. What is at or below `flushed`
/// is in runs.
pub(super) fn replay(
    device: &dyn Device,
    area: JournalArea,
    epoch: u64,
    (tail, flushed): (Lsn, Seqno),
    each: &mut dyn FnMut(Replayed) -> Result<()>,
) -> Result<Recovered> {
    let mut reader = Reader::new(device, area, tail.0 + area.len);
    let mut log = Recovered {
        tail,
        head: tail,
        last_seqno: 0,
        flushed_before: tail,
        groups: 0,
        incomplete_bytes: 0,
        epoch: 0,
        remains: Vec::new(),
    };
    let mut was_closed = false;
    while let Some((header, reads)) = read_group(&mut reader, &log, (epoch, flushed))? {
        was_closed = is_end(&header, epoch);
        for read in reads {
            log.last_seqno = read.last_seqno();
            each(Replayed::of(read, log.head))?;
        }
        log.head = Lsn(log.head.0 + header.group_len());
        log.epoch = header.epoch();
        log.flushed_before = log.flushed_before.max(Lsn(header.fields.flushed_before.get()));
        log.groups += 1;
    }
    if !was_closed {
        // Had it been whole, the log would go on with it.
        let incomplete = header_at_head(&mut reader, &log)?;
        check_end(&mut reader, &mut log)?;
        log.incomplete_bytes = incomplete.map_or(0, |header| header.group_len());
    }
    if log.incomplete_bytes > 0 {
        tracing::warn!(
            bytes = log.incomplete_bytes,
            position = log.head.0,
            "the last group of the journal is incomplete: it was never acknowledged, as after a power cut, or \
             is damaged"
        );
    }
    Ok(log)
}

impl Replayed {
    pub(super) fn of(read: Read, lsn: Lsn) -> Self {
        let Read { base, ops, places, unreadable, mark, spilled, .. } = read;
        let mut batch = Batch::new();
        for op in ops {
            batch.push(op);
        }
        Self { base, batch, places, unreadable, mark, spilled, lsn }
    }

    /// Holds the places of all blocks that were found there. At open, before any allocation.
    ///
    /// # Errors
    /// `Corrupt` when they don't lie in data zones.
    pub(crate) fn bindings(&self, zones: &Arc<Zones>) -> Result<Bindings> {
        let mut bindings = Bindings::default();
        for (op, place) in &self.places {
            let found = self.batch.ops().get(*op);
            if let Some(Op::PutBlocks { data, .. } | Op::PatchBlock { data, .. }) = found
                && !data.is_empty()
            {
                bindings.push(*op, Bound::restore(zones, place.clone())?);
            }
        }
        Ok(bindings)
    }
}

/// The group at the head of the log so far, or `None` if the log ends there.
fn read_group(
    reader: &mut Reader<'_>,
    log: &Recovered,
    (epoch, flushed): (u64, Seqno),
) -> Result<Option<(Header, Vec<Read>)>> {
    let Some(header) = header_at_head(reader, log)? else { return Ok(None) };
    if header.epoch() >= epoch {
        let detail = format!(
            "opening {} wrote it, and the superblock knows only those before {epoch}",
            header.epoch()
        );
        return Err(StoreError::corrupt(place(log.head), detail));
    }
    let Some(payload) = header.payload(&reader.group(&header)?, reader.area.salt) else { return Ok(None) };
    let mut reads = batches(&header, &payload, log)?;
    reader.note_bound(&reads, flushed).map_err(|error| error.at(place(log.head)))?;
    let places = PlaceReader::new(reader.device);
    let missing = bound::fetch(&mut reads, flushed, |place| places.read(place))?;
    Ok((missing == 0).then_some((header, reads)))
}

/// The header of a group that may be the next one of the log.
fn header_at_head(reader: &mut Reader<'_>, log: &Recovered) -> Result<Option<Header>> {
    let (lsn, end) = (log.head.0, reader.end);
    let header = reader.header(lsn)?;
    Ok(header.filter(|header| header.epoch() >= log.epoch && lsn + header.group_len() <= end))
}

/// The batches of a group that is what was written.
fn batches(header: &Header, payload: &Bytes, log: &Recovered) -> Result<Vec<Read>> {
    let lsn = log.head;
    let mut last_seqno = log.last_seqno;
    let mut reads: Vec<Read> = Vec::new();
    let mut reader = BatchReader::new(payload);
    while let Some(read) = reader.next().map_err(|error| error.at(place(lsn)))? {
        if read.base <= last_seqno || (reads.is_empty() && read.base != header.fields.first_seqno.get()) {
            let detail = format!("seqno {} follows {last_seqno}", read.base);
            return Err(StoreError::corrupt(place(lsn), detail));
        }
        last_seqno = read.last_seqno();
        reads.push(read);
    }
    let count = header.fields.batches.get();
    if reads.len() != count as usize {
        let detail = format!("{} batches instead of {count}", reads.len());
        return Err(StoreError::corrupt(place(lsn), detail));
    }
    Ok(reads)
}

/// Whether the log may really end at its head: no later group knows better. Collects the groups
/// from there up to where the area is full.
fn check_end(reader: &mut Reader<'_>, log: &mut Recovered) -> Result<()> {
    let mut lsn = log.head.0;
    while let Some(found) = reader.header_from(&mut lsn)? {
        if found.epoch() >= log.epoch && found.fields.flushed_before.get() > log.head.0 {
            let detail =
                format!("a group that had been flushed is damaged: position {} tells so", found.lsn());
            return Err(StoreError::corrupt(place(log.head), detail));
        }
        log.remains.push(found.lsn());
    }
    if log.flushed_before > log.head {
        let detail = format!("everything before position {} had been flushed", log.flushed_before.0);
        return Err(StoreError::corrupt(place(log.head), detail));
    }
    Ok(())
}

/// Overwrites the headers of groups behind the end of the log, and flushes; what was replayed is
/// durable then too.
pub(super) fn wipe_remains(device: &dyn Device, area: JournalArea, log: &Recovered) -> Result<()> {
    let zeros = AlignedBuf::zeroed(SECTOR_BYTES as usize);
    for &lsn in &log.remains {
        tracing::debug!(lsn, "a group behind the end of the journal is wiped");
        area.for_each_stretch(lsn, zeros.len(), |addr, range| device.write_at(&zeros.as_ref()[range], addr))
            .map_err(|error| StoreError::io(format!("wiping the journal at position {lsn}"), error))?;
    }
    device.flush().map_err(|error| StoreError::io("flushing the journal after recovery", error))
}

fn place(lsn: Lsn) -> String {
    format!("the journal group at position {}", lsn.0)
}

/// Reads the stream through a window.
struct Reader<'a> {
    device: &'a dyn Device,
    area: JournalArea,
    /// One lap behind the tail: nothing of this lap lies at or beyond it.
    end: u64,
    window: AlignedBuf,
    window_start: u64,
    window_len: u64,
    /// What the log has bound so far, by start: each place for one write, so that no more is read than there
    /// is.
    bound: BTreeMap<u64, u64>,
}

impl<'a> Reader<'a> {
    fn new(device: &'a dyn Device, area: JournalArea, end: u64) -> Self {
        let window = AlignedBuf::zeroed(WINDOW_BYTES.min(area.len) as usize);
        Self { device, area, end, window, window_start: 0, window_len: 0, bound: BTreeMap::new() }
    }

    /// Notes where the blocks of batches behind `flushed` lie.
    fn note_bound(&mut self, reads: &[Read], flushed: Seqno) -> Result<(), DecodeError> {
        let places = reads.iter().filter(|read| read.base > flushed).flat_map(|read| &read.places);
        for &Extent { addr, len } in places.flat_map(|(_, place)| &place.extents) {
            let end = addr.checked_add(len.into()).ok_or(DecodeError("a place of blocks has no end"))?;
            let before = self.bound.range(..end).next_back();
            if before.is_some_and(|(_, &before)| before > addr) {
                return Err(DecodeError("two writes have bound the same place"));
            }
            self.bound.insert(addr, end);
        }
        Ok(())
    }

    /// The window's bytes from `lsn`, which is before the end, on; at least one sector.
    fn at(&mut self, lsn: u64) -> Result<&[u8]> {
        if !(self.window_start..self.window_start + self.window_len).contains(&lsn) {
            let len = (self.end - lsn).min(self.window.len() as u64);
            self.window_len = 0;
            read_stretches(self.device, self.area, lsn, &mut self.window.as_mut()[..len as usize])?;
            (self.window_start, self.window_len) = (lsn, len);
        }
        Ok(&self.window.as_ref()[(lsn - self.window_start) as usize..self.window_len as usize])
    }

    /// The header of a group that was written at `lsn`; what earlier laps left does not count.
    fn header(&mut self, lsn: u64) -> Result<Option<Header>> {
        if lsn >= self.end {
            return Ok(None);
        }
        let salt = self.area.salt;
        let Some(header) = Header::decode(self.at(lsn)?, salt) else { return Ok(None) };
        if header.lsn() > lsn {
            let detail = format!(
                "position {} lies there, a lap ahead: the manifest is older than the journal",
                header.lsn()
            );
            return Err(StoreError::corrupt(place(Lsn(lsn)), detail));
        }
        Ok((header.lsn() == lsn).then_some(header))
    }

    /// The first valid header at or behind `lsn`, which moves behind it.
    fn header_from(&mut self, lsn: &mut u64) -> Result<Option<Header>> {
        while *lsn < self.end {
            let header = self.header(*lsn)?;
            *lsn += SECTOR_BYTES;
            if header.is_some() {
                return Ok(header);
            }
        }
        Ok(None)
    }

    /// The bytes of a group that ends within the lap, still unverified.
    fn group(&mut self, header: &Header) -> Result<Bytes> {
        if let Some(group) = self.at(header.lsn())?.get(..header.payload_range().end) {
            return Ok(Bytes::copy_from_slice(group));
        }
        let mut buf = AlignedBuf::zeroed(header.group_len() as usize);
        read_stretches(self.device, self.area, header.lsn(), buf.as_mut())?;
        Ok(Bytes::from_owner(buf))
    }
}

fn read_stretches(device: &dyn Device, area: JournalArea, lsn: u64, buf: &mut [u8]) -> Result<()> {
    area.for_each_stretch(lsn, buf.len(), |addr, range| {
        device
            .read_at(&mut buf[range], addr)
            .map_err(|error| StoreError::io(format!("reading the journal at byte {addr}"), error))
    })
}
