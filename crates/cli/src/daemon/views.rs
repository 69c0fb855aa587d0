//! The mounts of views, for the registry of transactions and the branches: FUSE, and the directory of the
//! store.
//!
//! Thread safety: shared; for threads that may block, never workers. Invariant: what the mount of a view
//! gives a user is never more than the main line's.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvfs_fs::{ContentObserver, Durability, FileSystem, FsError, NodeId, Position};
use kvfs_fuse::bridge::{Bridge, View, ViewOptions};
use kvfs_fuse::mount::{self, MountOptions, MountPoint, Unmount};
use kvfs_fuse::transport::BufferPool;
use kvfs_locks::{Mutex, class};
use kvfs_service::{ErrorKind, Mounts, Result, ServiceError, ViewMount};

use super::explain_mount;
use super::point::{check_apart, options_now, view_options};
use crate::error::CliError;
use crate::store_dir::StoreDir;

/// The kernel sides of views that are mounted, by the number of the transaction.
#[derive(Default)]
pub(super) struct MountedViews(Mutex<BTreeMap<u64, Vec<KernelSide>>, class::CliDaemonViews>);

/// That of a mount.
#[derive(Clone)]
pub(super) struct KernelSide {
    bridge: Weak<Bridge>,
    content: Arc<dyn ContentObserver>,
}

impl KernelSide {
    pub(super) fn of(bridge: &Arc<Bridge>) -> Self {
        Self { bridge: Arc::downgrade(bridge), content: bridge.content_observer() }
    }

    /// `None`: it has ended.
    pub(super) fn bridge(&self) -> Option<Arc<Bridge>> {
        self.bridge.upgrade()
    }

    fn has_ended(&self) -> bool {
        self.bridge.strong_count() == 0
    }

    /// See [`ContentObserver`].
    pub(super) fn content_changed(&self, node: NodeId, bytes: Range<u64>) {
        if !self.has_ended() {
            self.content.content_changed(node, bytes);
        }
    }
}

impl MountedViews {
    /// Whether there are others of this transaction.
    fn add(&self, txn: u64, bridge: &Arc<Bridge>) -> bool {
        let mut known = self.0.lock();
        known.retain(|_, sides| {
            sides.retain(|side| !side.has_ended());
            !sides.is_empty()
        });
        let all = known.entry(txn).or_default();
        all.push(KernelSide::of(bridge));
        all.len() > 1
    }

    /// Those of a transaction.
    pub(super) fn of(&self, txn: u64) -> Vec<KernelSide> {
        self.0.lock().get(&txn).cloned().unwrap_or_default()
    }
}

/// The mount of the main line.
pub(super) struct MainMount {
    pub(super) bridge: Arc<Bridge>,
    pub(super) buffers: Arc<BufferPool>,
    pub(super) steers: bool,
    pub(super) options: MountOptions,
    pub(super) dir: PathBuf,
    pub(super) store: StoreDir,
    pub(super) views: Arc<MountedViews>,
}

/// A mounted view.
struct Mounted {
    main: Arc<Bridge>,
    view: View,
    /// Where this process has mounted it; its owner may have mounted it elsewhere.
    point: Option<MountPoint>,
    /// Its directory below that of the store, which goes with it.
    directory: Option<(StoreDir, u64)>,
}

impl MainMount {
    /// Serves `view` on the connection of `device`.
    fn serve(
        &self,
        view: Arc<FileSystem>,
        device: OwnedFd,
        only_ids: Option<(u32, u32)>,
        point: Option<MountPoint>,
        directory: Option<(StoreDir, u64)>,
    ) -> Result<Box<dyn ViewMount>> {
        let options = ViewOptions { buffers: Arc::clone(&self.buffers), steers: self.steers, only_ids };
        let txn = view.txn().map_or(0, |txn| txn.id().0);
        let files = Arc::clone(&view);
        let served = View::serve(&self.bridge, view, device, options);
        let view = served.map_err(|error| ServiceError::new(ErrorKind::Failed, error.to_string()))?;
        if self.views.add(txn, view.bridge()) {
            files.nodes().share_ends();
        }
        Ok(Box::new(Mounted { main: Arc::clone(&self.bridge), view, point, directory }))
    }

    fn options_for(&self, owner: u32) -> MountOptions {
        let options = options_now(&self.options, self.store.path(), &self.dir);
        view_options(&options, self.store.path(), owner)
    }
}

impl Mounts for MainMount {
    fn is_writeback(&self) -> bool {
        self.bridge.is_writeback()
    }

