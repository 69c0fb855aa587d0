//! What a record of the journal holds: a batch as it was resolved, with its sequence number.
//!
//! Purpose: merge records and patches are values here, and content of blocks is content, wherever it lies in
//! object storage, so a record is applied again without what it was made of.
//!
//! Thread safety: plain values. Invariant: a record that is read is one that was written, or there is none.

use bytes::{Buf, Bytes};
use kvfs_store::KeyRange;
use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// Of the batch.
    pub(crate) sequence: u64,
    /// Of the one before it, whether that was written or not: the store, or the journal, has everything up to
    /// there.
    pub(crate) previous: u64,
    /// What keys of keyspaces (by number) hold behind it; `None`: nothing.
    pub(crate) values: Vec<(u32, Bytes, Option<Bytes>)>,
    /// Ranges that are deleted before that.
    pub(crate) deleted: Vec<(u32, KeyRange)>,
}

/// Before the body of a record.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecord {
    /// xxh3-64 of what follows, and of the body.
    checksum: U64,
    sequence: U64,
    previous: U64,
    /// Of the body (bytes).
    len: U32,
    /// Values in it; ranges are behind them.
    values: U32,
}

/// Before a key and its value, or both ends of a range.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPair {
    space: U32,
    first_len: U32,
    /// [`NONE`]: there is no second one.
    second_len: U32,
}

const HEADER_BYTES: usize = size_of::<RawRecord>();
const PAIR_BYTES: usize = size_of::<RawPair>();
const _: () = assert!(HEADER_BYTES == 32 && PAIR_BYTES == 12);

/// The length of what is not there.
const NONE: u32 = u32::MAX;

impl Record {
    /// What it takes (bytes).
    pub(crate) fn bytes(&self) -> usize {
        let pair = |first: &Bytes, second: &Option<Bytes>| {
            PAIR_BYTES + first.len() + second.as_ref().map_or(0, Bytes::len)
        };
        let values: usize = self.values.iter().map(|(_, key, value)| pair(key, value)).sum();
        let deleted: usize = self.deleted.iter().map(|(_, range)| pair(&range.start, &range.end)).sum();
        HEADER_BYTES + values + deleted
    }

    /// Whether it changes anything.
    pub(crate) fn has_content(&self) -> bool {
        !self.values.is_empty() || !self.deleted.is_empty()
    }

    /// Appends it to `out`. `None`: it is longer than a record can be.
    pub(crate) fn write(&self, out: &mut Vec<u8>) -> Option<()> {
        let len = u32::try_from(self.bytes() - HEADER_BYTES).ok()?;
        let begin = out.len();
        let values = u32::try_from(self.values.len()).ok()?;
        let header = RawRecord {
            checksum: U64::ZERO,
            sequence: self.sequence.into(),
            previous: self.previous.into(),
            len: len.into(),
            values: values.into(),
        };
        out.extend_from_slice(header.as_bytes());
        let values = self.values.iter().map(|(space, key, value)| (*space, key, value));
        let deleted = self.deleted.iter().map(|(space, range)| (*space, &range.start, &range.end));
        for (space, first, second) in values.chain(deleted) {
            // Both are shorter than the body.
            let second_len = second.as_ref().map_or(NONE, |second| second.len() as u32);
            let pair = RawPair {
                space: space.into(),
                first_len: (first.len() as u32).into(),
                second_len: second_len.into(),
            };
            out.extend_from_slice(pair.as_bytes());
            out.extend_from_slice(first);
            out.extend_from_slice(second.as_deref().unwrap_or_default());
        }
        let checksum = U64::new(xxh3_64(&out[begin + 8..]));
        out[begin..begin + 8].copy_from_slice(checksum.as_bytes());
        Some(())
    }

    /// Takes the next one from the front; `None`: there is none, or not all of it.
    pub(crate) fn read(from: &mut Bytes) -> Option<Self> {
        let (header, _) = RawRecord::ref_from_prefix(from).ok()?;
        let (sequence, previous) = (header.sequence.get(), header.previous.get());
        let (values, end) = (header.values.get(), HEADER_BYTES + header.len.get() as usize);
        if from.len() < end || header.checksum.get() != xxh3_64(&from[8..end]) {
            return None;
        }
        let mut body = from.slice(HEADER_BYTES..end);
        let mut record = Self { sequence, previous, values: Vec::new(), deleted: Vec::new() };
        for _ in 0..values {
            record.values.push(read_pair(&mut body)?);
        }
        while !body.is_empty() {
            let (space, start, end) = read_pair(&mut body)?;
            record.deleted.push((space, KeyRange { start, end }));
        }
        from.advance(end);
        Some(record)
    }
}

fn read_pair(body: &mut Bytes) -> Option<(u32, Bytes, Option<Bytes>)> {
    let (pair, _) = RawPair::ref_from_prefix(body).ok()?;
    let (space, first, second) = (pair.space.get(), pair.first_len.get(), pair.second_len.get());
    body.advance(PAIR_BYTES);
    let mut take = |len: u32| {
        let len = usize::try_from(len).ok().filter(|len| *len <= body.len())?;
        // A copy: what is kept of it is not to keep all of a file in memory.
        Some(Bytes::copy_from_slice(&body.split_to(len)))
    };
    let first = take(first)?;
    let second = if second == NONE { None } else { Some(take(second)?) };
    Some((space, first, second))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence: u64) -> Record {
        Record {
            sequence,
            previous: sequence - 1,
            values: vec![
                (1, Bytes::from_static(b"key"), Some(Bytes::from_static(b"value"))),
                (2, Bytes::from_static(b"gone"), None),
                (2, Bytes::new(), Some(Bytes::new())),
            ],
            deleted: vec![(3, KeyRange::new("a", "b")), (4, KeyRange { start: Bytes::new(), end: None })],
        }
    }

    #[test]
    fn records_are_read_as_they_were_written_and_torn_or_damaged_ones_are_none() {
        let mut out = Vec::new();
        record(7).write(&mut out).unwrap();
        assert_eq!(out.len(), record(7).bytes());
        let end = out.len();
        Record { sequence: 8, previous: 7, values: Vec::new(), deleted: Vec::new() }.write(&mut out).unwrap();
        let mut from = Bytes::from(out.clone());
        assert_eq!(Record::read(&mut from), Some(record(7)));
        assert_eq!(Record::read(&mut from).unwrap().sequence, 8);
        assert_eq!(Record::read(&mut from), None);
        for len in 0..end {
            assert_eq!(Record::read(&mut Bytes::copy_from_slice(&out[..len])), None, "{len}");
        }
        for at in 0..end {
            let mut damaged = out.clone();
            damaged[at] ^= 0x40;
            assert_eq!(Record::read(&mut Bytes::from(damaged)), None, "{at}");
        }
    }
}
