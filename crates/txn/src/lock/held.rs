//! What one owner holds of one object of any kind.
//!
//! Thread safety: under the mutex of a shard. Invariants: its variant is that of the object's spans.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::Keyspace;

use super::ranges::{Growth, Ranges};
use super::span::{Cut, Span, Stretch};
use crate::object::{Kind, ObjectKey};
use crate::{Fields, LockNameBuf, Mode};

/// Parts of an object, with a mode each.
#[derive(Debug)]
pub(super) enum Held {
    Bits([Option<Mode>; 8]),
    Blocks(Ranges<u64>),
    Keys(Ranges<Cut>),
}

impl Held {
    /// Nothing, of the kind of object that `span` is a part of.
    pub(super) fn new(span: &Span) -> Self {
        match span {
            Span::Bits(_) => Self::Bits([None; 8]),
            Span::Blocks(_) => Self::Blocks(Ranges::default()),
            Span::Keys(_) => Self::Keys(Ranges::default()),
        }
    }

    pub(super) fn names_count(&self) -> usize {
        match self {
            Self::Bits(bits) => bits.iter().flatten().count(),
            Self::Blocks(ranges) => ranges.len(),
            Self::Keys(ranges) => ranges.len(),
        }
    }

    /// Whether another owner may not hold `span` in `mode` beside this.
    pub(super) fn conflicts(&self, span: &Span, mode: Mode) -> bool {
        let test = |held: Mode| !held.compatible(mode);
        match (self, span) {
            (Self::Bits(bits), Span::Bits(wanted)) => of(bits, *wanted).flatten().any(test),
            (Self::Blocks(ranges), Span::Blocks(span)) => ranges.any_overlapping(span, test),
            (Self::Keys(ranges), Span::Keys(span)) => ranges.any_overlapping(span, test),
            _ => true,
        }
    }

    /// Whether `span` in `mode` is held already.
    pub(super) fn covers(&self, span: &Span, mode: Mode) -> bool {
        match (self, span) {
            (Self::Bits(bits), Span::Bits(wanted)) => {
                of(bits, *wanted).all(|held| held.is_some_and(|held| held.covers(mode)))
            }
            (Self::Blocks(ranges), Span::Blocks(span)) => ranges.covers(span, mode),
            (Self::Keys(ranges), Span::Keys(span)) => ranges.covers(span, mode),
            _ => false,
        }
    }

    pub(super) fn add(&mut self, span: &Span, mode: Mode) -> Growth {
        match (self, span) {
            (Self::Bits(bits), Span::Bits(wanted)) => {
                let before = bits.iter().flatten().count();
                for (index, held) in bits.iter_mut().enumerate() {
                    if wanted & (1 << index) != 0 {
                        *held = Some(held.map_or(mode, |held| held.union(mode)));
                    }
                }
                Growth { names: (bits.iter().flatten().count() - before) as isize, bytes: 0 }
            }
            (Self::Blocks(ranges), Span::Blocks(span)) => ranges.add(span, mode),
            (Self::Keys(ranges), Span::Keys(span)) => ranges.add(span, mode),
            _ => Growth::default(),
        }
    }

    /// The whole object, and the weakest mode that allows all that is held; `None` for an object without
    /// stretches, or when nothing is held.
    pub(super) fn whole(&self) -> Option<(Span, Mode)> {
        match self {
            Self::Bits(_) => None,
            Self::Blocks(ranges) => Some((Span::Blocks(Stretch { start: 0, end: None }), ranges.mode()?)),
            Self::Keys(ranges) => {
                let start = Cut { bytes: Arc::default(), after: false };
                Some((Span::Keys(Stretch { start, end: None }), ranges.mode()?))
            }
        }
    }

    /// Becomes `whole` in `mode`, from [`Held::whole`].
    pub(super) fn collapse(&mut self, whole: &Span, mode: Mode) -> Growth {
        match (self, whole) {
            (Self::Blocks(ranges), Span::Blocks(stretch)) => ranges.replace(stretch.clone(), mode),
            (Self::Keys(ranges), Span::Keys(stretch)) => ranges.replace(stretch.clone(), mode),
            _ => Growth::default(),
        }
    }

    /// As names of the object `key`, each with its span.
    pub(super) fn names(&self, key: ObjectKey) -> Vec<(LockNameBuf, Span, Mode)> {
        match self {
            Self::Bits(bits) => [Mode::Shared, Mode::Exclusive, Mode::Increment]
                .into_iter()
                .filter_map(|mode| {
                    let held = |index: &usize| bits[*index] == Some(mode);
                    let set = (0..bits.len()).filter(held).fold(0, |set, index| set | 1_u8 << index);
                    (set != 0).then(|| (bits_name(key, set), Span::Bits(set), mode))
                })
                .collect(),
            Self::Blocks(ranges) => ranges
                .iter()
                .map(|(stretch, mode)| {
                    let (first, end) = (stretch.start, stretch.end.unwrap_or(u64::MAX));
                    let name = LockNameBuf::Blocks { inode: key.id, first, end };
                    (name, Span::Blocks(stretch), mode)
                })
                .collect(),
            Self::Keys(ranges) => {
                let mut names: Vec<(LockNameBuf, Span, Mode)> = Vec::new();
                for (stretch, mode) in ranges.iter() {
                    let name = keys_name(key, &stretch);
                    // What is left of a directory between entries that are held in another mode is one row.
                    let twin = match name {
                        LockNameBuf::Entries { .. } => {
                            names.iter_mut().find(|(known, _, held)| *known == name && *held == mode)
                        }
                        _ => None,
                    };
                    match twin {
                        Some((known, span, _)) => *span = Span::of(&known.as_name()),
                        None => names.push((name, Span::Keys(stretch), mode)),
                    }
                }
                names
            }
        }
    }
}

fn of(bits: &[Option<Mode>; 8], wanted: u8) -> impl Iterator<Item = Option<Mode>> + '_ {
    bits.iter().enumerate().filter(move |(index, _)| wanted & (1 << index) != 0).map(|(_, held)| *held)
}

fn bits_name(key: ObjectKey, set: u8) -> LockNameBuf {
    match key.kind {
        Kind::Identity => LockNameBuf::Identity { directory: key.id },
        Kind::Counters => LockNameBuf::Counters { directory: key.id },
        Kind::Placement => LockNameBuf::Placement { directory: key.id },
        _ => LockNameBuf::Attributes { inode: key.id, fields: Fields::from_bits(set) },
    }
}

fn keys_name(key: ObjectKey, stretch: &Stretch<Cut>) -> LockNameBuf {
    if key.kind == Kind::Entries {
        // What is left beside an entry that is held in another mode counts as all of them.
        return match &stretch.end {
            Some(end) if end.after && end.bytes == stretch.start.bytes && !stretch.start.after => {
                let name = Bytes::copy_from_slice(&end.bytes);
                LockNameBuf::Entry { directory: key.id, name }
            }
            _ => LockNameBuf::Entries { directory: key.id },
        };
    }
    LockNameBuf::Keys {
        keyspace: Keyspace(key.id as u32),
        start: key_of(&stretch.start),
        end: stretch.end.as_ref().map(key_of),
    }
}

fn key_of(cut: &Cut) -> Bytes {
    if cut.after {
        let mut key = cut.bytes.to_vec();
        key.push(0);
        key.into()
    } else {
        Bytes::copy_from_slice(&cut.bytes)
    }
}
