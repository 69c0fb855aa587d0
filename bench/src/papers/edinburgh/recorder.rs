//! A store that notes what it is asked for.
//!
//! Thread safety: shared by all threads. Invariant: a walk is noted when its cursor goes.

use super::bare::{Call, Move};
use super::notes::Notes;
use bytes::Bytes;
use kvfs_store::{
    Batch, Cursor, Durability, Extent, ExtentKind, KeyRange, Keyspace, Position, Read, Result, Seqno,
    Snapshot, Store, TrackChanges,
};
use std::ops::Range;
use std::sync::Arc;

fn bytes(of: &[u8]) -> Bytes {
    Bytes::copy_from_slice(of)
}

/// See the module.
pub(crate) struct Recorder {
    inner: Arc<dyn Store>,
    notes: Notes<Call>,
}

impl Recorder {
    pub(crate) fn over(inner: Arc<dyn Store>) -> Self {
        Self { inner, notes: Notes::default() }
    }

    /// From now on.
    pub(crate) fn begin(&self) {
        self.take();
    }

    /// What was noted since the last call.
    pub(crate) fn take(&self) -> Vec<Call> {
        self.notes.take()
    }
}

/// The reads of a store and of a snapshot.
macro_rules! noted_reads {
    () => {
        fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
            self.notes.note(|| Call::Get(keyspace, bytes(key)));
            self.inner.get(keyspace, key)
        }

        fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
            self.notes.note(|| Call::MultiGet(keyspace, keys.iter().map(|key| bytes(key)).collect()));
            self.inner.multi_get(keyspace, keys)
        }

        fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
            let (inner, notes) = (self.inner.cursor(keyspace, range.clone())?, self.notes.clone());
            Ok(Box::new(Walk { inner, keyspace, range, moves: Vec::new(), notes }))
        }

        fn read_blocks(
            &self,
            keyspace: Keyspace,
            prefix: &[u8],
            first: u64,
            buffer: &mut [u8],
        ) -> Result<()> {
            self.notes.note(|| Call::ReadBlocks(keyspace, bytes(prefix), first, buffer.len()));
            self.inner.read_blocks(keyspace, prefix, first, buffer)
        }

        fn next_extent(
            &self,
            keyspace: Keyspace,
            prefix: &[u8],
            blocks: Range<u64>,
            kind: ExtentKind,
        ) -> Result<Option<Extent>> {
            self.notes.note(|| Call::NextExtent(keyspace, bytes(prefix), blocks.clone(), kind));
            self.inner.next_extent(keyspace, prefix, blocks, kind)
        }
    };
}

impl Read for Recorder {
    noted_reads!();
}

impl Store for Recorder {
    kvfs_store::pass_on!(inner: open_keyspace, keyspaces, position, capabilities, space, stats);

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(Pin { inner: self.inner.snapshot()?, notes: self.notes.clone() }))
    }

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.notes.note(|| Call::Apply(batch.clone(), durability));
        self.inner.apply(batch, durability)
    }

    fn sync(&self, position: Position) -> Result<()> {
        self.notes.note(|| Call::Sync);
        self.inner.sync(position)
    }

    fn changes(&self) -> Option<&dyn TrackChanges> {
        self.inner.changes()
    }
}

/// A snapshot, whose reads are noted as if they were of the newest state.
struct Pin {
    inner: Arc<dyn Snapshot>,
    notes: Notes<Call>,
}

impl Read for Pin {
    noted_reads!();
}

impl Snapshot for Pin {
    fn seqno(&self) -> Seqno {
        self.inner.seqno()
    }
}

/// A cursor.
struct Walk {
    inner: Box<dyn Cursor>,
    keyspace: Keyspace,
    range: KeyRange,
    moves: Vec<Move>,
    notes: Notes<Call>,
}

impl Walk {
    fn go(&mut self, go: Move) -> Result<()> {
        let gone = go.apply(&mut *self.inner);
        self.moves.push(go);
        gone
    }
}

impl Cursor for Walk {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.go(Move::Seek(bytes(key)))
    }

    fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        self.go(Move::SeekBack(bytes(key)))
    }

    fn first(&mut self) -> Result<()> {
        self.go(Move::First)
    }

    fn last(&mut self) -> Result<()> {
        self.go(Move::Last)
    }

    fn next(&mut self) -> Result<()> {
        self.go(Move::Next)
    }

    fn prev(&mut self) -> Result<()> {
        self.go(Move::Prev)
    }

    fn entry(&self) -> Option<(&[u8], &Bytes)> {
        self.inner.entry()
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        let moves = std::mem::take(&mut self.moves);
        self.notes.note(|| Call::Walk(self.keyspace, self.range.clone(), moves));
    }
}
