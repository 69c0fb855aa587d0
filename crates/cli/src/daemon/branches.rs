//! The mounted branches of a mounted store: each is a view behind a connection of its own, on a directory that its
//! user has chosen.
//!
//! Thread safety: all methods are `&self`, for threads that may block. The lock is held across a checkpoint, a mount
//! and an unmount: they take turns, and nothing that serves requests takes it. It is not held while somebody's
//! directory is looked at, which may lie on a file system that does not answer.
//!
//! Invariants: a mounted branch is checkpointed every [`CHECKPOINT_PERIOD`] while it is written to, and before its
//! view is given up, whoever unmounts it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::{Durability, FileSystem, FsError};
use kvfs_fuse::bridge::View;
use kvfs_fuse::mount::{self, MountPoint, Unmount};
use kvfs_store::clock::{Clock, SystemClock};
use parking_lot::{Condvar, Mutex};

use super::explain_mount;
use super::transactions::{MainLine, view_options};
use crate::control::Peer;
use crate::error::{CliError, Code, Result};
use crate::store_dir::StoreDir;

/// What a crash takes from a mounted branch is younger than this.
const CHECKPOINT_PERIOD: Duration = Duration::from_secs(30);

/// Between two looks, while something is mounted.
const TICK: Duration = Duration::from_millis(500);

struct Mounted {
    uid: u32,
    fs: Arc<FileSystem>,
    view: View,
    point: MountPoint,
    /// When it was checkpointed, and how many operations it had then.
    saved: (Duration, u64),
}

impl Mounted {
    fn operations(&self) -> u64 {
        self.fs.txn_stats().unwrap_or_default().operations
    }

    fn checkpoint(&mut self, now: Duration) -> Result<(), FsError> {
        let operations = self.operations();
        // Also after a failure it is not tried again before its time.
        self.saved.0 = now;
        if operations != self.saved.1 {
            self.fs.checkpoint_branch()?;
            self.saved.1 = operations;
        }
        Ok(())
    }

