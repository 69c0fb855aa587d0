//! Runs generated steps on a store beside the model and compares every answer.

mod forks;
mod transactions;

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{
    BLOCK_BYTES, Cursor, Durability, Extent, ExtentKind, KeyRange, Op, Position, Read, Result, Snapshot,
    Store, StoreError, Txn, TxnId,
};

use crate::crash_check::{History, compare};
use crate::named::NamedStates;
use crate::ops::{Move, Profile, Reader, SLOTS, Step, generate, short};
use crate::shrink::shrink;
use crate::spaces::{Handles, SpaceIndex};
use crate::txns::Outcomes;
use crate::undo::check_undo;
use forks::Fork;

/// A store under test, and what can be done to it from outside.
pub trait Subject {
    /// The open store.
    fn store(&self) -> Arc<dyn Store>;

    /// Closes the store cleanly and opens it again; everything applied survives. Snapshots,
    /// cursors and stores that were given out are dropped before.
    ///
    /// # Errors
    /// Whatever closing and opening give.
    fn reopen(&mut self) -> Result<()>;

    /// Cuts the power and opens what is left. Everything given out is dropped before.
    ///
    /// # Errors
    /// Whatever opening gives; `Unsupported` makes the run skip the step.
    fn crash(&mut self) -> Result<()> {
        Err(StoreError::Unsupported { engine: "a model", what: "crashing" })
    }

    /// Moves what is in memory to runs.
    ///
    /// # Errors
    /// Whatever the engine gives.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Compacts until nothing is to be done.
    ///
    /// # Errors
    /// Whatever the engine gives.
    fn compact(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether the store is so small that batches may be refused for lack of space.
    fn may_fill_up(&self) -> bool {
        false
    }

    /// Checks the engine's own invariants; runs at the end and before each reopening.
    ///
    /// # Errors
    /// What is wrong, for people.
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Makes a fresh, empty subject.
pub type MakeSubject<'a, 's> = &'a dyn Fn() -> Box<dyn Subject + 's>;

/// What went wrong in a run.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Index of the failing step.
    pub step: usize,
    /// What differed, for people.
    pub message: String,
}

/// A failing run, made short.
#[derive(Debug)]
pub struct Report {
    /// Seed of the run.
    pub seed: u64,
    /// Steps that still fail.
    pub steps: Vec<Step>,
    /// What differs after them.
    pub failure: Failure,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "the store and the model differ; replay with KVFS_SIM_SEED={}", self.seed)?;
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {index:3}: {step:?}")?;
        }
        write!(f, "at step {}: {}", self.failure.step, self.failure.message)
    }
}

/// Runs the steps of `seed` and shrinks them when they fail.
///
/// # Errors
/// The failing run.
pub fn check(make: MakeSubject<'_, '_>, profile: &Profile, seed: u64) -> Result<(), Box<Report>> {
    let steps = generate(profile, seed);
    match run(make, &steps) {
        Ok(()) => Ok(()),
        Err(failure) => {
            let (steps, failure) = shrink(steps, failure, &|steps| run(make, steps).err());
            Err(Box::new(Report { seed, steps, failure }))
        }
    }
}

/// As [`check`], for tests.
///
/// # Panics
/// With the report, when the run fails.
pub fn assert_like_model(make: MakeSubject<'_, '_>, profile: &Profile, seed: u64) {
    if let Err(report) = check(make, profile, seed) {
        panic!("{report}");
    }
}

/// Runs `steps` on a fresh subject.
///
/// # Errors
/// The first difference, error or panic.
pub fn run(make: MakeSubject<'_, '_>, steps: &[Step]) -> Result<(), Failure> {
    let mut step_at = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut runner = Runner::new(make())?;
        for (index, step) in steps.iter().enumerate() {
            step_at = index;
            runner.step(step)?;
        }
        runner.subject.check()
    }));
    let message = match outcome {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(message)) => message,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(no message)");
            format!("panicked: {text}")
        }
    };
    Err(Failure { step: step_at, message })
}

/// A subject's object and the model's.
struct Pair<T> {
    subject: T,
    model: T,
}

struct Runner<'s> {
    /// Checkpointed transactions that were let go before the store was closed or crashed.
    suspended: Vec<Pair<TxnId>>,
    subject: Box<dyn Subject + 's>,
    handles: Handles,
    history: History,
    snapshots: [Option<Pair<Arc<dyn Snapshot>>>; SLOTS],
    cursors: [Option<Pair<Box<dyn Cursor>>>; SLOTS],
    txns: [Option<Pair<Arc<dyn Txn>>>; SLOTS],
    /// By the fork's id, which may have ended.
    forks: BTreeMap<TxnId, Fork>,
    outcomes: Outcomes,
    named: NamedStates,
}

