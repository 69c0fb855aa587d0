//! The journal of a store under repair: left alone where it is sound, else written out as runs as far as it
//! counts.
//!
//! It is written out also when it has patches and blocks are lost: what an opening replays would put them
//! over zeros, and a lost block would look like data.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kvfs_store::{Batch, Keyspace, KeyspaceKind, Op, Result, Seqno, StoreError, TxnId};

use crate::compaction::{CopyBound, OutputSpec};
use crate::flush::patches::Below;
use crate::flush::write_table;
use crate::format::Superblock;
use crate::iter::KeepRules;
use crate::journal::{Journal, JournalArea, Replayed, salvage};
use crate::live::keyspaces::{KeyspaceMeta, Keyspaces};
use crate::memtable::{MemTable, Merger};
use crate::open::{apply_replayed, check_replayed};
use crate::repair::{Kept, Lost, Repaired};
use crate::runtime::options::Options;
use crate::space::{Bound, Budget, Stream};
use crate::table::{Packing, RunContext};
use crate::version::salvage::enter_nameless;
use crate::version::{Edit, ManifestState, Run, RunId, Version};

/// Keys of lost changes that are named; of more only the number is told.
const NAMED_MAX: usize = 1000;

/// What the journal holds, oldest first.
enum Layer {
    Table(Arc<MemTable>, Seqno),
    Adopted { txn: TxnId, base: Seqno },
}

/// What a repair has found and mended so far, to which that of the journal comes.
pub(super) struct Mending<'a> {
    pub(super) options: &'a Options,
    pub(super) next_id: &'a Arc<AtomicU64>,
    pub(super) state: &'a mut ManifestState,
    pub(super) repaired: &'a mut Repaired,
    pub(super) kept: &'a mut Kept,
}

/// What replayed batches come to.
struct Layers<'a> {
    ctx: &'a Arc<RunContext>,
    keyspaces: Keyspaces,
    /// Transactions whose runs wait for a commit.
    prepared: BTreeSet<TxnId>,
    memtable_bytes: u64,
    flushed_seqno: Seqno,
    last_seqno: Seqno,
    /// Positions that are read at.
    pinned: BTreeSet<Seqno>,
    active: MemTable,
    done: Vec<Layer>,
    commits: Vec<(TxnId, Seqno)>,
    findings: Vec<String>,
    /// Keyspaces that nothing else tells of.
    unknown: Vec<(u32, KeyspaceKind)>,
}

/// What the journal has bound keeps its space: nothing that is mended may come to lie there.
pub(super) fn hold_places(
    ctx: &Arc<RunContext>,
    superblock: &Superblock,
    state: &ManifestState,
) -> Vec<Bound> {
    let places = salvage::places(ctx.device.as_ref(), JournalArea::of(superblock), state.flushed_seqno);
    // What lies where no data can be was not bound there.
    places.into_iter().filter_map(|place| Bound::restore(&ctx.zones, place).ok()).collect()
}

/// Looks at the journal; where it is damaged, or must not be replayed as it is, `state` goes on without it.
/// Says whether it does.
pub(super) fn journal(
    ctx: &Arc<RunContext>,
    superblock: &Superblock,
    mending: &mut Mending<'_>,
) -> Result<bool> {
    let area = JournalArea::of(superblock);
    let device = ctx.device.as_ref();
    let state = &*mending.state;
    let known: BTreeSet<u32> = state.keyspaces.keys().copied().collect();
    let flushed = state.flushed_seqno;
    let from = (state.journal_tail, flushed);
    let keyspaces = Keyspaces::of(state);
    let mut has_patches = false;
    let mut look = |replayed: Replayed| {
        has_patches |= replayed.base > flushed && replayed.batch.has_patches();
        let is_known = replayed.batch.ops().iter().all(|op| known.contains(&op.keyspace().0));
        let is_prepared =
            replayed.spilled.as_ref().is_none_or(|commit| state.prepared.contains_key(&commit.txn));
        if replayed.base <= flushed {
            return Ok(());
        }
        if is_known && is_prepared {
            return check_replayed(&replayed, &keyspaces);
        }
        Err(StoreError::corrupt("the journal", "it builds on what the manifest has lost"))
    };
    // The repair is an opening of its own, whose number no group has.
    let epoch = superblock.epoch;
    let damage = match Journal::replay(device, area, epoch, from, &mut look) {
        Ok(recovered) => {
            let last_seqno = recovered.last_seqno.max(flushed);
            mending.repaired.last_seqno = last_seqno;
            if !has_patches || mending.repaired.lost.iter().all(|lost| lost.kind != KeyspaceKind::Block) {
                return Ok(false);
            }
            let mut layers = Layers::new(ctx, mending);
            Journal::replay(device, area, epoch, from, &mut |replayed| layers.take(&replayed, mending))?;
            layers.finish(mending)?;
            mending.state.apply(&Edit::JournalTail { lsn: recovered.head, seqno: last_seqno })?;
            return Ok(true);
        }
        Err(error) => error,
    };
    mending.repaired.findings.push(damage.to_string());
    let mut layers = Layers::new(ctx, mending);
    let is_tail_certain = !mending.repaired.is_uncertain;
    let mut take = |replayed| layers.take(&replayed, mending);
    let found = salvage::salvage(device, area, from, is_tail_certain, &mut take)?;
    let last_seqno = layers.last_seqno;
    mending.repaired.last_seqno = last_seqno;
    if found.writes_missing > 0 {
        mending.repaired.findings.push(format!(
            "the blocks of {} writes in the journal are not there any more: they may have been overwritten since",
            found.writes_missing
        ));
    }
    tell_dropped(&found.dropped, found.damaged_at.0, mending.state, &layers.unknown, mending.repaired);
    layers.finish(mending)?;
    mending.state.apply(&Edit::JournalTail { lsn: found.tail_next, seqno: last_seqno })?;
    Ok(true)
}

