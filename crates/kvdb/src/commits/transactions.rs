//! The transactions of a store: ids, which are open, what became of the last ones.
//!
//! Ids are reserved in groups by an edit of the manifest, so none is given twice, also not after a crash; a
//! clean close gives the rest of the group back. A commit's record in the journal names its transaction; when
//! the record retires, the manifest takes the name over in the same edit.
//!
//! Thread safety: shared; the lock of the ids is held across their reservation, the other one never across
//! I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_locks::{Mutex, class};
use kvfs_store::{Position, Result, Seqno, StoreError, TxnId, TxnOutcome};

use crate::commit::PrivateRuns;
use crate::live::LiveSet;
use crate::version::{COMMITTED_MAX, Edit};

/// Ids that one edit of the manifest reserves: at first, and at most. All transactions that begin wait for
/// it, so a store in which many do reserves more.
const IDS_RESERVED: Range<u64> = 1 << 10..1 << 16;

struct Ids {
    /// The first one of this opening.
    first: u64,
    next: u64,
    /// Ids below are reserved.
    end: u64,
    is_closed: bool,
}

#[derive(Default)]
struct Known {
    /// Ids that have neither been committed nor aborted.
    open: BTreeSet<TxnId>,
    committed: BTreeMap<TxnId, Seqno>,
    /// Those that wrote something, oldest first.
    by_seqno: BTreeMap<Seqno, TxnId>,
    /// Those that wrote nothing, in the order of their ends. Bounded by themselves: however many there are,
    /// they push out no other one.
    empty: VecDeque<TxnId>,
    /// Those of which only the journal knows, also where later ones have pushed them out of the others: a
    /// crash may take the later ones back.
    unsaved: BTreeMap<Seqno, TxnId>,
}

impl Known {
    fn remember(&mut self, id: TxnId, seqno: Seqno) {
        self.committed.insert(id, seqno);
        self.by_seqno.insert(seqno, id);
        if self.by_seqno.len() > COMMITTED_MAX
            && let Some((_, oldest)) = self.by_seqno.pop_first()
        {
            self.committed.remove(&oldest);
        }
    }

    fn remember_empty(&mut self, id: TxnId, position: Position) {
        self.committed.insert(id, position.0);
        self.empty.push_back(id);
        if self.empty.len() > COMMITTED_MAX
            && let Some(oldest) = self.empty.pop_front()
        {
            self.committed.remove(&oldest);
        }
    }
}

/// All transactions.
pub(crate) struct Transactions {
    ids: Mutex<Ids, class::KvdbCommitsTransactionsIds>,
    known: Mutex<Known, class::KvdbCommitsTransactionsKnown>,
    /// Prepared runs of transactions that have ended, which the manifest still names.
    kept: Mutex<Vec<(TxnId, PrivateRuns)>, class::KvdbCommitsTransactionsKept>,
    /// What the private write sets in memory will take on the device (bytes).
    bytes_private: AtomicU64,
    /// Memory of the private write sets (bytes).
    bytes_memory: AtomicU64,
    spills: AtomicU64,
    bytes_spilled: AtomicU64,
    commits: AtomicU64,
    aborts: AtomicU64,
    conflicts: AtomicU64,
}

impl Transactions {
    /// As the manifest and the journal tell.
    pub(crate) fn new(
        next_id: u64,
        saved: &BTreeMap<Seqno, TxnId>,
        replayed: impl IntoIterator<Item = (TxnId, Seqno)>,
    ) -> Self {
        let mut known = Known::default();
        for (&seqno, &id) in saved {
            known.remember(id, seqno);
        }
        for (id, seqno) in replayed {
            known.remember(id, seqno);
            known.unsaved.insert(seqno, id);
        }
        let next = next_id.max(1);
        Self {
            ids: Mutex::new(Ids { first: next, next, end: next, is_closed: false }),
            known: Mutex::new(known),
            kept: Mutex::default(),
            bytes_private: AtomicU64::new(0),
            bytes_memory: AtomicU64::new(0),
            spills: AtomicU64::new(0),
            bytes_spilled: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            aborts: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
        }
    }

    pub(crate) fn outcome(&self, id: TxnId) -> TxnOutcome {
        let known = self.known.lock();
        if known.open.contains(&id) {
            return TxnOutcome::Open;
        }
        known.committed.get(&id).map_or(TxnOutcome::Unknown, |&seqno| TxnOutcome::Committed(Position(seqno)))
    }

