//! The store: batches, what it tells of itself, its end.
//!
//! Thread safety: see the crate.

mod opening;

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use kvfs_engine_common::Syncer;
use kvfs_engine_transactions::Base;
use kvfs_locks::{Mutex, class};
use kvfs_store::{
    Batch, BlockRange, Capabilities, Cursor, Durability, EngineStore, Extent, ExtentKind, Follow, KeyRange,
    Keyspace, KeyspaceInfo, KeyspaceKind, MergeFunction, NamedSnapshots, Op, Position, Read, Result,
    Snapshot, SpaceStats, Store, TrackChanges, Verified,
};
use slatedb_common::metrics::DefaultMetricsRecorder;

use crate::cache::BlockCache;
use crate::cursor::SlateCursor;
use crate::error::of_slatedb;
use crate::health::Direction;
use crate::holder::Holder;
use crate::journal::{self, Journal};
use crate::keys;
use crate::options::{cache_bytes, parts_bytes};
use crate::pin::Pin;
use crate::reaper::Reaper;
use crate::segments::Sweeper;
use crate::shared::{Database, Shared};
use crate::space::Space;
use crate::stage::{Spaces, stage};
use crate::stats;
use crate::verify::verify;
use crate::view::View;
use crate::wait_limit::is_unanswered;
use crate::write::Write;

/// What a store may come to, of which object storage tells no bound (bytes).
const CAPACITY_BYTES: u64 = 1 << 50;

/// A store on a database of `SlateDB`.
pub struct SlateStore {
    // Before what they work on.
    threads: Mutex<Option<Threads>, class::EngineSlatedbThreads>,
    shared: Arc<Shared>,
    cache: Arc<BlockCache>,
    recorder: Arc<DefaultMetricsRecorder>,
    uuid: [u8; 16],
    /// It is told when to show a newer state.
    follows: bool,
}

/// Those of a store that is written to.
struct Threads {
    syncer: Syncer,
    reaper: Reaper,
    sweeper: Sweeper,
    holder: Holder,
}

impl SlateStore {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn view(&self) -> View<'_> {
        View::newest(&self.shared)
    }

    /// Makes a keyspace. The caller holds the list of them.
    fn make_space(&self, number: u32, name: &str, kind: KeyspaceKind) -> Result<Arc<Space>> {
        self.shared.check_writable()?;
        let space = Arc::new(Space::new(number, name, kind));
        let mut write = Write::default();
        write.put(keys::full(keys::META, &space.key()), space.value());
        let _order = self.shared.order.lock();
        let sequence = self.shared.newest() + 1;
        self.shared.commit(write, sequence, &[])?;
        space.set_made_at(sequence);
        Ok(space)
    }

    /// Object storage has everything.
    fn end_journal(&self) -> Result<()> {
        self.shared.journal().map_or(Ok(()), |journal| journal::end(&self.shared, journal))
    }

    /// What tables take (bytes).
    fn table_bytes(&self) -> u64 {
        self.shared.manifest().all_sst_views().map(|view| view.sst.estimate_size()).sum()
    }
}

impl Drop for SlateStore {
    fn drop(&mut self) {
        // Its threads are waited for.
        self.shared.end_background();
    }
}

impl Read for SlateStore {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        let space = self.shared.space(keyspace)?;
        match space.kind {
            KeyspaceKind::Tuple => self.view().get(&space, key),
            // What it refers to stays while the position is held.
            KeyspaceKind::Block => Pin::newest(&self.shared)?.get(keyspace, key),
        }
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        // Each look-up would have a position of its own.
        Pin::newest(&self.shared)?.multi_get(keyspace, keys)
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(SlateCursor::new(Pin::newest(&self.shared)?, keyspace, range)?))
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        Pin::newest(&self.shared)?.read_blocks(keyspace, prefix, first, buf)
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        Pin::newest(&self.shared)?.next_extent(keyspace, prefix, blocks, kind)
    }

    fn will_need(&self, keyspace: Keyspace, ranges: Vec<BlockRange>) {
        // One that is not there is found out when it is read.
        if let Ok(space) = self.shared.space(keyspace) {
            self.view().will_need(&space, ranges);
        }
    }
}

