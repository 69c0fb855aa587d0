//! A walk over the pieces of a run, one after the other.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use crate::format::{RecordIter, RecordRef};
use crate::run::{Access, Piece};

/// Records of a run at or above a lower bound, both ways. Opens one piece at a time.
pub(crate) struct RunIter {
    pieces: Vec<Arc<Piece>>,
    lower_bound: Bytes,
    access: Access,
    /// Number and iterator of the piece that the walk is in.
    current: Option<(usize, Box<dyn RecordIter>)>,
}

impl RunIter {
    pub(crate) fn new(pieces: Vec<Arc<Piece>>, lower_bound: Bytes, access: Access) -> Self {
        Self { pieces, lower_bound, access, current: None }
    }

    fn enter(&mut self, piece: usize) -> &mut Box<dyn RecordIter> {
        let reuse = self.current.take().filter(|(number, _)| *number == piece);
        let entered = reuse.unwrap_or_else(|| (piece, self.pieces[piece].iter(self.access)));
        &mut self.current.insert(entered).1
    }

    /// From `piece` on, the first piece that has a record once `position` placed its iterator.
    fn forward_from(&mut self, mut piece: usize, key: &[u8], seqno: Seqno) -> Result<()> {
        while piece < self.pieces.len() {
            let iter = self.enter(piece);
            iter.seek(key, seqno)?;
            if iter.record().is_some() {
                return Ok(());
            }
            piece += 1;
        }
        self.current = None;
        Ok(())
    }

    /// From `piece` back, the last record of the first piece that has one at or above the bound.
    fn backward_from(&mut self, mut pieces: usize) -> Result<()> {
        while pieces > 0 {
            pieces -= 1;
            let iter = self.enter(pieces);
            iter.last()?;
            if iter.record().is_some() {
                self.drop_below_bound();
                return Ok(());
            }
        }
        self.current = None;
        Ok(())
    }

    /// Stands nowhere when the walk has gone below the bound.
    fn drop_below_bound(&mut self) {
        let below = |record: RecordRef<'_>| record.key < &self.lower_bound[..];
        if self.current.as_ref().and_then(|(_, iter)| iter.record()).is_some_and(below) {
            self.current = None;
        }
    }
}

impl RecordIter for RunIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        if key < &self.lower_bound[..] {
            return self.first();
        }
        let piece = self.pieces.partition_point(|piece| piece.desc().last_key[..] < *key);
        self.forward_from(piece, key, seqno)
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        let pieces = self.pieces.partition_point(|piece| piece.desc().first_key[..] < *key);
        let Some(last) = pieces.checked_sub(1) else {
            self.current = None;
            return Ok(());
        };
        let iter = self.enter(last);
        iter.seek_before(key)?;
        if iter.record().is_none() {
            return self.backward_from(last);
        }
        self.drop_below_bound();
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        let bound = self.lower_bound.clone();
        let piece = self.pieces.partition_point(|piece| piece.desc().last_key < bound);
        self.forward_from(piece, &bound, Seqno::MAX)
    }

    fn last(&mut self) -> Result<()> {
        self.backward_from(self.pieces.len())
    }

    fn next(&mut self) -> Result<()> {
        let Some((piece, iter)) = self.current.as_mut() else { return Ok(()) };
        iter.next()?;
        if iter.record().is_none() {
            let next = *piece + 1;
            return self.forward_from(next, &[], Seqno::MAX);
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        let Some((piece, iter)) = self.current.as_mut() else { return Ok(()) };
        iter.prev()?;
        if iter.record().is_none() {
            let pieces = *piece;
            return self.backward_from(pieces);
        }
        self.drop_below_bound();
        Ok(())
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        self.current.as_ref()?.1.record()
    }

    fn value(&mut self) -> Result<Bytes> {
        self.current.as_mut().map_or_else(|| Ok(Bytes::new()), |(_, iter)| iter.value())
    }
}
