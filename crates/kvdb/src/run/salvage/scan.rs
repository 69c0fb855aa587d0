//! Walking over the sectors of a zone, whatever they hold.

use kvfs_device::{AlignedBuf, read_around};

use crate::format::{SECTOR_BYTES, ZoneId};
use crate::run::RunContext;

/// Sectors are read so many bytes at a time.
const WINDOW_BYTES: u64 = 1 << 20;

/// One zone of a device.
pub(super) struct Scan<'a> {
    ctx: &'a RunContext,
    start: u64,
    end: u64,
}

impl<'a> Scan<'a> {
    pub(super) fn of(ctx: &'a RunContext, zone: ZoneId) -> Self {
        let start = ctx.zones.zone_addr(zone);
        Self { ctx, start, end: start + u64::from(ctx.zones.zone_bytes()) }
    }

    /// `len` bytes from `addr` on, fewer at the end of the zone, zeros where nothing can be read.
    pub(super) fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let len = (len as u64).min(self.end - addr) as usize;
        let mut buf = AlignedBuf::zeroed(len);
        read_around(self.ctx.device.as_ref(), buf.as_mut(), addr);
        buf.as_ref()[..len].to_vec()
    }
}

/// Calls `see` with the address and the bytes of each sector.
pub(super) fn for_each_sector(scan: &Scan<'_>, mut see: impl FnMut(u64, &[u8])) {
    let mut window = AlignedBuf::zeroed(WINDOW_BYTES as usize);
    let mut addr = scan.start;
    while addr < scan.end {
        let len = (scan.end - addr).min(WINDOW_BYTES) as usize;
        read_around(scan.ctx.device.as_ref(), &mut window.as_mut()[..len], addr);
        for (sector, at) in window.as_ref()[..len].chunks_exact(SECTOR_BYTES as usize).zip(0_u64..) {
            see(addr + at * SECTOR_BYTES, sector);
        }
        addr += len as u64;
    }
}
