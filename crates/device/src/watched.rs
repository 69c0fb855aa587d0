//! A device whose failures are noticed: how many reads, writes and flushes have failed, and which came first.
//!
//! A medium that has gone (a cable, a detached loop device) fails every call, reads included; what is above may hide that
//! for long behind its caches. Here it is known after the first call.
//!
//! Thread safety: atomics. Invariant: refusals that say nothing about the medium (no space, no support) are not counted.

use std::io::{self, ErrorKind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Device;

/// A device that passes everything on to `D`.
#[derive(Debug)]
pub struct WatchedDevice<D> {
    inner: D,
    failed: AtomicU64,
    first: OnceLock<String>,
}

impl<D: Device> WatchedDevice<D> {
    /// Nothing has failed yet.
    pub fn over(inner: D) -> Self {
        Self { inner, failed: AtomicU64::new(0), first: OnceLock::new() }
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
        self.note("reading", Some(offset), self.inner.read_at(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.note("writing", Some(offset), self.inner.write_at(buf, offset))
    }

    fn flush(&self) -> io::Result<()> {
        self.note("flushing", None, self.inner.flush())
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

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, FaultDevice, FaultError, FaultRule, MemoryDevice, SECTOR_BYTES};

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
}
