//! Changes in one piece. The index says which blocks and regions have any between the positions of a walk;
//! nothing else is read, and of regions nothing at all.

use kvfs_store::Result;

use super::piece::Piece;
use super::read_ahead::Direction;
use crate::format::{Layer, TupleCursor, TupleEntry};
use crate::memtable::{ChangeVisitor, ChangeWalk, block_key, first_block_at_or_after};

impl Piece {
    /// Takes `walk` through the piece, of which the keys at or above `bound` count.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub(crate) fn walk_changes(&self, walk: &mut ChangeWalk<impl ChangeVisitor>, bound: &[u8]) -> Result<()> {
        if !walk.concerns(self.seqno_min(), self.seqno_max()) {
            return Ok(());
        }
        walk.visit_tombstones(self.tombstones(), bound);
        let index = self.index()?;
        let entries = index.tuple_entries();
        let first = entries.partition_point(|entry| entry.last_key[..] < *walk.start(bound));
        let mut filtered = walk.one_key().map(<[u8]>::to_vec);
        for (at, entry) in entries.iter().enumerate().skip(first) {
            if walk.is_over() || walk.is_beyond(&entry.first_key) {
                break;
            }
            if !walk.concerns(entry.seqno_min, entry.seqno_max) {
                continue;
            }
            if filtered.take().is_some_and(|key| !self.metadata().passes_filter(&key)) {
                break;
            }
            self.walk_changed_records(entries, at, walk, bound)?;
        }
        for layer in index.layers() {
            walk_changed_blocks(layer, walk, bound);
        }
        Ok(())
    }

    fn walk_changed_records(
        &self,
        entries: &[TupleEntry],
        at: usize,
        walk: &mut ChangeWalk<impl ChangeVisitor>,
        bound: &[u8],
    ) -> Result<()> {
        let malformed = |error| self.malformed_block(&entries[at], error);
        let block = self.tuple_block(entries, at, Direction::Forward)?;
        let mut cursor = TupleCursor::new(block, entries[at].shift).map_err(malformed)?;
        cursor.seek(walk.start(bound), u64::MAX).map_err(malformed)?;
        while let Some(record) = cursor.record() {
            if walk.is_over() || walk.is_beyond(record.key) {
                break;
            }
            walk.visit(record.key, record.seqno, record.kind, || cursor.value());
            cursor.next().map_err(malformed)?;
        }
        Ok(())
    }
}

fn walk_changed_blocks(layer: &Layer, walk: &mut ChangeWalk<impl ChangeVisitor>, bound: &[u8]) {
    let Some((first, _)) = layer.find_key(walk.start(bound)) else { return };
    for index in first..layer.len() {
        let region = layer.region(index);
        let Some(from) = first_block_at_or_after(region.prefix, walk.start(bound)) else { continue };
        let from = from.max(region.first);
        if walk.is_over() || walk.is_beyond(&block_key(region.prefix, from)) {
            break;
        }
        let to = walk.end_block(region.prefix).unwrap_or(u64::MAX).max(from);
        for (block, span) in region.spans(from, to) {
            if walk.concerns(span.seqno, span.seqno) {
                let first = block_key(region.prefix, block);
                if walk.is_beyond(&first) {
                    return;
                }
                let last = block_key(region.prefix, block + u64::from(span.count) - 1);
                walk.visit_blocks((&first, &last), span.seqno);
            }
        }
    }
}
