//! A device that is watched: what is read and written, in a row or not, how many calls have failed, and which
//! came first.
//!
//! A medium that has gone (a cable, a detached loop device) fails every call, reads included; what is above
//! may hide that for long behind its caches. Here it is known after the first call.
//!
//! Thread safety: atomics without order; of calls at the same moment that touch each other it may be told
//! wrong which is in a row. Invariant: refusals that say nothing about the medium (no space, no support) are
//! not counted.

use std::io::{self, ErrorKind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Device;
use crate::request::read_error;

/// So many streams of calls in a row are told from others.
const STREAMS: usize = 16;

/// Calls of one kind that went well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transfers {
    /// How many.
    pub count: u64,
    /// Of these, those that began where one of the last ones had ended.
    pub count_in_row: u64,
    /// What they moved (bytes).
    pub bytes: u64,
}

/// What was read from a device and written to it since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceTraffic {
    /// Reads.
    pub reads: Transfers,
    /// Writes.
    pub writes: Transfers,
    /// Flushes.
    pub flushes: u64,
}

/// Counts transfers.
#[derive(Debug)]
struct Meter {
    count: AtomicU64,
    count_in_row: AtomicU64,
    bytes: AtomicU64,
    /// Where the last ones ended.
    ends: [AtomicU64; STREAMS],
    /// Which end is the oldest one, about.
    oldest: AtomicU64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            count_in_row: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            ends: [const { AtomicU64::new(u64::MAX) }; STREAMS],
            oldest: AtomicU64::new(0),
        }
    }
}

impl Meter {
    fn note(&self, offset: u64, len: usize) {
        let end = offset + len as u64;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        if let Some(stream) = self.ends.iter().find(|stream| stream.load(Ordering::Relaxed) == offset) {
            self.count_in_row.fetch_add(1, Ordering::Relaxed);
            stream.store(end, Ordering::Relaxed);
        } else {
            let oldest = self.oldest.fetch_add(1, Ordering::Relaxed) as usize;
            self.ends[oldest % STREAMS].store(end, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Transfers {
        Transfers {
            count: self.count.load(Ordering::Relaxed),
            count_in_row: self.count_in_row.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// A device that passes everything on to `D`.
#[derive(Debug)]
pub struct WatchedDevice<D> {
    inner: D,
    reads: Meter,
    writes: Meter,
    flushes: AtomicU64,
    failed: AtomicU64,
    first: OnceLock<String>,
}

impl<D: Device> WatchedDevice<D> {
    /// Nothing has failed yet.
    pub fn over(inner: D) -> Self {
        Self {
            inner,
            reads: Meter::default(),
            writes: Meter::default(),
            flushes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            first: OnceLock::new(),
        }
    }

    /// What was read and written since it was opened.
    pub fn traffic(&self) -> DeviceTraffic {
        DeviceTraffic {
            reads: self.reads.read(),
            writes: self.writes.read(),
            flushes: self.flushes.load(Ordering::Relaxed),
        }
    }

    /// How many reads, writes and flushes have failed.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// What failed first, and why.
    pub fn first_failure(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    fn note<T>(&self, what: &str, offset: Option<u64>, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && !matches!(
                error.kind(),
                ErrorKind::StorageFull | ErrorKind::Unsupported | ErrorKind::UnexpectedEof
            )
        {
            self.failed.fetch_add(1, Ordering::Relaxed);
            let place = offset.map_or_else(String::new, |offset| format!(" at byte {offset}"));
            self.first.get_or_init(|| format!("{what}{place}: {error}"));
        }
        result
    }
}

impl<D: Device> Device for WatchedDevice<D> {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.inner.read_at(buf, offset);
        let end = offset.saturating_add(buf.len() as u64);
        let read = read.map_err(|error| read_error(error, self.inner.len_bytes(), end));
        self.note("reading", Some(offset), read)?;
        self.reads.note(offset, buf.len());
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.note("writing", Some(offset), self.inner.write_at(buf, offset))?;
        self.writes.note(offset, buf.len());
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.note("flushing", None, self.inner.flush())?;
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.inner.grow(len)
    }

    fn extend(&self, len: u64) -> io::Result<()> {
        self.inner.extend(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)
    }

    fn refresh_len(&self) -> io::Result<u64> {
        self.inner.refresh_len()
    }

    fn room_bytes(&self) -> Option<u64> {
        self.inner.room_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, FaultDevice, FaultError, FaultRule, MemoryDevice, SECTOR_BYTES};

    #[test]
    fn transfers_in_a_row_are_told_from_others() {
        let device = WatchedDevice::over(MemoryDevice::new(1 << 20));
        let mut sector = [0; SECTOR_BYTES];
        let at = |sector: u64| sector * SECTOR_BYTES as u64;
        // Two streams, one call of each in turn, and one that is far from both.
        for number in 0..10 {
            device.read_at(&mut sector, at(number)).expect("reads");
            device.read_at(&mut sector, at(100 + number)).expect("reads");
        }
        device.read_at(&mut sector, at(50)).expect("reads");
        device.write_at(&sector, at(10)).expect("writes");
        device.flush().expect("flushes");
        let traffic = device.traffic();
        let sectors = |count: u64| count * SECTOR_BYTES as u64;
        assert_eq!(traffic.reads, Transfers { count: 21, count_in_row: 18, bytes: sectors(21) });
        assert_eq!(traffic.writes, Transfers { count: 1, count_in_row: 0, bytes: sectors(1) });
        assert_eq!(traffic.flushes, 1);
    }

    #[test]
    fn failures_of_the_medium_are_counted_and_the_first_one_is_kept() {
        let device = WatchedDevice::over(FaultDevice::new(MemoryDevice::new(1 << 20)));
        let mut sector = [0; SECTOR_BYTES];
        device.inner.add(FaultRule::once(Call::Write, 0, FaultError::ENOSPC));
        assert!(device.write_at(&sector, 0).is_err());
        assert!(device.read_at(&mut sector, 8 << 20).is_err(), "behind the end");
        assert_eq!((device.failed(), device.first_failure()), (0, None));
        device.inner.add(FaultRule::from_any(0, FaultError::EIO));
        assert!(device.read_at(&mut sector, 8192).is_err());
        assert!(device.flush().is_err());
        assert_eq!(device.failed(), 2);
        assert!(device.first_failure().is_some_and(|first| first.starts_with("reading at byte 8192: ")));
    }

    #[test]
    fn medium_that_ends_before_its_device_has_failed() {
        let device = WatchedDevice::over(FaultDevice::new(MemoryDevice::new(1 << 20)));
        let mut sector = [0; SECTOR_BYTES];
        device.inner.add(FaultRule::once(Call::Read, 0, FaultError::Kind(ErrorKind::UnexpectedEof)));
        let error = device.read_at(&mut sector, 0).expect_err("it has gone");
        assert_ne!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(device.failed(), 1);
    }
}
