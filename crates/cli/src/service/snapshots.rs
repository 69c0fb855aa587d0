//! Requests about named snapshots.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::transfer::StreamId;
use kvfs_fs::{BeginOptions, DiffStream, Durability, FileSystem, FsError, Isolation, Owner, Restored, TxnId};
use kvfs_service::{Caller, ErrorKind, Transactions};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{NamedSnapshots, Store, StoreError};

use super::{PAGE_BYTES_MAX, Service, change_line};
use crate::control::{Peer, Response, SnapshotLine, SnapshotRequest};
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

/// What a restore does in its transaction.
type Work<'a> = &'a dyn Fn(&FileSystem) -> Result<Restored, FsError>;

/// A restore that meets an open transaction gives way, rather than wait for people.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);

impl Service {
    pub(super) fn answer_snapshot(
        &self,
        store: &OpenStore,
        peer: &Peer,
        request: SnapshotRequest,
    ) -> Result<Response> {
        let caller = &peer.caller;
        for name in request.names() {
            store.check_shown(caller, name)?;
        }
        match request {
            SnapshotRequest::Create { name, flush, private } => {
                if let Ok(transactions) = self.transactions()
                    && (flush || transactions.is_writeback())
                {
                    transactions.flush_main_line()?;
                }
                // With the access times that wait.
                store.fs.sync_target_all()?;
                let clock = SystemClock::new();
                let info = store.fs.snapshots().create(&name, private)?;
                let took_us = clock.monotonic().as_micros() as u64;
                tracing::info!(name, position = info.position.0, took_us, "snapshot created");
                Ok(Response::Done)
            }
            SnapshotRequest::SetPrivate { name, private } => {
                store.fs.snapshots().set_private(&name, private)?;
                tracing::info!(name, private, "snapshot changed");
                Ok(Response::Done)
            }
            SnapshotRequest::Delete { name } => {
                store.fs.snapshots().delete(&name)?;
                if let Ok(transactions) = self.transactions() {
                    transactions.close_deleted_snapshots();
                }
                tracing::info!(name, "snapshot deleted");
                Ok(Response::Done)
            }
            SnapshotRequest::List => {
                let line = |info: kvfs_store::SnapshotInfo| SnapshotLine {
                    is_private: store.fs.snapshots().is_private(&info.name),
                    name: info.name,
                    position: info.position.0,
                    created: info.created,
                };
                let lines = store.fs.snapshots().shown_to(caller.uid).into_iter().map(line).collect();
                Ok(Response::Snapshots { now: SystemClock::new().wall(), lines })
            }
            SnapshotRequest::Diff { before, after, from, limit } => {
                self.compare_snapshots(store, caller, (before, after), from, limit)
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
                    [] => kvfs_fs::restore(view, &then),
                    paths => kvfs_fs::restore_paths(view, &then, paths),
                };
                let (txn, restored) = match self.transactions() {
                    Ok(transactions) => restore_in(transactions, caller, &name, work)?,
                    Err(_) => store.restore(caller, &name, work)?,
                };
                tracing::info!(name, %txn, "snapshot restored");
                let Restored { names, inodes, keys } = restored;
                Ok(Response::Restored { txn: txn.0, names, inodes, keys })
            }
        }
    }
}

/// A comparison of which a connection has not had all pages.
pub(super) struct KeptComparison {
    uid: u32,
    /// The names of both sides.
    sides: (Option<String>, Option<String>),
    stream: DiffStream<Arc<FileSystem>>,
}