impl Store for SlateStore {
    fn open_keyspace(
        &self,
        name: &str,
        kind: KeyspaceKind,
        merge: Option<Arc<dyn MergeFunction>>,
    ) -> Result<Keyspace> {
        let space = {
            let mut spaces = self.shared.spaces.write();
            let known = spaces.iter().find(|space| space.name == name).cloned();
            if let Some(space) = known {
                space.expect_kind(kind, "open_keyspace as another kind")?;
                space
            } else {
                let number = spaces.last().map_or(keys::META, |space| space.number) + 1;
                let space = self.make_space(number, name, kind)?;
                spaces.push(Arc::clone(&space));
                space
            }
        };
        // Also of one whose maker has waited for this in vain.
        self.shared.sync(space.made_at())?;
        if let Some(merge) = merge {
            space.merge_by(merge);
        }
        Ok(space.keyspace())
    }

    fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let mut infos: Vec<_> = self.shared.spaces.read().iter().map(|space| space.info()).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(self.shared.pins.add(Pin::newest(&self.shared)?))
    }

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.apply_in_steps(batch, durability)
    }

    fn sync(&self, position: Position) -> Result<()> {
        self.shared.sync_as_promised(keys::sequence(position.0))
    }

    fn position(&self) -> Position {
        Position(keys::seqno(self.shared.newest()))
    }

    fn engine_name(&self) -> &'static str {
        "slatedb"
    }

    fn follow(&self) -> Option<&dyn Follow> {
        self.follows.then_some(self)
    }

    fn snapshots(&self) -> Option<&dyn NamedSnapshots> {
        Some(self)
    }

    fn changes(&self) -> Option<&dyn TrackChanges> {
        Some(self)
    }

    fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { durable: true, range_delete_constant: false, blind_patches: false }
    }

    fn space(&self) -> SpaceStats {
        let used_bytes = self.table_bytes() + self.shared.segments_bytes();
        let available_bytes = CAPACITY_BYTES.saturating_sub(used_bytes);
        SpaceStats { capacity_bytes: CAPACITY_BYTES, used_bytes, available_bytes }
    }

    fn stats(&self) -> Vec<(String, u64)> {
        let (journal_bytes, journal_syncs) = self.shared.journal().map_or((0, 0), Journal::figures);
        let own = [
            ("slatedb.batches", self.shared.batches.load(Ordering::Relaxed)),
            ("slatedb.cache_bytes", self.cache.bytes() + self.shared.segments.parts().bytes()),
            ("slatedb.deleted_ranges", self.view().dead.len() as u64),
            ("slatedb.journal_bytes", journal_bytes),
            ("slatedb.journal_syncs", journal_syncs),
            ("slatedb.outages", self.shared.observer.health.outages()),
            ("slatedb.segments_bytes", self.shared.segments_bytes()),
            ("slatedb.segments_received_bytes", self.shared.segments.received_bytes()),
            ("slatedb.segments_unsent_bytes", self.shared.segments.pending_bytes()),
            ("slatedb.snapshots", self.shared.named_snapshots().len() as u64),
            ("slatedb.syncs", self.shared.syncs()),
            ("slatedb.tables_bytes", self.table_bytes()),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value)).into_iter();
        let traffic = self.shared.observer.traffic.figures(self.table_bytes() + self.shared.segments_bytes());
        let mut all: Vec<_> = own.chain(traffic).chain(stats::of_slatedb(&self.recorder)).collect();
        all.sort();
        all
    }
}

impl Base for SlateStore {
    /// Waits for the reaper, and for room.
    fn admit(&self, batch: &Batch, durability: Durability) -> Result<()> {
        self.shared.check_writable()?;
        let mut limit = self.shared.wait_limit();
        if batch.ops().iter().any(|op| matches!(op, Op::DeleteRange { .. })) {
            self.shared.wait_for_reaper(&limit)?;
        }
        let journal = self.shared.journal();
        if let Some(journal) = journal {
            journal.make_room();
        }
        let needs_storage = durability == Durability::Synced && journal.is_none_or(Journal::has_failed);
        if needs_storage && self.shared.observer.health.is_failing(Direction::Writes) {
            // One that fails for want of an answer should not have been applied.
            self.shared.sync(self.shared.newest())?;
        }
        self.shared.wait_for_room(&mut limit)
    }

