//! Changes between two positions in one piece. Blocks and regions of which nothing is newer than the older
//! position are not read; of regions nothing is.

use kvfs_store::Result;

use super::piece::Piece;
use super::read_ahead::Direction;
use crate::format::{Layer, TupleCursor, TupleEntry};
use crate::memtable::{ChangedSearch, block_key, first_block_at_or_after};

impl Piece {
    /// Takes `search` through the piece, of which the keys at or above `bound` count.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn find_changed(&self, search: &mut ChangedSearch, bound: &[u8]) -> Result<()> {
        if !search.concerns(self.seqno_min(), self.seqno_max()) {
            return Ok(());
        }
        search.add_tombstones(self.tombstones(), bound);
        search.begin_sequence();
        let index = self.index()?;
        let entries = index.tuple_entries();
        let first = entries.partition_point(|entry| entry.last_key[..] < *search.start(bound));
        for (at, entry) in entries.iter().enumerate().skip(first) {
            if search.is_beyond(&entry.first_key) {
                break;
            }
            if search.concerns(entry.seqno_min, entry.seqno_max) {
                self.find_changed_records(entries, at, search, bound)?;
            }
        }
        for layer in index.layers() {
            find_changed_blocks(layer, search, bound);
        }
        Ok(())
    }

    fn find_changed_records(
        &self,
        entries: &[TupleEntry],
        at: usize,
        search: &mut ChangedSearch,
        bound: &[u8],
    ) -> Result<()> {
        let malformed = |error| self.malformed_block(&entries[at], error);
        let block = self.tuple_block(entries, at, Direction::Forward)?;
        let mut cursor = TupleCursor::new(block, entries[at].shift).map_err(malformed)?;
        cursor.seek(search.start(bound), u64::MAX).map_err(malformed)?;
        while let Some(record) = cursor.record() {
            if search.is_beyond(record.key) {
                break;
            }
            if search.concerns(record.seqno, record.seqno) {
                search.add_key(record.key, bound);
            }
            cursor.next().map_err(malformed)?;
        }
        Ok(())
    }
}

fn find_changed_blocks(layer: &Layer, search: &mut ChangedSearch, bound: &[u8]) {
    let Some((first, _)) = layer.find_key(search.start(bound)) else { return };
    search.begin_sequence();
    for index in first..layer.len() {
        let region = layer.region(index);
        let Some(from) = first_block_at_or_after(region.prefix, search.start(bound)) else { continue };
        let from = from.max(region.first);
        if search.is_beyond(&block_key(region.prefix, from)) {
            break;
        }
        for (block, span) in region.spans(from, u64::MAX) {
            if search.concerns(span.seqno, span.seqno) {
                let first = block_key(region.prefix, block);
                if search.is_beyond(&first) {
                    return;
                }
                let last = block_key(region.prefix, block + u64::from(span.count) - 1);
                search.add(&first, &[&last[..], b"\0"].concat(), bound);
            }
        }
    }
}
