//! A walk over the records that lead from one state to another, in batches that fit a frame.
//!
//! Thread safety: belongs to one walker. Both states are pinned: snapshots. Memory: one batch, and the
//! numbers of orphans.
//!
//! Invariants:
//! * the batches follow from the two states alone: the walk asks which values differ, never what was written;
//! * what an orphan has is in no state: a file that became one is gone, one that got a name again is all new.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use kvfs_store::{
    BLOCK_BYTES, Batch, Differences, Extent, ExtentKind, KeyDifference, KeyRange, Keyspace, Read,
};

use super::record::{CLONES, DATA, META, USERS, XATTR};
use super::references::{BlockReference, Matcher, blocks_of};
use crate::schema::{DETACHED_INODE, Header, Placement, Row, inode_key, parse_inode_key, rows};
use crate::view::Sides;
use crate::{FileSystem, Result};

/// A batch ends when it has so many bytes of keys and values.
const BATCH_BYTES: usize = 512 << 10;

/// So many neighbouring blocks come from a cursor, which is the best way through small files; those behind
/// them are read many at a time, without a step for each.
const STRETCH_BLOCKS_MIN: u64 = 16;

/// What an operation takes in a frame beside its key and value (bytes): a tag and two lengths.
const OP_BYTES_MAX: usize = 9;

/// A stretch of keys of one keyspace, and what to do there.
struct Segment {
    /// Number of the keyspace in a stream.
    part: u32,
    keyspace: Keyspace,
    /// What is still to be done of it.
    range: KeyRange,
    task: Task,
}

#[derive(Clone, Copy)]
enum Task {
    /// What differs, but for what is stored under inodes that have segments of their own.
    Compare,
    /// Everything that is there afterwards.
    Copy,
    /// Nothing is there afterwards.
    Erase,
}

/// What comes next of a walk.
pub(super) enum Piece {
    /// The number of a keyspace, and what to do there; never empty.
    Records(u32, Batch),
    /// Blocks of what came before that other files have, too.
    References(Vec<BlockReference>),
}

/// See the module.
pub(super) struct Changes {
    /// `None`: nothing.
    before: Option<Arc<FileSystem>>,
    after: Arc<FileSystem>,
    segments: VecDeque<Segment>,
    /// Inodes that are an orphan on one side at least; ascending.
    orphans: BTreeSet<u64>,
    has_clones: bool,
    /// Unset: all blocks come as content.
    matcher: Option<Matcher>,
    /// What was found and not given yet.
    ready: VecDeque<Piece>,
}

impl Changes {
    /// From `before` to `after`, views of snapshots of one store; `users`: the other keyspaces to look at.
    pub(super) fn new(
        before: Option<Arc<FileSystem>>,
        after: Arc<FileSystem>,
        users: &[Keyspace],
    ) -> Result<Self> {
        let task = if before.is_some() { Task::Compare } else { Task::Copy };
        let (was, is) = match &before {
            Some(before) => (orphans_of(before)?, orphans_of(&after)?),
            None => (BTreeSet::new(), orphans_of(&after)?),
        };
        let mut segments = VecDeque::new();
        let keyspaces = after.keyspaces;
        let clones = after.shared.provenance.find()?.map(|clones| (CLONES, clones));
        let by_inode: Vec<_> =
            [(DATA, keyspaces.data), (XATTR, keyspaces.xattr)].into_iter().chain(clones).collect();
        let whole = by_inode.iter().map(|&(part, keyspace)| (part, keyspace, KeyRange::all()));
        for (part, keyspace, range) in [(META, keyspaces.meta, rows())].into_iter().chain(whole) {
            segments.push_back(Segment { part, keyspace, range, task });
        }
        for (part, keyspace) in (USERS..).zip(users) {
            segments.push_back(Segment { part, keyspace: *keyspace, range: KeyRange::all(), task });
        }
        let orphans = was.union(&is).copied().collect();
        if let Some(before) = &before {
            // One that is an orphan on both sides is on neither.
            let appeared = was.difference(&is).map(|&inode| (inode, Task::Copy));
            let vanished = is.difference(&was).map(|&inode| (inode, Task::Erase));
            for (inode, task) in appeared.chain(vanished) {
                let range = KeyRange::new(inode_key(inode), inode_key(inode + 1));
                for &(part, keyspace) in &by_inode {
                    let nothing = || is_empty(before.origin.read(), keyspace, range.clone());
                    if matches!(task, Task::Erase) && nothing()? {
                        continue;
                    }
                    segments.push_back(Segment { part, keyspace, range: range.clone(), task });
                }
            }
        }
        let has_clones = before.as_ref().map(|before| has_clones(before, &was)).transpose()? == Some(true)
            || has_clones(&after, &is)?;
        Ok(Self { before, after, segments, orphans, has_clones, matcher: None, ready: VecDeque::new() })
    }

