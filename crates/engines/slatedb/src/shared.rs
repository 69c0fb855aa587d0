//! What a store, its snapshots, cursors and threads have in common.
//!
//! Thread safety: see the crate. Invariant: the runtime goes after the database.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::{Either, select};
use futures::poll;

use kvfs_locks::{Condvar, Mutex, RwLock, class};
use kvfs_store::{Keyspace, Result, StoreError};
use slatedb::config::WriteOptions;
use slatedb::{CloseReason, Db, DbStatus, DbTransaction, VersionedManifest};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::ahead::{Ahead, Fetcher};
use crate::backlog::Backlog;
use crate::changes::Pins;
use crate::error::{TAKEN_OVER, of_slatedb};
use crate::flusher::{Flushed, Flusher};
use crate::follower::{Follower, Opener};
use crate::health::Direction;
use crate::journal::Journal;
use crate::meta::Meta;
use crate::named::Named;
use crate::observed::Observer;
use crate::ranges::{DeadRange, DeadRanges};
use crate::runtime::Executor;
use crate::segments::{Held, Segments};
use crate::space::Space;
use crate::wait_limit::{WaitLimit, Waiter, drive};
use crate::write::Write;

/// So many deleted ranges may wait for the reaper; then a batch with another one waits for it.
const DEAD_RANGES_MAX: usize = 256;

/// A failure that is not the log's, nor told by the database's status, is noticed by those that wait for
/// something else within this time.
const FAILURE_POLL: Duration = Duration::from_secs(1);

/// What is open.
pub(crate) enum Database {
    Writer(Db),
    /// At one state, until it is told to show a newer one.
    Reader(Box<Follower>),
}

/// Signs of life of object storage, for those that wait.
struct Signs {
    status: watch::Receiver<DbStatus>,
    sent: watch::Receiver<()>,
}

/// What a store is made of beside its database.
pub(crate) struct Parts {
    pub(crate) executor: Executor,
    pub(crate) observer: Arc<Observer>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) backlog_bytes: u64,
    pub(crate) opener: Arc<Opener>,
    pub(crate) segments: Arc<Segments>,
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) database: Database,
    pub(crate) spaces: RwLock<Vec<Arc<Space>>, class::EngineSlatedbSpaces>,
    /// Batches take their turn on it.
    pub(crate) order: Mutex<(), class::EngineSlatedbOrder>,
    /// `None`: nothing is written.
    flusher: Option<Flusher>,
    backlog: Backlog,
    /// Without one syncs wait for object storage.
    journal: OnceLock<Arc<Journal>>,
    pub(crate) observer: Arc<Observer>,
    /// How long a call waits for object storage that does not answer; `None`: for ever.
    timeout: Option<Duration>,
    /// The newest sequence number. Written under the order lock, when the batch is visible.
    newest: Arc<AtomicU64>,
    dead: RwLock<Arc<DeadRanges>, class::EngineSlatedbDeadRanges>,
    /// Ranges come and go, or all is over.
    reaping: Mutex<(), class::EngineSlatedbReaping>,
    pub(crate) dead_changed: Condvar,
    pub(crate) batches: AtomicU64,
    pub(crate) named: Arc<Named>,
    pub(crate) pins: Pins,
    pub(crate) opener: Arc<Opener>,
    pub(crate) ahead: Ahead,
    pub(crate) segments: Arc<Segments>,
    /// The first failure.
    failed: OnceLock<Arc<str>>,
    is_closed: AtomicBool,
    /// Threads of the store are told to end.
    end: watch::Sender<bool>,
    executor: Executor,
}

