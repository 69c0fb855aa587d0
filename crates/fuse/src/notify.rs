//! Telling the kernel what changed behind its back.
//!
//! A notification takes locks inside the kernel (an entry's invalidation the parent's inode lock, an inode's
//! folio locks) that a request in progress may hold, so sending one can wait until that request is answered.
//! They are therefore sent by one thread of their own, which holds nothing; submitting never waits.
//!
//! Thread safety: [`Notifier`] is a cheap handle for any thread. Order: notifications go out in the order in
//! which they were submitted. Invariants: the queue is bounded; what the kernel doesn't know is refused at
//! submission, or reported as [`Outcome::Unsupported`] and refused from then on.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kvfs_locks::{Condvar, Mutex, class};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::flags::{EXPIRE_ONLY, init as bit};
use crate::abi::notify as wire;
use crate::dispatch::{Channel, ROOT_NODEID, send_parts};
use crate::session::Negotiated;
use crate::transport::Delivery;

/// A message to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// Attributes of `node` changed, and pages from `offset` for `len` bytes (0: to the end); `offset` −1:
    /// attributes only. Dirty pages in the range are written first, so this is also a barrier.
    InvalInode {
        /// The node.
        node: u64,
        /// First byte; −1: no pages.
        offset: i64,
        /// Number of bytes; 0: all.
        len: i64,
    },
    /// `name` in `parent` leads elsewhere or nowhere.
    InvalEntry {
        /// Directory.
        parent: u64,
        /// Name.
        name: Bytes,
        /// Only let the name expire (no effect on mounts and working directories below); ignored by kernels
        /// that can't.
        expire_only: bool,
    },
    /// `name` in `parent`, which was `child`, was removed.
    Delete {
        /// Directory.
        parent: u64,
        /// Node that the name led to.
        child: u64,
        /// Name.
        name: Bytes,
    },
    /// Puts `data` into the page cache.
    Store {
        /// The node.
        node: u64,
        /// First byte.
        offset: u64,
        /// What is there.
        data: Bytes,
    },
    /// Asks for cached pages; they come to `Operations::retrieved` with this `unique`.
    Retrieve {
        /// Number to recognise the answer by.
        unique: u64,
        /// The node.
        node: u64,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        size: u32,
    },
    /// Requests that were read but not answered are to be sent again (after a restart of the daemon).
    Resend,
    /// No dentry of this mount is to be trusted any more.
    IncEpoch,
    /// The kernel may forget these nodes, if they are unused.
    Prune {
        /// Which.
        nodes: Vec<u64>,
    },
    /// Something that poll(2) waits for is ready.
    PollWakeup {
        /// Handle from the request.
        handle: u64,
    },
}

impl Notification {
    pub(crate) fn inode(&self) -> Option<u64> {
        if let Self::InvalInode { node, .. } = self { Some(*node) } else { None }
    }

    fn code(&self) -> i32 {
        match self {
            Self::InvalInode { .. } => wire::INVAL_INODE,
            Self::InvalEntry { .. } => wire::INVAL_ENTRY,
            Self::Delete { .. } => wire::DELETE,
            Self::Store { .. } => wire::STORE,
            Self::Retrieve { .. } => wire::RETRIEVE,
            Self::Resend => wire::RESEND,
            Self::IncEpoch => wire::INC_EPOCH,
            Self::Prune { .. } => wire::PRUNE,
            Self::PollWakeup { .. } => wire::POLL,
        }
    }
}

/// What became of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Carried out.
    Done,
    /// The kernel has nothing cached there.
    NotCached,
    /// The kernel doesn't know this notification.
    Unsupported,
    /// The connection ended.
    Ended,
    /// The kernel could not carry it out (for instance: the name is a mount point).
    Failed(Errno),
}

/// Why a notification was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// The kernel doesn't know this notification.
    #[error("this kernel does not know notification {code}")]
    Unsupported {
        /// Its number.
        code: i32,
    },
    /// Too many are waiting.
    #[error("{len_max} notifications wait already")]
    QueueFull {
        /// The bound.
        len_max: usize,
    },
    /// The connection ended.
    #[error("the connection has ended")]
    Ended,
}

type Done = Box<dyn FnOnce(Outcome) + Send>;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Notification, Option<Done>)>,
    ended: bool,
}

struct Shared {
    channel: Arc<Channel>,
    root: u64,
    queue: Mutex<Queue, class::FuseNotifyQueue>,
    changed: Condvar,
    /// Something left a full queue.
    room: Condvar,
    len_max: usize,
    /// Bit per notification code.
    supported: AtomicU32,
    expire_only: bool,
}

/// Notifications that are on their way.
#[derive(Default)]
pub struct Pending(Arc<(Mutex<Progress, class::FuseNotifyPending>, Condvar)>);

#[derive(Default)]
struct Progress {
    left: u64,
    /// Nodes of which the kernel had nothing.
    not_cached: Vec<u64>,
}

