//! Large writes go to their final place at once; the journal and the memtable refer to them there (write
//! once: BetrFS 0.2, "late binding").
//!
//! Crash order: both superblocks announce bound blocks before the journal has one (`features.rs`); the blocks
//! are written before the group that binds them, and a flush of the journal makes both durable; a flush of
//! the memtable first has the journal write what it has open, then a piece refers to the blocks where they
//! are. Their space stays in use until the tail of the journal has passed them.
//!
//! Thread safety: no lock is held while space is found and checksums are computed; writers do so in parallel.

use std::sync::Arc;

use kvfs_store::{BLOCK_BYTES, Batch, Compression, Op, Result, StoreError, Tier};

use crate::format::{Feature, crc32c};
use crate::journal::{Binder, Wanted};
use crate::live::LiveSet;
use crate::live::keyspaces::Keyspaces;
use crate::runtime::Runtime;
use crate::space::{Bindings, Bound, Budget, NewBlocks, Stream};
use crate::write::Writer;

impl Writer {
    /// Finds a place for the blocks of each operation that has many of them and does not wish to have them
    /// packed. What finds none goes through the journal.
    pub(super) fn bind(&self, batch: &Batch) -> Result<Bindings> {
        let mut bindings = Bindings::default();
        for (at, op) in batch.ops().iter().enumerate() {
            let Op::PutBlocks { keyspace, prefix, data, compression: Compression::None, .. } = op else {
                continue;
            };
            if data.len() < self.runtime.options.bind_bytes_min
                || self.live.packing(&self.keyspaces.get(keyspace.0)?).compression != Compression::None
            {
                continue;
            }
            let crcs = data.chunks_exact(BLOCK_BYTES).map(crc32c).collect();
            let wish = self.live.tier_wished_with(batch, keyspace.0, prefix);
            match allocate(&self.runtime, wish, crcs) {
                Ok(bound) => bindings.push(at, bound),
                Err(StoreError::Full) => {
                    tracing::debug!(bytes = data.len(), "blocks find no place, and go through the journal");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if !bindings.is_empty() {
            self.live.announce(Feature::Bound)?;
        }
        Ok(bindings)
    }
}

fn allocate(runtime: &Runtime, wish: Option<Tier>, crcs: Vec<u32>) -> Result<Bound> {
    let zones = &runtime.ctx.zones;
    let blocks = NewBlocks { wish, bytes_in_row: (crcs.len() * BLOCK_BYTES) as u64 };
    Bound::allocate(zones, zones.for_new(Stream::FlushBlock, blocks), Budget::Ordinary, crcs)
}

/// Finds places for small writes that follow each other, when the group of the journal that has them is
/// written.
pub(crate) struct GroupBinder {
    runtime: Arc<Runtime>,
    live: Arc<LiveSet>,
    keyspaces: Arc<Keyspaces>,
}

impl GroupBinder {
    /// In the zones of this store.
    pub(crate) fn new(live: &Arc<LiveSet>, keyspaces: &Arc<Keyspaces>) -> Self {
        let runtime = Arc::clone(&live.runtime);
        Self { runtime, live: Arc::clone(live), keyspaces: Arc::clone(keyspaces) }
    }

    fn find(&self, wanted: &Wanted) -> Result<Option<Bound>> {
        let Wanted { keyspace, prefix, blocks, has_patches, may_read } = wanted;
        if self.live.packing(&self.keyspaces.get(keyspace.0)?).compression != Compression::None {
            return Ok(None);
        }
        if !may_read && self.runtime.ctx.zones.are_of_both_tiers() {
            // Where they are wished to lie is in a row.
            return Ok(None);
        }
        let wish = self.live.tier_wished_with(&Batch::new(), keyspace.0, prefix);
        let bound = allocate(&self.runtime, wish, vec![0; *blocks])?;
        // Withdrawn only when the journal is empty: it has the group that waits for this.
        self.live.announce_all(if *has_patches {
            &[Feature::Bound, Feature::BoundPatches]
        } else {
            &[Feature::Bound]
        })?;
        Ok(Some(bound))
    }
}

impl Binder for GroupBinder {
    fn bytes_min(&self) -> usize {
        self.runtime.options.bind_bytes_min
    }

    fn place(&self, wanted: Wanted) -> Option<Bound> {
        self.find(&wanted).unwrap_or_else(|error| {
            tracing::debug!(blocks = wanted.blocks, %error, "small writes find no place, and stay in the journal");
            None
        })
    }
}
