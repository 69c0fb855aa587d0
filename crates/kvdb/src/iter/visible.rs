//! What a reader at a snapshot sees of a keyspace, as a cursor over keys and values.
//!
//! Invariants: while an entry is shown on a forward walk, the records stand on a version of its key
//! or behind all of them; on a backward walk they stand before all versions of its key.

use std::{any::Any, sync::Arc};

use bytes::Bytes;
use kvfs_store::{Cursor, KeyRange, Result, Seqno};

use super::{MergingIter, layers::LayerTombstones};
use crate::{
    format::{RecordIter, RecordKind, RecordRef},
    memtable::{Merger, TombstoneSet},
};

/// Versions of a key that are stepped over before a seek takes the place of steps.
const VERSION_STEPS_MAX: usize = 8;

/// Keys hidden by newer layers that are stepped over before the older layers jump.
const HIDDEN_KEYS_MAX: usize = 4;

/// The private layers of a transaction, which lie above all others.
pub(crate) struct OwnLayers {
    /// Newest first. All seqnos are above those of the layers that all readers see.
    pub sources: Vec<Source>,
    /// The newest seqno that counts in them.
    pub limit: Seqno,
}

/// One layer of a keyspace: records and range tombstones.
pub(crate) struct Source {
    /// Point records.
    pub records: Box<dyn RecordIter>,
    /// Range tombstones of the same layer, as any number of sets.
    pub tombstones: Vec<Arc<TombstoneSet>>,
}

/// Where the cursor stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Not moved yet, or after an error.
    Fresh,
    /// On `key`, reached by a forward move.
    Forward,
    /// On `key`, reached by a backward move.
    Backward,
    BeforeFirst,
    AfterLast,
}

/// An ordered walk over the visible entries of a key range, both ways.
///
/// A step costs O(log k) comparisons for k layers, plus the versions that it passes. Stretches that
/// a newer layer has range-deleted are jumped over in the older layers.
pub(crate) struct VisibleCursor {
    records: MergingIter,
    tombstones: Vec<LayerTombstones>,
    has_tombstones: bool,
    /// For each layer the newest seqno that counts.
    limits: Vec<Seqno>,
    range: KeyRange,
    merger: Merger,
    place: Place,
    /// On a forward walk: whether the records stand on a version of `key`, or else behind all of them.
    is_on_key: bool,
    key: Vec<u8>,
    value: Bytes,
    /// Keeps alive what the sources need (a pinned version).
    _guard: Box<dyn Any + Send>,
}

/// A record of the current key.
#[derive(Debug, Clone, Copy)]
struct Version {
    seqno: Seqno,
    kind: RecordKind,
    layer: usize,
}

/// What the versions of one key come to.
struct Resolved {
    value: Option<Bytes>,
    /// A layer whose tombstones hide the key from older layers.
    hidden_by: Option<usize>,
}

impl VisibleCursor {
    /// As [`VisibleCursor::through`], for a reader without layers of its own.
    #[cfg(test)]
    pub(crate) fn new(
        sources: Vec<Source>,
        snapshot: Seqno,
        range: KeyRange,
        merger: Merger,
        guard: Box<dyn Any + Send>,
    ) -> Self {
        let own = OwnLayers { sources: Vec::new(), limit: snapshot };
        Self::through(own, sources, snapshot, range, merger, guard)
    }

    /// A fresh cursor over `range` of the layers `sources`, newest first, for the reader that owns the
    /// private layers `own`. `guard` is dropped with it.
    pub(crate) fn through(
        own: OwnLayers,
        sources: Vec<Source>,
        snapshot: Seqno,
        range: KeyRange,
        merger: Merger,
        guard: Box<dyn Any + Send>,
    ) -> Self {
        let own_limits = std::iter::repeat_n(own.limit, own.sources.len());
        let limits = own_limits.chain(std::iter::repeat_n(snapshot, sources.len())).collect();
        let sources = own.sources.into_iter().chain(sources);
        let (records, tombstones): (Vec<_>, Vec<_>) =
            sources.map(|source| (source.records, LayerTombstones::new(source.tombstones))).unzip();
        let has_tombstones = !tombstones.iter().all(LayerTombstones::is_empty);
        Self {
            records: MergingIter::new(records),
            tombstones,
            has_tombstones,
            limits,
            range,
            merger,
            place: Place::Fresh,
            is_on_key: false,
            key: Vec::new(),
            value: Bytes::new(),
            _guard: guard,
        }
    }

    /// No layer shows anything newer than this.
    fn top(&self) -> Seqno {
        self.limits.first().copied().unwrap_or(0)
    }

