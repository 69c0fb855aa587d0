//! Reading what a block merge copies: small, mostly ascending pieces of each input, in large reads where they
//! lie close.
//!
//! Invariant: what [`CopyReader::read`] hands out has been verified against its checksums.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result, StoreError};

use super::output::OutputSpec;
use super::pace::Meter;
use crate::cache::{Charge, Pool};
use crate::format::{Extent, SECTOR_BYTES, crc32c};
use crate::table::RunContext;

/// Part of the device that was read for one input. Its memory is used again and again: the first touch of new
/// memory costs more than what is done with it.
#[derive(Default)]
struct Window {
    addr: u64,
    len: usize,
    buf: Option<(AlignedBuf, Charge)>,
    /// How much of it was asked for (bytes), and how often.
    used: u64,
    calls: u64,
    /// What is read at once, at least (bytes).
    ahead_bytes: u64,
}

impl Window {
    fn held(&self, addr: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(addr.checked_sub(self.addr)?).ok()?;
        let (buf, _) = self.buf.as_ref()?;
        buf.as_ref()[..self.len].get(start..start + len)
    }

    /// What to read at once from here on: more if the requests that it has spared would have taken longer
    /// than to read what was never asked for, less if not.
    fn next_ahead_bytes(&self, max: u64) -> u64 {
        let spared = self.calls.saturating_sub(1) * CopyReader::REQUEST_BYTES;
        // Of what is asked for in one piece none was spared, and nothing was read in vain.
        let next = match spared.cmp(&(self.len as u64).saturating_sub(self.used)) {
            Ordering::Greater => self.ahead_bytes * 2,
            Ordering::Equal => self.ahead_bytes,
            Ordering::Less => self.ahead_bytes / 2,
        };
        next.clamp(CopyReader::AHEAD_BYTES_MIN, max)
    }
}

/// A reader with one window for each input.
pub(super) struct CopyReader {
    ctx: Arc<RunContext>,
    windows: BTreeMap<usize, Window>,
    /// Most that is read at once when an input is walked in small steps (bytes).
    ahead_bytes_max: u64,
    meter: Meter,
}

impl CopyReader {
    /// Most blocks that one call reads.
    pub(super) const BLOCKS_MAX: u64 = 256;

    /// Largest window, unless there are many (bytes).
    const AHEAD_BYTES_MAX: u64 = 512 << 10;
    /// All windows of a merge together (bytes), if memory allows, but for their least size.
    const WINDOWS_BYTES: u64 = 8 << 20;
    /// Share of the block cache's budget that they may take: one in this many parts. Several merges run at
    /// once.
    const BUDGET_DIVISOR: u64 = 32;
    /// Less is not worth a request (bytes).
    const AHEAD_BYTES_MIN: u64 = 16 << 10;
    /// What a solid-state disk reads in the time that one more request takes (bytes).
    const REQUEST_BYTES: u64 = 64 << 10;

    /// A reader of so many inputs.
    pub(super) fn new(spec: &OutputSpec, inputs: usize) -> Self {
        let ctx = Arc::clone(&spec.ctx);
        let windows_bytes = Self::WINDOWS_BYTES.min(ctx.accountant.cache_budget() / Self::BUDGET_DIVISOR);
        let share = windows_bytes / inputs.max(1) as u64;
        let ahead_bytes_max = share.clamp(Self::AHEAD_BYTES_MIN, Self::AHEAD_BYTES_MAX);
        Self { ctx, windows: BTreeMap::new(), ahead_bytes_max, meter: Meter::new(spec.pace.clone()) }
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
        if self.windows.get(&input).is_none_or(|window| window.held(addr, len).is_none()) {
            self.load(input, addr, len as u64)?;
        }
        let window = self.windows.entry(input).or_default();
        window.used += len as u64;
        window.calls += 1;
        Ok(window.held(addr, len).expect("it was just loaded"))
    }

    fn load(&mut self, input: usize, addr: u64, len: u64) -> Result<()> {
        // Nothing is read beyond the zone: what follows may be in use by another owner.
        let zone_bytes = u64::from(self.ctx.zones.zone_bytes());
        let zone_end = (addr / zone_bytes + 1) * zone_bytes;
        let window = self.windows.entry(input).or_default();
        let ahead_bytes = window.next_ahead_bytes(self.ahead_bytes_max);
        let wanted = len.max(ahead_bytes).min(zone_end - addr).max(len).next_multiple_of(SECTOR_BYTES);
        self.meter.add(wanted);
        let mut buf = window.buf.take().filter(|(buf, _)| buf.len() as u64 >= wanted);
        let (memory, _) = buf.get_or_insert_with(|| {
            (AlignedBuf::zeroed(wanted as usize), self.ctx.accountant.charge(Pool::Io, wanted))
        });
        let result = self.ctx.device.read_at(&mut memory.as_mut()[..wanted as usize], addr);
        result.map_err(|error| {
            StoreError::io(format!("reading {wanted} bytes at device byte {addr} for a merge"), error)
        })?;
        *window = Window { addr, len: wanted as usize, buf, used: 0, calls: 0, ahead_bytes };
        Ok(())
    }
}
