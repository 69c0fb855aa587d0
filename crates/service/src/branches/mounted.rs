//! The mounted branches of a mounted store: each is a view behind a connection of its own, on a directory
//! that its user has chosen.
//!
//! Thread safety: all methods are `&self`, for threads that may block. The lock is held across a checkpoint,
//! a mount and an unmount: they take turns, and nothing that serves requests takes it. It is not held while a
//! user's directory is looked at, which may lie on a file system that does not answer.
//!
//! Invariants: a mounted branch is checkpointed every [`CHECKPOINT_PERIOD`] while it is written to, and
//! before its view is given up, however it is unmounted. Where that fails, as on a full store, the view
//! stays, mounted nowhere: each use of the branch tries again first, as the clock does, and is refused where
//! it would meet an older state.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::{BranchInfo, Durability, FileSystem, FrozenView, FsError, NodeId, Owner, Selection, TxnView};
use kvfs_locks::{Condvar, Mutex, class};
use kvfs_store::TxnId;
use kvfs_store::clock::{Clock, SystemClock};

use super::Merging;
use super::operations::{explain, not_made};
use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::mounts::{MainLine, ViewMount};

/// What a crash takes from a mounted branch is younger than this.
const CHECKPOINT_PERIOD: Duration = Duration::from_secs(30);

/// Between two looks, while something is mounted.
const TICK: Duration = Duration::from_millis(500);

struct Mounted {
    name: String,
    uid: u32,
    fs: Arc<FileSystem>,
    mount: Box<dyn ViewMount>,
    /// When it was checkpointed, and how many operations it had then.
    saved: (Duration, u64),
    /// It was unmounted, and has ended but for its checkpoint: that failed, by this.
    not_kept: Option<String>,
}

impl Mounted {
    /// Neither unmounted from outside nor by this process.
    fn is_mounted(&self) -> bool {
        self.not_kept.is_none() && !self.mount.has_ended()
    }

    /// Whether its end is to be tried, by the clock.
    fn is_due_to_end(&self, now: Duration) -> bool {
        let is_tried = self.not_kept.is_some() && now.saturating_sub(self.saved.0) < CHECKPOINT_PERIOD;
        !self.is_mounted() && !is_tried
    }

    fn operations(&self) -> u64 {
        self.fs.txn().map(TxnView::stats).unwrap_or_default().operations
    }

    fn checkpoint(&mut self, now: Duration) -> Result<(), FsError> {
        let operations = self.operations();
        let is_saved = operations == self.saved.1;
        let done = if is_saved { Ok(()) } else { self.fs.branches().checkpoint() };
        // But for a clone that is under way it is not tried again before its time.
        if !matches!(done, Err(FsError::Busy(_))) {
            self.saved.0 = now;
        }
        done.inspect(|()| self.saved.1 = operations)
    }

    /// Checkpoints what has come in last. The kernel has given up its side, or does so now. Nothing comes in
    /// any more until what is returned is dropped, but where that is an error.
    fn keep(&mut self, now: Duration) -> Result<Option<FrozenView>> {
        // Pages that the kernel has still may come in, where another namespace still has it.
        let frozen = self.fs.expect_txn().and_then(|txn| {
            loop {
                match txn.freeze() {
                    // Half a clone of a tree is nothing to come back to.
                    Err(FsError::Busy(_)) => txn.await_long_operations(),
                    frozen => break frozen,
                }
            }
        });
        if frozen.is_ok()
            && !self.mount.has_ended()
            && let Err(error) = self.mount.write_back(None)
        {
            tracing::error!(name = self.name, %error, "dirty pages of a branch are lost");
        }
        if let Err(error) = self.checkpoint(now) {
            let error = ServiceError::from(error);
            self.not_kept = Some(error.to_string());
            return Err(self.tell_not_kept(&error));
        }
        Ok(frozen.ok())
    }

