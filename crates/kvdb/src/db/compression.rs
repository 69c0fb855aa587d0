//! Settings of compression, and the mark in the superblocks that comes before the first packed byte.
//!
//! Crash order: both superblocks say that there may be packed data, and are flushed, before the journal or the
//! manifest name any. So a program that knows nothing of it refuses the store by its version.

use std::sync::atomic::Ordering;

use kvfs_store::{Batch, Compression, Keyspace, Op, Result};

use super::inner::Inner;
use super::keyspaces::KeyspaceMeta;
use crate::format::FORMAT_VERSION_PACKED;
use crate::run::Packing;
use crate::version::Edit;

impl Inner {
    pub(crate) fn set_compression(&self, keyspace: Keyspace, compression: Compression) -> Result<()> {
        self.check_accepting()?;
        // Held across look-up and edit, as by whoever makes keyspaces.
        let _making = self.making_keyspace.lock();
        if self.keyspaces.get(keyspace.0)?.compression == compression {
            return Ok(());
        }
        self.allow_packing()?;
        let edit = Edit::SetCompression { keyspace: keyspace.0, compression };
        self.install(vec![edit], &[], &[], |view| view)?;
        self.keyspaces.set_compression(keyspace.0, compression);
        Ok(())
    }

    /// Sees to the mark when `batch` is the first one with a wish for compression. O(operations).
    pub(crate) fn allow_wishes(&self, batch: &Batch) -> Result<()> {
        let is_wish = |op: &Op| match op {
            Op::PutBlocks { compression, .. } | Op::PatchBlock { compression, .. } => {
                *compression != Compression::None
            }
            _ => false,
        };
        if !self.packs.load(Ordering::Acquire) && batch.ops().iter().any(is_wish) {
            self.allow_packing()?;
        }
        Ok(())
    }

    /// How data of a keyspace is to be packed now: not at all before the mark is there.
    pub(crate) fn packing(&self, meta: &KeyspaceMeta) -> Packing {
        if !self.packs.load(Ordering::Acquire) {
            return Packing::default();
        }
        Packing { compression: meta.compression, merger: Some(meta.merger.clone()) }
    }

    pub(crate) fn allow_packing(&self) -> Result<()> {
        if self.packs.load(Ordering::Acquire) {
            return Ok(());
        }
        let ledger = self.ledger.lock();
        self.health.observe(ledger.manifest.raise_version(FORMAT_VERSION_PACKED))?;
        self.packs.store(true, Ordering::Release);
        Ok(())
    }
}
