//! A store that is only read: the state that it shows, and how it comes to newer ones.
//!
//! Purpose: a reader of `SlateDB` moves on under its users. So there are several of them, each at one state
//! for as long as it is used: one is polled that nothing reads from, then it is the one that is shown. Two
//! are enough unless snapshots are kept.
//!
//! Thread safety: shared; searches take turns. Invariants: a reader that a state has is not polled; states
//! are shown in the order of their sequence numbers.

use std::pin::pin;
use std::sync::Arc;

use futures::future::{Either, select};
use kvfs_locks::{Mutex, RwLock, class};
use kvfs_store::Result;
use object_store::ObjectStore;
use object_store::path::Path;
use slatedb::admin::{Admin, AdminBuilder};
use slatedb::config::DbReaderOptions;
use slatedb::{DbReader, DbReaderMode, Error};
use slatedb_common::metrics::DefaultMetricsRecorder;
use tokio::sync::watch;
use uuid::Uuid;

use crate::cache::BlockCache;
use crate::error::of_slatedb;
use crate::label::{self, Entry};
use crate::meta::Meta;
use crate::pace::{NEVER, Pace};
use crate::shared::Shared;
use crate::view::View;

/// Readers that are kept where none has to be.
const READERS: usize = 2;

/// A reader of the database, and what says when it looks for a newer state.
pub(crate) struct Reader {
    pub(crate) db: DbReader,
    pace: Arc<Pace>,
}

impl Reader {
    fn sequence(&self) -> u64 {
        self.db.status().durable_seq
    }

    fn manifest(&self) -> u64 {
        self.db.status().current_manifest.id()
    }

    async fn close(&self) -> Result<()> {
        self.db.close().await.map_err(|error| of_slatedb("closing a store", &error))
    }
}

/// What is shown: a reader that does not move, and what the database says of itself there.
pub(crate) struct State {
    pub(crate) reader: Arc<Reader>,
    pub(crate) meta: Meta,
    /// The newest sequence number in it.
    pub(crate) sequence: u64,
    pub(crate) named: Vec<Entry>,
}

impl State {
    /// What `reader` has. It does not move any more.
    fn new(reader: Arc<Reader>, meta: Meta) -> Arc<Self> {
        let (sequence, named) = (reader.sequence(), label::named_in(&reader.db.manifest()));
        Arc::new(Self { reader, meta, sequence, named })
    }
}

/// How readers are opened.
pub(crate) struct Opener {
    pub(crate) prefix: Path,
    pub(crate) service: Arc<dyn ObjectStore>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) recorder: Arc<DefaultMetricsRecorder>,
}

impl Opener {
    /// At the newest state.
    pub(crate) async fn open(&self) -> Result<Arc<Reader>> {
        let opened = self.open_at(DbReaderMode::FollowLatest).await;
        let reader = opened.map_err(|error| of_slatedb("opening a store", &error))?;
        reader.pace.at_rest().await;
        Ok(reader)
    }

    /// At a checkpoint of everything that was written before, which is in tables. It never looks for anything
    /// newer, and has no task that a close would end.
    pub(crate) async fn open_checkpoint(&self, id: Uuid) -> Result<Arc<Reader>, Error> {
        self.open_at(DbReaderMode::Checkpoint(id)).await
    }

    async fn open_at(&self, mode: DbReaderMode) -> Result<Arc<Reader>, Error> {
        let pace = Arc::new(Pace::new());
        let skip_wal_replay = matches!(mode, DbReaderMode::Checkpoint(_));
        let options =
            DbReaderOptions { manifest_poll_interval: NEVER, skip_wal_replay, ..DbReaderOptions::default() };
        let builder = DbReader::builder(self.prefix.clone(), Arc::clone(&self.service))
            .with_reader_mode(mode)
            .with_options(options)
            .with_system_clock(Arc::clone(&pace) as _)
            .with_db_cache(Arc::clone(&self.cache) as _, 0)
            .with_metrics_recorder(Arc::clone(&self.recorder) as _);
        let db = builder.build().await?;
        Ok(Arc::new(Reader { db, pace }))
    }

