//! Which part of an object a name means: a set of bits, or a stretch of blocks or keys.
//!
//! Thread safety: plain values. Invariants: two names of one object overlap if and only if their spans do.

use std::cmp::Ordering;
use std::sync::Arc;

use super::ranges::cost;
use crate::LockName;

/// A part of an object. All spans of one object are of one variant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Span {
    /// Fields, or the one bit of an object that has no parts.
    Bits(u8),
    /// Block numbers.
    Blocks(Stretch<u64>),
    /// Keys, or names in a directory.
    Keys(Stretch<Cut>),
}

/// `[start, end)`; `end = None` is unbounded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stretch<K> {
    pub(super) start: K,
    pub(super) end: Option<K>,
}

impl<K: Ord> Stretch<K> {
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        other.end.as_ref().is_none_or(|end| self.start < *end)
            && self.end.as_ref().is_none_or(|end| other.start < *end)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// A place between keys: before `bytes`, or right after it. So one key is a stretch whose ends share memory.
#[derive(Debug, Clone)]
pub(super) struct Cut {
    pub(super) bytes: Arc<[u8]>,
    pub(super) after: bool,
}

impl Ord for Cut {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = self.bytes.cmp(&other.bytes);
        match (self.after, other.after) {
            (true, false) => after_against_before(order, &self.bytes, &other.bytes),
            (false, true) => after_against_before(order.reverse(), &other.bytes, &self.bytes).reverse(),
            _ => order,
        }
    }
}

/// The place after `bytes` is the place before `bytes ‖ 00`.
fn after_against_before(order: Ordering, bytes: &[u8], other: &[u8]) -> Ordering {
    match order {
        Ordering::Less if other.strip_prefix(bytes) == Some(&[0]) => Ordering::Equal,
        Ordering::Less => Ordering::Less,
        _ => Ordering::Greater,
    }
}

impl PartialOrd for Cut {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Cut {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Cut {}

/// An end of a stretch.
pub(super) trait Bound: Ord + Clone {
    /// Memory behind it (bytes), ends that share it counted once.
    fn heap_bytes(stretch: &Stretch<Self>) -> usize;
}

impl Bound for u64 {
    fn heap_bytes(_: &Stretch<Self>) -> usize {
        0
    }
}

impl Bound for Cut {
    fn heap_bytes(stretch: &Stretch<Self>) -> usize {
        const HEADER: usize = 16;
        let end = stretch.end.as_ref().filter(|end| !Arc::ptr_eq(&end.bytes, &stretch.start.bytes));
        HEADER + stretch.start.bytes.len() + end.map_or(0, |end| HEADER + end.bytes.len())
    }
}

impl Span {
    pub(super) fn of(name: &LockName<'_>) -> Self {
        let before = |bytes: &[u8]| Cut { bytes: bytes.into(), after: false };
        match *name {
            LockName::Entry { name, .. } => {
                let start = before(name);
                let end = Cut { bytes: Arc::clone(&start.bytes), after: true };
                Self::Keys(Stretch { start, end: Some(end) })
            }
            LockName::Entries { .. } => Self::Keys(Stretch { start: before(b""), end: None }),
            LockName::Keys { start, end, .. } => {
                let start = before(start);
                let end = end.map(|end| match end.strip_prefix(&start.bytes[..]) {
                    Some([0]) => Cut { bytes: Arc::clone(&start.bytes), after: true },
                    _ => before(end),
                });
                Self::Keys(Stretch { start, end })
            }
            LockName::Blocks { first, end, .. } => {
                Self::Blocks(Stretch { start: first, end: (end < u64::MAX).then_some(end) })
            }
            LockName::Attributes { fields, .. } => Self::Bits(fields.bits()),
            LockName::Identity { .. } | LockName::Counters { .. } | LockName::Placement { .. } => {
                Self::Bits(1)
            }
        }
    }

    /// The most that an owner that holds other parts of the object needs to hold this, too (bytes): it may
    /// cut a stretch in two.
    pub(super) fn cost_max(&self) -> usize {
        match self {
            Self::Bits(_) => 0,
            Self::Blocks(stretch) => 2 * cost(stretch),
            Self::Keys(stretch) => 2 * cost(stretch),
        }
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Bits(a), Self::Bits(b)) => a & b != 0,
            (Self::Blocks(a), Self::Blocks(b)) => a.overlaps(b),
            (Self::Keys(a), Self::Keys(b)) => a.overlaps(b),
            _ => true,
        }
    }
}
