//! A store that no kernel shows: commits go on, views can be mounted nowhere.
//!
//! Thread safety: shared; holds nothing.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{Durability, FileSystem, FsError, Position};

use crate::error::{ErrorKind, Result, ServiceError};
use crate::mounts::{Mounts, ViewMount};

/// See the module.
#[derive(Debug, Default)]
pub struct NoMounts {
    is_writeback: bool,
    #[cfg(test)]
    instead_of_commit: Option<fn(&FileSystem) -> FsError>,
    #[cfg(test)]
    of_branches: Option<Arc<crate::testing::BranchMounts>>,
}

impl NoMounts {
    /// As where the kernel kept dirty pages.
    #[cfg(test)]
    pub(crate) fn with_writeback(is_writeback: bool) -> Self {
        Self { is_writeback, ..Self::default() }
    }

    /// As where commits fail, by this.
    #[cfg(test)]
    pub(crate) fn with_commit(instead: fn(&FileSystem) -> FsError) -> Self {
        Self { instead_of_commit: Some(instead), ..Self::default() }
    }

    /// Where branches can be mounted.
    #[cfg(test)]
    pub(crate) fn with_branches(self, mounts: &Arc<crate::testing::BranchMounts>) -> Self {
        Self { of_branches: Some(Arc::clone(mounts)), ..self }
    }
}

fn none<T>() -> Result<T> {
    let message = "the store is served without a mount (`kvfs serve`); this needs `kvfs mount`";
    Err(ServiceError::new(ErrorKind::NotMounted, message))
}

impl Mounts for NoMounts {
    fn has_kernel(&self) -> bool {
        false
    }

    fn is_writeback(&self) -> bool {
        self.is_writeback
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
        #[cfg(test)]
        if let Some(instead) = self.instead_of_commit {
            return Err(instead(view));
        }
        view.expect_txn()?.freeze()?.plan()?.commit(|| ())?.harden(durability)
    }

    fn close_deleted_snapshots(&self) {}

    fn mount_view(&self, _: u64, _: u32, _: Arc<FileSystem>) -> Result<Box<dyn ViewMount>> {
        none()
    }

    fn view_path(&self, _: u64) -> PathBuf {
        PathBuf::new()
    }

    fn copy_view(&self, _: u64) -> Result<OwnedFd> {
        none()
    }

    fn attach_view(
        &self,
        _: Arc<FileSystem>,
        _: OwnedFd,
        _: Option<(u32, u32)>,
    ) -> Result<Box<dyn ViewMount>> {
        none()
    }

    fn mount_detached(&self, _: Arc<FileSystem>, _: u32) -> Result<(OwnedFd, Box<dyn ViewMount>)> {
        none()
    }

    fn check_free(&self, _: &Path) -> Result<()> {
        #[cfg(test)]
        if self.of_branches.is_some() {
            return Ok(());
        }
        none()
    }

    fn is_free(&self, _: &Path) -> bool {
        true
    }

    fn mount_branch(
        &self,
        dir: &Path,
        view: Arc<FileSystem>,
        _: u32,
        _: Option<u32>,
    ) -> Result<Box<dyn ViewMount>> {
        #[cfg(test)]
        if let Some(of_branches) = &self.of_branches {
            return Ok(crate::testing::BranchMounts::mount(of_branches, dir, view));
        }
        let _ = (dir, view);
        none()
    }
}
