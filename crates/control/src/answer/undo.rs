//! Requests about taking committed transactions back.

use kvfs_fs::TxnId;
use kvfs_service::{Caller, Compared, Result, ServedStore, UndoLimits, UndoObstacle, Undone};
use kvfs_store::clock::{Clock, SystemClock};

use super::RequestHandler;
use super::changes::{change_line, restored};
use crate::protocol::{ObstacleLine, Response, UndoRequest};

/// Most obstacles that an answer names.
const OBSTACLES_MAX: usize = 1000;

impl RequestHandler {
    pub(super) fn answer_undo(
        &self,
        store: &ServedStore<'_>,
        caller: &Caller,
        request: UndoRequest,
    ) -> Result<Response> {
        match request {
            UndoRequest::List => {
                let lines = store.committed(caller)?;
                let UndoLimits { count_max, age_max } = store.undo;
                let now = SystemClock::new().wall();
                Ok(Response::Committed { now, count_max: count_max as u64, age_max, lines })
            }
            UndoRequest::Diff { id, from, limit } => {
                let begin = || store.undo_diff(caller, TxnId(id));
                self.answer_comparison(caller, Compared::Undo(id), (from, limit), begin)
            }
            UndoRequest::Check { id, selection } => {
                let obstacles = store.undo_obstacles(caller, TxnId(id), selection)?;
                Ok(if obstacles.is_empty() { Response::Done } else { refused(obstacles) })
            }
            UndoRequest::TakeBack { id, selection } => {
                Ok(match store.take_back(caller, TxnId(id), selection)? {
                    Undone::Done(txn, done) => restored(txn, done),
                    Undone::Refused(obstacles) => refused(obstacles),
                })
            }
        }
    }
}

fn refused(obstacles: Vec<UndoObstacle>) -> Response {
    let count = obstacles.len() as u64;
    let line = |UndoObstacle { what, by }: UndoObstacle| ObstacleLine { change: change_line(&what), by };
    let lines = obstacles.into_iter().take(OBSTACLES_MAX).map(line).collect();
    Response::Refused { now: SystemClock::new().wall(), count, lines }
}