impl Service {
    /// The lines from `from` on. The comparison is kept for the next page, one for each user; without it, it begins anew.
    fn compare_snapshots(
        &self,
        store: &OpenStore,
        caller: &Caller,
        sides: (Option<String>, Option<String>),
        from: u64,
        limit: u64,
    ) -> Result<Response> {
        let kept = self.comparisons.lock().remove(&caller.number);
        let fits = |kept: &KeptComparison| kept.sides == sides && kept.stream.position() == from;
        let mut stream = if let Some(kept) = kept.filter(fits) {
            kept.stream
        } else {
            DiffStream::new(store.view_at(sides.0.as_deref())?, store.view_at(sides.1.as_deref())?)
        };
        while stream.position() < from && !stream.is_through() {
            let left = usize::try_from(from - stream.position()).unwrap_or(usize::MAX);
            stream.next_page(left, PAGE_BYTES_MAX)?;
        }
        let lines_max = usize::try_from(limit).unwrap_or(usize::MAX).max(1);
        let lines: Vec<_> = stream.next_page(lines_max, PAGE_BYTES_MAX)?.iter().map(change_line).collect();
        let more = !stream.is_through();
        if more {
            let mut kept = self.comparisons.lock();
            kept.retain(|_, other| other.uid != caller.uid);
            kept.insert(caller.number, KeptComparison { uid: caller.uid, sides, stream });
        }
        Ok(Response::Diff { lines, more })
    }
}

impl SnapshotRequest {
    /// The snapshots that it is about.
    fn names(&self) -> Vec<&str> {
        match self {
            Self::SetPrivate { name, .. } | Self::Delete { name } | Self::Restore { name, .. } => vec![name],
            Self::Diff { before, after, .. } => before.iter().chain(after).map(String::as_str).collect(),
            Self::Send { from, to } => from.iter().chain([to]).map(String::as_str).collect(),
            Self::Create { .. } | Self::List | Self::SendAgain { .. } | Self::SendFrames { .. } => Vec::new(),
        }
    }
}

impl OpenStore {
    /// What is not shown to `caller` is not there for it. A name without a snapshot is told of by the request itself.
    fn check_shown(&self, caller: &Caller, name: &str) -> Result<()> {
        let is_shown = self.fs.snapshots().shown_to(caller.uid).iter().any(|info| info.name == name);
        if !is_shown && self.fs.snapshots().is_private(name) {
            return Err(StoreError::NoSnapshot(name.to_owned()).into());
        }
        Ok(())
    }

    /// The state at the snapshot of that name; `None`: of now.
    fn view_at(&self, name: Option<&str>) -> Result<Arc<FileSystem>> {
        let snapshot = match name {
            Some(name) => self.db.open_snapshot(name)?,
            None => self.db.snapshot()?,
        };
        Ok(self.fs.view_of(snapshot)?)
    }

    /// Restores where no kernel has to hear of it.
    fn restore(&self, caller: &Caller, name: &str, work: Work<'_>) -> Result<(TxnId, Restored)> {
        let view = self.fs.begin(&restoring(caller, name))?;
        let restored = work(&view)?;
        view.freeze()?;
        view.commit_plan()?;
        view.commit(Durability::Synced, || ())?.durable?;
        Ok((view.txn_id().unwrap_or(TxnId(0)), restored))
    }
}

/// How a restore's transaction begins.
pub(crate) fn restoring(caller: &Caller, name: &str) -> BeginOptions {
    BeginOptions {
        isolation: Isolation::Snapshot,
        priority: 0,
        timeout: None,
        idle_max: None,
        lock_wait_max: Some(LOCK_WAIT_MAX),
        owner: Owner { uid: caller.uid, pid: caller.pid, name: format!("snapshot restore {name}") },
    }
}

/// Does the `work` of a restore in a transaction of its own.
fn restore_in(
    transactions: &Transactions,
    caller: &Caller,
    name: &str,
    work: Work<'_>,
) -> Result<(TxnId, Restored)> {
    let mut restored = Restored::default();
    let id = transactions.carry_out(&restoring(caller, name), |view| {
        restored = work(view)?;
        Ok(())
    });
    let id = id.map_err(|error| match error.kind() {
        ErrorKind::NoSpace => CliError::new(Code::NoSpace, format!("{error}; nothing was restored")),
        _ => error.into(),
    })?;
    Ok((id, restored))
}
