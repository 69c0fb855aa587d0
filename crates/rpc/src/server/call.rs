//! What every request carries, and how its work gets on a thread that may block.
//!
//! Thread safety: plain values, shared.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kvfs_fs::{Caller, FileSystem, Position, Ticket, hold_state};
use tokio::sync::oneshot;
use tonic::{Request, Status};

use super::Shared;
use super::failure::{Failure, of_store};
use super::peer::Peer;
use super::report::Report;
use super::unread::Unread;
use super::users::{Hold, User};
use crate::proto;

/// A request: the client, and how long it waits. Goes with the request as an extension.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) peer: Arc<Peer>,
    pub(super) user: Arc<User>,
    pub(super) timeout: Option<Duration>,
    /// Whether the connection has ended.
    pub(super) is_over: Arc<AtomicBool>,
    /// Answers of the connection that wait to be taken.
    pub(super) unread: Arc<Unread>,
    /// What will be reported of it.
    pub(super) report: Arc<Report>,
}

impl Call {
    pub(super) fn of<T>(request: &Request<T>) -> Result<Self, Status> {
        let call = request.extensions().get::<Self>().cloned();
        call.ok_or_else(|| Status::internal("the request came from nowhere"))
    }

    /// Room for an answer of so many bytes; give it to the answer.
    pub(super) fn hold(&self, bytes: usize) -> Result<Arc<Hold>, Status> {
        let mut hold = Hold::of_answer(&self.user, self.unread.mark());
        if !hold.try_grow(bytes) {
            return Err(Status::resource_exhausted("too many answers were not taken yet; take them first"));
        }
        Ok(Arc::new(hold))
    }

    /// As operations of the file system know it.
    pub(super) fn caller(&self, ticket: Option<Ticket>) -> Caller {
        let Peer { uid, gid, pid, .. } = *self.peer;
        Caller { uid, gid, pid, ticket, ..Caller::default() }
    }
}

impl Shared {
    /// Does something that may block.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        call: &Call,
        work: impl FnOnce(&Self, &Peer) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let turn = Arc::clone(&call.user.turns).acquire_owned().await;
        let turn = turn.map_err(|_| Status::unavailable("the store is being closed"))?;
        let (shared, peer) = (Arc::clone(self), Arc::clone(&call.peer));
        let work = move || {
            let _turn = turn;
            work(&shared, &peer)
        };
        tokio::task::spawn_blocking(work).await.map_err(|error| failed_inside(&error))
    }

    /// The same for what may wait for other requests: without a turn, on a thread that none of these needs.
    pub(super) async fn run_apart<T: Send + 'static>(
        self: &Arc<Self>,
        call: &Call,
        work: impl FnOnce(&Self, &Peer) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let (shared, peer) = (Arc::clone(self), Arc::clone(&call.peer));
        self.apart.run(move || work(&shared, &peer)).await
    }

    /// Does an operation, again and again while a lock is in the way: waiting takes no thread, and ends with
    /// the call.
    pub(super) async fn settle<T: Send + 'static>(
        self: &Arc<Self>,
        call: &Call,
        operation: impl Fn(&Self, &Peer, &Caller) -> Result<T, Failure> + Send + Sync + 'static,
    ) -> Result<T, Status> {
        let operation = Arc::new(operation);
        let mut caller = call.caller(None);
        loop {
            let (attempt, by) = (Arc::clone(&operation), caller.clone());
            let attempt = move |shared: &Self, peer: &Peer| {
                // Rights and keys are of one state.
                let _held = hold_state(&shared.fs);
                attempt(shared, peer, &by)
            };
            match self.run(call, attempt).await? {
                Ok(done) => return Ok(done),
                Err(Failure::Status(status)) => return Err(status),
                Err(Failure::Parked(ticket)) => {
                    call.report.wait();
                    let (ready, waiting) = oneshot::channel();
                    ticket.on_ready(Box::new(move || {
                        // A client that has gone waits no more.
                        let _ = ready.send(());
                    }));
                    // An error: the ticket was given up, and trying again tells why.
                    let _ = waiting.await;
                    caller.ticket = Some(ticket);
                }
            }
        }
    }

    /// Returns when what was done up to `position` is as durable as was asked.
    pub(super) async fn harden(&self, position: Position, durability: i32) -> Result<(), Status> {
        if durability == i32::from(proto::Durability::Asynchronous) || position == Position::default() {
            return Ok(());
        }
        match self.syncer.sync(position).await {
            Some(synced) => synced.map_err(|error| of_store(&error)),
            None => {
                Err(Status::unavailable("the store is being closed; whether it was written is not known"))
            }
        }
    }

    /// Where a call reads: on the main line, in a transaction, or in a named snapshot.
    pub(super) fn view_to_read(
        &self,
        peer: &Peer,
        txn: u64,
        snapshot: &str,
    ) -> Result<Arc<FileSystem>, Failure> {
        if snapshot.is_empty() {
            return self.view(peer, txn);
        }
        if txn != 0 {
            return Err(Status::invalid_argument(
                "a call reads in a transaction or in a snapshot, not in both",
            )
            .into());
        }
        // What is not shown to the caller is not there.
        if !peer.is_master && self.fs.snapshots().is_private(snapshot) {
            return Err(of_store(&kvfs_store::StoreError::NoSnapshot(snapshot.to_owned())).into());
        }
        let snapshot = self.fs.store().open_snapshot(snapshot).map_err(|error| of_store(&error))?;
        self.fs.view_of(snapshot).map_err(|error| Failure::of(&self.fs, error))
    }

    /// The main line, or a transaction of the caller.
    pub(super) fn view(&self, peer: &Peer, txn: u64) -> Result<Arc<FileSystem>, Failure> {
        match txn {
            0 => Ok(Arc::clone(&self.fs)),
            txn => Ok(self.transactions.view(peer, txn)?),
        }
    }
}

/// What is answered where a thread panicked over a request.
pub(super) fn failed_inside(error: &dyn std::fmt::Display) -> Status {
    tracing::error!(%error, "a key-value request failed");
    Status::internal("the request failed inside of the daemon; its log has more")
}