    /// Has blocks that clones share with what comes before come as references.
    pub(super) fn refer(&mut self) {
        self.matcher = Some(Matcher::new(Arc::clone(&self.after), self.orphans.clone()));
    }

    /// Whether one of the states knows where blocks of a file came from.
    pub(super) fn has_clones(&self) -> bool {
        self.has_clones
    }

    /// The next piece.
    ///
    /// # Errors
    /// Store errors.
    pub(super) fn next(&mut self) -> Result<Option<Piece>> {
        while self.ready.is_empty()
            && let Some(mut segment) = self.segments.pop_front()
        {
            let mut stage = Stage::new(segment.keyspace, segment.part == DATA);
            // A segment of one inode comes behind all others, not in its order.
            let is_in_order = segment.part == DATA && segment.range.end.is_none();
            if is_in_order {
                stage.matcher = self.matcher.take();
            }
            let rest = self.fill(&segment, &mut stage)?;
            let matcher = stage.matcher.take();
            let batch = stage.finish();
            if !batch.is_empty() {
                self.ready.push_back(Piece::Records(segment.part, batch));
            }
            if let Some(mut matcher) = matcher {
                self.ready.extend(matcher.take_full().map(Piece::References));
                let at_end = if rest.is_none() { matcher.take_rest() } else { None };
                self.ready.extend(at_end.map(Piece::References));
                self.matcher = Some(matcher);
            }
            if let Some(start) = rest {
                segment.range.start = start;
                self.segments.push_front(segment);
            }
        }
        Ok(self.ready.pop_front())
    }

    /// As [`Self::next`], of a walk without references.
    pub(super) fn next_records(&mut self) -> Result<Option<(u32, Batch)>> {
        Ok(self.next()?.map(|piece| match piece {
            Piece::Records(part, batch) => (part, batch),
            Piece::References(_) => unreachable!("nothing is referred to"),
        }))
    }

    /// Takes what comes first in the segment, and returns where it goes on, if it does.
    fn fill(&self, segment: &Segment, stage: &mut Stage) -> Result<Option<Bytes>> {
        let Segment { part, keyspace, ref range, task } = *segment;
        // Copied whole, orphans' content is left out as well; but a segment of one inode is about nothing
        // else.
        let is_alone = range.end.is_some();
        let is_apart = |key: &[u8]| {
            let inode = key.first_chunk().map(|chunk| u64::from_be_bytes(*chunk));
            !is_alone
                && matches!(part, DATA | XATTR | CLONES)
                && inode.is_some_and(|inode| self.orphans.contains(&inode))
        };
        match (task, &self.before) {
            (Task::Compare, Some(before)) => {
                let sides = Sides { before, after: &self.after };
                let mut differences = sides.differences(keyspace, range.clone())?;
                while let Some(difference) = differences.next()? {
                    if is_apart(&difference.key) {
                        continue;
                    }
                    stage.take(&difference.key, difference.newer)?;
                    if stage.is_full() {
                        return Ok(Some(successor(&difference.key)));
                    }
                }
            }
            (Task::Erase, _) => {
                let (start, end) = (range.start.clone(), range.end.clone().unwrap_or_default());
                stage.erase(start, end);
            }
            (Task::Copy | Task::Compare, _) => {
                return stage.copy(self.after.origin.read(), range, is_apart);
            }
        }
        Ok(None)
    }
}

/// Whether a row differs by nothing but what reading changes: access times, and the directory of detached
/// trees, which is made before a view begins. Were a tree in it, that would have rows of its own.
pub(super) fn is_by_reading(key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>) -> bool {
    let Some(before) = before else {
        return key == &Placement::own_subtree(DETACHED_INODE).own_key()[..];
    };
    let (Some(Row::Inode(was, content_before)), Some(Row::Inode(is, content))) =
        (Row::parse(before), after.and_then(Row::parse))
    else {
        return false;
    };
    (Header { atime: was.atime, ..is }, content) == (was, content_before)
}

