//! Calls on the mount itself: an ioctl on anything in it, and extended attributes of its root that are no
//! attributes. What they mean comes from above as a [`ControlHandler`]; by them transactions are begun and
//! ended without a socket.
//!
//! What may wait (a commit waits for its turn and for the kernel) is done by the blocking pool, so the worker
//! is free. An ioctl holds no lock of the kernel. A setxattr holds that of the root directory until it is
//! answered, and an invalidation of a name in the root wants it: so while one waits, commits have the kernel
//! forget names in the root by a new epoch, which takes no lock, but also detaches what is mounted inside
//! ([`RootNames`]). Getxattr holds nothing, and must not wait all the same.
//!
//! Thread safety: shared by all workers. Invariant: while a setxattr that waits is not answered, no
//! invalidation of a name in the root is on its way to the kernel.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::NodeId;
use kvfs_locks::{Mutex, class};
use rustix::io::Errno;

use super::background::Job;
use super::{Bridge, Shared, ids};
use crate::abi::notify::INC_EPOCH;
use crate::dispatch::{Ioctl, IoctlArgs, Payload, Reply, RequestContext, Xattr};

/// What a call comes to.
pub enum Answer<T> {
    /// It is done.
    Now(Result<T, Errno>),
    /// It may have to wait for a transaction, a commit, the disk or the kernel.
    Later(Box<dyn FnOnce() -> Result<T, Errno> + Send>),
}

/// The caller, as the kernel names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlCaller {
    /// Effective user.
    pub uid: u32,
    /// Process; 0: not visible from here.
    pub pid: u32,
}

/// The meaning of calls on a mount, for [`super::BridgeConfig::control`]. Called on worker threads: only what
/// is given back as [`Answer::Later`] may wait.
pub trait ControlHandler: Send + Sync + 'static {
    /// Whether an extended attribute of the root is none.
    fn is_ours(&self, name: &[u8]) -> bool;

    /// An ioctl with this argument; `None`: it is none of ours.
    fn ioctl(&self, caller: ControlCaller, command: u32, argument: &[u8]) -> Option<Answer<Ioctl>>;

    /// Such an attribute is set.
    fn set(&self, caller: ControlCaller, name: &[u8], value: &[u8]) -> Answer<()>;

    /// Such an attribute is read.
    ///
    /// # Errors
    /// What the caller is told.
    fn get(&self, caller: ControlCaller, name: &[u8]) -> Result<Bytes, Errno>;
}

/// How the kernel is made to forget names in the root.
#[derive(Default)]
pub(super) struct RootNames(Mutex<RootState, class::FuseBridgeControl>);

#[derive(Default)]
struct RootState {
    /// Calls by setxattr that are not answered.
    waiting: u32,
    /// Commits that are invalidating names in the root one by one.
    invalidating: u32,
}

/// Names in the root are invalidated while it lives.
pub(super) struct ByName<'a>(&'a RootNames);

/// A setxattr that may wait, until it is answered.
struct Setter(Arc<Shared>);

impl RootNames {
    /// For a commit: whether names in the root may be invalidated one by one, until the answer is dropped.
    pub(super) fn by_name(&self) -> Option<ByName<'_>> {
        let mut state = self.0.lock();
        if state.waiting > 0 {
            return None;
        }
        state.invalidating += 1;
        Some(ByName(self))
    }

    /// A caller comes by a setxattr. False: a commit would now wait for it, so it must not.
    fn enter_setxattr(&self) -> bool {
        let mut state = self.0.lock();
        let is_free = state.invalidating == 0;
        state.waiting += u32::from(is_free);
        is_free
    }

    /// One that has come was answered.
    fn leave_setxattr(&self) {
        self.0.lock().waiting -= 1;
    }
}

impl Setter {
    fn enter(on: &Arc<Shared>) -> Option<Self> {
        on.root_names.enter_setxattr().then(|| Self(Arc::clone(on)))
    }
}

impl Drop for Setter {
    fn drop(&mut self) {
        self.0.root_names.leave_setxattr();
    }
}

impl Drop for ByName<'_> {
    fn drop(&mut self) {
        self.0.0.lock().invalidating -= 1;
    }
}

fn caller(cx: &RequestContext) -> ControlCaller {
    ControlCaller { uid: cx.uid, pid: cx.pid }
}

impl Bridge {
    fn control(&self) -> Option<&Arc<dyn ControlHandler>> {
        self.files.shared.config.control.as_ref()
    }

