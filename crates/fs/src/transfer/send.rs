//! Making a stream.
//!
//! Thread safety: belongs to one sender. Invariant: the bytes follow from the two snapshots alone, so a
//! stream that is made again is the same, and goes on where another one was broken off.

use std::collections::VecDeque;
use std::sync::Arc;

use kvfs_store::KeyRange;

use super::changes::{Changes, Piece, is_empty};
use super::frame::{self, FrameKind};
use super::framer::Framer;
use super::identity::open_by_id;
use super::record::encode_records;
use super::references::encode_references;
use super::{Begin, Prologue, SnapshotId, StreamId};
use crate::schema::{Superblock, superblock_key};
use crate::{FileSystem, FsError, Result};

/// A stream in the making. Holds its two snapshots, so it goes on when their names are deleted.
pub struct SendStream {
    begin: Begin,
    changes: Changes,
    /// Payloads of the frames that come before the records.
    heads: VecDeque<(FrameKind, Vec<u8>)>,
    framer: Framer,
    is_done: bool,
}

impl SendStream {
    /// The stream that leads from the snapshot `from` (`None`: from nothing) to the snapshot `to`.
    ///
    /// # Errors
    /// `NotFound`: this store has no such snapshot. Store errors.
    pub fn new(fs: &Arc<FileSystem>, from: Option<&SnapshotId>, to: &SnapshotId) -> Result<Self> {
        let from = from.map(|id| Ok::<_, FsError>((*id, open_by_id(fs, id)?))).transpose()?;
        let (to_name, to_view) = open_by_id(fs, to)?;
        let superblock = to_view.rows().get(&superblock_key())?;
        let superblock =
            superblock.ok_or_else(|| FsError::corrupt("file-system superblock", "it is missing"))?;
        let superblock = Superblock::decode(&superblock)?;
        let from_id = from.as_ref().map(|(id, (name, _))| (*id, name.clone()));
        let mut begin = Begin {
            to: (*to, to_name),
            from: from_id,
            inline_len_max: superblock.inline_len_max,
            inode_next: superblock.inode_next,
            has_projects: superblock.has_projects,
            has_clones: false,
        };
        let from_view = from.map(|(_, (_, view))| view);
        let mut heads = VecDeque::new();
        let mut users = Vec::new();
        for info in fs.shared.keyspaces.user_keyspaces() {
            let owner = to_view.keys().owner_then(&info.name)?;
            let views = from_view.iter().chain([&to_view]);
            // One that was made later is not in these states, and nothing is in it. One that was dropped is
            // named, without an owner.
            let mut is_used = false;
            for view in views {
                is_used = is_used
                    || view.keys().owner_then(&info.name)?.is_some()
                    || !is_empty(view.origin.read(), info.keyspace, KeyRange::all())?;
            }
            if is_used {
                heads.push_back((FrameKind::Keyspace, frame::encode_keyspace(&info.name, owner)));
                users.push(info.keyspace);
            }
        }
        let mut changes = Changes::new(from_view, to_view, &users)?;
        if changes.has_clones() {
            begin.has_clones = true;
            changes.refer();
        }
        heads.push_front((FrameKind::Begin, begin.encode()));
        Ok(Self { begin, changes, heads, framer: Framer::new(), is_done: false })
    }

    /// What the first frame says.
    pub fn begin(&self) -> &Begin {
        &self.begin
    }

    /// Identity of the stream.
    pub fn stream(&self) -> StreamId {
        self.begin.stream()
    }

    /// Bytes of the stream that were given so far: where the next frame begins.
    pub fn position(&self) -> u64 {
        self.framer.position()
    }

    /// What comes before the frames that are still to be given.
    pub fn prologue(&self, bytes_expected: u64) -> Prologue {
        let has_clones = self.begin.has_clones;
        Prologue { stream: self.stream(), offset: self.position(), bytes_expected, has_clones }
    }

    /// The next frame; `None` behind the last one.
    ///
    /// # Errors
    /// Store errors.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>> {
        if self.is_done {
            return Ok(None);
        }
        if let Some((kind, payload)) = self.heads.pop_front() {
            return Ok(Some(self.framer.frame(kind, &payload)));
        }
        Ok(Some(match self.changes.next()? {
            Some(Piece::Records(keyspace, batch)) => {
                self.framer.frame(FrameKind::Records, &encode_records(keyspace, &batch))
            }
            Some(Piece::References(references)) => {
                self.framer.frame(FrameKind::References, &encode_references(&references))
            }
            None => {
                self.is_done = true;
                self.framer.end()
            }
        }))
    }

    /// Makes everything up to `offset` without giving it: a receiver has it. O(what comes before).
    ///
    /// # Errors
    /// `Invalid`: no frame begins there. Store errors.
    pub fn skip_to(&mut self, offset: u64) -> Result<()> {
        while self.position() < offset && self.next_frame()?.is_some() {}
        if self.position() == offset {
            return Ok(());
        }
        Err(FsError::Invalid("no frame of this stream begins where it is to go on"))
    }
}