type Verdict = Result<(), String>;

fn text(error: &StoreError) -> String {
    format!("error: {error}")
}

/// A full store refuses batches without a trace, but not those that only delete.
fn refused(ops: &[Op], before: Position, after: Position) -> Verdict {
    if ops.iter().all(Op::is_deletion) {
        return Err("a full store refused to delete".to_owned());
    }
    if before == after { Ok(()) } else { Err(format!("a refused batch moved {before:?} to {after:?}")) }
}

/// Compares two answers, errors only by being errors.
fn same<T: PartialEq>(found: Result<T>, expected: Result<T>, show: impl Fn(&T) -> String) -> Verdict {
    match (found, expected) {
        (Ok(found), Ok(expected)) if found == expected => Ok(()),
        (Ok(found), Ok(expected)) => Err(format!("got {}, expected {}", show(&found), show(&expected))),
        (Err(_), Err(_)) => Ok(()),
        (Err(error), Ok(expected)) => Err(format!("{}, expected {}", text(&error), show(&expected))),
        (Ok(found), Err(error)) => Err(format!("got {}, expected {}", show(&found), text(&error))),
    }
}

fn show_value(value: Option<&Bytes>) -> String {
    value.map_or("nothing".to_owned(), |value| short(value).to_string())
}

fn show_entry(entry: Option<(&[u8], &Bytes)>) -> String {
    entry.map_or("nothing".to_owned(), |(key, value)| format!("{} = {}", short(key), short(value)))
}

impl<'s> Runner<'s> {
    fn new(subject: Box<dyn Subject + 's>) -> Result<Self, String> {
        let store = subject.store();
        let handles = Handles::open(&*store).map_err(|error| text(&error))?;
        let history = History::new(store.position()).map_err(|error| text(&error))?;
        Ok(Self {
            subject,
            handles,
            history,
            snapshots: Default::default(),
            cursors: Default::default(),
            txns: Default::default(),
            forks: BTreeMap::new(),
            suspended: Vec::new(),
            outcomes: Outcomes::default(),
            named: NamedStates::default(),
        })
    }

    fn step(&mut self, step: &Step) -> Verdict {
        match step {
            Step::Apply { ops, durability } => self.apply(ops, *durability),
            Step::Sync => {
                let store = self.subject.store();
                store.sync(store.position()).map_err(|error| text(&error))?;
                self.synced();
                Ok(())
            }
            Step::SnapshotCreate { slot } => self.snapshot_create(*slot),
            Step::SnapshotDrop { slot } => {
                self.snapshots[*slot] = None;
                Ok(())
            }
            Step::NamedCreate { slot } => self.named_create(*slot),
            Step::NamedDelete { slot } => self.named.delete(&*self.subject.store(), *slot),
            Step::NamedCompare { slot } => {
                let store = self.subject.store();
                self.named.compare(&*store, &self.handles, *slot)?;
                check_undo(&*store, &self.handles, &self.history)?;
                self.named.compare_changes(&*store, &self.handles, *slot, &self.history)
            }
            Step::Get { reader, space, key } => self.get(*reader, *space, key),
            Step::MultiGet { reader, space, keys } => self.multi_get(*reader, *space, keys),
            Step::CursorOpen { slot, reader, space, range } => {
                self.cursor_open(*slot, *reader, *space, range)
            }
            Step::CursorMove { slot, moves } => self.cursor_move(*slot, moves),
            Step::ReadBlocks { reader, space, prefix, first, count } => {
                self.read_blocks(*reader, *space, prefix, *first, *count)
            }
            Step::NextExtent { reader, space, prefix, blocks, kind } => {
                self.next_extent(*reader, *space, prefix, blocks, *kind)
            }
            Step::Compare { reader } => self.compare(*reader),
            Step::TxnBegin { slot, isolation } => self.txn_begin(*slot, *isolation),
            Step::TxnApply { slot, ops } => self.txn_apply(*slot, ops),
            Step::TxnChanged { slot, space, records } => self.txn_changed(*slot, *space, records),
            Step::TxnChanges { slot } => self.txn_changes(*slot),
            Step::TxnPrepare { slot } => self.txn_prepare(*slot),
            Step::TxnCheckpoint { slot } => self.txn_checkpoint(*slot),
            Step::TxnFork { slot } => self.txn_fork(*slot),
            Step::TxnForkCompare { slot, space, records } => self.txn_fork_compare(*slot, *space, records),
            Step::TxnCommit { slot, durability } => self.txn_commit(*slot, *durability),
            Step::TxnAbort { slot } => self.txn_abort(*slot),
            Step::Reopen => self.reopen(),
            Step::Crash => self.crash(),
            Step::Flush => self.subject.flush().map_err(|error| text(&error)),
            Step::Compact => match self.subject.compact() {
                Err(StoreError::Full) if self.subject.may_fill_up() => Ok(()),
                result => result.map_err(|error| text(&error)),
            },
        }
    }

