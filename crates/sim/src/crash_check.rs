//! What a crash may leave: the state after some prefix of the applied batches that contains every
//! synced one.
//!
//! [`History`] keeps the model's state after each batch as a snapshot of the model, so that any
//! prefix is compared without replaying it.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::model::ModelStore;
use kvfs_store::{
    Batch, Durability, KeyRange, Keyspace, Op, Position, Read, Result, Snapshot, Store, StoreError, Txn,
};

use crate::ops::short;
use crate::spaces::{Handles, SPACES, SpaceIndex};

/// Differences that a report lists for each keyspace.
const DIFFERENCES_MAX: usize = 6;

/// Commits whose states are kept although everything since was synced: more than engines under test keep for
/// their undo.
const COMMITS_KEPT: usize = 8;

/// A point in history.
#[derive(Clone)]
struct Point {
    /// The subject's position after the batch.
    position: Position,
    /// The model's state after the batch.
    state: Arc<dyn Snapshot>,
}

/// The batches applied so far, as states of the model. Point 0 is the state at the start, point n
/// the one after n batches.
pub struct History {
    model: Arc<ModelStore>,
    handles: Handles,
    points: Vec<Point>,
    /// Index of the newest point that must survive.
    synced: usize,
    /// How many points at the front were forgotten.
    forgotten: usize,
    /// Before and after each of the last commits, oldest first.
    commits: Vec<[Point; 2]>,
}

impl History {
    /// An empty history; `position` is the subject's before the first batch.
    ///
    /// # Errors
    /// None that a model gives in practice.
    pub fn new(position: Position) -> Result<Self> {
        let model = Arc::new(ModelStore::new());
        let handles = Handles::open(&*model)?;
        let points = vec![Point { position, state: model.snapshot()? }];
        Ok(Self { model, handles, points, synced: 0, forgotten: 0, commits: Vec::new() })
    }

    /// The newest state.
    pub fn model(&self) -> &Arc<ModelStore> {
        &self.model
    }

    /// The model's handles.
    pub fn handles(&self) -> &Handles {
        &self.handles
    }

    /// Number of batches so far.
    pub fn len(&self) -> usize {
        self.forgotten + self.points.len() - 1
    }

    /// Whether there were no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Applies `ops` to the model; the subject applied them at `position`.
    ///
    /// # Errors
    /// What the model says about an invalid batch; the history is then unchanged.
    pub fn record(&mut self, ops: &[Op], position: Position) -> Result<()> {
        self.model.apply(self.handles.batch(ops), Durability::Buffered)?;
        self.points.push(Point { position, state: self.model.snapshot()? });
        Ok(())
    }

    /// Commits `txn`, a transaction of the model; the subject committed the same at `position`. Gives whether
    /// it had written anything.
    ///
    /// # Errors
    /// What the model says; the history is then unchanged.
    pub fn record_commit(&mut self, txn: &dyn Txn, position: Position) -> Result<bool> {
        let before = self.model.position();
        if txn.commit(Durability::Buffered)? == before {
            return Ok(false);
        }
        let after = Point { position, state: self.model.snapshot()? };
        self.commits.extend(self.points.last().map(|before| [before.clone(), after.clone()]));
        self.points.push(after);
        Ok(true)
    }

    /// Notes that the subject synced everything so far.
    pub fn record_sync(&mut self) {
        self.synced = self.len();
    }

    /// Number of batches that must survive.
    pub fn synced(&self) -> usize {
        self.synced
    }

    /// Drops the states that a crash may not lead back to, but for those around the last commits.
    pub fn forget_before_synced(&mut self) {
        let count = self.synced - self.forgotten;
        self.points.drain(..count);
        self.commits.drain(..self.commits.len().saturating_sub(COMMITS_KEPT));
        self.forgotten = self.synced;
    }

    /// The subject's position after `count` batches, if that point was not forgotten.
    pub fn position_at(&self, count: usize) -> Option<Position> {
        self.points.get(count.checked_sub(self.forgotten)?).map(|point| point.position)
    }

    /// The subject's position after all batches.
    pub fn newest(&self) -> Position {
        self.points.last().map_or_else(Position::default, |point| point.position)
    }

