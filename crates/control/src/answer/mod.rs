//! Answers requests of the control socket from an open store: in the daemon, and in a command that has opened
//! the store itself.
//!
//! Thread safety: shared by all connections. Invariants: no rule of the product is here; an error becomes a
//! number and a message here and nowhere else.

mod branches;
mod changes;
mod quota;
mod snapshots;
mod undo;

use std::path::PathBuf;
use std::sync::Arc;

use kvfs_service::lines::TierRequest;
use kvfs_service::{
    Caller, Checked, ClonedTree, Compared, ErrorKind, Grown, Leave, Remount, RemovedTrees, Result,
    ServedStore, Service, ServiceError, Tiers, clone_tree, inline_threshold, remove_trees,
};
use kvfs_store::Durability;

use crate::peer::Peer;
use crate::protocol::{Request, Response};

/// Where a store is mounted.
#[derive(Debug, Clone, Default)]
pub struct Mounted {
    /// Its mount point.
    pub dir: PathBuf,
    /// What its mounts show as their source.
    pub source: PathBuf,
}

/// What options of a remount change.
type Remounting = dyn Fn(&[String]) -> Result<Remount> + Send + Sync;

/// See the module.
pub struct RequestHandler {
    service: Arc<Service>,
    /// Where it is mounted; nowhere for a command that has opened the store itself.
    mounted: Mounted,
    /// What options of a remount come to, where there is a mount.
    remount: Option<Box<Remounting>>,
    /// Ends the daemon, where no unmount does.
    end: Option<Box<dyn Fn() + Send + Sync>>,
}

impl RequestHandler {
    /// Answers from `service`, which is mounted there.
    pub fn new(service: Arc<Service>, mounted: Mounted) -> Self {
        Self { service, mounted, remount: None, end: None }
    }

    /// The daemon has no mount, and ends by this.
    #[must_use]
    pub fn ended_by(self, end: impl Fn() + Send + Sync + 'static) -> Self {
        Self { end: Some(Box::new(end)), ..self }
    }

    /// The mount takes options while it is there: what they change, or why they are refused.
    #[must_use]
    pub fn remounted_by(
        self,
        remount: impl Fn(&[String]) -> Result<Remount> + Send + Sync + 'static,
    ) -> Self {
        Self { remount: Some(Box::new(remount)), ..self }
    }

    /// The store that it answers from.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Answers a request; a failure is an answer, too.
    pub(crate) fn handle(&self, peer: &Peer, request: Request) -> Response {
        self.answer(peer, request).unwrap_or_else(|error| Response::failed(&error))
    }

    /// The connection has ended.
    pub(crate) fn gone(&self, peer: &Peer) {
        self.service.connection_gone(peer.caller.number);
    }

    /// Answers a request of this process, or of a connection.
    ///
    /// # Errors
    /// Why it was not carried out.
    pub fn answer(&self, peer: &Peer, request: Request) -> Result<Response> {
        // The store is not held while a transaction is served: closing waits for those itself.
        let request = match self.answer_transaction(peer, request)? {
            Ok(response) => return Ok(response),
            Err(request) => request,
        };
        if matches!(request, Request::Hello { .. }) {
            return Ok(if self.service.is_open() { self.serving() } else { Response::Closing });
        }
        if matches!(request, Request::HeldLocks) {
            return Ok(Response::HeldLocks(self.service.held_locks(&peer.caller)?));
        }
        if matches!(request, Request::Health) {
            return Ok(self.service.health().map_or(Response::Closing, Response::Health));
        }
        if matches!(request, Request::TraceNext) {
            let traced = self.service.traced(&peer.caller);
            return Ok(traced.map_or(Response::Closing, |(lines, lost)| Response::Traced { lines, lost }));
        }
        let answered = self.service.with(|store| self.answer_of_store(store, &peer.caller, request));
        answered.unwrap_or(Ok(Response::Closing))
    }

    fn serving(&self) -> Response {
        let Mounted { dir, source } = self.mounted.clone();
        Response::Serving { dir: raw(dir), source: raw(source) }
    }

