//! Making a store, and opening one: superblock → manifest → runs → journal replay.
//!
//! Crash order at creation: journal zeros and manifest are flushed before the superblock names them,
//! so a store that was only half made is not a store. At a writable open the epoch is counted up and
//! flushed before anything else is written.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use kvfs_device::Device;
use kvfs_store::clock::Clock;
use kvfs_store::{Result, Seqno, StoreError, TxnId};

use crate::commit::SnapshotTracker;
use crate::commits::checkpoints::{Checkpoints, open_runs};
use crate::commits::transactions::Transactions;
use crate::commits::undo::Undo;
use crate::db::Db;
use crate::devices::{Devices, Found};
use crate::flush::Flusher;
use crate::flush::headroom::Space;
use crate::format::{FORMAT_VERSION_PLAIN, Features, SUPERBLOCK_ADDRS, SUPERBLOCK_BYTES, Superblock, ZoneId};
use crate::history::History;
use crate::history::named::Named;
use crate::journal::{CommitMark, Journal, JournalArea, Lsn, Replayed, SpilledCommit};
use crate::layers::adopted::CommittedRuns;
use crate::layers::view::{Sealed, SealedLayer, View};
use crate::live::catalog::Catalog;
use crate::live::features::Announced;
use crate::live::keyspaces::Keyspaces;
use crate::live::{Ledger, LiveSet};
use crate::memtable::MemTable;
use crate::merge::Merger;
use crate::merge::defrag::Defragmenter;
use crate::merge::deleted::Deleted;
use crate::merge::migrate::Migrator;
use crate::order::log::Log;
use crate::order::{Order, Sequencer};
use crate::parts::Parts;
use crate::pressure::Pressure;
use crate::pressure::pace::MergePace;
use crate::read::Reader;
use crate::runtime::Runtime;
use crate::runtime::options::{Background, CreateOptions, Options};
use crate::space::{DEVICE_ZONES_MAX, Placement, Zones};
use crate::table::{RunContext, RunOptions};
use crate::txn::Txns;
use crate::version::{Edit, Manifest, ManifestState, UndoState, Version};
use crate::write::Writer;
use crate::write::admission::Admission;

/// Zones that a store needs besides its journal: superblocks, manifest and its successor, reserve, and
/// some data.
const ZONES_MIN: u64 = 12;

/// Behind both superblocks; nothing else is ever written to zone 0.
const SUPERBLOCKS_END: u64 = 64 << 10;
const _: () = assert!(SUPERBLOCK_ADDRS[1] + SUPERBLOCK_BYTES as u64 <= SUPERBLOCKS_END);

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
        let zones_there = zones.min(device.len_bytes() / zone_bytes);
        // They are numbered by 32 bits.
        for (zones, zones_max) in [(zones, u32::MAX), (zones_there, DEVICE_ZONES_MAX)] {
            if zones <= u64::from(zones_max) {
                continue;
            }
            let message = format!("its device may have at most {} bytes", u64::from(zones_max) * zone_bytes);
            let error = io::Error::new(io::ErrorKind::InvalidInput, message);
            return Err(StoreError::io("making the store", error));
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
            has_stamps: true,
        };
        grow_to(device.as_ref(), SUPERBLOCKS_END)?;
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
        Self::open_joined(device, &[], options, clock)
    }

    /// As [`Db::open`], of a store that has other devices, too ([`Db::add_device`]): those among `others`, in
    /// any order. A store that is only read is opened without a slow one that is missing; what lies there
    /// can't be read then.
    ///
    /// # Errors
    /// As [`Db::open`]; an I/O error with [`MissingDevices`](crate::MissingDevices) inside.
    pub fn open_joined(
        first: Arc<dyn Device>,
        others: &[Arc<dyn Device>],
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>> {
        let parts = owners(Found::first(first), others, options, clock)?;
        parts.live.update_debt();
        parts.pressure.pace.note_sealed(parts.live.view().sealed.len());
        Self::start(parts)
    }
}

fn grow_to(device: &dyn Device, len: u64) -> Result<()> {
    if device.len_bytes() >= len {
        return Ok(());
    }
    device.grow(len).map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::Unsupported => StoreError::Full,
        _ => StoreError::io(format!("growing the device to {len} bytes"), error),
    })
}

