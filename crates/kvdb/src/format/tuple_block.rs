//! Tuple blocks: the checksummed unit of reading in a tuple keyspace.
//!
//! Layout in `docs/FORMAT.md`, "Pieces". Records are prefix-compressed against the one before, but
//! whole at restarts, whose offsets stand at the end of the block, for binary search.
//!
//! Thread safety: plain values. Invariant: decoding never panics and never runs on, whatever the
//! bytes; the caller has verified the checksum with [`TupleBlock::verify`] once, when it was read.

mod cursor;
#[cfg(test)]
mod tests;

pub use cursor::TupleCursor;

use kvfs_store::Seqno;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::RecordKind;
use super::codec::{DecodeError, Sink, varint_len};
use super::crc32c;
use super::varint::{put_varint_delta, shared_len};

/// The letters `KVtb`.
const MAGIC: u32 = u32::from_le_bytes(*b"KVtb");

/// Records from one restart to the next.
const RESTART_INTERVAL: u32 = 16;

/// Start of a tuple block.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Header {
    magic: U32,
    /// CRC-32C of the block from `len` on, to its end.
    crc: U32,
    /// Bytes of the block, header and restarts included, padding excluded.
    len: U32,
    records: U32,
    /// The records' seqnos are stored as differences from this.
    seqno_base: U64,
    restarts: U32,
    reserved: U32,
}

const HEADER_BYTES: usize = 32;
const CRC_FROM: usize = 8;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES);

/// The most bytes that a block may have: one record of greatest key and value, with room to spare.
pub const TUPLE_BLOCK_BYTES_MAX: usize = 4 << 20;

/// Builds one block after the other; the buffers are reused.
#[derive(Debug)]
pub struct TupleBlockBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    records: u32,
    seqno_base: Seqno,
    key_last: Vec<u8>,
}

impl Default for TupleBlockBuilder {
    fn default() -> Self {
        Self {
            bytes: vec![0; HEADER_BYTES],
            restarts: Vec::new(),
            records: 0,
            seqno_base: 0,
            key_last: Vec::new(),
        }
    }
}

impl TupleBlockBuilder {
    /// Whether no record was added since the last block.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Records added.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Bytes that the block has if it is finished now.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.restarts.len() * 4
    }

    /// An upper bound of the bytes that the block has with one more record.
    pub fn len_with(&self, key: &[u8], value: &[u8]) -> usize {
        self.len() + 4 + 30 + key.len() + varint_len(value.len() as u64) + value.len()
    }

    /// The key added last; empty at first.
    pub fn key_last(&self) -> &[u8] {
        &self.key_last
    }

    /// Appends a record; records come in record order.
    pub fn add(&mut self, key: &[u8], seqno: Seqno, kind: RecordKind, value: &[u8]) {
        if self.records == 0 {
            self.seqno_base = seqno;
        }
        let shared = if self.records.is_multiple_of(RESTART_INTERVAL) {
            self.restarts.push(self.bytes.len() as u32);
            0
        } else {
            shared_len(&self.key_last, key)
        };
        let out = &mut self.bytes;
        out.put_varint(shared as u64);
        out.put_varint((key.len() - shared) as u64);
        out.put_varint((value.len() as u64) << 2 | kind as u64);
        put_varint_delta(out, seqno, self.seqno_base);
        out.extend_from_slice(&key[shared..]);
        out.extend_from_slice(value);
        self.key_last.truncate(shared);
        self.key_last.extend_from_slice(&key[shared..]);
        self.records += 1;
    }

    /// The finished block and its checksum; call [`TupleBlockBuilder::clear`] before the next `add`.
    pub fn finish(&mut self) -> (&[u8], u32) {
        for &restart in &self.restarts {
            self.bytes.extend_from_slice(&restart.to_le_bytes());
        }
        let header = Header {
            magic: MAGIC.into(),
            crc: 0.into(),
            len: (self.bytes.len() as u32).into(),
            records: self.records.into(),
            seqno_base: self.seqno_base.into(),
            restarts: (self.restarts.len() as u32).into(),
            reserved: 0.into(),
        };
        self.bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        let crc = crc32c(&self.bytes[CRC_FROM..]);
        self.bytes[4..CRC_FROM].copy_from_slice(&crc.to_le_bytes());
        (&self.bytes, crc)
    }

    /// Makes ready for the next block.
    pub fn clear(&mut self) {
        self.bytes.truncate(HEADER_BYTES);
        self.restarts.clear();
        self.records = 0;
        self.key_last.clear();
    }
}

/// The shape of a verified block.
#[derive(Debug, Clone, Copy)]
pub struct TupleBlock {
    crc: u32,
    seqno_base: Seqno,
    records: u32,
    restarts: u32,
    /// Offset of the restart table: end of the records.
    restarts_at: u32,
    len: u32,
}

impl TupleBlock {
    /// Checks magic, length, checksum and restart table of the block at the start of `bytes`.
    /// O(length), about 20 GB/s.
    ///
    /// # Errors
    /// What does not match.
    pub fn verify(bytes: &[u8]) -> Result<Self, DecodeError> {
        let block = Self::parse(bytes)?;
        if crc32c(&bytes[CRC_FROM..block.len as usize]) != block.crc {
            return Err(DecodeError("checksum does not match"));
        }
        let mut previous = 0;
        for index in 0..block.restarts {
            let offset = block.restart(bytes, index)?;
            if offset <= previous || offset >= block.restarts_at {
                return Err(DecodeError("restart out of order"));
            }
            previous = offset;
        }
        Ok(block)
    }

    /// Whether a block seems to begin here.
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC.to_le_bytes())
    }

    /// Bytes of the block, without padding.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether it holds no record.
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Number of records.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// The checksum in the header.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Reads the shape of a block without checking its sum.
    fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (header, _) =
            Header::read_from_prefix(bytes).map_err(|_| DecodeError("shorter than a header"))?;
        if header.magic.get() != MAGIC {
            return Err(DecodeError("no tuple block here (wrong magic number)"));
        }
        let (len, restarts) = (header.len.get(), header.restarts.get());
        if len as usize > bytes.len() || len as usize > TUPLE_BLOCK_BYTES_MAX {
            return Err(DecodeError("longer than its place"));
        }
        let restarts_at = u64::from(len)
            .checked_sub(u64::from(restarts) * 4)
            .filter(|&at| at >= HEADER_BYTES as u64)
            .ok_or(DecodeError("restart table longer than the block"))?;
        Ok(Self {
            crc: header.crc.get(),
            seqno_base: header.seqno_base.get(),
            records: header.records.get(),
            restarts,
            restarts_at: restarts_at as u32,
            len,
        })
    }

    /// The same block with its seqnos counted from `shift` on.
    fn shifted(self, shift: Seqno) -> Self {
        Self { seqno_base: self.seqno_base.wrapping_add(shift), ..self }
    }

    #[inline]
    fn restart(&self, bytes: &[u8], index: u32) -> Result<u32, DecodeError> {
        let at = self.restarts_at as usize + index as usize * 4;
        let entry = bytes.get(at..at + 4).and_then(|entry| entry.first_chunk::<4>());
        entry.map(|entry| u32::from_le_bytes(*entry)).ok_or(DecodeError("restart outside of the block"))
    }
}
