//! Ranges that are deleted in pages, for databases that can't delete a range.
//!
//! Purpose: a batch that deletes ranges of many keys would be one write of any size. It is a redo record
//! instead: the ranges, and all changes of the batch. Once that is written the batch will be there, whole;
//! then the keys of the ranges are deleted page by page, and the last write makes the changes, with the
//! seqno, and removes the record. An opening that finds one ends what was begun.
//!
//! Thread safety: the caller holds the order lock. Readers see the state from before until the last write. A
//! snapshot of it keeps the room that the deletes are to give back, so where room is short they wait for that
//! write instead, and are refused if it fails.
//!
//! Invariants: at most one record; while it is there, nothing else is written. Memory is bounded by a page
//! and the batch.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kvfs_store::{KeyRange, Keyspace, Result, StoreError};

use crate::changes::{Change, Changes};
use crate::database::{Database, Entries};
use crate::room::Room;
use crate::shared::Shared;
use crate::space::Space;
use crate::stage::Staged;

/// The record, in no keyspace.
pub(crate) const REDO: &[u8] = b"redo";

/// Keys that are deleted at once.
const PAGE_KEYS: usize = 4096;

const PUT: u8 = 1;
const DELETE: u8 = 2;

/// Applies what is staged.
pub(crate) fn apply<D: Database>(shared: &Shared<D>, room: &Room, staged: Staged<D>) -> Result<()> {
    let record = encode(&staged)?;
    shared.held.hold(shared.db.snapshot()?);
    let begun = shared.db.write(&Changes { changes: Vec::new(), meta: vec![(REDO, Some(record))] });
    shared.held.until_done(|give_up| begun.and_then(|()| finish(&shared.db, room, staged, give_up)))
}

/// Ends what an earlier process has begun, if it has; `spaces` are in the order of their numbers.
pub(crate) fn recover<D: Database>(db: &Arc<D>, room: &Room, spaces: &[Arc<Space<D::Handle>>]) -> Result<()> {
    let Some(record) = db.meta(REDO)? else { return Ok(()) };
    let staged = decode(record, spaces)
        .ok_or_else(|| StoreError::corrupt(D::TITLE, "the record of a batch under way can't be read"))?;
    finish(db, room, staged, &mut || ())
}

/// Deletes the ranges, then makes the changes and removes the record; `tighten` is called when room is short.
fn finish<D: Database>(
    db: &Arc<D>,
    room: &Room,
    mut staged: Staged<D>,
    tighten: &mut dyn FnMut(),
) -> Result<()> {
    for (space, range) in &staged.ranges {
        delete(db, room, space, range, tighten)?;
    }
    staged.changes.meta.push((REDO, None));
    db.write(&staged.changes)
}

/// Deletes the keys of a range. Where that takes too much room, what was deleted so far is given back first.
fn delete<D: Database>(
    db: &Arc<D>,
    room: &Room,
    space: &Arc<Space<D::Handle>>,
    range: &KeyRange,
    tighten: &mut dyn FnMut(),
) -> Result<()> {
    let mut entries = db.entries(None, space, range)?;
    entries.first();
    let mut start = range.start.clone();
    loop {
        let mut page = Vec::new();
        let mut bytes = 0;
        while page.len() < PAGE_KEYS
            && let Some((key, _)) = entries.entry()
        {
            bytes += key.len() as u64;
            page.push(Change::Delete { space: Arc::clone(space), key: Bytes::copy_from_slice(key) });
            entries.next();
        }
        let Some(Change::Delete { key: last, .. }) = page.last() else { return entries.check() };
        let last = last.clone();
        let is_tight = room.admit(bytes, true).is_err();
        db.write(&Changes { changes: page, meta: Vec::new() })?;
        if is_tight {
            // What they walk over keeps its files.
            drop(entries);
            tighten();
            db.compact(space, &KeyRange::new(start, last.clone()))?;
            // It is deleted by now.
            start = last;
            entries = db.entries(None, space, &KeyRange { start: start.clone(), end: range.end.clone() })?;
            entries.first();
        }
    }
}

/// Counts are `u32`, keyspaces their number; bytes come behind their length. Little-endian.
fn encode<D: Database>(staged: &Staged<D>) -> Result<Bytes> {
    let mut record = BytesMut::new();
    let bytes = |record: &mut BytesMut, bytes: &[u8]| {
        record.put_u32_le(bytes.len() as u32);
        record.put_slice(bytes);
    };
    record.put_u32_le(staged.ranges.len() as u32);
    for (space, range) in &staged.ranges {
        let end =
            range.end.as_deref().ok_or_else(|| StoreError::corrupt("a batch", "a range without end"))?;
        record.put_u32_le(space.keyspace.0);
        bytes(&mut record, &range.start);
        bytes(&mut record, end);
    }
    record.put_u32_le(staged.changes.changes.len() as u32);
    for change in &staged.changes.changes {
        let (kind, space, key, value) = match change {
            Change::Put { space, key, value } => (PUT, space, key, &value[..]),
            Change::Delete { space, key } => (DELETE, space, key, &[][..]),
            Change::DeleteRange { .. } => unreachable!("the database deletes no ranges"),
        };
        record.put_u8(kind);
        record.put_u32_le(space.keyspace.0);
        bytes(&mut record, key);
        bytes(&mut record, value);
    }
    // The number of the batch, which is all that it has beside keyspaces.
    for (_, value) in &staged.changes.meta {
        bytes(&mut record, value.as_deref().unwrap_or_default());
    }
    Ok(record.freeze())
}

/// `None`: it is damaged.
fn decode<D: Database>(mut record: Bytes, spaces: &[Arc<Space<D::Handle>>]) -> Option<Staged<D>> {
    let record = &mut record;
    let space = |record: &mut Bytes| {
        let keyspace = Keyspace(record.try_get_u32_le().ok()?);
        spaces.get(keyspace.0 as usize).cloned()
    };
    let mut staged = Staged { changes: Changes::default(), ranges: Vec::new() };
    for _ in 0..record.try_get_u32_le().ok()? {
        let space = space(record)?;
        let (start, end) = (take(record)?, take(record)?);
        staged.ranges.push((space, KeyRange::new(start, end)));
    }
    for _ in 0..record.try_get_u32_le().ok()? {
        let kind = record.try_get_u8().ok()?;
        let (space, key, value) = (space(record)?, take(record)?, take(record)?);
        staged.changes.changes.push(match kind {
            PUT => Change::Put { space, key, value },
            DELETE => Change::Delete { space, key },
            _ => return None,
        });
    }
    staged.changes.meta.push((crate::store::SEQNO, Some(take(record)?)));
    record.is_empty().then_some(staged)
}

/// Bytes behind their length.
fn take(record: &mut Bytes) -> Option<Bytes> {
    let len = record.try_get_u32_le().ok()? as usize;
    (len <= record.len()).then(|| record.split_to(len))
}
