//! Named snapshots: made, hidden, deleted, listed, restored, compared; and sent (`send`).
//!
//! Thread safety: for threads that may block. Invariant: a private snapshot is not there for those that it is
//! not shown to.

mod send;

use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{FileSystem, FsError, Pause, Restored, TxnId};
use kvfs_store::SnapshotInfo;
use kvfs_store::clock::{Clock, SystemClock};

use crate::authority::{authorize, is_master};
use crate::caller::Caller;
use crate::comparisons::Comparison;
use crate::error::Result;
use crate::lines::SnapshotLine;
use crate::served::{ServedStore, begin_for, or_nothing};

pub use send::{Frames, StreamOffer, Streams};

impl ServedStore<'_> {
    /// Makes a snapshot of everything that was acknowledged; with `flush`, of dirty pages of shared mappings,
    /// too. A private one is shown to root and the store's owner alone.
    ///
    /// # Errors
    /// The caller may not; the name is taken, or none; as a sync.
    pub fn create_snapshot(&self, caller: &Caller, name: &str, flush: bool, private: bool) -> Result<()> {
        self.admit(caller)?;
        self.flush_main_line(flush)?;
        // With the access times that wait.
        self.fs.sync_target_all()?;
        let clock = SystemClock::new();
        let info = self.fs.snapshots().create(name, private)?;
        let took_us = clock.monotonic().as_micros() as u64;
        tracing::info!(name, position = info.position.0, took_us, "snapshot created");
        Ok(())
    }

    /// Shows a snapshot to root and the store's owner alone, or to all users.
    ///
    /// # Errors
    /// The caller may not; there is none.
    pub fn set_snapshot_private(&self, caller: &Caller, name: &str, private: bool) -> Result<()> {
        self.admit(caller)?;
        self.fs.snapshots().set_private(name, private)?;
        tracing::info!(name, private, "snapshot changed");
        Ok(())
    }

    /// Deletes a snapshot; where `.kvfs` shows it, it is shown no more.
    ///
    /// # Errors
    /// The caller may not; there is none.
    pub fn delete_snapshot(&self, caller: &Caller, name: &str) -> Result<()> {
        self.admit(caller)?;
        self.fs.snapshots().delete(name)?;
        if let Some(transactions) = self.transactions {
            transactions.close_deleted_snapshots();
        }
        tracing::info!(name, "snapshot deleted");
        Ok(())
    }

    /// Those that are shown to the caller. Every user may ask.
    pub fn snapshots(&self, caller: &Caller) -> Vec<SnapshotLine> {
        let line = |info: SnapshotInfo| SnapshotLine {
            is_private: self.fs.snapshots().is_private(&info.name),
            name: info.name,
            position: info.position.0,
            created: info.created,
        };
        shown_snapshots(self.fs, caller.uid).into_iter().map(line).collect()
    }

    /// Brings back the state of a snapshot: everything, or what these paths lead to, from the root of the
    /// store. Returns the transaction that did.
    ///
    /// # Errors
    /// The caller may not, or has gone; there is no such snapshot or path; nothing was restored.
    pub fn restore_snapshot(
        &self,
        caller: &Caller,
        name: &str,
        paths: &[Bytes],
    ) -> Result<(TxnId, Restored)> {
        self.admit(caller)?;
        let then = self.view_at(Some(name))?;
        let _pause = Pause::of(self.fs);
        let mut restored = Restored::default();
        let work = |view: &FileSystem| -> Result<(), FsError> {
            restored = self.defrag.while_wanted(caller, || {
                if paths.is_empty() {
                    kvfs_fs::restore(view, &then)
                } else {
                    kvfs_fs::restore_paths(view, &then, paths)
                }
            })?;
            Ok(())
        };
        let done = self.carry_out(&begin_for(caller, format!("snapshot restore {name}")), work);
        let txn = if self.transactions.is_some() { or_nothing(done, "nothing was restored")? } else { done? };
        tracing::info!(name, %txn, "snapshot restored");
        Ok((txn, restored))
    }

    /// What differs between two sides; no name: now.
    ///
    /// # Errors
    /// The caller may not; there is no such snapshot; store errors.
    pub fn compare_snapshots(
        &self,
        caller: &Caller,
        before: Option<&str>,
        after: Option<&str>,
    ) -> Result<Comparison> {
        self.admit(caller)?;
        Ok(Comparison::of_views(self.view_at(before)?, self.view_at(after)?))
    }

    /// Refuses a caller that may not work with snapshots. Those that may are shown all of them.
    fn admit(&self, caller: &Caller) -> Result<()> {
        authorize(self.fs, caller, "make, delete, compare, restore and send snapshots")
    }

    /// The state at the snapshot of that name; `None`: of now.
    fn view_at(&self, name: Option<&str>) -> Result<Arc<FileSystem>> {
        let snapshot = match name {
            Some(name) => self.fs.store().open_snapshot(name)?,
            None => self.fs.store().snapshot()?,
        };
        Ok(self.fs.view_of(snapshot)?)
    }
}

/// The named snapshots that user `uid` may see, oldest first.
pub fn shown_snapshots(fs: &FileSystem, uid: u32) -> Vec<SnapshotInfo> {
    // To root all are shown.
    fs.snapshots().shown_to(if is_master(fs, uid) { 0 } else { uid })
}

#[cfg(test)]
mod tests;