impl Pending {
    /// Returns when all are carried out: the nodes of [`Notification::InvalInode`] of which the kernel had
    /// nothing.
    pub fn wait(&self) -> Vec<u64> {
        let mut progress = self.0.0.lock();
        self.0.1.wait_while(&mut progress, |progress| progress.left > 0);
        std::mem::take(&mut progress.not_cached)
    }

    /// Returns when all are carried out, or after `time_max`. Whether all are.
    pub fn wait_for(&self, time_max: Duration) -> bool {
        let mut progress = self.0.0.lock();
        !self.0.1.wait_while_for(&mut progress, |progress| progress.left > 0, time_max).timed_out()
    }
}

/// A handle to submit notifications.
#[derive(Clone)]
pub struct Notifier {
    shared: Arc<Shared>,
}

impl Notifier {
    /// `root`: what the senders of notifications call the root.
    pub(crate) fn new(channel: Arc<Channel>, negotiated: &Negotiated, len_max: usize, root: u64) -> Self {
        let since = [
            (wire::POLL, 11),
            (wire::INVAL_INODE, 12),
            (wire::INVAL_ENTRY, 12),
            (wire::STORE, 15),
            (wire::RETRIEVE, 15),
            (wire::DELETE, 18),
            (wire::INC_EPOCH, 44),
            (wire::PRUNE, 45),
        ];
        let mut supported = since
            .iter()
            .filter(|(_, minor)| negotiated.minor >= *minor)
            .fold(0, |all, (code, _)| all | 1 << code);
        if negotiated.has(bit::HAS_RESEND) {
            supported |= 1 << wire::RESEND;
        }
        let shared = Shared {
            channel,
            root,
            queue: Mutex::default(),
            changed: Condvar::new(),
            room: Condvar::new(),
            len_max,
            supported: AtomicU32::new(supported),
            expire_only: negotiated.has(bit::HAS_EXPIRE_ONLY),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Whether the kernel carries out notifications with this number of [`crate::abi::notify`].
    pub fn supports(&self, code: i32) -> bool {
        u32::try_from(code)
            .is_ok_and(|code| code < 32 && self.shared.supported.load(Ordering::Relaxed) & 1 << code != 0)
    }

    /// Queues a notification.
    ///
    /// # Errors
    /// The kernel doesn't know it, too many are waiting, or the connection ended: nothing will be sent.
    pub fn submit(&self, notification: Notification) -> Result<(), NotifyError> {
        self.enqueue(notification, None)
    }

    /// Queues a notification; `done` is called from the notification thread when it was carried out, and must
    /// not wait for anything that needs another notification.
    ///
    /// # Errors
    /// As [`Notifier::submit`]; `done` is then not called.
    pub fn submit_then(
        &self,
        notification: Notification,
        done: impl FnOnce(Outcome) + Send + 'static,
    ) -> Result<(), NotifyError> {
        self.enqueue(notification, Some(Box::new(done)))
    }

    /// Has all `notifications` carried out, in order, and returns then; waits for room in the queue, too. Not
    /// for workers and the notification thread. Returns the nodes of which the kernel had nothing; what it
    /// does not know of needs nothing.
    ///
    /// # Errors
    /// The connection ended: what was not sent is not needed any more.
    pub fn carry_out_all(
        &self,
        notifications: impl IntoIterator<Item = Notification>,
    ) -> Result<Vec<u64>, NotifyError> {
        let (pending, submitted) = self.submit_all(notifications);
        let not_cached = pending.wait();
        submitted.map(|()| not_cached)
    }

    /// Queues all `notifications`, in order, waiting for room in the queue, and returns what is to be waited
    /// for. Not for workers and the notification thread.
    ///
    /// # Errors
    /// The connection ended: what was not sent is not needed any more.
    pub fn submit_all(
        &self,
        notifications: impl IntoIterator<Item = Notification>,
    ) -> (Pending, Result<(), NotifyError>) {
        let pending = Pending::default();
        for notification in notifications {
            pending.0.0.lock().left += 1;
            let counted = Arc::clone(&pending.0);
            let node = notification.inode();
            let done: Done = Box::new(move |outcome| {
                let mut progress = counted.0.lock();
                progress.left -= 1;
                progress.not_cached.extend(node.filter(|_| outcome == Outcome::NotCached));
                counted.1.notify_one();
            });
            match self.enqueue_when(notification, Some(done), true) {
                Ok(()) => {}
                Err(NotifyError::Unsupported { .. }) => pending.0.0.lock().left -= 1,
                Err(error) => {
                    pending.0.0.lock().left -= 1;
                    return (pending, Err(error));
                }
            }
        }
        (pending, Ok(()))
    }

    fn enqueue(&self, notification: Notification, done: Option<Done>) -> Result<(), NotifyError> {
        self.enqueue_when(notification, done, false)
    }

    fn enqueue_when(
        &self,
        notification: Notification,
        done: Option<Done>,
        may_wait: bool,
    ) -> Result<(), NotifyError> {
        let code = notification.code();
        if !self.supports(code) {
            return Err(NotifyError::Unsupported { code });
        }
        let mut queue = self.shared.queue.lock();
        while may_wait && !queue.ended && queue.waiting.len() >= self.shared.len_max {
            self.shared.room.wait(&mut queue);
        }
        if queue.ended {
            return Err(NotifyError::Ended);
        }
        if queue.waiting.len() >= self.shared.len_max {
            return Err(NotifyError::QueueFull { len_max: self.shared.len_max });
        }
        queue.waiting.push_back((notification, done));
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Body of the notification thread.
    pub(crate) fn run(&self) {
        loop {
            let (notification, done) = {
                let mut queue = self.shared.queue.lock();
                loop {
                    if let Some(next) = queue.waiting.pop_front() {
                        self.shared.room.notify_one();
                        break next;
                    }
                    if queue.ended {
                        return;
                    }
                    self.shared.changed.wait(&mut queue);
                }
            };
            let outcome = self.carry_out(&notification);
            tracing::trace!(?notification, ?outcome, "notification");
            if let Some(done) = done
                && catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err()
            {
                tracing::error!("the callback of a notification panicked");
            }
        }
    }

    /// The connection has ended: what waits is still answered (with [`Outcome::Ended`]).
    pub(crate) fn end(&self) {
        self.shared.queue.lock().ended = true;
        self.shared.changed.notify_all();
        self.shared.room.notify_all();
    }

    /// Sends it now, past the queue. Waits for what the kernel waits for: not for workers and the
    /// notification thread.
    pub(crate) fn carry_out(&self, notification: &Notification) -> Outcome {
        if self.shared.queue.lock().ended {
            return Outcome::Ended;
        }
        let code = notification.code();
        match self.send(notification) {
            Ok(Delivery::Delivered) => Outcome::Done,
            Ok(Delivery::Gone) if self.shared.queue.lock().ended => Outcome::Ended,
            Ok(Delivery::Gone) => Outcome::NotCached,
            // Newer codes are refused so by kernels that claim a newer version than they have.
            Err(Errno::INVAL) if code >= wire::RESEND => {
                self.shared.supported.fetch_and(!(1 << code), Ordering::Relaxed);
                Outcome::Unsupported
            }
            Err(errno) => {
                tracing::debug!(?notification, %errno, "the kernel did not carry out a notification");
                Outcome::Failed(errno)
            }
        }
    }

    /// What the kernel calls a node.
    fn nodeid(&self, node: u64) -> u64 {
        if node == self.shared.root { ROOT_NODEID } else { node }
    }

    fn send(&self, notification: &Notification) -> Result<Delivery, Errno> {
        let code = notification.code();
        let send = |parts: &[IoSlice<'_>]| send_parts(&*self.shared.channel.transport, 0, code, parts);
        match notification {
            Notification::InvalInode { node, offset, len } => {
                let out = wire::InvalInodeOut { ino: self.nodeid(*node), off: *offset, len: *len };
                send(&[IoSlice::new(out.as_bytes())])
            }
            Notification::InvalEntry { parent, name, expire_only } => {
                let flags = if *expire_only && self.shared.expire_only { EXPIRE_ONLY } else { 0 };
                let out =
                    wire::InvalEntryOut { parent: self.nodeid(*parent), namelen: name.len() as u32, flags };
                send(&[IoSlice::new(out.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])])
            }
            Notification::Delete { parent, child, name } => {
                let out = wire::DeleteOut {
                    parent: self.nodeid(*parent),
                    child: *child,
                    namelen: name.len() as u32,
                    padding: 0,
                };
                send(&[IoSlice::new(out.as_bytes()), IoSlice::new(name), IoSlice::new(&[0])])
            }
            Notification::Store { node, offset, data } => {
                let out =
                    wire::StoreOut { nodeid: *node, offset: *offset, size: data.len() as u32, padding: 0 };
                send(&[IoSlice::new(out.as_bytes()), IoSlice::new(data)])
            }
            Notification::Retrieve { unique, node, offset, size } => {
                let out = wire::RetrieveOut {
                    notify_unique: *unique,
                    nodeid: *node,
                    offset: *offset,
                    size: *size,
                    padding: 0,
                };
                send(&[IoSlice::new(out.as_bytes())])
            }
            Notification::Resend | Notification::IncEpoch => send(&[]),
            Notification::Prune { nodes } => {
                let out = wire::PruneOut { count: nodes.len() as u32, ..wire::PruneOut::default() };
                send(&[IoSlice::new(out.as_bytes()), IoSlice::new(nodes.as_bytes())])
            }
            Notification::PollWakeup { handle } => {
                send(&[IoSlice::new(wire::PollWakeupOut { kh: *handle }.as_bytes())])
            }
        }
    }
}
