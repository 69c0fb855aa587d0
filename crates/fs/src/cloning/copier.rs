//! The clones of single inodes: their rows, their extended attributes, and which blocks are theirs.
//!
//! Thread safety: belongs to one clone. Invariant: a batch that is full is applied before the next row is
//! staged.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;
use kvfs_store::{Batch, BlockClone, KeyRange, Keyspace};

use super::walk::FileRow;
use super::{Cloned, Job};
use crate::file::{CLONES_MAX, Contents, whole_file};
use crate::node::Pin;
use crate::quota::Charges;
use crate::schema::{
    Header, Keyspaces, Placement, RowFlags, RowPatch, block_prefix, encode_row, inode_key, xattr_key,
};
use crate::{FileType, Project, Result, Timestamp};

/// Rows that are applied at once, at most.
const BATCH_ROWS_MAX: usize = 512;
/// And their bytes.
const BATCH_BYTES_MAX: usize = 1 << 20;

const SET_IDS: u32 = 0o6000;

/// What only root may give to a file: capabilities and labels.
const PRIVILEGED_ATTRIBUTES: [&[u8]; 2] = [b"security.", b"trusted."];

/// The clone of a top, all but its name.
pub(super) struct Made {
    pub(super) header: Header,
    pub(super) content: Bytes,
    /// What is to be applied together with the name.
    pub(super) beside: Batch,
}

impl Made {
    /// A directory whose row, and all that is below, was staged.
    pub(super) fn directory(header: Header) -> Self {
        Self { header, content: Bytes::new(), beside: Batch::new() }
    }
}

/// The clone of a file with several names, of which some may be outside.
struct Linked {
    inode: u64,
    /// Names of the clone beside the first one, which its row does not count yet.
    names_more: i32,
}

/// See the module.
pub(super) struct Copier<'v, 'c> {
    job: Job<'v, 'c>,
    project: Project,
    now: Timestamp,
    /// Inode numbers that nothing has yet.
    numbers: Range<u64>,
    /// All numbers that were taken; what there is under them is the clone's.
    taken: Vec<Range<u64>>,
    /// What was counted.
    charges: Charges,
    batch: Batch,
    /// Inodes that are made by the batch.
    made: Vec<Header>,
    clones: Vec<BlockClone>,
    /// By the inode of which they are clones.
    linked: HashMap<u64, Linked>,
    cloned: Cloned,
}

impl<'v, 'c> Copier<'v, 'c> {
    /// Of inodes that come into a directory which hands this project down.
    pub(super) fn new(job: Job<'v, 'c>, project: Project) -> Self {
        Self {
            job,
            project,
            now: job.fs.time(),
            numbers: 0..0,
            taken: Vec::new(),
            charges: Charges::default(),
            batch: Batch::new(),
            made: Vec::new(),
            clones: Vec::new(),
            linked: HashMap::new(),
            cloned: Cloned::default(),
        }
    }

    pub(super) fn job(&self) -> Job<'v, 'c> {
        self.job
    }

    fn number(&mut self) -> Result<u64> {
        if let Some(number) = self.numbers.next() {
            return Ok(number);
        }
        let group = self.job.fs.origin.take_inodes(&self.job.fs.shared)?;
        match self.taken.last_mut() {
            Some(last) if last.end == group.start => last.end = group.end,
            _ => self.taken.push(group.clone()),
        }
        self.numbers = group;
        self.number()
    }

    /// The header of a clone with one name, whose attributes and blocks are staged.
    fn clone_inode(&mut self, source: &Header) -> Result<Header> {
        let inode = self.number()?;
        let (uid, gid) = self.job.rights.owner_of(&source.attr());
        let is_owned = self.job.rights.is_everything() || (uid, gid) == (source.uid, source.gid);
        let mode = if is_owned { source.mode } else { source.mode & !SET_IDS };
        let hands_down = source.kind == FileType::Directory && self.project.hands_down;
        let header = Header {
            inode,
            mode,
            uid,
            gid,
            nlink: 1,
            parent: 0,
            flags: source.flags.without(RowFlags::LINKABLE),
            ctime: self.now,
            btime: self.now,
            ..*source
        };
        let header = header.with_project(Project { hands_down, ..self.project });
        if source.flags.has(RowFlags::XATTRS | RowFlags::ACCESS_ACL | RowFlags::DEFAULT_ACL) {
            self.clone_attributes(source.inode, inode)?;
        }
        self.job.fs.shared.tiers.stage_new(&mut self.batch, &header)?;
        if source.kind == FileType::Regular && !source.is_inline() {
            self.cloned.bytes += source.size;
            let clone = whole_file(source, inode, source.flags.compression());
            self.job.fs.shared.provenance.stage(&mut self.batch, &clone)?;
            self.clones.push(clone);
        }
        Ok(header)
    }

    fn clone_attributes(&mut self, source: u64, inode: u64) -> Result<()> {
        let range = KeyRange::prefix(&inode_key(source));
        let keyspace = self.job.fs.keyspaces.xattr;
        let mut cursor = self.job.fs.origin.read().cursor(keyspace, range)?;
        cursor.next()?;
        while let Some((key, value)) = cursor.entry() {
            let name = &key[inode_key(source).len()..];
            let is_privileged = PRIVILEGED_ATTRIBUTES.iter().any(|prefix| name.starts_with(prefix));
            if !is_privileged || self.job.rights.is_everything() {
                self.batch.put(keyspace, xattr_key(inode, name), value.clone());
            }
            cursor.next()?;
        }
        Ok(())
    }

