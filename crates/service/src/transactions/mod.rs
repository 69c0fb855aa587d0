//! The open transactions of a mounted store, with what their owners and their kernel sides hold of them.
//!
//! A transaction is either *tied* to a connection, whose end aborts it, or it stands by itself. Its view is
//! mounted by the command that runs it (`kvfs txn run`), in namespaces of its own; or by the daemon, below
//! the store's directory: at once (`kvfs txn begin`), or when a client asks where its files are (the
//! key-value socket).
//!
//! Thread safety: all methods are `&self`, for threads that may block. The lock is never held across a
//! commit, a mount, or a conversation with the kernel. Invariants: a thread that commits or aborts must first
//! take the transaction out of the reach of others (`taken`, whose header has the states); a transaction that
//! ended leaves neither mount nor connection.

mod begin;
mod branch_on_unmount;
mod clock;
mod commit;
mod detached;
mod ended;
mod entry;
mod limits;
mod locks;
mod names;
mod taken;
mod timer;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use kvfs_fs::operations::OperationKind;
use kvfs_fs::{
    BeginOptions, Difference, Durability, FileSystem, FsError, Isolation, Owner, Position, TxnId, TxnView,
};
use kvfs_locks::{Condvar, Mutex, class};
use kvfs_store::clock::{Clock, SystemClock};

use crate::authority::{authorize, authorize_server, is_server};
use crate::branches::Branches;
use crate::caller::{Caller, may_act_for};
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::TxnLine;
use crate::mounts::MainLine;
use crate::selection::shown_to;
pub use begin::{Begin, Committed, TxnState};
use ended::Ended;
use entry::{Entry, Line, ServedView};
use limits::{Slot, Slots, cut_label};
use taken::{AT_WORK, Taken, Use};
use timer::Timer;

/// See the module.
pub struct Transactions {
    main: MainLine,
    open_slots: Arc<Slots>,
    view_slots: Arc<Slots>,
    /// Keys are put and got in mounted branches, too.
    branches: Arc<Branches>,
    clock: SystemClock,
    state: Mutex<State, class::ServiceTransactionsState>,
    changed: Condvar,
    /// Only the clock's thread waits here.
    clock_wanted: Condvar,
    /// Held while a view is mounted because a client asked where it is.
    mount_lock: Mutex<(), class::ServiceTransactionsMountLock>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<u64, Entry>,
    /// Connections and mounts that are being taken down.
    ending: Vec<JoinHandle<()>>,
    /// Why those that were ended without their owners' doing are gone.
    ended: Ended,
    is_closed: bool,
    /// An unmount makes the open ones branches: none begins.
    is_keeping: bool,
    clock: Option<JoinHandle<()>>,
    /// Until a transaction begins.
    is_clock_asleep: bool,
}

impl State {
    /// Takes the mount and the connection down, on a thread of its own, so that no answer waits for it.
    fn take_down(&mut self, id: u64, view_mount: ServedView) {
        self.ending.retain(|thread| !thread.is_finished());
        let view_mount = Arc::new(Mutex::<_, class::ServiceTransactionsEnding>::new(Some(view_mount)));
        let taken = Arc::clone(&view_mount);
        // Not under the lock, which is let go at the end of a statement.
        let end = move |view_mount: &Mutex<Option<ServedView>, class::ServiceTransactionsEnding>| {
            let view_mount = view_mount.lock().take();
            if let Some(view_mount) = view_mount {
                view_mount.end(id);
            }
        };
        let down = move || end(&taken);
        match std::thread::Builder::new().name(format!("txn{id}-end")).spawn(down) {
            Ok(thread) => self.ending.push(thread),
            Err(error) => {
                tracing::warn!(%error, "no thread to end a view; all requests wait for it");
                end(&view_mount);
            }
        }
    }
}

