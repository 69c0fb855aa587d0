//! The open transactions of a mounted store, with what their owners and their kernel sides hold of them.
//!
//! A transaction is either *tied* to a connection, whose end aborts it, or it stands by itself. Its view is mounted
//! by whoever runs it (`kvfs txn run`), in namespaces of its own; or by the daemon, below the store's directory:
//! at once (`kvfs txn begin`), or when somebody asks where its files are (the key-value socket).
//!
//! Thread safety: all methods are `&self`, for threads that may block. The lock is never held across a commit,
//! a mount, or a conversation with the kernel. Invariants: who commits or aborts takes the transaction out of
//! others' reach first ([`Entry::busy`]); a transaction that ended leaves neither mount nor connection.

mod clock;
mod door;
mod entry;
mod keeping;
mod keys;
mod locks;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::{BeginOptions, Durability, FileSystem, FsError, Isolation, Owner, Position, TxnId};
use kvfs_fuse::bridge::{Bridge, View, ViewOptions};
use kvfs_fuse::mount::MountOptions;
use kvfs_fuse::transport::BufferPool;
use kvfs_store::clock::{Clock, SystemClock};
use parking_lot::{Condvar, Mutex};

use super::Branches;
use crate::control::{Begin, Peer, TxnLine, may_act_for};
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::store_dir::StoreDir;
pub(crate) use door::door;
use entry::{Entry, Line, Seat};

/// Most transactions that a user other than root has open at a time.
const OPEN_PER_USER_MAX: usize = 1000;

/// Why a mount has no transactions over files, and what to do.
const NO_FILES: &str = "the store is mounted with -o writeback: the kernel keeps changes of files to itself for a while, \
     so transactions over files would lose some; unmount, and mount without it (transactions over keys alone go on)";

/// What transactions and branches need of the mount that they belong to.
#[derive(Clone)]
pub(crate) struct MainLine {
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) bridge: Arc<Bridge>,
    pub(crate) buffers: Arc<BufferPool>,
    pub(crate) steers: bool,
    pub(crate) mount: MountOptions,
}

impl MainLine {
    /// Under a kernel that keeps dirty pages and owns sizes and times nothing may change files behind its back.
    pub(crate) fn check_files(&self) -> Result<()> {
        if self.bridge.is_writeback() {
            return Err(CliError::new(Code::Usage, NO_FILES));
        }
        Ok(())
    }

    /// Serves `view` on the connection of `device`. The kernel side knows `only_ids` alone, if there are any.
    pub(crate) fn serve(
        &self,
        view: Arc<FileSystem>,
        device: OwnedFd,
        only_ids: Option<(u32, u32)>,
    ) -> Result<View> {
        let options = ViewOptions { buffers: Arc::clone(&self.buffers), steers: self.steers, only_ids };
        let served = View::serve(&self.bridge, view, device, options);
        served.map_err(|error| CliError::new(Code::Failed, error.to_string()))
    }
}

/// See the module.
pub(crate) struct Transactions {
    main: MainLine,
    store: StoreDir,
    /// Keys are put and got in mounted branches, too.
    branches: Arc<Branches>,
    clock: SystemClock,
    state: Mutex<State>,
    changed: Condvar,
    /// The clock's thread waits here, and nobody else.
    clock_wanted: Condvar,
    /// Held while a view is mounted because somebody asked where it is.
    seating: Mutex<()>,
}

/// Why somebody does not get at a transaction.
enum Refusal {
    Unknown(u64),
    NotYours { id: u64, uid: u32 },
    Busy { id: u64, what: &'static str },
}

impl From<Refusal> for CliError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unknown(id) => unknown(id),
            Refusal::NotYours { id, uid } => Self::new(
                Code::Denied,
                format!("transaction {id} belongs to user {uid}; only that user and root may"),
            ),
            Refusal::Busy { id, what } => Self::new(Code::InUse, format!("transaction {id} is {what}")),
        }
    }
}

#[derive(Default)]
struct State {
    open: BTreeMap<u64, Entry>,
    /// Connections and mounts that are being taken down.
    ending: Vec<JoinHandle<()>>,
    is_closed: bool,
    clock: Option<JoinHandle<()>>,
    /// Until a transaction begins.
    is_clock_asleep: bool,
}

