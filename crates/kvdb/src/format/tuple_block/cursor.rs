//! A walk over the records of one tuple block.

use std::cmp::{Ordering, Reverse};
use std::ops::Range;

use bytes::Bytes;
use kvfs_store::Seqno;

use super::{HEADER_BYTES, TupleBlock};
use crate::format::varint::varint_delta;
use crate::format::{DecodeError, Decoder};
use crate::format::{RecordKind, RecordRef};

/// The fields of an encoded record.
struct Fields {
    shared: usize,
    suffix: Range<usize>,
    value: Range<usize>,
    kind: RecordKind,
    seqno: Seqno,
}

/// Stands on a record of a verified block, or nowhere.
#[derive(Debug)]
pub struct TupleCursor {
    bytes: Bytes,
    block: TupleBlock,
    /// Offset of the current record; `None`: nowhere.
    at: Option<u32>,
    /// Offset of the record after it.
    next_at: u32,
    /// The last restart at or before the current record.
    restart: u32,
    key: Vec<u8>,
    seqno: Seqno,
    kind: RecordKind,
    value: Range<usize>,
}

impl TupleCursor {
    /// A cursor that stands nowhere in a block that was verified when it was read. `shift` is added to each
    /// seqno that the block states.
    ///
    /// # Errors
    /// The bytes are no block.
    pub fn new(bytes: Bytes, shift: Seqno) -> Result<Self, DecodeError> {
        let block = TupleBlock::parse(&bytes)?.shifted(shift);
        Ok(Self {
            bytes,
            block,
            at: None,
            next_at: HEADER_BYTES as u32,
            restart: 0,
            key: Vec::new(),
            seqno: 0,
            kind: RecordKind::Delete,
            value: 0..0,
        })
    }

    /// Puts the cursor nowhere into another block; keeps the key buffer.
    ///
    /// # Errors
    /// The bytes are no block.
    pub fn reset(&mut self, bytes: Bytes, shift: Seqno) -> Result<(), DecodeError> {
        self.at = None;
        self.block = TupleBlock::parse(&bytes)?.shifted(shift);
        self.bytes = bytes;
        Ok(())
    }