impl Shared {
    pub(crate) fn new(database: Database, parts: Parts, newest: u64) -> Self {
        let Parts { executor, observer, timeout, backlog_bytes, opener, segments } = parts;
        let named = Arc::new(Named::of(&database, &opener, &executor.handle()));
        let newest = Arc::new(AtomicU64::new(newest));
        let flusher = match &database {
            // What was read from object storage is durable.
            Database::Writer(db) => Some(Flusher::start(&executor, db, Arc::clone(&newest))),
            Database::Reader(_) => None,
        };
        Self {
            database,
            flusher,
            backlog: Backlog::new(backlog_bytes),
            journal: OnceLock::new(),
            observer,
            timeout,
            spaces: RwLock::default(),
            order: Mutex::default(),
            newest,
            dead: RwLock::default(),
            reaping: Mutex::default(),
            dead_changed: Condvar::default(),
            batches: AtomicU64::new(0),
            named,
            pins: Pins::default(),
            ahead: Ahead::new(Arc::clone(&opener.cache), Arc::clone(&segments), executor.handle()),
            segments,
            opener,
            failed: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            end: watch::channel(false).0,
            executor,
        }
    }

    /// With what the database says of itself.
    pub(crate) fn with(self, meta: Meta) -> Self {
        let (spaces, dead) = (meta.spaces.clone(), Arc::clone(&meta.dead));
        let database = match self.database {
            Database::Reader(follower) => Database::Reader(Box::new(follower.with(meta))),
            writer @ Database::Writer(_) => writer,
        };
        Self { database, spaces: RwLock::new(spaces), dead: RwLock::new(dead), ..self }
    }

