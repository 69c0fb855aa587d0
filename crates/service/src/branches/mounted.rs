//! The mounted branches of a mounted store: each is a view behind a connection of its own, on a directory
//! that its user has chosen.
//!
//! Thread safety: all methods are `&self`, for threads that may block. The lock is held across a checkpoint,
//! a mount and an unmount: they take turns, and nothing that serves requests takes it. It is not held while a
//! user's directory is looked at, which may lie on a file system that does not answer.
//!
//! Invariants: a mounted branch is checkpointed every [`CHECKPOINT_PERIOD`] while it is written to, and
//! before its view is given up, however it is unmounted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::{BranchInfo, Durability, FileSystem, FsError, NodeId, Owner, Selection, TxnView};
use kvfs_locks::{Condvar, Mutex, class};
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
    uid: u32,
    fs: Arc<FileSystem>,
    mount: Box<dyn ViewMount>,
    /// When it was checkpointed, and how many operations it had then.
    saved: (Duration, u64),
}

impl Mounted {
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

    /// As [`Self::end`], where it was unmounted from outside.
    fn end_outside(self, name: &str) -> Result<()> {
        self.mount.forget();
        self.end(name)
    }

    /// Checkpoints and gives up the view. The kernel has given up its side, or does so now.
    fn end(mut self, name: &str) -> Result<()> {
        // Nothing comes in any more but pages that the kernel has still, where another namespace still has
        // it. Kept until the view has ended: it must not open again.
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
            tracing::error!(name, %error, "dirty pages of a branch are lost");
        }
        let checkpointed = self.checkpoint(Duration::ZERO);
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
        tracing::info!(name, saved = checkpointed.is_ok(), "branch unmounted");
        checkpointed.map_err(|error| {
            let error = ServiceError::from(error);
            ServiceError::new(
                error.kind(),
                format!("branch \"{name}\" is as of its last checkpoint: {error}"),
            )
        })
    }
}

#[derive(Default)]
struct State {
    mounted: BTreeMap<String, Mounted>,
    is_closed: bool,
    clock: Option<JoinHandle<()>>,
}

/// See the module.
pub struct Branches {
    main: MainLine,
    clock: SystemClock,
    state: Mutex<State, class::ServiceBranchesMountedState>,
    changed: Condvar,
}