impl State {
    /// Takes the mount and the connection down, beside whoever waits for an answer.
    fn take_down(&mut self, id: u64, seat: Seat) {
        self.ending.retain(|thread| !thread.is_finished());
        let seat = Arc::new(Mutex::new(Some(seat)));
        let taken = Arc::clone(&seat);
        let down = move || taken.lock().take().map_or((), |seat| seat.end(id));
        match std::thread::Builder::new().name(format!("txn{id}-end")).spawn(down) {
            Ok(thread) => self.ending.push(thread),
            Err(error) => {
                tracing::warn!(%error, "no thread to end a view; everybody waits for it");
                if let Some(seat) = seat.lock().take() {
                    seat.end(id);
                }
            }
        }
    }
}

impl Transactions {
    /// None are open.
    pub(crate) fn new(main: MainLine, store: StoreDir, branches: &Arc<Branches>) -> Result<Arc<Self>> {
        let new = Arc::new(Self {
            main,
            store,
            branches: Arc::clone(branches),
            clock: SystemClock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
            clock_wanted: Condvar::new(),
            seating: Mutex::default(),
        });
        let ticking = Arc::clone(&new);
        let thread = std::thread::Builder::new().name("txn-clock".into()).spawn(move || ticking.tick());
        new.state.lock().clock = Some(thread.map_err(|error| no_thread(&error))?);
        Ok(new)
    }

    /// Begins a transaction for `peer`. Returns its number and where its view is mounted, if it is.
    pub(crate) fn begin(&self, peer: &Peer, begin: Begin) -> Result<(u64, PathBuf)> {
        self.main.check_files()?;
        let is_tied = begin.tied;
        let id = self.begin_unseen(peer, begin)?;
        if is_tied {
            return Ok((id, PathBuf::new()));
        }
        match self.path(peer, id) {
            Ok(path) => Ok((id, path)),
            Err(error) => {
                self.abort(peer, id)?;
                Err(error)
            }
        }
    }

    /// Each one pins a snapshot and takes some memory, and beginning is open to everybody.
    fn check_count(&self, uid: u32) -> Result<()> {
        let count = self.state.lock().open.values().filter(|entry| entry.owner.uid == uid).count();
        if uid == 0 || count < OPEN_PER_USER_MAX {
            return Ok(());
        }
        let message =
            format!("user {uid} has {count} open transactions; commit or abort some (`kvfs txn list`)");
        Err(CliError::new(Code::InUse, message))
    }

    /// Begins a transaction whose view is not mounted yet.
    fn begin_unseen(&self, peer: &Peer, begin: Begin) -> Result<u64> {
        let options = BeginOptions {
            isolation: if begin.serializable { Isolation::Serializable } else { Isolation::Snapshot },
            priority: begin.nice,
            timeout: begin.timeout,
            lock_wait_max: None,
            owner: Owner { uid: peer.uid, pid: peer.pid, name: begin.label },
        };
        let line = if begin.tied {
            let kept = peer.keep().map_err(|error| CliError::new(Code::Failed, error.to_string()))?;
            Some((peer.number, kept))
        } else {
            None
        };
        self.check_count(peer.uid)?;
        self.enter(&options, line, None).map(|(id, _)| id.0)
    }

    /// Begins a transaction that is tied to `line` and what somebody does at once, if there are any.
    fn enter(
        &self,
        options: &BeginOptions,
        line: Option<Line>,
        busy: Option<&'static str>,
    ) -> Result<(TxnId, Arc<FileSystem>)> {
        let view = self.main.fs.begin(options)?;
        let id = view.txn_id().unwrap_or(TxnId(0));
        let entry = Entry {
            view: Arc::clone(&view),
            owner: options.owner.clone(),
            serializable: options.isolation == Isolation::Serializable,
            begun: self.clock.monotonic(),
            line,
            is_deserted: false,
            seat: None,
            busy,
        };
        let mut state = self.state.lock();
        if state.is_closed {
            drop(state);
            view.abort();
            return Err(closing());
        }
        state.open.insert(id.0, entry);
        self.changed.notify_all();
        self.wake_clock(&mut state);
        Ok((id, view))
    }

