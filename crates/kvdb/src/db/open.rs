//! Making a store, and opening one: superblock → manifest → runs → journal replay.
//!
//! Crash order at creation: journal zeros and manifest are flushed before the superblock names them,
//! so a store that was only half made is not a store. At a writable open the epoch is counted up and
//! flushed before anything else is written.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use kvfs_device::Device;
use kvfs_store::clock::Clock;
use kvfs_store::{Compression, Keyspace, KeyspaceKind, MergeFunction, Result, Seqno, StoreError, TxnId};
use parking_lot::{Mutex, RwLock};

use super::Db;
use super::adopted::CommittedRuns;
use super::background::Threads;
use super::checkpoints::{Checkpoints, open_runs};
use super::counters::Counters;
use super::features::Announced;
use super::health::Health;
use super::inner::{Inner, Ledger, Order};
use super::keyspaces::{KeyspaceMeta, Keyspaces};
use super::merges::{MergePace, ReclaimState, Registry};
use super::named::Named;
use super::options::{Background, CreateOptions, Options};
use super::outlived::Outlived;
use super::signals::Bell;
use super::stalls::Stalls;
use super::transactions::Transactions;
use super::undo::Undo;
use super::view::{Sealed, SealedLayer, View};
use crate::cache::{Accountant, BlockCache, Pages};
use crate::commit::{Publisher, SnapshotTracker};
use crate::format::{FORMAT_VERSION_PLAIN, Feature, Features, Superblock, ZoneId};
use crate::journal::{CommitMark, Journal, JournalArea, Lsn, Replayed, SpilledCommit};
use crate::memtable::MemTable;
use crate::run::{RunContext, RunOptions, Windows};
use crate::version::{Edit, Manifest, ManifestState, UndoState, Version};
use crate::zone::Zones;

/// Zones that a store needs besides its journal: superblocks, manifest and its successor, reserve, and
/// some data.
const ZONES_MIN: u64 = 12;

/// The journal has room for so many memtables: those that there may be, and what grouping takes.
const TABLES_IN_JOURNAL: u64 = 5;

impl Db {
    /// Makes an empty store on `device`. Whatever was there is lost.
    ///
    /// # Errors
    /// The capacity is too small, the device can't grow to the first zones, I/O errors.
    pub fn create(device: Arc<dyn Device>, options: &CreateOptions) -> Result<()> {
        let zone_bytes = u64::from(options.zone_bytes);
        let zones = options.capacity_bytes / zone_bytes;
        let journal_zones = options.journal_zones();
        if zones < u64::from(journal_zones) + ZONES_MIN {
            return Err(StoreError::Full);
        }
        let journal_first = ZoneId(1);
        let first_data = journal_first.0 + journal_zones;
        let superblock = Superblock {
            uuid: options.uuid,
            generation: 0,
            format_version: FORMAT_VERSION_PLAIN,
            zone_bytes: options.zone_bytes,
            capacity_bytes: zones * zone_bytes,
            journal_first,
            journal_zones,
            epoch: 0,
            manifest_zones: Vec::new(),
            manifest_seq: 0,
        };
        grow_to(device.as_ref(), u64::from(first_data) * zone_bytes)?;
        Journal::create(device.as_ref(), JournalArea::of(&superblock))?;
        let zones = Zones::new(
            Arc::clone(&device),
            options.zone_bytes,
            superblock.capacity_bytes,
            ZoneId(first_data),
        );
        Manifest::create(device, zones, superblock)?;
        Ok(())
    }

    /// Opens the store on `device` and replays its journal.
    ///
    /// # Errors
    /// Not a store, another version, damage (each says so), I/O errors.
    pub fn open(device: Arc<dyn Device>, options: Options, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        let inner = Arc::new(open_inner(device, options, clock)?);
        inner.update_debt();
        inner.pace.note_sealed(inner.view().sealed.len());
        let threads = Threads::start(&inner)?;
        // A replay may have left sealed memtables behind.
        inner.work.ring();
        Ok(Arc::new(Self { inner, threads }))
    }
}

fn grow_to(device: &dyn Device, len: u64) -> Result<()> {
    if device.len_bytes() >= len {
        return Ok(());
    }
    device.grow(len).map_err(|error| match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::Unsupported => StoreError::Full,
        _ => StoreError::io(format!("growing the device to {len} bytes"), error),
    })
}

