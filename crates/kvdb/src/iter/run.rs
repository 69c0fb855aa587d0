//! The records of a run, through its pieces.

use std::sync::Arc;

use kvfs_store::Result;

use super::{ConcatIter, Parts};
use crate::format::RecordIter;
use crate::table::{Access, Piece, PieceIter};
use crate::version::Run;

/// The pieces of a run, as parts of one walk.
struct Pieces {
    pieces: Vec<Arc<Piece>>,
    access: Access,
}

impl Parts for Pieces {
    type Walk = PieceIter;

    fn count(&self) -> usize {
        self.pieces.len()
    }

    fn first_key(&self, at: usize) -> &[u8] {
        &self.pieces[at].desc().first_key
    }

    fn last_key(&self, at: usize) -> &[u8] {
        &self.pieces[at].desc().last_key
    }

    fn open(&self, at: usize) -> Result<PieceIter> {
        Ok(self.pieces[at].iter(self.access))
    }
}

/// Walks the records of `run` at or above its lower bound; keeps its pieces alive.
pub(crate) fn run_records(run: &Run, access: Access) -> Box<dyn RecordIter> {
    let pieces = Pieces { pieces: run.pieces.clone(), access };
    Box::new(ConcatIter::new(pieces, run.lower_bound.clone()))
}
