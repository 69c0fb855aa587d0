//! Committed transactions that can be taken back: for each of them two pins, on the positions before and
//! after its commit.
//!
//! A commit is *kept* while its writer still holds the guard of its layer: nothing of it, and nothing that
//! comes later, can be in a run before the guard goes, so every flush and merge that could lose one of the
//! two states finds the pins. The journal's record says what is to be remembered. When the record retires,
//! the manifest takes the transaction over in the same edit; it can be let go then only by another edit,
//! after which the pins go. So whatever a crash leaves, what an opening finds named has both states.
//!
//! Thread safety: one short lock. A thread that lets something go that the manifest names must hold the lock
//! of flushes, so that the edit that forgets can't come before the one that names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kvfs_locks::{Mutex, MutexGuard, class};
use kvfs_store::{
    BLOCK_BYTES, ExtentKind, KeyRange, Keyspace, KeyspaceKind, Position, Result, Seqno, StoreError, TxnId,
    UndoPoint,
};

use crate::commit::{SnapshotPin, SnapshotTracker};
use crate::history::History;
use crate::journal::CommitMark;
use crate::layers::Layers;
use crate::live::LiveSet;
use crate::live::keyspaces::Keyspaces;
use crate::memtable::split_block_key;
use crate::read::Reader;
use crate::read::changed::find_window;
use crate::runtime::Runtime;
use crate::version::{Edit, UndoState};

/// What was let go is cleared away by a pass of its own when it comes to this (bytes), or a sixteenth of the
/// capacity; smaller amounts wait for the merges that come anyway.
const RELEASED_BYTES_MAX: u64 = 64 << 20;

/// Whether the manifest names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saved {
    No,
    /// An edit that names it is under way.
    Perhaps,
    Yes,
}

/// A transaction that can be taken back.
struct Kept {
    txn: TxnId,
    /// Since 1970.
    committed: Duration,
    note: Bytes,
    before: SnapshotPin,
    after: SnapshotPin,
    saved: Saved,
    /// Size of its pre-images, once it was asked for (bytes).
    bytes: Option<u64>,
}

#[derive(Default)]
struct State {
    /// By their last seqnos.
    kept: BTreeMap<Seqno, Kept>,
    /// Those that cannot be taken back any more, and that the manifest still names.
    leaving: Vec<Kept>,
}

/// All that can be taken back.
pub(crate) struct Undo {
    runtime: Arc<Runtime>,
    live: Arc<LiveSet>,
    keyspaces: Arc<Keyspaces>,
    history: Arc<History>,
    reader: Arc<Reader>,
    /// One flush at a time, and no flush while the manifest is made to forget a transaction.
    flushing: Mutex<(), class::KvdbCommitsUndoFlushing>,
    count_max: usize,
    age_max: Duration,
    state: Mutex<State, class::KvdbCommitsUndoState>,
    /// Pre-images that were let go and not cleared away since (bytes).
    bytes_released: AtomicU64,
}

impl Kept {
    fn new(after: Seqno, state: UndoState, saved: Saved, tracker: &SnapshotTracker) -> Self {
        let UndoState { txn, before, committed, note } = state;
        let (before, after) = (tracker.pin(before), tracker.pin(after));
        Self { txn, committed: Duration::from_nanos(committed), note, before, after, saved, bytes: None }
    }

    fn state(&self) -> UndoState {
        let (txn, before, note) = (self.txn, self.before.seqno(), self.note.clone());
        UndoState { txn, before, committed: self.committed.as_nanos() as u64, note }
    }

    fn point(&self) -> UndoPoint {
        UndoPoint {
            txn: self.txn,
            before: Position(self.before.seqno()),
            after: Position(self.after.seqno()),
            committed: self.committed,
            note: self.note.clone(),
        }
    }
}

impl State {
    fn pop(&mut self) -> bool {
        let Some((_, kept)) = self.kept.pop_first() else { return false };
        // One that only the journal names comes back after a crash, with both states: nothing of it is in
        // runs.
        if kept.saved != Saved::No {
            self.leaving.push(kept);
        }
        true
    }
}

impl Undo {
    /// Whether there is anything to be given up.
    pub(crate) fn keeps_any(&self) -> bool {
        let state = self.state.lock();
        !state.kept.is_empty() || !state.leaving.is_empty()
    }

    /// As the manifest and the journal tell. Merges have not begun; the newest seqno is `last`.
    pub(crate) fn restore(
        reader: &Arc<Reader>,
        saved: &BTreeMap<Seqno, UndoState>,
        replayed: Vec<(Seqno, UndoState)>,
        last: Seqno,
    ) -> Result<Self> {
        let (runtime, live) = (Arc::clone(&reader.runtime), Arc::clone(&reader.live));
        let (keyspaces, history) = (Arc::clone(&reader.keyspaces), Arc::clone(&reader.history));
        let (count_max, age_max) = (runtime.options.undo_count, runtime.options.undo_age);
        let tracker = history.tracker();
        let mut state = State::default();
        for (&after, undo) in saved {
            if after > last {
                let detail =
                    format!("it ends at seqno {last}, but transaction {} ended at {after}", undo.txn);
                return Err(StoreError::corrupt("the journal", detail));
            }
            state.kept.insert(after, Kept::new(after, undo.clone(), Saved::Yes, tracker));
        }
        for (after, undo) in replayed {
            state.kept.insert(after, Kept::new(after, undo, Saved::No, tracker));
        }
        while state.kept.len() > count_max && state.pop() {}
        Ok(Self {
            runtime,
            live,
            keyspaces,
            history,
            reader: Arc::clone(reader),
            flushing: Mutex::new(()),
            count_max,
            age_max,
            state: Mutex::new(state),
            bytes_released: AtomicU64::new(0),
        })
    }