    /// The handler, if the attribute `name` of `node` is a control call. The view of a transaction takes
    /// none.
    fn control_for(&self, node: u64, name: &[u8]) -> Option<&Arc<dyn ControlHandler>> {
        self.control().filter(|handler| node == NodeId::ROOT.0 && handler.is_ours(name))
    }

    fn is_closed(&self) -> bool {
        self.files.shared.fs.txn().is_some()
    }

    /// Answers now, or from a thread of the blocking pool; `setter` goes behind the answer.
    fn answer_call<T: Payload + Send + 'static>(
        &self,
        reply: Reply<T>,
        answer: Answer<T>,
        setter: Option<Setter>,
    ) {
        let work = match answer {
            Answer::Now(done) => {
                reply.result(done);
                return;
            }
            Answer::Later(work) => work,
        };
        // Not parked: even an interrupted caller must be told what its commit came to.
        let job: Job = Box::new(move || {
            reply.result(work());
            drop(setter);
        });
        self.answer_beside(job);
    }

    /// Has the blocking pool carry out a job with a reply; where it takes none, the reply that is dropped
    /// says EIO.
    pub(super) fn answer_beside(&self, job: Job) {
        drop(self.files.background.blocking_pool.submit(job));
    }

    pub(super) fn control_ioctl(
        &self,
        cx: &RequestContext,
        node: u64,
        args: IoctlArgs,
        data: &[u8],
        reply: Reply<Ioctl>,
    ) {
        let is_ours = ids::place(node) == ids::Place::Mounted && !self.is_closed();
        let handler = self.control().filter(|_| is_ours);
        match handler.and_then(|handler| handler.ioctl(caller(cx), args.command, data)) {
            Some(answer) => self.answer_call(reply, answer, None),
            None => reply.error(Errno::NOTTY),
        }
    }

    /// Gives the reply back when the attribute is an ordinary one.
    pub(super) fn set_control(
        &self,
        cx: &RequestContext,
        node: u64,
        name: &[u8],
        value: &[u8],
        reply: Reply<()>,
    ) -> Option<Reply<()>> {
        let Some(handler) = self.control_for(node, name) else { return Some(reply) };
        if self.is_closed() {
            reply.error(Errno::INVAL);
            return None;
        }
        let answer = handler.set(caller(cx), name, value);
        let Answer::Later(_) = answer else {
            // It holds the root's lock for no longer than any other request.
            self.answer_call(reply, answer, None);
            return None;
        };
        let on = &self.files.shared;
        if !on.notifier.get().is_some_and(|notifier| notifier.supports(INC_EPOCH)) {
            reply.error(Errno::OPNOTSUPP);
            return None;
        }
        match Setter::enter(on) {
            Some(setter) => self.answer_call(reply, answer, Some(setter)),
            // AGAIN says something else to the kernel, which would make OPNOTSUPP of it.
            None => reply.error(Errno::BUSY),
        }
        None
    }

    /// Gives the reply back when the attribute is an ordinary one.
    pub(super) fn get_control(
        &self,
        cx: &RequestContext,
        node: u64,
        name: &[u8],
        size: u32,
        reply: Reply<Xattr>,
    ) -> Option<Reply<Xattr>> {
        let Some(handler) = self.control_for(node, name) else { return Some(reply) };
        let value = if self.is_closed() { Err(Errno::NODATA) } else { handler.get(caller(cx), name) };
        let answer = value.and_then(|value| match u32::try_from(value.len()) {
            Ok(len) if size == 0 => Ok(Xattr::Size(len)),
            Ok(len) if len <= size => Ok(Xattr::Value(value)),
            _ => Err(Errno::RANGE),
        });
        reply.result(answer);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setxattr_that_waits_is_in_no_commits_way() {
        let names = RootNames::default();
        let (first, second) =
            (names.by_name().expect("no caller has come"), names.by_name().expect("nor now"));
        // The invalidations of both would wait for the lock that comes with it.
        assert!(!names.enter_setxattr());
        drop(first);
        assert!(!names.enter_setxattr());
        drop(second);
        assert!(names.enter_setxattr() && names.enter_setxattr());
        assert!(names.by_name().is_none(), "those that come meanwhile take no lock");
        names.leave_setxattr();
        assert!(names.by_name().is_none());
        names.leave_setxattr();
        assert!(names.by_name().is_some(), "all are answered");
    }
}
