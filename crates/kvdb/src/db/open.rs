//! Making a store, and opening one: superblock → manifest → runs → journal replay.
//!
//! Crash order at creation: journal zeros and manifest are flushed before the superblock names them,
//! so a store that was only half made is not a store. At a writable open the epoch is counted up and
//! flushed before anything else is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use kvfs_device::Device;
use kvfs_store::clock::Clock;
use kvfs_store::{Keyspace, KeyspaceKind, MergeFunction, Result, Seqno, StoreError, TxnId};
use parking_lot::{Mutex, RwLock};

use super::Db;
use super::background::Threads;
use super::counters::Counters;
use super::health::Health;
use super::inner::{Inner, Ledger, NEVER_RECLAIMED, Order};
use super::keyspaces::{KeyspaceMeta, Keyspaces};
use super::named::Named;
use super::options::{CreateOptions, Options};
use super::signals::Bell;
use super::transactions::Transactions;
use super::view::{Sealed, View};
use crate::cache::{Accountant, BlockCache};
use crate::commit::{Publisher, SnapshotTracker};
use crate::format::{FORMAT_VERSION, Superblock, ZoneId};
use crate::journal::{Journal, JournalArea, Replayed};
use crate::memtable::MemTable;
use crate::run::{RunContext, RunOptions};
use crate::version::{Edit, Manifest, ManifestState, Version};
use crate::zone::Zones;

/// Zones that a store needs besides its journal: superblocks, manifest and its successor, reserve, and
/// some data.
const ZONES_MIN: u64 = 12;

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
            format_version: FORMAT_VERSION,
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
    let next_epoch = superblock.epoch + 1;
    let (manifest, state) = Manifest::open(Arc::clone(&device), superblock, Arc::clone(&zones))?;
    if !options.read_only {
        manifest.begin_epoch()?;
    }
    let descs = || state.keyspaces.values().flat_map(|k| &k.runs).flat_map(|run| &run.pieces);
    zones.restore(descs().flat_map(|desc| &desc.zones))?;

    let accountant = Accountant::new(options.memory_bytes);
    let ctx = Arc::new(RunContext {
        device: Arc::clone(&device),
        zones,
        cache: BlockCache::lru(Arc::clone(&accountant)),
        accountant,
        options: RunOptions { tuple_block_bytes: options.tuple_block_bytes, ..RunOptions::default() },
    });
    let version = Arc::new(Version::open(&state, &ctx)?);
    let keyspaces = Keyspaces::default();
    for (&id, keyspace) in &state.keyspaces {
        keyspaces.insert(id, KeyspaceMeta::new(&keyspace.name, keyspace.kind, None));
    }
    let mut replay = Replay::new(&options, &ctx, &keyspaces, &state);
    let mut feed = |replayed: Replayed| replay.take(&replayed);
    let tail = state.journal_tail;
    let journal = if options.read_only {
        Journal::replay(device.as_ref(), area, next_epoch, tail, &mut feed)?;
        None
    } else {
        Some(Journal::open(device, area, next_epoch, tail, &mut feed)?)
    };
    let Replay { active, sealed, last_seqno, commits, .. } = replay;
    let transactions = Transactions::new(state.next_txn, &state.committed, commits);
    let next_id = Arc::new(AtomicU64::new(state.next_id.max(1)));
    let view = View { active: Arc::new(active), sealed, version };
    let snapshots = Arc::new(SnapshotTracker::new());
    let named = Named::restore(&state.snapshots, &snapshots, last_seqno)?;
    Ok(Inner {
        options,
        clock,
        health: Health::default(),
        ctx,
        journal,
        keyspaces,
        publisher: Publisher::new(last_seqno),
        snapshots,
        named,
        transactions,
        counters: Counters::default(),
        order: Mutex::new(Order { next_seqno: last_seqno + 1 }),
        ledger: Mutex::new(Ledger { manifest, state }),
        view: RwLock::new(Arc::new(view)),
        next_id,
        flushing: Mutex::new(()),
        merging: Mutex::new(()),
        making_keyspace: Mutex::new(()),
        naming: Mutex::new(()),
        work: Bell::default(),
        progress: Bell::default(),
        commit_timer: Bell::default(),
        stopping: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        compaction_debt_bytes: AtomicU64::new(0),
        flush_is_full: AtomicBool::new(false),
        reclaimed_at: AtomicU64::new(NEVER_RECLAIMED),
        clearing_wanted: AtomicBool::new(false),
    })
}

/// Puts replayed batches back into memtables.
struct Replay<'a> {
    ctx: &'a RunContext,
    keyspaces: &'a Keyspaces,
    memtable_bytes: u64,
    flushed_seqno: Seqno,
    active: MemTable,
    /// Newest first.
    sealed: Vec<Sealed>,
    last_seqno: Seqno,
    /// Transactions that were committed, and up to which seqno.
    commits: Vec<(TxnId, Seqno)>,
}

impl<'a> Replay<'a> {
    fn new(options: &Options, ctx: &'a RunContext, keyspaces: &'a Keyspaces, state: &ManifestState) -> Self {
        Self {
            ctx,
            keyspaces,
            memtable_bytes: options.memtable_bytes,
            flushed_seqno: state.flushed_seqno,
            active: MemTable::new(Arc::clone(&ctx.accountant)),
            sealed: Vec::new(),
            last_seqno: state.flushed_seqno,
            commits: Vec::new(),
        }
    }

    fn take(&mut self, replayed: &Replayed) -> Result<()> {
        // The group in which a flushed memtable ended is replayed too: skip what is in runs.
        if replayed.base <= self.flushed_seqno {
            return Ok(());
        }
        if self.active.bytes() >= self.memtable_bytes {
            let fresh = MemTable::new(Arc::clone(&self.ctx.accountant));
            let table = Arc::new(std::mem::replace(&mut self.active, fresh));
            self.sealed.insert(0, Sealed { table, next_lsn: replayed.lsn, last_seqno: self.last_seqno });
        }
        let kinds = self.keyspaces.kinds_of(&replayed.batch)?;
        let writing = self.active.begin_write();
        self.active.apply(&replayed.batch, replayed.base, kinds);
        drop(writing);
        self.last_seqno = replayed.base + replayed.batch.len() as u64 - 1;
        self.commits.extend(replayed.txn.map(|txn| (txn, self.last_seqno)));
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
                self.keyspaces.insert(id, KeyspaceMeta::new(name, kind, merge));
            }
            return Ok(Keyspace(id));
        }
        self.check_accepting()?;
        let id = self.keyspaces.next_id();
        self.install(vec![Edit::AddKeyspace { id, name: name.to_owned(), kind }], &[], &[], |view| view)?;
        self.keyspaces.insert(id, KeyspaceMeta::new(name, kind, merge));
        drop(making);
        Ok(Keyspace(id))
    }
}
