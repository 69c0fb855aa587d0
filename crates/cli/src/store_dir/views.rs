//! Where views of transactions are mounted: `views/ID`, in a directory that is this process's user's alone.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use kvfs_fuse::mount::{self, MountOptions, MountPoint};
use kvfs_service::{Result, ServiceError};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use super::{DIRECTORY, StoreDir, effective_uid};
use crate::daemon::explain_mount;

const VIEWS: &str = "views";

impl StoreDir {
    /// Mounts on a new directory for the view of a transaction.
    pub(crate) fn mount_view(&self, id: u64, options: MountOptions) -> Result<(MountPoint, OwnedFd)> {
        let name = OsString::from(id.to_string());
        let path = self.view_name(id);
        let failed = |error: io::Error| ServiceError::io("make", &path, &error);
        let views = self.views().map_err(failed)?;
        match rustix::fs::mkdirat(&views, &name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        let options = MountOptions { point_owner: Some(effective_uid()), ..options };
        mount::mount_beneath(views, &name, path, &options).map_err(|error| explain_mount(&error))
    }

    /// A mount of a mounted view, attached nowhere.
    pub(crate) fn copy_view(&self, id: u64) -> Result<OwnedFd> {
        let (name, path) = (OsString::from(id.to_string()), self.view_name(id));
        let views = self.views().map_err(|error| ServiceError::io("enter", &path, &error))?;
        mount::copy_beneath(views, &name, path).map_err(|error| explain_mount(&error))
    }

    /// What messages and programs call the directory of a view.
    pub(crate) fn view_name(&self, id: u64) -> PathBuf {
        self.path().join(VIEWS).join(id.to_string())
    }

    /// Removes the directory of a view.
    pub(crate) fn remove_view(&self, id: u64) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self.views()?, id.to_string(), AtFlags::REMOVEDIR)?)
    }

    /// The directory of the views, made when missing.
    fn views(&self) -> io::Result<OwnedFd> {
        let unfit = |what: &str| {
            let message = format!("{} is {what}; remove it", self.path().join(VIEWS).display());
            io::Error::new(io::ErrorKind::PermissionDenied, message)
        };
        // An empty one is left where another user has had the store mounted.
        for has_removed in [false, true] {
            match rustix::fs::mkdirat(self.directory(), VIEWS, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            let views = match rustix::fs::openat(self.directory(), VIEWS, DIRECTORY, Mode::empty()) {
                Err(Errno::LOOP | Errno::NOTDIR) => return Err(unfit("not a directory")),
                opened => opened?,
            };
            let found = rustix::fs::fstat(&views)?;
            if found.st_uid == effective_uid() && found.st_mode & 0o022 == 0 {
                return Ok(views);
            }
            if has_removed || rustix::fs::unlinkat(self.directory(), VIEWS, AtFlags::REMOVEDIR).is_err() {
                break;
            }
        }
        Err(unfit("open to another user"))
    }
}
