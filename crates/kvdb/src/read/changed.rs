//! A walk over what changed between two pinned positions, window by window.
//!
//! Thread safety: belongs to one walker. Invariant: no view is kept between two windows, so a long walk keeps
//! no replaced runs alive; every view has what the pinned positions see.

use std::collections::VecDeque;
use std::sync::Arc;

use kvfs_store::{ChangedRanges, KeyRange, Keyspace, Result, Seqno};

use crate::live::LiveSet;
use crate::memtable::ChangeWalk;

/// See the module.
pub(crate) struct DbChangedRanges {
    live: Arc<LiveSet>,
    keyspace: Keyspace,
    older: Seqno,
    newer: Seqno,
    /// What is still to be looked at.
    rest: Option<KeyRange>,
    found: VecDeque<KeyRange>,
}

impl DbChangedRanges {
    pub(crate) fn new(
        live: Arc<LiveSet>,
        keyspace: Keyspace,
        range: KeyRange,
        older: Seqno,
        newer: Seqno,
    ) -> Self {
        let rest = (older < newer).then_some(range);
        Self { live, keyspace, older, newer, rest, found: VecDeque::new() }
    }
}

/// What may have changed at the start of `range`, and what of it is still to be looked at.
pub(crate) fn find_window(
    live: &LiveSet,
    keyspace: Keyspace,
    range: KeyRange,
    older: Seqno,
    newer: Seqno,
) -> Result<(Vec<KeyRange>, Option<KeyRange>)> {
    let end = range.end.clone();
    let mut walk = ChangeWalk::ranges(range, older, newer);
    live.view().walk_changes(keyspace.0, &mut walk)?;
    let window = walk.finish();
    Ok((window.ranges, window.next.map(|start| KeyRange { start, end })))
}

impl ChangedRanges for DbChangedRanges {
    fn next(&mut self) -> Result<Option<KeyRange>> {
        while self.found.is_empty() {
            let Some(range) = self.rest.take().filter(|range| !range.is_empty()) else { return Ok(None) };
            let (found, rest) = find_window(&self.live, self.keyspace, range, self.older, self.newer)?;
            (self.found, self.rest) = (found.into(), rest);
        }
        Ok(self.found.pop_front())
    }
}
