//! What a merge must keep of the records of its inputs.
//!
//! The snapshot boundaries b₀ < b₁ < … cut the seqnos into stripes: ]…, b₀], ]b₀, b₁], …, ]bₙ, …[.
//! No reader can tell the versions of a key inside one stripe apart but for the newest, so a stripe
//! comes down to one record, or to the merge operands that do not fold.
//!
//! Invariants: output is in record order; each output record has the seqno of the newest record that
//! went into it; nothing is folded across a range tombstone.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use super::layers::LayerTombstones;
use crate::{
    format::{RecordIter, RecordKind},
    memtable::{Merger, RangeTombstone, TombstoneSet},
};

/// What may be dropped.
#[derive(Debug, Clone)]
pub(crate) struct KeepRules {
    /// Seqnos that readers are pinned on, ascending.
    pub boundaries: Vec<Seqno>,
    /// Nothing older than the inputs exists for these keys.
    pub bottom: bool,
    /// Merge function of the keyspace; without one, merge records stay as they are.
    pub merger: Merger,
}

impl KeepRules {
    /// The stripe of `seqno`: its exclusive lower and inclusive upper end.
    pub(crate) fn stripe(&self, seqno: Seqno) -> (Seqno, Seqno) {
        let at = self.boundaries.partition_point(|&boundary| boundary < seqno);
        let lower = at.checked_sub(1).map_or(0, |below| self.boundaries[below]);
        (lower, self.boundaries.get(at).copied().unwrap_or(Seqno::MAX))
    }
}

/// A record that a merge must write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept {
    /// User key; records of one key share it.
    pub key: Bytes,
    /// Commit number.
    pub seqno: Seqno,
    /// Effect.
    pub kind: RecordKind,
    /// Value or operand; empty for a delete.
    pub value: Bytes,
}

/// What the operands of a stripe are applied to.
enum Base {
    /// Not in this stripe.
    Unknown,
    Value(Seqno, Bytes),
    Deleted(Seqno),
    /// Below a range tombstone: no value.
    Hidden,
}

/// What the versions of a key in one stripe come to.
struct Stripe {
    /// Below all boundaries.
    is_oldest: bool,
    /// Newest first, folded where that goes.
    operands: Vec<(Seqno, Bytes)>,
    base: Base,
}

/// Walks forward over the records that must be kept. Holds what is kept of one key.
pub(crate) struct CompactionIter {
    records: Box<dyn RecordIter>,
    tombstones: LayerTombstones,
    rules: KeepRules,
    kept: VecDeque<Kept>,
}

impl CompactionIter {
    /// A walk over `records` under all range `tombstones` of the inputs. Stands nowhere.
    pub(crate) fn new(
        records: Box<dyn RecordIter>,
        tombstones: impl IntoIterator<Item = Arc<TombstoneSet>>,
        rules: KeepRules,
    ) -> Self {
        debug_assert!(rules.boundaries.is_sorted());
        Self { records, tombstones: LayerTombstones::new(tombstones), rules, kept: VecDeque::new() }
    }

