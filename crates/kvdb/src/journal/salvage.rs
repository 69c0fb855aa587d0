//! What a damaged journal still holds.
//!
//! What counts is an unbroken row of groups from the tail on. Behind a damaged group nothing can be trusted
//! to be complete: what was written there is told, and not applied. Where the manifest has lost its newest
//! edits, the tail is unknown: then the row begins with the oldest group of the last lap, and blocks that
//! were bound may have been given up since: those that are not what their batch says are left out of it.
//!
//! Thread safety: one thread; only reads.

use bytes::Bytes;
use kvfs_device::Device;
use kvfs_store::{Batch, Result, Seqno};

use super::bound::{self, Found, PlaceReader};
use super::codec::{BatchReader, Read};
use super::header::Header;
use super::recovery::Replayed;
use super::{JournalArea, Lsn};
use crate::salvage::SalvageStream;
use crate::space::Place;

/// What became of a damaged journal.
pub(crate) struct SalvagedJournal {
    /// Position of what is damaged.
    pub(crate) damaged_at: Lsn,
    /// The last seqno that was replayed; 0 if none.
    pub(crate) last_seqno: Seqno,
    /// Writes of blocks before the damage whose blocks are not there any more.
    pub(crate) writes_missing: u64,
    /// Whole batches behind the damage, which do not count.
    pub(crate) dropped: Vec<Batch>,
    /// A tail for a journal that goes on without what is there: no group of the area can follow it.
    pub(crate) tail_next: Lsn,
}

/// Replays what counts from `tail` on. What is at or below `flushed` is in runs.
///
/// # Errors
/// Those of `each`.
pub(crate) fn salvage(
    device: &dyn Device,
    area: JournalArea,
    (tail, flushed): (Lsn, Seqno),
    is_tail_certain: bool,
    each: &mut dyn FnMut(Replayed) -> Result<()>,
) -> Result<SalvagedJournal> {
    let stream = stream(device, area);
    let mut headers = headers(&stream, area);
    headers.sort_by_key(Header::lsn);
    let newest = headers.last().map_or(tail.0, |header| header.lsn() + header.group_len());
    let oldest = newest.saturating_sub(area.len).max(tail.0);
    headers.retain(|header| header.lsn() >= oldest);
    let start = headers.first().map(Header::lsn).filter(|_| !is_tail_certain);
    let mut journal = SalvagedJournal {
        damaged_at: Lsn(start.unwrap_or(tail.0)),
        last_seqno: 0,
        writes_missing: 0,
        dropped: Vec::new(),
        tail_next: Lsn((newest.next_multiple_of(area.len)) + area.len),
    };
    let mut is_broken = false;
    let mut epoch = 0;
    for header in headers {
        let payload = payload(&stream, area, &header);
        let first_seqno = header.fields.first_seqno.get();
        // A log that began anew left a gap, in which no operation is missing.
        let begins_anew = header.lsn().is_multiple_of(area.len)
            && header.lsn() > journal.damaged_at.0
            && first_seqno == journal.last_seqno + 1;
        let follows = header.lsn() == journal.damaged_at.0 || begins_anew;
        is_broken |= !follows || header.epoch() < epoch || payload.is_none();
        let Some(mut reads) = payload.and_then(|payload| batches(&payload, journal.last_seqno)) else {
            is_broken = true;
            continue;
        };
        // What can't be read is not what was written, either.
        let places = PlaceReader::new(device);
        let missing =
            bound::fetch(&mut reads, flushed, |place| Ok(places.read(place).unwrap_or(Found::Others)))?;
        is_broken |= is_tail_certain && missing > 0;
        let lsn = Lsn(header.lsn());
        if is_broken {
            let unflushed = reads.into_iter().filter(|read| read.base > flushed);
            journal.dropped.extend(unflushed.map(|read| Replayed::of(read, lsn).batch));
            continue;
        }
        epoch = header.epoch();
        journal.writes_missing += missing;
        for read in reads {
            journal.last_seqno = read.last_seqno();
            each(Replayed::of(read, lsn))?;
        }
        journal.damaged_at = Lsn(header.lsn() + header.group_len());
    }
    Ok(journal)
}

/// The area as groups lie in it, twice: none that wraps is cut off.
fn stream(device: &dyn Device, area: JournalArea) -> SalvageStream<'_> {
    let lap = area.addr..area.addr + area.len;
    SalvageStream::new(device, 0, [lap.clone(), lap])
}

/// The header of every group that lies where it was written.
fn headers(stream: &SalvageStream<'_>, area: JournalArea) -> Vec<Header> {
    let decode = |place: u64, sector: &[u8]| {
        Header::decode(sector, area.salt).filter(|header| header.lsn() % area.len == place)
    };
    stream.frames(0..area.len, decode).map(|(_, header)| header).collect()
}

fn payload(stream: &SalvageStream<'_>, area: JournalArea, header: &Header) -> Option<Bytes> {
    (header.group_len() <= area.len).then(|| stream.payload(header.lsn() % area.len, header, area.salt))?
}

/// All batches of a group, unless something is wrong with one.
fn batches(payload: &Bytes, mut last_seqno: Seqno) -> Option<Vec<Read>> {
    let mut reader = BatchReader::new(payload);
    let mut batches = Vec::new();
    while let Some(read) = reader.next().ok()? {
        if read.base <= last_seqno {
            return None;
        }
        last_seqno = read.last_seqno();
        batches.push(read);
    }
    Some(batches)
}

/// Where blocks may lie that the journal has bound and that are in no run yet: of every group that can still
/// be read.
pub(crate) fn places(device: &dyn Device, area: JournalArea, flushed: Seqno) -> Vec<Place> {
    let stream = stream(device, area);
    let payloads = headers(&stream, area).into_iter().filter_map(|header| payload(&stream, area, &header));
    let reads = payloads.filter_map(|payload| batches(&payload, 0)).flatten();
    reads.filter(|read| read.base > flushed).flat_map(|read| read.places).map(|(_, place)| place).collect()
}
