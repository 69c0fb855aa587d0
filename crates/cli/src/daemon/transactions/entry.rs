//! One open transaction.

use std::fs::DirBuilder;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{FileSystem, Owner};
use kvfs_fuse::bridge::View;
use kvfs_fuse::mount::{self, MountPoint, Unmount};

use super::{MainLine, view_options};
use crate::control::TxnLine;
use crate::daemon::explain_mount;
use crate::error::{CliError, Result};
use crate::store_dir::StoreDir;

/// A connection that a transaction is tied to: its number, and a handle to cut it, if that is for us to do.
pub(super) type Line = (u64, Option<UnixStream>);

pub(super) struct Entry {
    pub(super) view: Arc<FileSystem>,
    pub(super) owner: Owner,
    pub(super) serializable: bool,
    /// By the registry's clock.
    pub(super) begun: Duration,
    pub(super) line: Option<Line>,
    /// That connection has ended while somebody was busy with the transaction.
    pub(super) is_deserted: bool,
    pub(super) seat: Option<Seat>,
    /// What somebody is doing to it.
    pub(super) busy: Option<&'static str>,
}

impl Entry {
    /// A control connection seats its transaction itself.
    pub(super) fn is_run(&self) -> bool {
        matches!(self.line, Some((_, Some(_))))
    }

    /// Its view is, or will be, below the store's directory.
    pub(super) fn is_shown(&self) -> bool {
        !self.is_run() && self.busy.is_none()
    }

    pub(super) fn line(&self, id: u64, now: Duration) -> TxnLine {
        let stats = self.view.txn_stats().unwrap_or_default();
        let state = match (self.busy, self.view.doom()) {
            (Some(busy), _) => busy.to_owned(),
            (None, Some(doom)) => format!("doomed: {}", self.view.explain(&doom)),
            (None, None) => "open".to_owned(),
        };
        TxnLine {
            id,
            serializable: self.serializable,
            uid: self.owner.uid,
            pid: self.owner.pid,
            label: self.owner.name.clone(),
            age: now.saturating_sub(self.begun),
            state,
            operations: stats.operations,
            bytes_written: stats.bytes_written,
            locks: 0,
            view: self
                .seat
                .as_ref()
                .map_or_else(Vec::new, |seat| seat.path().as_os_str().as_bytes().to_vec()),
        }
    }
}

/// The kernel side of a view.
pub(super) struct Seat {
    pub(super) view: View,
    /// Where the daemon has mounted it; its owner may have mounted it for himself.
    pub(super) point: Option<MountPoint>,
}

impl Seat {
    /// Mounts the view below the store's directory.
    pub(super) fn mount(main: &MainLine, store: &StoreDir, id: u64, view: Arc<FileSystem>) -> Result<Self> {
        let dir = store.view_path(id);
        DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&dir)
            .map_err(|error| CliError::io("make", &dir, &error))?;
        let options = view_options(&main.mount, store);
        let (point, device) = mount::mount(&dir, &options).map_err(|error| explain_mount(&error))?;
        Ok(Self { view: main.serve(view, device, None)?, point: Some(point) })
    }

    /// Where the daemon has mounted it; else empty.
    pub(super) fn path(&self) -> PathBuf {
        self.point.as_ref().map_or_else(PathBuf::new, |point| point.path().to_owned())
    }

    /// Takes everything down. The transaction has ended before.
    pub(super) fn end(self, id: u64) {
        if let Some(point) = &self.point {
            if let Err(error) = point.unmount(Unmount::Lazy) {
                tracing::warn!(id, %error, "the view of a transaction stays mounted");
            }
            let removed = std::fs::remove_dir(point.path());
            if let Err(error) = removed {
                tracing::debug!(id, %error, "the directory of a view stays");
            }
        }
        if let Err(error) = self.view.end() {
            tracing::warn!(id, %error, "the connection of a view ended badly");
        }
        tracing::debug!(id, "view ended");
    }
}
