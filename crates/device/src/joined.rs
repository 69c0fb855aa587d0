//! Several devices as one: a first one from address 0 on, and segments of others behind all that it may grow
//! to.
//!
//! Thread safety: a device is shared by reference between threads; the segments are found under a short read
//! lock, which no I/O holds.
//!
//! Invariants: where a segment lies never changes, so an address means the same byte for as long as the store
//! has it; addresses between segments are on no device. The first flush reaches every device, each later one
//! those that were written to since their last one; flushes come one after another, and from a failed one on
//! all fail ([`Flushes`]). `UnexpectedEof` says that no device has the address, never that one has gone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvfs_locks::{RwLock, class};

use crate::Device;
use crate::flushes::Flushes;
use crate::request::{check_grow, read_error};

/// A stretch of the address space.
#[derive(Clone)]
pub struct Segment {
    /// Its first address.
    pub start: u64,
    /// What it lies on.
    pub device: Arc<dyn Device>,
    /// Where it begins there (bytes).
    pub offset: u64,
    /// How long it is (bytes).
    pub len: u64,
    /// What is written to it is added here (bytes); several may have one meter.
    pub written: Arc<AtomicU64>,
}

/// A segment, and whether its device is to be flushed.
struct Placed {
    segment: Segment,
    /// Whether something was written there that no flush has covered. Set when a write has returned, and from
    /// the start: a process that was killed may have written what is read now.
    is_dirty: AtomicBool,
}

impl Placed {
    fn new(segment: Segment) -> Arc<Self> {
        Arc::new(Self { segment, is_dirty: AtomicBool::new(true) })
    }

    fn end(&self) -> u64 {
        self.segment.start.saturating_add(self.segment.len)
    }
}

/// See the module.
pub struct JoinedDevice {
    /// Its length is its device's.
    first: Arc<Placed>,
    /// In the order of their addresses.
    others: RwLock<Vec<Arc<Placed>>, class::DeviceJoinedOthers>,
    flushes: Flushes,
}

impl JoinedDevice {
    /// `first` alone; what is written to it is added to `written`.
    pub fn new(first: Arc<dyn Device>, written: Arc<AtomicU64>) -> Self {
        let first = Placed::new(Segment { start: 0, device: first, offset: 0, len: u64::MAX, written });
        Self { first, others: RwLock::default(), flushes: Flushes::default() }
    }

    /// The address space has this segment, too, which must lie behind all others and behind all that the
    /// first device may grow to.
    pub fn append(&self, segment: Segment) {
        let mut others = self.others.write();
        debug_assert!(others.last().is_none_or(|last| last.end() <= segment.start));
        others.push(Placed::new(segment));
    }

    /// The segment that begins at `start` is there no more.
    pub fn remove(&self, start: u64) {
        self.others.write().retain(|placed| placed.segment.start != start);
    }

    /// The part of `[offset, offset + len)` that begins at `offset` and lies in one segment: that segment,
    /// where the part is in it, and its length.
    fn part(&self, offset: u64, len: u64) -> io::Result<(Arc<Placed>, u64, u64)> {
        let others = self.others.read();
        let first_end = others.first().map_or(u64::MAX, |next| next.segment.start);
        if offset < first_end {
            return Ok((Arc::clone(&self.first), offset, len.min(first_end - offset)));
        }
        let at = others.partition_point(|placed| placed.segment.start <= offset) - 1;
        let (placed, within) = (&others[at], offset - others[at].segment.start);
        if offset >= placed.end() {
            let message = format!("no device of the store has the address {offset}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
        Ok((Arc::clone(placed), placed.segment.offset + within, len.min(placed.end() - offset)))
    }

    /// Calls `each` with every part of the range, where it lies on its device, and which bytes of the range
    /// it is.
    fn each_part(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(&Placed, u64, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let (placed, at, part) = self.part(offset + done, len - done)?;
            each(&placed, at, done as usize..(done + part) as usize)?;
            done += part;
        }
        Ok(())
    }

    /// Flushes every device that was written to.
    fn flush_dirty(&self) -> io::Result<()> {
        let others = self.others.read().clone();
        if others.is_empty() {
            return self.first.segment.device.flush();
        }
        for placed in std::iter::once(&self.first).chain(&others) {
            // What is written from here on is dirty again, whether this flush covers it or not.
            if placed.is_dirty.swap(false, Ordering::AcqRel) {
                placed.segment.device.flush()?;
            }
        }
        Ok(())
    }

    /// Refuses to let the first device reach into what lies behind it.
    fn check_first(&self, len: u64) -> io::Result<()> {
        check_grow(len)?;
        match self.others.read().first() {
            Some(next) if len > next.segment.start => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the first device can't grow to {len} bytes: others lie behind it; add a device"),
            )),
            _ => Ok(()),
        }
    }
}

impl Device for JoinedDevice {
    fn len_bytes(&self) -> u64 {
        let others = self.others.read();
        others.last().map_or_else(|| self.first.segment.device.len_bytes(), |last| last.end())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.each_part(offset, buf.len() as u64, |placed, at, part| {
            let (device, end) = (&placed.segment.device, at + part.len() as u64);
            let read = device.read_at(&mut buf[part], at);
            read.map_err(|error| read_error(error, device.len_bytes(), end))
        })
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.each_part(offset, buf.len() as u64, |placed, at, part| {
            placed.segment.written.fetch_add(part.len() as u64, Ordering::Relaxed);
            let result = placed.segment.device.write_at(&buf[part], at);
            // Also after an error: part of it may have been written.
            placed.is_dirty.store(true, Ordering::Release);
            result
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.flush(|| self.flush_dirty())
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.check_first(len)?;
        self.first.segment.device.grow(len)
    }

    fn extend(&self, len: u64) -> io::Result<()> {
        self.check_first(len)?;
        self.first.segment.device.extend(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.each_part(offset, len, |placed, at, part| placed.segment.device.allocate(at, part.len() as u64))
    }

    fn refresh_len(&self) -> io::Result<u64> {
        self.first.segment.device.refresh_len()?;
        Ok(self.len_bytes())
    }

    fn room_bytes(&self) -> Option<u64> {
        self.first.segment.device.room_bytes()
    }

    fn answers(&self, offsets: &[u64]) -> bool {
        let others = self.others.read().clone();
        std::iter::once(&self.first).chain(&others).all(|placed| placed.segment.device.answers(offsets))
    }
}

impl std::fmt::Debug for JoinedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinedDevice").field("len_bytes", &self.len_bytes()).finish_non_exhaustive()
    }
}

/// A device that is not there: it has its length, and every call fails.
#[derive(Debug)]
pub struct MissingDevice {
    name: String,
    len_bytes: u64,
}

impl MissingDevice {
    /// In the place of what messages call `name`.
    pub fn new(name: impl Into<String>, len_bytes: u64) -> Self {
        Self { name: name.into(), len_bytes }
    }

    fn refuse<T>(&self) -> io::Result<T> {
        Err(io::Error::new(io::ErrorKind::NotFound, format!("{} is missing", self.name)))
    }
}

impl Device for MissingDevice {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, _buf: &mut [u8], _offset: u64) -> io::Result<()> {
        self.refuse()
    }

    fn write_at(&self, _buf: &[u8], _offset: u64) -> io::Result<()> {
        self.refuse()
    }

    fn flush(&self) -> io::Result<()> {
        self.refuse()
    }

    fn grow(&self, _len: u64) -> io::Result<()> {
        self.refuse()
    }
}

#[cfg(test)]
mod tests;
