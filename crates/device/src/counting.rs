//! Counts the calls and bytes that go to a device, for statistics and benchmarks.
//!
//! Thread safety: relaxed atomics; counts of calls that run at the same time may be seen apart.
//!
//! Invariants: only successful calls are counted.

use crate::Device;
use std::fmt;
use std::io;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device that passes everything on to `D` and counts it.
pub struct CountingDevice<D> {
    inner: D,
    counters: Counters,
}

/// How often each call succeeded, and how many bytes moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Calls of [`Device::read_at`].
    pub reads: u64,
    /// Calls of [`Device::write_at`].
    pub writes: u64,
    /// Calls of [`Device::flush`].
    pub flushes: u64,
    /// Calls of [`Device::grow`].
    pub grows: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    grows: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

impl<D: Device> CountingDevice<D> {
    /// Counts what goes to `inner`, from zero.
    pub fn new(inner: D) -> Self {
        Self { inner, counters: Counters::default() }
    }

    /// The counts so far.
    pub fn counts(&self) -> IoCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IoCounts {
            reads: load(&self.counters.reads),
            writes: load(&self.counters.writes),
            flushes: load(&self.counters.flushes),
            grows: load(&self.counters.grows),
            bytes_read: load(&self.counters.bytes_read),
            bytes_written: load(&self.counters.bytes_written),
        }
    }

    /// The device beneath.
    pub fn inner(&self) -> &D {
        &self.inner
    }
}

/// What happened between two readings: `later - earlier`.
impl Sub for IoCounts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            flushes: self.flushes - earlier.flushes,
            grows: self.grows - earlier.grows,
            bytes_read: self.bytes_read - earlier.bytes_read,
            bytes_written: self.bytes_written - earlier.bytes_written,
        }
    }
}

fn count(calls: &AtomicU64, bytes: &AtomicU64, len: u64) {
    calls.fetch_add(1, Ordering::Relaxed);
    bytes.fetch_add(len, Ordering::Relaxed);
}

impl<D: Device> Device for CountingDevice<D> {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)?;
        count(&self.counters.reads, &self.counters.bytes_read, buf.len() as u64);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.inner.write_at(buf, offset)?;
        count(&self.counters.writes, &self.counters.bytes_written, buf.len() as u64);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()?;
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.inner.grow(len)?;
        self.counters.grows.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn extend(&self, len: u64) -> io::Result<()> {
        self.inner.extend(len)?;
        self.counters.grows.fetch_add(1, Ordering::Relaxed);
        Ok(())
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

impl<D: Device + fmt::Debug> fmt::Debug for CountingDevice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingDevice")
            .field("inner", &self.inner)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
