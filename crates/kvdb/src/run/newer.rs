//! Changes after a snapshot in one piece. The index says which blocks and regions are newer; nothing else is
//! looked at.

use kvfs_store::Result;

use super::piece::Piece;
use super::read_ahead::Direction;
use crate::format::{Layer, RecordKind, TupleCursor, TupleEntry};
use crate::memtable::{NewerSearch, block_key, first_block_at_or_after};

impl Piece {
    /// Takes `search` through the piece, of which the keys at or above `bound` count.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn find_newer(&self, search: &mut NewerSearch<'_>, bound: &[u8]) -> Result<()> {
        if !search.concerns(self.seqno_max()) {
            return Ok(());
        }
        search.visit_tombstones(self.tombstones(), bound);
        let index = self.index()?;
        self.find_newer_tuple(index.tuple_entries(), search, bound)?;
        for layer in index.layers() {
            find_newer_block(layer, search, bound)?;
        }
        Ok(())
    }

    fn find_newer_tuple(
        &self,
        entries: &[TupleEntry],
        search: &mut NewerSearch<'_>,
        bound: &[u8],
    ) -> Result<()> {
        let first = entries.partition_point(|entry| entry.last_key[..] < *search.start(bound));
        let mut filter = search.one_key().map(<[u8]>::to_vec);
        for (at, entry) in entries.iter().enumerate().skip(first) {
            if search.is_over() || search.is_beyond(&entry.first_key) {
                break;
            }
            if !search.concerns(entry.seqno_max) {
                continue;
            }
            if filter.take().is_some_and(|key| !self.passes_filter(&key)) {
                break;
            }
            self.find_newer_record(entries, at, search, bound)?;
        }
        Ok(())
    }

    fn find_newer_record(
        &self,
        entries: &[TupleEntry],
        at: usize,
        search: &mut NewerSearch<'_>,
        bound: &[u8],
    ) -> Result<()> {
        let malformed = |error| self.malformed_block(&entries[at], error);
        let block = self.tuple_block(entries, at, Direction::Forward)?;
        let mut cursor = TupleCursor::new(block, entries[at].shift).map_err(malformed)?;
        cursor.seek(search.start(bound), u64::MAX).map_err(malformed)?;
        while let Some(record) = cursor.record() {
            if search.is_over() || search.is_beyond(record.key) {
                break;
            }
            search.visit(record.key, record.seqno, record.kind, || {
                Ok::<_, kvfs_store::StoreError>(cursor.value())
            })?;
            cursor.next().map_err(malformed)?;
        }
        Ok(())
    }
}

fn find_newer_block(layer: &Layer, search: &mut NewerSearch<'_>, bound: &[u8]) -> Result<()> {
    let Some((first, _)) = layer.find_key(search.start(bound)) else { return Ok(()) };
    for index in first..layer.len() {
        let region = layer.region(index);
        let Some(from) = first_block_at_or_after(region.prefix, search.start(bound)) else { continue };
        let from = from.max(region.first);
        if search.is_over() || search.is_beyond(&block_key(region.prefix, from)) {
            break;
        }
        let to = search.end_block(region.prefix).unwrap_or(u64::MAX).max(from);
        for (block, span) in region.spans(from, to) {
            if search.concerns(span.seqno) {
                let key = block_key(region.prefix, block);
                search.visit(&key, span.seqno, RecordKind::Put, || {
                    Ok::<_, kvfs_store::StoreError>(<_>::default())
                })?;
            }
        }
    }
    Ok(())
}
