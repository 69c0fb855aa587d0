//! A walk over the point records of a piece of either kind.
//!
//! An enum and not a trait object: a step of a scan asks it several times, and costs little more than that.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use super::Access;
use super::block_iter::BlockIter;
use super::piece::Piece;
use super::tuple_iter::{LeavesOut, TupleIter};
use crate::format::{RecordIter, RecordRef};

/// See [`Piece::iter`].
pub(crate) struct PieceIter(Records);

enum Records {
    Tuples(TupleIter),
    Blocks(BlockIter),
}

impl PieceIter {
    pub(super) fn tuples(piece: Arc<Piece>, access: Access, leaves_out: Option<LeavesOut>) -> Self {
        Self(Records::Tuples(TupleIter::new(piece, access, leaves_out)))
    }

    pub(super) fn blocks(piece: Arc<Piece>, access: Access) -> Self {
        Self(Records::Blocks(BlockIter::new(piece, access)))
    }
}

macro_rules! either {
    ($records:expr, $iter:ident => $do:expr) => {
        match $records {
            Records::Tuples($iter) => $do,
            Records::Blocks($iter) => $do,
        }
    };
}

impl RecordIter for PieceIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        either!(&mut self.0, iter => iter.seek(key, seqno))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        either!(&mut self.0, iter => iter.seek_before(key))
    }

    fn first(&mut self) -> Result<()> {
        either!(&mut self.0, iter => iter.first())
    }

    fn last(&mut self) -> Result<()> {
        either!(&mut self.0, iter => iter.last())
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        either!(&mut self.0, iter => iter.next())
    }

    fn prev(&mut self) -> Result<()> {
        either!(&mut self.0, iter => iter.prev())
    }

    #[inline]
    fn record(&self) -> Option<RecordRef<'_>> {
        either!(&self.0, iter => iter.record())
    }

    #[inline]
    fn value(&mut self) -> Result<Bytes> {
        either!(&mut self.0, iter => iter.value())
    }
}
