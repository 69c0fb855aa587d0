//! Regions: contiguous stretches of 4 KiB blocks, and the layers that they form.
//!
//! A region is *plain* (its blocks lie one behind the other on the device), or it is a *packed unit*, or a
//! part of one: then the unit lies at its address, and must be unpacked as a whole.
//!
//! Thread safety: plain values. Invariant: the regions of a layer are sorted by key (`prefix ‖ be64`,
//! compared as bytes, whatever the lengths of the prefixes) and their key ranges do not overlap;
//! `count` is at least 1, and the seqno spans of a region add up to it.

use std::cmp::Ordering;

use bytes::Bytes;
use kvfs_store::{Compression, Seqno};

use super::{Codec, DecodeError, Extent, SECTOR_BYTES, crc32c, unpack};

/// Consecutive blocks with one seqno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqnoSpan {
    /// Number of blocks, at least 1.
    pub count: u32,
    /// Commit number of each of them.
    pub seqno: Seqno,
}

/// Most blocks in a packed unit.
pub const UNIT_BLOCKS_MAX: u32 = 64;

/// What a reader must know of a packed unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// How it was packed.
    pub codec: Codec,
    /// Its bytes on the device, padding excluded.
    pub bytes: u32,
    /// Blocks in it.
    pub blocks: u32,
    /// Blocks of it before the region's first one.
    pub skip: u32,
}

impl Unit {
    /// Bytes that it takes on the device.
    pub fn stored_len(&self) -> u32 {
        self.bytes.next_multiple_of(SECTOR_BYTES as u32)
    }
}

/// Compares `prefix ‖ be64(block)` with `key` as bytes.
pub fn cmp_block_key(prefix: &[u8], block: u64, key: &[u8]) -> Ordering {
    match key.split_last_chunk::<8>() {
        Some((key_prefix, number)) if key_prefix.len() == prefix.len() => {
            prefix.cmp(key_prefix).then_with(|| block.cmp(&u64::from_be_bytes(*number)))
        }
        _ => prefix.iter().chain(&block.to_be_bytes()).cmp(key),
    }
}

/// Compares two block keys as bytes.
pub(crate) fn cmp_block_keys(a: (&[u8], u64), b: (&[u8], u64)) -> Ordering {
    if a.0.len() == b.0.len() {
        return a.cmp(&b);
    }
    a.0.iter().chain(&a.1.to_be_bytes()).cmp(b.0.iter().chain(&b.1.to_be_bytes()))
}

/// A borrowed region: blocks `first .. first + count` of `prefix` at consecutive device addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region<'a> {
    /// What comes before the block number in the key.
    pub prefix: &'a Bytes,
    /// Number of the first block.
    pub first: u64,
    /// Number of blocks.
    pub count: u32,
    /// Device address of the first block, or of the unit.
    pub addr: u64,
    /// Run-length-coded seqnos; the counts add up to `count`.
    pub seqnos: &'a [SeqnoSpan],
    /// CRC-32C of each block; of a unit one, of its bytes on the device.
    pub crcs: &'a [u32],
    /// How its writer wished it to be stored, whatever came of it.
    pub wish: Compression,
    /// The packed unit that it lies in; `None`: it is plain.
    pub unit: Option<Unit>,
}

impl<'a> Region<'a> {
    /// Number of the block after the last one.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// Device address of `block`, which lies in the region; of a packed one that of its unit.
    pub fn addr_of(&self, block: u64) -> u64 {
        if self.unit.is_some() { self.addr } else { self.addr + (block - self.first) * SECTOR_BYTES }
    }

    /// CRC-32C of `block`, which lies in the region; of a packed one that of its unit.
    pub fn crc_of(&self, block: u64) -> u32 {
        if self.unit.is_some() { self.crcs[0] } else { self.crcs[(block - self.first) as usize] }
    }

    /// What it takes on the device: of a part of a unit the whole unit.
    pub fn extent(&self) -> Extent {
        let len = self.unit.map_or(self.count * SECTOR_BYTES as u32, |unit| unit.stored_len());
        Extent { addr: self.addr, len }
    }

    /// Whether it is a unit from its first to its last block.
    pub fn is_whole_unit(&self) -> bool {
        self.unit.is_some_and(|unit| unit.skip == 0 && unit.blocks == self.count)
    }

