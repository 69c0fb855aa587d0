//! What the manifest says in all: keyspaces, their runs and pieces, and where the journal begins.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use kvfs_store::{Compression, Isolation, KeyspaceKind, Result, Seqno, StoreError, TxnId};

use super::edit::{Edit, RunId, encode_add_piece};
use crate::format::{Member, PieceDesc, PieceId, ZoneUse};
use crate::journal::Lsn;
use crate::space::WrittenToFast;

/// The outcome of all edits so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ManifestState {
    /// Keyspaces by id.
    pub keyspaces: BTreeMap<u32, KeyspaceState>,
    /// Where recovery begins.
    pub journal_tail: Lsn,
    /// Every record at or below this is in runs.
    pub flushed_seqno: Seqno,
    /// Ids of runs and pieces below this are taken.
    pub next_id: u64,
    /// No transaction of a later opening has an id below this.
    pub next_txn: u64,
    /// The last commits of transactions whose records may have left the journal, by seqno.
    pub committed: BTreeMap<Seqno, TxnId>,
    /// Runs that wait for the commit of a transaction: with their keyspaces, in the order in which they came.
    pub prepared: BTreeMap<TxnId, Vec<(u32, RunState)>>,
    /// Whose they are.
    prepared_by: BTreeMap<(u32, RunId), TxnId>,
    /// Named snapshots.
    pub snapshots: BTreeMap<String, SnapshotState>,
    /// Checkpointed transactions; their runs are in `prepared`.
    pub checkpoints: BTreeMap<TxnId, CheckpointState>,
    /// Transactions that can be taken back, by their last seqnos.
    pub undo: BTreeMap<Seqno, UndoState>,
    /// The devices beside the first one, by their zones.
    pub members: Vec<MemberState>,
    /// The name of the policy by which blocks of files are placed, if one was chosen.
    pub placement: Option<String>,
    /// How much was written to fast devices, as far as there is a budget for it.
    pub written_to_fast: Option<WrittenToFast>,
}

/// A device beside the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemberState {
    /// Which, and where.
    pub member: Member,
    /// Whether anything new goes there.
    pub takes_new: bool,
}

/// A transaction that can be taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UndoState {
    /// Whose commit it was.
    pub txn: TxnId,
    /// The newest seqno that it has no part in.
    pub before: Seqno,
    /// When it was committed (nanoseconds since 1970).
    pub committed: u64,
    /// What was to be remembered of it.
    pub note: Bytes,
}

/// A checkpointed transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckpointState {
    /// The newest seqno that it sees of others.
    pub snapshot: Seqno,
    /// As begun.
    pub isolation: Isolation,
    /// Of the first checkpoint (nanoseconds since 1970).
    pub created: u64,
    /// Operations in its runs: their seqnos count from 1 to this.
    pub operations: u64,
    /// Batches that these came in.
    pub batches: u64,
    /// Keys and values in them (bytes).
    pub bytes_written: u64,
    /// Size of the runs (bytes).
    pub bytes_spilled: u64,
    /// What the transaction's user wants to know of it.
    pub owner: Bytes,
}

/// A named snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SnapshotState {
    /// The newest seqno that it sees.
    pub seqno: Seqno,
    /// When it was made (nanoseconds since 1970).
    pub created: u64,
}

/// Commits of transactions that the manifest remembers.
pub(crate) const COMMITTED_MAX: usize = 4096;

/// One keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyspaceState {
    /// Unique name.
    pub name: String,
    /// Layout of the values.
    pub kind: KeyspaceKind,
    /// How they are to be stored.
    pub compression: Compression,
    /// Newest first: by age, then id, both descending.
    pub runs: Vec<RunState>,
    /// Merges that have begun and not ended.
    pub merges: Vec<MergeState>,
}

/// How far a merge has come: what its inputs hold from their bounds on is still to be merged into the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MergeState {
    /// It has the age of the newest input.
    pub output: RunId,
    /// Newest first; those that are left.
    pub inputs: Vec<RunId>,
}