/// Whether more differs between two named snapshots than what reading changes.
pub(crate) fn has_changed(main: &FileSystem, before: &str, after: &str) -> Result<bool> {
    let (before, after) = (main.store.open_snapshot(before)?, main.store.open_snapshot(after)?);
    let own = main.keyspaces;
    let whole = |keyspace| (keyspace, KeyRange::all());
    let users = main.shared.keyspaces.user_keyspaces().map(|info| whole(info.keyspace));
    let ranges = [(own.meta, rows()), whole(own.data), whole(own.xattr)].into_iter().chain(users);
    for (keyspace, range) in ranges {
        let ranges = main.store.changed_ranges(keyspace, range, before.seqno(), after.seqno())?;
        let mut differences = Differences::new(keyspace, &*before, &*after, ranges);
        while let Some(KeyDifference { key, older, newer }) = differences.next()? {
            if keyspace != own.meta || !is_by_reading(&key, older.as_deref(), newer.as_deref()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The inodes without a name in a view.
fn orphans_of(view: &FileSystem) -> Result<BTreeSet<u64>> {
    let mut orphans = BTreeSet::new();
    let mut cursor = view.origin.read().cursor(view.keyspaces.orphans, KeyRange::all())?;
    cursor.next()?;
    while let Some((key, _)) = cursor.entry() {
        orphans.insert(parse_inode_key(key)?);
        cursor.next()?;
    }
    Ok(orphans)
}

/// Whether a view knows where blocks of a file that is none of its orphans came from.
fn has_clones(view: &FileSystem, orphans: &BTreeSet<u64>) -> Result<bool> {
    let Some(clones) = view.shared.provenance.keyspace() else { return Ok(false) };
    let mut cursor = view.origin.read().cursor(clones, KeyRange::all())?;
    cursor.next()?;
    while let Some((key, _)) = cursor.entry() {
        if !orphans.contains(&parse_inode_key(key)?) {
            return Ok(true);
        }
        cursor.next()?;
    }
    Ok(false)
}

/// Whether `read` has nothing there.
pub(super) fn is_empty(read: &dyn Read, keyspace: Keyspace, range: KeyRange) -> Result<bool> {
    let mut cursor = read.cursor(keyspace, range)?;
    cursor.next()?;
    Ok(cursor.entry().is_none())
}

fn successor(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// The block behind the one of which `start` is the successor, if it is one.
fn block_behind(start: &[u8]) -> Option<(&[u8], u64)> {
    let (prefix, block) = start.strip_suffix(&[0])?.split_last_chunk()?;
    let is_key = prefix.len() == size_of::<u64>();
    Some((prefix, u64::from_be_bytes(*block).checked_add(1)?)).filter(|_| is_key)
}

/// Neighbouring blocks of a file.
struct Run {
    prefix: Bytes,
    first: u64,
    count: u64,
    /// Empty: they are deleted.
    data: BytesMut,
}

/// A batch in the making, in which neighbouring blocks become one operation.
pub(crate) struct Stage {
    keyspace: Keyspace,
    in_blocks: bool,
    batch: Batch,
    run: Option<Run>,
    /// Takes the blocks that come as references.
    matcher: Option<Matcher>,
}

impl Stage {
    pub(crate) fn new(keyspace: Keyspace, in_blocks: bool) -> Self {
        Self { keyspace, in_blocks, batch: Batch::new(), run: None, matcher: None }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= BATCH_BYTES || self.matcher.as_ref().is_some_and(Matcher::is_full)
    }

    pub(super) fn bytes(&self) -> usize {
        let open = self.run.as_ref().map_or(0, |run| run.data.len());
        // Of tiny keys and values the lengths are the greater part of a frame.
        self.batch.payload_bytes() + OP_BYTES_MAX * self.batch.len() + open
    }

    /// Everything in `range`, until it is full: then where to go on.
    pub(crate) fn copy(
        &mut self,
        read: &dyn Read,
        range: &KeyRange,
        is_apart: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Bytes>> {
        // The last batch may have ended in the middle of a file.
        let start = self.take_stretch(read, range.start.clone())?;
        if self.is_full() {
            return Ok(Some(start));
        }
        let mut cursor = read.cursor(self.keyspace, KeyRange { start, ..range.clone() })?;
        cursor.next()?;
        while let Some((key, value)) = cursor.entry() {
            if is_apart(key) {
                cursor.next()?;
                continue;
            }
            self.take(key, Some(value.clone()))?;
            let mut rest = successor(key);
            if self.is_full() {
                return Ok(Some(rest));
            }
            if !self.is_in_stretch() {
                cursor.next()?;
                continue;
            }
            rest = self.take_stretch(read, rest)?;
            if self.is_full() {
                return Ok(Some(rest));
            }
            cursor.seek(&rest)?;
        }
        Ok(None)
    }

    pub(crate) fn take(&mut self, key: &[u8], value: Option<Bytes>) -> Result<()> {
        let block = if self.in_blocks { key.split_last_chunk() } else { None };
        match (block, value) {
            (Some((prefix, block)), value) => {
                let block = u64::from_be_bytes(*block);
                let matched = self.matcher.as_mut().zip(value.as_ref());
                let is_taken =
                    matched.map(|(matcher, value)| matcher.take(prefix, block, value)).transpose()?;
                if is_taken != Some(true) {
                    self.take_block(prefix, block, value.as_ref());
                }
            }
            (None, Some(value)) => self.batch.put(self.keyspace, Bytes::copy_from_slice(key), value),
            (None, None) => self.batch.delete(self.keyspace, Bytes::copy_from_slice(key)),
        }
        Ok(())
    }

    pub(super) fn take_block(&mut self, prefix: &[u8], block: u64, value: Option<&Bytes>) {
        let run = self.run_at(prefix, block, value.is_some());
        run.count += 1;
        if let Some(value) = value {
            debug_assert_eq!(value.len(), BLOCK_BYTES);
            run.data.extend_from_slice(value);
        }
    }

    /// What `block` is to be added to, with data or as a deleted one.
    fn run_at(&mut self, prefix: &[u8], block: u64, has_data: bool) -> &mut Run {
        let goes_on = self.run.as_ref().is_some_and(|run| {
            run.prefix == prefix && run.first + run.count == block && run.data.is_empty() != has_data
        });
        if !goes_on {
            self.end_run();
        }
        self.run.get_or_insert_with(|| Run {
            prefix: Bytes::copy_from_slice(prefix),
            first: block,
            count: 0,
            data: BytesMut::new(),
        })
    }

    /// Whether what comes next is better read as a stretch.
    fn is_in_stretch(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.count >= STRETCH_BLOCKS_MIN && !run.data.is_empty())
            || self.matcher.as_ref().is_some_and(Matcher::is_in_stretch)
    }

    /// Takes the blocks that lie from `start` on, when that is right behind a block, as far as they are
    /// neighbours and the stage is not full. It is full at the same block as if they came one by one. Returns
    /// what is behind them.
    fn take_stretch(&mut self, read: &dyn Read, start: Bytes) -> Result<Bytes> {
        let Some((prefix, mut block)) = self.in_blocks.then(|| block_behind(&start)).flatten() else {
            return Ok(start);
        };
        let first = block;
        let may_refer = self.matcher.as_mut().map(|matcher| matcher.concerns(prefix)).transpose()?;
        while !self.is_full() {
            let room = (BATCH_BYTES - self.bytes()).div_ceil(BLOCK_BYTES) as u64;
            let (keyspace, blocks) = (self.keyspace, block..block.saturating_add(room));
            let extent = read.next_extent(keyspace, prefix, blocks, ExtentKind::Data)?;
            let Some(Extent { count, .. }) = extent.filter(|extent| extent.first == block) else { break };
            if may_refer == Some(true) {
                let mut data = vec![0; count as usize * BLOCK_BYTES];
                read.read_blocks(keyspace, prefix, block, &mut data)?;
                for value in blocks_of(&data.into()) {
                    self.take(&[prefix, &block.to_be_bytes()].concat(), Some(value))?;
                    block += 1;
                    if self.is_full() {
                        break;
                    }
                }
                continue;
            }
            let run = self.run_at(prefix, block, true);
            let len = run.data.len();
            run.data.resize(len + count as usize * BLOCK_BYTES, 0);
            read.read_blocks(keyspace, prefix, block, &mut run.data[len..])?;
            run.count += count;
            block += count;
        }
        Ok(if block > first { successor(&[prefix, &(block - 1).to_be_bytes()].concat()) } else { start })
    }

    fn end_run(&mut self) {
        let Some(Run { prefix, first, count, data }) = self.run.take() else { return };
        if !data.is_empty() {
            return self.batch.put_blocks(self.keyspace, prefix, first, data.freeze());
        }
        let key = |block: u64| Bytes::from([&prefix[..], &block.to_be_bytes()].concat());
        self.batch.delete_range(self.keyspace, key(first), key(first + count));
    }

    /// Everything under the inodes from the key `start` to the key `end`.
    fn erase(&mut self, start: Bytes, end: Bytes) {
        let key = |inode: Bytes| -> Bytes {
            if self.in_blocks { [&inode[..], &[0; 8]].concat().into() } else { inode }
        };
        let (start, end) = (key(start), key(end));
        self.batch.delete_range(self.keyspace, start, end);
    }

    pub(crate) fn finish(mut self) -> Batch {
        self.end_run();
        self.batch
    }
}
