//! Which file the blocks of a clone came from: rows in a keyspace of their own, by which a stream refers to
//! blocks that its receiver has already.
//!
//! A row is put in the batch that makes the clone, and deleted where all blocks of the file are. It is a
//! hint: what a stream refers to was compared, so neither one that is missing nor one that is out of date
//! does harm. A program that knows none of this leaves those of files that it deletes; they mean nothing
//! (numbers of inodes are not given out again). No caller is shown a row.
//!
//! Thread safety: any thread.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kvfs_store::{Batch, BlockClone, Keyspace, KeyspaceKind, Read, Store};
use zerocopy::little_endian::{I64, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Result;
use crate::schema::inode_key;

/// Name of the keyspace; users' names have no control characters.
pub(crate) const CLONE_KEYSPACE: &str = "\u{1}clones";

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    inode: U64,
    shift: I64,
}

const _: () = assert!(size_of::<Raw>() == 16);

/// Where the blocks of a file came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CloneSource {
    /// The file that had them.
    pub(crate) inode: u64,
    /// Number of a block there, less its number in the clone.
    pub(crate) shift: i64,
}

impl CloneSource {
    fn of(clone: &BlockClone) -> Option<(u64, Self)> {
        let number = |prefix: &Bytes| prefix[..].try_into().ok().map(u64::from_be_bytes);
        let shift = clone.first.wrapping_sub(clone.target_first) as i64;
        Some((number(&clone.target)?, Self { inode: number(&clone.source)?, shift }))
    }

    fn encode(self) -> Bytes {
        let raw = Raw { inode: self.inode.into(), shift: self.shift.into() };
        Bytes::copy_from_slice(raw.as_bytes())
    }

    /// `None`: it says nothing that is known.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let raw = Raw::read_from_bytes(bytes).ok()?;
        Some(Self { inode: raw.inode.get(), shift: raw.shift.get() })
    }

    /// The block that the clone has as that one; `None`: there is none.
    pub(crate) fn block_of(self, block: u64) -> Option<u64> {
        block.checked_add_signed(self.shift)
    }
}

/// See the module.
pub(crate) struct Provenance {
    store: Arc<dyn Store>,
    /// Unset before the first clone.
    keyspace: OnceLock<Keyspace>,
}

impl Provenance {
    /// That of the store.
    pub(crate) fn open(store: &Arc<dyn Store>) -> Result<Self> {
        let provenance = Self { store: Arc::clone(store), keyspace: OnceLock::new() };
        provenance.find()?;
        Ok(provenance)
    }

    /// The keyspace, where there is one: looks for what another process may have made.
    pub(crate) fn find(&self) -> Result<Option<Keyspace>> {
        let is_there = || self.store.keyspaces().iter().any(|info| info.name == CLONE_KEYSPACE);
        if self.keyspace().is_none() && is_there() {
            self.make()?;
        }
        Ok(self.keyspace())
    }

    /// The keyspace, made where it is missing.
    pub(crate) fn make(&self) -> Result<Keyspace> {
        if let Some(keyspace) = self.keyspace.get() {
            return Ok(*keyspace);
        }
        let keyspace = self.store.open_keyspace(CLONE_KEYSPACE, KeyspaceKind::Tuple, None)?;
        Ok(*self.keyspace.get_or_init(|| keyspace))
    }

    /// The keyspace, where it is known.
    pub(crate) fn keyspace(&self) -> Option<Keyspace> {
        self.keyspace.get().copied()
    }

    /// Adds to the batch that a file gets these blocks.
    pub(crate) fn stage(&self, batch: &mut Batch, clone: &BlockClone) -> Result<()> {
        match CloneSource::of(clone) {
            Some((inode, source)) => self.stage_source(batch, inode, source),
            None => Ok(()),
        }
    }

    /// Adds to the batch that the blocks of a file came from there.
    pub(crate) fn stage_source(&self, batch: &mut Batch, inode: u64, source: CloneSource) -> Result<()> {
        batch.put(self.make()?, inode_key(inode), source.encode());
        Ok(())
    }

    /// Adds to the batch that a file has no blocks any more.
    pub(crate) fn stage_end(&self, batch: &mut Batch, inode: u64) {
        if let Some(keyspace) = self.keyspace() {
            batch.delete(keyspace, inode_key(inode));
        }
    }

    /// The same of all inodes with these numbers.
    pub(crate) fn stage_end_of_all(&self, batch: &mut Batch, inodes: &Range<u64>) {
        if let Some(keyspace) = self.keyspace() {
            batch.delete_range(keyspace, inode_key(inodes.start), inode_key(inodes.end));
        }
    }

    /// Where the blocks of a file came from, as far as `read` shows it.
    pub(crate) fn source_of(&self, read: &dyn Read, inode: u64) -> Result<Option<CloneSource>> {
        let Some(keyspace) = self.keyspace() else { return Ok(None) };
        let found = read.get(keyspace, &inode_key(inode))?;
        Ok(found.as_deref().and_then(CloneSource::decode))
    }
}