    /// The state after `count` batches, if it was not forgotten.
    pub fn state_at(&self, count: usize) -> Option<&Arc<dyn Snapshot>> {
        self.points.get(count.checked_sub(self.forgotten)?).map(|point| &point.state)
    }

    /// The state when the subject was at `position`, if that point was not forgotten.
    pub fn state_at_position(&self, position: Position) -> Option<&Arc<dyn Snapshot>> {
        let around_commits = self.commits.iter().flatten();
        let mut points = around_commits.chain(&self.points).filter(|point| point.position == position);
        points.next().map(|point| &point.state)
    }

    /// Finds the number of batches within `allowed` whose state, and position, `recovered` has.
    ///
    /// # Errors
    /// A report for people: which prefixes were allowed, whether another one would fit, and how the
    /// content differs from the nearest.
    pub fn find_prefix(
        &self,
        recovered: &dyn Store,
        allowed: RangeInclusive<usize>,
    ) -> Result<usize, String> {
        let handles =
            Handles::open(recovered).map_err(|error| format!("keyspaces after the crash: {error}"))?;
        let hint = self.hint(recovered.position()).clamp(*allowed.start(), *allowed.end());
        let mut nearest = None;
        // The position tells the prefix, unless something is wrong; then try all, newest first.
        for count in std::iter::once(hint).chain(allowed.clone().rev()) {
            match self.compare_at(count, recovered, &handles) {
                Ok(()) => return self.expect_position(count, recovered.position()),
                Err(difference) => nearest.get_or_insert((count, difference)),
            };
        }
        let mut report = format!("the content after the crash is no prefix of {allowed:?} batches");
        let beyond = (self.forgotten..=self.len()).filter(|count| !allowed.contains(count));
        for count in beyond {
            if self.compare_at(count, recovered, &handles).is_ok() {
                let _ = write!(report, "; it is the state after {count} batches, which is not allowed");
            }
        }
        if let Some((count, difference)) = nearest {
            let _ = write!(report, "\n  compared with {count} batches: {difference}");
        }
        Err(report)
    }

    /// The position is that of the state after `count` batches.
    fn expect_position(&self, count: usize, position: Position) -> Result<usize, String> {
        let expected = self.position_at(count);
        if expected == Some(position) {
            return Ok(count);
        }
        Err(format!(
            "after the crash the content is that of {count} batches, and the position {position:?}, not {expected:?}"
        ))
    }

    /// Goes back to the state after `count` batches, as the only one.
    ///
    /// # Errors
    /// None that a model gives in practice.
    pub fn rewind(&mut self, count: usize, position: Position) -> Result<()> {
        let Some(state) = self.state_at(count) else { return Ok(()) };
        let mut next = Self::new(position)?;
        for space in 0..SPACES.len() as SpaceIndex {
            copy(&**state, self.handles.get(space), &*next.model, next.handles.get(space))?;
        }
        next.points[0].state = next.model.snapshot()?;
        next.commits = std::mem::take(&mut self.commits);
        next.commits.retain(|[_, after]| after.position <= position);
        *self = next;
        Ok(())
    }

    /// Number of batches that a subject at `position` should have.
    fn hint(&self, position: Position) -> usize {
        let count = self.points.partition_point(|point| point.position <= position);
        self.forgotten + count.saturating_sub(1)
    }

    fn compare_at(&self, count: usize, recovered: &dyn Store, handles: &Handles) -> Result<(), String> {
        let state = self.state_at(count).ok_or("this state was forgotten")?;
        compare(recovered, handles, &**state, &self.handles)
    }
}

/// Copies one keyspace by plain puts.
fn copy(from: &dyn Read, source: Keyspace, to: &dyn Store, target: Keyspace) -> Result<()> {
    let kind = to.keyspaces().iter().find(|info| info.keyspace == target).map(|info| info.kind);
    let mut cursor = from.cursor(source, KeyRange::all())?;
    cursor.first()?;
    while let Some((key, value)) = cursor.entry() {
        let mut batch = Batch::new();
        match (kind, key.split_last_chunk::<8>()) {
            (Some(kvfs_store::KeyspaceKind::Block), Some((prefix, block))) => {
                let prefix = Bytes::copy_from_slice(prefix);
                batch.put_blocks(target, prefix, u64::from_be_bytes(*block), value.clone());
            }
            _ => batch.put(target, Bytes::copy_from_slice(key), value.clone()),
        }
        to.apply(batch, Durability::Buffered)?;
        cursor.next()?;
    }
    Ok(())
}

