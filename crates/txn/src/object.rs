//! The object that a name is about: what tables hash by. Names of one object may overlap in part.
//!
//! Thread safety: plain values. Invariants: names that can conflict have the same key.

use crate::LockName;

/// Which kind of object, and which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectKey {
    pub(crate) kind: Kind,
    pub(crate) id: u64,
}

/// Kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    Entries,
    Identity,
    Counters,
    Placement,
    Attributes,
    Blocks,
    Keys,
}

impl Kind {
    /// The kind with this number, if there is one.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let all = [
            Self::Entries,
            Self::Identity,
            Self::Counters,
            Self::Placement,
            Self::Attributes,
            Self::Blocks,
            Self::Keys,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

impl ObjectKey {
    pub(crate) fn of(name: &LockName<'_>) -> Self {
        let (kind, id) = match *name {
            LockName::Entry { directory, .. } | LockName::Entries { directory } => (Kind::Entries, directory),
            LockName::Identity { directory } => (Kind::Identity, directory),
            LockName::Counters { directory } => (Kind::Counters, directory),
            LockName::Placement { directory } => (Kind::Placement, directory),
            LockName::Attributes { inode, .. } => (Kind::Attributes, inode),
            LockName::Blocks { inode, .. } => (Kind::Blocks, inode),
            LockName::Keys { keyspace, .. } => (Kind::Keys, u64::from(keyspace.0)),
        };
        Self { kind, id }
    }

    /// Spreads keys over shards (Fibonacci hashing).
    pub(crate) fn hash(self) -> u64 {
        (self.id ^ ((self.kind as u64) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
    }
}