fn open_inner(device: Arc<dyn Device>, options: Options, clock: Arc<dyn Clock>) -> Result<Inner> {
    let superblock = Superblock::read_newest(device.as_ref())?;
    let area = JournalArea::of(&superblock);
    let first_data = ZoneId(superblock.journal_first.0 + superblock.journal_zones);
    let zones = Zones::new(Arc::clone(&device), superblock.zone_bytes, superblock.capacity_bytes, first_data);
    let (uuid, next_epoch) = (superblock.uuid, superblock.epoch + 1);
    let announced = Announced::new(Features::announced_by(superblock.format_version));
    let (manifest, mut state) = Manifest::open(Arc::clone(&device), superblock, Arc::clone(&zones))?;
    if !options.read_only {
        manifest.begin_epoch()?;
    }
    zones.restore(state.zone_uses())?;

    let ctx = run_context(&device, zones, &options);
    let version = Arc::new(Version::open(&state, &ctx)?);
    let keyspaces = Keyspaces::default();
    for (&id, keyspace) in &state.keyspaces {
        let meta = KeyspaceMeta::new(&keyspace.name, keyspace.kind, None);
        keyspaces.insert(id, meta.stored_as(keyspace.compression));
    }
    let mut replay = Replay::new(&options, &ctx, &keyspaces, &state);
    let mut feed = |replayed: Replayed| replay.take(&replayed);
    let from = (state.journal_tail, state.flushed_seqno);
    let journal = if options.read_only {
        Journal::replay(device.as_ref(), area, next_epoch, from, &mut feed)?;
        None
    } else {
        let journal = Journal::open(device, area, next_epoch, from, Arc::clone(&clock), &mut feed)?;
        Some(journal.charged_to(Arc::clone(&ctx.accountant)))
    };
    let Replay { active, sealed, last_seqno, commits, undo, active_from, .. } = replay;
    if !options.read_only {
        drop_prepared(&manifest, &mut state, &ctx, &commits)?;
    }
    let snapshots = Arc::new(SnapshotTracker::new());
    let is_committed = |txn| commits.iter().any(|&(committed, _)| committed == txn);
    let checkpoints = Checkpoints::restore(&state, &ctx, &keyspaces, &snapshots, last_seqno, is_committed)?;
    let transactions = Transactions::new(state.next_txn, &state.committed, commits);
    let next_id = Arc::new(AtomicU64::new(state.next_id.max(1)));
    let view = View { active: Arc::new(active), sealed, version };
    let named = Named::restore(&state.snapshots, &snapshots, last_seqno)?;
    let undo = Undo::restore(&options, &state.undo, undo, &snapshots, last_seqno)?;
    let table_bytes = table_bytes(&options, journal.as_ref());
    let (merging, pace) = merging(&options, &clock);
    Ok(Inner {
        uuid,
        options,
        clock,
        health: Health::default(),
        ctx,
        journal,
        keyspaces,
        publisher: Publisher::new(last_seqno),
        snapshots,
        named,
        undo,
        transactions,
        checkpoints,
        counters: Counters::default(),
        order: Mutex::new(Order { next_seqno: last_seqno + 1, active_from }),
        ledger: Mutex::new(Ledger { manifest, state }),
        view: RwLock::new(Arc::new(view)),
        versions_outlived: Outlived::default(),
        pieces_outlived: Outlived::default(),
        next_id,
        flushing: Mutex::new(()),
        merging,
        pace,
        admission: Mutex::default(),
        table_bytes,
        stalls: Stalls::default(),
        making_keyspace: Mutex::new(()),
        naming: Mutex::new(()),
        work: Bell::default(),
        progress: Bell::default(),
        timer: Bell::default(),
        journal_due: Bell::default(),
        tending: Mutex::default(),
        debt_update: Mutex::default(),
        stopping: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        compaction_debt_bytes: AtomicU64::new(0),
        flush_is_full: AtomicBool::new(false),
        debt_lacking_space: AtomicU64::new(0),
        reclaims: ReclaimState::default(),
        slices_outlived: Outlived::default(),
        deleted_positions: Mutex::default(),
        announced,
    })
}

fn run_context(device: &Arc<dyn Device>, zones: Arc<Zones>, options: &Options) -> Arc<RunContext> {
    let accountant = Accountant::new(options.memory_bytes);
    Arc::new(RunContext {
        device: Arc::clone(device),
        zones,
        cache: BlockCache::new(Arc::clone(&accountant), options.cache_policy),
        pages: Pages::new(Arc::clone(&accountant)),
        windows: Windows::new(Arc::clone(&accountant)),
        accountant,
        options: RunOptions { tuple_block_bytes: options.tuple_block_bytes, ..RunOptions::default() },
    })
}

