//! A medium in memory that is smaller than what a store on it may become: a file on a small host file system,
//! for tests.
//!
//! Thread safety: one lock. Invariants: a sector takes space from its allocation or its first write on; a
//! call that finds too little takes none.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use kvfs_device::{Device, MemoryDevice};
use kvfs_locks::{Mutex, class};

use crate::format::SECTOR_BYTES;

struct Space {
    /// Sectors that have their space.
    taken: BTreeSet<u64>,
    bytes_max: u64,
    /// What the medium tells to have, taken or not.
    bytes_told: u64,
    refusals: u64,
}

pub(crate) struct SmallMedium {
    inner: MemoryDevice,
    space: Mutex<Space, class::KvdbSpaceSmallMediumSpace>,
}

impl SmallMedium {
    /// A file that may become `len_max` bytes long, on a medium of `bytes`.
    pub(crate) fn new(len_max: u64, bytes: u64) -> Self {
        let space = Space { taken: BTreeSet::new(), bytes_max: bytes, bytes_told: bytes, refusals: 0 };
        Self { inner: MemoryDevice::growable(0, len_max), space: Mutex::new(space) }
    }

    /// The medium has `bytes` from now on, and tells of `bytes_told`.
    pub(crate) fn set_bytes(&self, bytes: u64, bytes_told: u64) {
        let mut space = self.space.lock();
        (space.bytes_max, space.bytes_told) = (bytes, bytes_told);
    }

    /// How often it had no space.
    pub(crate) fn refusals(&self) -> u64 {
        self.space.lock().refusals
    }

    fn take(&self, bytes: Range<u64>) -> io::Result<()> {
        let mut space = self.space.lock();
        let sectors = bytes.start / SECTOR_BYTES..bytes.end.div_ceil(SECTOR_BYTES);
        let missing: Vec<u64> = sectors.filter(|sector| !space.taken.contains(sector)).collect();
        if (space.taken.len() + missing.len()) as u64 * SECTOR_BYTES > space.bytes_max {
            space.refusals += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        space.taken.extend(missing);
        Ok(())
    }
}

impl Device for SmallMedium {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.take(offset..offset + buf.len() as u64)?;
        self.inner.write_at(buf, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.take(self.len_bytes().min(len)..len)?;
        self.inner.grow(len)
    }

    fn extend(&self, len: u64) -> io::Result<()> {
        self.inner.grow(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.take(offset..offset + len)
    }

    fn room_bytes(&self) -> Option<u64> {
        let space = self.space.lock();
        Some(space.bytes_told.saturating_sub(self.len_bytes().max(space.taken.len() as u64 * SECTOR_BYTES)))
    }
}
