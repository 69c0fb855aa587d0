//! What is gone, in terms of keys.
//!
//! The index of a damaged block tells the range of its keys, the fingerprints which of the keys that are there now
//! were in it. So a key that was never damaged is not suspected (but for one in 2^32), and one whose newest value is
//! lost is listed, though an older value of it may have come back.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{KeyRange, Keyspace, KeyspaceKind, Read, Result, Seqno, TxnId};

use super::pieces::counted;
use crate::db::Db;
use crate::db::view::View;
use crate::memtable::{BlockFill, BlockState, Lookup, MemTable, split_block_key};
use crate::run::{LostPart, fingerprint};
use crate::version::{ManifestState, Run, RunId};

/// Blocks are asked for so many at a time.
const BLOCKS_AT_ONCE: u64 = 1024;

/// A part of a run that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Keyspace.
    pub keyspace: String,
    /// Layout of its values.
    pub kind: KeyspaceKind,
    /// Not committed yet: the part belonged to this transaction.
    pub txn: Option<TxnId>,
    /// Keys and seqnos, these without `base`.
    pub part: LostPart,
    /// What the seqnos count from.
    pub base: Seqno,
    /// Age and number of the run.
    pub(super) place: (Seqno, RunId),
    /// Named snapshots that may miss something, too.
    pub snapshots: Vec<String>,
}

impl Lost {
    /// Whether this may be what a patch of `key` at `seqno` lay on: neither `table`, which has the patch, nor a newer
    /// run among `runs` knows all of the block.
    pub(in crate::db) fn is_base_of(
        &self,
        key: &[u8],
        seqno: Seqno,
        (keyspace, table): (u32, &MemTable),
        runs: &[Arc<Run>],
    ) -> Result<bool> {
        let Some((prefix, block)) = split_block_key(key).filter(|_| self.part.may_hold(key)) else {
            return Ok(false);
        };
        let mut fill = BlockFill::bases(prefix, block, 1, seqno);
        table.fill(keyspace, &mut fill);
        for run in runs.iter().filter(|run| (run.age, run.id) > self.place) {
            run.fill(&mut fill)?;
        }
        Ok(fill.state(0) == BlockState::Unknown)
    }
}

/// What is lost of a keyspace's newest state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LostKeys {
    /// Keys that are there with an older value, or although they had been deleted.
    pub older: Vec<Bytes>,
    /// At most so many keys are gone of which only the range is known; `None`: any number.
    pub gone_max: Option<u64>,
    /// Stretches of blocks that read as holes: prefix, first block, count.
    pub blocks: Vec<(Bytes, u64, u64)>,
}

/// Notes which named snapshots may see less than they did.
pub(super) fn name_snapshots(state: &ManifestState, lost: &mut [Lost]) {
    for lost in lost.iter_mut().filter(|lost| lost.txn.is_none()) {
        let oldest = counted(lost.part.seqno_min, lost.base);
        let seeing = state.snapshots.iter().filter(|(_, snapshot)| snapshot.seqno >= oldest);
        lost.snapshots = seeing.map(|(name, _)| name.clone()).collect();
    }
}

impl Db {
    /// What `lost` means for the newest state of the repaired store, of which this is the first opening. Keyspaces
    /// with merge records have been opened with their functions.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn lost_keys(&self, lost: &Lost) -> Result<LostKeys> {
        if lost.txn.is_some() {
            return Ok(LostKeys::default());
        }
        let Some((keyspace, meta)) = self.inner.keyspaces.find(&lost.keyspace) else {
            return Ok(LostKeys::default());
        };
        match meta.kind {
            KeyspaceKind::Tuple => self.lost_tuples(lost, keyspace),
            KeyspaceKind::Block => self.lost_blocks(lost, keyspace),
        }
    }

    fn lost_tuples(&self, lost: &Lost, keyspace: u32) -> Result<LostKeys> {
        let (view, seqno) = self.inner.read_view();
        let mut end = lost.part.last.to_vec();
        end.push(0);
        let range = KeyRange::new(lost.part.first.clone(), end);
        let mut gone: Option<Vec<u32>> = lost.part.keys.clone();
        let mut found = LostKeys::default();
        let mut cursor = self.cursor(Keyspace(keyspace), range)?;
        loop {
            cursor.next()?;
            let Some((key, _)) = cursor.entry() else { break };
            let key = Bytes::copy_from_slice(key);
            if !lost.part.may_hold(&key) {
                continue;
            }
            if let Some(gone) = &mut gone {
                gone.retain(|&other| other != fingerprint(&key));
            }
            let mut lookup = Lookup::new(&key, seqno);
            view.lookup_above(keyspace, &mut lookup, lost.place)?;
            if lookup.is_decided() {
                continue;
            }
            found.older.push(key);
        }
        found.gone_max = gone.map(|gone| gone.len() as u64);
        Ok(found)
    }

    fn lost_blocks(&self, lost: &Lost, keyspace: u32) -> Result<LostKeys> {
        let (view, seqno) = self.inner.read_view();
        let mut found = LostKeys::default();
        let ends = (split_block_key(&lost.part.first), split_block_key(&lost.part.last));
        let (Some((prefix, first)), Some((prefix_last, last))) = ends else { return Ok(found) };
        if prefix != prefix_last {
            // A whole piece: which blocks it had nobody knows.
            return Ok(found);
        }
        let prefix = Bytes::copy_from_slice(prefix);
        let mut from = first;
        while from <= last && last - first < 1 << 40 {
            let count = (last - from + 1).min(BLOCKS_AT_ONCE);
            let states = undecided_above(&view, keyspace, (&prefix, from, count), seqno, lost)?;
            for (block, is_lost) in (from..).zip(states) {
                match found.blocks.last_mut() {
                    _ if !is_lost => {}
                    Some((_, first, count)) if *first + *count == block => *count += 1,
                    _ => found.blocks.push((prefix.clone(), block, 1)),
                }
            }
            from += count;
        }
        found.gone_max = Some(found.blocks.iter().map(|(.., count)| count).sum());
        Ok(found)
    }
}

/// Of each block, whether no layer above the damaged run says what it is.
fn undecided_above(
    view: &View,
    keyspace: u32,
    (prefix, first, count): (&[u8], u64, u64),
    seqno: Seqno,
    lost: &Lost,
) -> Result<Vec<bool>> {
    let mut fill = BlockFill::bases(prefix, first, count as usize, seqno);
    view.fill_above(keyspace, &mut fill, lost.place)?;
    Ok((0..count as usize).map(|at| fill.state(at) == BlockState::Unknown).collect())
}
