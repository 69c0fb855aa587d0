//! What a reader sees at one moment: the layers of every keyspace, newest first.
//!
//! Thread safety: a [`View`] is immutable but for the active memtable, which only grows. Views are
//! replaced as a whole; a reader that holds one keeps its memtables and pieces alive.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use crate::iter::{Source, run_records};
use crate::journal::Lsn;
use crate::layers::adopted::CommittedRuns;
use crate::memtable::{BlockFill, BlockSearch, ChangeVisitor, ChangeWalk, Lookup, MemTable};
use crate::table::Access;
use crate::version::{Run, RunId, TakePiece, Version, read_piece};

/// What takes no more writes, and is not in the version yet.
#[derive(Clone)]
pub(crate) enum SealedLayer {
    /// A memtable that waits to become runs.
    Table(Arc<MemTable>),
    /// What a transaction had spilled: runs already, which wait for everything older.
    Runs(Arc<CommittedRuns>),
}

/// A sealed layer, and its place in the history.
#[derive(Clone)]
pub(crate) struct Sealed {
    pub(crate) layer: SealedLayer,
    /// Where the journal goes on behind it: the tail, once this and all older layers are in the version.
    pub(crate) next_lsn: Lsn,
    /// Everything up to here is in this or older layers.
    pub(crate) last_seqno: Seqno,
}

impl Sealed {
    pub(crate) fn table(table: Arc<MemTable>, next_lsn: Lsn, last_seqno: Seqno) -> Self {
        Self { layer: SealedLayer::Table(table), next_lsn, last_seqno }
    }