impl MergeState {
    /// Whether `run` is the output or an input.
    pub(crate) fn involves(&self, run: RunId) -> bool {
        self.output == run || self.inputs.contains(&run)
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunState {
    /// Identity.
    pub id: RunId,
    /// Greater is newer.
    pub age: Seqno,
    /// What the seqnos of its pieces count from; 0 but for runs that a transaction has spilled.
    pub base: Seqno,
    /// Keys below this count no longer.
    pub lower_bound: Bytes,
    /// By key, disjoint (one may end with the range tombstone end at which the next one begins).
    pub pieces: Vec<PieceDesc>,
}

impl ManifestState {
    /// Applies one edit.
    ///
    /// # Errors
    /// `Corrupt` when the edit contradicts the state, which is unchanged then.
    pub(crate) fn apply(&mut self, edit: &Edit) -> Result<()> {
        self.try_apply(edit)
            .map_err(|detail| StoreError::corrupt("the manifest", format!("{detail}: {edit:?}")))
    }

    fn try_apply(&mut self, edit: &Edit) -> Result<(), &'static str> {
        match edit {
            Edit::AddKeyspace { id, name, kind } => self.add_keyspace(*id, name, *kind),
            Edit::AddRun { keyspace, run, age } => self.add_run(*keyspace, RunState::new(*run, *age, 0)),
            Edit::AddAdopted { keyspace, run, age, base } => {
                self.add_run(*keyspace, RunState::new(*run, *age, *base))
            }
            Edit::AddPiece { keyspace, run, piece } => match self.prepared_run(*keyspace, *run) {
                Some(run) => run.add_piece(piece),
                None => self.keyspace(*keyspace)?.run(*run)?.add_piece(piece),
            },
            Edit::PrepareRun { txn, keyspace, run, age } => self.prepare(*txn, *keyspace, *run, *age),
            Edit::AdoptRuns { txn, base } => self.adopt(*txn, *base),
            Edit::DropPrepared { txn } => {
                let (runs, checkpoint) = (self.take_prepared(*txn), self.checkpoints.remove(txn));
                let is_known = runs.is_some() || checkpoint.is_some();
                is_known.then_some(()).ok_or("the transaction has prepared nothing")
            }
            Edit::TrimRun { keyspace, run, lower_bound } => {
                self.keyspace(*keyspace)?.run(*run)?.trim(lower_bound)
            }
            Edit::DropRun { keyspace, run } => self.keyspace(*keyspace)?.drop_run(*run),
            Edit::DropPiece { keyspace, run, piece } => {
                self.keyspace(*keyspace)?.run(*run)?.drop_piece(*piece)
            }
            Edit::RecordMerge { keyspace, output, inputs } => {
                self.keyspace(*keyspace)?.record_merge(*output, inputs)
            }
            Edit::JournalTail { lsn, seqno } => {
                if *lsn < self.journal_tail || *seqno < self.flushed_seqno {
                    return Err("the journal's tail goes back");
                }
                (self.journal_tail, self.flushed_seqno) = (*lsn, *seqno);
                Ok(())
            }
            Edit::NextId(id) => {
                if *id < self.next_id {
                    return Err("ids go back");
                }
                self.next_id = *id;
                Ok(())
            }
            Edit::NextTxn(txn) => {
                self.next_txn = *txn;
                Ok(())
            }
            Edit::Committed { txn, seqno } => {
                self.committed.insert(*seqno, *txn);
                if self.committed.len() > COMMITTED_MAX {
                    self.committed.pop_first();
                }
                Ok(())
            }
            Edit::AddSnapshot { name, seqno, created } => {
                self.add_snapshot(name, SnapshotState { seqno: *seqno, created: *created })
            }
            Edit::DropSnapshot { name } => {
                self.snapshots.remove(name).map(drop).ok_or("there is no such snapshot")
            }
            Edit::KeepUndo { txn, before, after, committed, note } => {
                if before >= after {
                    return Err("the transaction has no seqno");
                }
                let (txn, before, committed) = (*txn, *before, *committed);
                self.undo.insert(*after, UndoState { txn, before, committed, note: note.clone() });
                Ok(())
            }
            Edit::DropUndo { after } => {
                // It may have been let go before the edit that was to keep it.
                self.undo.remove(after);
                Ok(())
            }
            Edit::Checkpoint { txn, checkpoint } => {
                self.checkpoints.insert(*txn, checkpoint.clone());
                Ok(())
            }
            Edit::SetCompression { keyspace, compression } => {
                self.keyspace(*keyspace)?.compression = *compression;
                Ok(())
            }
            Edit::AddMember(_)
            | Edit::FillMember { .. }
            | Edit::DropMember { .. }
            | Edit::SetPlacement { .. }
            | Edit::NoteWritten(_) => self.apply_to_devices(edit),
        }
    }

    fn apply_to_devices(&mut self, edit: &Edit) -> Result<(), &'static str> {
        let at = |id: u32| {
            let at = self.members.iter().position(|known| known.member.id == id);
            at.ok_or("there is no such device")
        };
        match edit {
            Edit::AddMember(member) => {
                let overlaps = |other: &MemberState| {
                    other.member.id == member.id || other.member.end() > member.first_zone.0
                };
                if member.id == 0 || member.zones == 0 || self.members.iter().any(overlaps) {
                    return Err("the device has the place of another one");
                }
                self.members.push(MemberState { member: *member, takes_new: true });
            }
            Edit::FillMember { id, takes_new } => {
                let at = at(*id)?;
                self.members[at].takes_new = *takes_new;
            }
            Edit::DropMember { id } => {
                let at = at(*id)?;
                self.members.remove(at);
            }
            Edit::SetPlacement { name } => self.placement = Some(name.clone()),
            Edit::NoteWritten(written) => self.written_to_fast = Some(written.clone()),
            _ => return Err("the edit is not about devices"),
        }
        Ok(())
    }