    fn answer_of_store(
        &self,
        store: &ServedStore<'_>,
        caller: &Caller,
        request: Request,
    ) -> Result<Response> {
        Ok(match request {
            Request::Stats => Response::Stats(store.stats(caller)),
            Request::Operations => Response::Operations(store.operations.lines()),
            Request::Trace(request) => {
                store.trace(caller, &request)?;
                Response::Done
            }
            Request::Check => {
                let Checked { findings, counts } = store.check(caller)?;
                Response::Checked { findings, counts }
            }
            Request::Zones => Response::Zones(store.zones(caller)?),
            Request::Charges => Response::Charges(store.charges(caller)?),
            Request::Snapshot(request) => self.answer_snapshot(store, caller, request)?,
            Request::Undo(request) => self.answer_undo(store, caller, request)?,
            Request::Quota(request) => Self::answer_quota(store, caller, &request)?,
            Request::Branch(request) => self.answer_branch(store, caller, request)?,
            Request::Sync => Response::Synced { branches: store.sync()?.into_iter().map(raw).collect() },
            Request::Grow { bytes } => {
                let Grown { before, after, behind } = store.grow(caller, bytes)?;
                Response::Grown { before, after, behind }
            }
            Request::Defrag(request) if request.dry_run => {
                Response::DefragPlan(store.defrag_plan(caller, request.rewrite)?)
            }
            Request::Defrag(request) => Response::Defragmented(store.defragment(caller, request)?),
            Request::RemoveTrees { paths } => {
                let RemovedTrees { txn, trees, is_kept } = remove_trees(store, caller, &paths)?;
                Response::Removed { txn: txn.0, trees, is_kept }
            }
            Request::CloneTree { source, target } => {
                let ClonedTree { txn, cloned, is_kept } = clone_tree(store, caller, &source, &target)?;
                Response::Cloned { txn: txn.0, names: cloned.names, bytes: cloned.bytes, is_kept }
            }
            Request::Remount { options, is_check } => {
                store.check_may_remount(caller)?;
                let not_mounted = || ServiceError::new(ErrorKind::NotMounted, "the store is mounted nowhere");
                let change = self.remount.as_ref().ok_or_else(not_mounted)?(&options)?;
                if !is_check {
                    store.remount(caller, &change)?;
                }
                Response::Done
            }
            Request::Inline { change } => Response::Inline(inline_threshold(store, caller, change)?),
            Request::Tier(request) => answer_tier(Tiers::of(store), caller, request)?,
            Request::Compression { keyspace, compression } => {
                Response::Compression(store.compression(caller, &keyspace, compression.as_deref())?)
            }
            _ => return Err(ServiceError::new(ErrorKind::Failed, "this is no request for a store")),
        })
    }

    /// Answers what is about transactions as such, and the end of the store; gives anything else back.
    fn answer_transaction(&self, peer: &Peer, request: Request) -> Result<Result<Response, Request>> {
        let (caller, transactions) = (&peer.caller, self.service.transactions());
        let response = match request {
            Request::Begin(begin) => {
                let (id, view) = transactions?.begin_mounted(caller, begin.into())?;
                Response::Begun { id, view: raw(view) }
            }
            Request::Attach { id } => {
                let transactions = transactions?;
                if let Err(refused) = transactions.check_may_attach(caller) {
                    peer.discard_descriptor();
                    return Err(refused);
                }
                let device = peer.receive_descriptor();
                let device =
                    device.map_err(|error| ServiceError::new(ErrorKind::Failed, error.to_string()))?;
                transactions.attach(caller, id, device)?;
                Response::Done
            }
            Request::Mount { id } => {
                peer.give_descriptor(transactions?.mount_detached(caller, id)?);
                Response::Done
            }
            Request::View { id } => Response::Begun { id, view: raw(transactions?.join(caller, id)?) },
            Request::Commit { id, durable } => {
                let durability = if durable { Durability::Synced } else { Durability::Buffered };
                let outcome = self.service.commit(caller, id, durability)?;
                Response::TxnCommitted { has_changes: outcome.has_changes, is_kept: outcome.is_kept }
            }
            Request::Abort { id } => Response::Aborted { doomed: transactions?.abort(caller, id)? },
            Request::Transactions => Response::Transactions(transactions?.list(caller)),
            Request::Diff { id, from, limit } => {
                let transactions = transactions?;
                let begin = || Ok(transactions.diff(caller, id)?.into());
                self.answer_comparison(caller, Compared::Transaction(id), (from, limit), begin)?
            }
            Request::Locks { after } => Response::Locks(transactions?.locks(caller.uid, after)?),
            Request::Leave { abort_open, checkpoint_open } => {
                let how = match (abort_open, checkpoint_open) {
                    (_, true) => Leave::Keep,
                    (true, false) => Leave::Abort,
                    (false, false) => Leave::IfNoneIsOpen,
                };
                let kept = self.service.leave(caller, how)?;
                if how == Leave::Keep { Response::Kept(kept) } else { Response::Done }
            }
            // What follows is the server's.
            Request::AwaitClosed => {
                self.service.check_may_leave(caller)?;
                Response::Done
            }
            Request::End => {
                self.service.check_may_leave(caller)?;
                let mounted = || ServiceError::new(ErrorKind::Usage, "the store is mounted: unmount it");
                self.end.as_ref().ok_or_else(mounted)?();
                Response::Done
            }
            request => return Ok(Err(request)),
        };
        Ok(Ok(response))
    }
}

fn answer_tier(tiers: Tiers<'_>, caller: &Caller, request: TierRequest) -> Result<Response> {
    match request {
        TierRequest::List => {}
        TierRequest::Add(new) => return Ok(Response::DeviceAdded(tiers.add_device(caller, &new)?)),
        TierRequest::Drain { ids, waits } => {
            return Ok(Response::Devices(tiers.drain_devices(caller, &ids, waits)?));
        }
        TierRequest::Refill { id } => tiers.refill_device(caller, id)?,
        TierRequest::Remove { id } => tiers.remove_device(caller, id)?,
        TierRequest::Placement { policy, keeps } => {
            let change = policy.as_deref().map(|policy| (policy, keeps));
            return Ok(Response::Placement(tiers.placement(caller, change)?));
        }
        TierRequest::Heat { cells_max } => return Ok(Response::Heat(tiers.heat(caller, cells_max)?)),
        TierRequest::Limit { bytes_per_second } => {
            return Ok(Response::Placement(tiers.limit_migration(caller, bytes_per_second)?));
        }
    }
    Ok(Response::Devices(tiers.devices(caller)?))
}

fn raw(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_encoded_bytes()
}

#[cfg(test)]
pub(crate) mod tests;
