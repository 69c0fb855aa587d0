//! What a snapshot is made of: its records in their order, with large content by reference.
//!
//! Thread safety: plain values. Invariants: a recipe follows from a snapshot's records and the chunks of
//! their content alone, so that what does not change between snapshots is cut into the same chunks; whatever
//! bytes come, reading them takes no more memory than they do.

use bytes::{Buf, Bytes, BytesMut};
use kvfs_fs::transfer::{BlockReference, REFERENCE_BYTES};
use zerocopy::{FromBytes, IntoBytes};

use crate::chunks::{BYTES_MAX, ChunkRef};
use crate::layout::ChunkId;

const KEYSPACE: u8 = 1;
const RECORD: u8 = 2;
const BLOCKS: u8 = 3;
const RUN: u8 = 4;
const CONTENT: u8 = 5;
const REFERENCE: u8 = 6;

/// A key, a value, or blocks that stand in the recipe have at most so many bytes.
const LEN_MAX: usize = 2 << 20;

/// A step of a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// What follows is of the keyspace of that number.
    Keyspace(u32),
    /// A key and its value.
    Record { key: Bytes, value: Bytes },
    /// Neighbouring blocks.
    Blocks { prefix: Bytes, first: u64, data: Bytes },
    /// Neighbouring blocks, whose content follows.
    Run { prefix: Bytes, first: u64 },
    /// Content of a run, behind what came before.
    Content(ChunkRef),
    /// Blocks that are as others, which come before.
    Reference(BlockReference),
}

impl Step {
    /// The bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let len = |bytes: &Bytes| (bytes.len() as u32).to_le_bytes();
        match self {
            Self::Keyspace(number) => [&[KEYSPACE][..], &number.to_le_bytes()].concat(),
            Self::Record { key, value } => [&[RECORD][..], &len(key), &len(value), key, value].concat(),
            Self::Blocks { prefix, first, data } => {
                [&[BLOCKS][..], &first.to_le_bytes(), &len(prefix), &len(data), prefix, data].concat()
            }
            Self::Run { prefix, first } => [&[RUN][..], &first.to_le_bytes(), &len(prefix), prefix].concat(),
            Self::Content(chunk) => [&[CONTENT][..], chunk.id.as_bytes(), &chunk.len.to_le_bytes()].concat(),
            Self::Reference(reference) => [&[REFERENCE][..], &reference.encode()].concat(),
        }
    }
}

/// Reads a recipe piece by piece.
#[derive(Default)]
pub(crate) struct RecipeReader {
    bytes: BytesMut,
}

impl RecipeReader {
    /// What follows.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// There is nothing that a step was not made of.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next step; `Ok(None)`: it is not whole yet.
    pub(crate) fn next(&mut self) -> Result<Option<Step>, &'static str> {
        let mut head = &self.bytes[..];
        let Some(tag) = take_u8(&mut head) else { return Ok(None) };
        let first = if matches!(tag, BLOCKS | RUN) { take_u64(&mut head) } else { Some(0) };
        let lens = match tag {
            KEYSPACE => Some((4, 0)),
            CONTENT => Some((size_of::<ChunkId>() + 4, 0)),
            REFERENCE => Some((REFERENCE_BYTES, 0)),
            RUN => take_u32(&mut head).map(|len| (len, 0)),
            RECORD | BLOCKS => take_u32(&mut head).zip(take_u32(&mut head)),
            _ => return Err("a step of an unknown kind"),
        };
        let (Some(first), Some((one, two))) = (first, lens) else { return Ok(None) };
        if one > LEN_MAX || two > LEN_MAX {
            return Err("a step that is too long");
        }
        let head_len = self.bytes.len() - head.len();
        if head.len() < one + two {
            return Ok(None);
        }
        self.bytes.advance(head_len);
        let (one, two) = (self.bytes.split_to(one).freeze(), self.bytes.split_to(two).freeze());
        Ok(Some(match tag {
            KEYSPACE => Step::Keyspace((&one[..]).get_u32_le()),
            RECORD => Step::Record { key: one, value: two },
            BLOCKS => Step::Blocks { prefix: one, first, data: two },
            RUN => Step::Run { prefix: one, first },
            REFERENCE => {
                let reference = BlockReference::decode(&one);
                Step::Reference(reference.ok_or("a reference that makes no sense")?)
            }
            _ => Step::Content(content(&one)?),
        }))
    }
}

fn content(bytes: &[u8]) -> Result<ChunkRef, &'static str> {
    let (id, mut len) = ChunkId::read_from_prefix(bytes).map_err(|_| "a chunk that is none")?;
    let len = len.get_u32_le();
    if len == 0 || len as usize > BYTES_MAX {
        return Err("a chunk of no possible length");
    }
    Ok(ChunkRef { id, len })
}

fn take_u8(bytes: &mut &[u8]) -> Option<u8> {
    bytes.try_get_u8().ok()
}

fn take_u32(bytes: &mut &[u8]) -> Option<usize> {
    bytes.try_get_u32_le().ok().map(|len| len as usize)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    bytes.try_get_u64_le().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_were_written_however_they_come() {
        let chunk = ChunkRef { id: ChunkId { hash: [1; 32], generation: [2; 4] }, len: 77 };
        let text = Bytes::from_static;
        let reference = BlockReference { inode: 9, first: 1 << 40, source: 8, source_first: 3, count: 2 };
        let steps = [
            Step::Keyspace(0),
            Step::Record { key: text(b"key"), value: text(b"") },
            Step::Keyspace(1),
            Step::Blocks { prefix: text(b"prefix"), first: 1 << 40, data: text(&[3; 4096]) },
            Step::Run { prefix: text(b"p"), first: 9 },
            Step::Content(chunk),
            Step::Reference(reference),
        ];
        let bytes: Vec<u8> = steps.iter().flat_map(Step::encode).collect();
        for size in [1, 3, 1000, bytes.len()] {
            let (mut reader, mut read) = (RecipeReader::default(), Vec::new());
            for part in bytes.chunks(size) {
                reader.add(part);
                while let Some(step) = reader.next().unwrap() {
                    read.push(step);
                }
            }
            assert!(reader.is_empty() && read == steps);
        }
    }

    #[test]
    fn nonsense_is_no_step() {
        for wrong in [
            &[0][..],
            &[9],
            &[RECORD, 0, 0, 0, 0xff, 0, 0, 0, 0],
            &[[CONTENT; 1].as_slice(), &[0; 40]].concat(),
            &[[REFERENCE; 1].as_slice(), &[0; 40]].concat(),
        ] {
            let mut reader = RecipeReader::default();
            reader.add(wrong);
            assert!(reader.next().is_err(), "{wrong:?}");
        }
    }
}
