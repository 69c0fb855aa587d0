//! A walk over what changed between two pinned positions, window by window.
//!
//! Thread safety: belongs to one walker. Invariant: no view is kept between two windows, so a long walk keeps
//! no replaced runs alive; every view has what the pinned positions see.

use std::collections::VecDeque;
use std::sync::Arc;

use kvfs_store::{ChangedRanges, KeyRange, Keyspace, Result, Seqno};

use super::inner::Inner;
use crate::memtable::ChangedSearch;

/// See the module.
pub(crate) struct DbChangedRanges {
    inner: Arc<Inner>,
    keyspace: Keyspace,
    older: Seqno,
    newer: Seqno,
    /// What is still to be looked at.
    rest: Option<KeyRange>,
    found: VecDeque<KeyRange>,
}

impl DbChangedRanges {
    pub(crate) fn new(
        inner: Arc<Inner>,
        keyspace: Keyspace,
        range: KeyRange,
        older: Seqno,
        newer: Seqno,
    ) -> Result<Self> {
        inner.keyspaces.kind(keyspace.0)?;
        let rest = (older < newer).then_some(range);
        Ok(Self { inner, keyspace, older, newer, rest, found: VecDeque::new() })
    }
}

/// What may have changed at the start of `range`, and what of it is still to be looked at.
pub(crate) fn find_window(
    inner: &Inner,
    keyspace: Keyspace,
    range: KeyRange,
    older: Seqno,
    newer: Seqno,
) -> Result<(Vec<KeyRange>, Option<KeyRange>)> {
    let end = range.end.clone();
    let mut search = ChangedSearch::new(range, older, newer);
    inner.view().find_changed(keyspace.0, &mut search)?;
    let window = search.finish();
    Ok((window.ranges, window.next.map(|start| KeyRange { start, end })))
}

impl ChangedRanges for DbChangedRanges {
    fn next(&mut self) -> Result<Option<KeyRange>> {
        while self.found.is_empty() {
            let Some(range) = self.rest.take().filter(|range| !range.is_empty()) else { return Ok(None) };
            let (found, rest) = find_window(&self.inner, self.keyspace, range, self.older, self.newer)?;
            (self.found, self.rest) = (found.into(), rest);
        }
        Ok(self.found.pop_front())
    }
}
