//! What was changed since the oldest open transaction began.
//!
//! Changes of whole records are ranges of keys, or of the blocks of a prefix, of which the last change
//! counts; those of single fields are listed by key. Where all of them are too many they are forgotten, and
//! transactions from before are too old to be told of conflicts.
//!
//! Thread safety: under the lock of the state.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use kvfs_store::blocks::{block_key, block_of_key, blocks_in};
use kvfs_store::{Changed, KEY_LEN_MAX, KeyRange, Keyspace, Records, Seqno, Touch};
use rangemap::RangeMap;

/// Of one keyspace.
#[derive(Default)]
struct Changes {
    whole: RangeMap<Bytes, Seqno>,
    /// By prefix: other keys may lie between those of its blocks.
    blocks: BTreeMap<Bytes, RangeMap<u64, Seqno>>,
    /// Each that none after it covers, oldest first.
    fields: BTreeMap<Bytes, Vec<(Touch, Seqno)>>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct RecentChanges {
    by_keyspace: BTreeMap<Keyspace, Changes>,
    /// How many there are.
    count: usize,
    /// How many there were when those that nothing asks for were last forgotten.
    kept: usize,
    /// The newest one that was forgotten although a transaction might have asked for it.
    forgotten: Option<Changed>,
}

impl RecentChanges {
    /// Takes in changes that took effect at `seqno`.
    pub(crate) fn push(&mut self, changes: Vec<(Keyspace, Records)>, seqno: Seqno) {
        for (keyspace, records) in changes {
            let changes = self.by_keyspace.entry(keyspace).or_default();
            let (before, after) = changes.push(records, seqno);
            self.count = self.count - before + after;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Forgets what no transaction asks for, of which the oldest sees everything up to `oldest`; where more
    /// than `count_max` would stay, all. O(1) but where there is twice as much as after the last time.
    pub(crate) fn forget(&mut self, oldest: Option<Seqno>, count_max: usize) {
        let Some(oldest) = oldest else {
            *self = Self::default();
            return;
        };
        if self.count <= count_max && self.count < 2 * self.kept.max(1024) {
            return;
        }
        for changes in self.by_keyspace.values_mut() {
            changes.forget_up_to(oldest);
        }
        self.count = self.by_keyspace.values().map(Changes::len).sum();
        self.kept = self.count;
        if self.kept > count_max {
            let last = |(&keyspace, changes): (&Keyspace, &Changes)| changes.newest(keyspace);
            self.forgotten = self.by_keyspace.iter().filter_map(last).max_by_key(|changed| changed.seqno);
            self.by_keyspace.clear();
            (self.count, self.kept) = (0, 0);
        }
    }

    /// A change after `since` that concerns `records`.
    pub(crate) fn find(&self, keyspace: Keyspace, records: &Records, since: Seqno) -> Option<Changed> {
        let is_newer = |seqno: Seqno| seqno > since;
        if let Some(forgotten) = self.forgotten.as_ref().filter(|forgotten| is_newer(forgotten.seqno)) {
            return Some(forgotten.clone());
        }
        let changes = self.by_keyspace.get(&keyspace)?;
        let found = match records {
            Records::Key { key, touch } => changes.find_key(key, *touch, since),
            Records::Range(range) => changes.find_range(range, since),
            Records::Blocks { prefix, first, count } => {
                changes.find_blocks(prefix, *first..first.saturating_add(*count), since)
            }
        };
        found.map(|(key, seqno)| Changed { keyspace, key, seqno })
    }
}

impl Changes {
    /// How many there were, before and after, of those among which they are.
    fn push(&mut self, records: Records, seqno: Seqno) -> (usize, usize) {
        let range = match records {
            Records::Key { key, touch } if touch != Touch::ALL => {
                let before = self.fields.len();
                self.push_fields(key, touch, seqno);
                return (before, self.fields.len());
            }
            Records::Blocks { prefix, first, count } => {
                if count == 0 {
                    return (0, 0);
                }
                let blocks = self.blocks.entry(prefix).or_default();
                let before = blocks.len();
                blocks.insert(first..first.saturating_add(count), seqno);
                return (before, blocks.len());
            }
            Records::Key { key, .. } => key.clone()..after(&key),
            Records::Range(range) if range.is_empty() => return (0, 0),
            Records::Range(range) => keys_of(range),
        };
        let before = self.whole.len();
        self.whole.insert(range, seqno);
        (before, self.whole.len())
    }

    fn push_fields(&mut self, key: Bytes, touch: Touch, seqno: Seqno) {
        if !touch.conflicts_with(Touch::ALL) {
            return;
        }
        let fields = self.fields.entry(key).or_default();
        fields.retain(|(earlier, _)| !touch.covers(*earlier));
        fields.push((touch, seqno));
    }

    fn len(&self) -> usize {
        let blocks = self.blocks.values().map(RangeMap::len).sum::<usize>();
        self.whole.len() + blocks + self.fields.len()
    }

    fn find_key(&self, key: &Bytes, touch: Touch, since: Seqno) -> Option<(Bytes, Seqno)> {
        if !touch.conflicts_with(Touch::ALL) {
            return None;
        }
        let whole = self.whole.get_key_value(key).map(|(range, seqno)| (range.start.clone(), *seqno));
        let in_blocks = || {
            let (prefix, block) = block_of_key(key)?;
            Some((key.clone(), *self.blocks.get(&prefix)?.get(&block)?))
        };
        let is_newer = |(_, seqno): &(Bytes, Seqno)| *seqno > since;
        whole.filter(is_newer).or_else(|| in_blocks().filter(is_newer)).or_else(|| {
            let mut fields = self.fields.get(key)?.iter();
            let (_, seqno) = fields.find(|(other, seqno)| *seqno > since && other.conflicts_with(touch))?;
            Some((key.clone(), *seqno))
        })
    }

    fn find_range(&self, range: &KeyRange, since: Seqno) -> Option<(Bytes, Seqno)> {
        if range.is_empty() {
            return None;
        }
        let keys = keys_of(range.clone());
        let mut whole = self.whole.overlapping(&keys);
        if let Some((range, &seqno)) = whole.find(|(_, seqno)| **seqno > since) {
            return Some((range.start.clone(), seqno));
        }
        for (prefix, changed) in &self.blocks {
            let blocks = blocks_in(range, prefix);
            let mut changed = changed.iter().filter(|(_, seqno)| **seqno > since);
            if let Some((found, &seqno)) = changed.find(|(changed, _)| meet(changed, &blocks)) {
                return Some((block_key(prefix, found.start), seqno));
            }
        }
        self.fields.range(keys).find_map(|(key, fields)| {
            let (_, seqno) = fields.iter().find(|(_, seqno)| *seqno > since)?;
            Some((key.clone(), *seqno))
        })
    }

    fn find_blocks(&self, prefix: &Bytes, blocks: Range<u64>, since: Seqno) -> Option<(Bytes, Seqno)> {
        if blocks.is_empty() {
            return None;
        }
        let changed = self.blocks.get(prefix);
        let found =
            changed.and_then(|changed| changed.overlapping(&blocks).find(|(_, seqno)| **seqno > since));
        if let Some((found, &seqno)) = found {
            return Some((block_key(prefix, found.start), seqno));
        }
        let keys = block_key(prefix, blocks.start)..block_key(prefix, blocks.end);
        let mut whole = self.whole.overlapping(keys).filter(|(_, seqno)| **seqno > since);
        let found = whole.find(|(range, _)| {
            let range = KeyRange { start: range.start.clone(), end: Some(range.end.clone()) };
            meet(&blocks, &blocks_in(&range, prefix))
        });
        found.map(|(range, &seqno)| (range.start.clone(), seqno))
    }

    fn forget_up_to(&mut self, oldest: Seqno) {
        self.fields.retain(|_, fields| fields.iter().any(|(_, seqno)| *seqno > oldest));
        self.whole = newer_than(oldest, std::mem::take(&mut self.whole));
        self.blocks.retain(|_, changed| {
            *changed = newer_than(oldest, std::mem::take(changed));
            !changed.is_empty()
        });
    }

    fn newest(&self, keyspace: Keyspace) -> Option<Changed> {
        let fields = self.fields.iter().filter_map(|(key, fields)| Some((key.clone(), fields.last()?.1)));
        let whole = self.whole.iter().map(|(range, &seqno)| (range.start.clone(), seqno));
        let of = |(prefix, changed): (&Bytes, &RangeMap<u64, Seqno>)| {
            let (range, seqno) = changed.iter().max_by_key(|(_, seqno)| **seqno)?;
            Some((block_key(prefix, range.start), *seqno))
        };
        let all = whole.chain(self.blocks.iter().filter_map(of)).chain(fields);
        let (key, seqno) = all.max_by_key(|(_, seqno)| *seqno)?;
        Some(Changed { keyspace, key, seqno })
    }
}

fn newer_than<K: Ord + Clone>(oldest: Seqno, changes: RangeMap<K, Seqno>) -> RangeMap<K, Seqno> {
    changes.into_iter().filter(|(_, seqno)| *seqno > oldest).collect()
}

/// Whether the two have a block in common.
fn meet(blocks: &Range<u64>, others: &Range<u128>) -> bool {
    others.start.max(blocks.start.into()) < others.end.min(blocks.end.into())
}

fn keys_of(range: KeyRange) -> Range<Bytes> {
    range.start..range.end.unwrap_or_else(beyond_all)
}

/// The next key.
fn after(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// Behind every key.
fn beyond_all() -> Bytes {
    vec![u8::MAX; KEY_LEN_MAX + 1].into()
}

#[cfg(test)]
mod tests;
