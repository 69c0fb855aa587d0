//! Traces: what happened in the block cache, one access after the other, to be replayed with other policies
//! and sizes.
//!
//! Purpose: a policy is chosen by what it does with the accesses of a real load, not by what it should do. A
//! trace begins with [`MAGIC`]; each access is a byte (event in the two lowest bits, class in the next), then
//! varints: zone and offset as differences from the access before, generation, and where the event knows it
//! the size. About nine bytes an access.
//!
//! Thread safety: a recorder belongs to the cache, which calls it under a lock; all else is plain data.
//! Invariant: a trace is cut between two accesses when it is full, and ends there.

#[cfg(test)]
pub(super) mod tests;

use std::io::{self, Write};

use kvfs_store::Tier;

use super::key::CacheKey;
use crate::format::{DecodeError, Decoder, Sink, ZoneId};

/// What a trace begins with.
const MAGIC: &[u8] = b"kvfs cache trace 1\n";
/// What is written at a time (bytes).
const CHUNK_BYTES: usize = 64 << 10;

/// What happened to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CacheEvent {
    /// It was asked for, and there.
    Hit,
    /// It was asked for, and not there.
    Miss,
    /// It came in: after a miss, or unasked.
    Insert,
    /// Its zone is free, with all that was in it.
    Forget,
}

impl CacheEvent {
    const ALL: [Self; 4] = [Self::Hit, Self::Miss, Self::Insert, Self::Forget];

    /// Whether the size of the block is known then.
    fn has_bytes(self) -> bool {
        matches!(self, Self::Hit | Self::Insert)
    }
}

/// One event of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheAccess {
    /// What happened.
    pub event: CacheEvent,
    /// Where the block lies: the zone.
    pub zone: u32,
    /// How often the zone was free before.
    pub generation: u32,
    /// Where in the zone (bytes).
    pub offset: u32,
    /// Class of the device.
    pub tier: Tier,
    /// Memory that the block takes; 0 where the event does not know it.
    pub bytes: u32,
}

impl CacheAccess {
    pub(super) fn new(event: CacheEvent, key: CacheKey, tier: Tier, bytes: u64) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Self { event, zone: key.zone.0, generation: key.generation, offset: key.offset, tier, bytes }
    }

    pub(super) fn key(&self) -> CacheKey {
        CacheKey { zone: ZoneId(self.zone), generation: self.generation, offset: self.offset }
    }
}

/// What a trace has recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheTraceInfo {
    /// Events in it.
    pub events: u64,
    /// Its length (bytes).
    pub bytes: u64,
    /// It had come to its bound, and lacks what was after that.
    pub is_full: bool,
}

/// Writes a trace.
pub(super) struct Recorder {
    out: Box<dyn Write + Send>,
    bytes_max: u64,
    buf: Vec<u8>,
    /// Zone and offset of the last access.
    last: (u32, u32),
    info: CacheTraceInfo,
}

impl Recorder {
    /// Begins a trace of at most so many bytes, and some more.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn new(mut out: Box<dyn Write + Send>, bytes_max: u64) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        let info = CacheTraceInfo { bytes: MAGIC.len() as u64, ..CacheTraceInfo::default() };
        Ok(Self { out, bytes_max, buf: Vec::with_capacity(CHUNK_BYTES + 64), last: (0, 0), info })
    }

    /// Adds an access. False: the trace is full.
    ///
    /// # Errors
    /// Those of the writer.
    pub(super) fn add(&mut self, access: &CacheAccess) -> io::Result<bool> {
        if self.info.bytes + self.buf.len() as u64 >= self.bytes_max {
            self.info.is_full = true;
            return Ok(false);
        }
        self.buf.put_u8(access.event as u8 | (access.tier as u8) << 2);
        put_difference(&mut self.buf, access.zone, self.last.0);
        put_difference(&mut self.buf, access.offset, self.last.1);
        self.buf.put_varint(access.generation.into());
        if access.event.has_bytes() {
            self.buf.put_varint(access.bytes.into());
        }
        self.last = (access.zone, access.offset);
        self.info.events += 1;
        if self.buf.len() >= CHUNK_BYTES {
            self.write_out()?;
        }
        Ok(true)
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// Those of the writer.
    pub(super) fn finish(mut self) -> io::Result<CacheTraceInfo> {
        self.write_out()?;
        self.out.flush()?;
        Ok(self.info)
    }

    fn write_out(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buf)?;
        self.info.bytes += self.buf.len() as u64;
        self.buf.clear();
        Ok(())
    }
}

/// Small ones of either sign are short.
fn put_difference(buf: &mut Vec<u8>, value: u32, base: u32) {
    let difference = i64::from(value) - i64::from(base);
    buf.put_varint(((difference << 1) ^ (difference >> 63)) as u64);
}

fn take_difference(decoder: &mut Decoder<'_>, base: u32) -> Result<u32, DecodeError> {
    let folded = decoder.varint()?;
    let difference = (folded >> 1) as i64 ^ -((folded & 1) as i64);
    let value = i64::from(base).checked_add(difference).and_then(|value| u32::try_from(value).ok());
    value.ok_or(DecodeError("a place that no block has"))
}

/// The accesses of a trace, in their order. After an error there are no more.
#[derive(Debug, Clone)]
pub struct CacheTrace<'a> {
    decoder: Decoder<'a>,
    last: (u32, u32),
}

impl<'a> CacheTrace<'a> {
    /// Reads the trace that `bytes` are.
    ///
    /// # Errors
    /// `InvalidData`: they are none.
    pub fn new(bytes: &'a [u8]) -> io::Result<Self> {
        let Some(accesses) = bytes.strip_prefix(MAGIC) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no trace of a block cache"));
        };
        Ok(Self { decoder: Decoder::new(accesses), last: (0, 0) })
    }

    fn take(&mut self) -> Result<CacheAccess, DecodeError> {
        let head = self.decoder.u8()?;
        if head >= 8 {
            return Err(DecodeError("an event of an unknown kind"));
        }
        let event = CacheEvent::ALL[usize::from(head & 3)];
        let tier = Tier::ALL[usize::from(head >> 2)];
        let zone = take_difference(&mut self.decoder, self.last.0)?;
        let offset = take_difference(&mut self.decoder, self.last.1)?;
        let generation = self.decoder.varint_u32()?;
        let bytes = if event.has_bytes() { self.decoder.varint_u32()? } else { 0 };
        self.last = (zone, offset);
        Ok(CacheAccess { event, zone, generation, offset, tier, bytes })
    }
}

impl Iterator for CacheTrace<'_> {
    type Item = io::Result<CacheAccess>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.decoder.is_empty() {
            return None;
        }
        let bytes_left = self.decoder.len();
        let access = self.take().map_err(|error| {
            let detail = format!("the trace is damaged {bytes_left} bytes before its end: {error}");
            io::Error::new(io::ErrorKind::InvalidData, detail)
        });
        if access.is_err() {
            self.decoder = Decoder::new(&[]);
        }
        Some(access)
    }
}