    /// Whether it is the same layer.
    pub(crate) fn is(&self, other: &Self) -> bool {
        match (&self.layer, &other.layer) {
            (SealedLayer::Table(a), SealedLayer::Table(b)) => Arc::ptr_eq(a, b),
            (SealedLayer::Runs(a), SealedLayer::Runs(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// All runs that it consists of, with their keyspaces.
    pub(crate) fn all_runs(&self) -> impl Iterator<Item = (u32, &Arc<Run>)> {
        let runs = match &self.layer {
            SealedLayer::Table(_) => None,
            SealedLayer::Runs(runs) => runs.all(),
        };
        let by_keyspace = runs.into_iter().flatten();
        by_keyspace.flat_map(|(&keyspace, runs)| runs.iter().map(move |run| (keyspace, run)))
    }

    /// The runs that it has of a keyspace.
    pub(crate) fn runs(&self, keyspace: u32) -> &[Arc<Run>] {
        match &self.layer {
            SealedLayer::Table(_) => &[],
            SealedLayer::Runs(runs) => runs.of(keyspace),
        }
    }
}

/// One layer of a keyspace.
#[derive(Clone, Copy)]
enum Layer<'a> {
    Table(&'a Arc<MemTable>),
    Run(&'a Arc<Run>),
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
    /// Newest first.
    fn layers(&self, keyspace: u32) -> impl Iterator<Item = Layer<'_>> {
        let sealed = self.sealed.iter().flat_map(move |sealed| {
            let table = match &sealed.layer {
                SealedLayer::Table(table) => Some(Layer::Table(table)),
                SealedLayer::Runs(_) => None,
            };
            table.into_iter().chain(sealed.runs(keyspace).iter().map(Layer::Run))
        });
        let version = self.version.runs(keyspace).iter().map(Layer::Run);
        std::iter::once(Layer::Table(&self.active)).chain(sealed).chain(version)
    }

    /// The runs of `keyspace`, newest first.
    pub(crate) fn runs(&self, keyspace: u32) -> impl Iterator<Item = &Arc<Run>> {
        self.layers(keyspace).filter_map(|layer| match layer {
            Layer::Table(_) => None,
            Layer::Run(run) => Some(run),
        })
    }

    /// All memtables.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<MemTable>> {
        let sealed = self.sealed.iter().filter_map(|sealed| match &sealed.layer {
            SealedLayer::Table(table) => Some(table),
            SealedLayer::Runs(_) => None,
        });
        std::iter::once(&self.active).chain(sealed)
    }

    /// Memory of all memtables (bytes).
    pub(crate) fn memtable_bytes(&self) -> u64 {
        self.tables().map(|table| table.bytes()).sum()
    }

    /// What is charged for all memtables (bytes).
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.tables().map(|table| table.memory_bytes()).sum()
    }

    /// About what the runs of all memtables come to (bytes), whether or not it is in its place already.
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.tables().map(|table| table.flush_bytes()).sum()
    }

    /// The most that the flushes of all memtables still take on the device (bytes).
    pub(crate) fn unwritten_space_bytes(&self) -> u64 {
        self.tables().map(|table| table.space_bytes()).sum()
    }

    /// The layers above the run of this age and number.
    fn layers_above(&self, keyspace: u32, place: (Seqno, RunId)) -> impl Iterator<Item = Layer<'_>> {
        let is_above = move |layer: &Layer<'_>| match layer {
            Layer::Table(_) => true,
            Layer::Run(run) => (run.age, run.id) > place,
        };
        self.layers(keyspace).filter(is_above)
    }

    /// Lets every layer add what it knows, until one decides.
    pub(crate) fn lookup(&self, keyspace: u32, lookup: &mut Lookup<'_>) -> Result<()> {
        lookup_in(self.layers(keyspace), keyspace, lookup)
    }

    /// Keeps what `key` comes to at `seqno`, which is published, in the memtable of that position, if there
    /// is one.
    pub(crate) fn keep(&self, keyspace: u32, key: &[u8], seqno: Seqno, value: Option<&Bytes>) {
        self.tables().any(|table| table.keep(keyspace, key, seqno, value));
    }

    /// As [`Self::lookup`], but only what lies above a run counts.
    pub(crate) fn lookup_above(
        &self,
        keyspace: u32,
        lookup: &mut Lookup<'_>,
        place: (Seqno, RunId),
    ) -> Result<()> {
        lookup_in(self.layers_above(keyspace, place), keyspace, lookup)
    }

    /// Lets every layer decide blocks, until all are decided; those of pieces as `take` does.
    pub(crate) fn fill(&self, keyspace: u32, fill: &mut BlockFill<'_>, take: TakePiece<'_>) -> Result<()> {
        fill_in(self.layers(keyspace), keyspace, fill, take)
    }

    /// As [`Self::fill`], but only what lies above a run counts.
    pub(crate) fn fill_above(
        &self,
        keyspace: u32,
        fill: &mut BlockFill<'_>,
        place: (Seqno, RunId),
    ) -> Result<()> {
        fill_in(self.layers_above(keyspace, place), keyspace, fill, &mut read_piece)
    }

    /// Lets every layer add what it knows to a search for the next block.
    pub(crate) fn search(&self, keyspace: u32, search: &mut BlockSearch<'_>) -> Result<()> {
        for layer in self.layers(keyspace) {
            match layer {
                Layer::Table(table) => table.search(keyspace, search),
                Layer::Run(run) => run.search(search)?,
            }
            if search.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// Takes a walk over changes through all layers. Those that hold nothing between its positions are passed
    /// over.
    pub(crate) fn walk_changes(
        &self,
        keyspace: u32,
        walk: &mut ChangeWalk<impl ChangeVisitor>,
    ) -> Result<()> {
        for layer in self.layers(keyspace) {
            match layer {
                Layer::Table(table) => table.walk_changes(keyspace, walk),
                Layer::Run(run) => run.walk_changes(walk)?,
            }
        }
        Ok(())
    }

    /// The layers as a cursor wants them, newest first.
    pub(crate) fn sources(&self, keyspace: u32) -> Vec<Source> {
        let source = |layer| match layer {
            Layer::Table(table) => source_of(table, keyspace),
            Layer::Run(run) => source_of_run(run),
        };
        self.layers(keyspace).map(source).collect()
    }
}

fn lookup_in<'a>(
    layers: impl Iterator<Item = Layer<'a>>,
    keyspace: u32,
    lookup: &mut Lookup<'_>,
) -> Result<()> {
    for layer in layers {
        match layer {
            Layer::Table(table) => table.lookup(keyspace, lookup),
            Layer::Run(run) => run.lookup(lookup)?,
        }
        if lookup.is_decided() {
            break;
        }
    }
    Ok(())
}

fn fill_in<'a>(
    layers: impl Iterator<Item = Layer<'a>>,
    keyspace: u32,
    fill: &mut BlockFill<'_>,
    take: TakePiece<'_>,
) -> Result<()> {
    for layer in layers {
        match layer {
            Layer::Table(table) => table.fill(keyspace, fill),
            Layer::Run(run) => run.fill_by(fill, take)?,
        }
        if fill.is_complete() {
            break;
        }
    }
    Ok(())
}

/// A memtable as a cursor wants it.
pub(crate) fn source_of(table: &Arc<MemTable>, keyspace: u32) -> Source {
    Source { records: table.iter(keyspace), tombstones: table.tombstone_sets(keyspace) }
}

/// A run as a cursor wants it.
pub(crate) fn source_of_run(run: &Arc<Run>) -> Source {
    Source { records: run_records(run, Access::Random), tombstones: run.tombstones().collect() }
}
