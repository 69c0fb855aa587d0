//! A device whose writes stay in memory: trying something out on a medium that must not change.
//!
//! Thread safety: shared; one lock over what was written. Invariant: the medium below is only read. Memory:
//! what was written.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::{Device, SECTOR_BYTES, request};

struct Written {
    len_bytes: u64,
    sectors: HashMap<u64, Box<[u8]>>,
}

/// What was written, over a medium that is never written to. It grows without limit.
pub struct OverlayDevice {
    below: Arc<dyn Device>,
    written: RwLock<Written>,
}

impl OverlayDevice {
    /// Nothing written yet.
    pub fn over(below: Arc<dyn Device>) -> Self {
        let written = Written { len_bytes: below.len_bytes(), sectors: HashMap::new() };
        Self { below, written: RwLock::new(written) }
    }

    /// Memory taken by what was written (bytes).
    pub fn bytes_written(&self) -> u64 {
        (self.written.read().sectors.len() * SECTOR_BYTES) as u64
    }
}

impl Device for OverlayDevice {
    fn len_bytes(&self) -> u64 {
        self.written.read().len_bytes
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let written = self.written.read();
        request::check_read(written.len_bytes, offset, buf.len())?;
        let first = offset / SECTOR_BYTES as u64;
        let is_above = |at: usize| written.sectors.contains_key(&(first + at as u64));
        let mut at = 0;
        let sectors = buf.len() / SECTOR_BYTES;
        while at < sectors {
            let above = is_above(at);
            let end = (at + 1..sectors).find(|&next| is_above(next) != above).unwrap_or(sectors);
            let part = &mut buf[at * SECTOR_BYTES..end * SECTOR_BYTES];
            if above {
                for (place, sector) in part.chunks_exact_mut(SECTOR_BYTES).zip(first + at as u64..) {
                    place.copy_from_slice(&written.sectors[&sector]);
                }
            } else {
                self.read_below(part, offset + (at * SECTOR_BYTES) as u64)?;
            }
            at = end;
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut written = self.written.write();
        request::check_write("write", written.len_bytes, offset, buf.len() as u64)?;
        let first = offset / SECTOR_BYTES as u64;
        for (sector, number) in buf.chunks_exact(SECTOR_BYTES).zip(first..) {
            written.sectors.insert(number, sector.into());
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        request::check_grow(len)?;
        let mut written = self.written.write();
        written.len_bytes = written.len_bytes.max(len);
        Ok(())
    }
}

impl OverlayDevice {
    /// Zeros beyond the end of the medium.
    fn read_below(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let there = self.below.len_bytes().saturating_sub(offset).min(buf.len() as u64) as usize;
        let (there, beyond) = buf.split_at_mut(there);
        beyond.fill(0);
        if there.is_empty() { Ok(()) } else { self.below.read_at(there, offset) }
    }
}

#[cfg(test)]
mod tests;
