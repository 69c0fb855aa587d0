//! What is inside of inodes: content, extended attributes, attributes.
//!
//! Thread safety: belongs to one restore.

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, KeyDifference, KeyRange};

use super::super::compare::Place;
use super::Restore;
use crate::acl::{AclKind, AclWriter};
use crate::file::{CLONES_MAX, Contents, RangeCloner};
use crate::schema::{Header, RowFlags, inode_key};
use crate::xattr::{COMPRESSION_ATTRIBUTE, Storage, TIER_ATTRIBUTE};
use crate::{
    FallocateMode, FileType, FsError, NodeId, Result, SetAttr, SetTime, WriteFlags, XattrMode, settled,
};

/// Blocks that are copied at a time.
const STRETCH_BLOCKS: u64 = 256;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Neighbouring blocks that are to become the same way what they were.
struct Stretch {
    first: u64,
    count: u64,
    /// Their content; `None`: a hole.
    data: Option<Vec<u8>>,
}

impl Restore<'_> {
    /// Brings an inode, which the view knows, to what it was: `header` and `content` are of the snapshot.
    pub(super) fn set_inode(&mut self, inode: u64, header: &Header, content: &Bytes) -> Result<()> {
        if header.kind == FileType::Regular {
            self.set_content(inode, header, content)?;
        }
        self.set_xattrs(inode, header)?;
        self.set_attributes(inode, header)?;
        self.done.inodes += 1;
        Ok(())
    }

    /// Brings back what a transaction had changed of an inode that others may have changed otherwise since.
    /// `then` and `content` are of the state before it, in which the inode is at `place`.
    pub(super) fn undo_inode(
        &mut self,
        inode: u64,
        place: &Place,
        then: &Header,
        content: &Bytes,
    ) -> Result<()> {
        let Some((after, changed_to)) = self.after(inode, place)? else { return Ok(()) };
        let present = self.present(inode)?;
        let is_content = then.kind == FileType::Regular
            && self.sides.content_differs((then, content), (&after, &changed_to))?;
        if is_content {
            self.set_content(inode, then, content)?;
        }
        self.set_xattrs(inode, &joined(then, &after, &self.header_now(inode)?))?;
        let now = self.header_now(inode)?;
        let mtime = if is_content { then.mtime } else { pick(then.mtime, after.mtime, now.mtime) };
        let wish = Header { mtime, ..joined(then, &after, &now) };
        let wish =
            self.without_strange_privileges(&present, then, (&after, &changed_to), is_content, wish)?;
        self.set_attributes(inode, &wish)?;
        self.done.inodes += 1;
        Ok(())
    }

    /// What an inode was right after the transaction that is taken back; `place` is where it was before.
    pub(super) fn after(&self, inode: u64, place: &Place) -> Result<Option<(Header, Bytes)>> {
        let moved = self.alone.as_ref().and_then(|alone| alone.moved.get(&inode));
        let found = self.sides.after.rows().at(moved.unwrap_or(place))?;
        Ok(found.filter(|(header, _)| header.inode == inode))
    }

    pub(super) fn header_now(&self, inode: u64) -> Result<Header> {
        Ok(self.now().locker().pin(NodeId(inode))?.header())
    }

    fn set_content(&mut self, inode: u64, then: &Header, content: &Bytes) -> Result<()> {
        let now = self.header_now(inode)?;
        if then.is_inline() {
            let is_same = now.is_inline() && {
                let pin = self.now().locker().pin(NodeId(inode))?;
                Contents::new(self.now()).inline_content(&pin)? == *content
            };
            if !is_same {
                self.resize(inode, 0)?;
                self.write(inode, 0, content)?;
            }
            return Ok(());
        }
        let is_whole = self.alone.as_ref().is_some_and(|alone| alone.whole.contains(&inode));
        if now.is_inline() || inode != then.inode || is_whole {
            self.resize(inode, 0)?;
            self.clone_content(inode, then)?;
        } else {
            if now.size > then.size {
                self.resize(inode, then.size)?;
            }
            self.undo_content(inode, then)?;
        }
        if self.header_now(inode)?.size != then.size {
            self.resize(inode, then.size)?;
        }
        Ok(())
    }

    /// Has an empty file get all blocks that the snapshot has, by reference where the engine can do that.
    fn clone_content(&mut self, inode: u64, then: &Header) -> Result<()> {
        let cloner = RangeCloner::new(self.now());
        let source = (self.then(), then);
        self.clones.push(settled(|caller| cloner.begin_whole(caller, source, NodeId(inode)))?);
        if self.clones.len() >= CLONES_MAX { self.apply_clones() } else { Ok(()) }
    }

    /// Gives the files what they were promised.
    pub(super) fn apply_clones(&mut self) -> Result<()> {
        let clones = std::mem::take(&mut self.clones);
        if clones.is_empty() {
            return Ok(());
        }
        self.now().origin.clone_blocks_of(&self.then().origin, self.now().keyspaces.data, &clones)
    }

    /// Brings back the blocks that differ.
    fn undo_content(&self, inode: u64, then: &Header) -> Result<()> {
        let range = KeyRange::prefix(&inode_key(inode));
        let mut differences = self.sides.differences(self.now().keyspaces.data, range)?;
        let mut open: Option<Stretch> = None;
        while let Some(KeyDifference { key, older, .. }) = differences.next()? {
            let block = key.last_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
            let block = block.ok_or_else(|| {
                FsError::corrupt(format!("block {}", key.escape_ascii()), "the key has no block number")
            })?;
            if let Some(stretch) = &mut open
                && stretch.first + stretch.count == block
                && stretch.count < STRETCH_BLOCKS
                && stretch.data.is_some() == older.is_some()
            {
                stretch.count += 1;
                if let (Some(data), Some(older)) = (&mut stretch.data, &older) {
                    data.extend_from_slice(older);
                }
                continue;
            }
            let next = Stretch { first: block, count: 1, data: older.map(|older| older.to_vec()) };
            if let Some(stretch) = open.replace(next) {
                self.write_stretch(inode, then, &stretch)?;
            }
        }
        open.map_or(Ok(()), |stretch| self.write_stretch(inode, then, &stretch))
    }

    fn write_stretch(&self, inode: u64, then: &Header, stretch: &Stretch) -> Result<()> {
        let offset = stretch.first * BLOCK;
        let length = then.size.saturating_sub(offset).min(stretch.count * BLOCK);
        if length == 0 {
            return Ok(());
        }
        if let Some(data) = &stretch.data {
            return self.write(inode, offset, &Bytes::copy_from_slice(&data[..length as usize]));
        }
        settled(|caller| {
            self.now().fallocate(caller, NodeId(inode), offset, length, FallocateMode::PunchHole)
        })
    }

    fn write(&self, inode: u64, offset: u64, data: &Bytes) -> Result<()> {
        let write =
            |caller: &_| self.now().write(caller, NodeId(inode), offset, data.clone(), WriteFlags::default());
        settled(write).map(drop)
    }

    fn resize(&self, inode: u64, size: u64) -> Result<()> {
        self.change(inode, &SetAttr { size: Some(size), ..SetAttr::default() })
    }

    fn change(&self, inode: u64, changes: &SetAttr) -> Result<()> {
        settled(|caller| self.now().setattr(caller, NodeId(inode), changes)).map(drop)
    }

    /// Sets what differs of project, owner, mode and times. An access time alone is no difference.
    pub(super) fn set_attributes(&self, inode: u64, then: &Header) -> Result<()> {
        let now = self.header_now(inode)?;
        if now.project() != then.project() {
            settled(|caller| self.now().set_project(caller, NodeId(inode), then.project()))?;
        }
        let owner = (now.uid, now.gid) != (then.uid, then.gid);
        if !owner && (now.mode, now.mtime) == (then.mode, then.mtime) {
            return Ok(());
        }
        let has_other_times = now.mtime != then.mtime;
        let changes = SetAttr {
            mode: (owner || now.mode != then.mode).then_some(then.mode),
            uid: (now.uid != then.uid).then_some(then.uid),
            gid: (now.gid != then.gid).then_some(then.gid),
            atime: has_other_times.then_some(SetTime::At(then.atime)),
            mtime: has_other_times.then_some(SetTime::At(then.mtime)),
            ..SetAttr::default()
        };
        self.change(inode, &changes)
    }

    /// Makes the extended attributes those of the snapshot's inode.
    pub(super) fn set_xattrs(&self, inode: u64, then: &Header) -> Result<()> {
        let now = self.header_now(inode)?;
        let kinds = [(COMPRESSION_ATTRIBUTE, Storage::Compression), (TIER_ATTRIBUTE, Storage::Tier)];
        for (name, what) in kinds {
            let value = what.value(then.flags);
            if value != what.value(now.flags) {
                self.set_xattr(inode, name, Some(value.into()))?;
            }
        }
        if !(then.flags | now.flags).has(RowFlags::XATTRS) {
            return Ok(());
        }
        let keyspace = self.now().keyspaces.xattr;
        if inode == then.inode {
            let mut differences = self.sides.differences(keyspace, KeyRange::prefix(&inode_key(inode)))?;
            while let Some(KeyDifference { key, older, .. }) = differences.next()? {
                self.set_xattr(inode, &key[8..], older)?;
            }
            return Ok(());
        }
        // It was made anew, and may have inherited what it did not have.
        for kind in AclKind::ALL {
            if now.flags.has(kind.flag()) && !then.flags.has(kind.flag()) {
                self.set_xattr(inode, kind.name(), None)?;
            }
        }
        let range = KeyRange::prefix(&inode_key(then.inode));
        let mut cursor = self.then().origin.read().cursor(keyspace, range)?;
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            self.set_xattr(inode, &key[8..], Some(value.clone()))?;
            cursor.next()?;
        }
        Ok(())
    }

    /// Sets the attributes, with the extended ones, of a directory that both sides have and that is where it
    /// was before. In a branch, where they would be in the way of names that others make there until that is
    /// merged, times are those of the names that came and went.
    pub(super) fn set_directory(&self, inode: u64, then: &Header) -> Result<()> {
        let after = self.after(inode, &(inode, Bytes::new()))?;
        let (Some(alone), Some((after, _))) = (&self.alone, after) else {
            self.set_xattrs(inode, then)?;
            return self.set_attributes(inode, then);
        };
        self.set_xattrs(inode, &joined(then, &after, &self.header_now(inode)?))?;
        let now = self.header_now(inode)?;
        let mtime = alone.mtimes.get(&inode).copied().unwrap_or(then.mtime);
        let mtime = if self.now().origin.is_branch() { now.mtime } else { mtime };
        self.set_attributes(inode, &Header { mtime, ..joined(then, &after, &now) })
    }

    fn set_xattr(&self, inode: u64, name: &[u8], value: Option<Bytes>) -> Result<()> {
        let (now, node) = (self.now(), NodeId(inode));
        if let Some(kind) = AclKind::by_name(name) {
            // Also where the mount has no lists.
            return settled(|caller| {
                let node = now.locker().pin(node)?;
                AclWriter::new(now).put(caller, &node, kind, value.as_deref().unwrap_or_default(), false)
            });
        }
        match value {
            Some(value) => settled(|caller| now.setxattr(caller, node, name, &value, XattrMode::Set)),
            None => match settled(|caller| now.removexattr(caller, node, name)) {
                // An undo of a part has been there.
                Err(FsError::NoAttribute) => Ok(()),
                done => done,
            },
        }
    }
}

/// `now`, unless it was changed from `then` to `after`.
fn pick<T: PartialEq + Copy>(then: T, after: T, now: T) -> T {
    if then == after { now } else { then }
}

/// `then` with the rights, and the settings of how content is stored, that only others have changed since.
fn joined(then: &Header, after: &Header, now: &Header) -> Header {
    let header = then.with_project(pick(then.project(), after.project(), now.project()));
    let setting = |of: RowFlags| pick(then.flags.only(of), after.flags.only(of), now.flags.only(of));
    let settings = setting(RowFlags::COMPRESSION) | setting(RowFlags::TIER);
    Header {
        mode: pick(then.mode, after.mode, now.mode),
        uid: pick(then.uid, after.uid, now.uid),
        gid: pick(then.gid, after.gid, now.gid),
        flags: header.flags.without(RowFlags::HANDED_DOWN) | settings,
        ..header
    }
}
