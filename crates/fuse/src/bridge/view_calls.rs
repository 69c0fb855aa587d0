//! Calls on what a mount shows: an ioctl on anything of the main line, of a transaction's view, or of a branch, that Linux has no call for.
//! What they mean comes from above as a [`ViewCallHandler`].
//!
//! Each is done by the blocking pool: it may take long, and wait for a transaction. Until it has changed something an interrupt ends it. Its
//! own kernel side is told of what it has changed before its caller is answered.
//!
//! Thread safety: shared by all workers; a [`ViewCall`] belongs to the thread that carries it out. Invariant: where the caller is told EINTR,
//! nothing was done.

use std::cell::Cell;
use std::sync::Arc;

use kvfs_fs::{Caller, FileSystem, Invalidations, NodeId, Ticket};
use rustix::io::Errno;

use super::background::Job;
use super::{Bridge, credentials, ids};
use crate::dispatch::{Ioctl, IoctlArgs, Reply, RequestContext};

/// The meaning of calls on views, for [`super::BridgeConfig::view_calls`].
pub trait ViewCallHandler: Send + Sync + 'static {
    /// Whether an ioctl is one.
    fn is_ours(&self, command: u32) -> bool;

    /// Carries it out, on a thread that may block. Returns what it comes to, and what the kernel side must forget before that is answered.
    ///
    /// # Errors
    /// What the caller is told.
    fn carry_out(&self, call: &ViewCall<'_>) -> Result<(Ioctl, Invalidations), Errno>;
}

/// See the module.
pub struct ViewCall<'c> {
    /// What the mount shows.
    pub fs: &'c Arc<FileSystem>,
    /// What is open.
    pub node: NodeId,
    /// Who calls.
    pub caller: Caller,
    /// Which call.
    pub command: u32,
    /// Its argument.
    pub argument: &'c [u8],
    /// Taken while it is set aside; gone when an interrupt has answered it.
    reply: Cell<Option<Reply<Ioctl>>>,
}

impl ViewCall<'_> {
    /// All groups of the caller, as far as they are known.
    pub fn groups(&self) -> Vec<u32> {
        credentials::groups(&self.caller)
    }

    /// Whether the caller waits for it. To be asked from time to time, as long as nothing is done.
    pub fn is_wanted(&self) -> bool {
        let Some(reply) = self.reply.take() else { return false };
        let is_wanted = !reply.is_interrupted();
        self.reply.set(Some(reply));
        is_wanted
    }

    /// Waits until it is worth trying again. False: it is not wanted any more, and the ticket was cancelled.
    pub fn wait(&self, ticket: &Ticket) -> bool {
        let given_up = ticket.clone();
        let parked = self.reply.take().map(|reply| reply.park(move || given_up.cancel()));
        let Some(Ok(parked)) = parked else {
            ticket.cancel();
            return false;
        };
        ticket.wait();
        let resumed = parked.resume();
        let is_wanted = resumed.is_some();
        self.reply.set(resumed);
        is_wanted
    }
}

impl Bridge {
    /// Gives the reply back when it is no call on a view.
    pub(super) fn view_ioctl(
        &self,
        cx: &RequestContext,
        node: u64,
        args: IoctlArgs,
        data: &[u8],
        reply: Reply<Ioctl>,
    ) -> Option<Reply<Ioctl>> {
        let shared = &self.files.shared;
        let is_ours = |handler: &&Arc<_>| {
            let handler: &Arc<dyn ViewCallHandler> = handler;
            ids::place(node) == ids::Place::Mounted && handler.is_ours(args.command)
        };
        let Some(handler) = shared.config.view_calls.as_ref().filter(is_ours) else { return Some(reply) };
        let (handler, shared, caller) = (Arc::clone(handler), Arc::clone(shared), credentials::caller(cx));
        let argument = data.to_vec();
        let job: Job = Box::new(move || {
            let call = ViewCall {
                fs: &shared.fs,
                node: NodeId(node),
                caller,
                command: args.command,
                argument: &argument,
                reply: Cell::new(Some(reply)),
            };
            let done = handler.carry_out(&call);
            let Some(reply) = call.reply.take() else { return };
            reply.result(done.map(|(answer, changes)| {
                shared.forget_beside(changes);
                answer
            }));
        });
        if let Err(job) = self.files.background.blocking_pool.submit(job) {
            // The reply in it says EIO.
            drop(job);
        }
        None
    }
}
