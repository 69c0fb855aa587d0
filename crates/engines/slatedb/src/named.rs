//! Named snapshots: checkpoints of `SlateDB` that do not expire.
//!
//! Purpose: a checkpoint refers to a manifest, and what that refers to is not collected. One is made of all
//! that was written before, which goes to a table for it, so a snapshot is read from tables alone, and takes
//! no memory beside cached blocks.
//!
//! The calls of `SlateDB` that make and remove checkpoints go on until object storage answers. So they are
//! tasks, which end by themselves what a caller has given up: a snapshot that was made too late is removed
//! again, and one that is to be deleted goes.
//!
//! Checkpoints know no writers: one that was taken over could remove those of its successor. So it is asked
//! for first whether this opening still has the store; and one that was removed by others all the same is in
//! the list no longer.
//!
//! A snapshot that is deleted while it is read: its checkpoint gets a successor without a name, which goes
//! with the last reader. Those that a crash leaves go when the store is opened the next time.
//!
//! Thread safety: makings and deletions take turns; lists and openings wait for none. Invariants: the
//! position of a snapshot is that of the order lock's last batch, which is held until `SlateDB` has bound the
//! checkpoint; a snapshot that has a reader is in `opened` from before it is looked up.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::future::{Either, select};
use kvfs_locks::{Mutex, class};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{NamedSnapshots, Result, Snapshot, SnapshotInfo, StoreError, check_snapshot_name};
use slatedb::admin::Admin;
use slatedb::config::{CheckpointOptions, CheckpointScope};
use slatedb::{CheckpointCreateResult, Db, VersionedManifest};
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, oneshot};
use uuid::Uuid;

use crate::error::of_slatedb;
use crate::follower::{Opener, Reader};
use crate::health::Direction;
use crate::label::{self, Entry, KEPT, Label};
use crate::meta::Meta;
use crate::pin::Pin;
use crate::ranges::DeadRanges;
use crate::segments::Held;
use crate::shared::{Database, Shared};
use crate::store::SlateStore;
use crate::view::View;
use crate::wait_limit::Waiter;

/// Of one store. Each is a part of the manifest, which is read each second, and costs two requests in five
/// minutes.
const SNAPSHOTS_MAX: usize = 1000;

/// For messages.
const MAKING: &str = "making a snapshot";
const DELETING: &str = "deleting a snapshot";
const OPENING: &str = "opening a snapshot";

/// Whose turn it is to make or remove checkpoints.
type Turn = OwnedMutexGuard<()>;

#[derive(Default)]
struct State {
    /// Those of a store that is written to, oldest first.
    list: Vec<Entry>,
    opened: Vec<Weak<Opened>>,
}

impl State {
    /// Takes those out of the list whose checkpoints are gone. The manifest of a moment ago may lack what was
    /// made since.
    fn keep_those_in(&mut self, manifest: &VersionedManifest) {
        let is_there = |id: Uuid| manifest.checkpoints().iter().any(|checkpoint| checkpoint.id == id);
        self.list.retain(|entry| manifest.id() < entry.manifest || is_there(entry.id));
    }