    fn add_snapshot(&mut self, name: &str, snapshot: SnapshotState) -> Result<(), &'static str> {
        if self.snapshots.contains_key(name) {
            return Err("the snapshot exists already");
        }
        self.snapshots.insert(name.to_owned(), snapshot);
        Ok(())
    }

    fn add_keyspace(&mut self, id: u32, name: &str, kind: KeyspaceKind) -> Result<(), &'static str> {
        if self.keyspaces.contains_key(&id) || self.keyspaces.values().any(|other| other.name == name) {
            return Err("the keyspace exists already");
        }
        self.keyspaces.insert(
            id,
            KeyspaceState {
                name: name.to_owned(),
                kind,
                compression: Compression::None,
                runs: Vec::new(),
                merges: Vec::new(),
            },
        );
        Ok(())
    }

    fn add_run(&mut self, keyspace: u32, run: RunState) -> Result<(), &'static str> {
        if self.prepared_by.contains_key(&(keyspace, run.id)) {
            return Err("the run exists already");
        }
        self.keyspace(keyspace)?.add_run(run)
    }

    fn prepare(&mut self, txn: TxnId, keyspace: u32, run: RunId, age: Seqno) -> Result<(), &'static str> {
        let exists = self.prepared_by.contains_key(&(keyspace, run));
        if exists || self.keyspace(keyspace)?.run(run).is_ok() {
            return Err("the run exists already");
        }
        self.prepared_by.insert((keyspace, run), txn);
        self.prepared.entry(txn).or_default().push((keyspace, RunState::new(run, age, 0)));
        Ok(())
    }

    fn prepared_run(&mut self, keyspace: u32, id: RunId) -> Option<&mut RunState> {
        let runs = self.prepared.get_mut(self.prepared_by.get(&(keyspace, id))?)?;
        // Pieces come right behind their run, as a rule.
        runs.iter_mut().rev().find(|(of, run)| (*of, run.id) == (keyspace, id)).map(|(_, run)| run)
    }

    /// The runs of `txn`, which are prepared no more.
    pub(crate) fn take_prepared(&mut self, txn: TxnId) -> Option<Vec<(u32, RunState)>> {
        let runs = self.prepared.remove(&txn)?;
        for (keyspace, run) in &runs {
            self.prepared_by.remove(&(*keyspace, run.id));
        }
        Some(runs)
    }

    fn adopt(&mut self, txn: TxnId, base: Seqno) -> Result<(), &'static str> {
        let runs = self.prepared.get(&txn).ok_or("the transaction has prepared nothing")?;
        if runs.iter().any(|(_, run)| run.age.checked_add(base).is_none()) {
            return Err("a seqno overflows");
        }
        for (keyspace, run) in self.take_prepared(txn).into_iter().flatten() {
            let age = run.age + base;
            self.keyspace(keyspace)?.add_run(RunState { age, base, ..run })?;
        }
        self.checkpoints.remove(&txn);
        Ok(())
    }

    fn keyspace(&mut self, id: u32) -> Result<&mut KeyspaceState, &'static str> {
        self.keyspaces.get_mut(&id).ok_or("there is no such keyspace")
    }

    /// Everything that pieces hold in zones.
    pub(crate) fn zone_uses(&self) -> impl Iterator<Item = &ZoneUse> {
        let runs = self.keyspaces.values().flat_map(|keyspace| &keyspace.runs);
        let prepared = self.prepared.values().flatten().map(|(_, run)| run);
        runs.chain(prepared).flat_map(|run| &run.pieces).flat_map(|piece| &piece.zones)
    }

    /// Positions that are read at: named snapshots, transactions that can be taken back, checkpoints.
    pub(crate) fn positions_read(&self) -> BTreeSet<Seqno> {
        let named = self.snapshots.values().map(|snapshot| snapshot.seqno);
        let undo = self.undo.iter().flat_map(|(&after, undo)| [undo.before, after]);
        let checkpoints = self.checkpoints.values().map(|saved| saved.snapshot);
        named.chain(undo).chain(checkpoints).collect()
    }

    /// Calls `each` with the encoded edits that lead from an empty state to this one, in order.
    pub(super) fn for_each_edit(&self, mut each: impl FnMut(&[u8])) {
        let mut buf = Vec::new();
        let mut give = |encode: &dyn Fn(&mut Vec<u8>)| {
            buf.clear();
            encode(&mut buf);
            each(&buf);
        };
        for &MemberState { member, takes_new } in &self.members {
            give(&|buf| Edit::AddMember(member).encode(buf));
            if !takes_new {
                give(&|buf| Edit::FillMember { id: member.id, takes_new }.encode(buf));
            }
        }
        if let Some(name) = &self.placement {
            give(&|buf| Edit::SetPlacement { name: name.clone() }.encode(buf));
        }
        if let Some(written) = &self.written_to_fast {
            give(&|buf| Edit::NoteWritten(written.clone()).encode(buf));
        }
        for (&id, keyspace) in &self.keyspaces {
            let (name, kind) = (keyspace.name.clone(), keyspace.kind);
            give(&|buf| Edit::AddKeyspace { id, name: name.clone(), kind }.encode(buf));
            let compression = keyspace.compression;
            if compression != Compression::None {
                give(&|buf| Edit::SetCompression { keyspace: id, compression }.encode(buf));
            }
            for run in &keyspace.runs {
                let RunState { id: run_id, age, base, .. } = *run;
                give(&|buf| match base {
                    0 => Edit::AddRun { keyspace: id, run: run_id, age }.encode(buf),
                    _ => Edit::AddAdopted { keyspace: id, run: run_id, age, base }.encode(buf),
                });
                if !run.lower_bound.is_empty() {
                    let lower_bound = &run.lower_bound;
                    give(&|buf| {
                        Edit::TrimRun { keyspace: id, run: run.id, lower_bound: lower_bound.clone() }
                            .encode(buf);
                    });
                }
                for piece in &run.pieces {
                    give(&|buf| encode_add_piece(id, run.id, piece, buf));
                }
            }
            for MergeState { output, inputs } in &keyspace.merges {
                let (output, inputs) = (*output, inputs.clone());
                give(&|buf| Edit::RecordMerge { keyspace: id, output, inputs: inputs.clone() }.encode(buf));
            }
        }
        for (&txn, runs) in &self.prepared {
            for &(keyspace, RunState { id: run, age, ref pieces, .. }) in runs {
                give(&|buf| Edit::PrepareRun { txn, keyspace, run, age }.encode(buf));
                for piece in pieces {
                    give(&|buf| encode_add_piece(keyspace, run, piece, buf));
                }
            }
        }
        give(&|buf| Edit::JournalTail { lsn: self.journal_tail, seqno: self.flushed_seqno }.encode(buf));
        give(&|buf| Edit::NextId(self.next_id).encode(buf));
        give(&|buf| Edit::NextTxn(self.next_txn).encode(buf));
        for (&seqno, &txn) in &self.committed {
            give(&|buf| Edit::Committed { txn, seqno }.encode(buf));
        }
        for (name, &SnapshotState { seqno, created }) in &self.snapshots {
            give(&|buf| Edit::AddSnapshot { name: name.clone(), seqno, created }.encode(buf));
        }
        for (&after, undo) in &self.undo {
            give(&|buf| undo.edit(after).encode(buf));
        }
        for (&txn, checkpoint) in &self.checkpoints {
            give(&|buf| Edit::Checkpoint { txn, checkpoint: checkpoint.clone() }.encode(buf));
        }
    }
}

