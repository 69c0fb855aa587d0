//! Clones of blocks in a transaction.
//!
//! What lies in pieces becomes a private run that refers to the same bytes; what is in memory is written once
//! more. Earlier batches of the transaction are spilled first, since runs lie below what is in memory.
//!
//! Thread safety: as the transaction; other batches may come in meanwhile, of other keys.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{
    Batch, BlockClone, Durability, ExtentKind, Isolation, Keyspace, Position, Records, Result, Seqno,
    Snapshot, StoreError, Txn as _, copy_blocks,
};

use super::{DbTxn, Live, Txns};
use crate::commit::PrivateWrites;
use crate::flush::clones::LocatedClone;
use crate::format::Feature;
use crate::layers::{Layers, Located};
use crate::read::{DbSnapshot, ReadAt};

/// Blocks that are looked for at once: 256 MiB of data, 64 KiB of memory.
const WINDOW_BLOCKS: u64 = 1 << 16;

/// Stretches of blocks that go into one run, so that memory is bounded.
const LOCATED_MAX: usize = if cfg!(test) { 512 } else { 1 << 16 };

impl DbTxn {
    /// Over the newest state, of a caller that keeps others away. It can't be taken back.
    pub(crate) fn begin_unkept(engine: &Arc<Txns>) -> Result<Arc<Self>> {
        engine.runtime.check_accepting()?;
        let id = engine.transactions.open(&engine.live)?;
        let live = Live {
            pin: engine.history.pin_newest(),
            writes: PrivateWrites::new(Arc::clone(&engine.runtime.ctx.accountant)),
            note: Bytes::new(),
        };
        let mut txn = Self::new(engine, id, Isolation::Serializable, live, false);
        txn.is_kept = false;
        Ok(txn.listed())
    }

    /// As [`kvfs_store::Transactions::apply_with_clones`].
    pub(crate) fn commit_with_clones(
        &self,
        batch: Batch,
        data: Keyspace,
        clones: &[BlockClone],
    ) -> Result<Position> {
        self.clone_now(data, None, clones)?;
        self.apply(batch)?;
        self.commit(Durability::Buffered)
    }

    /// As [`kvfs_store::Txn::clone_blocks`], or [`kvfs_store::Txn::clone_blocks_of`].
    pub(super) fn clone_now(
        &self,
        keyspace: Keyspace,
        from: Option<&dyn Snapshot>,
        clones: &[BlockClone],
    ) -> Result<()> {
        self.engine.runtime.check_accepting()?;
        self.check_clones(keyspace, clones)?;
        let one_at_a_time = self.spilling.lock();
        let last = self.reserve(clones.len() as u64)?;
        let layers = match from {
            // The snapshot keeps what is seen there.
            Some(from) => DbSnapshot::layers_of(from, &self.engine.live),
            None => self.layers()?,
        };
        let (mut in_pieces, mut in_memory) = (Vec::new(), Vec::new());
        for (clone, seqno) in clones.iter().rev().zip((0..=last).rev()) {
            each_located(&layers, keyspace, clone, |located| match located {
                Located::InPiece(location) => {
                    in_pieces.push(LocatedClone::new(clone, seqno, location));
                    if in_pieces.len() < LOCATED_MAX {
                        return Ok(());
                    }
                    self.add_clones(keyspace, std::mem::take(&mut in_pieces), last)
                }
                Located::InMemory(extent) => {
                    in_memory.push(clone.part(extent.first, extent.count));
                    Ok(())
                }
            })?;
        }
        if !in_pieces.is_empty() {
            self.add_clones(keyspace, in_pieces, last)?;
        }
        drop(one_at_a_time);
        in_memory.iter().try_for_each(|part| match from {
            Some(from) => copy_blocks(self, from, keyspace, part),
            None => copy_blocks(self, self, keyspace, part),
        })
    }

    /// Numbers for so many operations; everything before them is in runs then. The caller holds the lock for
    /// spills.
    fn reserve(&self, operations: u64) -> Result<Seqno> {
        loop {
            self.spill_whole()?;
            // Unless another batch has come in.
            if let Some(last) = self.with(|live| Ok(live.writes.reserve(operations)))? {
                return Ok(last);
            }
        }
    }

    fn check_clones(&self, keyspace: Keyspace, clones: &[BlockClone]) -> Result<()> {
        self.engine.reader.require_blocks(keyspace, "clone_blocks")?;
        let records = clones.iter().map(BlockClone::changed_records).collect::<Result<Vec<Records>>>()?;
        if self.isolation == Isolation::Snapshot
            && !self.is_resumed
            && let Some(changed) = self.changed_since_snapshot(keyspace, &records)?
        {
            self.engine.transactions.note_conflict();
            return Err(StoreError::Conflict { changed });
        }
        Ok(())
    }

    /// Makes a run of what lies in pieces; the caller holds the lock for spills.
    fn add_clones(&self, keyspace: Keyspace, clones: Vec<LocatedClone>, last: Seqno) -> Result<()> {
        self.engine.live.announce(Feature::Clones)?;
        let written = self.engine.flusher.write_clones(self.id, keyspace, clones, last);
        let spill = self.engine.runtime.observe_writes(written)?;
        self.with(|live| {
            self.change(&mut live.writes, |writes| writes.add_clones(spill));
            Ok(())
        })
    }
}

/// Tells `each` where the present blocks of a source are.
fn each_located(
    layers: &Layers,
    keyspace: Keyspace,
    clone: &BlockClone,
    mut each: impl FnMut(Located) -> Result<()>,
) -> Result<()> {
    let (mut at, end) = (clone.first, clone.first + clone.count);
    // Holes may be as long as they like.
    while let Some(data) = layers.next_extent(keyspace.0, &clone.source, at..end, ExtentKind::Data)? {
        let count = WINDOW_BLOCKS.min(end - data.first);
        layers
            .locate(keyspace.0, &clone.source, data.first, count as usize)?
            .into_iter()
            .try_for_each(&mut each)?;
        at = data.first + count;
    }
    Ok(())
}