    /// What a use of the branch is refused with while it is not kept.
    fn tell_not_kept(&self, error: &ServiceError) -> ServiceError {
        let name = &self.name;
        let message = format!(
            "branch \"{name}\" is unmounted, but what was done in it since its last checkpoint is not kept yet: \
             {error}; the daemon has it and tries again: mend this before the store is unmounted, or give it up with \
             `kvfs branch delete {name}`"
        );
        ServiceError::new(error.kind(), message)
    }

    /// Gives up the view, and the kernel side.
    fn end(self) {
        let name = self.name;
        if let Err(error) = self.mount.detach() {
            tracing::warn!(name, %error, "a branch stays mounted");
        }
        // A process that still has it open gets errors from here on.
        if let Some(txn) = self.fs.txn() {
            txn.abort();
        }
        if let Err(error) = self.mount.end() {
            tracing::debug!(name, %error, "the connection of a branch ended badly");
        }
        tracing::info!(name, "branch unmounted");
    }
}

#[derive(Default)]
struct State {
    mounted: BTreeMap<TxnId, Mounted>,
    is_closed: bool,
    clock: Option<JoinHandle<()>>,
    /// Those that are not kept, for threads that don't wait for the lock.
    not_kept: Arc<AtomicU64>,
}

impl State {
    fn count(&self) {
        let not_kept = self.mounted.values().filter(|mounted| mounted.not_kept.is_some());
        self.not_kept.store(not_kept.count() as u64, Ordering::Relaxed);
    }

    /// Ends a branch that is unmounted; one that can't be checkpointed stays, to be tried again.
    fn end(&mut self, id: TxnId, now: Duration) -> Result<()> {
        let Some(mounted) = self.mounted.get_mut(&id) else { return Ok(()) };
        let kept = mounted.keep(now);
        if kept.is_ok()
            && let Some(mounted) = self.mounted.remove(&id)
        {
            mounted.end();
        }
        self.count();
        // Held until the view has ended: it must not open again.
        kept.map(drop)
    }

    /// As [`Self::end`], if it is one that was unmounted from outside, or could not be checkpointed then.
    fn end_unmounted(&mut self, id: TxnId, now: Duration) -> Result<()> {
        match self.mounted.get(&id).filter(|mounted| !mounted.is_mounted()) {
            Some(unmounted) => unmounted.mount.forget(),
            None => return Ok(()),
        }
        self.end(id, now)
    }

    /// As [`Self::end_unmounted`], of all that are due.
    fn end_due(&mut self, is_due: impl Fn(&Mounted) -> bool, now: Duration) -> Result<()> {
        let due = self.mounted.iter().filter(|(_, mounted)| is_due(mounted)).map(|(&id, _)| id);
        let ends: Vec<_> =
            due.collect::<Vec<_>>().into_iter().map(|id| self.end_unmounted(id, now)).collect();
        ends.into_iter().collect()
    }
}

/// See the module.
pub struct Branches {
    main: MainLine,
    clock: SystemClock,
    state: Mutex<State, class::ServiceBranchesMountedState>,
    changed: Condvar,
    not_kept: Arc<AtomicU64>,
}

impl Branches {
    /// None are mounted.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(main: MainLine) -> Result<Arc<Self>> {
        let not_kept = Arc::<AtomicU64>::default();
        let state = State { not_kept: Arc::clone(&not_kept), ..State::default() };
        let new = Arc::new(Self {
            main,
            clock: SystemClock::new(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            not_kept,
        });
        let ticking = Arc::clone(&new);
        let thread = std::thread::Builder::new().name("branch-clock".into()).spawn(move || ticking.tick());
        new.state.lock().clock = Some(thread.map_err(|error| ServiceError::thread(&error))?);
        Ok(new)
    }

    /// Whether files may be changed behind the kernel's back, as a merge does.
    ///
    /// # Errors
    /// [`ServiceError::NoFiles`].
    pub fn check_files(&self) -> Result<()> {
        self.main.check_files()
    }

