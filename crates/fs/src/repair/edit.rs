//! The transaction of a repair: what it reads, writes and tells.

use std::collections::BTreeSet;

use bytes::Bytes;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{Batch, KeyRange, Keyspace, Txn};

use super::RepairReport;
use super::found::LostAndFound;
use crate::check::Problem;
use crate::schema::{Header, Keyspaces, Placement, Row, RowFlags, encode_row};
use crate::{FileType, FsError, INODE_MAX, Result, Timestamp};

/// Staged changes are applied when they come to this (bytes of keys and values).
const BATCH_BYTES: usize = 1 << 20;

/// Progress is told after so many keys.
const STEP: u64 = 1024;

/// A change can be looked at only after [`Edit::apply`].
pub(super) struct Edit<'a> {
    pub(super) txn: &'a dyn Txn,
    pub(super) keyspaces: Keyspaces,
    pub(super) now: Timestamp,
    pub(super) has_quotas: bool,
    batch: Batch,
    report: RepairReport,
    /// The directory that takes what has no name, once it is needed.
    pub(super) lost_found: Option<LostAndFound>,
    /// Where new inode numbers begin.
    pub(super) inode_next: u64,
    /// Something has a project.
    pub(super) has_projects: bool,
    /// Inodes whose rows may be older than what else there is of them; `None`: all.
    pub(super) older: Option<BTreeSet<u64>>,
}

impl<'a> Edit<'a> {
    pub(super) fn new(
        txn: &'a dyn Txn,
        keyspaces: Keyspaces,
        now: Timestamp,
        has_quotas: bool,
        older: Option<BTreeSet<u64>>,
    ) -> Self {
        let (batch, report) = (Batch::new(), RepairReport::default());
        Self {
            txn,
            keyspaces,
            now,
            has_quotas,
            batch,
            report,
            lost_found: None,
            inode_next: 0,
            has_projects: false,
            older,
        }
    }

    pub(super) fn fixed(&mut self, place: impl Into<String>, detail: impl Into<String>) {
        self.report.fixed.push(Problem { place: place.into(), detail: detail.into() });
    }

    /// Bytes of a file, all that are lost of it.
    pub(super) fn lost_bytes(&mut self, inode: u64, place: String, detail: String) {
        self.report.holed.insert(inode);
        self.lost(place, detail);
    }

    pub(super) fn lost(&mut self, place: impl Into<String>, detail: impl Into<String>) {
        self.report.lost.push(Problem { place: place.into(), detail: detail.into() });
    }

    pub(super) fn put(&mut self, keyspace: Keyspace, key: Bytes, value: Bytes) -> Result<()> {
        self.batch.put(keyspace, key, value);
        self.apply_when_large()
    }

    pub(super) fn put_row(&mut self, key: Bytes, header: &Header, content: &[u8]) -> Result<()> {
        self.put(self.keyspaces.meta, key, encode_row(header, content))
    }

    pub(super) fn put_own_row(&mut self, header: &Header) -> Result<()> {
        self.put_row(Placement::own_subtree(header.inode).own_key(), header, b"")
    }

    pub(super) fn delete(&mut self, keyspace: Keyspace, key: Bytes) -> Result<()> {
        self.batch.delete(keyspace, key);
        self.apply_when_large()
    }

    pub(super) fn delete_range(&mut self, keyspace: Keyspace, start: Bytes, end: Bytes) -> Result<()> {
        self.batch.delete_range(keyspace, start, end);
        self.apply_when_large()
    }

    pub(super) fn put_block(&mut self, inode: u64, block: u64, data: Bytes) -> Result<()> {
        let prefix = crate::schema::block_prefix(inode).to_vec();
        self.batch.put_blocks(self.keyspaces.data, prefix, block, data);
        self.apply_when_large()
    }

    fn apply_when_large(&mut self) -> Result<()> {
        if self.batch.payload_bytes() >= BATCH_BYTES { self.apply() } else { Ok(()) }
    }

    /// What was staged can be read from now on.
    pub(super) fn apply(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        if batch.ops().is_empty() { Ok(()) } else { Ok(self.txn.apply(batch)?) }
    }

    pub(super) fn finish(&mut self) -> Result<RepairReport> {
        self.apply()?;
        Ok(std::mem::take(&mut self.report))
    }

    /// Calls `see` with every key and value of `keyspace` as it was at the call. `see` stages changes.
    pub(super) fn for_each(
        &mut self,
        what: &'static str,
        keyspace: Keyspace,
        mut see: impl FnMut(&mut Self, &[u8], &Bytes) -> Result<()>,
    ) -> Result<()> {
        self.apply()?;
        let mut cursor = self.txn.cursor(keyspace, KeyRange::all())?;
        progress::stage(what, Unit::Items, 0);
        let mut seen = 0_u64;
        loop {
            cursor.next()?;
            let Some((key, value)) = cursor.entry() else { break };
            see(self, key, value)?;
            seen += 1;
            if seen.is_multiple_of(STEP) {
                progress::advance(STEP);
            }
        }
        drop(cursor);
        self.apply()
    }

    /// As [`Self::for_each`], for all rows of files and directories that can be decoded.
    pub(super) fn for_each_row(
        &mut self,
        what: &'static str,
        mut see: impl FnMut(&mut Self, &Place<'_>, Row<'_>) -> Result<()>,
    ) -> Result<()> {
        let (meta, orphans) = (self.keyspaces.meta, self.keyspaces.orphans);
        self.for_each(what, meta, |edit, key, value| {
            let Some((directory, name)) = Placement::parse_key(key) else { return Ok(()) };
            let Some(row) = Row::parse(value) else { return Ok(()) };
            see(edit, &Place { keyspace: meta, key, directory, name, is_orphan: false }, row)
        })?;
        self.for_each(what, orphans, |edit, key, value| {
            let Some(row) = Row::parse(value) else { return Ok(()) };
            let place = Place { keyspace: orphans, key, directory: row.inode(), name: b"", is_orphan: true };
            see(edit, &place, row)
        })
    }

    /// An inode number that no inode has.
    ///
    /// # Errors
    /// `NoSpace`: all have been given out.
    pub(super) fn new_inode(&mut self) -> Result<u64> {
        if self.inode_next >= INODE_MAX {
            return Err(FsError::NoSpace);
        }
        self.inode_next += 1;
        Ok(self.inode_next - 1)
    }

    /// A directory or file of which nothing but the number is known: its owner alone may see it.
    pub(super) fn blank(&self, inode: u64, kind: FileType) -> Header {
        let mut header = Header::new(inode, kind, self.now);
        header.mode = if kind == FileType::Directory { 0o700 } else { 0o600 };
        header.nlink = if kind == FileType::Directory { 2 } else { 1 };
        header
    }

    /// As [`Self::blank`], for a file with blocks.
    pub(super) fn blank_file(&self, inode: u64, blocks: u64, end: u64) -> Header {
        let flags = RowFlags::BLOCKS | RowFlags::SPARSE;
        Header { flags, blocks, size: end, ..self.blank(inode, FileType::Regular) }
    }
}

/// Where a row is.
pub(super) struct Place<'a> {
    pub(super) keyspace: Keyspace,
    pub(super) key: &'a [u8],
    /// Directory of an entry; inode of an own row or orphan.
    pub(super) directory: u64,
    /// Empty: an own row, or an orphan.
    pub(super) name: &'a [u8],
    pub(super) is_orphan: bool,
}

impl Place<'_> {
    pub(super) fn key(&self) -> Bytes {
        Bytes::copy_from_slice(self.key)
    }

    pub(super) fn is_own(&self) -> bool {
        self.name.is_empty()
    }
}