/// Reads the manifest, opens the runs, puts the journal back into memtables, and makes the owners, each of
/// those before it. No thread runs yet.
fn owners(
    mut found: Found,
    others: &[Arc<dyn Device>],
    options: Options,
    clock: Arc<dyn Clock>,
) -> Result<Parts> {
    let device = Arc::clone(&found.joined) as Arc<dyn Device>;
    let superblock = read_superblock(device.as_ref())?;
    let area = JournalArea { part_bytes: options.journal_part_bytes, ..JournalArea::of(&superblock) };
    let (zone_bytes, first_data) = (superblock.zone_bytes, superblock.first_data_zone());
    let zones = Zones::new(Arc::clone(&device), zone_bytes, superblock.capacity_bytes, first_data);
    let (uuid, salt, next_epoch) = (superblock.uuid, superblock.salt(), superblock.epoch + 1);
    let announced = Announced::new(Features::announced_by(superblock.format_version));
    let (manifest, mut state) = Manifest::open(Arc::clone(&device), superblock, Arc::clone(&zones))?;
    found.join(&state, others, &zones, (uuid, options.read_only))?;
    if !options.read_only {
        found.check_present(manifest.begin_epoch())?;
    }
    zones.set_placement(options.placement.unwrap_or_else(|| kept_placement(&state)));
    let fast_written = Arc::clone(&found.fast_written);
    zones.endurance().begin(fast_written, Arc::clone(&clock), state.written_to_fast.as_ref());
    zones.restore(state.zone_uses())?;
    let run_options = RunOptions { tuple_block_bytes: options.tuple_block_bytes, ..RunOptions::default() };
    let (memory, policy) = (options.memory_bytes, options.cache_policy);
    let ctx = RunContext::new(Arc::clone(&device), zones, salt, memory, policy, run_options);
    ctx.accountant.charges().set_now(clock.monotonic());
    let version = Arc::new(found.check_present(Version::open(&state, &ctx))?);
    let keyspaces = Arc::new(Keyspaces::of(&state));
    let mut replay = Replay::new(&options, &ctx, &keyspaces, &state);
    let journal = found.check_present(replay.journal(device, area, next_epoch, &clock, options.read_only))?;
    let incomplete_bytes = replay.incomplete_bytes;
    let Replay { active, sealed, last_seqno, commits, undo: replayed_undo, active_from, .. } = replay;
    if !options.read_only {
        drop_prepared(&manifest, &mut state, &ctx, &commits)?;
    }
    let view = View { active: Arc::new(active), sealed, version };

    let snapshots = Arc::new(SnapshotTracker::new());
    let is_committed = |txn| commits.iter().any(|&(committed, _)| committed == txn);
    let checkpoints = Checkpoints::restore(&state, &ctx, &keyspaces, &snapshots, last_seqno, is_committed)?;
    let checkpoints = Arc::new(checkpoints);
    let transactions = Arc::new(Transactions::new(state.next_txn, &state.committed, commits));
    let named = Named::restore(&state.snapshots, &snapshots, last_seqno)?;
    let saved_undo = state.undo.clone();
    let table_bytes = table_bytes(&options, journal.as_ref());
    let pace = merge_pace(&options, &clock);

    let pressure = Arc::new(Pressure::new(&options, pace));
    let runtime = Arc::new(Runtime::new(options, clock, ctx, table_bytes));
    runtime.counters.note_incomplete_group(incomplete_bytes);
    let ledger = Ledger { manifest, state };
    let live = Arc::new(LiveSet::new(Arc::clone(&runtime), Arc::clone(&pressure), ledger, view, announced));
    let log = Arc::new(Log::new(Arc::clone(&runtime), journal));
    let history = Arc::new(History::new(&live, &log, snapshots, named, last_seqno));
    let sequencer = Arc::new(Sequencer::new(&live, &log, Order { next_seqno: last_seqno + 1, active_from }));
    let catalog = Catalog::new(&live, &keyspaces);
    let reader = Arc::new(Reader::new(&keyspaces, &history));
    let undo = Arc::new(Undo::restore(&reader, &saved_undo, replayed_undo, last_seqno)?);
    let space = Arc::new(Space::new(&live, &transactions));
    let flusher = Arc::new(Flusher::new(&keyspaces, &history, &sequencer, &transactions, &undo, &space));
    let deleted = Arc::new(Deleted::new(&keyspaces, &history, &sequencer));
    let merger = Arc::new(Merger::new(&flusher, &deleted));
    let devices = Devices::new(&merger, &checkpoints, found, uuid);
    let writer = Arc::new(Writer::new(&flusher, &Arc::new(Admission::new(&merger, &reader)), &deleted));
    let txns = Arc::new(Txns::new(&reader, &checkpoints, &writer));
    Ok(Parts {
        uuid,
        runtime,
        pressure,
        live,
        log,
        keyspaces,
        catalog,
        history,
        sequencer,
        reader,
        transactions,
        checkpoints,
        undo,
        space,
        deleted,
        flusher,
        defragmenter: Defragmenter::new(&merger),
        migrator: Migrator::new(&merger),
        merger,
        devices,
        writer,
        txns,
    })
}