    /// Mounts a branch on an empty directory of the user that asks.
    ///
    /// # Errors
    /// It is mounted already, or can't be mounted there.
    pub fn mount(&self, branch: &BranchInfo, dir: &Path, caller: &Caller) -> Result<()> {
        self.admit(&mut self.state.lock(), branch.id)?;
        self.main.mounts.check_free(dir)?;
        let mut state = self.state.lock();
        self.admit(&mut state, branch.id)?;
        let (name, uid) = (branch.name.clone(), branch.uid);
        let fs = kvfs_fs::open_branch(&self.main.fs, branch).map_err(|error| explain(&name, error))?;
        // This process may mount anywhere; the user that asks, only where the directory is that user's.
        let point_owner = (caller.uid != 0).then_some(caller.uid);
        let mount = self.main.mounts.mount_branch(dir, Arc::clone(&fs), uid, point_owner)?;
        let operations = fs.txn().map(TxnView::stats).unwrap_or_default().operations;
        let saved = (self.clock.monotonic(), operations);
        tracing::info!(name, dir = %dir.display(), "branch mounted");
        state.mounted.insert(branch.id, Mounted { name, uid, fs, mount, saved, not_kept: None });
        self.changed.notify_all();
        Ok(())
    }

    /// Whether this branch may be mounted now.
    fn admit(&self, state: &mut State, id: TxnId) -> Result<()> {
        if state.is_closed {
            return Err(ServiceError::new(ErrorKind::NotMounted, "the store is being unmounted"));
        }
        state.end_unmounted(id, self.clock.monotonic())?;
        if let Some(Mounted { name, mount, .. }) = state.mounted.get(&id) {
            let message = format!("branch \"{name}\" is mounted on {} already", mount.path().display());
            return Err(ServiceError::new(ErrorKind::InUse, message));
        }
        Ok(())
    }

    /// Unmounts a branch, if it is mounted; it is checkpointed when this returns.
    ///
    /// # Errors
    /// It is in use; it can't be checkpointed, and stays in this process where it was unmounted already.
    pub fn unmount(&self, id: TxnId) -> Result<()> {
        let mut state = self.state.lock();
        let now = self.clock.monotonic();
        state.end_unmounted(id, now)?;
        let Some(mounted) = state.mounted.get_mut(&id) else { return Ok(()) };
        // While it can still be gone on with: a full store refuses this.
        mounted.checkpoint(now)?;
        mounted.mount.unmount()?;
        state.end(id, now)
    }

    /// Checkpoints a branch that is not mounted any more, where that has not been done yet, so that what the
    /// store holds is all that was done in it.
    ///
    /// # Errors
    /// It can't be checkpointed.
    pub fn keep_unmounted(&self, id: TxnId) -> Result<()> {
        self.state.lock().end_unmounted(id, self.clock.monotonic())
    }

    /// Why that is not possible just now; `None`: it is done, or was not needed.
    pub fn why_not_kept(&self, id: TxnId) -> Option<String> {
        let mut state = self.state.lock();
        state.end_unmounted(id, self.clock.monotonic()).err()?;
        state.mounted.get(&id)?.not_kept.clone()
    }

    /// How many are unmounted and could not be checkpointed. Does not wait.
    pub fn count_not_kept(&self) -> u64 {
        self.not_kept.load(Ordering::Relaxed)
    }

    /// Deletes a branch that [`Self::keep_unmounted`] would keep. `false`: it is none.
    ///
    /// # Errors
    /// `HasBranches`; store errors.
    pub fn delete_unmounted(&self, id: TxnId) -> Result<bool, FsError> {
        let mut state = self.state.lock();
        if state.mounted.get(&id).is_none_or(Mounted::is_mounted) {
            return Ok(false);
        }
        // Only this could have another one made of it.
        self.main.fs.branches().expect_childless(id)?;
        let Some(unmounted) = state.mounted.remove(&id) else { return Ok(false) };
        state.count();
        unmounted.mount.forget();
        let deleted = unmounted.fs.branches().delete_open();
        unmounted.end();
        deleted.map(|()| true)
    }