    /// Begins at the first key at or after `key`.
    ///
    /// # Errors
    /// As [`RecordIter::seek`].
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.kept.clear();
        self.records.seek(key, Seqno::MAX)
    }

    /// Begins at the first key.
    ///
    /// # Errors
    /// As [`RecordIter::seek`].
    pub(crate) fn first(&mut self) -> Result<()> {
        self.kept.clear();
        self.records.first()
    }

    /// The key that the walk comes to next, whether any of it will be kept or not.
    pub(crate) fn peek_key(&self) -> Option<&[u8]> {
        match self.kept.front() {
            Some(kept) => Some(&kept.key),
            None => self.records.record().map(|record| record.key),
        }
    }

    /// The next record to keep.
    ///
    /// # Errors
    /// I/O errors and corruption, also of merge operands.
    pub(crate) fn next_kept(&mut self) -> Result<Option<Kept>> {
        while self.kept.is_empty() {
            let Some(record) = self.records.record() else { return Ok(None) };
            let (key, seqno, kind) = (Bytes::copy_from_slice(record.key), record.seqno, record.kind);
            // The usual case, as the general one would have it.
            if kind == RecordKind::Put && self.rules.boundaries.is_empty() && self.tombstones.is_empty() {
                return self.take_newest(key, seqno).map(Some);
            }
            self.take_key(&key)?;
        }
        Ok(self.kept.pop_front())
    }

    /// Takes all versions of `key`, of which only the newest, a value, counts.
    fn take_newest(&mut self, key: Bytes, seqno: Seqno) -> Result<Kept> {
        let value = self.records.value()?;
        self.records.next()?;
        while self.records.record().is_some_and(|record| record.key == key) {
            self.records.next()?;
        }
        Ok(Kept { key, seqno, kind: RecordKind::Put, value })
    }

    /// Takes all versions of `key`, and queues what must be kept of them.
    fn take_key(&mut self, key: &Bytes) -> Result<()> {
        let mut stripes = Vec::new();
        while let Some((seqno, _)) = self.version(key, 0) {
            stripes.push(self.take_stripe(key, self.rules.stripe(seqno))?);
        }
        // From the oldest up, since what is left of the older stripes decides what the newer need.
        for stripe in stripes.into_iter().rev() {
            let nothing_below = self.rules.bottom && self.kept.is_empty();
            self.keep(key, stripe, nothing_below)?;
        }
        Ok(())
    }

    /// The current record if it belongs to `key` and lies above `lower`.
    fn version(&self, key: &[u8], lower: Seqno) -> Option<(Seqno, RecordKind)> {
        let record = self.records.record()?;
        (record.key == key && (record.seqno > lower || lower == 0)).then_some((record.seqno, record.kind))
    }

    /// Passes the versions of `key` in one stripe.
    fn take_stripe(&mut self, key: &Bytes, (lower, upper): (Seqno, Seqno)) -> Result<Stripe> {
        let hiding = self.tombstones.covering(key, upper).filter(|&tombstone| tombstone > lower);
        let mut operands: Vec<(Seqno, Bytes)> = Vec::new();
        let mut base = Base::Unknown;
        while let Some((seqno, kind)) = self.version(key, lower) {
            if hiding.is_some_and(|tombstone| tombstone > seqno) {
                break;
            }
            match kind {
                RecordKind::Put => base = Base::Value(seqno, self.records.value()?),
                RecordKind::Delete => base = Base::Deleted(seqno),
                RecordKind::Merge => {
                    let operand = self.records.value()?;
                    push_operand(&self.rules.merger, key, &mut operands, seqno, operand);
                }
            }
            self.records.next()?;
            if kind != RecordKind::Merge {
                break;
            }
        }
        if hiding.is_some() && matches!(base, Base::Unknown) {
            base = Base::Hidden;
        }
        while self.version(key, lower).is_some() {
            self.records.next()?;
        }
        // A position may be pinned before the first commit: then no record lies in the oldest stripe.
        let is_oldest = self.rules.boundaries.first().is_none_or(|&oldest| upper <= oldest);
        Ok(Stripe { is_oldest, operands, base })
    }

    /// Queues, before what is there, what the operands on the base come to.
    fn keep(&mut self, key: &Bytes, stripe: Stripe, nothing_below: bool) -> Result<()> {
        let Stripe { is_oldest, operands, base } = stripe;
        let kept = |seqno, kind, value| Kept { key: key.clone(), seqno, kind, value };
        // Above a boundary no change is forgotten and an operand stays what it is: a transaction that began
        // at the boundary asks what was changed since then, and how.
        let nothing_below = nothing_below && is_oldest;
        let base_is_known = nothing_below || !matches!(base, Base::Unknown);
        let merger = &self.rules.merger;
        if let Some(&(newest, _)) = operands.first()
            && base_is_known
            && merger.has_function()
        {
            let base = match base {
                Base::Value(_, value) => Some(value),
                _ => None,
            };
            let operands: Vec<Bytes> = operands.into_iter().map(|(_, operand)| operand).collect();
            match merger.resolve(key, base, &operands)? {
                Some(value) => self.kept.push_front(kept(newest, RecordKind::Put, value)),
                None if nothing_below => {}
                None => self.kept.push_front(kept(newest, RecordKind::Delete, Bytes::new())),
            }
            return Ok(());
        }
        match base {
            Base::Value(seqno, value) => self.kept.push_front(kept(seqno, RecordKind::Put, value)),
            Base::Deleted(seqno) if !nothing_below => {
                self.kept.push_front(kept(seqno, RecordKind::Delete, Bytes::new()));
            }
            Base::Deleted(_) | Base::Hidden | Base::Unknown => {}
        }
        for (seqno, operand) in operands.into_iter().rev() {
            self.kept.push_front(kept(seqno, RecordKind::Merge, operand));
        }
        Ok(())
    }
}

/// Folds an older operand into the last of `operands` (newest first), or appends it.
fn push_operand(
    merger: &Merger,
    key: &[u8],
    operands: &mut Vec<(Seqno, Bytes)>,
    seqno: Seqno,
    operand: Bytes,
) {
    match operands.last_mut().and_then(|(_, newer)| Some((merger.fold(key, &operand, newer)?, newer))) {
        Some((folded, newer)) => *newer = folded,
        None => operands.push((seqno, operand)),
    }
}

/// The range tombstones that a merge must keep of its inputs: over each key and per stripe the
/// newest, and at the bottom none in the oldest stripe. Touching parts are put together again.
pub(crate) fn surviving_tombstones(tombstones: &TombstoneSet, rules: &KeepRules) -> TombstoneSet {
    let mut list: Vec<RangeTombstone> = Vec::new();
    let mut last_part: HashMap<Seqno, usize> = HashMap::new();
    for fragment in tombstones.fragments() {
        let mut below = Seqno::MAX;
        while let Some(seqno) = fragment.newest_at(below) {
            let (lower, upper) = rules.stripe(seqno);
            let is_oldest_stripe = rules.boundaries.first().is_none_or(|&oldest| upper <= oldest);
            if !(rules.bottom && is_oldest_stripe) {
                match last_part.get(&seqno).map(|&at| &mut list[at]) {
                    Some(part) if part.end == *fragment.start => part.end = fragment.end.clone(),
                    _ => {
                        last_part.insert(seqno, list.len());
                        let (start, end) = (fragment.start.clone(), fragment.end.clone());
                        list.push(RangeTombstone { start, end, seqno });
                    }
                }
            }
            if lower == 0 {
                break;
            }
            below = lower;
        }
    }
    TombstoneSet::new(list)
}

#[cfg(test)]
mod tests;
