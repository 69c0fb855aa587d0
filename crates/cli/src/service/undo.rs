//! Requests about taking committed transactions back.

mod rights;

use std::time::Duration;

use kvfs_fs::{
    Area, BeginOptions, FsError, Isolation, Obstacle, Owner, Restored, Selection, TakenBack, TxnId, Undo,
    owner_of_note, undo_points,
};
use kvfs_service::{Caller, ErrorKind, Transactions};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{StoreError, Transactions as _, TxnOutcome, UndoHistory, UndoPoint};

use super::{Service, change_line, page_of, shown_to};
use crate::control::{CommittedLine, ObstacleLine, PlaceLine, Response, SelectionLine, UndoRequest};
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;
use crate::units::human_duration;

/// An open transaction that is in the way is waited for so long, as by a restore.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);

/// Most obstacles that an answer names.
const OBSTACLES_MAX: usize = 1000;

impl Service {
    pub(super) fn answer_undo(
        &self,
        store: &OpenStore,
        caller: &Caller,
        request: UndoRequest,
    ) -> Result<Response> {
        let transactions = self.transactions()?;
        match request {
            UndoRequest::List => Ok(store.committed(caller)),
            UndoRequest::Diff { id, from, limit } => {
                let undo = store.open_undo(caller, TxnId(id))?;
                Ok(page_of(&shown_to(caller, undo.before(), undo.diff()?)?, from, limit))
            }
            UndoRequest::Check { id, selection } => {
                let undo = store.open_undo(caller, TxnId(id))?;
                let selection = selected(caller, selection);
                store.check_rights(caller, &undo, &selection)?;
                let view = store.fs.begin(&undoing(caller, id))?;
                let obstacles = undo.obstacles(&view, &selection)?;
                Ok(if obstacles.is_empty() { Response::Done } else { refused(&obstacles) })
            }
            UndoRequest::TakeBack { id, selection } => {
                let undo = store.open_undo(caller, TxnId(id))?;
                let selection = selected(caller, selection);
                store.check_rights(caller, &undo, &selection)?;
                let response = take_back(transactions, caller, id, &undo, &selection)?;
                tracing::info!(id, refused = matches!(response, Response::Refused { .. }), "undo");
                Ok(response)
            }
        }
    }
}

impl OpenStore {
    /// Those that `caller` may take back.
    fn committed(&self, caller: &Caller) -> Response {
        let points = undo_points(&**self.fs.store()).into_iter();
        let lines = points.filter(|(_, owner)| caller.may_act_for(owner.uid)).map(|(point, owner)| {
            let bytes_kept = self.db.undo_bytes(point.txn);
            CommittedLine {
                // One that goes just now holds nothing any more.
                bytes_kept: bytes_kept.unwrap_or(0),
                operations: point.after.0 - point.before.0,
                ..committed_line(&point, owner)
            }
        });
        let lines = lines.collect();
        let (count_max, age_max) = self.undo;
        Response::Committed { now: SystemClock::new().wall(), count_max: count_max as u64, age_max, lines }
    }

    /// The states before and after a transaction of the caller's.
    fn open_undo(&self, caller: &Caller, id: TxnId) -> Result<Undo> {
        let undo = match Undo::open(&self.fs, id) {
            Err(FsError::Store(error)) if matches!(*error, StoreError::NotKept(_)) => {
                return Err(self.not_kept(id));
            }
            undo => undo?,
        };
        let points = undo_points(&**self.fs.store());
        let (_, owner) =
            points.into_iter().find(|(point, _)| point.txn == id).ok_or_else(|| self.not_kept(id))?;
        if caller.may_act_for(owner.uid) {
            return Ok(undo);
        }
        let only = format!("transaction {id} belonged to user {}; only that user and root may", owner.uid);
        Err(CliError::new(Code::Denied, only))
    }

    /// Refuses a user that could not do by hand what taking the transaction back does.
    fn check_rights(&self, caller: &Caller, undo: &Undo, selection: &Selection) -> Result<()> {
        if caller.is_master() {
            return Ok(());
        }
        let mut changes = undo.diff()?;
        changes.retain(|change| {
            let places = std::iter::once(&change.place).chain(&change.from);
            places.into_iter().any(|place| selection.selects(place, change.file.is_none()))
        });
        rights::check(&self.fs, undo.before(), caller, &changes)
    }

