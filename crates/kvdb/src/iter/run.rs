//! The records of a run, through its pieces.

use std::sync::Arc;

use kvfs_store::Result;

use super::{ConcatIter, Parts};
use crate::format::RecordIter;
use crate::table::{Access, LeavesOut, Piece, PieceIter};
use crate::version::Run;

/// The pieces of a run, as parts of one walk.
struct InPieces {
    pieces: Vec<Arc<Piece>>,
    access: Access,
    leaves_out: Option<LeavesOut>,
}

impl Parts for InPieces {
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
        Ok(self.pieces[at].iter_but(self.access, self.leaves_out.clone()))
    }
}

/// Walks the records of `run` at or above its lower bound; keeps its pieces alive.
pub(crate) fn run_records(run: &Run, access: Access) -> Box<dyn RecordIter> {
    run_records_but(run, access, None)
}

/// As [`run_records`], without those of the blocks that `leaves_out` holds for; they are not read.
pub(crate) fn run_records_but(
    run: &Run,
    access: Access,
    leaves_out: Option<LeavesOut>,
) -> Box<dyn RecordIter> {
    let pieces = InPieces { pieces: run.pieces.clone(), access, leaves_out };
    Box::new(ConcatIter::new(pieces, run.lower_bound.clone()))
}