    /// Held by a flush, whose edit may name transactions.
    #[track_caller]
    pub(crate) fn lock_flushes(&self) -> MutexGuard<'_, (), class::KvdbCommitsUndoFlushing> {
        self.flushing.lock()
    }

    /// Whether commits are kept at all.
    pub(crate) fn is_on(&self) -> bool {
        self.count_max > 0 && !self.age_max.is_zero()
    }

    fn keep(&self, after: Seqno, kept: Kept) {
        let mut state = self.state.lock();
        state.kept.insert(after, kept);
        while state.kept.len() > self.count_max && state.pop() {}
    }

    fn is_fresh(&self, kept: &Kept, now: Duration) -> bool {
        now.abs_diff(kept.committed) <= self.age_max
    }

    /// What the manifest is to name when the journal's records up to `seqno` retire.
    pub(crate) fn retiring(&self, seqno: Seqno) -> Vec<Edit> {
        let mut state = self.state.lock();
        let unsaved = state.kept.range_mut(..=seqno).filter(|(_, kept)| kept.saved != Saved::Yes);
        let edits = unsaved.map(|(&after, kept)| {
            kept.saved = Saved::Perhaps;
            kept.state().edit(after)
        });
        edits.collect()
    }

    /// The manifest names those up to `seqno`.
    pub(crate) fn note_saved(&self, seqno: Seqno) {
        for kept in self.state.lock().kept.range_mut(..=seqno).map(|(_, kept)| kept) {
            kept.saved = Saved::Yes;
        }
    }

    /// Names and values.
    pub(crate) fn list(&self) -> [(&'static str, u64); 2] {
        let state = self.state.lock();
        // What was not asked for yet is not known.
        let bytes = state.kept.values().filter_map(|kept| kept.bytes).sum();
        [("undo.transactions", state.kept.len() as u64), ("undo.bytes_known", bytes)]
    }
}

impl Undo {
    /// A commit took the seqnos behind `before` up to `after`. The caller holds the guard of the layer that
    /// they are in, and has published them.
    pub(crate) fn note_commit(&self, mark: &CommitMark, before: Seqno, after: Seqno) {
        let Some(note) = &mark.note else { return };
        let (txn, committed, note) = (mark.txn, note.committed, note.note.clone());
        let state = UndoState { txn, before, committed, note };
        self.keep(after, Kept::new(after, state, Saved::No, self.history.tracker()));
    }

    pub(crate) fn points(&self) -> Vec<UndoPoint> {
        let now = self.runtime.clock.wall();
        let state = self.state.lock();
        let fresh = state.kept.values().filter(|kept| self.is_fresh(kept, now));
        fresh.map(Kept::point).collect()
    }

    /// Further pins on the positions before and after `txn`.
    pub(crate) fn pins(&self, txn: TxnId) -> Result<[SnapshotPin; 2]> {
        let now = self.runtime.clock.wall();
        let state = self.state.lock();
        let found = state.kept.values().find(|kept| kept.txn == txn && self.is_fresh(kept, now));
        let kept = found.ok_or(StoreError::NotKept(txn))?;
        Ok([kept.before.clone(), kept.after.clone()])
    }

    pub(crate) fn bytes(&self, txn: TxnId) -> Result<u64> {
        let [before, after] = self.pins(txn)?;
        let known = self.state.lock().kept.get(&after.seqno()).and_then(|kept| kept.bytes);
        if let Some(bytes) = known {
            return Ok(bytes);
        }
        let bytes = self.bytes_before(&before, &after)?;
        if let Some(kept) = self.state.lock().kept.get_mut(&after.seqno()) {
            kept.bytes = Some(bytes);
        }
        Ok(bytes)
    }

    /// Lets go what is too old or was pushed out, and has what that frees cleared away when it is worth a
    /// pass.
    pub(crate) fn tend(&self) -> Result<()> {
        let now = self.runtime.clock.wall();
        let unknown: Vec<_> = {
            let mut state = self.state.lock();
            while state.kept.first_key_value().is_some_and(|(_, kept)| !self.is_fresh(kept, now))
                && state.pop()
            {}
            let unknown = state.leaving.iter().filter(|kept| kept.bytes.is_none());
            unknown.map(|kept| (kept.before.clone(), kept.after.clone())).collect()
        };
        // Without any lock: it may take long.
        for (before, after) in unknown {
            // What can't be measured must not keep its pins, nor hold up merges: a pass settles it.
            let bytes = self.bytes_before(&before, &after).unwrap_or(RELEASED_BYTES_MAX);
            let mut state = self.state.lock();
            for kept in state.leaving.iter_mut().filter(|kept| kept.after.seqno() == after.seqno()) {
                kept.bytes = Some(bytes);
            }
        }
        if self.runtime.options.read_only || self.state.lock().leaving.is_empty() {
            return Ok(());
        }
        let _one_at_a_time = self.flushing.lock();
        self.forget_leaving()
    }

