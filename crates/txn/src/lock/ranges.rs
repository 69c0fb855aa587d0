//! What one owner holds of one object, as disjoint stretches with a mode each.
//!
//! Purpose: a set that grows by stretches in any order; neighbours of one mode grow together, so that a
//! file written from front to back is one stretch.
//!
//! Thread safety: under the mutex of a shard. Invariants: stretches are not empty, don't overlap, and two
//! that touch have different modes.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

use super::span::{Bound, Stretch};
use crate::Mode;

/// A set of stretches. Most have one element, and then need no memory of their own.
#[derive(Debug)]
pub(super) enum Ranges<K> {
    Few(Option<(Stretch<K>, Mode)>),
    Many(BTreeMap<K, (Option<K>, Mode)>),
}

/// How a set has grown.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Growth {
    pub(super) names: isize,
    pub(super) bytes: isize,
}

impl<K: Bound> Default for Ranges<K> {
    fn default() -> Self {
        Self::Few(None)
    }
}

impl<K: Bound> Ranges<K> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(one) => usize::from(one.is_some()),
            Self::Many(map) => map.len(),
        }
    }

    /// All of it, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Stretch<K>, Mode)> + '_ {
        let (one, many) = match self {
            Self::Few(one) => (one.clone(), None),
            Self::Many(map) => (None, Some(map)),
        };
        let many = many.into_iter().flatten();
        one.into_iter().chain(
            many.map(|(start, (end, mode))| (Stretch { start: start.clone(), end: end.clone() }, *mode)),
        )
    }

    /// Whether `test` holds for a stretch that overlaps `span`. O(log n + overlapping).
    pub(super) fn any_overlapping(&self, span: &Stretch<K>, mut test: impl FnMut(Mode) -> bool) -> bool {
        match self {
            Self::Few(one) => one.as_ref().is_some_and(|(own, mode)| own.overlaps(span) && test(*mode)),
            Self::Many(map) => from_behind(map, span.end.as_ref(), false)
                .take_while(|(_, (end, _))| end.as_ref().is_none_or(|end| *end > span.start))
                .any(|(_, (_, mode))| test(*mode)),
        }
    }

    /// Whether all of `span` is held in modes that allow `mode`. O(log n + overlapping).
    pub(super) fn covers(&self, span: &Stretch<K>, mode: Mode) -> bool {
        match self {
            Self::Few(one) => one.as_ref().is_some_and(|(own, held)| {
                held.covers(mode) && own.start <= span.start && reaches(own.end.as_ref(), span.end.as_ref())
            }),
            Self::Many(map) => {
                // From behind: each one must reach what is behind it, until one holds the start.
                let mut wanted = span.end.as_ref();
                for (start, (end, held)) in from_behind(map, span.end.as_ref(), false) {
                    if !held.covers(mode) || !reaches(end.as_ref(), wanted) {
                        return false;
                    }
                    if *start <= span.start {
                        return true;
                    }
                    wanted = Some(start);
                }
                false
            }
        }
    }

    /// Adds `span`: where it is held already, in the weakest mode that allows both.
    /// O(log n + overlapping).
    pub(super) fn add(&mut self, span: &Stretch<K>, mode: Mode) -> Growth {
        if span.is_empty() {
            return Growth::default();
        }
        let near = self.take_near(span);
        let mut growth = Growth::default();
        for (stretch, _) in &near {
            growth.names -= 1;
            growth.bytes -= cost(stretch) as isize;
        }
        let mut joined: Vec<(Stretch<K>, Mode)> = Vec::with_capacity(near.len() + 2);
        for piece in overlay(&near, span, mode) {
            match joined.last_mut() {
                Some((last, last_mode))
                    if *last_mode == piece.1 && last.end.as_ref() == Some(&piece.0.start) =>
                {
                    last.end = piece.0.end;
                }
                _ => joined.push(piece),
            }
        }
        for (stretch, mode) in joined {
            growth.names += 1;
            growth.bytes += cost(&stretch) as isize;
            self.insert(stretch, mode);
        }
        growth
    }

    /// The weakest mode that allows all that is held. O(n).
    pub(super) fn mode(&self) -> Option<Mode> {
        self.iter().map(|(_, mode)| mode).reduce(Mode::union)
    }

    /// Becomes this one stretch. O(n).
    pub(super) fn replace(&mut self, stretch: Stretch<K>, mode: Mode) -> Growth {
        let mut growth = Growth { names: 1 - self.len() as isize, bytes: cost(&stretch) as isize };
        for (old, _) in self.iter() {
            growth.bytes -= cost(&old) as isize;
        }
        *self = Self::Few(Some((stretch, mode)));
        growth
    }

    /// Removes and returns what overlaps or touches `span`, in order.
    fn take_near(&mut self, span: &Stretch<K>) -> Vec<(Stretch<K>, Mode)> {
        let is_near = |start: &K, end: Option<&K>| {
            span.end.as_ref().is_none_or(|span_end| start <= span_end)
                && end.is_none_or(|end| *end >= span.start)
        };
        match self {
            Self::Few(one) => {
                one.take_if(|(own, _)| is_near(&own.start, own.end.as_ref())).into_iter().collect()
            }
            Self::Many(map) => {
                let mut near: Vec<K> = from_behind(map, span.end.as_ref(), true)
                    .take_while(|(_, (end, _))| end.as_ref().is_none_or(|end| *end >= span.start))
                    .map(|(start, _)| start.clone())
                    .collect();
                near.reverse();
                near.into_iter()
                    .filter_map(|start| {
                        let (end, mode) = map.remove(&start)?;
                        Some((Stretch { start, end }, mode))
                    })
                    .collect()
            }
        }
    }

    fn insert(&mut self, stretch: Stretch<K>, mode: Mode) {
        match self {
            Self::Few(one @ None) => *one = Some((stretch, mode)),
            Self::Few(one) => {
                let mut map = BTreeMap::new();
                for (stretch, mode) in one.take().into_iter().chain([(stretch, mode)]) {
                    map.insert(stretch.start, (stretch.end, mode));
                }
                *self = Self::Many(map);
            }
            Self::Many(map) => {
                map.insert(stretch.start, (stretch.end, mode));
            }
        }
    }
}