impl Transactions {
    /// None are open.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(main: MainLine, branches: &Arc<Branches>) -> Result<Arc<Self>> {
        let new = Arc::new(Self {
            open_slots: Slots::of_transactions(),
            view_slots: Slots::of_views(main.views_max),
            main,
            branches: Arc::clone(branches),
            clock: SystemClock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
            clock_wanted: Condvar::new(),
            mount_lock: Mutex::default(),
        });
        let ticking = Arc::clone(&new);
        let thread = std::thread::Builder::new().name("txn-clock".into()).spawn(move || ticking.tick());
        new.state.lock().clock = Some(thread.map_err(|error| ServiceError::thread(&error))?);
        Ok(new)
    }

    /// Begins a transaction as [`Self::begin`] does, and mounts its view at once if that is to be used by
    /// others than its connection, where `caller` gets to it and there are mounts. Returns its number and
    /// where the view is mounted; empty: nowhere yet.
    ///
    /// # Errors
    /// As [`Self::begin`] and [`Self::path`].
    pub fn begin_mounted(&self, caller: &Caller, begin: Begin) -> Result<(u64, PathBuf)> {
        let is_tied = begin.tied;
        let id = self.begin(caller, begin)?;
        if is_tied || !is_server(caller.uid) || !self.main.mounts.has_kernel() {
            return Ok((id, PathBuf::new()));
        }
        match self.path(caller, id) {
            Ok(path) => Ok((id, path)),
            Err(error) => {
                self.abort(caller, id)?;
                Err(error)
            }
        }
    }

    /// Begins a transaction for `caller`: the entrance of all front ends. Its view is not mounted yet.
    /// Returns its number.
    ///
    /// # Errors
    /// `Denied`: a priority that is not for the caller; [`ServiceError::NoFiles`]; `InUse`: the user has as
    /// many open as there may be, or an unmount keeps them; the store is full or being closed.
    pub fn begin(&self, caller: &Caller, begin: Begin) -> Result<u64> {
        if begin.nice < 0 {
            authorize(&self.main.fs, caller, "run transactions with a negative --nice")?;
        }
        if begin.needs_files {
            self.main.check_files()?;
        }
        let options = BeginOptions {
            isolation: if begin.serializable { Isolation::Serializable } else { Isolation::Snapshot },
            priority: begin.nice,
            timeout: begin.timeout,
            idle_max: begin.idle_max,
            owner: Owner { uid: caller.uid, pid: caller.pid, name: cut_label(begin.label) },
            ..BeginOptions::default()
        };
        let line = if begin.tied { Some((caller.number, caller.keep()?)) } else { None };
        let slot = self.open_slots.take(caller.uid)?;
        self.enter(&options, line, Use::Free, slot).map(|(id, _)| id.0)
    }

    /// Begins a transaction, tied to `line`, if given.
    fn enter(
        &self,
        options: &BeginOptions,
        line: Option<Line>,
        used: Use,
        slot: Slot,
    ) -> Result<(TxnId, Arc<FileSystem>)> {
        let view = self.main.fs.begin(options)?;
        let id = view.txn().map_or(TxnId(0), TxnView::id);
        let entry = Entry {
            view: Arc::clone(&view),
            owner: options.owner.clone(),
            serializable: options.isolation == Isolation::Serializable,
            begun: self.clock.monotonic(),
            line,
            view_mount: None,
            used,
            _slot: slot,
        };
        let mut state = self.state.lock();
        if state.is_closed || state.is_keeping {
            let refused = if state.is_closed { closing() } else { being_kept() };
            drop(state);
            if let Some(txn) = view.txn() {
                txn.abort();
            }
            return Err(refused);
        }
        state.open.insert(id.0, entry);
        self.changed.notify_all();
        self.wake_clock(&mut state);
        Ok((id, view))
    }

    /// Refuses a caller that may not [attach](Self::attach) anything, before anything is taken from it: to
    /// close what a user sends may wait for a file system of that user's.
    ///
    /// # Errors
    /// `Denied`.
    pub fn check_may_attach(&self, caller: &Caller) -> Result<()> {
        // A kernel side of the caller's making is believed what it says of users and permissions.
        authorize_server(caller, "serve a mount of their own making")
    }

    /// Serves the view on the connection of `device`, which its owner has mounted.
    ///
    /// # Errors
    /// The caller may not; there is no such transaction of the caller's, or it has its view already; the
    /// connection does not come up.
    pub fn attach(&self, caller: &Caller, id: u64, device: OwnedFd) -> Result<()> {
        self.check_may_attach(caller)?;
        let (view, slot) = self.view_without_mount(caller, id)?;
        // An ordinary user has mounted it in namespaces that know that user alone.
        let only_ids = (caller.uid != 0).then(|| (caller.uid, caller.gid()));
        let mount = self.main.mounts.attach_view(view, device, only_ids)?;
        self.install_view_mount(id, ServedView::new(mount, slot)).map(drop)
    }

    /// The view, with a slot for its kernel side.
    fn view_without_mount(&self, caller: &Caller, id: u64) -> Result<(Arc<FileSystem>, Slot)> {
        let state = self.state.lock();
        let entry = Self::of(&state, caller, id)?;
        if entry.view_mount.is_some() {
            return Err(ServiceError::new(
                ErrorKind::InUse,
                format!("transaction {id} has its view already"),
            ));
        }
        Ok((Arc::clone(&entry.view), self.view_slots.take(entry.owner.uid)?))
    }

    /// Gives the transaction its kernel side; it may have ended meanwhile.
    fn install_view_mount(&self, id: u64, view_mount: ServedView) -> Result<PathBuf> {
        let mut state = self.state.lock();
        let free = |entry: &&mut Entry| entry.view_mount.is_none() && entry.used == Use::Free;
        if let Some(entry) = state.open.get_mut(&id).filter(free) {
            let path = view_mount.path();
            entry.view_mount = Some(view_mount);
            return Ok(path);
        }
        state.take_down(id, view_mount);
        Err(ServiceError::Unknown(id))
    }

    /// The view of a transaction, for operations in it.
    ///
    /// # Errors
    /// There is none of this number, it is another user's, or a thread is busy with it.
    pub fn view(&self, caller: &Caller, id: u64) -> Result<Arc<FileSystem>> {
        Ok(Arc::clone(&Self::of(&self.state.lock(), caller, id)?.view))
    }

    /// What a transaction has changed, as far as the caller may see it.
    ///
    /// # Errors
    /// As [`Self::view`]; store errors.
    pub fn diff(&self, caller: &Caller, id: u64) -> Result<Vec<Difference>> {
        let view = self.view(caller, id)?;
        shown_to(caller, &view, kvfs_fs::diff(&view)?)
    }

    /// As [`Self::view`], or the view of the mounted branch that is this transaction.
    ///
    /// # Errors
    /// As [`Self::view`]; it is a branch of a directory.
    pub fn view_or_branch(&self, caller: &Caller, id: u64) -> Result<Arc<FileSystem>> {
        match self.view(caller, id) {
            Err(ServiceError::Unknown(_)) => self.branches.view_of(caller, id),
            entered => entered,
        }
    }

    /// How a transaction is.
    ///
    /// # Errors
    /// There is none of this number, or it is another user's.
    pub fn state(&self, caller: &Caller, id: u64) -> Result<TxnState> {
        match Self::of(&self.state.lock(), caller, id) {
            Ok(entry) => Ok(match entry.view.txn().and_then(TxnView::doom) {
                Some(doom) => TxnState::Doomed(entry.view.lock_words().explain(&doom)),
                None => TxnState::Open,
            }),
            Err(ServiceError::Busy { what, .. }) => Ok(TxnState::Busy(what)),
            Err(error) => Err(error),
        }
    }

    /// The newest transaction of this label among those that are the caller's.
    pub fn labelled(&self, caller: &Caller, label: &str) -> Option<u64> {
        let state = self.state.lock();
        let mut newest_first = state.open.iter().rev();
        let found =
            newest_first.find(|(_, entry)| entry.owner.uid == caller.uid && entry.owner.name == label);
        found.map(|(&id, _)| id)
    }

    /// Where the view of a transaction is mounted; mounts it if it is not mounted yet.
    ///
    /// # Errors
    /// As [`Self::view`]; the view is mounted elsewhere, or can't be mounted.
    pub fn path(&self, caller: &Caller, id: u64) -> Result<PathBuf> {
        self.main.check_files()?;
        let _mounting = self.mount_lock.lock();
        let (view, owner) = {
            let state = self.state.lock();
            let entry = Self::of(&state, caller, id)?;
            match &entry.view_mount {
                _ if entry.is_run() => return Err(run_elsewhere(id)),
                Some(view_mount) if view_mount.mount.has_ended() => return Err(unmounted(id)),
                Some(view_mount) => return Ok(view_mount.path()),
                None => (Arc::clone(&entry.view), entry.owner.uid),
            }
        };
        let slot = self.view_slots.take(owner)?;
        let mount = self.main.mounts.mount_view(id, owner, view)?;
        self.install_view_mount(id, ServedView::new(mount, slot))
    }

    /// As [`Self::path`], for a caller that goes to the store's directory, where the view is mounted.
    ///
    /// # Errors
    /// As [`Self::path`]; the caller does not get there.
    pub fn join(&self, caller: &Caller, id: u64) -> Result<PathBuf> {
        authorize_server(caller, "use views in the store's directory")?;
        self.path(caller, id)
    }

    /// Waits until what was committed up to `position` is durable.
    ///
    /// # Errors
    /// It may not be.
    pub fn sync(&self, position: Position) -> Result<(), FsError> {
        self.main.fs.sync(position)
    }

    /// Whether the kernel keeps dirty pages of ordinary writes.
    pub fn is_writeback(&self) -> bool {
        self.main.mounts.is_writeback()
    }

    /// Has the kernel write out every dirty page of the main line, of shared mappings too.
    ///
    /// # Errors
    /// That of a page that could not be written.
    pub fn flush_main_line(&self) -> Result<()> {
        Ok(self.main.mounts.write_back()?)
    }

    /// Begins a transaction, does `work` in it, and commits, durably. No other caller gets at it.
    ///
    /// # Errors
    /// That of `work`, or of the commit.
    pub fn carry_out(
        &self,
        options: &BeginOptions,
        work: impl FnOnce(&FileSystem) -> Result<(), FsError>,
    ) -> Result<TxnId> {
        self.main.check_files()?;
        let (id, view) = self.enter(options, None, Use::Taken(AT_WORK), Slot::uncounted())?;
        let taken = Taken::new(self, id.0, Arc::clone(&view), None);
        let worked = work(&view);
        let done = worked.and_then(|()| self.main.mounts.commit(&view, Durability::Synced, None));
        taken.give_back(false);
        done.map(|_| id).map_err(|error| ServiceError::NotCommitted {
            id: id.0,
            view,
            error: Box::new(error),
        })
    }

    /// Drops a transaction. Returns why it could not have been committed any more, if so.
    ///
    /// # Errors
    /// As [`Self::view`].
    pub fn abort(&self, caller: &Caller, id: u64) -> Result<Option<String>> {
        let timer = Timer::start(&self.main.fs);
        let taken = self.take(caller, id, "being aborted")?;
        let view = &taken.view;
        let doomed = view.txn().and_then(TxnView::doom).map(|doom| view.lock_words().explain(&doom));
        let why = format!("aborted by user {} (pid {})", caller.uid, caller.pid);
        taken.discard(Some(caller), Some(why));
        timer.end(OperationKind::Drop, caller, id, 0);
        Ok(doomed)
    }

    /// Ends the views of deleted snapshots in `.kvfs`, on the main line and in transactions.
    pub fn close_deleted_snapshots(&self) {
        self.main.mounts.close_deleted_snapshots();
        for entry in self.state.lock().open.values() {
            if let Some(view_mount) = &entry.view_mount {
                view_mount.mount.close_deleted_snapshots();
            }
        }
    }

    /// Transactions that user `viewer` may enter and whose views the daemon mounts, or has mounted: number,
    /// owner, and where.
    pub fn views(&self, viewer: u32) -> Vec<(u64, u32, PathBuf)> {
        if self.is_writeback() {
            return Vec::new();
        }
        let state = self.state.lock();
        let shown =
            state.open.iter().filter(|(_, entry)| entry.is_shown() && may_act_for(viewer, entry.owner.uid));
        shown.map(|(&id, entry)| (id, entry.owner.uid, self.main.mounts.view_path(id))).collect()
    }

    /// Refuses new ones and aborts the open ones, so that a commit under way waits for none of them any more.
    /// Returns when all have ended, also those that are being committed: see [`Self::abort_all`].
    pub fn end_open(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
        self.abort_all("the store is being closed");
    }

    /// As [`Self::end_open`], and waits until their views have ended, but for those that calls mount
    /// meanwhile.
    pub fn close(&self) {
        self.end_open();
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
    pub fn list(&self, caller: &Caller) -> Vec<TxnLine> {
        let locks: BTreeMap<u64, u64> = self
            .main
            .fs
            .admission()
            .transactions()
            .iter()
            .map(|info| (info.id.0, info.names_count as u64))
            .collect();
        let now = self.clock.monotonic();
        let state = self.state.lock();
        let mine = state.open.iter().filter(|(_, entry)| caller.may_act_for(entry.owner.uid));
        mine.map(|(&id, entry)| TxnLine {
            locks: locks.get(&id).copied().unwrap_or(0),
            ..entry.line(id, now)
        })
        .collect()
    }

    fn of<'s>(state: &'s State, caller: &Caller, id: u64) -> Result<&'s Entry> {
        let Some(entry) = state.open.get(&id) else {
            return Err(match state.ended.why(id, caller) {
                Some(why) => ServiceError::Ended { id, why },
                None => ServiceError::Unknown(id),
            });
        };
        if !caller.may_act_for(entry.owner.uid) {
            return Err(ServiceError::NotYours { id, uid: entry.owner.uid });
        }
        match entry.used.what() {
            Some(what) => Err(ServiceError::Busy { id, what }),
            None => Ok(entry),
        }
    }
}

fn run_elsewhere(id: u64) -> ServiceError {
    ServiceError::new(
        ErrorKind::Usage,
        format!("transaction {id} runs in namespaces of its own; only those of `kvfs txn begin` are joined"),
    )
}

fn unmounted(id: u64) -> ServiceError {
    ServiceError::new(
        ErrorKind::NotMounted,
        format!(
            "the view of transaction {id} was unmounted; commit or abort the transaction (its keys go on)"
        ),
    )
}

fn closing() -> ServiceError {
    ServiceError::new(ErrorKind::NotMounted, "the store is being unmounted")
}

fn being_kept() -> ServiceError {
    ServiceError::new(ErrorKind::InUse, "the store is being unmounted, and open transactions kept; try again")
}

#[cfg(test)]
mod tests;
