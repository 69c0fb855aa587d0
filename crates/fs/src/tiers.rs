//! On which tier the content of files is wished to lie: rows in a keyspace of their own, by which the engine
//! places blocks.
//!
//! What a file or directory is set to is in the flags of its row. A file with a wish has a row here, too,
//! which is put and deleted in the same batches. The engine reads these rows when it writes blocks, and when
//! merges copy them. What is received, or was left by a program that knows no wishes, may lack one, or have
//! one that no file has any more (numbers of inodes are not given out again): neither does harm, since a wish
//! decides of nothing but the place.
//!
//! Thread safety: any thread.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kvfs_store::{Batch, Keyspace, KeyspaceKind, Store, Tier};

use crate::schema::{Header, Keyspaces, inode_key};
use crate::{FileType, Result};

/// Name of the keyspace; users' names have no control characters.
pub(crate) const TIER_KEYSPACE: &str = "\u{1}tiers";

/// See the module.
pub(crate) struct TierWishes {
    store: Arc<dyn Store>,
    /// The keyspace of the blocks that are placed.
    data: Keyspace,
    /// Unset before the first wish.
    keyspace: OnceLock<Keyspace>,
}

impl TierWishes {
    /// Those of the store; from now on it heeds them.
    pub(crate) fn open(store: &Arc<dyn Store>, keyspaces: &Keyspaces) -> Result<Self> {
        let wishes = Self { store: Arc::clone(store), data: keyspaces.data, keyspace: OnceLock::new() };
        if store.keyspaces().iter().any(|info| info.name == TIER_KEYSPACE) {
            wishes.keyspace()?;
        }
        Ok(wishes)
    }

    /// Made where it is missing.
    fn keyspace(&self) -> Result<Keyspace> {
        if let Some(keyspace) = self.keyspace.get() {
            return Ok(*keyspace);
        }
        let keyspace = self.store.open_keyspace(TIER_KEYSPACE, KeyspaceKind::Tuple, None)?;
        self.store.place_by(self.data, keyspace)?;
        Ok(*self.keyspace.get_or_init(|| keyspace))
    }

    /// Adds to the batch that blocks of a file are to lie there; `None`: where the store decides.
    pub(crate) fn stage(&self, batch: &mut Batch, inode: u64, tier: Option<Tier>) -> Result<()> {
        if let Some(tier) = tier {
            batch.put(self.keyspace()?, inode_key(inode), Bytes::copy_from_slice(&[tier.code()]));
        } else if let Some(keyspace) = self.keyspace.get() {
            batch.delete(*keyspace, inode_key(inode));
        }
        Ok(())
    }

    /// Adds the wish of a new inode to the batch, if it has one.
    pub(crate) fn stage_new(&self, batch: &mut Batch, header: &Header) -> Result<()> {
        let tier = header.flags.tier().filter(|_| header.kind == FileType::Regular);
        if tier.is_some() { self.stage(batch, header.inode, tier) } else { Ok(()) }
    }

    /// Adds the end of an inode's wish to the batch, if it has one.
    pub(crate) fn stage_end(&self, batch: &mut Batch, header: &Header) -> Result<()> {
        if header.flags.tier().is_some() { self.stage(batch, header.inode, None) } else { Ok(()) }
    }

    /// Adds the end of the wishes of all inodes with these numbers to the batch.
    pub(crate) fn stage_end_of_all(&self, batch: &mut Batch, inodes: &Range<u64>) {
        if let Some(keyspace) = self.keyspace.get() {
            batch.delete_range(*keyspace, inode_key(inodes.start), inode_key(inodes.end));
        }
    }
}