/// The size at which a memtable is sealed. A journal that is full stops writers until a table is flushed: so the
/// tables that wait must fit it.
fn table_bytes(options: &Options, journal: Option<&Journal>) -> u64 {
    match journal {
        Some(journal) if options.background == Background::Threads => {
            options.memtable_bytes.min(journal.area_bytes() / TABLES_IN_JOURNAL)
        }
        _ => options.memtable_bytes,
    }
}

fn merging(options: &Options, clock: &Arc<dyn Clock>) -> (Registry, Arc<MergePace>) {
    let has_threads = options.background == Background::Threads;
    let threads = if has_threads { options.merge_threads() } else { 1 };
    let pace = MergePace::new(Arc::clone(clock), has_threads, options.merge_bytes_per_second);
    (Registry::new(threads), Arc::new(pace))
}

/// Forgets prepared runs of transactions that were neither committed nor checkpointed, and then frees their
/// space.
fn drop_prepared(
    manifest: &Manifest,
    state: &mut ManifestState,
    ctx: &RunContext,
    commits: &[(TxnId, Seqno)],
) -> Result<()> {
    let mut lost = state.prepared.clone();
    lost.retain(|txn, _| {
        !state.checkpoints.contains_key(txn) && commits.iter().all(|(committed, _)| committed != txn)
    });
    if lost.is_empty() {
        return Ok(());
    }
    let edits: Vec<Edit> = lost.keys().map(|&txn| Edit::DropPrepared { txn }).collect();
    match manifest.commit(&edits) {
        Ok(()) => {}
        // They stay for an opening that has more space.
        Err(StoreError::Full) => return Ok(()),
        Err(error) => return Err(error),
    }
    for edit in &edits {
        state.apply(edit)?;
    }
    for desc in lost.values().flatten().flat_map(|(_, run)| &run.pieces) {
        for zone_use in &desc.zones {
            ctx.zones.release_use(zone_use);
        }
    }
    Ok(())
}

/// Puts a batch back into a memtable, as it was applied to the one before. `pinned`: positions that somebody reads at.
pub(crate) fn apply_replayed(
    table: &MemTable,
    replayed: &Replayed,
    keyspaces: &Keyspaces,
    pinned: &BTreeSet<Seqno>,
    zones: &Arc<Zones>,
) -> Result<()> {
    let Replayed { batch, base, .. } = replayed;
    let kinds = keyspaces.kinds_of(batch)?;
    let bindings = replayed.bindings(zones)?;
    // Of some of these blocks the flush writes a version for each position.
    table.note_pinned(pinned.range(..base).next_back().copied().unwrap_or(0));
    let _writing = table.begin_write();
    table.apply(batch, *base, kinds);
    table.bind(batch, *base, &bindings);
    Ok(())
}

/// Puts replayed batches back into memtables, and committed runs above them.
struct Replay<'a> {
    ctx: &'a Arc<RunContext>,
    keyspaces: &'a Keyspaces,
    state: &'a ManifestState,
    /// The first seqno that the active memtable can hold.
    active_from: Seqno,
    memtable_bytes: u64,
    flushed_seqno: Seqno,
    active: MemTable,
    /// Newest first.
    sealed: Vec<Sealed>,
    last_seqno: Seqno,
    /// Transactions that were committed, and up to which seqno.
    commits: Vec<(TxnId, Seqno)>,
    /// Those that can be taken back, by their last seqnos.
    undo: Vec<(Seqno, UndoState)>,
    /// Positions that somebody reads at, as far as they are known by now.
    pinned: BTreeSet<Seqno>,
}

impl<'a> Replay<'a> {
    fn new(
        options: &Options,
        ctx: &'a Arc<RunContext>,
        keyspaces: &'a Keyspaces,
        state: &'a ManifestState,
    ) -> Self {
        Self {
            ctx,
            keyspaces,
            state,
            active_from: state.flushed_seqno + 1,
            memtable_bytes: options.memtable_bytes,
            flushed_seqno: state.flushed_seqno,
            active: MemTable::new(Arc::clone(&ctx.accountant)),
            sealed: Vec::new(),
            last_seqno: state.flushed_seqno,
            commits: Vec::new(),
            undo: Vec::new(),
            pinned: state.positions_read(),
        }
    }

