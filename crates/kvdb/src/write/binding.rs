//! Large writes go to their final place at once; the journal and the memtable refer to them there (write once: BetrFS 0.2,
//! "late binding").
//!
//! Crash order: both superblocks announce bound blocks before the journal has one (`features.rs`); the blocks are written before the group that binds them, and a flush of the journal makes both durable; a flush of the
//! memtable first has the journal write what it has open, then a piece refers to the blocks where they are. Their space
//! stays in use until the tail of the journal has passed them.
//!
//! Thread safety: no lock is held while space is found and checksums are computed; writers do so in parallel.

use kvfs_store::{BLOCK_BYTES, Batch, Compression, Op, Result, StoreError};

use crate::format::{Feature, crc32c};
use crate::space::{Bindings, Bound, Budget, NewBlocks, Stream};
use crate::write::Writer;

impl Writer {
    /// Finds a place for the blocks of each operation that has many of them and does not wish to have them packed. What
    /// finds none goes through the journal.
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
            let zones = &self.runtime.ctx.zones;
            let wish = self.live.tier_wished_with(batch, keyspace.0, prefix);
            let blocks = NewBlocks { wish, bytes_in_row: data.len() as u64 };
            match Bound::allocate(zones, zones.for_new(Stream::FlushBlock, blocks), Budget::Ordinary, crcs) {
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