    /// Serves the view on the connection of `device`, which its owner has mounted for himself.
    pub(crate) fn attach(&self, peer: &Peer, id: u64, device: OwnedFd) -> Result<()> {
        let view = {
            let state = self.state.lock();
            let entry = Self::of(&state, peer, id)?;
            if entry.seat.is_some() {
                return Err(CliError::new(Code::InUse, format!("transaction {id} has its view already")));
            }
            Arc::clone(&entry.view)
        };
        // An ordinary user has mounted it in namespaces that know him alone.
        let only_ids = (peer.uid != 0).then(|| (peer.uid, peer.gid()));
        let view = self.main.serve(view, device, only_ids)?;
        self.seat(id, Seat { view, point: None }).map(drop)
    }

    /// Gives the transaction its kernel side; it may have ended meanwhile.
    fn seat(&self, id: u64, seat: Seat) -> Result<PathBuf> {
        let mut state = self.state.lock();
        let free = |entry: &&mut Entry| entry.seat.is_none() && entry.busy.is_none();
        if let Some(entry) = state.open.get_mut(&id).filter(free) {
            let path = seat.path();
            entry.seat = Some(seat);
            return Ok(path);
        }
        state.take_down(id, seat);
        Err(unknown(id))
    }

    /// The view of a transaction, for operations in it.
    pub(crate) fn view(&self, peer: &Peer, id: u64) -> Result<Arc<FileSystem>> {
        Ok(Arc::clone(&Self::of(&self.state.lock(), peer, id)?.view))
    }

    /// Where the view of a transaction is mounted; mounts it when nobody has yet.
    pub(crate) fn path(&self, peer: &Peer, id: u64) -> Result<PathBuf> {
        self.main.check_files()?;
        let _seating = self.seating.lock();
        let view = {
            let state = self.state.lock();
            let entry = Self::of(&state, peer, id)?;
            match &entry.seat {
                _ if entry.is_run() => return Err(run_elsewhere(id)),
                Some(seat) => return Ok(seat.path()),
                None => Arc::clone(&entry.view),
            }
        };
        let seat = Seat::mount(&self.main, &self.store, id, view)?;
        self.seat(id, seat)
    }

    /// Commits. After a conflict the transaction is gone; after other failures it stays open.
    pub(crate) fn commit(&self, peer: &Peer, id: u64, durability: Durability) -> Result<()> {
        let (view, done) = self.commit_view(peer, id, durability, None)?;
        done.map(drop).map_err(|error| not_committed(&view, id, error))
    }

    /// As [`Self::commit`], with the view that it was and what came of it. `pages_max`: how long its dirty pages may
    /// take.
    fn commit_view(
        &self,
        peer: &Peer,
        id: u64,
        durability: Durability,
        pages_max: Option<Duration>,
    ) -> Result<(Arc<FileSystem>, Result<Position, FsError>), Refusal> {
        let (view, seat) = self.take(peer, id, "committing")?;
        let own = seat.as_ref().map(|seat| seat.view.bridge());
        let done = self.main.bridge.commit(&view, own, durability, pages_max);
        let stays = matches!(&done, Err(error) if !is_over(error)) && view.doom().is_none();
        self.give_back(id, &view, seat, stays);
        match &done {
            Ok(position) => tracing::debug!(id, ?position, "transaction committed"),
            Err(FsError::Canceled(doom)) => {
                tracing::info!(id, why = view.explain(doom), "transaction not committed");
            }
            Err(error @ FsError::Busy(_)) => tracing::debug!(id, %error, "transaction not committed yet"),
            Err(error) => tracing::warn!(id, %error, "transaction not committed"),
        }
        Ok((view, done))
    }

    /// Commits, not durably, what has changed nothing and has no kernel side: that waits for nobody. False: it is not
    /// such a one, and nothing happened.
    fn commit_unwritten(&self, peer: &Peer, id: u64) -> Result<bool, Refusal> {
        let (view, seat) = self.take(peer, id, "committing")?;
        let is_committed = seat.is_none() && view.commit_unwritten().is_some();
        self.give_back(id, &view, seat, !is_committed);
        Ok(is_committed)
    }

    /// Whether the kernel keeps dirty pages of ordinary writes.
    pub(crate) fn is_writeback(&self) -> bool {
        self.main.bridge.is_writeback()
    }

    /// Has the kernel write out every dirty page of the main line, of shared mappings too.
    pub(crate) fn flush_main_line(&self) -> Result<()> {
        Ok(self.main.bridge.write_back()?)
    }