    /// The blocks `first .. first + count`, which lie in the region; `seqnos` are theirs.
    #[must_use]
    pub fn part(&self, first: u64, count: u32, seqnos: &'a [SeqnoSpan]) -> Self {
        let from = (first - self.first) as u32;
        let (addr, crcs, unit) = match self.unit {
            Some(unit) => (self.addr, self.crcs, Some(Unit { skip: unit.skip + from, ..unit })),
            None => (self.addr_of(first), &self.crcs[from as usize..][..count as usize], None),
        };
        Region { prefix: self.prefix, first, count, addr, seqnos, crcs, wish: self.wish, unit }
    }

    /// Verifies its unit, of which `stored` is all that lies on the device; returns it without padding.
    ///
    /// # Errors
    /// Another unit than the index names, or a damaged one.
    pub fn verify_unit<'b>(&self, stored: &'b [u8]) -> Result<(Codec, &'b [u8]), DecodeError> {
        let unit = self.unit.ok_or(DecodeError("it is not packed"))?;
        let stored = stored.get(..unit.bytes as usize).ok_or(DecodeError("a unit is cut off"))?;
        if crc32c(stored) != self.crcs[0] {
            return Err(DecodeError("checksum of a packed unit does not match"));
        }
        Ok((unit.codec, stored))
    }

    /// Verifies its unit, as [`Region::verify_unit`], and unpacks it; `raw` has room for the whole unit.
    ///
    /// # Errors
    /// As [`Region::verify_unit`].
    pub fn unpack(&self, stored: &[u8], raw: &mut [u8]) -> Result<(), DecodeError> {
        let (codec, stored) = self.verify_unit(stored)?;
        unpack(codec, stored, raw)
    }

    /// Commit number of `block`, which lies in the region. O(spans).
    pub fn seqno_of(&self, block: u64) -> Seqno {
        let mut left = block - self.first;
        for span in self.seqnos {
            match left.checked_sub(u64::from(span.count)) {
                Some(rest) => left = rest,
                None => return span.seqno,
            }
        }
        unreachable!("the spans of a region add up to its count")
    }

    /// The seqno spans of the blocks `from .. to` (clamped to the region), each with its first block.
    pub fn spans(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, SeqnoSpan)> + use<'a> {
        let mut at = self.first;
        self.seqnos.iter().filter_map(move |span| {
            let start = at;
            at += u64::from(span.count);
            let (low, high) = (start.max(from), at.min(to));
            (low < high).then(|| (low, SeqnoSpan { count: (high - low) as u32, seqno: span.seqno }))
        })
    }
}

#[derive(Debug, Clone)]
struct Head {
    prefix: Bytes,
    first: u64,
    addr: u64,
    count: u32,
    spans_at: u32,
    spans_len: u32,
    crcs_at: u32,
    wish: Compression,
    unit: Option<Unit>,
}

impl Head {
    fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    fn crcs_len(&self) -> usize {
        if self.unit.is_some() { 1 } else { self.count as usize }
    }

    /// Whether `region` goes on where this ends, on the device, too: in blocks, or within one unit.
    fn is_continued_by(&self, region: &Region<'_>) -> bool {
        let follows = self.prefix == *region.prefix && self.end() == region.first && self.wish == region.wish;
        follows
            && match (self.unit, region.unit) {
                (None, None) => self.addr + u64::from(self.count) * SECTOR_BYTES == region.addr,
                (Some(own), Some(other)) => {
                    self.addr == region.addr && Unit { skip: own.skip + self.count, ..own } == other
                }
                _ => false,
            }
    }
}

/// Sorted regions that do not overlap.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    heads: Vec<Head>,
    spans: Vec<SeqnoSpan>,
    crcs: Vec<u32>,
    blocks: u64,
}