    fn not_kept(&self, id: TxnId) -> CliError {
        let (count, age) = self.undo;
        let kept = if count == 0 {
            "nothing is kept for that here (mount option undo_count=0)".to_owned()
        } else {
            let age = human_duration(age);
            format!(
                "kept are the last {count} that wrote something, for {age} (mount options undo_count, undo_age), \
                 while there is space; `kvfs txn list --committed` shows them"
            )
        };
        let message = match self.db.txn_outcome(id) {
            TxnOutcome::Open => format!("transaction {id} is open; `kvfs txn abort {id}` drops it"),
            TxnOutcome::Committed(_) => {
                format!("transaction {id} can't be taken back: what was there before it is not kept; {kept}")
            }
            TxnOutcome::Unknown => format!("no transaction {id} that was committed is known; {kept}"),
        };
        CliError::new(Code::Failed, message)
    }
}

/// How the transaction begins that takes back another one.
fn undoing(caller: &Caller, id: u64) -> BeginOptions {
    BeginOptions {
        isolation: Isolation::Snapshot,
        priority: 0,
        timeout: None,
        idle_max: None,
        lock_wait_max: Some(LOCK_WAIT_MAX),
        owner: Owner { uid: caller.uid, pid: caller.pid, name: format!("txn undo {id}") },
    }
}

/// Takes back the transaction in one of its own.
fn take_back(
    transactions: &Transactions,
    caller: &Caller,
    id: u64,
    undo: &Undo,
    selection: &Selection,
) -> Result<Response> {
    let mut obstacles = Vec::new();
    let mut done = Restored::default();
    let committed =
        transactions.carry_out(&undoing(caller, id), |view| match undo.take_back(view, selection)? {
            TakenBack::Done(restored) => {
                done = restored;
                Ok(())
            }
            TakenBack::Refused(found) => {
                obstacles = found;
                Err(FsError::NotPermitted("something was built on it"))
            }
        });
    match committed {
        Ok(txn) => {
            let Restored { names, inodes, keys } = done;
            Ok(Response::Restored { txn: txn.0, names, inodes, keys })
        }
        Err(_) if !obstacles.is_empty() => Ok(refused(&obstacles)),
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            Err(CliError::new(Code::NoSpace, format!("{error}; nothing was taken back")))
        }
        Err(error) => Err(error.into()),
    }
}

/// The same for the file system. By force only root changes files of others.
pub(super) fn selected(caller: &Caller, selection: SelectionLine) -> Selection {
    let areas = |places: Vec<PlaceLine>| places.into_iter().map(area).collect();
    let SelectionLine { only, skip, force, keep } = selection;
    Selection {
        only: areas(only),
        skip: areas(skip),
        force: areas(force),
        keep: areas(keep),
        uid: Some(caller.uid).filter(|&uid| uid != 0),
    }
}

fn area(place: PlaceLine) -> Area {
    match place {
        PlaceLine::All => Area::All,
        PlaceLine::Path(path) => Area::path(&path),
        PlaceLine::Keys(prefix) => Area::Keys(prefix),
    }
}

fn refused(obstacles: &[Obstacle]) -> Response {
    let line = |obstacle: &Obstacle| ObstacleLine {
        change: change_line(&obstacle.what),
        by: obstacle.by.as_ref().map(|point| committed_line(point, owner_of_note(&point.note))),
    };
    let lines = obstacles.iter().take(OBSTACLES_MAX).map(line).collect();
    Response::Refused { now: SystemClock::new().wall(), count: obstacles.len() as u64, lines }
}

fn committed_line(point: &UndoPoint, owner: Owner) -> CommittedLine {
    CommittedLine {
        id: point.txn.0,
        uid: owner.uid,
        pid: owner.pid,
        label: owner.name,
        committed: point.committed,
        operations: 0,
        bytes_kept: 0,
    }
}