/// What begins before `end` (or there, if `touching`), the last one first. One search, however much follows.
fn from_behind<'m, K: Ord>(
    map: &'m BTreeMap<K, (Option<K>, Mode)>,
    end: Option<&K>,
    touching: bool,
) -> impl Iterator<Item = (&'m K, &'m (Option<K>, Mode))> {
    let upper = match end {
        None => Unbounded,
        Some(end) if touching => Included(end),
        Some(end) => Excluded(end),
    };
    map.range::<K, _>((Unbounded, upper)).rev()
}

/// Whether an end is at or after another.
fn reaches<K: Ord>(end: Option<&K>, wanted: Option<&K>) -> bool {
    end.is_none_or(|end| wanted.is_some_and(|wanted| end >= wanted))
}

/// `near` with `span` over it, cut where modes may differ.
fn overlay<K: Bound>(near: &[(Stretch<K>, Mode)], span: &Stretch<K>, mode: Mode) -> Vec<(Stretch<K>, Mode)> {
    let mut pieces = Vec::with_capacity(near.len() + 2);
    let mut push = |start: &K, end: Option<&K>, mode: Mode| {
        let stretch = Stretch { start: start.clone(), end: end.cloned() };
        if !stretch.is_empty() {
            pieces.push((stretch, mode));
        }
    };
    // Up to where `span` is dealt with; `None`: all of it.
    let mut done = Some(span.start.clone());
    for (own, own_mode) in near {
        if !own.overlaps(span) {
            if own.start >= span.start
                && let Some(from) = done.take()
            {
                push(&from, span.end.as_ref(), mode);
            }
            push(&own.start, own.end.as_ref(), *own_mode);
            continue;
        }
        if own.start < span.start {
            push(&own.start, Some(&span.start), *own_mode);
        }
        let inner_start = own.start.clone().max(span.start.clone());
        if let Some(from) = &done {
            push(from, Some(&inner_start), mode);
        }
        if reaches(own.end.as_ref(), span.end.as_ref()) {
            push(&inner_start, span.end.as_ref(), own_mode.union(mode));
            done = None;
            if let Some(span_end) = &span.end {
                push(span_end, own.end.as_ref(), *own_mode);
            }
        } else {
            push(&inner_start, own.end.as_ref(), own_mode.union(mode));
            done.clone_from(&own.end);
        }
    }
    if let Some(from) = done {
        push(&from, span.end.as_ref(), mode);
    }
    pieces
}

/// Memory of a stretch in a set (bytes): its place in a tree's node, which is three quarters full, and what
/// its ends refer to.
pub(super) fn cost<K: Bound>(stretch: &Stretch<K>) -> usize {
    size_of::<(K, Option<K>, Mode)>() * 4 / 3 + K::heap_bytes(stretch)
}