    fn meta(&self) -> Keyspace {
        self.job.fs.keyspaces.meta
    }

    /// The row of the clone of a file, for a name that it gets. `is_linked`: it has a row of its own, and
    /// maybe other names.
    pub(super) fn clone_file(&mut self, source: &Header, content: &[u8], is_linked: bool) -> Result<FileRow> {
        self.cloned.names += 1;
        if !is_linked {
            let header = self.clone_inode(source)?;
            self.made.push(header);
            return Ok(FileRow::Whole(encode_row(&header, content)));
        }
        if let Some(known) = self.linked.get_mut(&source.inode) {
            known.names_more += 1;
            return Ok(FileRow::Link(known.inode, source.kind));
        }
        let header = self.clone_inode(source)?;
        self.linked.insert(source.inode, Linked { inode: header.inode, names_more: 0 });
        let key = Placement::own_subtree(header.inode).own_key();
        self.batch.put(self.meta(), key, encode_row(&header, content));
        self.made.push(header);
        Ok(FileRow::Link(header.inode, source.kind))
    }

    /// The inode of the clone of a directory, which gets its row when its names are known.
    pub(super) fn begin_directory(&mut self, source: &Header) -> Result<Header> {
        self.cloned.names += 1;
        let header = self.clone_inode(source)?;
        Ok(Header { size: 0, nlink: 2, ..header })
    }

    /// Stages the row of a directory.
    pub(super) fn end_directory(&mut self, header: &Header) {
        let meta = self.meta();
        self.batch.put(meta, Placement::own_subtree(header.inode).own_key(), encode_row(header, b""));
        self.made.push(*header);
    }

    /// Stages a row under a name.
    pub(super) fn put_entry(&mut self, key: Bytes, row: Bytes) -> Result<()> {
        let meta = self.meta();
        self.batch.put(meta, key, row);
        self.apply_if_full()
    }

    fn apply_if_full(&mut self) -> Result<()> {
        if self.batch.len() >= BATCH_ROWS_MAX || self.batch.payload_bytes() >= BATCH_BYTES_MAX {
            self.apply()?;
        }
        Ok(())
    }

    /// Applies what was taken so far of inodes that others may change from now on.
    pub(super) fn apply_all(&mut self) -> Result<()> {
        self.apply()?;
        self.apply_clones()
    }

    fn apply(&mut self) -> Result<()> {
        let batch = std::mem::replace(&mut self.batch, Batch::new());
        if !batch.is_empty() {
            let made = std::mem::take(&mut self.made);
            self.job.fs.gate().apply_new(self.job.caller, batch, &made, &mut self.charges)?;
        }
        if self.clones.len() >= CLONES_MAX { self.apply_clones() } else { Ok(()) }
    }

    fn apply_clones(&mut self) -> Result<()> {
        let clones = std::mem::take(&mut self.clones);
        match &clones[..] {
            [] => Ok(()),
            clones => self.job.fs.origin.clone_blocks(self.job.fs.keyspaces.data, clones),
        }
    }

    /// The clone of a top that is no directory.
    pub(super) fn clone_top(&mut self, top: &Pin<'_>) -> Result<Made> {
        let content = match top.kind {
            FileType::Regular | FileType::Symlink => Contents::new(self.job.fs).inline_content(top)?,
            _ => Bytes::new(),
        };
        self.cloned.names += 1;
        let header = self.clone_inode(&top.header())?;
        let beside = std::mem::replace(&mut self.batch, Batch::new());
        Ok(Made { header, content, beside })
    }

    /// Applies what is left, and says what all of it came to.
    pub(super) fn finish(&mut self) -> Result<Cloned> {
        for Linked { inode, names_more } in std::mem::take(&mut self.linked).into_values() {
            if names_more > 0 {
                let patch = RowPatch { nlink_add: Some(names_more), ..RowPatch::default() };
                let (meta, key) = (self.meta(), Placement::own_subtree(inode).own_key());
                self.batch.merge(meta, key, patch.encode(inode));
                self.apply_if_full()?;
            }
        }
        self.apply_all()?;
        Ok(self.cloned)
    }

    /// Deletes all that was applied.
    pub(super) fn discard(&mut self) -> Result<()> {
        let Keyspaces { meta, data, xattr, .. } = self.job.fs.keyspaces;
        let mut batch = Batch::new();
        for numbers in &self.taken {
            let rows = |inode| Placement::own_subtree(inode).own_key();
            batch.delete_range(meta, rows(numbers.start), rows(numbers.end));
            batch.delete_range(xattr, inode_key(numbers.start), inode_key(numbers.end));
            let block = |inode| [block_prefix(inode), [0; 8]].concat();
            batch.delete_range(data, block(numbers.start), block(numbers.end));
            self.job.fs.shared.tiers.stage_end_of_all(&mut batch, numbers);
            self.job.fs.shared.provenance.stage_end_of_all(&mut batch, numbers);
        }
        if batch.is_empty() { Ok(()) } else { self.job.fs.gate().apply_discard(batch, &self.charges) }
    }
}