    /// Lets all go, since its space is needed. False: there was nothing.
    pub(crate) fn give_up(&self) -> Result<bool> {
        let _one_at_a_time = self.flushing.lock();
        let mut state = self.state.lock();
        let count = state.kept.len() + state.leaving.len();
        while state.pop() {}
        drop(state);
        if count > 0 {
            tracing::warn!(count, "space is short: committed transactions can't be taken back any more");
            self.forget_leaving()?;
        }
        Ok(count > 0)
    }

    /// Makes the manifest forget those that leave, and lets go of their pins. The caller holds the lock of
    /// flushes.
    fn forget_leaving(&self) -> Result<()> {
        let leaving = std::mem::take(&mut self.state.lock().leaving);
        if leaving.is_empty() {
            return Ok(());
        }
        let edits = leaving.iter().map(|kept| Edit::DropUndo { after: kept.after.seqno() }).collect();
        if let Err(error) = self.live.install(edits, &[], &[], |view| view) {
            self.state.lock().leaving.extend(leaving);
            return Err(error);
        }
        // A writer that finds no space need not wait until it is worth a pass.
        self.live.note_garbage();
        let bytes: u64 = leaving.iter().filter_map(|kept| kept.bytes).sum();
        let released = self.bytes_released.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let capacity = self.runtime.ctx.zones.space().bytes_capacity;
        if released >= RELEASED_BYTES_MAX.min(capacity / 16) {
            self.bytes_released.store(0, Ordering::Relaxed);
            let positions = leaving.iter().flat_map(|kept| [kept.before.seqno(), kept.after.seqno()]);
            self.history.note_deleted(positions);
        }
        drop(leaving);
        self.runtime.work.notify();
        Ok(())
    }

    /// What the older position has where something was written up to the newer one (bytes).
    fn bytes_before(&self, before: &SnapshotPin, after: &SnapshotPin) -> Result<u64> {
        let mut bytes = 0;
        for info in self.keyspaces.list() {
            let mut rest = Some(KeyRange::all());
            while let Some(range) = rest.take().filter(|range| !range.is_empty()) {
                let (ranges, next) =
                    find_window(&self.live, info.keyspace, range, before.seqno(), after.seqno())?;
                for range in ranges {
                    bytes += match info.kind {
                        KeyspaceKind::Tuple => self.tuple_bytes(before, info.keyspace, range)?,
                        KeyspaceKind::Block => self.block_bytes(before, info.keyspace, range)?,
                    };
                }
                rest = next;
            }
        }
        Ok(bytes)
    }

    fn tuple_bytes(&self, pin: &SnapshotPin, keyspace: Keyspace, range: KeyRange) -> Result<u64> {
        let mut cursor = self.reader.cursor_at(self.reader.layers_at(pin), keyspace, range)?;
        let mut bytes = 0;
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            bytes += (key.len() + value.len()) as u64;
            cursor.next()?;
        }
        Ok(bytes)
    }

    /// Reads one block of each extent.
    fn block_bytes(&self, pin: &SnapshotPin, keyspace: Keyspace, range: KeyRange) -> Result<u64> {
        let (mut start, end) = (range.start, range.end);
        let mut blocks = 0;
        loop {
            let rest = KeyRange { start: start.clone(), end: end.clone() };
            let mut cursor = self.reader.cursor_at(self.reader.layers_at(pin), keyspace, rest)?;
            cursor.first()?;
            let Some((key, _)) = cursor.entry() else { break };
            let Some((prefix, block)) = split_block_key(key) else { break };
            let end_block = end.as_ref().and_then(|end| block_at(prefix, end)).unwrap_or(u64::MAX);
            let extent = self.reader.next_extent_at(
                &self.reader.layers_at(pin),
                keyspace,
                prefix,
                block..end_block,
                ExtentKind::Data,
            )?;
            let count = extent.map_or(1, |extent| extent.count);
            blocks += count;
            let Some(next) = block.checked_add(count) else { break };
            start = [prefix, &next.to_be_bytes()].concat().into();
        }
        Ok(blocks * BLOCK_BYTES as u64)
    }
}

impl Reader {
    fn layers_at(&self, pin: &SnapshotPin) -> Layers {
        Layers { view: self.live.view(), seqno: pin.seqno(), own: None }
    }
}

/// The first block of `prefix` at or behind `key`, which begins with it.
fn block_at(prefix: &[u8], key: &[u8]) -> Option<u64> {
    let (number, rest) = key.strip_prefix(prefix)?.split_first_chunk()?;
    u64::from_be_bytes(*number).checked_add(u64::from(!rest.is_empty()))
}