    /// The current record when it belongs to `self.key`.
    fn version(&self) -> Option<Version> {
        let RecordRef { key, seqno, kind } = self.records.record()?;
        if *key != self.key[..] {
            return None;
        }
        Some(Version { seqno, kind, layer: self.records.current_child()? })
    }

    /// Moves, and forgets the place when that fails.
    fn moving(&mut self, go: impl FnOnce(&mut Self) -> Result<Place>) -> Result<()> {
        self.place = Place::Fresh;
        self.place = go(self)?;
        if !matches!(self.place, Place::Forward | Place::Backward) {
            self.value = Bytes::new();
        }
        Ok(())
    }

    /// From the first record of some key on to the next entry; `is_left`: the first key that is not
    /// `self.key`.
    fn settle_forward(&mut self, mut is_left: bool) -> Result<Place> {
        let (mut hidden, mut steps) = (0, 0);
        loop {
            let (Some(record), Some(layer)) = (self.records.record(), self.records.current_child()) else {
                return Ok(Place::AfterLast);
            };
            if is_left && *record.key == self.key[..] {
                if steps == VERSION_STEPS_MAX {
                    self.seek_behind_key()?;
                } else {
                    self.records.next()?;
                }
                steps += 1;
                continue;
            }
            if self.range.end.as_ref().is_some_and(|end| *record.key >= end[..]) {
                return Ok(Place::AfterLast);
            }
            self.key.clear();
            self.key.extend_from_slice(record.key);
            let newest = Version { seqno: record.seqno, kind: record.kind, layer };
            if self.is_all_there_is(newest) {
                self.value = self.records.value()?;
                self.is_on_key = true;
                return Ok(Place::Forward);
            }
            let resolved = self.resolve_forward(Some(newest))?;
            if let Some(value) = resolved.value {
                self.value = value;
                return Ok(Place::Forward);
            }
            (is_left, steps) = (true, 0);
            let Some(layer) = resolved.hidden_by else {
                hidden = 0;
                continue;
            };
            hidden += 1;
            if hidden > HIDDEN_KEYS_MAX
                && let Some(end) = self.tombstones[layer].covered_until(&self.key, self.limits[layer])
            {
                self.records.skip_to(layer + 1, &end)?;
            }
        }
    }

    /// Whether the newest version of `self.key` says by itself what the key is, as it does for most keys.
    #[inline]
    fn is_all_there_is(&mut self, newest: Version) -> bool {
        newest.kind == RecordKind::Put
            && newest.seqno <= self.limits[newest.layer]
            && self.hiding_layer(newest.layer, newest.seqno).is_none()
    }

    /// From the last record of some key back to the next entry before.
    fn settle_backward(&mut self) -> Result<Place> {
        let mut hidden = 0;
        loop {
            let Some(record) = self.records.record() else { return Ok(Place::BeforeFirst) };
            if *record.key < self.range.start[..] {
                return Ok(Place::BeforeFirst);
            }
            self.key.clear();
            self.key.extend_from_slice(record.key);
            let resolved = self.resolve_backward()?;
            if let Some(value) = resolved.value {
                self.value = value;
                return Ok(Place::Backward);
            }
            let Some(layer) = resolved.hidden_by else {
                hidden = 0;
                continue;
            };
            hidden += 1;
            if hidden > HIDDEN_KEYS_MAX
                && let Some(start) = self.tombstones[layer].covered_from(&self.key, self.limits[layer])
            {
                self.records.skip_before(layer + 1, &start)?;
            }
        }
    }

    /// The next version of `self.key` that counts, from the current record on, which is `current` if that is
    /// known.
    fn visible_version(&mut self, mut current: Option<Version>) -> Result<Option<Version>> {
        let mut steps = 0;
        loop {
            let Some(version) = current.take().or_else(|| self.version()) else { return Ok(None) };
            let limit = self.limits[version.layer];
            if version.seqno <= limit {
                return Ok(Some(version));
            }
            if steps == VERSION_STEPS_MAX {
                // Layers above this one are behind already: their seqnos are greater.
                self.records.seek(&self.key, limit)?;
                steps = 0;
            } else {
                self.records.next()?;
                steps += 1;
            }
        }
    }

    fn seek_behind_key(&mut self) -> Result<()> {
        self.key.push(0);
        let sought = self.records.seek(&self.key, Seqno::MAX);
        self.key.pop();
        sought
    }

