//! The daemon of a store that is not mounted: it serves commands, keys and processes without a mount.
//!
//! Thread safety: shared. Invariant: nothing here asks for FUSE, nor for rights that an ordinary user lacks.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kvfs_fs::{Durability, FileSystem, FsError, Position};
use kvfs_locks::{Condvar, Mutex, class};
use kvfs_posix::Volume;
use kvfs_service::{ErrorKind, Mounts, Result as ServiceResult, ServiceError, ViewMount};

use super::cannot_start;
use super::front_ends::{FrontEnds, Store};
use super::public::PublicSockets;
use super::signals::Signals;
use crate::error::{CliError, Code, Result};

/// Tells the daemon to end.
#[derive(Default)]
pub(super) struct End {
    is_asked: Mutex<bool, class::CliDaemonUnmountedIsAsked>,
    asked: Condvar,
}

impl End {
    pub(super) fn ask(&self) {
        *self.is_asked.lock() = true;
        self.asked.notify_all();
    }

    fn wait(&self) {
        self.asked.wait_while(&mut self.is_asked.lock(), |is_asked| !*is_asked);
    }
}

/// From the first socket to the last.
pub(super) fn run(
    store: Store<'_>,
    end: &Arc<End>,
    signals: Signals,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let volume = Volume::over(Arc::clone(store.fs)).map_err(|error| cannot_start("a thread", &error))?;
    let main = OnceLock::from(volume.view());
    let keys = store.public.and_then(PublicSockets::listen_for_keys);
    let front_ends = FrontEnds::start(store, Arc::new(NoMounts), keys, main, None)?;
    tracing::info!(store = %store.dir.path().display(), "served without a mount");

    let ender = signals.end(front_ends.transactions(), end);
    if store.plan.while_used {
        let end = Arc::clone(end);
        front_ends.when_unused(move || end.ask());
    }
    let announced = ender.as_ref().map_or_else(|error| Err(error.clone()), |_| ready());
    if announced.is_ok() {
        end.wait();
    }
    front_ends.end();
    drop(ender);
    let failed = |error| CliError::new(Code::Failed, format!("cannot write everything out: {error}"));
    announced.and(volume.unmount().map_err(failed))
}

/// No kernel shows the store.
struct NoMounts;

fn none<T>() -> ServiceResult<T> {
    let message = "the store is served without a mount (`kvfs serve`); this needs `kvfs mount`";
    Err(ServiceError::new(ErrorKind::NotMounted, message))
}

impl Mounts for NoMounts {
    fn has_kernel(&self) -> bool {
        false
    }

    fn is_writeback(&self) -> bool {
        false
    }

    fn write_back(&self) -> Result<(), FsError> {
        Ok(())
    }

    fn commit(
        &self,
        view: &Arc<FileSystem>,
        durability: Durability,
        _: Option<Duration>,
    ) -> Result<Position, FsError> {
        let committed = view.expect_txn()?.freeze()?.plan()?.commit(durability, || ())?;
        committed.durable.map(|()| committed.position)
    }

    fn close_deleted_snapshots(&self) {}

    fn mount_view(&self, _: u64, _: u32, _: Arc<FileSystem>) -> ServiceResult<Box<dyn ViewMount>> {
        none()
    }

    fn view_path(&self, _: u64) -> PathBuf {
        PathBuf::new()
    }

    fn copy_view(&self, _: u64) -> ServiceResult<OwnedFd> {
        none()
    }

    fn attach_view(
        &self,
        _: Arc<FileSystem>,
        _: OwnedFd,
        _: Option<(u32, u32)>,
    ) -> ServiceResult<Box<dyn ViewMount>> {
        none()
    }

    fn mount_detached(&self, _: Arc<FileSystem>, _: u32) -> ServiceResult<(OwnedFd, Box<dyn ViewMount>)> {
        none()
    }

    fn check_free(&self, _: &Path) -> ServiceResult<()> {
        none()
    }

    fn is_free(&self, _: &Path) -> bool {
        true
    }

    fn mount_branch(
        &self,
        _: &Path,
        _: Arc<FileSystem>,
        _: u32,
        _: Option<u32>,
    ) -> ServiceResult<Box<dyn ViewMount>> {
        none()
    }
}