/// The superblock of the first device, `device`. What is known of each zone is in memory, and a device with
/// holes has as many as it says.
///
/// # Errors
/// As [`Superblock::read_newest`]; `Corrupt` when there are too many zones.
pub(crate) fn read_superblock(device: &dyn Device) -> Result<Superblock> {
    let superblock = Superblock::read_newest(device)?;
    let zones = superblock.capacity_bytes.min(device.len_bytes()) / u64::from(superblock.zone_bytes);
    if zones <= u64::from(DEVICE_ZONES_MAX) {
        return Ok(superblock);
    }
    let detail = format!("its device has {zones} zones, more than the {DEVICE_ZONES_MAX} of any store");
    Err(StoreError::corrupt("the superblock", detail))
}

/// What the store keeps; one that this program does not know is none.
fn kept_placement(state: &ManifestState) -> Placement {
    let Some(name) = &state.placement else { return Placement::default() };
    name.parse().unwrap_or_else(|error| {
        tracing::warn!(%error, "the store is to place content by a policy of another version");
        Placement::default()
    })
}

/// The size at which a memtable is sealed. A journal that is full stops writers until a table is flushed: so
/// the tables that wait must fit it.
fn table_bytes(options: &Options, journal: Option<&Journal>) -> u64 {
    match journal {
        Some(journal) if options.background == Background::Threads => {
            options.memtable_bytes.min(journal.area_bytes() / TABLES_IN_JOURNAL)
        }
        _ => options.memtable_bytes,
    }
}

fn merge_pace(options: &Options, clock: &Arc<dyn Clock>) -> Arc<MergePace> {
    let has_threads = options.background == Background::Threads;
    let pace = MergePace::new(Arc::clone(clock), has_threads, options.merge_bytes_per_second);
    Arc::new(pace)
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

/// Checks what each write has to pass: the journal may be another program's work.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn check_replayed(replayed: &Replayed, keyspaces: &Keyspaces) -> Result<()> {
    keyspaces.check_replayed(&replayed.batch).map_err(|error| {
        let place = format!("the journal group at position {}", replayed.lsn.0);
        StoreError::corrupt(place, format!("its batch from seqno {} on: {error}", replayed.base))
    })
}

/// Puts a batch back into a memtable, as it was applied to the one before. `pinned`: positions that are read
/// at.
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
    table.put_unreadable(batch, *base, &replayed.unreadable);
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
    /// Positions that are read at, as far as they are known by now.
    pinned: BTreeSet<Seqno>,
    /// Of the group in which the journal ends.
    incomplete_bytes: u64,
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
            active: MemTable::new(&ctx.accountant),
            sealed: Vec::new(),
            last_seqno: state.flushed_seqno,
            commits: Vec::new(),
            undo: Vec::new(),
            pinned: state.positions_read(),
            incomplete_bytes: 0,
        }
    }

    /// Replays the journal, and opens it unless the store is only read.
    fn journal(
        &mut self,
        device: Arc<dyn Device>,
        area: JournalArea,
        epoch: u64,
        clock: &Arc<dyn Clock>,
        is_read_only: bool,
    ) -> Result<Option<Journal>> {
        let from = (self.state.journal_tail, self.flushed_seqno);
        let accountant = Arc::clone(&self.ctx.accountant);
        let mut feed = |replayed: Replayed| self.take(&replayed);
        if is_read_only {
            let recovered = Journal::replay(device.as_ref(), area, epoch, from, &mut feed)?;
            self.incomplete_bytes = recovered.incomplete_bytes;
            return Ok(None);
        }
        let journal = Journal::open(device, area, epoch, from, Arc::clone(clock), &mut feed)?;
        self.incomplete_bytes = journal.incomplete_bytes();
        Ok(Some(journal.charged_to(accountant)))
    }

    fn take(&mut self, replayed: &Replayed) -> Result<()> {
        // The group in which a flushed memtable ended is replayed too: skip what is in runs.
        if replayed.base <= self.flushed_seqno {
            return Ok(());
        }
        if let Some(commit) = &replayed.spilled {
            return self.take_spilled(replayed, commit);
        }
        check_replayed(replayed, self.keyspaces)?;
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
        let fresh = MemTable::new(&self.ctx.accountant);
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

#[cfg(test)]
mod tests;