impl UndoState {
    /// The edit that keeps it; `after` is its last seqno.
    pub(crate) fn edit(&self, after: Seqno) -> Edit {
        let Self { txn, before, committed, ref note } = *self;
        Edit::KeepUndo { txn, before, after, committed, note: note.clone() }
    }
}

impl KeyspaceState {
    fn add_run(&mut self, run: RunState) -> Result<(), &'static str> {
        if self.runs.iter().any(|other| other.id == run.id) {
            return Err("the run exists already");
        }
        let at = self.runs.partition_point(|other| (other.age, other.id) > (run.age, run.id));
        self.runs.insert(at, run);
        Ok(())
    }

    fn run(&mut self, id: RunId) -> Result<&mut RunState, &'static str> {
        self.runs.iter_mut().find(|run| run.id == id).ok_or("there is no such run")
    }

    fn drop_run(&mut self, id: RunId) -> Result<(), &'static str> {
        let at = self.runs.iter().position(|run| run.id == id).ok_or("there is no such run")?;
        self.runs.remove(at);
        for merge in &mut self.merges {
            merge.inputs.retain(|input| *input != id);
        }
        self.merges.retain(|merge| merge.output != id && !merge.inputs.is_empty());
        Ok(())
    }

    fn record_merge(&mut self, output: RunId, inputs: &[RunId]) -> Result<(), &'static str> {
        self.merges.retain(|merge| merge.output != output);
        if inputs.is_empty() {
            return Ok(());
        }
        let is_there = |id: &RunId| self.runs.iter().any(|run| run.id == *id);
        let is_merged = |id: &RunId| self.merges.iter().any(|merge| merge.involves(*id));
        let mut all = inputs.iter().chain([&output]);
        if inputs.contains(&output) || !all.clone().all(is_there) || all.any(is_merged) {
            return Err("a merge has runs that are not there, or in another one");
        }
        self.merges.push(MergeState { output, inputs: inputs.to_vec() });
        Ok(())
    }
}