    fn take(&mut self, replayed: &Replayed) -> Result<()> {
        // The group in which a flushed memtable ended is replayed too: skip what is in runs.
        if replayed.base <= self.flushed_seqno {
            return Ok(());
        }
        if let Some(commit) = &replayed.spilled {
            return self.take_spilled(replayed, commit);
        }
        if self.active.flush_bytes() >= self.memtable_bytes {
            self.seal(replayed.lsn);
        }
        apply_replayed(&self.active, replayed, self.keyspaces, &self.pinned, &self.ctx.zones)?;
        self.last_seqno = replayed.base + replayed.batch.len() as u64 - 1;
        if let Some(mark) = &replayed.mark {
            self.note_commit(mark, replayed.base - 1);
        }
        Ok(())
    }

    /// The commit took the seqnos behind `before` up to the last one.
    fn note_commit(&mut self, mark: &CommitMark, before: Seqno) {
        let txn = mark.txn;
        self.commits.push((txn, self.last_seqno));
        if let Some(note) = &mark.note {
            self.pinned.extend([before, self.last_seqno]);
            let (committed, note) = (note.committed, note.note.clone());
            self.undo.push((self.last_seqno, UndoState { txn, before, committed, note }));
        }
    }

    /// What comes from the group at `next_lsn` on goes to another table.
    fn seal(&mut self, next_lsn: Lsn) {
        let fresh = MemTable::new(Arc::clone(&self.ctx.accountant));
        let table = Arc::new(std::mem::replace(&mut self.active, fresh));
        self.sealed.insert(0, Sealed::table(table, next_lsn, self.last_seqno));
        self.active_from = self.last_seqno + 1;
    }

    /// The runs of the commit come above everything before it, and below everything after it.
    fn take_spilled(&mut self, replayed: &Replayed, commit: &SpilledCommit) -> Result<()> {
        let txn = commit.txn;
        let corrupt = |detail: &str| StoreError::corrupt(format!("the commit of transaction {txn}"), detail);
        let prepared = self.state.prepared.get(&txn).ok_or_else(|| corrupt("its runs are not prepared"))?;
        let known: BTreeSet<u64> = prepared.iter().map(|(_, run)| run.id.0).collect();
        if known != commit.runs.iter().copied().collect() {
            return Err(corrupt("other runs than its own are prepared"));
        }
        if self.active.bytes() > 0 {
            self.seal(replayed.lsn);
        }
        let base = replayed.base - 1;
        let runs = open_runs(prepared, base, self.ctx, self.keyspaces)?;
        self.last_seqno = base + commit.operations;
        self.active_from = self.last_seqno + 1;
        let layer = SealedLayer::Runs(Arc::new(CommittedRuns::with(txn, base, runs)));
        self.sealed.insert(0, Sealed { layer, next_lsn: replayed.lsn, last_seqno: self.last_seqno });
        self.note_commit(&CommitMark { txn, note: commit.note.clone() }, base);
        Ok(())
    }
}

impl Inner {
    pub(crate) fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        // Held across the look-up and the edit, so that two callers can't make one name twice.
        let making = self.making_keyspace.lock();
        if let Some((id, meta)) = self.keyspaces.find(name) {
            if meta.kind != kind {
                let kind = if meta.kind == KeyspaceKind::Block { "blocks" } else { "tuples" };
                return Err(StoreError::WrongKind { operation: "open", name: name.to_owned(), kind });
            }
            if merge.is_some() {
                let fresh = KeyspaceMeta::new(name, kind, merge);
                self.keyspaces.insert(id, fresh.stored_as(meta.compression));
            }
            return Ok(Keyspace(id));
        }
        self.check_accepting()?;
        let id = self.keyspaces.next_id();
        let mut edits = vec![Edit::AddKeyspace { id, name: name.to_owned(), kind }];
        let compression = self.options.compression;
        if compression != Compression::None {
            self.announce(Feature::Packed)?;
            edits.push(Edit::SetCompression { keyspace: id, compression });
        }
        self.install(edits, &[], &[], |view| view)?;
        self.keyspaces.insert(id, KeyspaceMeta::new(name, kind, merge).stored_as(compression));
        drop(making);
        Ok(Keyspace(id))
    }
}
