//! Calls on what a mount shows: an ioctl on anything of the main line, of a transaction's view, or of a
//! branch, that Linux has no call for. What they mean comes from above as a [`ViewCallHandler`].
//!
//! The kernel does not look whether an ioctl may change anything: not even at read-only mounts. So a call
//! must have been announced by a setxattr on the same file by the same thread, which the kernel lets through
//! where it would let a change.
//!
//! Each is done by the blocking pool: it may take long, and wait for a transaction for as long as that is
//! open, so that the calls of a user under way are bounded. Until it has changed something an interrupt ends
//! it. Its own kernel side is told of what it has changed before its caller is answered.
//!
//! Thread safety: shared by all workers; a [`ViewCall`] belongs to the thread that carries it out.
//! Invariants: where the caller is told EINTR, nothing was done; each announcement serves for one call.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use kvfs_fs::{Caller, FileSystem, Invalidations, NodeId, Ticket};
use kvfs_locks::{Mutex, class};
use rustix::io::Errno;

use super::background::Job;
use super::{Bridge, Shared, credentials, ids};
use crate::dispatch::{Ioctl, IoctlArgs, Reply, RequestContext};

/// Announcements that wait for their calls, at most: a call follows at once.
const ANNOUNCED_MAX: usize = 64;

/// A file, and who has announced a call on it.
#[derive(PartialEq, Eq)]
struct Announcement {
    node: u64,
    uid: u32,
    /// Of the thread.
    pid: u32,
}

impl Announcement {
    fn of(cx: &RequestContext, node: u64) -> Self {
        Self { node, uid: cx.uid, pid: cx.pid }
    }
}

/// Calls that are announced, oldest first.
#[derive(Default)]
pub(super) struct Announced(Mutex<VecDeque<Announcement>, class::FuseBridgeViewCalls>);

impl Announced {
    fn add(&self, new: Announcement) {
        let mut waiting = self.0.lock();
        waiting.retain(|other| *other != new);
        if waiting.len() == ANNOUNCED_MAX {
            waiting.pop_front();
        }
        waiting.push_back(new);
    }

    /// Whether it was there; once.
    fn take(&self, of_call: &Announcement) -> bool {
        let mut waiting = self.0.lock();
        let found = waiting.iter().position(|other| other == of_call);
        found.is_some_and(|at| waiting.remove(at).is_some())
    }
}

/// The meaning of calls on views, for [`super::BridgeConfig::view_calls`].
pub trait ViewCallHandler: Send + Sync + 'static {
    /// Whether an ioctl is one.
    fn is_ours(&self, command: u32) -> bool;

    /// Whether an extended attribute that is set is none, but announces such an ioctl.
    fn announces(&self, name: &[u8]) -> bool;

    /// Carries it out, on a thread that may block. Returns what it comes to, and what the kernel side must
    /// forget before that is answered.
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
    /// Gives the reply back when the attribute is an ordinary one.
    pub(super) fn announce(
        &self,
        cx: &RequestContext,
        node: u64,
        name: &[u8],
        reply: Reply<()>,
    ) -> Option<Reply<()>> {
        let Shared { config, announced, .. } = &*self.files.shared;
        let is_ours = config.view_calls.as_ref().is_some_and(|handler| handler.announces(name));
        if !is_ours || ids::place(node) != ids::Place::Mounted {
            return Some(reply);
        }
        announced.add(Announcement::of(cx, node));
        reply.ok(());
        None
    }

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
        if !shared.announced.take(&Announcement::of(cx, node)) {
            reply.error(Errno::BADF);
            return None;
        }
        let Some(share) = self.files.background.view_calls.take(cx.uid, 1) else {
            reply.error(Errno::BUSY);
            return None;
        };
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
            let done = done.map(|(answer, changes)| {
                // Those on the main line are commits, which tell of their names.
                shared.forget_beside(changes, None);
                answer
            });
            drop(share);
            reply.result(done);
        });
        self.answer_beside(job);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcement_serves_for_one_call_of_its_thread_on_its_file() {
        let (announced, of) = (Announced::default(), |node, pid| Announcement { node, uid: 7, pid });
        assert!(!announced.take(&of(1, 1)));
        announced.add(of(1, 1));
        announced.add(of(1, 1));
        assert!(!announced.take(&of(2, 1)) && !announced.take(&of(1, 2)));
        assert!(!announced.take(&Announcement { node: 1, uid: 8, pid: 1 }));
        assert!(announced.take(&of(1, 1)) && !announced.take(&of(1, 1)));
        for node in 0..=ANNOUNCED_MAX as u64 {
            announced.add(of(node, 1));
        }
        assert!(!announced.take(&of(0, 1)) && announced.take(&of(1, 1)), "the oldest makes room");
    }
}