impl Branches {
    /// None are mounted.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(main: MainLine) -> Result<Arc<Self>> {
        let new = Arc::new(Self {
            main,
            clock: SystemClock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
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
    pub fn mount(&self, name: &str, dir: &Path, caller: &Caller) -> Result<()> {
        Self::admit(&mut self.state.lock(), name)?;
        self.main.mounts.check_free(dir)?;
        let mut state = self.state.lock();
        Self::admit(&mut state, name)?;
        let uid = self.main.fs.branches().get(name)?.uid;
        let fs = self.main.fs.open_branch(name).map_err(|error| explain(name, error))?;
        // This process may mount anywhere; the user that asks, only where the directory is that user's.
        let point_owner = (caller.uid != 0).then_some(caller.uid);
        let mount = self.main.mounts.mount_branch(dir, Arc::clone(&fs), uid, point_owner)?;
        let operations = fs.txn().map(TxnView::stats).unwrap_or_default().operations;
        let saved = (self.clock.monotonic(), operations);
        state.mounted.insert(name.to_owned(), Mounted { uid, fs, mount, saved });
        self.changed.notify_all();
        tracing::info!(name, dir = %dir.display(), "branch mounted");
        Ok(())
    }

    /// Whether this branch may be mounted now.
    fn admit(state: &mut State, name: &str) -> Result<()> {
        if state.is_closed {
            return Err(ServiceError::new(ErrorKind::NotMounted, "the store is being unmounted"));
        }
        Self::collect(state);
        if let Some(mounted) = state.mounted.get(name) {
            let dir = mounted.mount.path();
            let message = format!("branch \"{name}\" is mounted on {} already", dir.display());
            return Err(ServiceError::new(ErrorKind::InUse, message));
        }
        Ok(())
    }

    /// Unmounts a branch, if it is mounted; it is checkpointed when this returns.
    ///
    /// # Errors
    /// It is in use; it can't be checkpointed.
    pub fn unmount(&self, name: &str) -> Result<()> {
        let mut state = self.state.lock();
        let now = self.clock.monotonic();
        let Some(mounted) = state.mounted.get_mut(name) else { return Ok(()) };
        // While it can still be gone on with: a full store refuses this.
        mounted.checkpoint(now)?;
        mounted.mount.unmount()?;
        let mounted = state.mounted.remove(name);
        mounted.map_or(Ok(()), |mounted| mounted.end(name))
    }

    /// After an unmount of `dir`: the branch that was there is checkpointed when this returns.
    ///
    /// # Errors
    /// It can't be checkpointed.
    pub fn settle(&self, dir: &Path) -> Result<()> {
        let find = |state: &State| {
            let mut mounted = state.mounted.iter();
            mounted.find(|(_, mounted)| mounted.mount.path() == dir).map(|(name, _)| name.clone())
        };
        if find(&self.state.lock()).is_none() || !self.main.mounts.is_free(dir) {
            // Something was mounted once more on top, or it was detached where others see it still.
            return Ok(());
        }
        let mut state = self.state.lock();
        let Some(name) = find(&state) else { return Ok(()) };
        let Some(mounted) = state.mounted.remove(&name) else { return Ok(()) };
        mounted.end_outside(&name)
    }

    /// Makes a branch of a mounted one, for its user, of all that was acknowledged there; with `flush`, of
    /// dirty pages of shared mappings, too. Waits for clones of trees that are under way in it. `None`: it is
    /// not mounted.
    ///
    /// # Errors
    /// As [`kvfs_fs::Branches::fork`]; it was unmounted from outside, and can't be checkpointed.
    pub fn fork(&self, name: &str, parent: &str, flush: bool) -> Result<Option<BranchInfo>> {
        let mut state = self.state.lock();
        loop {
            let Some(mounted) = state.mounted.get(parent) else { return Ok(None) };
            if mounted.mount.has_ended() {
                return state
                    .mounted
                    .remove(parent)
                    .map_or(Ok(()), |ended| ended.end_outside(parent))
                    .map(|()| None);
            }
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
    pub fn merge(&self, name: &str, owner: Owner, selection: Option<&Selection>) -> Result<(), FsError> {
        let merging = Merging::begin(&self.main.fs, name, owner, selection)?;
        self.main.mounts.commit(&merging.view, Durability::Synced, None)?;
        merging.end()
    }

    /// The view of a mounted branch.
    pub fn view(&self, name: &str) -> Option<Arc<FileSystem>> {
        self.state.lock().mounted.get(name).map(|mounted| Arc::clone(&mounted.fs))
    }

    /// The same by the number of its transaction, for a caller that may enter it: with its keys, so not of a
    /// directory.
    ///
    /// # Errors
    /// There is none of this number; it is one of a directory.
    pub(crate) fn view_of(&self, caller: &Caller, id: u64) -> Result<Arc<FileSystem>> {
        let state = self.state.lock();
        let is_it = |mounted: &&Mounted| mounted.fs.txn().is_some_and(|txn| txn.id().0 == id);
        let mounted = state.mounted.values().find(is_it).filter(|mounted| caller.may_act_for(mounted.uid));
        let fs = mounted.map(|mounted| &mounted.fs).ok_or(ServiceError::Unknown(id))?;
        if fs.nodes().root() == NodeId::ROOT {
            return Ok(Arc::clone(fs));
        }
        let message =
            "this is a branch of a directory: it has no keys, and its files are where it is mounted";
        Err(ServiceError::new(ErrorKind::Usage, message))
    }

    /// Where branches are mounted.
    pub fn mounted(&self) -> BTreeMap<String, PathBuf> {
        let state = self.state.lock();
        let of = |(name, mounted): (&String, &Mounted)| (name.clone(), mounted.mount.path());
        state.mounted.iter().filter(|(_, mounted)| !mounted.mount.has_ended()).map(of).collect()
    }

    /// Checkpoints all that are mounted, and tells where. Waits for clones of trees that are under way in
    /// them.
    ///
    /// # Errors
    /// One can't be checkpointed.
    pub fn save_all(&self) -> Result<Vec<PathBuf>> {
        let mut state = self.state.lock();
        loop {
            match self.save(&mut state) {
                Err(FsError::Busy(_)) => drop(self.changed.wait_for(&mut state, TICK)),
                saved => return Ok(saved?),
            }
        }
    }

    fn save(&self, state: &mut State) -> Result<Vec<PathBuf>, FsError> {
        let now = self.clock.monotonic();
        let mut dirs = Vec::new();
        for mounted in state.mounted.values_mut().filter(|mounted| !mounted.mount.has_ended()) {
            mounted.checkpoint(now)?;
            dirs.push(mounted.mount.path());
        }
        Ok(dirs)
    }

    /// Checkpoints and unmounts all.
    pub fn close(&self) {
        let (mounted, clock) = {
            let mut state = self.state.lock();
            state.is_closed = true;
            self.changed.notify_all();
            (std::mem::take(&mut state.mounted), state.clock.take())
        };
        for (name, mounted) in mounted {
            // Where it is still in use, the kernel writes out its dirty pages first.
            if let Err(error) = mounted.mount.unmount() {
                tracing::info!(name, %error, "a branch is in use while the store is unmounted");
                if let Err(error) = mounted.mount.write_back(None) {
                    tracing::error!(name, %error, "dirty pages of a branch are lost");
                }
            }
            if let Err(error) = mounted.end(&name) {
                tracing::error!(%error, "not checkpointed");
            }
        }
        if clock.is_some_and(|clock| clock.join().is_err()) {
            tracing::error!("the thread of the branches panicked");
        }
    }

    /// Takes in those that were unmounted from outside.
    fn collect(state: &mut State) {
        let ended: Vec<String> = state
            .mounted
            .iter()
            .filter(|(_, mounted)| mounted.mount.has_ended())
            .map(|(name, _)| name.clone())
            .collect();
        for name in ended {
            let Some(mounted) = state.mounted.remove(&name) else { continue };
            if let Err(error) = mounted.end_outside(&name) {
                tracing::error!(%error, "not checkpointed");
            }
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
            Self::collect(&mut state);
            let now = self.clock.monotonic();
            for (name, mounted) in &mut state.mounted {
                if now.saturating_sub(mounted.saved.0) < CHECKPOINT_PERIOD {
                    continue;
                }
                match mounted.checkpoint(now) {
                    // At the end of the clone.
                    Ok(()) | Err(FsError::Busy(_)) => {}
                    Err(error) => tracing::warn!(name, %error, "a branch was not checkpointed"),
                }
            }
        }
    }
}
