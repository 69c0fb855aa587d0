//! Requests about named snapshots.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::transfer::StreamId;
use kvfs_fs::{BeginOptions, Durability, FileSystem, FsError, Isolation, Owner, Restored, TxnId};
use kvfs_store::Store;
use kvfs_store::clock::{Clock, SystemClock};

use super::{Service, page_of};
use crate::control::{Peer, Response, SnapshotLine, SnapshotRequest};
use crate::daemon::Transactions;
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

/// What a restore does in its transaction.
type Work<'a> = &'a dyn Fn(&FileSystem) -> Result<Restored, FsError>;

/// A restore that somebody's transaction is in the way of gives way, rather than wait for people.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);

impl Service {
    pub(super) fn answer_snapshot(
        &self,
        store: &OpenStore,
        peer: &Peer,
        request: SnapshotRequest,
    ) -> Result<Response> {
        match request {
            SnapshotRequest::Create { name, flush } => {
                if let Ok(transactions) = self.transactions()
                    && (flush || transactions.is_writeback())
                {
                    transactions.flush_main_line()?;
                }
                // With the access times that wait.
                store.fs.sync_target_all()?;
                let clock = SystemClock::new();
                let info = store.db.create_snapshot(&name)?;
                let took_us = clock.monotonic().as_micros() as u64;
                tracing::info!(name, position = info.position.0, took_us, "snapshot created");
                Ok(Response::Done)
            }
            SnapshotRequest::Delete { name } => {
                store.db.delete_snapshot(&name)?;
                if let Ok(transactions) = self.transactions() {
                    transactions.close_deleted_snapshots();
                }
                tracing::info!(name, "snapshot deleted");
                Ok(Response::Done)
            }
            SnapshotRequest::List => {
                let line = |info: kvfs_store::SnapshotInfo| SnapshotLine {
                    name: info.name,
                    position: info.position.0,
                    created: info.created,
                };
                let lines = store.db.named_snapshots().into_iter().map(line).collect();
                Ok(Response::Snapshots { now: SystemClock::new().wall(), lines })
            }
            SnapshotRequest::Diff { before, after, from, limit } => {
                let (before, after) = (store.view_at(before.as_deref())?, store.view_at(after.as_deref())?);
                Ok(page_of(&after.diff_from(&before)?, from, limit))
            }
            SnapshotRequest::Send { from, to } => store.sending(from.as_deref(), &to),
            SnapshotRequest::SendAgain { stream } => store.sending_again(StreamId(stream)),
            SnapshotRequest::SendFrames { stream, offset } => {
                self.send_frames(store, peer, StreamId(stream), offset)
            }
            SnapshotRequest::Restore { name, paths } => {
                let then = store.view_at(Some(&name))?;
                let paths: Vec<Bytes> = paths.into_iter().map(Bytes::from).collect();
                let work: Work<'_> = &|view| match &paths[..] {
                    [] => view.restore(&then),
                    paths => view.restore_paths(&then, paths),
                };
                let (txn, restored) = match self.transactions() {
                    Ok(transactions) => transactions.restore(peer, &name, work)?,
                    Err(_) => store.restore(peer, &name, work)?,
                };
                tracing::info!(name, %txn, "snapshot restored");
                let Restored { names, inodes, keys } = restored;
                Ok(Response::Restored { txn: txn.0, names, inodes, keys })
            }
        }
    }
}

impl OpenStore {
    /// The state at the snapshot of that name; `None`: of now.
    fn view_at(&self, name: Option<&str>) -> Result<Arc<FileSystem>> {
        let snapshot = match name {
            Some(name) => self.db.open_snapshot(name)?,
            None => self.db.snapshot()?,
        };
        Ok(self.fs.view_of(snapshot)?)
    }

    /// Restores where no kernel has to hear of it.
    fn restore(&self, peer: &Peer, name: &str, work: Work<'_>) -> Result<(TxnId, Restored)> {
        let view = self.fs.begin(&restoring(peer, name))?;
        let restored = work(&view)?;
        view.freeze()?;
        view.commit_plan()?;
        view.commit(Durability::Synced, || ())?.durable?;
        Ok((view.txn_id().unwrap_or(TxnId(0)), restored))
    }
}

/// How a restore's transaction begins.
pub(crate) fn restoring(peer: &Peer, name: &str) -> BeginOptions {
    BeginOptions {
        isolation: Isolation::Snapshot,
        priority: 0,
        timeout: None,
        lock_wait_max: Some(LOCK_WAIT_MAX),
        owner: Owner { uid: peer.uid, pid: peer.pid, name: format!("snapshot restore {name}") },
    }
}

impl Transactions {
    /// Does the `work` of a restore in a transaction of its own.
    fn restore(&self, peer: &Peer, name: &str, work: Work<'_>) -> Result<(TxnId, Restored)> {
        let mut restored = Restored::default();
        let id = self.carry_out(&restoring(peer, name), |view| {
            restored = work(view)?;
            Ok(())
        });
        let id = id.map_err(|error| match error.code {
            Code::NoSpace => CliError::new(error.code, format!("{}; nothing was restored", error.message)),
            _ => error,
        })?;
        Ok((id, restored))
    }
}