    fn write_back(&self) -> Result<(), FsError> {
        self.bridge.write_back(None)
    }

    fn commit(
        &self,
        view: &Arc<FileSystem>,
        durability: Durability,
        pages_max: Option<Duration>,
    ) -> Result<Position, FsError> {
        self.bridge.commit(view, None, durability, pages_max)
    }

    fn close_deleted_snapshots(&self) {
        self.bridge.close_deleted_snapshots();
    }

    fn mount_view(&self, id: u64, owner: u32, view: Arc<FileSystem>) -> Result<Box<dyn ViewMount>> {
        let (point, device) = self.store.mount_view(id, self.options_for(owner))?;
        self.serve(view, device, None, Some(point), Some((self.store.clone(), id)))
    }

    fn view_path(&self, id: u64) -> PathBuf {
        self.store.view_name(id)
    }

    fn copy_view(&self, id: u64) -> Result<OwnedFd> {
        self.store.copy_view(id)
    }

    fn attach_view(
        &self,
        view: Arc<FileSystem>,
        device: OwnedFd,
        only_ids: Option<(u32, u32)>,
    ) -> Result<Box<dyn ViewMount>> {
        self.serve(view, device, only_ids, None, None)
    }

    fn mount_detached(&self, view: Arc<FileSystem>, owner: u32) -> Result<(OwnedFd, Box<dyn ViewMount>)> {
        let mounted = mount::mount_detached(&self.options_for(owner));
        let (mount, device) = mounted.map_err(|error| explain_mount(&error))?;
        Ok((mount, self.serve(view, device, None, None, None)?))
    }

    fn check_free(&self, dir: &Path) -> Result<()> {
        let refused = |error: CliError| ServiceError::new(error.code.kind(), error.message);
        check_apart(&self.store, dir).map_err(refused)?;
        if !self.is_free(dir) {
            let message = format!("something is mounted on {}; choose another directory", dir.display());
            return Err(ServiceError::new(ErrorKind::MountPoint, message));
        }
        let is_empty = std::fs::read_dir(dir).map(|mut entries| entries.next().is_none());
        if !is_empty.map_err(|error| ServiceError::io("look into", dir, &error))? {
            let message = format!("{} is not empty; choose an empty directory", dir.display());
            return Err(ServiceError::new(ErrorKind::MountPoint, message));
        }
        Ok(())
    }

    fn is_free(&self, dir: &Path) -> bool {
        mount::state(dir) == mount::PointState::Free
    }

    fn mount_branch(
        &self,
        dir: &Path,
        view: Arc<FileSystem>,
        owner: u32,
        point_owner: Option<u32>,
    ) -> Result<Box<dyn ViewMount>> {
        let options = MountOptions { point_owner, ..self.options_for(owner) };
        let (point, device) = mount::mount(dir, &options).map_err(|error| explain_mount(&error))?;
        self.serve(view, device, None, Some(point), None)
    }
}

impl ViewMount for Mounted {
    fn path(&self) -> PathBuf {
        self.point.as_ref().map_or_else(PathBuf::new, |point| point.path().to_owned())
    }

    fn has_ended(&self) -> bool {
        self.view.has_ended()
    }

    fn commit(
        &self,
        view: &Arc<FileSystem>,
        durability: Durability,
        pages_max: Option<Duration>,
    ) -> Result<Position, FsError> {
        self.main.commit(view, Some(self.view.bridge()), durability, pages_max)
    }

    fn write_back(&self, pages_max: Option<Duration>) -> Result<(), FsError> {
        self.view.bridge().write_back(pages_max)
    }

    fn close_deleted_snapshots(&self) {
        self.view.bridge().close_deleted_snapshots();
    }

    fn unmount(&self) -> Result<()> {
        let Some(point) = &self.point else { return Ok(()) };
        point.unmount(Unmount::Clean).map_err(|error| explain_mount(&error))
    }

    fn detach(&self) -> Result<()> {
        let Some(point) = &self.point else { return Ok(()) };
        let detached = point.unmount(Unmount::Lazy).map_err(|error| explain_mount(&error));
        if let Some((store, id)) = &self.directory
            && let Err(error) = store.remove_view(*id)
        {
            tracing::debug!(id, %error, "the directory of a view stays");
        }
        detached
    }

    fn forget(&self) {
        if let Some(point) = &self.point {
            point.forget();
        }
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.view.end().map_err(|error| error.to_string())
    }
}