    /// `id` was committed up to `seqno`, by a record in the journal.
    pub(crate) fn note_commit(&self, id: TxnId, seqno: Seqno) {
        let mut known = self.known.lock();
        known.open.remove(&id);
        known.remember(id, seqno);
        known.unsaved.insert(seqno, id);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    /// `id` was committed without having written anything.
    pub(crate) fn note_empty_commit(&self, id: TxnId, position: Position) {
        let mut known = self.known.lock();
        known.open.remove(&id);
        known.remember_empty(id, position);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_abort(&self, id: TxnId) {
        self.known.lock().open.remove(&id);
        self.aborts.fetch_add(1, Ordering::Relaxed);
    }

    /// `id` is open again.
    pub(crate) fn note_resumed(&self, id: TxnId) {
        self.known.lock().open.insert(id);
    }

    /// No handle of `id` is left, which has a checkpoint.
    pub(crate) fn note_suspended(&self, id: TxnId) {
        self.known.lock().open.remove(&id);
    }

    pub(crate) fn note_conflict(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    /// The commits whose journal records retire with everything up to `seqno`: the last ones, as many as are
    /// remembered.
    pub(crate) fn retiring(&self, seqno: Seqno) -> Vec<Edit> {
        let known = self.known.lock();
        let newest_first = known.unsaved.range(..=seqno).rev().take(COMMITTED_MAX);
        let mut edits: Vec<_> = newest_first.map(|(&seqno, &txn)| Edit::Committed { txn, seqno }).collect();
        edits.reverse();
        edits
    }

    /// The manifest knows the commits up to `seqno`.
    pub(crate) fn note_saved(&self, seqno: Seqno) {
        let mut known = self.known.lock();
        known.unsaved = known.unsaved.split_off(&(seqno + 1));
    }

    /// `runs` stay until [`Self::take_kept`].
    pub(crate) fn keep_dropped(&self, txn: TxnId, runs: PrivateRuns) {
        self.kept.lock().push((txn, runs));
    }

    pub(crate) fn take_kept(&self) -> Vec<(TxnId, PrivateRuns)> {
        std::mem::take(&mut *self.kept.lock())
    }

    /// A private write set has become another size: space and memory, before and now (bytes).
    pub(crate) fn resize_private(&self, before: (u64, u64), now: (u64, u64)) {
        // Wraps around where it became smaller.
        self.bytes_private.fetch_add(now.0.wrapping_sub(before.0), Ordering::AcqRel);
        self.bytes_memory.fetch_add(now.1.wrapping_sub(before.1), Ordering::AcqRel);
    }

    pub(crate) fn note_spill(&self, bytes: u64) {
        self.spills.fetch_add(1, Ordering::Relaxed);
        self.bytes_spilled.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Memory of all private write sets (bytes).
    pub(crate) fn bytes_memory(&self) -> u64 {
        self.bytes_memory.load(Ordering::Acquire)
    }

    /// What all private write sets in memory take on the device (bytes).
    pub(crate) fn bytes_private(&self) -> u64 {
        self.bytes_private.load(Ordering::Acquire)
    }

    /// Whether any transaction is open.
    pub(crate) fn has_open(&self) -> bool {
        !self.known.lock().open.is_empty()
    }

    /// Names and values.
    pub(crate) fn list(&self) -> [(&'static str, u64); 8] {
        [
            ("txn.open", self.known.lock().open.len() as u64),
            ("txn.commits", self.commits.load(Ordering::Relaxed)),
            ("txn.aborts", self.aborts.load(Ordering::Relaxed)),
            ("txn.conflicts", self.conflicts.load(Ordering::Relaxed)),
            ("txn.private_bytes", self.bytes_private()),
            ("txn.spills", self.spills.load(Ordering::Relaxed)),
            ("txn.spilled_bytes", self.bytes_spilled.load(Ordering::Relaxed)),
            ("txn.runs_kept", self.kept.lock().len() as u64),
        ]
    }
}

impl Transactions {
    /// An id for a transaction that is open from now on.
    pub(crate) fn open(&self, live: &LiveSet) -> Result<TxnId> {
        let mut ids = self.ids.lock();
        if ids.is_closed {
            return Err(StoreError::Failed { reason: "the store was closed".into() });
        }
        if ids.next == ids.end {
            let end = ids.end + (ids.next - ids.first).clamp(IDS_RESERVED.start, IDS_RESERVED.end);
            live.install(vec![Edit::NextTxn(end)], &[], &[], |view| view)?;
            ids.end = end;
        }
        let id = TxnId(ids.next);
        ids.next += 1;
        self.known.lock().open.insert(id);
        Ok(id)
    }

    /// No more transactions begin; ids that were reserved and not used are given back.
    pub(crate) fn close(&self, live: &LiveSet) -> Result<()> {
        let mut ids = self.ids.lock();
        ids.is_closed = true;
        if ids.next < ids.end {
            live.install(vec![Edit::NextTxn(ids.next)], &[], &[], |view| view)?;
            ids.end = ids.next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(seqno: Seqno) -> TxnOutcome {
        TxnOutcome::Committed(Position(seqno))
    }

    #[test]
    fn the_last_commits_are_remembered_and_each_retires_once() {
        let saved = BTreeMap::from([(10, TxnId(1))]);
        let transactions = Transactions::new(5, &saved, [(TxnId(3), 20)]);
        assert_eq!(
            [1, 2, 3].map(|id| transactions.outcome(TxnId(id))),
            [committed(10), TxnOutcome::Unknown, committed(20)]
        );
        transactions.note_commit(TxnId(4), 30);
        let edits = [20, 30].map(|seqno| Edit::Committed { txn: TxnId(seqno / 10 + 1), seqno });
        assert_eq!(transactions.retiring(30), edits);
        assert_eq!(transactions.retiring(29), edits[..1]);
        transactions.note_saved(29);
        assert_eq!(transactions.retiring(30), edits[1..]);
        for id in 0..COMMITTED_MAX as u64 {
            transactions.note_commit(TxnId(100 + id), 1000 + id);
        }
        assert_eq!(transactions.outcome(TxnId(3)), TxnOutcome::Unknown);
        assert_eq!(transactions.outcome(TxnId(100)), committed(1000));
    }

    #[test]
    fn flush_after_many_commits_names_the_last_ones_as_many_as_are_remembered() {
        let transactions = Transactions::new(1, &BTreeMap::new(), (1..10_000).map(|id| (TxnId(id), 10 * id)));
        (10_000..30_000).for_each(|id| transactions.note_commit(TxnId(id), 10 * id));
        // Those behind it may be lost by a crash.
        let last = 15_000;
        let ids = last - COMMITTED_MAX as u64 + 1..=last;
        let edits: Vec<_> = ids.map(|id| Edit::Committed { txn: TxnId(id), seqno: 10 * id }).collect();
        assert_eq!(transactions.retiring(10 * last), edits);
        transactions.note_saved(10 * last);
        assert_eq!(transactions.retiring(200_000).len(), COMMITTED_MAX);
        assert_eq!(transactions.retiring(10 * last), []);
    }

    #[test]
    fn commits_without_writes_take_no_unbounded_memory() {
        let transactions = Transactions::new(1, &BTreeMap::new(), []);
        for id in 1..10_000 {
            transactions.note_empty_commit(TxnId(id), Position(7));
        }
        assert_eq!(transactions.outcome(TxnId(9_999)), committed(7));
        assert!(transactions.known.lock().committed.len() <= 2 * COMMITTED_MAX);
    }

    #[test]
    fn commits_without_writes_push_out_no_other_ones() {
        let transactions = Transactions::new(1, &BTreeMap::new(), []);
        (1..=100).for_each(|id| transactions.note_commit(TxnId(id), 10 * id));
        let others = 1000..1000 + 3 * COMMITTED_MAX as u64;
        others.clone().for_each(|id| transactions.note_empty_commit(TxnId(id), Position(2000)));
        for id in 1..=100 {
            assert_eq!(transactions.outcome(TxnId(id)), committed(10 * id));
        }
        // An old one that ends late is among the last ones all the same.
        transactions.note_empty_commit(TxnId(500), Position(2000));
        transactions.note_empty_commit(TxnId(others.end), Position(2000));
        assert_eq!(transactions.outcome(TxnId(500)), committed(2000));
        assert_eq!(transactions.outcome(TxnId(others.start)), TxnOutcome::Unknown);
    }
}
