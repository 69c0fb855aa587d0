//! Reading what a block merge copies: small, mostly ascending pieces of each input, in large reads.
//!
//! Invariant: what [`CopyReader::read`] hands out has been verified against its checksums.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result, StoreError};

use super::output::OutputSpec;
use super::pace::Meter;
use crate::cache::{Charge, Pool};
use crate::format::{Extent, crc32c};
use crate::table::RunContext;

/// Part of the device that was read for one input.
struct Window {
    addr: u64,
    buf: AlignedBuf,
    _charge: Charge,
}

impl Window {
    fn holds(&self, addr: u64, len: usize) -> bool {
        addr >= self.addr && addr + len as u64 <= self.addr + self.buf.len() as u64
    }
}

/// A reader with one window for each input.
pub(super) struct CopyReader {
    ctx: Arc<RunContext>,
    windows: BTreeMap<usize, Window>,
    /// What is read at once when an input is walked in small steps (bytes).
    window_bytes: u64,
    meter: Meter,
}

impl CopyReader {
    /// Most blocks that one call reads.
    pub(super) const BLOCKS_MAX: u64 = 256;

    /// Size of a window, unless there are many (bytes).
    const WINDOW_BYTES: u64 = 512 << 10;
    /// All windows of a merge together (bytes), if memory allows, but for their least size.
    const WINDOWS_BYTES: u64 = 8 << 20;
    /// Share of the block cache's budget that they may take: one in this many parts. Several merges run at once.
    const BUDGET_DIVISOR: u64 = 32;
    /// Less is not worth a request (bytes).
    const WINDOW_BYTES_MIN: u64 = 64 << 10;

    /// A reader of so many inputs.
    pub(super) fn new(spec: &OutputSpec, inputs: usize) -> Self {
        let ctx = Arc::clone(&spec.ctx);
        let windows_bytes = Self::WINDOWS_BYTES.min(ctx.accountant.cache_budget() / Self::BUDGET_DIVISOR);
        let share = windows_bytes / inputs.max(1) as u64;
        let window_bytes = share.clamp(Self::WINDOW_BYTES_MIN, Self::WINDOW_BYTES);
        Self { ctx, windows: BTreeMap::new(), window_bytes, meter: Meter::new(spec.pace.clone()) }
    }

    /// The consecutive blocks at device address `addr`, one for each checksum.
    pub(super) fn read(&mut self, input: usize, addr: u64, crcs: &[u32]) -> Result<&[u8]> {
        let data = self.stored(input, Extent { addr, len: (crcs.len() * BLOCK_BYTES) as u32 })?;
        for (number, (block, &expected)) in data.chunks_exact(BLOCK_BYTES).zip(crcs).enumerate() {
            let found = crc32c(block);
            if found != expected {
                let at = addr + (number * BLOCK_BYTES) as u64;
                return Err(StoreError::corrupt(
                    format!("data block at device byte {at}"),
                    format!("checksum {found:#010x} instead of {expected:#010x}"),
                ));
            }
        }
        Ok(data)
    }

    /// What lies in `extent`, not verified.
    pub(super) fn stored(&mut self, input: usize, extent: Extent) -> Result<&[u8]> {
        let (addr, len) = (extent.addr, extent.len as usize);
        if !self.windows.get(&input).is_some_and(|window| window.holds(addr, len)) {
            let window = self.load(addr, len as u64)?;
            self.windows.insert(input, window);
        }
        let window = &self.windows[&input];
        Ok(&window.buf.as_ref()[(addr - window.addr) as usize..][..len])
    }

    fn load(&mut self, addr: u64, len: u64) -> Result<Window> {
        // Nothing is read beyond the zone: what follows may be in use by another owner.
        let zone_bytes = u64::from(self.ctx.zones.zone_bytes());
        let zone_end = (addr / zone_bytes + 1) * zone_bytes;
        let wanted = len.max(self.window_bytes).min(zone_end - addr).max(len);
        self.meter.add(wanted);
        let charge = self.ctx.accountant.guard(Pool::Io, wanted);
        let mut buf = AlignedBuf::zeroed(wanted as usize);
        let result = self.ctx.device.read_at(buf.as_mut(), addr);
        result.map_err(|error| {
            StoreError::io(format!("reading {wanted} bytes at device byte {addr} for a merge"), error)
        })?;
        Ok(Window { addr, buf, _charge: charge })
    }
}