/// Says what was written behind the damage.
fn tell_dropped(
    dropped: &[Batch],
    damaged_at: u64,
    state: &ManifestState,
    unknown: &[(u32, KeyspaceKind)],
    repaired: &mut Repaired,
) {
    repaired.findings.push(format!(
        "the journal counts up to position {damaged_at}; what was written behind it is lost, {} of these batches \
         could still be read",
        dropped.len()
    ));
    let name = |id: u32| match state.keyspaces.get(&id) {
        Some(keyspace) => keyspace.name.clone(),
        None if unknown.iter().any(|&(known, _)| known == id) => format!("recovered-{id}"),
        None => format!("number {id}"),
    };
    let ops = || dropped.iter().flat_map(Batch::ops);
    repaired.dropped.extend(ops().take(NAMED_MAX).map(|op| (name(op.keyspace().0), op.clone())));
    repaired.dropped_count = ops().count() as u64;
}

impl<'a> Layers<'a> {
    fn new(ctx: &'a Arc<RunContext>, mending: &Mending<'_>) -> Self {
        let Mending { options, state, .. } = mending;
        Self {
            ctx,
            keyspaces: Keyspaces::of(state),
            prepared: state.prepared.keys().copied().collect(),
            memtable_bytes: options.memtable_bytes,
            flushed_seqno: state.flushed_seqno,
            last_seqno: state.flushed_seqno,
            pinned: state.positions_read(),
            active: MemTable::new(&ctx.accountant),
            done: Vec::new(),
            commits: Vec::new(),
            findings: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Takes one batch in. Layers that are whole then become runs at once: a damaged journal may refer to
    /// more than memory holds.
    fn take(&mut self, replayed: &Replayed, mending: &mut Mending<'_>) -> Result<()> {
        if replayed.base <= self.flushed_seqno {
            return Ok(());
        }
        self.stack(replayed)?;
        self.write_done(mending)
    }

    fn stack(&mut self, replayed: &Replayed) -> Result<()> {
        let operations =
            replayed.spilled.as_ref().map_or(replayed.batch.len() as u64, |commit| commit.operations);
        self.last_seqno = replayed.base + operations.max(1) - 1;
        if let Some(commit) = &replayed.spilled {
            if !self.prepared.remove(&commit.txn) {
                self.findings.push(format!("what transaction {} wrote is lost", commit.txn));
                return Ok(());
            }
            self.seal(replayed.base - 1);
            self.done.push(Layer::Adopted { txn: commit.txn, base: replayed.base - 1 });
            self.commits.push((commit.txn, self.last_seqno));
            return Ok(());
        }
        self.know(&replayed.batch);
        if let Err(error) = check_replayed(replayed, &self.keyspaces)
            && !self.is_kind_guessed(&replayed.batch)
        {
            self.findings.push(format!("left out: {error}"));
            return Ok(());
        }
        // As an opening does it: by what the runs will be, which of patches is more than they take here.
        if self.active.flush_bytes() >= self.memtable_bytes {
            self.seal(replayed.base - 1);
        }
        apply_replayed(&self.active, replayed, &self.keyspaces, &self.pinned, &self.ctx.zones)?;
        self.commits.extend(replayed.mark.as_ref().map(|mark| (mark.txn, self.last_seqno)));
        Ok(())
    }

    /// A keyspace that the manifest has lost is made anew.
    fn know(&mut self, batch: &Batch) {
        for op in batch.ops() {
            let Keyspace(id) = op.keyspace();
            if self.keyspaces.kind(id).is_err() {
                let kind = match op {
                    Op::PutBlocks { .. } | Op::PatchBlock { .. } => KeyspaceKind::Block,
                    _ => KeyspaceKind::Tuple,
                };
                self.keyspaces.insert(id, KeyspaceMeta::new(&format!("recovered-{id}"), kind, None));
                self.unknown.push((id, kind));
            }
        }
    }

    /// Whether the batch is for a keyspace of which only deletions may have told the kind so far.
    fn is_kind_guessed(&self, batch: &Batch) -> bool {
        let is_guessed = |id| self.unknown.contains(&(id, KeyspaceKind::Tuple));
        batch.ops().iter().any(|op| is_guessed(op.keyspace().0))
    }

    fn seal(&mut self, last_seqno: Seqno) {
        if !self.active.is_empty() {
            let fresh = MemTable::new(&self.ctx.accountant);
            let table = Arc::new(std::mem::replace(&mut self.active, fresh));
            self.done.push(Layer::Table(table, last_seqno));
        }
    }

    /// What is left becomes runs, too.
    fn finish(mut self, mending: &mut Mending<'_>) -> Result<()> {
        self.seal(self.last_seqno);
        self.write_done(mending)?;
        for &(txn, seqno) in &self.commits {
            mending.state.apply(&Edit::Committed { txn, seqno })?;
        }
        mending.repaired.findings.append(&mut self.findings);
        Ok(())
    }

    /// Layers that are whole become runs, oldest first.
    fn write_done(&mut self, mending: &mut Mending<'_>) -> Result<()> {
        let done = std::mem::take(&mut self.done);
        if done.is_empty() {
            return Ok(());
        }
        let Mending { options, next_id, state, repaired, kept } = mending;
        for &(id, kind) in &self.unknown {
            enter_nameless(state, id, kind);
        }
        let boundaries: Vec<Seqno> = state.positions_read().into_iter().collect();
        for layer in &done {
            match layer {
                Layer::Adopted { txn, base } => state.apply(&Edit::AdoptRuns { txn: *txn, base: *base })?,
                Layer::Table(table, age) => {
                    for keyspace in table.keyspaces() {
                        let meta = self.keyspaces.get(keyspace)?;
                        let spec = OutputSpec {
                            ctx: Arc::clone(self.ctx),
                            keyspace,
                            kind: meta.kind,
                            stream: match meta.kind {
                                KeyspaceKind::Tuple => Stream::FlushTuple,
                                KeyspaceKind::Block => Stream::FlushBlock,
                            },
                            base: 0,
                            packing: Packing::default(),
                            filters: false,
                            copies_meta: true,
                            budget: Budget::Reserve,
                            piece_bytes: options.merge.piece_bytes,
                            copy_bound: CopyBound::Never,
                            next_id: Arc::clone(*next_id),
                            pace: None,
                            wishes: None,
                        };
                        // Without the function operands stay as they are.
                        let merger = match meta.kind {
                            KeyspaceKind::Tuple => Merger::new(Arc::clone(&meta.name), None),
                            KeyspaceKind::Block => meta.merger.clone(),
                        };
                        let rules = KeepRules { boundaries: boundaries.clone(), bottom: false, merger };
                        let mut below = if table.has_patches() {
                            let is_below = |lost: &&Lost| lost.txn.is_none() && *lost.keyspace == *meta.name;
                            let gone = repaired.lost.iter().filter(is_below).map(Lost::gone);
                            Below::without(gone.collect(), runs_of(state, keyspace, kept))
                        } else {
                            Below::nothing()
                        };
                        let (pieces, _) = write_table(table, spec, rules, &mut below)?;
                        self.findings.extend(below.lost.iter().map(|key| {
                            let (name, key) = (&meta.name, key.escape_ascii());
                            format!(
                                "keyspace {name}, block {key}: what was written over a part of it is lost"
                            )
                        }));
                        let run = RunId(next_id.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
                        state.apply(&Edit::AddRun { keyspace, run, age: *age })?;
                        for piece in &pieces {
                            state.apply(&Edit::AddPiece { keyspace, run, piece: piece.desc().clone() })?;
                        }
                        kept.extend(pieces);
                    }
                }
            }
        }
        Ok(())
    }
}

/// What there is of a keyspace, newest first. All pieces of `state` are among `kept`.
fn runs_of(state: &ManifestState, keyspace: u32, kept: &Kept) -> Vec<Arc<Run>> {
    let runs = state.keyspaces.get(&keyspace).map_or(&[][..], |keyspace| &keyspace.runs[..]);
    let piece = |base, id| kept.iter().find(|piece| piece.desc().id == id).map(|piece| piece.rebased(base));
    let pieces = runs.iter().flat_map(|run| run.pieces.iter().filter_map(|desc| piece(run.base, desc.id)));
    let version = Version::default().follow(state, keyspace, &pieces.collect::<Vec<_>>());
    version.runs(keyspace).to_vec()
}
