//! What was changed since the oldest open transaction began, or one may begin (at the oldest named snapshot):
//! what "first updater wins" is decided by.
//!
//! Exact, and searched from end to end: this is the reference. An engine may forget the change of a key that
//! was absent at the snapshot and is absent again; it may not invent one.
//!
//! Thread safety: under the commit lock.

use std::collections::VecDeque;
use std::sync::Arc;

use rpds::ListSync;

use super::table::Table;
use crate::blocks::{block_key, block_of, blocks_in};
use crate::{Changed, KeyRange, Keyspace, Op, Records, Result, Seqno, Touch};

/// One change.
struct Recent {
    seqno: Seqno,
    keyspace: Keyspace,
    records: Records,
}

/// The changes, oldest first.
#[derive(Default)]
pub(super) struct RecentChanges(VecDeque<Recent>);

impl RecentChanges {
    /// Takes in an operation that takes effect at `seqno`.
    pub(super) fn push(&mut self, op: &Op, seqno: Seqno, table: &Table) -> Result<()> {
        let records = records_of(op, table)?;
        self.0.push_back(Recent { seqno, keyspace: op.keyspace(), records });
        Ok(())
    }

    /// Forgets what no transaction asks for any more.
    pub(super) fn forget_up_to(&mut self, seqno: Option<Seqno>) {
        while self.0.pop_front_if(|recent| seqno.is_none_or(|seqno| recent.seqno <= seqno)).is_some() {}
    }

    /// A change after `since` that concerns `records`.
    pub(super) fn find(&self, keyspace: Keyspace, records: &Records, since: Seqno) -> Option<Changed> {
        find(self.0.iter().rev(), keyspace, records, since)
    }
}

/// What a transaction has changed itself since its first checkpoint, by its own operations. A copy takes
/// constant time.
#[derive(Clone, Default)]
pub(super) struct OwnChanges(ListSync<Arc<Recent>>);

impl OwnChanges {
    /// Takes in what a batch changes, whose first operation is the one with number `first`.
    pub(super) fn push(&mut self, changes: Vec<(Keyspace, Records)>, first: u64) {
        for ((keyspace, records), seqno) in changes.into_iter().zip(first..) {
            self.0.push_front_mut(Arc::new(Recent { seqno, keyspace, records }));
        }
    }

    /// As [`RecentChanges::find`], after the first `operations`.
    pub(super) fn find(&self, keyspace: Keyspace, records: &Records, operations: u64) -> Option<Changed> {
        find(self.0.iter().map(|recent| &**recent), keyspace, records, operations)
    }
}

/// A change after `since` that concerns `records`, of some that come newest first.
fn find<'r>(
    newest_first: impl Iterator<Item = &'r Recent>,
    keyspace: Keyspace,
    records: &Records,
    since: Seqno,
) -> Option<Changed> {
    let newer = newest_first.take_while(|recent| recent.seqno > since);
    let mut of_keyspace = newer.filter(|recent| recent.keyspace == keyspace);
    let recent = of_keyspace.find(|recent| meet(&recent.records, records))?;
    let key = match (&recent.records, records) {
        (Records::Key { key, .. }, _) | (Records::Blocks { .. }, Records::Key { key, .. }) => key.clone(),
        (Records::Range(range), _) => range.start.clone(),
        (Records::Blocks { prefix, first, .. }, _) => block_key(prefix, *first),
    };
    Some(Changed { keyspace, key, seqno: recent.seqno })
}

/// The records that an operation changes.
pub(super) fn records_of(op: &Op, table: &Table) -> Result<Records> {
    Records::of(op, |key, operand| Ok(table.merge_function()?.touch(key, operand)))
}

/// Whether the two have a record in common on which the order of their changes matters.
fn meet(a: &Records, b: &Records) -> bool {
    match (a, b) {
        (Records::Key { key: a, touch: touch_a }, Records::Key { key: b, touch: touch_b }) => {
            a == b && touch_a.conflicts_with(*touch_b)
        }
        (Records::Range(range), Records::Key { key, touch })
        | (Records::Key { key, touch }, Records::Range(range)) => {
            range.contains(key) && touch.conflicts_with(Touch::ALL)
        }
        (Records::Range(a), Records::Range(b)) => {
            let before = |a: &KeyRange, b: &KeyRange| a.end.as_ref().is_some_and(|end| *end <= b.start);
            !a.is_empty() && !b.is_empty() && !before(a, b) && !before(b, a)
        }
        (Records::Blocks { prefix, first, count }, Records::Key { key, touch })
        | (Records::Key { key, touch }, Records::Blocks { prefix, first, count }) => {
            let is_inside = block_of(prefix, key).is_some_and(|block| is_block_of(block, *first, *count));
            is_inside && touch.conflicts_with(Touch::ALL)
        }
        (Records::Range(range), Records::Blocks { prefix, first, count })
        | (Records::Blocks { prefix, first, count }, Records::Range(range)) => {
            let in_range = blocks_in(range, prefix);
            let end = u128::from(*first) + u128::from(*count);
            in_range.start.max((*first).into()) < in_range.end.min(end)
        }
        (
            Records::Blocks { prefix: a, first: first_a, count: count_a },
            Records::Blocks { prefix: b, first: first_b, count: count_b },
        ) => {
            let (end_a, end_b) = (first_a.saturating_add(*count_a), first_b.saturating_add(*count_b));
            a == b && *first_a.max(first_b) < end_a.min(end_b)
        }
    }
}

fn is_block_of(block: u64, first: u64, count: u64) -> bool {
    block.checked_sub(first).is_some_and(|at| at < count)
}
