//! The kernel side of a store, as the registry of transactions and the branches need it: what a front end
//! with mounts does for them.
//!
//! Thread safety: called by threads that may block, never by workers of a mount. Invariant: a view that was
//! given to a front end is served until [`ViewMount::end`], and no longer.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{Durability, FileSystem, FsError, Position};

use crate::error::{Result, ServiceError};

/// The mount of the main line, which makes those of views.
pub trait Mounts: Send + Sync + 'static {
    /// Whether views can be mounted at all.
    fn has_kernel(&self) -> bool {
        true
    }

    /// Whether the kernel keeps dirty pages of ordinary writes.
    fn is_writeback(&self) -> bool;

    /// Has the kernel write out every dirty page of the main line, of shared mappings too.
    ///
    /// # Errors
    /// That of a page that could not be written.
    fn write_back(&self) -> Result<(), FsError>;

    /// Commits a view that is not mounted. When this returns, every user of the main line sees the changes,
    /// and nothing older. `pages_max`: see [`ViewMount::commit`]. After a failure the view is open again, or
    /// over.
    ///
    /// # Errors
    /// As [`kvfs_fs::PlannedCommit::commit`].
    fn commit(
        &self,
        view: &Arc<FileSystem>,
        durability: Durability,
        pages_max: Option<Duration>,
    ) -> Result<Position, FsError>;

    /// Ends the views of deleted snapshots that the kernel side of the main line has.
    fn close_deleted_snapshots(&self);

    /// Mounts the view of transaction `id`, user `owner`'s, below the store's directory.
    ///
    /// # Errors
    /// It can't be mounted.
    fn mount_view(&self, id: u64, owner: u32, view: Arc<FileSystem>) -> Result<Box<dyn ViewMount>>;

    /// Where [`Mounts::mount_view`] mounts a view.
    fn view_path(&self, id: u64) -> PathBuf;

    /// A mount of a view that is mounted below the store's directory, attached nowhere.
    ///
    /// # Errors
    /// The kernel refuses.
    fn copy_view(&self, id: u64) -> Result<OwnedFd>;

    /// Serves a view on the connection of `device`, which its owner has mounted. The kernel side knows
    /// `only_ids` alone, if there are any.
    ///
    /// # Errors
    /// The connection does not come up.
    fn attach_view(
        &self,
        view: Arc<FileSystem>,
        device: OwnedFd,
        only_ids: Option<(u32, u32)>,
    ) -> Result<Box<dyn ViewMount>>;

    /// Makes a mount of a view of user `owner`'s, attached nowhere.
    ///
    /// # Errors
    /// It can't be mounted.
    fn mount_detached(&self, view: Arc<FileSystem>, owner: u32) -> Result<(OwnedFd, Box<dyn ViewMount>)>;

    /// Refuses a directory that no branch can be mounted on. As slow as the file system that it lies on.
    ///
    /// # Errors
    /// Why it can't.
    fn check_free(&self, dir: &Path) -> Result<()>;

    /// Whether nothing is mounted on the directory.
    fn is_free(&self, dir: &Path) -> bool;

    /// Mounts a view of user `owner`'s on a directory, which must be `point_owner`'s, if one is given.
    ///
    /// # Errors
    /// It can't be mounted.
    fn mount_branch(
        &self,
        dir: &Path,
        view: Arc<FileSystem>,
        owner: u32,
        point_owner: Option<u32>,
    ) -> Result<Box<dyn ViewMount>>;
}

/// The kernel side of a view.
pub trait ViewMount: Send {
    /// Where this process has mounted it; empty: its owner has mounted it.
    fn path(&self) -> PathBuf;

    /// Whether it is mounted nowhere any more.
    fn has_ended(&self) -> bool;

    /// As [`Mounts::commit`], for the view behind this. `pages_max`: how long its dirty pages may take, at
    /// about.
    ///
    /// # Errors
    /// As [`kvfs_fs::PlannedCommit::commit`]; `PagesWait`: the pages take longer, and go on.
    fn commit(
        &self,
        view: &Arc<FileSystem>,
        durability: Durability,
        pages_max: Option<Duration>,
    ) -> Result<Position, FsError>;

    /// Has the kernel write out every dirty page of the view. `pages_max`: as for [`Self::commit`], beside
    /// what each known file may take.
    ///
    /// # Errors
    /// That of a page that could not be written; `PagesWait`: they take longer, and go on.
    fn write_back(&self, pages_max: Option<Duration>) -> Result<(), FsError>;

    /// Ends the views of deleted snapshots that this kernel side has.
    fn close_deleted_snapshots(&self);

    /// Unmounts it, unless it is in use.
    ///
    /// # Errors
    /// It is in use; the kernel refuses.
    fn unmount(&self) -> Result<()>;

    /// Unmounts it where this process has mounted it, in use or not.
    ///
    /// # Errors
    /// The kernel refuses.
    fn detach(&self) -> Result<()>;

    /// It was unmounted from outside: nothing is to be unmounted any more.
    fn forget(&self);

    /// Ends the connection. The view has been committed or aborted before: that is what answers every waiting
    /// request.
    ///
    /// # Errors
    /// In words: the connection had failed before.
    fn end(self: Box<Self>) -> Result<(), String>;
}

/// What transactions and branches need of the mount that they belong to.
#[derive(Clone)]
pub struct MainLine {
    /// The main line.
    pub fs: Arc<FileSystem>,
    /// Its kernel side.
    pub mounts: Arc<dyn Mounts>,
    /// Views of transactions that users other than root may have mounted in all.
    pub views_max: usize,
}

impl MainLine {
    /// Under a kernel that keeps dirty pages and owns sizes and times nothing may change files behind its
    /// back.
    pub(crate) fn check_files(&self) -> Result<()> {
        if self.mounts.is_writeback() { Err(ServiceError::NoFiles) } else { Ok(()) }
    }
}