/// Compares all keyspaces of the subject with the model's.
///
/// # Errors
/// A report of the first differences.
pub fn compare(
    subject: &dyn Read,
    subject_handles: &Handles,
    model: &dyn Read,
    model_handles: &Handles,
) -> Result<(), String> {
    compare_by(subject_handles, model_handles, |handles, differences| {
        walk(subject, model, handles, differences)
    })
}

/// As [`compare`], with a look for each key, where some of the subject may fail to be read, as `may_fail`
/// says; but what it answers is right.
///
/// # Errors
/// A report of the first differences, and of the failures that may not be.
pub(crate) fn compare_readable(
    subject: &dyn Read,
    subject_handles: &Handles,
    model: &dyn Read,
    model_handles: &Handles,
    may_fail: impl Fn(&StoreError) -> bool,
) -> Result<(), String> {
    let unless_allowed = |error| if may_fail(&error) { Ok(()) } else { Err(error) };
    compare_by(subject_handles, model_handles, |handles, differences| {
        walk(subject, model, handles, differences).or_else(unless_allowed)?;
        look_up(subject, model, handles, differences).or_else(unless_allowed)
    })
}

fn compare_by(
    subject: &Handles,
    model: &Handles,
    compare: impl Fn((Keyspace, Keyspace), &mut Vec<String>) -> Result<()>,
) -> Result<(), String> {
    let mut report = String::new();
    for (space, index) in SPACES.iter().zip(0..) {
        let mut differences = Vec::new();
        if let Err(error) = compare((subject.get(index), model.get(index)), &mut differences) {
            differences.push(format!("reading failed: {error}"));
        }
        for difference in differences {
            let _ = write!(report, "\n    {}: {difference}", space.name);
        }
    }
    if report.is_empty() { Ok(()) } else { Err(report) }
}

/// Looks up each key of the model.
fn look_up(
    subject: &dyn Read,
    model: &dyn Read,
    (at_subject, at_model): (Keyspace, Keyspace),
    differences: &mut Vec<String>,
) -> Result<()> {
    let mut expected = model.cursor(at_model, KeyRange::all())?;
    expected.first()?;
    while let Some((key, wanted)) = expected.entry().filter(|_| differences.len() < DIFFERENCES_MAX) {
        let found = subject.get(at_subject, key)?;
        if found.as_ref() != Some(wanted) {
            let found =
                found.as_ref().map_or_else(|| "not found".to_owned(), |value| short(value).to_string());
            differences.push(format!("{} looked up is {found}, not {}", short(key), short(wanted)));
        }
        expected.next()?;
    }
    Ok(())
}

/// Walks both side by side.
fn walk(
    subject: &dyn Read,
    model: &dyn Read,
    (at_subject, at_model): (Keyspace, Keyspace),
    differences: &mut Vec<String>,
) -> Result<()> {
    let mut found = subject.cursor(at_subject, KeyRange::all())?;
    let mut expected = model.cursor(at_model, KeyRange::all())?;
    found.first()?;
    expected.first()?;
    while differences.len() < DIFFERENCES_MAX {
        let (found_entry, expected_entry) = (found.entry(), expected.entry());
        // Keys in the order of the walk; the end sorts behind every key.
        let order = match (found_entry, expected_entry) {
            (None, None) => break,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((found, _)), Some((expected, _))) => found.cmp(expected),
        };
        match (found_entry, expected_entry) {
            (Some((_, value)), Some((_, wanted))) if order.is_eq() && value == wanted => {}
            (Some((key, value)), Some((_, wanted))) if order.is_eq() => {
                differences.push(format!("{} is {}, not {}", short(key), short(value), short(wanted)));
            }
            (Some((key, value)), _) if order.is_lt() => {
                differences.push(format!("{} = {} should not be there", short(key), short(value)));
            }
            (_, Some((key, value))) => {
                differences.push(format!("{} = {} is missing", short(key), short(value)));
            }
            _ => {}
        }
        if order.is_le() {
            found.next()?;
        }
        if order.is_ge() {
            expected.next()?;
        }
    }
    Ok(())
}
