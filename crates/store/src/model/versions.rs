//! The versions of one key: the newest, and older ones while snapshots see them.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::Seqno;

/// One version; `None` is a tombstone.
struct Version {
    seqno: Seqno,
    value: Option<Bytes>,
}

/// All versions of one key. Most keys have one, which costs no allocation.
pub(super) struct Versions {
    newest: Version,
    /// Newest first.
    older: Vec<Version>,
}

impl Versions {
    /// A key that appears at `seqno`.
    pub(super) fn new(seqno: Seqno, value: Bytes) -> Self {
        Self { newest: Version { seqno, value: Some(value) }, older: Vec::new() }
    }

    /// The value at position `at`.
    pub(super) fn at(&self, at: Seqno) -> Option<&Bytes> {
        if self.newest.seqno <= at {
            return self.newest.value.as_ref();
        }
        self.older.iter().find(|version| version.seqno <= at)?.value.as_ref()
    }

    /// Whether something was written between two pinned positions that shows in either.
    pub(super) fn is_touched(&self, older: Seqno, newer: Seqno) -> bool {
        let seen = |at: Seqno| {
            let all = std::iter::once(&self.newest).chain(&self.older);
            all.into_iter().find(|version| version.seqno <= at)
        };
        let (old, new) = (seen(older), seen(newer));
        let has_value = [old, new].into_iter().flatten().any(|version| version.value.is_some());
        has_value && old.map(|version| version.seqno) != new.map(|version| version.seqno)
    }

    /// Adds a version and drops those that no reader sees any more.
    pub(super) fn push(&mut self, seqno: Seqno, value: Option<Bytes>, pins: &BTreeMap<Seqno, usize>) {
        let previous = std::mem::replace(&mut self.newest, Version { seqno, value });
        if pins.is_empty() {
            self.older.clear();
        } else {
            self.older.insert(0, previous);
            self.prune(pins);
        }
    }

    /// Drops the versions that no pin sees: `v` is seen by pins from its seqno up to its successor's.
    pub(super) fn prune(&mut self, pins: &BTreeMap<Seqno, usize>) {
        let mut successor = self.newest.seqno;
        self.older.retain(|version| {
            let seen = pins.range(version.seqno..successor).next().is_some();
            successor = version.seqno;
            seen
        });
        // Below the oldest version the key is absent anyway.
        while self.older.pop_if(|version| version.value.is_none()).is_some() {}
    }

    /// Whether versions are kept that only snapshots see.
    pub(super) fn has_older(&self) -> bool {
        !self.older.is_empty()
    }

    /// Whether no reader sees a value: the key can leave the map.
    pub(super) fn is_absent(&self) -> bool {
        self.older.is_empty() && self.newest.value.is_none()
    }

    /// What all versions take, each `key_bytes` beside its value.
    pub(super) fn bytes(&self, key_bytes: usize) -> u64 {
        let versions = std::iter::once(&self.newest).chain(&self.older);
        versions.map(|version| (key_bytes + version.value.as_ref().map_or(0, Bytes::len)) as u64).sum()
    }
}
