//! What is left of a piece of which a merge has taken the beginning: a new piece that stitches the rest, so
//! that the beginning need not wait for the piece's end to give its space back.
//!
//! Cost: the metadata of the rest; none of its data is read or written.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{KeyspaceKind, Result};

use super::output::OutputSpec;
use crate::table::{Index, Piece, PieceWriter};

/// The blocks of a piece from a key on.
pub(crate) struct Rest<'a> {
    piece: &'a Arc<Piece>,
    bound: &'a Bytes,
    index: Index,
}

impl<'a> Rest<'a> {
    /// Of `piece`, from `bound` on. Reads the index.
    pub(crate) fn of(piece: &'a Arc<Piece>, bound: &'a Bytes) -> Result<Self> {
        Ok(Self { piece, bound, index: piece.index()? })
    }

    /// What of the piece's data is not in it (bytes). O(index).
    pub(crate) fn bytes_gone(&self) -> u64 {
        let mut bytes = 0;
        for entry in self.index.tuple_entries().iter().take_while(|entry| entry.last_key < *self.bound) {
            bytes += u64::from(entry.extent.len);
        }
        for layer in self.index.layers() {
            let first = layer.find_key(self.bound).map_or(layer.len(), |(at, _)| at);
            bytes += (0..first).map(|at| u64::from(layer.region(at).extent().len)).sum::<u64>();
        }
        bytes
    }

    /// Writes it; `None` when nothing is left. The caller flushes the device.
    ///
    /// # Errors
    /// I/O errors and `Full`; nothing is taken then.
    pub(crate) fn write(&self, spec: &OutputSpec) -> Result<Option<Arc<Piece>>> {
        let mut writer = spec.writer();
        match spec.kind {
            KeyspaceKind::Tuple => self.stitch_tuples(&mut writer)?,
            KeyspaceKind::Block => self.stitch_blocks(&mut writer)?,
        }
        for tombstone in self.piece.tombstones().clip(self.bound, None).list() {
            writer.add_tombstone(&tombstone.start, &tombstone.end, tombstone.seqno);
        }
        if writer.is_empty() {
            return Ok(None);
        }
        writer.finish().map(|(_, piece)| Some(piece))
    }

    fn stitch_tuples(&self, writer: &mut PieceWriter) -> Result<()> {
        let entries = self.index.tuple_entries();
        let first = entries.partition_point(|entry| entry.last_key < *self.bound);
        if first == entries.len() { Ok(()) } else { writer.stitch_tuples(self.piece, first..entries.len()) }
    }

    fn stitch_blocks(&self, writer: &mut PieceWriter) -> Result<()> {
        for (number, layer) in self.index.layers().iter().enumerate() {
            let Some((first, mut from)) = layer.find_key(self.bound) else { continue };
            for at in first..layer.len() {
                let region = layer.region(at);
                let begin = from.max(region.first);
                from = 0;
                if begin < region.end() {
                    let count = (region.end() - begin) as u32;
                    writer.stitch_region(number, self.piece, number, at, begin, count)?;
                }
            }
        }
        Ok(())
    }
}