    /// After an unmount of `dir`: the branch that was there is checkpointed when this returns.
    ///
    /// # Errors
    /// It can't be checkpointed.
    pub fn settle(&self, dir: &Path) -> Result<()> {
        let find = |state: &State| {
            let mut mounted = state.mounted.iter();
            let is_it = |mounted: &Mounted| mounted.not_kept.is_none() && mounted.mount.path() == dir;
            mounted.find(|(_, mounted)| is_it(mounted)).map(|(&id, _)| id)
        };
        if find(&self.state.lock()).is_none() || !self.main.mounts.is_free(dir) {
            // Something was mounted once more on top, or it was detached where others see it still.
            return Ok(());
        }
        let mut state = self.state.lock();
        let Some(id) = find(&state) else { return Ok(()) };
        if let Some(mounted) = state.mounted.get(&id) {
            mounted.mount.forget();
        }
        state.end(id, self.clock.monotonic())
    }

    /// Makes a branch of a mounted one, for its user, of all that was acknowledged there; with `flush`, of
    /// dirty pages of shared mappings, too. Waits for clones of trees that are under way in it. `None`: it is
    /// not mounted.
    ///
    /// # Errors
    /// As [`kvfs_fs::Branches::fork`]; as [`Self::keep_unmounted`].
    pub fn fork(&self, name: &str, parent: TxnId, flush: bool) -> Result<Option<BranchInfo>> {
        let mut state = self.state.lock();
        loop {
            state.end_unmounted(parent, self.clock.monotonic())?;
            let Some(mounted) = state.mounted.get(&parent) else { return Ok(None) };
            let flushed = if flush { mounted.mount.write_back(None) } else { Ok(()) };
            match flushed.and_then(|()| mounted.fs.branches().fork(name, mounted.uid)) {
                Err(FsError::Busy(_)) => drop(self.changed.wait_for(&mut state, TICK)),
                made => return made.map(Some).map_err(|error| not_made(name, error)),
            }
        }
    }

    /// Merges a branch that is not mounted. When this returns, every user of the main line sees it, durably.
    ///
    /// # Errors
    /// Something is in the way; as a commit.
    pub fn merge(
        &self,
        branch: &BranchInfo,
        owner: Owner,
        selection: Option<&Selection>,
    ) -> Result<(), FsError> {
        let merging = Merging::begin(&self.main.fs, branch, owner, selection)?;
        self.main.mounts.commit(&merging.view, Durability::Synced, None)?;
        merging.end()
    }

    /// The view of a mounted branch, or of one that could not be checkpointed when it was unmounted.
    pub fn view(&self, id: TxnId) -> Option<Arc<FileSystem>> {
        self.state.lock().mounted.get(&id).map(|mounted| Arc::clone(&mounted.fs))
    }

    /// The same by the number of its transaction, for a caller that may enter it: with its keys, so not of a
    /// directory.
    ///
    /// # Errors
    /// There is none of this number; it is one of a directory.
    pub(crate) fn view_of(&self, caller: &Caller, id: u64) -> Result<Arc<FileSystem>> {
        let state = self.state.lock();
        let mounted = state.mounted.get(&TxnId(id)).filter(|mounted| caller.may_act_for(mounted.uid));
        let fs = mounted.map(|mounted| &mounted.fs).ok_or(ServiceError::Unknown(id))?;
        if fs.nodes().root() == NodeId::ROOT {
            return Ok(Arc::clone(fs));
        }
        let message =
            "this is a branch of a directory: it has no keys, and its files are where it is mounted";
        Err(ServiceError::new(ErrorKind::Usage, message))
    }

