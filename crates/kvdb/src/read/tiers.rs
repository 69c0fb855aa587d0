//! On which tier the blocks of a file lie.
//!
//! Thread safety: any thread; nothing is locked while indexes are read.

use std::ops::Range;

use kvfs_store::{BLOCK_BYTES, Keyspace, Result, TierBytes};

use super::Reader;
use crate::format::Region;
use crate::memtable::{block_key, first_block_at_or_after};
use crate::version::Run;

impl Reader {
    /// As [`kvfs_store::Place::bytes_by_tier`].
    pub(crate) fn bytes_by_tier(
        &self,
        data: Keyspace,
        prefix: &[u8],
        blocks: Range<u64>,
    ) -> Result<TierBytes> {
        self.require_blocks(data, "bytes_by_tier")?;
        let mut bytes = TierBytes::default();
        if blocks.is_empty() {
            return Ok(bytes);
        }
        let view = self.live.view();
        for run in view.version.runs(data.0) {
            self.add_bytes_of_run(run, prefix, &blocks, &mut bytes)?;
        }
        Ok(bytes)
    }

    fn add_bytes_of_run(
        &self,
        run: &Run,
        prefix: &[u8],
        blocks: &Range<u64>,
        bytes: &mut TierBytes,
    ) -> Result<()> {
        let Some(bound) = first_block_at_or_after(prefix, &run.lower_bound) else { return Ok(()) };
        let blocks = blocks.start.max(bound)..blocks.end;
        if blocks.is_empty() {
            return Ok(());
        }
        let zones = &self.runtime.ctx.zones;
        let (low, high) = (block_key(prefix, blocks.start), block_key(prefix, blocks.end - 1));
        for piece in &run.pieces[run.piece_at(&low)..] {
            if piece.desc().first_key[..] > high[..] {
                break;
            }
            let index = piece.index()?;
            for layer in index.layers() {
                for at in layer.find(prefix, blocks.start)..layer.len() {
                    let region = layer.region(at);
                    if region.prefix[..] != *prefix || region.first >= blocks.end {
                        break;
                    }
                    *bytes.of(zones.tier_at(region.addr)) += stored_bytes(&region, &blocks);
                }
            }
        }
        Ok(())
    }
}

/// What these blocks of a region take; of a packed unit each block has an equal part.
fn stored_bytes(region: &Region<'_>, blocks: &Range<u64>) -> u64 {
    let count = region.end().min(blocks.end).saturating_sub(region.first.max(blocks.start));
    match region.unit {
        Some(unit) => count * u64::from(unit.stored_len()) / u64::from(unit.blocks),
        None => count * BLOCK_BYTES as u64,
    }
}