    /// The current record.
    #[inline]
    pub fn record(&self) -> Option<RecordRef<'_>> {
        self.at.map(|_| RecordRef { key: &self.key, seqno: self.seqno, kind: self.kind })
    }

    /// The current value; shares the memory of the block. Empty when nowhere.
    #[inline]
    pub fn value(&self) -> Bytes {
        if self.at.is_some() { self.bytes.slice(self.value.clone()) } else { Bytes::new() }
    }

    /// Moves to the first record.
    ///
    /// # Errors
    /// Malformed records; the cursor is then nowhere.
    pub fn first(&mut self) -> Result<(), DecodeError> {
        self.at = None;
        if self.block.records == 0 { Ok(()) } else { self.enter(0) }
    }

    /// Moves to the last record.
    ///
    /// # Errors
    /// As [`TupleCursor::first`].
    pub fn last(&mut self) -> Result<(), DecodeError> {
        self.at = None;
        let Some(restart) = self.block.restarts.checked_sub(1) else { return Ok(()) };
        self.enter(restart)?;
        while self.next_at < self.block.restarts_at {
            self.decode_next()?;
        }
        Ok(())
    }

    /// Moves to the first record at or after `(key, seqno)` in record order, else nowhere.
    ///
    /// # Errors
    /// As [`TupleCursor::first`].
    pub fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<(), DecodeError> {
        self.at = None;
        if self.block.records == 0 {
            return Ok(());
        }
        // The last restart before the target; the target is behind it or is the next restart.
        let (mut low, mut high) = (0, self.block.restarts);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.compare_restart(middle, key, seqno)? == Ordering::Less {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.enter(low)?;
        while self.compare_current(key, seqno) == Ordering::Less {
            self.next()?;
            if self.at.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Moves to the last record before all versions of `key`, else nowhere.
    ///
    /// # Errors
    /// As [`TupleCursor::first`].
    pub fn seek_before(&mut self, key: &[u8]) -> Result<(), DecodeError> {
        self.seek(key, Seqno::MAX)?;
        if self.at.is_some() { self.prev() } else { self.last() }
    }

    /// One record forward, or nowhere.
    ///
    /// # Errors
    /// As [`TupleCursor::first`].
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "it moves and may fail, as in `RecordIter`")]
    pub fn next(&mut self) -> Result<(), DecodeError> {
        if self.next_at >= self.block.restarts_at {
            self.at = None;
            return Ok(());
        }
        self.decode_next()
    }

    /// One record back, or nowhere. Decodes up to one restart interval.
    ///
    /// # Errors
    /// As [`TupleCursor::first`].
    pub fn prev(&mut self) -> Result<(), DecodeError> {
        let Some(target) = self.at.take() else { return Ok(()) };
        if target == self.block.restart(&self.bytes, self.restart)? {
            let Some(restart) = self.restart.checked_sub(1) else { return Ok(()) };
            self.restart = restart;
        }
        self.enter(self.restart)?;
        while self.next_at < target {
            self.decode_next()?;
        }
        if self.next_at == target {
            return Ok(());
        }
        self.at = None;
        Err(DecodeError("records and restarts disagree"))
    }

    /// Moves to the record at a restart.
    fn enter(&mut self, restart: u32) -> Result<(), DecodeError> {
        self.at = None;
        self.next_at = self.block.restart(&self.bytes, restart)?;
        self.restart = restart;
        self.key.clear();
        self.decode_at_next()
    }

    /// Moves to the record behind the current one, which must exist.
    #[inline]
    fn decode_next(&mut self) -> Result<(), DecodeError> {
        let following = self.restart + 1;
        if following < self.block.restarts && self.block.restart(&self.bytes, following)? == self.next_at {
            self.restart = following;
        }
        self.decode_at_next()
    }

    #[inline]
    fn decode_at_next(&mut self) -> Result<(), DecodeError> {
        self.at = None;
        let fields = self.fields(self.next_at)?;
        if fields.shared > self.key.len() {
            return Err(DecodeError("record shares more than the key before it has"));
        }
        self.key.truncate(fields.shared);
        self.key.extend_from_slice(&self.bytes[fields.suffix]);
        self.at = Some(self.next_at);
        self.next_at = fields.value.end as u32;
        self.seqno = fields.seqno;
        self.kind = fields.kind;
        self.value = fields.value;
        Ok(())
    }

    #[inline]
    fn fields(&self, at: u32) -> Result<Fields, DecodeError> {
        let records =
            self.bytes.get(..self.block.restarts_at as usize).ok_or(DecodeError("ends too early"))?;
        let rest = records.get(at as usize..).ok_or(DecodeError("ends too early"))?;
        let mut decoder = Decoder::new(rest);
        let shared = decoder.varint_u32()? as usize;
        let suffix_len = decoder.varint_u32()? as usize;
        let tag = decoder.varint()?;
        let seqno = varint_delta(&mut decoder, self.block.seqno_base)?;
        let kind = match tag & 3 {
            0 => RecordKind::Delete,
            1 => RecordKind::Put,
            2 => RecordKind::Merge,
            _ => return Err(DecodeError("unknown kind of record")),
        };
        let suffix_at = records.len() - decoder.len();
        decoder.take(suffix_len)?;
        let value_len = usize::try_from(tag >> 2).map_err(|_| DecodeError("a length is absurd"))?;
        decoder.take(value_len)?;
        let value_at = suffix_at + suffix_len;
        Ok(Fields { shared, suffix: suffix_at..value_at, value: value_at..value_at + value_len, kind, seqno })
    }

    fn compare_restart(&self, restart: u32, key: &[u8], seqno: Seqno) -> Result<Ordering, DecodeError> {
        let fields = self.fields(self.block.restart(&self.bytes, restart)?)?;
        let at = (&self.bytes[fields.suffix], Reverse(fields.seqno));
        Ok(at.cmp(&(key, Reverse(seqno))))
    }

    #[inline]
    fn compare_current(&self, key: &[u8], seqno: Seqno) -> Ordering {
        (&self.key[..], Reverse(self.seqno)).cmp(&(key, Reverse(seqno)))
    }
}
