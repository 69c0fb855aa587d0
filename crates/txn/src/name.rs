//! Logical lock names and modes.
//!
//! Names refer to what is locked (a directory's entry, the size of a file, a range of its blocks), not to
//! where it is stored, so that a row can move without a lock moving with it.

use kvfs_store::Keyspace;

/// How a name is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// With other shared holders.
    Shared,
    /// Alone.
    Exclusive,
    /// With other increments only: blind updates that commute (counters, maxima).
    Increment,
}

impl Mode {
    /// Whether two different owners may hold the same name in these modes at once.
    pub fn compatible(self, other: Self) -> bool {
        self == other && self != Self::Exclusive
    }

    /// Whether a holder in this mode may do what `other` allows.
    pub fn covers(self, other: Self) -> bool {
        self == Self::Exclusive || self == other
    }

    /// The weakest mode that allows what both allow.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        if self == other { self } else { Self::Exclusive }
    }
}

/// A set of attribute fields of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fields(u8);

impl Fields {
    /// Permission bits, owner and group.
    pub const MODE: Self = Self(1);
    /// Size and block count.
    pub const SIZE: Self = Self(2);
    /// Modification and change time.
    pub const TIMES: Self = Self(4);
    /// Existence, link count, and where the row is.
    pub const LINKS: Self = Self(8);
    /// Extended attributes.
    pub const XATTRS: Self = Self(16);
    /// All of them.
    pub const ALL: Self = Self(31);

    /// Fields of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// One bit for each field.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// The fields of these bits.
    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// Whether the sets share a field.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What a lock is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockName<'a> {
    /// An entry of a directory, whether it exists or not.
    Entry {
        /// Inode of the directory.
        directory: u64,
        /// Name in it.
        name: &'a [u8],
    },
    /// All entries of a directory, those that don't exist included: the name for a listing. Conflicts with
    /// every [`LockName::Entry`] of it.
    Entries {
        /// Inode of the directory.
        directory: u64,
    },
    /// Where a directory is in the tree: its ancestors and their links.
    Identity {
        /// Inode of the directory.
        directory: u64,
    },
    /// Times, link count and number of entries of a directory.
    Counters {
        /// Inode of the directory.
        directory: u64,
    },
    /// Under which subtree and label the rows of a directory are stored.
    Placement {
        /// Inode of the directory.
        directory: u64,
    },
    /// Attribute fields of an inode.
    Attributes {
        /// Inode.
        inode: u64,
        /// Which fields.
        fields: Fields,
    },
    /// Blocks `first .. end` of a file.
    Blocks {
        /// Inode.
        inode: u64,
        /// First block.
        first: u64,
        /// Block after the last; `u64::MAX`: to the end.
        end: u64,
    },
    /// Keys `[start, end)` of a user's keyspace.
    Keys {
        /// Keyspace.
        keyspace: Keyspace,
        /// Inclusive lower end.
        start: &'a [u8],
        /// Exclusive upper end; `None`: unbounded.
        end: Option<&'a [u8]>,
    },
}

/// A name and how it is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Want<'a> {
    /// What.
    pub name: LockName<'a>,
    /// How.
    pub mode: Mode,
}

impl LockName<'_> {
    /// Every block of a file.
    pub const fn file(inode: u64) -> Self {
        Self::Blocks { inode, first: 0, end: u64::MAX }
    }
}

impl<'a> Want<'a> {
    /// `name`, together with other readers.
    pub const fn shared(name: LockName<'a>) -> Self {
        Self { name, mode: Mode::Shared }
    }

    /// `name`, alone.
    pub const fn exclusive(name: LockName<'a>) -> Self {
        Self { name, mode: Mode::Exclusive }
    }

    /// `name`, together with other increments.
    pub const fn increment(name: LockName<'a>) -> Self {
        Self { name, mode: Mode::Increment }
    }
}