impl RunState {
    fn new(id: RunId, age: Seqno, base: Seqno) -> Self {
        Self { id, age, base, lower_bound: Bytes::new(), pieces: Vec::new() }
    }

    fn add_piece(&mut self, piece: &PieceDesc) -> Result<(), &'static str> {
        if piece.first_key > piece.last_key || piece.seqno_min > piece.seqno_max {
            return Err("the piece's bounds are reversed");
        }
        if !piece.zones.is_sorted_by(|one, next| one.zone < next.zone) {
            return Err("the piece's zones are not in order");
        }
        let at = self.pieces.partition_point(|other| other.first_key < piece.first_key);
        let (before, after) = self.pieces.split_at(at);
        if before.last().is_some_and(|other| other.last_key > piece.first_key)
            || after
                .first()
                .is_some_and(|other| other.first_key < piece.last_key || other.first_key == piece.first_key)
        {
            return Err("the piece overlaps another one of its run");
        }
        self.pieces.insert(at, piece.clone());
        Ok(())
    }

    fn trim(&mut self, lower_bound: &Bytes) -> Result<(), &'static str> {
        if *lower_bound < self.lower_bound {
            return Err("the lower bound of a run goes back");
        }
        self.lower_bound = lower_bound.clone();
        let gone = self.pieces.partition_point(|piece| piece.last_key < *lower_bound);
        self.pieces.drain(..gone);
        Ok(())
    }

    fn drop_piece(&mut self, id: PieceId) -> Result<(), &'static str> {
        let at = self.pieces.iter().position(|piece| piece.id == id).ok_or("there is no such piece")?;
        self.pieces.remove(at);
        Ok(())
    }
}