    fn apply_admitted(&self, batch: Batch) -> Result<Position> {
        let mut limit = self.shared.wait_limit();
        if batch.is_empty() {
            return Ok(self.position());
        }
        let spaces = Spaces::of(&self.shared, &batch)?;
        let count = batch.len() as u64;
        let order = loop {
            self.shared.wait_for_room(&mut limit)?;
            let order = self.shared.order.lock();
            // Its holder may have waited for what it reads, or closed the store.
            limit.check("writing")?;
            self.shared.check_open()?;
            if self.shared.has_room()? {
                break order;
            }
        };
        let seqno = keys::seqno(self.shared.newest()) + count;
        let sequence = keys::sequence(seqno);
        let staged = stage(&self.shared, &spaces, batch)?;
        let journal = self.shared.journal();
        if let Some(journal) = journal {
            // Before it is visible: who syncs what it sees waits for it.
            journal.append(staged.record(sequence));
        }
        let written = staged.into_write(sequence);
        if let Err(error) = self.shared.commit(written.write, sequence, &written.dead) {
            journal.inspect(|journal| journal.take_back(sequence));
            return Err(error);
        }
        self.shared.segments.suspect(written.suspects);
        drop(order);
        self.shared.bound_journal();
        Ok(Position(seqno))
    }
}

impl Follow for SlateStore {
    fn find_newer(&self) -> Result<bool> {
        match &self.shared.database {
            Database::Writer(_) => Ok(false),
            Database::Reader(follower) => follower.find_newer(&self.shared),
        }
    }

    fn show_newer(&self) {
        if let Database::Reader(follower) = &self.shared.database {
            self.shared.show_newer(follower);
        }
    }

    fn stop_following(&self) {
        if let Database::Reader(follower) = &self.shared.database {
            follower.stop();
        }
    }
}

impl EngineStore for SlateStore {
    fn failure(&self) -> Option<Arc<str>> {
        self.shared.failure()
    }

    fn set_memory_bytes(&self, bytes: u64) {
        self.cache.set_bytes_max(cache_bytes(bytes));
        self.shared.segments.parts().set_bytes_max(parts_bytes(bytes));
    }

    fn set_commit_interval(&self, interval: Duration) {
        if let Some(threads) = &*self.threads.lock() {
            threads.syncer.set_interval(interval);
        }
    }

    fn verify(&self) -> Result<Verified> {
        verify(&self.shared)
    }

    fn close(&self) -> Result<()> {
        let threads = self.threads.lock().take();
        // The record of the holder goes when nothing is written any more.
        let _holder = threads.map(|Threads { syncer, reaper, sweeper, holder }| {
            self.shared.end_background();
            drop((syncer, reaper, sweeper));
            holder
        });
        let newest = self.shared.newest();
        let synced = self.shared.sync(newest);
        self.shared.close();
        let synced = synced.and_then(|()| self.end_journal());
        if synced.as_ref().is_err_and(is_unanswered) {
            // The database would wait for as long as this has.
            return synced.or_else(|error| match self.shared.journal() {
                Some(journal) if journal.sync(newest) => {
                    let dir = journal.dir().display();
                    tracing::warn!(%dir, %error, "what object storage lacks is in the journal there, until the next mount");
                    Ok(())
                }
                _ => Err(error),
            });
        }
        let limit = self.shared.wait_limit();
        let closed = self.shared.wait(async {
            let close = pin!(async {
                match &self.shared.database {
                    Database::Writer(db) => {
                        db.close().await.map_err(|error| of_slatedb("closing a store", &error))
                    }
                    Database::Reader(follower) => follower.close().await,
                }
            });
            match select(close, pin!(limit.run_out())).await {
                Either::Left((closed, _)) => closed,
                Either::Right(_) => Err(limit.error("closing a store")),
            }
        });
        synced.and(closed)
    }
}
