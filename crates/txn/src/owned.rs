//! Lock names that outlive an operation, and lock names as text.
//!
//! Purpose: what a list of locks or a message about a conflict keeps of a [`LockName`]. The text here knows
//! numbers only; a caller that knows paths and names of keyspaces renders a [`LockNameBuf`] better.
//!
//! Thread safety: plain values. Invariants: [`LockNameBuf::as_name`] gives the name that it was made from.

use std::fmt;

use bytes::Bytes;
use kvfs_store::Keyspace;

use crate::{Fields, LockName, Mode};

/// An owned [`LockName`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "as in `LockName`")]
pub enum LockNameBuf {
    Entry { directory: u64, name: Bytes },
    Entries { directory: u64 },
    Identity { directory: u64 },
    Counters { directory: u64 },
    Placement { directory: u64 },
    Attributes { inode: u64, fields: Fields },
    Blocks { inode: u64, first: u64, end: u64 },
    Keys { keyspace: Keyspace, start: Bytes, end: Option<Bytes> },
}

impl LockNameBuf {
    /// The name, borrowed.
    pub fn as_name(&self) -> LockName<'_> {
        match *self {
            Self::Entry { directory, ref name } => LockName::Entry { directory, name },
            Self::Entries { directory } => LockName::Entries { directory },
            Self::Identity { directory } => LockName::Identity { directory },
            Self::Counters { directory } => LockName::Counters { directory },
            Self::Placement { directory } => LockName::Placement { directory },
            Self::Attributes { inode, fields } => LockName::Attributes { inode, fields },
            Self::Blocks { inode, first, end } => LockName::Blocks { inode, first, end },
            Self::Keys { keyspace, ref start, ref end } => {
                LockName::Keys { keyspace, start, end: end.as_deref() }
            }
        }
    }
}

impl From<LockName<'_>> for LockNameBuf {
    fn from(name: LockName<'_>) -> Self {
        match name {
            LockName::Entry { directory, name } => {
                Self::Entry { directory, name: Bytes::copy_from_slice(name) }
            }
            LockName::Entries { directory } => Self::Entries { directory },
            LockName::Identity { directory } => Self::Identity { directory },
            LockName::Counters { directory } => Self::Counters { directory },
            LockName::Placement { directory } => Self::Placement { directory },
            LockName::Attributes { inode, fields } => Self::Attributes { inode, fields },
            LockName::Blocks { inode, first, end } => Self::Blocks { inode, first, end },
            LockName::Keys { keyspace, start, end } => Self::Keys {
                keyspace,
                start: Bytes::copy_from_slice(start),
                end: end.map(Bytes::copy_from_slice),
            },
        }
    }
}

impl fmt::Display for LockNameBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_name().fmt(f)
    }
}

impl fmt::Display for LockName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Entry { directory, name } => {
                write!(f, "entry \"{}\" of directory {directory}", name.escape_ascii())
            }
            Self::Entries { directory } => write!(f, "all entries of directory {directory}"),
            Self::Identity { directory } => write!(f, "place in the tree of directory {directory}"),
            Self::Counters { directory } => write!(f, "counters of directory {directory}"),
            Self::Placement { directory } => write!(f, "placement of directory {directory}"),
            Self::Attributes { inode, fields } => write!(f, "{fields} of inode {inode}"),
            Self::Blocks { inode, first: 0, end: u64::MAX } => write!(f, "all blocks of inode {inode}"),
            Self::Blocks { inode, first, end: u64::MAX } => {
                write!(f, "blocks {first}.. of inode {inode}")
            }
            Self::Blocks { inode, first, end } => write!(f, "blocks {first}..{end} of inode {inode}"),
            Self::Keys { keyspace, start, end: Some(end) } if end.strip_prefix(start) == Some(&[0]) => {
                write!(f, "key \"{}\" of keyspace {}", start.escape_ascii(), keyspace.0)
            }
            Self::Keys { keyspace, start: b"", end: None } => {
                write!(f, "all keys of keyspace {}", keyspace.0)
            }
            Self::Keys { keyspace, start, end } => {
                write!(f, "keys \"{}\"..", start.escape_ascii())?;
                if let Some(end) = end {
                    write!(f, "\"{}\"", end.escape_ascii())?;
                }
                write!(f, " of keyspace {}", keyspace.0)
            }
        }
    }
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("attributes");
        }
        let names = [
            (Self::MODE, "mode"),
            (Self::SIZE, "size"),
            (Self::TIMES, "times"),
            (Self::LINKS, "links"),
            (Self::XATTRS, "extended attributes"),
        ];
        let mut separator = "";
        for (_, name) in names.iter().filter(|(field, _)| self.intersects(*field)) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        Ok(())
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Exclusive => "exclusive",
            Self::Increment => "increment",
        })
    }
}