    fn apply(&mut self, ops: &[Op], durability: Durability) -> Verdict {
        let store = self.subject.store();
        let before = store.position();
        let position = match store.apply(self.handles.batch(ops), durability) {
            Err(StoreError::Full) if self.subject.may_fill_up() => {
                return refused(ops, before, store.position());
            }
            result => result.map_err(|error| text(&error))?,
        };
        if position.0 != before.0 + ops.len() as u64 || store.position() != position {
            let now = store.position();
            return Err(format!("{} operations took {before:?} to {position:?}, now {now:?}", ops.len()));
        }
        self.history.record(ops, position).map_err(|error| format!("the model refused: {error}"))?;
        if durability == Durability::Synced {
            self.synced();
        }
        Ok(())
    }

    fn synced(&mut self) {
        self.history.record_sync();
        self.history.forget_before_synced();
    }

    fn snapshot_create(&mut self, slot: usize) -> Verdict {
        let store = self.subject.store();
        let subject = store.snapshot().map_err(|error| text(&error))?;
        if subject.seqno() != store.position().0 {
            return Err(format!(
                "snapshot of {}, but the position is {:?}",
                subject.seqno(),
                store.position()
            ));
        }
        let model = self.history.model().snapshot().map_err(|error| text(&error))?;
        self.snapshots[slot] = Some(Pair { subject, model });
        Ok(())
    }

    fn named_create(&mut self, slot: usize) -> Verdict {
        let store = self.subject.store();
        if store.snapshots().is_some() && self.named.create(&*store, slot, &self.history)? {
            self.synced();
        }
        Ok(())
    }

    /// Calls `read` on the subject's reader and on the model's; `None` when the slot is empty.
    fn both<T>(
        &self,
        reader: Reader,
        space: SpaceIndex,
        read: impl Fn(&dyn Read, kvfs_store::Keyspace) -> T,
    ) -> Option<(T, T)> {
        let (handle, model_handle) = (self.handles.get(space), self.history.handles().get(space));
        match reader {
            Reader::Store => {
                Some((read(&*self.subject.store(), handle), read(&**self.history.model(), model_handle)))
            }
            Reader::Snapshot(slot) => {
                let pair = self.snapshots[slot].as_ref()?;
                Some((read(&*pair.subject, handle), read(&*pair.model, model_handle)))
            }
            Reader::Txn(slot) => {
                let pair = self.txns[slot].as_ref()?;
                Some((read(&*pair.subject, handle), read(&*pair.model, model_handle)))
            }
        }
    }

    fn get(&self, reader: Reader, space: SpaceIndex, key: &Bytes) -> Verdict {
        let Some((found, expected)) = self.both(reader, space, |read, handle| read.get(handle, key)) else {
            return Ok(());
        };
        same(found, expected, |value| show_value(value.as_ref()))
    }

    fn multi_get(&self, reader: Reader, space: SpaceIndex, keys: &[Bytes]) -> Verdict {
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let Some((found, expected)) = self.both(reader, space, |read, handle| read.multi_get(handle, &keys))
        else {
            return Ok(());
        };
        same(found, expected, |values| {
            values.iter().map(|value| show_value(value.as_ref())).collect::<Vec<_>>().join(", ")
        })
    }

    fn cursor_open(&mut self, slot: usize, reader: Reader, space: SpaceIndex, range: &KeyRange) -> Verdict {
        self.cursors[slot] = None;
        let pair = self.both(reader, space, |read, handle| read.cursor(handle, range.clone()));
        let Some((subject, model)) = pair else { return Ok(()) };
        let (subject, model) = (subject.map_err(|error| text(&error))?, model.map_err(|error| text(&error))?);
        self.cursors[slot] = Some(Pair { subject, model });
        Ok(())
    }

    fn cursor_move(&mut self, slot: usize, moves: &[Move]) -> Verdict {
        let Some(pair) = &mut self.cursors[slot] else { return Ok(()) };
        for (index, step) in moves.iter().enumerate() {
            let context = |problem: String| format!("move {index} ({step:?}): {problem}");
            move_cursor(&mut *pair.subject, step).map_err(|error| context(text(&error)))?;
            move_cursor(&mut *pair.model, step).map_err(|error| context(text(&error)))?;
            let (found, expected) = (pair.subject.entry(), pair.model.entry());
            if found != expected {
                let (found, expected) = (show_entry(found), show_entry(expected));
                return Err(context(format!("got {found}, expected {expected}")));
            }
        }
        Ok(())
    }

