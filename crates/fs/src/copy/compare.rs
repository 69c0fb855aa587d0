//! Whether two stores hold the same.
//!
//! Thread safety: only reads. Memory: two cursors. Cost: everything is read once in both stores, and what
//! changed between snapshots once more.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_store::progress::{self, Unit};
use kvfs_store::{Cursor, KeyRange, Read, Snapshot, SnapshotInfo, Store};

use super::{Both, CopyError, Pair, of_source};
use crate::FileSystem;

/// Entries between two questions whether to go on.
const ENTRIES_AT_ONCE: u64 = 4096;

/// One state of both stores.
struct Sides {
    from: Arc<dyn Snapshot>,
    to: Arc<dyn Snapshot>,
}

/// Compares everything that [`copy`](super::copy) has brought from `from` to `to`, named snapshots included.
///
/// # Errors
/// They differ; one can't be read.
pub fn compare(from: &FileSystem, to: &dyn Store, goes_on: &dyn Fn() -> bool) -> Result<(), CopyError> {
    let store = &*from.store;
    let present = to.keyspaces();
    let both = Both::new((store, to), goes_on, |name, kind| {
        let found = present.iter().find(|info| info.name == name && info.kind == kind);
        let missing = || CopyError::Differs(format!("keyspace {} is missing", name.escape_debug()));
        found.map(|info| info.keyspace).ok_or_else(missing)
    })?;
    both.compare_names()?;
    progress::stage("comparing", Unit::Bytes, store.space().used_bytes);
    let mut later =
        Sides { from: store.snapshot().map_err(of_source)?, to: to.snapshot().map_err(CopyError::Target)? };
    for pair in &both.pairs {
        both.compare_range(pair, &KeyRange::all(), (&*later.from, &*later.to))?;
    }
    // A state differs from the next one, which is the same in both, only where either store says that it may.
    for info in both.snapshots.iter().rev() {
        let state = Sides {
            from: both.open_snapshot(&info.name)?,
            to: to.open_snapshot(&info.name).map_err(CopyError::Target)?,
        };
        for pair in &both.pairs {
            both.compare_changes(pair, &state, &later)?;
        }
        later = state;
    }
    Ok(())
}

impl Both<'_> {
    /// The named snapshots, and when they were made. Engines list those of one state in orders of their own.
    fn compare_names(&self) -> Result<(), CopyError> {
        let by_name = |named: &[SnapshotInfo]| -> BTreeMap<_, _> {
            named.iter().map(|info| (info.name.clone(), info.created)).collect()
        };
        if by_name(&self.snapshots) == by_name(&self.to.named_snapshots()) {
            Ok(())
        } else {
            Err(CopyError::Differs("it has other named snapshots".to_owned()))
        }
    }

    fn compare_changes(&self, pair: &Pair, state: &Sides, later: &Sides) -> Result<(), CopyError> {
        let all = KeyRange::all();
        let (older, newer) = (state.from.seqno(), later.from.seqno());
        let mut ranges = self.from.changed_ranges(pair.from, all.clone(), older, newer).map_err(of_source)?;
        while let Some(range) = ranges.next().map_err(of_source)? {
            self.compare_range(pair, &range, (&*state.from, &*state.to))?;
        }
        let (older, newer) = (state.to.seqno(), later.to.seqno());
        let mut ranges = self.to.changed_ranges(pair.to, all, older, newer).map_err(CopyError::Target)?;
        while let Some(range) = ranges.next().map_err(CopyError::Target)? {
            self.compare_range(pair, &range, (&*state.from, &*state.to))?;
        }
        Ok(())
    }

    fn compare_range(
        &self,
        pair: &Pair,
        range: &KeyRange,
        (from, to): (&dyn Read, &dyn Read),
    ) -> Result<(), CopyError> {
        let mut from = from.cursor(pair.from, range.clone()).map_err(of_source)?;
        let mut to = to.cursor(pair.to, range.clone()).map_err(CopyError::Target)?;
        from.next().map_err(of_source)?;
        to.next().map_err(CopyError::Target)?;
        for count in 1_u64.. {
            if count.is_multiple_of(ENTRIES_AT_ONCE) {
                self.expect_going_on()?;
            }
            self.skip_left(pair, &mut *from)?;
            match (from.entry(), to.entry()) {
                (None, None) => break,
                (Some((key, value)), Some(other)) if (key, value) == other => {
                    progress::advance((key.len() + value.len()) as u64);
                }
                (ours, theirs) => {
                    return Err(differs(pair, ours.map(|(key, _)| key), theirs.map(|(key, _)| key)));
                }
            }
            from.next().map_err(of_source)?;
            to.next().map_err(CopyError::Target)?;
        }
        self.expect_going_on()
    }

    /// Moves behind records that are not copied.
    fn skip_left(&self, pair: &Pair, from: &mut dyn Cursor) -> Result<(), CopyError> {
        while from.entry().is_some_and(|(key, _)| self.is_left(pair, key)) {
            from.next().map_err(of_source)?;
        }
        Ok(())
    }
}

fn differs(pair: &Pair, ours: Option<&[u8]>, theirs: Option<&[u8]>) -> CopyError {
    let missing = |key: &[u8]| format!("{} is missing", pair.place(key));
    let alien = |key: &[u8]| format!("{} should not be there", pair.place(key));
    let text = match (ours, theirs) {
        (Some(ours), Some(theirs)) => match ours.cmp(theirs) {
            Ordering::Less => missing(ours),
            Ordering::Greater => alien(theirs),
            Ordering::Equal => format!("{} has another value", pair.place(ours)),
        },
        (Some(ours), None) => missing(ours),
        (None, Some(theirs)) => alien(theirs),
        (None, None) => "its ends differ".to_owned(),
    };
    CopyError::Differs(text)
}
