//! What a reader sees at one moment: the layers of every keyspace, newest first.
//!
//! Thread safety: a [`View`] is immutable but for the active memtable, which only grows. Views are
//! replaced as a whole; a reader that holds one keeps its memtables and pieces alive.

use std::sync::Arc;

use kvfs_store::{Result, Seqno};

use crate::iter::{Source, run_records};
use crate::journal::Lsn;
use crate::memtable::{BlockFill, ChangedSearch, Lookup, MemTable, NewerSearch};
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
    pub(crate) fn next_block(&self, keyspace: u32, prefix: &[u8], from: u64, snapshot: Seqno) -> Option<u64> {
        let in_tables = self.tables().filter_map(|table| table.next_block(keyspace, prefix, from, snapshot));
        let in_runs =
            self.version.runs(keyspace).iter().filter_map(|run| run.next_block(prefix, from, snapshot));
        in_tables.chain(in_runs).min()
    }

    /// Lets every layer look for a change, until one has found it. Layers that hold nothing newer are passed
    /// over.
    pub(crate) fn find_newer(&self, keyspace: u32, search: &mut NewerSearch<'_>) -> Result<()> {
        for table in self.tables() {
            table.find_newer(keyspace, search);
        }
        for run in self.version.runs(keyspace) {
            run.find_newer(search)?;
        }
        Ok(())
    }

    /// Lets every layer add what changed between two positions.
    pub(crate) fn find_changed(&self, keyspace: u32, search: &mut ChangedSearch) -> Result<()> {
        for table in self.tables() {
            table.find_changed(keyspace, search);
        }
        for run in self.version.runs(keyspace) {
            run.find_changed(search)?;
        }
        Ok(())
    }

    /// The layers as a cursor wants them, newest first.
    pub(crate) fn sources(&self, keyspace: u32) -> Vec<Source> {
        let of_table = |table| source_of(table, keyspace);
        let of_run = |run: &Arc<Run>| Source {
            records: run_records(run, Access::Random),
            tombstones: run.tombstones().collect(),
        };
        self.tables().map(of_table).chain(self.version.runs(keyspace).iter().map(of_run)).collect()
    }
}

/// A memtable as a cursor wants it.
pub(crate) fn source_of(table: &Arc<MemTable>, keyspace: u32) -> Source {
    Source { records: table.iter(keyspace), tombstones: table.tombstone_sets(keyspace) }
}