impl Layer {
    /// Number of regions.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there is no region.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Number of blocks in all regions.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The region at `index`.
    pub fn region(&self, index: usize) -> Region<'_> {
        let head = &self.heads[index];
        Region {
            prefix: &head.prefix,
            first: head.first,
            count: head.count,
            addr: head.addr,
            seqnos: &self.spans[head.spans_at as usize..][..head.spans_len as usize],
            crcs: &self.crcs[head.crcs_at as usize..][..head.crcs_len()],
            wish: head.wish,
            unit: head.unit,
        }
    }

    /// All regions in order.
    pub fn regions(&self) -> impl DoubleEndedIterator<Item = Region<'_>> + ExactSizeIterator {
        (0..self.heads.len()).map(|index| self.region(index))
    }

    /// Index of the first region with a key at or after that of `block` of `prefix`; [`Layer::len`]
    /// if there is none. O(log n).
    pub fn find(&self, prefix: &[u8], block: u64) -> usize {
        self.heads.partition_point(|head| {
            cmp_block_keys((&head.prefix, head.end() - 1), (prefix, block)) == Ordering::Less
        })
    }

    /// Index of the first region with a key at or after `key`, and its first block there. O(log n).
    pub fn find_key(&self, key: &[u8]) -> Option<(usize, u64)> {
        let index = self
            .heads
            .partition_point(|head| cmp_block_key(&head.prefix, head.end() - 1, key) == Ordering::Less);
        let head = self.heads.get(index)?;
        let (mut low, mut high) = (head.first, head.end() - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if cmp_block_key(&head.prefix, middle, key) == Ordering::Less {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some((index, low))
    }

    /// Index of the last region with a key before `key`, and its last block there. O(log n).
    pub fn find_before(&self, key: &[u8]) -> Option<(usize, u64)> {
        let at = self.find_key(key);
        let (index, block) = at.unwrap_or((self.heads.len(), 0));
        match self.heads.get(index) {
            Some(head) if block > head.first => Some((index, block - 1)),
            _ => {
                let index = index.checked_sub(1)?;
                Some((index, self.heads[index].end() - 1))
            }
        }
    }

    /// Appends a region behind the last one. When it continues the last one in block numbers and addresses,
    /// the two become one if `coalesce` allows the sum of their counts; parts of one unit always do.
    pub fn push(&mut self, region: Region<'_>, coalesce: impl FnOnce(u64, u64) -> bool) {
        let crcs_len = if region.unit.is_some() { 1 } else { region.count as usize };
        debug_assert_eq!(region.crcs.len(), crcs_len);
        debug_assert_eq!(region.seqnos.iter().map(|s| s.count).sum::<u32>(), region.count);
        let crcs_at = self.crcs.len() as u32;
        self.blocks += u64::from(region.count);
        if let Some(last) = self.heads.last_mut() {
            debug_assert!(
                cmp_block_keys((&last.prefix, last.end() - 1), (region.prefix, region.first))
                    == Ordering::Less,
                "regions come in key order"
            );
            let count = u64::from(last.count) + u64::from(region.count);
            if last.is_continued_by(&region) && (region.unit.is_some() || coalesce(last.addr, count)) {
                last.count += region.count;
                if region.unit.is_none() {
                    self.crcs.extend_from_slice(region.crcs);
                }
                for &span in region.seqnos {
                    match self.spans.last_mut() {
                        Some(tail) if tail.seqno == span.seqno => tail.count += span.count,
                        _ => {
                            self.spans.push(span);
                            last.spans_len += 1;
                        }
                    }
                }
                return;
            }
        }
        self.crcs.extend_from_slice(region.crcs);
        let spans_at = self.spans.len() as u32;
        self.spans.extend_from_slice(region.seqnos);
        let prefix = match self.heads.last() {
            Some(last) if last.prefix == *region.prefix => last.prefix.clone(),
            _ => region.prefix.clone(),
        };
        self.heads.push(Head {
            prefix,
            first: region.first,
            addr: region.addr,
            count: region.count,
            spans_at,
            spans_len: region.seqnos.len() as u32,
            crcs_at,
            wish: region.wish,
            unit: region.unit,
        });
    }

    /// Memory that the layer takes, each prefix counted once (bytes).
    pub fn memory_bytes(&self) -> usize {
        let mut prefix_bytes = 0;
        let mut previous: &[u8] = &[];
        for head in &self.heads {
            if head.prefix[..] != *previous {
                prefix_bytes += head.prefix.len();
                previous = &head.prefix;
            }
        }
        prefix_bytes
            + self.heads.len() * size_of::<Head>()
            + self.spans.len() * size_of::<SeqnoSpan>()
            + self.crcs.len() * size_of::<u32>()
    }

    /// Counts all seqnos from `base` on.
    pub fn rebase(&mut self, base: Seqno) {
        for span in &mut self.spans {
            span.seqno = span.seqno.wrapping_add(base);
        }
    }

    /// Gives unused capacity back.
    pub fn shrink_to_fit(&mut self) {
        self.heads.shrink_to_fit();
        self.spans.shrink_to_fit();
        self.crcs.shrink_to_fit();
    }
}