    fn read_blocks(
        &self,
        reader: Reader,
        space: SpaceIndex,
        prefix: &[u8],
        first: u64,
        count: usize,
    ) -> Verdict {
        let answers = self.both(reader, space, |read, handle| {
            // Filled, so that blocks that are left alone show.
            let mut buf = vec![0xa5; count * BLOCK_BYTES];
            read.read_blocks(handle, prefix, first, &mut buf).map(|()| buf)
        });
        let Some((found, expected)) = answers else { return Ok(()) };
        if let (Ok(found), Ok(expected)) = (&found, &expected) {
            let mut blocks = found.chunks(BLOCK_BYTES).zip(expected.chunks(BLOCK_BYTES)).enumerate();
            if let Some((index, (found, expected))) = blocks.find(|(_, (found, expected))| found != expected)
            {
                let block = first + index as u64;
                return Err(format!("block {block} is {}, not {}", short(found), short(expected)));
            }
        }
        same(found, expected, |_| "blocks".to_owned())
    }

    fn next_extent(
        &self,
        reader: Reader,
        space: SpaceIndex,
        prefix: &[u8],
        blocks: &Range<u64>,
        kind: ExtentKind,
    ) -> Verdict {
        let ask = |read: &dyn Read, handle: kvfs_store::Keyspace| {
            read.next_extent(handle, prefix, blocks.clone(), kind)
        };
        let answers = self.both(reader, space, ask);
        let Some((found, expected)) = answers else { return Ok(()) };
        match (&found, &expected) {
            // Data may come in shorter stretches.
            (Ok(Some(found)), Ok(Some(expected)))
                if kind == ExtentKind::Data && shorter(*found, *expected) =>
            {
                Ok(())
            }
            _ => same(found, expected, |extent| format!("{extent:?}")),
        }
    }

    fn compare(&self, reader: Reader) -> Verdict {
        match reader {
            Reader::Store => compare(
                &*self.subject.store(),
                &self.handles,
                &**self.history.model(),
                self.history.handles(),
            ),
            Reader::Snapshot(slot) => self.snapshots[slot].as_ref().map_or(Ok(()), |pair| {
                compare(&*pair.subject, &self.handles, &*pair.model, self.history.handles())
            }),
            Reader::Txn(slot) => self.txns[slot].as_ref().map_or(Ok(()), |pair| {
                compare(&*pair.subject, &self.handles, &*pair.model, self.history.handles())
            }),
        }
    }

    fn release_all(&mut self) {
        self.suspend_all();
        self.cursors = Default::default();
        self.snapshots = Default::default();
    }

    fn reopen(&mut self) -> Verdict {
        self.release_all();
        self.subject.check()?;
        let position = self.subject.store().position();
        self.subject.reopen().map_err(|error| format!("reopening: {error}"))?;
        let store = self.subject.store();
        if store.position() < position {
            return Err(format!("{position:?} before closing, {:?} after opening", store.position()));
        }
        self.handles = Handles::open(&*store).map_err(|error| text(&error))?;
        self.synced();
        self.end_suspended(true)?;
        self.outcomes.check_reopened(&*store, self.history.newest())?;
        self.named.compare_all(&*store, &self.handles)?;
        check_undo(&*store, &self.handles, &self.history)?;
        self.compare(Reader::Store)
    }

    fn crash(&mut self) -> Verdict {
        self.release_all();
        match self.subject.crash() {
            Err(StoreError::Unsupported { .. }) => return Ok(()),
            result => result.map_err(|error| format!("opening after the crash: {error}"))?,
        }
        let store = self.subject.store();
        let allowed = self.history.synced()..=self.history.len();
        let survivors = self.history.find_prefix(&*store, allowed)?;
        self.handles = Handles::open(&*store).map_err(|error| text(&error))?;
        self.end_suspended(false)?;
        let newest = self.history.position_at(survivors).ok_or("this state was forgotten")?;
        self.outcomes.check_reopened(&*store, newest)?;
        self.named.compare_all(&*store, &self.handles)?;
        check_undo(&*store, &self.handles, &self.history)?;
        self.history.rewind(survivors, store.position()).map_err(|error| text(&error))
    }
}

/// Whether `found` begins where `expected` begins and does not go beyond it.
fn shorter(found: Extent, expected: Extent) -> bool {
    found.first == expected.first && (1..=expected.count).contains(&found.count)
}

fn move_cursor(cursor: &mut dyn Cursor, step: &Move) -> Result<()> {
    match step {
        Move::Seek(key) => cursor.seek(key),
        Move::SeekBack(key) => cursor.seek_back(key),
        Move::First => cursor.first(),
        Move::Last => cursor.last(),
        Move::Next => cursor.next(),
        Move::Prev => cursor.prev(),
    }
}