    /// From now on there is a journal on a local disk; no batch has come yet.
    pub(crate) fn set_journal(&self, journal: Journal) {
        let journal = Arc::clone(self.journal.get_or_init(|| Arc::new(journal)));
        let Some(mut flushed) = self.flusher.as_ref().map(Flusher::flushed) else { return };
        self.executor.spawn(async move {
            while flushed.changed().await.is_ok() {
                let durable = flushed.borrow_and_update().durable;
                journal.stored(durable);
            }
        });
    }

    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.journal.get().map(|journal| &**journal)
    }

    /// Object storage is asked to take what a journal holds before that is more than what may be in memory.
    pub(crate) fn bound_journal(&self) {
        if self.journal().is_some_and(|journal| journal.figures().0 > self.backlog_bytes()) {
            self.ask_flush();
        }
    }

    /// What may be in memory alone (bytes).
    pub(crate) fn backlog_bytes(&self) -> u64 {
        self.backlog.bytes_max()
    }

    /// Shows the state that was found, and knows its keyspaces.
    pub(crate) fn show_newer(&self, follower: &Follower) {
        follower.show_newer();
        let mut spaces = self.spaces.write();
        // Those that are known have their merge functions.
        let known = spaces.last().map_or(0, |space| space.number);
        spaces.extend(follower.current().meta.spaces.iter().filter(|space| space.number > known).cloned());
    }

    /// A limit for a call that begins now.
    pub(crate) fn wait_limit(&self) -> WaitLimit {
        WaitLimit::begin(self.timeout)
    }

    /// A limit for what `waiter` begins now.
    pub(crate) fn limit_of(&self, waiter: Waiter) -> WaitLimit {
        match waiter {
            Waiter::Caller => self.wait_limit(),
            Waiter::Background => self.wait_limit().until(self.end.subscribe()),
        }
    }

    /// Threads of the store wait for object storage no longer.
    pub(crate) fn end_background(&self) {
        self.end.send_replace(true);
    }

    /// Drives a read to its end on this thread, or gives up when object storage has not answered for too
    /// long. `what` is read.
    pub(crate) fn read<T>(
        &self,
        waiter: Waiter,
        what: &str,
        read: impl Future<Output = Result<T, slatedb::Error>>,
    ) -> Result<T> {
        self.within_limit(waiter, what, async { read.await.map_err(|error| of_slatedb(what, &error)) })
    }

    /// As [`Shared::read`], of what may take many requests: it goes on as long as reads are answered.
    pub(crate) fn read_on<T>(
        &self,
        waiter: Waiter,
        what: &str,
        read: impl Future<Output = Result<T, slatedb::Error>>,
    ) -> Result<T> {
        self.wait(async {
            let mut read = pin!(async { read.await.map_err(|error| of_slatedb(what, &error)) });
            if let std::task::Poll::Ready(read) = poll!(&mut read) {
                return read;
            }
            let answers = || self.observer.health.answers_to(Direction::Reads);
            drive(what, || self.limit_of(waiter), answers, read).await
        })
    }

    /// As [`Shared::read`], of anything that object storage is asked for.
    pub(crate) fn within_limit<T>(
        &self,
        waiter: Waiter,
        what: &str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.wait(async {
            let mut answer = pin!(answer);
            // What is in memory costs no look at a clock.
            if let std::task::Poll::Ready(answer) = poll!(&mut answer) {
                return answer;
            }
            let limit = self.limit_of(waiter);
            match select(answer, pin!(limit.run_out())).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => Err(limit.error(what)),
            }
        })
    }

    /// Holds the newest position for a reader that is about to look.
    pub(crate) fn hold_newest(&self) -> Held {
        self.segments.positions().hold_from(|| self.newest())
    }

    /// Drives `future` to its end on this thread, however long it takes.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        self.executor.wait(future)
    }

    /// Of the newest state that is known or shown.
    pub(crate) fn manifest(&self) -> VersionedManifest {
        match &self.database {
            Database::Writer(db) => db.manifest(),
            Database::Reader(follower) => follower.current().reader.db.manifest(),
        }
    }

    /// For what is read ahead: of the newest state, most of whose tables are those of all states.
    pub(crate) fn fetcher(&self) -> Fetcher {
        match &self.database {
            Database::Writer(db) => Fetcher::Writer(db.clone()),
            Database::Reader(follower) => Fetcher::Reader(Arc::clone(&follower.current().reader)),
        }
    }

    /// For tasks of the runtime.
    pub(crate) fn handle(&self) -> Handle {
        self.executor.handle()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self.database, Database::Reader(_))
    }

    /// The database, to be written to.
    pub(crate) fn writer(&self) -> Result<&Db> {
        match &self.database {
            Database::Writer(db) => Ok(db),
            Database::Reader(_) => Err(StoreError::ReadOnly),
        }
    }

    /// The newest sequence number.
    pub(crate) fn newest(&self) -> u64 {
        match &self.database {
            Database::Writer(_) => self.newest.load(Ordering::Acquire),
            Database::Reader(follower) => follower.current().sequence,
        }
    }

    /// What segments take (bytes).
    pub(crate) fn segments_bytes(&self) -> u64 {
        match &self.database {
            Database::Writer(_) => self.segments.stored_bytes(),
            Database::Reader(follower) => follower.current().meta.segment_bytes,
        }
    }

    /// Everything up to this sequence number is durable.
    pub(crate) fn durable(&self) -> u64 {
        self.flusher.as_ref().map_or_else(|| self.newest(), |flusher| flusher.flushed().borrow().durable)
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.flusher.as_ref().map_or(0, |flusher| flusher.flushed().borrow().flushes)
    }

    pub(crate) fn space(&self, keyspace: Keyspace) -> Result<Arc<Space>> {
        let spaces = self.spaces.read();
        let space = spaces.iter().find(|space| space.number == keyspace.0);
        space.cloned().ok_or_else(|| StoreError::NoKeyspace(format!("#{}", keyspace.0)))
    }

    /// The ranges whose keys are still there.
    pub(crate) fn dead(&self) -> Arc<DeadRanges> {
        Arc::clone(&self.dead.read())
    }

    /// Those, and what `look` finds while the list stays as it is.
    pub(crate) fn dead_with<T>(&self, look: impl FnOnce() -> T) -> (Arc<DeadRanges>, T) {
        let dead = self.dead.read();
        let found = look();
        (Arc::clone(&dead), found)
    }

    fn change_dead(&self, change: impl FnOnce(&DeadRanges) -> DeadRanges) {
        {
            let mut dead = self.dead.write();
            *dead = Arc::new(change(&dead));
        }
        self.notify_reaping();
    }

    /// The keys of the range are gone.
    pub(crate) fn forget_dead(&self, gone: &DeadRange) {
        self.change_dead(|dead| dead.without(gone));
    }

    /// The keys of the range stay until the next opening.
    pub(crate) fn leave_dead(&self, stuck: &DeadRange) {
        self.change_dead(|dead| dead.with_stuck(stuck));
    }

    /// Returns when there is room for another deleted range, or none will come.
    pub(crate) fn wait_for_reaper(&self, limit: &WaitLimit) -> Result<()> {
        let is_met = |dead: &DeadRanges| dead.waiting() < DEAD_RANGES_MAX || self.check_writable().is_err();
        let mut reaping = self.reaping.lock();
        while !is_met(&self.dead()) {
            self.dead_changed.wait_for(&mut reaping, FAILURE_POLL);
            // A reaper that has much to do is not in vain.
            if self.observer.health.is_failing(Direction::Reads)
                || self.observer.health.is_failing(Direction::Writes)
            {
                limit.check("deleting a range")?;
            }
        }
        Ok(())
    }

    /// Returns when `is_met` of the list of deleted ranges; it is asked again at each change.
    pub(crate) fn wait_for_dead(&self, is_met: impl Fn(&DeadRanges) -> bool) {
        let mut reaping = self.reaping.lock();
        while !is_met(&self.dead()) {
            self.dead_changed.wait(&mut reaping);
        }
    }

    /// Has those that wait for the reaper, and the reaper, look again.
    pub(crate) fn notify_reaping(&self) {
        // Who is about to wait holds it.
        drop(self.reaping.lock());
        self.dead_changed.notify_all();
    }

    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        if let Some(known) = self.failed.get() {
            return Some(Arc::clone(known));
        }
        let Database::Writer(db) = &self.database else { return None };
        match db.subscribe().borrow().close_reason {
            None | Some(CloseReason::Clean) => None,
            // Also one that finds it out at its close.
            Some(CloseReason::Fenced) => Some(TAKEN_OVER.into()),
            Some(_) if self.is_closed.load(Ordering::Acquire) => None,
            Some(_) => Some("SlateDB has closed the store after a failure in the background".into()),
        }
    }

    /// No more writes from now on. What they are refused with.
    pub(crate) fn fail(&self, error: &StoreError) -> StoreError {
        let reason = self.failed.get_or_init(|| match error {
            StoreError::Failed { reason } => Arc::clone(reason),
            error => error.to_string().into(),
        });
        let reason = Arc::clone(reason);
        self.notify_reaping();
        StoreError::Failed { reason }
    }

    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.notify_reaping();
    }

    /// Refuses what was closed, or has failed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if let Some(reason) = self.failure() {
            return Err(StoreError::Failed { reason });
        }
        if self.is_closed.load(Ordering::Acquire) {
            return Err(StoreError::Failed { reason: "it was closed".into() });
        }
        Ok(())
    }

    /// Refuses writes to what was closed, has failed, or is only to be read.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.is_read_only() { Err(StoreError::ReadOnly) } else { Ok(()) }
    }

    /// Writes a batch with the sequence number `sequence`, and makes it visible with the ranges that it
    /// deletes. The caller holds the order lock.
    pub(crate) fn commit(&self, write: Write, sequence: u64, deleted: &[Arc<DeadRange>]) -> Result<()> {
        let db = self.writer()?;
        let (write, weight) = write.finish();
        if !deleted.is_empty() {
            self.change_dead(|dead| dead.with(deleted));
        }
        if !write.is_empty() {
            let options = WriteOptions { seqnum: sequence };
            let written = self.wait(db.write_with_options(write, &options));
            written.map_err(|error| self.fail(&of_slatedb("writing a batch", &error)))?;
            self.backlog.add(sequence, weight);
        }
        self.publish(sequence);
        Ok(())
    }

    /// As [`Shared::commit`], of a transaction of the database; false: another write was in its way. The
    /// caller holds the order lock.
    pub(crate) fn commit_transaction(&self, txn: DbTransaction, weight: u64) -> Result<bool> {
        let sequence = self.newest() + 1;
        match self.wait(txn.commit_with_options(&WriteOptions { seqnum: sequence })) {
            Ok(_) => {
                self.backlog.add(sequence, weight);
                self.publish(sequence);
                Ok(true)
            }
            Err(error) if error.kind() == slatedb::ErrorKind::Transaction => {
                // The number may be taken all the same.
                self.publish(sequence);
                Ok(false)
            }
            Err(error) => Err(self.fail(&of_slatedb("deleting a range", &error))),
        }
    }

    fn publish(&self, sequence: u64) {
        self.newest.store(sequence, Ordering::Release);
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether another batch may come now.
    pub(crate) fn has_room(&self) -> Result<bool> {
        let status = self.writer()?.subscribe();
        let status = status.borrow();
        let has_room = self.backlog.has_room(status.durable_seq, status.current_manifest.last_l0_seq());
        Ok(has_room && self.segments.has_room())
    }

    /// Returns when another batch may come.
    pub(crate) fn wait_for_room(&self, limit: &mut WaitLimit) -> Result<()> {
        if self.has_room()? {
            return Ok(());
        }
        let mut signs = Signs { status: self.writer()?.subscribe(), sent: self.segments.sent() };
        while !self.has_room()? {
            self.check_writable()?;
            // What it has not seen yet is in the log alone.
            self.ask_flush();
            self.wait(self.wait_for_progress(&mut signs, limit, "writing"))?;
        }
        Ok(())
    }

    fn ask_flush(&self) {
        if let Some(flusher) = &self.flusher {
            flusher.ask(self.newest());
        }
    }

    /// Returns when the database has told of something new, a segment was sent, or after a moment.
    async fn wait_for_progress(&self, signs: &mut Signs, limit: &mut WaitLimit, what: &str) -> Result<()> {
        let Signs { status, sent } = signs;
        let changed = async { select(pin!(status.changed()), pin!(sent.changed())).await.factor_first().0 };
        let changed = tokio::time::timeout(FAILURE_POLL, changed);
        let has_changed = match select(pin!(changed), pin!(limit.run_out())).await {
            // One that has closed is found to have.
            Either::Left((changed, _)) => changed.is_ok(),
            Either::Right(_) => return Err(limit.error(what)),
        };
        if has_changed {
            limit.restart();
        }
        Ok(())
    }

    /// Returns when everything up to this sequence number is as durable as the mount promises: on the local
    /// disk, where there is a journal, or in object storage.
    pub(crate) fn sync_as_promised(&self, sequence: u64) -> Result<()> {
        if let Some(reason) = self.failure() {
            return Err(StoreError::Failed { reason });
        }
        match self.journal() {
            Some(journal) if journal.sync(sequence) => Ok(()),
            _ => self.sync(sequence),
        }
    }

    /// Returns when everything up to this sequence number is in object storage.
    pub(crate) fn sync(&self, sequence: u64) -> Result<()> {
        self.sync_for(Waiter::Caller, sequence)
    }

    /// As [`Shared::sync`].
    pub(crate) fn sync_for(&self, waiter: Waiter, sequence: u64) -> Result<()> {
        let (Database::Writer(db), Some(flusher)) = (&self.database, &self.flusher) else { return Ok(()) };
        if let Some(reason) = self.failure() {
            return Err(StoreError::Failed { reason });
        }
        let mut flushed = flusher.flushed();
        if flushed.borrow().durable >= sequence {
            return Ok(());
        }
        self.ask_flush();
        let mut limit = self.limit_of(waiter);
        self.wait(async {
            let mut signs = Signs { status: db.subscribe(), sent: self.segments.sent() };
            loop {
                let Flushed { durable, failure, .. } = flushed.borrow_and_update().clone();
                if durable >= sequence {
                    return Ok(());
                }
                if let Some(reason) = failure.or_else(|| self.failure()) {
                    return Err(self.fail(&StoreError::Failed { reason }));
                }
                let progress = self.wait_for_progress(&mut signs, &mut limit, "syncing the log");
                match select(pin!(flushed.changed()), pin!(progress)).await {
                    Either::Left(_) => {}
                    Either::Right((waited, _)) => waited?,
                }
            }
        })
    }
}