    /// The snapshot, if it is read.
    fn find_opened(&self, id: Uuid) -> Option<Arc<Opened>> {
        self.opened.iter().filter_map(Weak::upgrade).find(|opened| opened.entry.id == id)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Named {
    state: Mutex<State, class::EngineSlatedbNamedState>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Named {
    /// Of a store that has just been opened. What deleted snapshots have left goes in the background.
    pub(crate) fn of(database: &Database, opener: &Arc<Opener>, handle: &Handle) -> Self {
        let named = Self::default();
        if let Database::Writer(db) = database {
            let manifest = db.manifest();
            named.state.lock().list = label::named_in(&manifest);
            for id in label::kept_in(&manifest) {
                handle.spawn(remove(Arc::clone(opener), id));
            }
        }
        named
    }

    fn add(&self, entry: Entry) {
        let mut state = self.state.lock();
        let at = state.list.partition_point(|known| known.label.sequence <= entry.label.sequence);
        state.list.insert(at, entry);
    }
}

/// A snapshot that is read, shared by all its readers.
pub(crate) struct Opened {
    entry: Entry,
    opener: Arc<Opener>,
    handle: Handle,
    opening: Mutex<(), class::EngineSlatedbOpening>,
    shown: OnceLock<Shown>,
    /// The checkpoint that keeps its objects, since its own was removed.
    kept: OnceLock<Uuid>,
    /// What it has stays, also when it is deleted.
    _position: Held,
}

/// The state of a snapshot.
pub(crate) struct Shown {
    pub(crate) reader: Arc<Reader>,
    /// As they were.
    pub(crate) dead: Arc<DeadRanges>,
}

impl Opened {
    /// Of the position.
    pub(crate) fn sequence(&self) -> u64 {
        self.entry.label.sequence
    }

    /// The state, which is opened first if it is not.
    fn show(&self, shared: &Shared) -> Result<()> {
        let _opening = self.opening.lock();
        if self.shown.get().is_some() {
            return Ok(());
        }
        let opened = shared.read(Waiter::Caller, OPENING, self.opener.open_checkpoint(self.entry.id));
        let reader = match opened {
            Ok(reader) => reader,
            Err(error @ StoreError::Corrupt { .. }) => return Err(self.explain(shared, error)),
            Err(error) => return Err(error),
        };
        let dead = Meta::read(&View::of_reader(shared, &reader))?.dead;
        // It is set once, under the lock.
        let _ = self.shown.set(Shown { reader, dead });
        Ok(())
    }

    /// Why there is no such checkpoint: a mount elsewhere may have deleted it.
    fn explain(&self, shared: &Shared, error: StoreError) -> StoreError {
        let listed = shared.read(Waiter::Caller, OPENING, self.opener.admin().list_checkpoints(None));
        match listed {
            Ok(listed) if listed.iter().all(|checkpoint| checkpoint.id != self.entry.id) => {
                StoreError::NoSnapshot(self.entry.label.name.clone())
            }
            _ => error,
        }
    }

    /// The state. It was opened.
    pub(crate) fn shown(&self) -> &Shown {
        self.shown.get().expect("nothing has it before it is opened")
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            self.handle.spawn(remove(Arc::clone(&self.opener), kept));
        }
    }
}

/// Removes a checkpoint that nothing needs any more; where it stays, the next opening of the store does it.
async fn remove(opener: Arc<Opener>, id: Uuid) {
    if let Err(error) = opener.admin().delete_checkpoint(id).await {
        tracing::debug!(%id, %error, "a checkpoint that is not needed stays until the next mount");
    }
}

/// Makes a checkpoint. `bound` is told when nothing that is written from then on will be in it. One that is
/// not awaited is removed again.
async fn make(
    db: Db,
    opener: Arc<Opener>,
    options: CheckpointOptions,
    bound: oneshot::Sender<()>,
    made: oneshot::Sender<Result<CheckpointCreateResult, slatedb::Error>>,
    (turn, position): (Turn, Held),
) {
    let result = match db.begin_checkpoint(CheckpointScope::All, &options).await {
        Ok(begun) => {
            // A caller that has given up does not hear it.
            let _ = bound.send(());
            begun.wait().await
        }
        Err(error) => Err(error),
    };
    if let Err(Ok(unwanted)) = made.send(result) {
        remove(opener, unwanted.id).await;
    }
    drop((turn, position));
}

/// For one change of the checkpoints of a store that this opening still has.
async fn admin_of(db: &Db, opener: &Opener) -> Result<Admin, slatedb::Error> {
    db.refresh_manifest().await?;
    Ok(opener.admin())
}

/// Removes the checkpoint of a snapshot that is out of the list, and has it in the list again if that fails.
async fn delete(
    named: Arc<Named>,
    db: Db,
    opener: Arc<Opener>,
    entry: Entry,
    (turn, position): (Turn, Held),
) -> Result<(), slatedb::Error> {
    let removed = async {
        // From here on nothing opens it.
        let opened = named.state.lock().find_opened(entry.id);
        if let Some(opened) = opened {
            let options = CheckpointOptions {
                source: Some(entry.id),
                name: Some(KEPT.to_owned()),
                ..CheckpointOptions::default()
            };
            let kept = admin_of(&db, &opener).await?.create_detached_checkpoint(&options).await?;
            // A snapshot is deleted once, unless that failed.
            if let Err(another) = opened.kept.set(kept.id) {
                admin_of(&db, &opener).await?.delete_checkpoint(another).await?;
            }
        }
        admin_of(&db, &opener).await?.delete_checkpoint(entry.id).await
    };
    let removed = removed.await;
    if removed.is_err() {
        named.add(entry);
    }
    drop((position, turn));
    removed
}

impl Shared {
    /// Returns when no checkpoint is being made or removed, also none that a caller has given up.
    fn take_turn(&self, what: &str) -> Result<Turn> {
        let limit = self.wait_limit();
        let turn = Arc::clone(&self.named.turn).lock_owned();
        self.wait(async {
            match select(Box::pin(turn), Box::pin(limit.run_out())).await {
                Either::Left((turn, _)) => Ok(turn),
                Either::Right(_) => Err(limit.error(what)),
            }
        })
    }

    /// What a task tells. Answers of the storage are headway, unless it takes no writes.
    fn wait_for_task<T>(
        &self,
        what: &str,
        mut told: oneshot::Receiver<Result<T, slatedb::Error>>,
    ) -> Result<T> {
        let mut limit = self.wait_limit();
        let health = &self.observer.health;
        self.wait(async {
            loop {
                let answers = health.answers();
                match select(&mut told, Box::pin(limit.run_out())).await {
                    Either::Left((Ok(result), _)) => return result.map_err(|error| of_slatedb(what, &error)),
                    Either::Left((Err(_), _)) => {
                        return Err(StoreError::Failed { reason: "it was closed".into() });
                    }
                    Either::Right(_)
                        if health.answers() != answers && !health.is_failing(Direction::Writes) => {}
                    Either::Right(_) => return Err(limit.error(what)),
                }
                limit.restart();
            }
        })
    }

    /// What `look` finds, which may change it.
    fn with_named<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.named.state.lock();
        if let Database::Writer(db) = &self.database {
            state.keep_those_in(&db.manifest());
        }
        look(&mut state)
    }

    /// Positions of named snapshots.
    pub(crate) fn named_sequences(&self) -> Vec<u64> {
        self.with_named(|state| state.list.iter().map(|entry| entry.label.sequence).collect())
    }

    pub(crate) fn named_snapshots(&self) -> Vec<SnapshotInfo> {
        let infos = |entries: &[Entry]| entries.iter().map(|entry| entry.label.info()).collect();
        match &self.database {
            Database::Writer(_) => self.with_named(|state| infos(&state.list)),
            Database::Reader(follower) => infos(&follower.current().named),
        }
    }

    fn create_snapshot(&self, name: &str, created: Duration) -> Result<SnapshotInfo> {
        check_snapshot_name(name)?;
        self.check_writable()?;
        let turn = self.take_turn(MAKING)?;
        if self.with_named(|state| state.list.iter().any(|entry| entry.label.name == name)) {
            return Err(StoreError::SnapshotExists(name.to_owned()));
        }
        // What does not depend on the order lock is waited for without it.
        self.sync(self.newest())?;
        let (bound, is_bound) = oneshot::channel();
        let (made, is_made) = oneshot::channel();
        // Until it is in the list, or removed again.
        let (_position, position) = (self.hold_newest(), self.hold_newest());
        let label = {
            let _order = self.order.lock();
            let label = Label { sequence: self.newest(), created, name: name.to_owned() };
            let options = CheckpointOptions { name: Some(label.text()), ..CheckpointOptions::default() };
            let (db, opener) = (self.writer()?.clone(), Arc::clone(&self.opener));
            self.handle().spawn(make(db, opener, options, bound, made, (turn, position)));
            let limit = self.wait_limit();
            self.wait(async {
                match select(is_bound, Box::pin(limit.run_out())).await {
                    // What has kept it from that is told below.
                    Either::Left(_) => Ok(()),
                    Either::Right(_) => Err(limit.error(MAKING)),
                }
            })?;
            label
        };
        let checkpoint = self.wait_for_task(MAKING, is_made)?;
        let info = label.info();
        self.named.add(Entry { id: checkpoint.id, manifest: checkpoint.manifest_id, label });
        Ok(info)
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        let turn = self.take_turn(DELETING)?;
        let (entry, position) = self.with_named(|state| {
            let at = state.list.iter().position(|entry| entry.label.name == name);
            let entry = state.list.remove(at.ok_or_else(|| StoreError::NoSnapshot(name.to_owned()))?);
            // What it has stays until it is known not to come back.
            let position = self.segments.positions().hold_at(entry.label.sequence);
            Ok((entry, position))
        })?;
        let (db, opener) = (self.writer()?.clone(), Arc::clone(&self.opener));
        let deleting = delete(Arc::clone(&self.named), db, opener, entry, (turn, position));
        let (deleted, is_deleted) = oneshot::channel();
        self.handle().spawn(async move {
            // A caller that has given up does not hear it.
            let _ = deleted.send(deleting.await);
        });
        self.wait_for_task(DELETING, is_deleted)
    }

    /// The state of a snapshot, shared with others that read it.
    pub(crate) fn open_snapshot(&self, name: &str) -> Result<Arc<Opened>> {
        self.check_open()?;
        let gone = || StoreError::NoSnapshot(name.to_owned());
        let find = |entries: &[Entry]| entries.iter().find(|entry| entry.label.name == name).cloned();
        let shown = match &self.database {
            Database::Writer(_) => None,
            Database::Reader(follower) => Some(follower.current()),
        };
        let opened = self.with_named(|state| {
            let entry = find(shown.as_ref().map_or(&state.list, |shown| &shown.named)).ok_or_else(gone)?;
            state.opened.retain(|opened| opened.strong_count() > 0);
            Ok(state.find_opened(entry.id).unwrap_or_else(|| {
                let sequence = entry.label.sequence;
                let opened = Arc::new(Opened {
                    _position: self.segments.positions().hold_at(sequence),
                    entry,
                    opener: Arc::clone(&self.opener),
                    handle: self.handle(),
                    opening: Mutex::default(),
                    shown: OnceLock::new(),
                    kept: OnceLock::new(),
                });
                state.opened.push(Arc::downgrade(&opened));
                opened
            }))
        })?;
        opened.show(self)?;
        Ok(opened)
    }
}

impl NamedSnapshots for SlateStore {
    fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        self.shared().create_snapshot(name, SystemClock::new().wall())
    }

    fn adopt_snapshot(&self, name: &str, created: Duration) -> Result<SnapshotInfo> {
        self.shared().create_snapshot(name, created)
    }

    fn named_snapshots(&self) -> Vec<SnapshotInfo> {
        self.shared().named_snapshots()
    }

    fn snapshots_max(&self) -> usize {
        SNAPSHOTS_MAX
    }

    fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Snapshot>> {
        let opened = self.shared().open_snapshot(name)?;
        Ok(self.shared().pins.add(Pin::of_named(self.shared(), opened)))
    }

    fn delete_snapshot(&self, name: &str) -> Result<()> {
        self.shared().delete_snapshot(name)
    }
}