    /// Where branches are mounted.
    pub fn mounted(&self) -> BTreeMap<TxnId, PathBuf> {
        let state = self.state.lock();
        let of = |(&id, mounted): (&TxnId, &Mounted)| (id, mounted.mount.path());
        state.mounted.iter().filter(|(_, mounted)| mounted.is_mounted()).map(of).collect()
    }

    /// Checkpoints all that are mounted, or were. Returns where those are that were checkpointed, and why
    /// another one could not be. Waits for clones of trees that are under way in them.
    pub fn save_all(&self) -> (Vec<PathBuf>, Result<()>) {
        let mut state = self.state.lock();
        let ended = state.end_due(|mounted| !mounted.is_mounted(), self.clock.monotonic());
        loop {
            match self.save(&mut state) {
                (_, Err(FsError::Busy(_))) => drop(self.changed.wait_for(&mut state, TICK)),
                (dirs, saved) => return (dirs, ended.and(saved.map_err(ServiceError::from))),
            }
        }
    }

    fn save(&self, state: &mut State) -> (Vec<PathBuf>, Result<(), FsError>) {
        let now = self.clock.monotonic();
        let (mut dirs, mut all) = (Vec::new(), Ok(()));
        for mounted in state.mounted.values_mut().filter(|mounted| mounted.is_mounted()) {
            match mounted.checkpoint(now) {
                Ok(()) => dirs.push(mounted.mount.path()),
                // What waits for the end of a clone is told first: then it is tried again.
                Err(error) if all.is_ok() || matches!(error, FsError::Busy(_)) => all = Err(error),
                Err(_) => {}
            }
        }
        (dirs, all)
    }

    /// Refuses an end of the store while what was done in a branch that is not mounted any more can't be
    /// kept.
    ///
    /// # Errors
    /// One can't be checkpointed.
    pub fn check_kept(&self) -> Result<()> {
        self.state.lock().end_due(|mounted| !mounted.is_mounted(), self.clock.monotonic())
    }

    /// Checkpoints and unmounts all.
    pub fn close(&self) {
        let (mounted, clock) = {
            let mut state = self.state.lock();
            state.is_closed = true;
            self.changed.notify_all();
            (std::mem::take(&mut state.mounted), state.clock.take())
        };
        let now = self.clock.monotonic();
        for mut mounted in mounted.into_values() {
            let name = &mounted.name;
            // Where it is still in use, the kernel writes out its dirty pages first.
            if let Err(error) = mounted.mount.unmount() {
                tracing::info!(name, %error, "a branch is in use while the store is unmounted");
                if let Err(error) = mounted.mount.write_back(None) {
                    tracing::error!(name, %error, "dirty pages of a branch are lost");
                }
            }
            let kept = mounted.keep(now);
            if let Err(error) = &kept {
                tracing::error!(%error, "what was done in a branch is lost");
            }
            mounted.end();
        }
        if clock.is_some_and(|clock| clock.join().is_err()) {
            tracing::error!("the thread of the branches panicked");
        }
    }

    /// Body of the clock thread.
    fn tick(&self) {
        let mut state = self.state.lock();
        while !state.is_closed {
            if state.mounted.is_empty() {
                self.changed.wait(&mut state);
                continue;
            }
            self.changed.wait_for(&mut state, TICK);
            let now = self.clock.monotonic();
            if let Err(error) = state.end_due(|mounted| mounted.is_due_to_end(now), now) {
                tracing::error!(%error, "a branch is not kept");
            }
            for mounted in state.mounted.values_mut().filter(|mounted| mounted.is_mounted()) {
                if now.saturating_sub(mounted.saved.0) < CHECKPOINT_PERIOD {
                    continue;
                }
                match mounted.checkpoint(now) {
                    // At the end of the clone.
                    Ok(()) | Err(FsError::Busy(_)) => {}
                    Err(error) => {
                        tracing::warn!(name = mounted.name, %error, "a branch was not checkpointed");
                    }
                }
            }
        }
    }
}
