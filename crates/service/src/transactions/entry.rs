//! One open transaction.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{FileSystem, Owner, TxnView};

use super::Transactions;
use super::limits::Slot;
use super::taken::{Taken, Use};
use crate::caller::Connection;
use crate::lines::TxnLine;
use crate::mounts::ViewMount;

/// A connection that a transaction is tied to: its number, and a handle to cut it, if that is for us to do.
pub(super) type Line = (u64, Option<Arc<dyn Connection>>);

pub(super) struct Entry {
    pub(super) view: Arc<FileSystem>,
    pub(super) owner: Owner,
    pub(super) serializable: bool,
    /// By the registry's clock.
    pub(super) begun: Duration,
    pub(super) line: Option<Line>,
    pub(super) view_mount: Option<ServedView>,
    pub(super) used: Use,
    pub(super) _slot: Slot,
}

impl Entry {
    /// Whether the end of the connection of this number is its end.
    pub(super) fn is_tied_to(&self, line: u64) -> bool {
        self.line.as_ref().is_some_and(|(number, _)| *number == line)
    }

    /// For a thread that found it free.
    pub(super) fn take<'t>(&mut self, of: &'t Transactions, id: u64, what: &'static str) -> Taken<'t> {
        self.used = Use::Taken(what);
        Taken::new(of, id, Arc::clone(&self.view), self.view_mount.take())
    }

    /// A control connection mounts the view of its transaction itself.
    pub(super) fn is_run(&self) -> bool {
        matches!(self.line, Some((_, Some(_))))
    }

    /// Its view is, or will be, below the store's directory.
    pub(super) fn is_shown(&self) -> bool {
        !self.is_run() && self.used == Use::Free
    }

    pub(super) fn line(&self, id: u64, now: Duration) -> TxnLine {
        let stats = self.view.txn().map(TxnView::stats).unwrap_or_default();
        let state = match (self.used.what(), self.view.txn().and_then(TxnView::doom)) {
            (Some(what), _) => what.to_owned(),
            (None, Some(doom)) => format!("doomed: {}", self.view.lock_words().explain(&doom)),
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
                .view_mount
                .as_ref()
                .map_or_else(Vec::new, |view_mount| view_mount.path().as_os_str().as_bytes().to_vec()),
        }
    }
}

/// The kernel side of a view, with the slot that it takes.
pub(super) struct ServedView {
    pub(super) mount: Box<dyn ViewMount>,
    _slot: Slot,
}

impl ServedView {
    pub(super) fn new(mount: Box<dyn ViewMount>, slot: Slot) -> Self {
        Self { mount, _slot: slot }
    }

    /// Where the daemon has mounted it; else empty.
    pub(super) fn path(&self) -> PathBuf {
        self.mount.path()
    }

    /// Takes everything down. The transaction has ended before.
    pub(super) fn end(self, id: u64) {
        if let Err(error) = self.mount.detach() {
            tracing::warn!(id, %error, "the view of a transaction stays mounted");
        }
        if let Err(error) = self.mount.end() {
            tracing::warn!(id, %error, "the connection of a view ended badly");
        }
        tracing::debug!(id, "view ended");
    }
}
