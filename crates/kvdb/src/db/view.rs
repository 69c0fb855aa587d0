//! What a reader sees at one moment: the layers of every keyspace, newest first.
//!
//! Thread safety: a [`View`] is immutable but for the active memtable, which only grows. Views are
//! replaced as a whole; a reader that holds one keeps its memtables and pieces alive.

use std::sync::Arc;

use kvfs_store::{Extent, ExtentKind, Result, Seqno};

use crate::iter::{Source, run_records};
use crate::journal::Lsn;
use crate::memtable::{BlockFill, BlockState, Lookup, MemTable};
use crate::run::Access;
use crate::version::{Run, Version};

/// A memtable that takes no more writes and waits to become runs.
#[derive(Clone)]
pub(crate) struct Sealed {
    pub(crate) table: Arc<MemTable>,
    /// Where the journal goes on behind it: the tail, once this and all older tables are in runs.
    pub(crate) next_lsn: Lsn,
    /// Everything up to here is in this table or older layers.
    pub(crate) last_seqno: Seqno,
}

/// The layers at one moment.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) active: Arc<MemTable>,
    /// Newest first.
    pub(crate) sealed: Vec<Sealed>,
    pub(crate) version: Arc<Version>,
}

/// Blocks looked at in one step of a search for data or holes.
const EXTENT_WINDOW_BLOCKS: u64 = 1024;

impl View {
    fn tables(&self) -> impl Iterator<Item = &Arc<MemTable>> {
        std::iter::once(&self.active).chain(self.sealed.iter().map(|sealed| &sealed.table))
    }

    /// Memory of all memtables (bytes).
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.tables().map(|table| table.bytes()).sum()
    }

    /// Lets every layer add what it knows, until one decides.
    pub(crate) fn lookup(&self, keyspace: u32, lookup: &mut Lookup<'_>) -> Result<()> {
        for table in self.tables() {
            table.lookup(keyspace, lookup);
            if lookup.is_decided() {
                return Ok(());
            }
        }
        for run in self.version.runs(keyspace) {
            run.lookup(lookup)?;
            if lookup.is_decided() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Lets every layer decide blocks, until all are decided.
    pub(crate) fn fill(&self, keyspace: u32, fill: &mut BlockFill<'_>) -> Result<()> {
        for table in self.tables() {
            table.fill(keyspace, fill);
            if fill.is_complete() {
                return Ok(());
            }
        }
        for run in self.version.runs(keyspace) {
            run.fill(fill)?;
            if fill.is_complete() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The smallest block at or after `from` that any layer holds, deleted ones included.
    fn next_block(&self, keyspace: u32, prefix: &[u8], from: u64, snapshot: Seqno) -> Option<u64> {
        let in_tables = self.tables().filter_map(|table| table.next_block(keyspace, prefix, from, snapshot));
        let in_runs =
            self.version.runs(keyspace).iter().filter_map(|run| run.next_block(prefix, from, snapshot));
        in_tables.chain(in_runs).min()
    }

    /// The first stretch of data or hole at or after `from`. A stretch of data may be cut at the end
    /// of a window; the next call continues it.
    pub(crate) fn next_extent(
        &self,
        keyspace: u32,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
        snapshot: Seqno,
    ) -> Result<Option<Extent>> {
        match kind {
            ExtentKind::Data => self.next_data(keyspace, prefix, from, snapshot),
            ExtentKind::Hole => self.next_hole(keyspace, prefix, from, snapshot),
        }
    }

    fn next_data(
        &self,
        keyspace: u32,
        prefix: &[u8],
        mut from: u64,
        snapshot: Seqno,
    ) -> Result<Option<Extent>> {
        while let Some(candidate) = self.next_block(keyspace, prefix, from, snapshot) {
            let states = self.presence(keyspace, prefix, candidate, snapshot)?;
            if let Some(start) = states.iter().position(|&state| state == BlockState::Data) {
                let count = states[start..].iter().take_while(|&&state| state == BlockState::Data).count();
                return Ok(Some(Extent { first: candidate + start as u64, count: count as u64 }));
            }
            match candidate.checked_add(states.len() as u64) {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(None)
    }

    fn next_hole(&self, keyspace: u32, prefix: &[u8], from: u64, snapshot: Seqno) -> Result<Option<Extent>> {
        let mut first = from;
        loop {
            let Some(data) = self.next_data(keyspace, prefix, first, snapshot)? else {
                // The last block number itself is never counted: an extent's end must be a number.
                return Ok((first < u64::MAX).then(|| Extent { first, count: u64::MAX - first }));
            };
            if data.first > first {
                return Ok(Some(Extent { first, count: data.first - first }));
            }
            match data.first.checked_add(data.count) {
                Some(next) => first = next,
                None => return Ok(None),
            }
        }
    }

    fn presence(&self, keyspace: u32, prefix: &[u8], first: u64, snapshot: Seqno) -> Result<Vec<BlockState>> {
        let count = EXTENT_WINDOW_BLOCKS.min(u64::MAX - first).max(1);
        let mut fill = BlockFill::presence(prefix, first, count as usize, snapshot);
        self.fill(keyspace, &mut fill)?;
        Ok(fill.finish())
    }

    /// The layers as a cursor wants them, newest first.
    pub(crate) fn sources(&self, keyspace: u32) -> Vec<Source> {
        let of_table = |table: &Arc<MemTable>| Source {
            records: table.iter(keyspace),
            tombstones: table.tombstone_sets(keyspace),
        };
        let of_run = |run: &Arc<Run>| Source {
            records: run_records(run, Access::Random),
            tombstones: run.tombstones().collect(),
        };
        self.tables().map(of_table).chain(self.version.runs(keyspace).iter().map(of_run)).collect()
    }
}