    /// From the newest version of `self.key`, if it is known, on to the one that decides, or behind them.
    fn resolve_forward(&mut self, newest: Option<Version>) -> Result<Resolved> {
        let (mut base, mut operands, mut hidden_by) = (None, Vec::new(), None);
        let mut next = self.visible_version(newest)?;
        while let Some(Version { seqno, kind, layer }) = next {
            let hiding = self.hiding_layer(layer, seqno);
            if hiding.is_some() {
                hidden_by = hiding.filter(|&hiding| hiding < layer);
                break;
            }
            match kind {
                RecordKind::Delete => break,
                RecordKind::Put => {
                    base = Some(self.records.value()?);
                    break;
                }
                RecordKind::Merge => operands.push(self.records.value()?),
            }
            self.records.next()?;
            next = self.visible_version(None)?;
        }
        self.is_on_key = next.is_some();
        Ok(Resolved { value: self.merger.resolve(&self.key, base, &operands)?, hidden_by })
    }

    /// From the oldest version of `self.key` to before all of them. Whether one can be read matters if it
    /// counts in the end.
    fn resolve_backward(&mut self) -> Result<Resolved> {
        let (mut base, mut operands, mut hidden_by) = (None, Vec::new(), None);
        let mut steps = 0;
        while let Some(Version { seqno, kind, layer }) = self.version() {
            if steps == VERSION_STEPS_MAX {
                // Many versions: from the newest on is the shorter way.
                self.records.seek(&self.key, self.top())?;
                let resolved = self.resolve_forward(None)?;
                self.records.seek_before(&self.key)?;
                return Ok(resolved);
            }
            if seqno <= self.limits[layer] {
                let hiding = self.hiding_layer(layer, seqno);
                hidden_by = hiding.filter(|&hiding| hiding < layer);
                if hiding.is_some() || kind != RecordKind::Merge {
                    operands.clear();
                    base = match kind {
                        RecordKind::Put if hiding.is_none() => Some(self.records.value()),
                        _ => None,
                    };
                } else {
                    operands.push(self.records.value());
                }
            }
            self.records.prev()?;
            steps += 1;
        }
        let operands = operands.into_iter().rev().collect::<Result<Vec<_>>>()?;
        let value = self.merger.resolve(&self.key, base.transpose()?, &operands)?;
        Ok(Resolved { value, hidden_by })
    }

    /// The newest layer, down to `layer`, whose tombstones hide the record at `seqno` of that layer.
    fn hiding_layer(&mut self, layer: usize, seqno: Seqno) -> Option<usize> {
        if !self.has_tombstones {
            return None;
        }
        let (key, limits) = (&self.key, &self.limits);
        let mut layers = self.tombstones[..=layer].iter_mut().zip(limits);
        layers
            .position(|(layer, &limit)| layer.covering(key, limit).is_some_and(|tombstone| tombstone > seqno))
    }
}

impl Cursor for VisibleCursor {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.moving(|cursor| {
            let from = key.max(&cursor.range.start);
            if cursor.range.end.as_ref().is_some_and(|end| *from >= end[..]) {
                return Ok(Place::AfterLast);
            }
            cursor.records.seek(from, cursor.top())?;
            cursor.settle_forward(false)
        })
    }

    fn seek_back(&mut self, key: &[u8]) -> Result<()> {
        self.moving(|cursor| {
            match &cursor.range.end {
                Some(end) if *key >= end[..] => cursor.records.seek_before(end)?,
                _ => cursor.records.seek_before(&[key, &[0]].concat())?,
            }
            cursor.settle_backward()
        })
    }

    fn first(&mut self) -> Result<()> {
        let start = self.range.start.clone();
        self.seek(&start)
    }

    fn last(&mut self) -> Result<()> {
        self.moving(|cursor| {
            match &cursor.range.end {
                Some(end) => cursor.records.seek_before(end)?,
                None => cursor.records.last()?,
            }
            cursor.settle_backward()
        })
    }

    fn next(&mut self) -> Result<()> {
        match self.place {
            Place::Fresh | Place::BeforeFirst => self.first(),
            Place::AfterLast => Ok(()),
            Place::Forward => self.moving(|cursor| {
                if cursor.is_on_key {
                    cursor.records.next()?;
                }
                cursor.settle_forward(true)
            }),
            Place::Backward => self.moving(|cursor| {
                cursor.seek_behind_key()?;
                cursor.settle_forward(false)
            }),
        }
    }

    fn prev(&mut self) -> Result<()> {
        match self.place {
            Place::Fresh | Place::AfterLast => self.last(),
            Place::BeforeFirst => Ok(()),
            Place::Forward => self.moving(|cursor| {
                cursor.records.seek_before(&cursor.key)?;
                cursor.settle_backward()
            }),
            Place::Backward => self.moving(Self::settle_backward),
        }
    }

    fn entry(&self) -> Option<(&[u8], &Bytes)> {
        matches!(self.place, Place::Forward | Place::Backward).then_some((&self.key[..], &self.value))
    }
}

#[cfg(test)]
mod tests;