    /// Begins a transaction, does `work` in it, and commits, durably. Nobody else gets at it.
    pub(crate) fn carry_out(
        &self,
        options: &BeginOptions,
        work: impl FnOnce(&FileSystem) -> Result<(), FsError>,
    ) -> Result<TxnId> {
        self.main.check_files()?;
        let (id, view) = self.enter(options, None, Some("at work"))?;
        let worked = work(&view);
        let done = worked.and_then(|()| self.main.bridge.commit(&view, None, Durability::Synced, None));
        view.abort();
        self.state.lock().open.remove(&id.0);
        self.changed.notify_all();
        done.map(|_| id).map_err(|error| not_committed(&view, id.0, error))
    }

    /// Drops a transaction. Returns why it could not have been committed any more, if so.
    pub(crate) fn abort(&self, peer: &Peer, id: u64) -> Result<Option<String>> {
        let (view, seat) = self.take(peer, id, "being aborted")?;
        let doomed = view.doom().map(|doom| view.explain(&doom));
        self.drop_taken(id, &view, seat, Some(peer));
        Ok(doomed)
    }

    /// The connection has ended, and with it what is tied to it.
    pub(crate) fn gone(&self, peer: &Peer) {
        self.line_gone(peer.number);
    }

    fn line_gone(&self, line: u64) {
        let tied = |entry: &Entry| entry.line.as_ref().is_some_and(|(number, _)| *number == line);
        let ids: Vec<u64> = {
            let mut state = self.state.lock();
            let mine = state.open.iter_mut().filter(|(_, entry)| tied(entry));
            mine.map(|(&id, entry)| {
                entry.is_deserted = true;
                id
            })
            .collect()
        };
        for id in ids {
            tracing::info!(id, "whoever ran the transaction has gone; aborted");
            self.abort_by_daemon(id);
        }
    }

    /// Ends the views of deleted snapshots in `.kvfs`, on the main line and in transactions.
    pub(crate) fn close_deleted_snapshots(&self) {
        self.main.bridge.close_deleted_snapshots();
        for entry in self.state.lock().open.values() {
            if let Some(seat) = &entry.seat {
                seat.view.bridge().close_deleted_snapshots();
            }
        }
    }

    /// Transactions that user `viewer` may enter and whose views the daemon mounts, or has mounted: number, owner,
    /// and where.
    pub(crate) fn views(&self, viewer: u32) -> Vec<(u64, u32, PathBuf)> {
        if self.is_writeback() {
            return Vec::new();
        }
        let state = self.state.lock();
        let shown =
            state.open.iter().filter(|(_, entry)| entry.is_shown() && may_act_for(viewer, entry.owner.uid));
        shown.map(|(&id, entry)| (id, entry.owner.uid, self.store.view_path(id))).collect()
    }

    /// Those that are open, in words.
    pub(crate) fn names(&self) -> Vec<String> {
        let state = self.state.lock();
        state.open.iter().map(|(id, entry)| format!("{id} ({})", entry.owner)).collect()
    }

    /// Aborts everything, and says so in the log.
    pub(crate) fn abort_all(&self, why: &str) {
        loop {
            let next = {
                let mut state = self.state.lock();
                while !state.open.is_empty() && state.open.values().all(|entry| entry.busy.is_some()) {
                    self.changed.wait(&mut state);
                }
                let mut free = state.open.iter().filter(|(_, entry)| entry.busy.is_none());
                free.next().map(|(&id, entry)| (id, entry.owner.to_string()))
            };
            let Some((id, owner)) = next else { return };
            tracing::warn!(id, owner, why, "transaction aborted");
            self.abort_by_daemon(id);
        }
    }

