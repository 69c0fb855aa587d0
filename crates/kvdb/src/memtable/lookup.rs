//! A point read on its way down through the layers of a keyspace, newest first.
//!
//! Invariant: the seqno ranges of the layers are disjoint and descending, so the first layer that
//! decides (with a value, a delete, or a covering range tombstone) ends the walk.
//!
//! Thread safety: belongs to one reader.

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use super::folds::CHAIN_LEN_MAX;
use super::merge::Merger;
use super::skiplist::RECORD_BYTES_MIN;
use crate::format::RecordKind;

/// What a [`Lookup`] knows about the base of its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No layer has decided yet: go on to older layers.
    Pending,
    /// The newest value below the operands.
    Found(Bytes),
    /// The key is absent below the operands.
    Absent,
}

/// The read of one key at one snapshot.
#[derive(Debug)]
pub(crate) struct Lookup<'a> {
    key: &'a [u8],
    snapshot: Seqno,
    /// Newest first.
    operands: Vec<Bytes>,
    /// The seqno of the newest operand; without one 0.
    newest_operand: Seqno,
    outcome: Outcome,
}

impl<'a> Lookup<'a> {
    /// Nothing is known yet. No allocation until a merge operand turns up.
    pub(crate) fn new(key: &'a [u8], snapshot: Seqno) -> Self {
        Self { key, snapshot, operands: Vec::new(), newest_operand: 0, outcome: Outcome::Pending }
    }

    /// The key that is looked up.
    pub(crate) fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The newest seqno that the read sees.
    pub(crate) fn snapshot(&self) -> Seqno {
        self.snapshot
    }

    /// Goes on in layers of which an older state is read: everything newer than `snapshot` there does not
    /// count.
    pub(crate) fn descend(&mut self, snapshot: Seqno) {
        self.snapshot = snapshot;
    }

    /// Whether the walk is over: older versions and layers can't change the answer.
    pub(crate) fn is_decided(&self) -> bool {
        self.outcome != Outcome::Pending
    }

    /// Whether the layers so far had merge operands.
    pub(crate) fn has_operands(&self) -> bool {
        !self.operands.is_empty()
    }

    /// The seqno of the newest operand, and what all of them take in memory (bytes), when they are so many
    /// that what they come to is worth keeping.
    pub(crate) fn long_chain(&self) -> Option<(Seqno, usize)> {
        let bytes = || self.operands.iter().map(|operand| operand.len() + RECORD_BYTES_MIN).sum();
        (self.operands.len() > CHAIN_LEN_MAX).then(|| (self.newest_operand, bytes()))
    }

    /// The state below the operands.
    #[cfg(test)]
    pub(crate) fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The merge operands met so far, newest first.
    #[cfg(test)]
    pub(crate) fn operands(&self) -> &[Bytes] {
        &self.operands
    }

    /// Takes in the next older version of the key in the current layer, at or below the snapshot.
    /// `value` is called only when it is needed. `tombstone` is the newest seqno at or below the
    /// snapshot of a range tombstone *of this layer* that covers the key. Returns whether to go on
    /// with the next older version.
    pub(crate) fn visit(
        &mut self,
        seqno: Seqno,
        kind: RecordKind,
        value: impl FnOnce() -> Bytes,
        tombstone: Option<Seqno>,
    ) -> bool {
        debug_assert!(seqno <= self.snapshot, "a record above the snapshot is not visible");
        if self.is_decided() {
            return false;
        }
        if tombstone.is_some_and(|tombstone| tombstone > seqno) {
            self.outcome = Outcome::Absent;
            return false;
        }
        match kind {
            RecordKind::Put => self.outcome = Outcome::Found(value()),
            RecordKind::Delete => self.outcome = Outcome::Absent,
            RecordKind::Merge => {
                self.newest_operand = self.newest_operand.max(seqno);
                self.operands.push(value());
            }
        }
        !self.is_decided()
    }

    /// Ends the visit of a layer: if it has a range tombstone over the key, nothing older counts.
    /// Returns whether to go on with the next older layer.
    pub(crate) fn end_layer(&mut self, tombstone: Option<Seqno>) -> bool {
        if !self.is_decided() && tombstone.is_some() {
            self.outcome = Outcome::Absent;
        }
        !self.is_decided()
    }

    /// The value, after all layers: an undecided base is absent. Resolves merge operands.
    ///
    /// # Errors
    /// As [`Merger::resolve`].
    pub(crate) fn finish(self, merger: &Merger) -> Result<Option<Bytes>> {
        let base = match self.outcome {
            Outcome::Found(value) => Some(value),
            Outcome::Pending | Outcome::Absent => None,
        };
        merger.resolve(self.key, base, &self.operands)
    }
}

#[cfg(test)]
mod tests;
