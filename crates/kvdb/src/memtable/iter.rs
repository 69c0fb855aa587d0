//! Walks over the records of a memtable.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use super::{MemTable, UNREADABLE, fill::unreadable, keyspace::KeyspaceTable, skiplist::Cursor};
use crate::format::{RecordIter, RecordRef};

/// A walk that keeps its memtable (and the charge for it) alive.
pub(super) struct MemTableIter {
    cursor: Cursor,
    /// Whether there are blocks that can't be read; else an empty value is one.
    has_unreadable: bool,
    _table: Arc<MemTable>,
}

impl MemTableIter {
    /// `keyspace` is one of `table`.
    pub(super) fn new(table: Arc<MemTable>, keyspace: &KeyspaceTable) -> Self {
        let cursor = Cursor::new(Arc::clone(&keyspace.records));
        Self { cursor, has_unreadable: keyspace.has_unreadable(), _table: table }
    }
}

impl RecordIter for MemTableIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        self.cursor.seek(key, seqno);
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.cursor.seek_before(key);
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        self.cursor.first();
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.cursor.last();
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.cursor.next();
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.cursor.prev();
        Ok(())
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        self.cursor.record().map(|at| at.record())
    }

    fn value(&mut self) -> Result<Bytes> {
        let Some(at) = self.cursor.record() else { return Ok(Bytes::new()) };
        let value = at.value_owned();
        if self.has_unreadable && value == UNREADABLE { Err(unreadable()) } else { Ok(value) }
    }
}

/// A walk over nothing.
pub(super) struct EmptyIter;

impl RecordIter for EmptyIter {
    fn seek(&mut self, _key: &[u8], _seqno: Seqno) -> Result<()> {
        Ok(())
    }

    fn seek_before(&mut self, _key: &[u8]) -> Result<()> {
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        Ok(())
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        None
    }

    fn value(&mut self) -> Result<Bytes> {
        Ok(Bytes::new())
    }
}