    /// Checkpoints and gives up the view. The kernel has given up its side, or does so now.
    fn end(mut self, name: &str) -> Result<()> {
        // Nothing comes in any more but pages that the kernel has still, where somebody else goes on seeing it.
        let frozen = self.fs.freeze();
        if frozen.is_ok()
            && !self.view.has_ended()
            && let Err(error) = self.view.bridge().write_back()
        {
            tracing::error!(name, %error, "dirty pages of a branch are lost");
        }
        let checkpointed = self.checkpoint(Duration::ZERO);
        if let Err(error) = self.point.unmount(Unmount::Lazy) {
            tracing::warn!(name, %error, "a branch stays mounted");
        }
        // Whoever still has it open gets errors from here on.
        self.fs.abort();
        if let Err(error) = self.view.end() {
            tracing::debug!(name, %error, "the connection of a branch ended badly");
        }
        tracing::info!(name, saved = checkpointed.is_ok(), "branch unmounted");
        checkpointed.map_err(|error| {
            let error = CliError::from(error);
            CliError::new(
                error.code,
                format!("branch \"{name}\" is as of its last checkpoint: {}", error.message),
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
pub(crate) struct Branches {
    main: MainLine,
    store: StoreDir,
    clock: SystemClock,
    state: Mutex<State>,
    changed: Condvar,
}

impl Branches {
    /// None are mounted.
    pub(crate) fn new(main: MainLine, store: StoreDir) -> Result<Arc<Self>> {
        let new = Arc::new(Self {
            main,
            store,
            clock: SystemClock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let ticking = Arc::clone(&new);
        let thread = std::thread::Builder::new().name("branch-clock".into()).spawn(move || ticking.tick());
        let thread =
            thread.map_err(|error| CliError::new(Code::Failed, format!("cannot start a thread: {error}")))?;
        new.state.lock().clock = Some(thread);
        Ok(new)
    }

    /// Whether files may be changed behind the kernel's back, as a merge does.
    pub(crate) fn check_files(&self) -> Result<()> {
        self.main.check_files()
    }

    /// Mounts a branch on an empty directory.
    pub(crate) fn mount(&self, name: &str, dir: &Path) -> Result<()> {
        Self::admit(&mut self.state.lock(), name)?;
        self.check_free(dir)?;
        let mut state = self.state.lock();
        Self::admit(&mut state, name)?;
        let uid = self.main.fs.branch(name)?.uid;
        let fs = self.main.fs.open_branch(name)?;
        let options = view_options(&self.main.mount, &self.store);
        let (point, device) = mount::mount(dir, &options).map_err(|error| explain_mount(&error))?;
        let view = self.main.serve(Arc::clone(&fs), device, None)?;
        let operations = fs.txn_stats().unwrap_or_default().operations;
        let saved = (self.clock.monotonic(), operations);
        state.mounted.insert(name.to_owned(), Mounted { uid, fs, view, point, saved });
        self.changed.notify_all();
        tracing::info!(name, dir = %dir.display(), "branch mounted");
        Ok(())
    }

    /// Whether this branch may be mounted now.
    fn admit(state: &mut State, name: &str) -> Result<()> {
        if state.is_closed {
            return Err(CliError::new(Code::NotMounted, "the store is being unmounted"));
        }
        Self::collect(state);
        if let Some(mounted) = state.mounted.get(name) {
            let dir = mounted.point.path().display();
            return Err(CliError::new(Code::InUse, format!("branch \"{name}\" is mounted on {dir} already")));
        }
        Ok(())
    }

    /// Whether something can be mounted there. As slow as the file system that it lies on.
    fn check_free(&self, dir: &Path) -> Result<()> {
        if dir.starts_with(self.store.path()) {
            let message = format!("{} lies inside the store; mount somewhere else", dir.display());
            return Err(CliError::new(Code::MountPoint, message));
        }
        if mount::state(dir) != mount::PointState::Free {
            let message = format!("something is mounted on {}; choose another directory", dir.display());
            return Err(CliError::new(Code::MountPoint, message));
        }
        let is_empty = std::fs::read_dir(dir).map(|mut entries| entries.next().is_none());
        if !is_empty.map_err(|error| CliError::io("look into", dir, &error))? {
            let message = format!("{} is not empty; choose an empty directory", dir.display());
            return Err(CliError::new(Code::MountPoint, message));
        }
        Ok(())
    }

    /// Unmounts a branch, if it is mounted; it is checkpointed when this returns.
    pub(crate) fn unmount(&self, name: &str) -> Result<()> {
        let mut state = self.state.lock();
        let now = self.clock.monotonic();
        let Some(mounted) = state.mounted.get_mut(name) else { return Ok(()) };
        // While it can still be gone on with: a full store refuses this.
        mounted.checkpoint(now)?;
        mounted.point.unmount(Unmount::Clean).map_err(|error| explain_mount(&error))?;
        let mounted = state.mounted.remove(name);
        mounted.map_or(Ok(()), |mounted| mounted.end(name))
    }

    /// Somebody has unmounted `dir`: what was there is checkpointed when this returns.
    pub(crate) fn settle(&self, dir: &Path) -> Result<()> {
        let find = |state: &State| {
            let mut mounted = state.mounted.iter();
            mounted.find(|(_, mounted)| mounted.point.path() == dir).map(|(name, _)| name.clone())
        };
        if find(&self.state.lock()).is_none() || mount::state(dir) != mount::PointState::Free {
            // Something was mounted once more on top, or it was detached where others see it still.
            return Ok(());
        }
        let mut state = self.state.lock();
        let Some(name) = find(&state) else { return Ok(()) };
        let Some(mounted) = state.mounted.remove(&name) else { return Ok(()) };
        mounted.point.forget();
        mounted.end(&name)
    }

    /// Merges a branch that is not mounted. When this returns, whoever uses the main line sees it, durably.
    pub(crate) fn merge(&self, name: &str, pid: u32) -> Result<(), FsError> {
        let merging = self.main.fs.begin_merge(name, pid)?;
        self.main.bridge.commit(&merging, None, Durability::Synced, None).map(drop)
    }

    /// The view of a mounted branch.
    pub(crate) fn view(&self, name: &str) -> Option<Arc<FileSystem>> {
        self.state.lock().mounted.get(name).map(|mounted| Arc::clone(&mounted.fs))
    }

    /// The same by the number of its transaction, for whom may enter it.
    pub(crate) fn view_of(&self, peer: &Peer, id: u64) -> Option<Arc<FileSystem>> {
        let state = self.state.lock();
        let is_it = |mounted: &&Mounted| mounted.fs.txn_id().is_some_and(|txn| txn.0 == id);
        let mounted = state.mounted.values().find(is_it).filter(|mounted| peer.may_act_for(mounted.uid));
        mounted.map(|mounted| Arc::clone(&mounted.fs))
    }

    /// Where branches are mounted.
    pub(crate) fn mounted(&self) -> BTreeMap<String, PathBuf> {
        let state = self.state.lock();
        let of = |(name, mounted): (&String, &Mounted)| (name.clone(), mounted.point.path().to_owned());
        state.mounted.iter().filter(|(_, mounted)| !mounted.view.has_ended()).map(of).collect()
    }

    /// Checkpoints all that are mounted, and tells where.
    pub(crate) fn save_all(&self) -> Result<Vec<PathBuf>> {
        let mut state = self.state.lock();
        let now = self.clock.monotonic();
        let mut dirs = Vec::new();
        for mounted in state.mounted.values_mut().filter(|mounted| !mounted.view.has_ended()) {
            mounted.checkpoint(now)?;
            dirs.push(mounted.point.path().to_owned());
        }
        Ok(dirs)
    }

    /// Checkpoints and unmounts all.
    pub(crate) fn close(&self) {
        let (mounted, clock) = {
            let mut state = self.state.lock();
            state.is_closed = true;
            self.changed.notify_all();
            (std::mem::take(&mut state.mounted), state.clock.take())
        };
        for (name, mounted) in mounted {
            // Where somebody is still in it, the kernel writes out its dirty pages first.
            if let Err(error) = mounted.point.unmount(Unmount::Clean) {
                tracing::info!(name, %error, "a branch is in use while the store is unmounted");
                if let Err(error) = mounted.view.bridge().write_back() {
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
            .filter(|(_, mounted)| mounted.view.has_ended())
            .map(|(name, _)| name.clone())
            .collect();
        for name in ended {
            let Some(mounted) = state.mounted.remove(&name) else { continue };
            mounted.point.forget();
            if let Err(error) = mounted.end(&name) {
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
                if now.saturating_sub(mounted.saved.0) >= CHECKPOINT_PERIOD
                    && let Err(error) = mounted.checkpoint(now)
                {
                    tracing::warn!(name, %error, "a branch was not checkpointed");
                }
            }
        }
    }
}
