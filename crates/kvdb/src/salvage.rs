//! The tolerant decoder: reads what is left on a damaged device, for the journal, the manifest and the pieces
//! alike.
//!
//! Purpose: a [`SalvageStream`] is some ranges of a device that are read as one, with zeros where the medium
//! gives nothing. What lies in it is found in two ways: [`SalvageStream::frames`] looks for whatever has a
//! header of its own, sector by sector; [`for_each_extent`] goes through what an index names. Both leave the
//! checksums to the caller, and step over damage by the unit: a sector, an extent.
//!
//! Thread safety: only reads. Invariant: damage is never an error.

use std::ops::Range;

use bytes::Bytes;
use kvfs_device::{AlignedBuf, Device, read_around};

use crate::format::{Extent, FrameFields, FrameHeader, SECTOR_BYTES};

/// The device is read so many bytes at a time.
const WINDOW_BYTES: u64 = 1 << 20;

/// Ranges of a device, one behind the other.
pub(crate) struct SalvageStream<'a> {
    device: &'a dyn Device,
    /// Position of the first byte.
    start: u64,
    ranges: Vec<Range<u64>>,
}

impl<'a> SalvageStream<'a> {
    /// `ranges` of whole sectors; the first byte of them is at position `start`.
    pub(crate) fn new(
        device: &'a dyn Device,
        start: u64,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> Self {
        Self { device, start, ranges: ranges.into_iter().collect() }
    }

    /// One range; positions are addresses on the device.
    pub(crate) fn of_range(device: &'a dyn Device, range: Range<u64>) -> Self {
        Self::new(device, range.start, [range])
    }

    /// Where it ends.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.ranges.iter().map(|range| range.end - range.start).sum::<u64>()
    }

    /// `len` bytes from the sector at `position` on, fewer at the end.
    pub(crate) fn read(&self, position: u64, len: u64) -> Bytes {
        let len = len.min(self.end().saturating_sub(position));
        let mut buf = AlignedBuf::zeroed(len as usize);
        let read_end = position + len.next_multiple_of(SECTOR_BYTES);
        let mut at = self.start;
        for range in &self.ranges {
            let next = at + range.end - range.start;
            let (from, to) = (position.max(at), read_end.min(next));
            if from < to {
                let part = &mut buf.as_mut()[(from - position) as usize..(to - position) as usize];
                read_around(self.device, part, range.start + from - at);
            }
            at = next;
        }
        Bytes::from_owner(buf).slice(..len as usize)
    }

    /// The payload of the group at `position` that has this header, if it is what was written.
    pub(crate) fn payload<F: FrameFields>(
        &self,
        position: u64,
        header: &FrameHeader<F>,
        salt: u32,
    ) -> Option<Bytes> {
        header.payload(&self.read(position, header.group_len()), salt)
    }

    /// What `decode` makes of the sectors at `positions`, with the position of each.
    pub(crate) fn frames<T>(
        &self,
        positions: Range<u64>,
        mut decode: impl FnMut(u64, &[u8]) -> Option<T>,
    ) -> impl Iterator<Item = (u64, T)> {
        let (mut position, mut window) = (positions.start, Bytes::new());
        std::iter::from_fn(move || {
            while position < positions.end {
                if window.is_empty() {
                    window = self.read(position, WINDOW_BYTES.min(positions.end - position));
                }
                let sector = window.split_to(window.len().min(SECTOR_BYTES as usize));
                let at = position;
                position += SECTOR_BYTES;
                if let Some(found) = decode(at, &sector) {
                    return Some((at, found));
                }
            }
            None
        })
    }

    /// As [`Self::frames`], from the first position to the last.
    pub(crate) fn all_frames<T>(
        &self,
        decode: impl FnMut(u64, &[u8]) -> Option<T>,
    ) -> impl Iterator<Item = (u64, T)> {
        self.frames(self.start..self.end(), decode)
    }
}

/// Calls `see` with the number and the bytes of each extent, in order. Those that lie side by side are read
/// together.
pub(crate) fn for_each_extent(
    device: &dyn Device,
    extents: impl Iterator<Item = Extent>,
    mut see: impl FnMut(usize, Bytes),
) {
    let end_of = |extent: &Extent| extent.addr + u64::from(extent.len);
    let mut extents = extents.enumerate().peekable();
    while let Some((number, first)) = extents.next() {
        let (mut together, mut end) = (vec![first], end_of(&first));
        while let Some((_, next)) =
            extents.next_if(|(_, next)| next.addr == end && end_of(next) - first.addr <= WINDOW_BYTES)
        {
            end = end_of(&next);
            together.push(next);
        }
        let mut bytes = SalvageStream::of_range(device, first.addr..end).read(first.addr, end - first.addr);
        for (number, extent) in (number..).zip(together) {
            see(number, bytes.split_to(extent.len as usize));
        }
    }
}