    /// For checkpoints.
    pub(crate) fn admin(&self) -> Admin {
        AdminBuilder::new(self.prefix.clone(), Arc::clone(&self.service)).build()
    }
}

struct Search {
    readers: Vec<Arc<Reader>>,
    /// To be shown next.
    found: Option<Arc<State>>,
}

/// See the module.
pub(crate) struct Follower {
    current: RwLock<Arc<State>, class::EngineSlatedbFollowerCurrent>,
    search: Mutex<Search, class::EngineSlatedbFollowerSearch>,
    opener: Arc<Opener>,
    is_over: watch::Sender<bool>,
}

impl Follower {
    /// That shows the state of `reader`, of which nothing is known yet.
    pub(crate) fn new(reader: Arc<Reader>, opener: Arc<Opener>) -> Self {
        let search = Search { readers: vec![Arc::clone(&reader)], found: None };
        let state = State::new(reader, Meta::default());
        Self {
            current: RwLock::new(state),
            search: Mutex::new(search),
            opener,
            is_over: watch::channel(false).0,
        }
    }

    /// The same, with what the database says of itself there.
    pub(crate) fn with(self, meta: Meta) -> Self {
        {
            let mut current = self.current.write();
            *current = State::new(Arc::clone(&current.reader), meta);
        }
        self
    }

    /// The state that is shown.
    pub(crate) fn current(&self) -> Arc<State> {
        Arc::clone(&self.current.read())
    }

    /// See [`kvfs_store::Follow::find_newer`].
    pub(crate) fn find_newer(&self, shared: &Shared) -> Result<bool> {
        let mut search = self.search.lock();
        let Some(reader) = shared.wait(self.poll(&mut search.readers))? else { return Ok(false) };
        let (current, sequence) = (self.current(), reader.sequence());
        if sequence > current.sequence {
            let meta = Meta::read(&View::of_reader(shared, &reader))?;
            search.found = Some(State::new(reader, meta));
            return Ok(true);
        }
        if sequence == current.sequence && reader.manifest() > current.reader.manifest() {
            // The same content in other tables, after a compaction: those of before will be removed.
            let state = State::new(reader, current.meta.clone());
            *self.current.write() = state;
        }
        Ok(false)
    }

    /// A reader that nothing uses, at the newest state; `None`: it is over.
    async fn poll(&self, readers: &mut Vec<Arc<Reader>>) -> Result<Option<Arc<Reader>>> {
        let mut is_over = self.is_over.subscribe();
        let over = pin!(is_over.wait_for(|is_over| *is_over));
        match select(pin!(self.poll_free(readers)), over).await {
            Either::Left((polled, _)) => polled.map(Some),
            Either::Right(_) => Ok(None),
        }
    }

    /// The same, however long it takes. Readers that are not needed go.
    async fn poll_free(&self, readers: &mut Vec<Arc<Reader>>) -> Result<Arc<Reader>> {
        let is_free = |reader: &Arc<Reader>| Arc::strong_count(reader) == 1;
        while readers.len() > READERS
            && let Some(at) = readers.iter().position(is_free)
        {
            readers.swap_remove(at).close().await?;
        }
        if let Some(free) = readers.iter().find(|reader| is_free(reader)) {
            free.pace.poll().await;
            return Ok(Arc::clone(free));
        }
        let new = self.opener.open().await?;
        readers.push(Arc::clone(&new));
        Ok(new)
    }

    /// Shows what was found, if anything was.
    pub(crate) fn show_newer(&self) {
        if let Some(found) = self.search.lock().found.take() {
            *self.current.write() = found;
        }
    }

    /// Ends the search that is under way, and all later ones.
    pub(crate) fn stop(&self) {
        self.is_over.send_replace(true);
    }

    pub(crate) async fn close(&self) -> Result<()> {
        self.stop();
        let readers = {
            let mut search = self.search.lock();
            search.found = None;
            std::mem::take(&mut search.readers)
        };
        let mut closed = Ok(());
        for reader in readers {
            closed = closed.and(reader.close().await);
        }
        closed
    }
}
