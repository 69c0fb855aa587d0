//! The seam to the disk: one small trait, and the devices that implement it.
//!
//! Purpose: everything that kvfs stores goes through [`Device`], so that every crash, fault and
//! memory test plugs in at one place.
//!
//! Thread safety: a device is shared by reference between threads; calls may run at the same time.
//! Overlapping writes that run at the same time leave unspecified bytes, as on a disk.
//!
//! Invariants: offsets and lengths are multiples of [`SECTOR_BYTES`]; nothing is durable before a
//! [`Device::flush`] that *started after* the write returned.

mod aligned;
mod around;
mod counting;
mod crash;
mod fault;
mod file;
mod flushes;
mod joined;
mod memory;
mod overlay;
mod request;
mod rng;
mod watched;

pub use aligned::AlignedBuf;
pub use around::read_around;
pub use counting::{CountingDevice, IoCounts};
pub use crash::{CrashDevice, CrashEvent, CrashEventKind, CrashMode, PowerCut};
pub use fault::{Call, CallCounts, FaultDevice, FaultError, FaultRule};
pub use file::{FileDevice, OpenError};
pub use flushes::same_error;
pub use joined::{JoinedDevice, MissingDevice, Segment};
pub use kvfs_memory::HUGE_PAGE_BYTES;
pub use memory::MemoryDevice;
pub use overlay::OverlayDevice;
pub use rng::Rng;
pub use watched::{DeviceTraffic, Transfers, WatchedDevice};

use std::io;
use std::sync::Arc;

/// Unit of I/O: offsets and lengths of every call are multiples of this (bytes).
pub const SECTOR_BYTES: usize = 4096;

/// The largest piece that a device writes atomically (bytes): a write may tear at this boundary.
pub const ATOMIC_BYTES: usize = 512;

/// An array of bytes that survives the process.
///
/// Media assumption: a write may tear at [`ATOMIC_BYTES`] and damages no neighbour; writes that no
/// flush has covered survive a crash in any subset.
pub trait Device: Send + Sync {
    /// Usable length in bytes, a multiple of [`SECTOR_BYTES`].
    fn len_bytes(&self) -> u64;

    /// Fills `buf` from `offset`. Reading past the end is an error of kind `UnexpectedEof`. A device of
    /// several, and one that is watched, give another kind where a medium has gone that its length says has
    /// more.
    ///
    /// # Errors
    /// Any I/O error of the medium. The contents of `buf` are then unspecified.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `buf` at `offset`; not durable before the next [`Device::flush`].
    ///
    /// # Errors
    /// Any I/O error; then any subset of the sectors may have been written.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when every write that returned before this call survives a power cut.
    ///
    /// # Errors
    /// Any I/O error. The caller must treat it as sticky: what was lost is unknown.
    fn flush(&self) -> io::Result<()>;

    /// Makes the device at least `len` bytes long, with the new space allocated.
    ///
    /// # Errors
    /// `StorageFull` when there is no space, `Unsupported` when the device has a fixed size. The
    /// length is unchanged then; this is never sticky.
    fn grow(&self, len: u64) -> io::Result<()>;

    /// Makes the device at least `len` bytes long; the new space need not be allocated, and reads as zeros. A
    /// write there may fail with `StorageFull` before [`Device::allocate`] has returned for it.
    ///
    /// # Errors
    /// As [`Device::grow`].
    fn extend(&self, len: u64) -> io::Result<()> {
        self.grow(len)
    }

    /// Returns when every later write to `[offset, offset + len)` has its space. What was written there
    /// stays; the caller must not write there meanwhile.
    ///
    /// # Errors
    /// `StorageFull` when there is no space, or any other I/O error; never sticky. What the call took is
    /// given back where the medium can; space of the range that [`Device::grow`] had set aside and that was
    /// never written to may go with it.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        request::check_write("allocate", self.len_bytes(), offset, len)
    }

    /// Asks the medium for its size: a device of fixed size may have been made longer. Returns the length.
    ///
    /// # Errors
    /// Any I/O error; the length is unchanged then.
    fn refresh_len(&self) -> io::Result<u64> {
        Ok(self.len_bytes())
    }

    /// By how many bytes it could grow now, beside what [`Device::allocate`] may still take for the length
    /// that it has, as far as the medium tells; `None`: it tells nothing.
    fn room_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether the medium reads at all: a sector at one of `offsets`. A device that is made of several asks
    /// each of them, at these offsets of its own; true: all read.
    fn answers(&self, offsets: &[u64]) -> bool {
        let mut sector = AlignedBuf::zeroed(SECTOR_BYTES);
        offsets.iter().any(|&offset| self.read_at(sector.as_mut(), offset).is_ok())
    }
}

impl<D: Device + ?Sized> Device for Arc<D> {
    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        (**self).read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        (**self).write_at(buf, offset)
    }

    fn flush(&self) -> io::Result<()> {
        (**self).flush()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        (**self).grow(len)
    }

    fn extend(&self, len: u64) -> io::Result<()> {
        (**self).extend(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).allocate(offset, len)
    }

    fn refresh_len(&self) -> io::Result<u64> {
        (**self).refresh_len()
    }

    fn room_bytes(&self) -> Option<u64> {
        (**self).room_bytes()
    }

    fn answers(&self, offsets: &[u64]) -> bool {
        (**self).answers(offsets)
    }
}
