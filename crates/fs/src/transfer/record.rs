//! The codec of records: what one frame puts and deletes in one keyspace.
//!
//! Thread safety: pure functions. Invariant: what decodes is fit for its keyspace: rows are rows with inode
//! numbers that the stream's first frame covers and names that an entry may have, and nothing reaches the
//! file system's own records.

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Batch, Compression, Keyspace, Op};

use crate::provenance::CloneSource;
use crate::schema::{Placement, Row, check_name};
use crate::{FILE_SIZE_MAX, MODE_BITS};

/// Keyspaces of the file system by their numbers in a stream; users' keyspaces follow in the order in which
/// the stream names them.
pub(super) const META: u32 = 0;
pub(super) const DATA: u32 = 1;
pub(super) const XATTR: u32 = 2;
pub(super) const USERS: u32 = 3;
/// Where blocks of clones came from; only in streams whose first frame says so.
pub(super) const CLONES: u32 = u32::MAX;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const DELETE_RANGE: u8 = 3;
const PUT_BLOCKS: u8 = 4;

/// The payload that carries the operations of `batch`, all of one keyspace.
pub(super) fn encode_records(keyspace: u32, batch: &Batch) -> Vec<u8> {
    let mut payload = Vec::with_capacity(8 + batch.payload_bytes() + batch.len() * 24);
    payload.extend_from_slice(&keyspace.to_le_bytes());
    let lens = |payload: &mut Vec<u8>, tag: u8, first: &[u8], second: usize| {
        payload.push(tag);
        payload.extend_from_slice(&(first.len() as u32).to_le_bytes());
        payload.extend_from_slice(&(second as u32).to_le_bytes());
    };
    for op in batch.ops() {
        let payload = &mut payload;
        match op {
            Op::Put { key, value, .. } => {
                lens(payload, PUT, key, value.len());
                payload.extend_from_slice(key);
                payload.extend_from_slice(value);
            }
            Op::Delete { key, .. } => {
                lens(payload, DELETE, key, 0);
                payload.extend_from_slice(key);
            }
            Op::DeleteRange { start, end, .. } => {
                lens(payload, DELETE_RANGE, start, end.len());
                payload.extend_from_slice(start);
                payload.extend_from_slice(end);
            }
            Op::PutBlocks { prefix, first, data, .. } => {
                lens(payload, PUT_BLOCKS, prefix, data.len());
                payload.extend_from_slice(&first.to_le_bytes());
                payload.extend_from_slice(prefix);
                payload.extend_from_slice(data);
            }
            Op::Merge { .. } | Op::PatchBlock { .. } => unreachable!("what is sent are values"),
        }
    }
    payload
}

/// The keyspace's number in the stream and the operations; as handle they have that number. `inode_next`: of
/// the stream's first frame.
pub(super) fn decode_records(payload: &Bytes, inode_next: u64) -> Option<(u32, Batch)> {
    let mut rest = &payload[..];
    let keyspace = u32::from_le_bytes(take_array(&mut rest)?);
    let mut batch = Batch::new();
    while !rest.is_empty() {
        let op = decode_op(payload, &mut rest, Keyspace(keyspace))?;
        if !is_fit(keyspace, &op, inode_next) {
            return None;
        }
        batch.push(op);
    }
    batch.check_limits().ok()?;
    Some((keyspace, batch))
}

fn decode_op(payload: &Bytes, rest: &mut &[u8], keyspace: Keyspace) -> Option<Op> {
    let [tag] = take_array(rest)?;
    let first_len = u32::from_le_bytes(take_array(rest)?) as usize;
    let second_len = u32::from_le_bytes(take_array(rest)?) as usize;
    let block = if tag == PUT_BLOCKS { u64::from_le_bytes(take_array(rest)?) } else { 0 };
    let mut take = |len: usize| {
        let (taken, left) = rest.split_at_checked(len)?;
        *rest = left;
        Some(payload.slice_ref(taken))
    };
    let (first, second) = (take(first_len)?, take(second_len)?);
    match tag {
        PUT => Some(Op::Put { keyspace, key: first, value: second }),
        DELETE if second.is_empty() => Some(Op::Delete { keyspace, key: first }),
        DELETE_RANGE if first < second => Some(Op::DeleteRange { keyspace, start: first, end: second }),
        PUT_BLOCKS => {
            let compression = Compression::None;
            Some(Op::PutBlocks { keyspace, prefix: first, first: block, data: second, compression })
        }
        _ => None,
    }
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}

/// Whether the operation makes sense there.
fn is_fit(keyspace: u32, op: &Op, inode_next: u64) -> bool {
    let is_inode = |key: &[u8], len_min: usize| {
        let inode = key.first_chunk().map(|chunk| u64::from_be_bytes(*chunk));
        key.len() >= len_min && inode.is_some_and(|inode| 0 < inode && inode < inode_next)
    };
    match (keyspace, op) {
        (META, Op::Put { key, value, .. }) => {
            let placed = Placement::parse_key(key).zip(Row::parse(value));
            is_inode(key, 9)
                && placed.is_some_and(|(place, row)| row.inode() < inode_next && is_fit_row(place, &row))
        }
        (META, Op::Delete { key, .. }) => is_inode(key, 9) && Placement::parse_key(key).is_some(),
        (DATA, Op::PutBlocks { prefix, data, .. }) => {
            prefix.len() == 8 && is_inode(prefix, 8) && data.len().is_multiple_of(BLOCK_BYTES)
        }
        (DATA, Op::DeleteRange { start, end, .. }) => {
            start.len() == 16 && end.len() == 16 && is_inode(start, 16)
        }
        (XATTR, Op::Put { key, .. } | Op::Delete { key, .. }) => is_inode(key, 9),
        (XATTR, Op::DeleteRange { start, .. }) => is_inode(start, 8),
        (CLONES, Op::Put { key, value, .. }) => {
            key.len() == 8 && is_inode(key, 8) && CloneSource::decode(value).is_some()
        }
        (CLONES, Op::Delete { key, .. }) => key.len() == 8 && is_inode(key, 8),
        (CLONES, Op::DeleteRange { start, end, .. }) => {
            start.len() == 8 && end.len() == 8 && is_inode(start, 8)
        }
        (USERS.., Op::Put { .. } | Op::Delete { .. }) => true,
        _ => false,
    }
}

/// Whether a row may stand under the name (empty: as own row) in the directory, and tells no program of what
/// no file can be.
fn is_fit_row((directory, name): (u64, &[u8]), row: &Row<'_>) -> bool {
    let is_in_place = match row {
        _ if !name.is_empty() => check_name(name).is_ok(),
        Row::Inode(header, _) => header.inode == directory,
        Row::Directory { .. } | Row::Link { .. } => false,
    };
    let is_possible = match row {
        Row::Inode(header, _) => header.size <= FILE_SIZE_MAX && header.mode & !MODE_BITS == 0,
        Row::Directory { .. } | Row::Link { .. } => true,
    };
    is_in_place && is_possible
}