    /// Refuses new ones, aborts the open ones, and waits until nothing is left of them.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
        self.abort_all("the store is being closed");
        self.clock_wanted.notify_all();
        let (ending, clock) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.ending), state.clock.take())
        };
        for thread in ending.into_iter().chain(clock) {
            if thread.join().is_err() {
                tracing::error!("a thread of a transaction panicked");
            }
        }
    }

    /// For people.
    pub(crate) fn list(&self, peer: &Peer) -> Vec<TxnLine> {
        let locks: BTreeMap<u64, u64> = self
            .main
            .fs
            .transaction_infos()
            .iter()
            .map(|info| (info.id.0, info.names_count as u64))
            .collect();
        let now = self.clock.monotonic();
        let state = self.state.lock();
        let mine = state.open.iter().filter(|(_, entry)| peer.may_act_for(entry.owner.uid));
        mine.map(|(&id, entry)| TxnLine {
            locks: locks.get(&id).copied().unwrap_or(0),
            ..entry.line(id, now)
        })
        .collect()
    }

    fn of<'s>(state: &'s State, peer: &Peer, id: u64) -> Result<&'s Entry, Refusal> {
        let entry = state.open.get(&id).ok_or(Refusal::Unknown(id))?;
        if !peer.may_act_for(entry.owner.uid) {
            return Err(Refusal::NotYours { id, uid: entry.owner.uid });
        }
        match entry.busy {
            Some(what) => Err(Refusal::Busy { id, what }),
            None => Ok(entry),
        }
    }

    /// Takes a transaction out of everybody's reach.
    fn take(
        &self,
        peer: &Peer,
        id: u64,
        what: &'static str,
    ) -> Result<(Arc<FileSystem>, Option<Seat>), Refusal> {
        let mut state = self.state.lock();
        Self::of(&state, peer, id)?;
        Self::take_entry(&mut state, id, what).ok_or(Refusal::Unknown(id))
    }

    fn take_entry(state: &mut State, id: u64, what: &'static str) -> Option<(Arc<FileSystem>, Option<Seat>)> {
        let entry = state.open.get_mut(&id).filter(|entry| entry.busy.is_none())?;
        entry.busy = Some(what);
        Some((Arc::clone(&entry.view), entry.seat.take()))
    }

    /// The end of what [`Self::take`] began: the transaction `stays` open, unless whom it is tied to has gone meanwhile;
    /// else nothing is left of it.
    fn give_back(&self, id: u64, view: &FileSystem, seat: Option<Seat>, stays: bool) {
        let mut state = self.state.lock();
        if let Some(entry) = state.open.get_mut(&id).filter(|entry| stays && !entry.is_deserted) {
            entry.busy = None;
            entry.seat = seat;
        } else {
            state.open.remove(&id);
            // Without effect on what has been committed.
            view.abort();
            if let Some(seat) = seat {
                state.take_down(id, seat);
            }
        }
        self.changed.notify_all();
    }

    fn abort_by_daemon(&self, id: u64) {
        let taken = Self::take_entry(&mut self.state.lock(), id, "being aborted");
        if let Some((view, seat)) = taken {
            self.drop_taken(id, &view, seat, None);
        }
    }

    fn drop_taken(&self, id: u64, view: &FileSystem, seat: Option<Seat>, by: Option<&Peer>) {
        view.abort();
        let mut state = self.state.lock();
        if let Some(Entry { line: Some((number, Some(line))), .. }) = state.open.remove(&id)
            && by.is_none_or(|peer| peer.number != number)
        {
            // Whoever runs the transaction learns of it, and ends what runs in it.
            let _ = line.shutdown(std::net::Shutdown::Both);
        }
        if let Some(seat) = seat {
            state.take_down(id, seat);
        }
        self.changed.notify_all();
    }
}

/// Whether nothing is left to be tried again.
fn is_over(error: &FsError) -> bool {
    matches!(error, FsError::Canceled(_) | FsError::ViewEnded(_))
}

/// What a commit that failed means to its user.
fn not_committed(view: &FileSystem, id: u64, error: FsError) -> CliError {
    match error {
        FsError::Canceled(doom) => {
            let why = view.explain(&doom);
            CliError::new(Code::Conflict, format!("transaction {id} was not committed: {why}"))
        }
        error => error.into(),
    }
}

fn unknown(id: u64) -> CliError {
    CliError::new(Code::Failed, format!("there is no open transaction {id}; `kvfs txn list` shows them"))
}

fn run_elsewhere(id: u64) -> CliError {
    CliError::new(
        Code::Usage,
        format!("transaction {id} runs in namespaces of its own; only those of `kvfs txn begin` are joined"),
    )
}

fn closing() -> CliError {
    CliError::new(Code::NotMounted, "the store is being unmounted")
}

fn no_thread(error: &std::io::Error) -> CliError {
    CliError::new(Code::Failed, format!("cannot start a thread: {error}"))
}

/// The mount of a view differs from the main line's in what the mount table shows.
pub(super) fn view_options(main: &MountOptions, store: &StoreDir) -> MountOptions {
    MountOptions {
        source: String::from_utf8_lossy(store.path().as_os_str().as_bytes()).into_owned(),
        subtype: mounts::VIEW_SUBTYPE.to_owned(),
        ..main.clone()
    }
}
