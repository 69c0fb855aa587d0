//! Telling the kernel what changed behind its back.
//!
//! A notification takes locks inside the kernel (an entry's invalidation the parent's inode lock, an inode's
//! folio locks) that a request in progress may hold, so sending one can wait until that request is answered;
//! or for as long as a process likes, that holds the lock while it waits for something else (`queue`). They
//! are therefore sent by threads of their own, which hold nothing; submitting never waits. One thread is
//! enough as a rule; while it waits, and others have something to wait for, another one joins it.
//!
//! Thread safety: [`Notifier`] is a cheap handle for any thread. Order: notifications that wait for the same
//! lock go out in the order in which they were submitted; all do, while none keeps its sender waiting. A
//! caller for which an order is essential waits for the first ones before it submits the others. Invariants:
//! no caller waits for what comes behind a notification that has been sent for as long as a caller waits; the
//! queue is bounded, but for what callers wait for; what the kernel doesn't know is refused at
//! submission, or reported as [`Outcome::Unsupported`] and refused from then on.

mod pending;
mod queue;
mod send;
#[cfg(test)]
mod tests;
mod untold;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::UntoldNames;
use kvfs_locks::{Condvar, Mutex, class};
use rustix::io::Errno;

use crate::abi::flags::init as bit;
use crate::abi::notify as wire;
use crate::dispatch::Channel;
use crate::session::Negotiated;
use crate::transport::Delivery;
use pending::WaitBudget;
pub(crate) use pending::{Keep, WAIT_EACH};
pub use pending::{Message, Pending, Told};
use queue::{Done, KernelLock, Queue, SENDERS_MAX};

/// How often a caller that waits looks whether another sender is needed, and for how long the senders have
/// got nowhere then.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// How many are submitted before a caller waits for them: each takes 250 bytes until it is carried out.
const PART_LEN: usize = 4096;

/// A message to the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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

    /// What sending it waits for.
    fn kernel_lock(&self) -> KernelLock {
        match self {
            Self::InvalEntry { parent, .. } | Self::Delete { parent, .. } => KernelLock::Directory(*parent),
            Self::InvalInode { node, offset, .. } if *offset >= 0 => KernelLock::Pages(*node),
            Self::Store { node, .. } | Self::Retrieve { node, .. } => KernelLock::Pages(*node),
            _ => KernelLock::Nothing,
        }
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
    /// It waits behind others for which the kernel has had no time for long. It is carried out when the
    /// kernel has.
    Late,
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

struct Shared {
    channel: Arc<Channel>,
    config: NotifierConfig,
    queue: Mutex<Queue, class::FuseNotifyQueue>,
    changed: Condvar,
    /// Bit per notification code.
    supported: AtomicU32,
    expire_only: bool,
    untold: OnceLock<Arc<UntoldNames>>,
}

/// How a notifier works.
pub(crate) struct NotifierConfig {
    /// What the senders of notifications call the root.
    pub(crate) root: u64,
    /// How many may wait.
    pub(crate) len_max: usize,
    /// See [`crate::SessionConfig::notification_wait_max`].
    pub(crate) wait_max: Duration,
    /// Of the threads.
    pub(crate) name: String,
}

fn call(callbacks: Vec<Done>, outcome: Outcome) {
    for done in callbacks {
        if catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err() {
            tracing::error!("the callback of a notification panicked");
        }
    }
}

/// A handle to submit notifications.
#[derive(Clone)]
pub struct Notifier {
    shared: Arc<Shared>,
}

impl Notifier {
    pub(crate) fn new(channel: Arc<Channel>, negotiated: &Negotiated, config: NotifierConfig) -> Self {
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
            config,
            queue: Mutex::default(),
            changed: Condvar::new(),
            supported: AtomicU32::new(supported),
            expire_only: negotiated.has(bit::HAS_EXPIRE_ONLY),
            untold: OnceLock::new(),
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
    /// The kernel doesn't know it, too many are waiting (for the same lock of the kernel, perhaps), or the
    /// connection ended: nothing will be sent.
    pub fn submit(&self, notification: Notification) -> Result<(), NotifyError> {
        self.enqueue(notification, None)
    }

    /// Queues a notification; `done` is called, from a thread that sends them or ends the session, when it
    /// was carried out, and must not wait for anything that needs another notification.
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

    /// Has `notification` carried out, and calls `done` then, as [`Self::submit_then`] does; at once where
    /// nothing is to be sent, and with [`Outcome::Late`] where it would wait behind others for too long. For
    /// what a request waits for: the kernel bounds their number.
    pub fn carry_out_then(&self, notification: Notification, done: impl FnOnce(Outcome) + Send + 'static) {
        let is_known = self.supports(notification.code());
        let mut queue = self.shared.queue.lock();
        if !is_known || queue.has_ended {
            drop(queue);
            return done(if is_known { Outcome::Ended } else { Outcome::Unsupported });
        }
        let mut done: Option<Done> = Some(Box::new(done));
        let late = done.take_if(|_| !queue.is_awaited(notification.kernel_lock()));
        queue.push(notification, done);
        drop(queue);
        self.shared.changed.notify_one();
        if let Some(done) = late {
            done(Outcome::Late);
        }
    }

    /// Has all `notifications` carried out, and returns then, however long it takes, but for those that would
    /// wait behind others for which the kernel has no time. Not for workers and senders. What the kernel does
    /// not know of needs nothing.
    ///
    /// # Errors
    /// The connection ended: what was not sent is not needed any more.
    pub fn carry_out_all(
        &self,
        notifications: impl IntoIterator<Item = Notification>,
    ) -> Result<Told, NotifyError> {
        let mut budget = WaitBudget::new(self.shared.config.wait_max);
        let (pending, submitted) = self.submit_all(notifications);
        self.wait(&pending, &mut budget, None);
        submitted.map(|()| pending.take_told())
    }

    /// As [`Self::carry_out_all`], but for all that the kernel has no time for: they are carried out when it
    /// has. [`crate::SessionConfig::notification_wait_max`] says when that is. Where too many names wait
    /// for that, the kernel forgets all that it knows, if it can; then even what is mounted on them.
    ///
    /// # Errors
    /// As there.
    pub fn carry_out_soon(
        &self,
        messages: impl IntoIterator<Item = impl Into<Message>>,
    ) -> Result<Told, NotifyError> {
        let mut budget = WaitBudget::new(self.shared.config.wait_max);
        let (mut told, mut is_late) = (Told::default(), false);
        let mut absent_at_once = Vec::new();
        let waits = |message: &Message| !self.tell_at_once(&message.notification, &mut absent_at_once);
        let mut messages = messages.into_iter().map(Into::into).filter(waits).peekable();
        while messages.peek().is_some() {
            let mut count = 0;
            let part = messages.by_ref().take(PART_LEN).inspect(|_| count += 1);
            let (pending, submitted) = self.submit_all(part);
            self.wait(&pending, &mut budget, Some(count));
            let (is_part_late, has_others) = pending.late_and_others();
            // Not of those that come behind: any user can have as many as that one likes.
            is_late |= is_part_late;
            if is_part_late || has_others {
                self.bound_names();
            }
            submitted?;
            let mut of_part = pending.take_told();
            told.not_cached.append(&mut of_part.not_cached);
            told.late.append(&mut of_part.late);
        }
        if is_late {
            tracing::warn!("the kernel is busy with a directory or file; it is told later what has changed");
        }
        drop(messages);
        told.not_cached.append(&mut absent_at_once);
        Ok(told)
    }

    /// Carries out what waits for nothing inside the kernel, and returns whether this is such: no sender has
    /// to be woken for it.
    fn tell_at_once(&self, notification: &Notification, not_cached: &mut Vec<u64>) -> bool {
        if notification.kernel_lock() != KernelLock::Nothing {
            return false;
        }
        if self.supports(notification.code()) {
            let outcome = self.carry_out(notification);
            not_cached.extend(notification.inode().filter(|_| outcome == Outcome::NotCached));
        }
        true
    }

    /// Queues all `messages` and returns what is to be waited for: not for those behind others that the
    /// kernel has had no time for.
    ///
    /// # Errors
    /// The connection ended: what was not sent is not needed any more.
    pub fn submit_all(
        &self,
        messages: impl IntoIterator<Item = impl Into<Message>>,
    ) -> (Pending, Result<(), NotifyError>) {
        let pending = Pending::default();
        for message in messages {
            let message = message.into();
            let notification = &message.notification;
            if !self.supports(notification.code()) {
                continue;
            }
            let mut queue = self.shared.queue.lock();
            if queue.has_ended {
                return (pending, Err(NotifyError::Ended));
            }
            let done = if queue.is_awaited(notification.kernel_lock()) {
                Some(pending.count(notification))
            } else {
                pending.note_other(notification);
                None
            };
            queue.push(message, done);
            drop(queue);
            self.shared.changed.notify_one();
        }
        (pending, Ok(()))
    }

    /// Waits until all are carried out; with a `count` not for longer than the budget allows for so many. No
    /// caller waits behind what this one has seen being sent for as long as all of the budget.
    fn wait(&self, pending: &Pending, budget: &mut WaitBudget, count: Option<u32>) {
        let time_max = count.map(|count| budget.for_part(count));
        let period = time_max.map_or(LOOK_PERIOD, |time_max| LOOK_PERIOD.min(time_max / 8));
        let (mut waited, mut begun) = (Duration::ZERO, None);
        while !pending.wait_at_most(period) {
            let now = self.shared.queue.lock().begun();
            if begun.replace(now) == Some(now) {
                self.reinforce();
            }
            waited += period;
            self.give_up_on(budget.look(period, now));
            if time_max.is_some_and(|time_max| waited >= time_max) {
                break;
            }
        }
        if let Some(count) = count {
            budget.spend(waited, count);
        }
    }

    /// No caller waits behind the first `number` that were begun any more, as far as they are being sent.
    fn give_up_on(&self, number: u64) {
        let callbacks = self.shared.queue.lock().give_up_on(number);
        call(callbacks, Outcome::Late);
    }

    /// To be called every `period`, for what no thread waits for but requests.
    pub(crate) fn look(&self, period: Duration) {
        self.reinforce();
        let number = {
            let mut queue = self.shared.queue.lock();
            let begun = queue.begun();
            queue.looks.look(period, begun, self.shared.config.wait_max)
        };
        self.give_up_on(number);
    }

    /// Starts another sender, if all wait for the kernel, and there is something for it to do.
    fn reinforce(&self) {
        let mut queue = self.shared.queue.lock();
        if queue.idle == 0
            && queue.has_more()
            && queue.senders < SENDERS_MAX
            && let Err(error) = self.add_sender(&mut queue)
        {
            tracing::warn!(%error, "no thread to tell the kernel what has changed");
        }
    }

    /// Starts the first sender.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start(&self) -> io::Result<()> {
        self.add_sender(&mut self.shared.queue.lock())
    }

    fn add_sender(&self, queue: &mut Queue) -> io::Result<()> {
        let sender = self.clone();
        let name = format!("{}-notify", self.shared.config.name);
        // It may never come back from the kernel, so no thread waits for its end without a limit.
        thread::Builder::new().name(name).spawn(move || sender.run())?;
        queue.senders += 1;
        Ok(())
    }

    /// Whether the kernel has no time for some of what it is to be told.
    pub(crate) fn has_stalled(&self) -> bool {
        self.shared.queue.lock().has_stalled()
    }

    fn enqueue(&self, notification: Notification, done: Option<Done>) -> Result<(), NotifyError> {
        let code = notification.code();
        if !self.supports(code) {
            return Err(NotifyError::Unsupported { code });
        }
        let mut queue = self.shared.queue.lock();
        if queue.has_ended {
            return Err(NotifyError::Ended);
        }
        let len_max = self.shared.config.len_max;
        if queue.len() >= len_max || queue.is_stalled(notification.kernel_lock()) {
            return Err(NotifyError::QueueFull { len_max });
        }
        queue.push(notification, done);
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Body of a sender.
    fn run(&self) {
        let mut next = self.next();
        while let Some((notification, callbacks)) = next {
            let sent = catch_unwind(AssertUnwindSafe(|| self.carry_out(&notification)));
            let outcome = sent.unwrap_or_else(|_| {
                tracing::error!(?notification, "the sender of a notification panicked");
                Outcome::Failed(Errno::IO)
            });
            tracing::trace!(?notification, ?outcome, "notification");
            // Before a caller can look whether it was.
            let behind = self.release(notification.kernel_lock());
            call(callbacks, outcome);
            next = behind.or_else(|| self.next());
        }
    }

    /// One that waited for `lock` was carried out. The next of those.
    fn release(&self, lock: KernelLock) -> Option<(Notification, Vec<Done>)> {
        let mut queue = self.shared.queue.lock();
        let behind = queue.release(lock);
        // Under the lock: none is queued meanwhile.
        if let KernelLock::Directory(directory) = lock
            && !queue.has_names(directory)
            && let Some(untold) = self.shared.untold.get()
        {
            untold.told(directory);
        }
        behind
    }

    /// What a sender is to send next. `None`: it is to end.
    fn next(&self) -> Option<(Notification, Vec<Done>)> {
        let mut queue = self.shared.queue.lock();
        let mut next = queue.next();
        while next.is_none() {
            if queue.has_ended || queue.idle > 0 {
                queue.senders -= 1;
                // The session may wait for that.
                self.shared.changed.notify_all();
                return None;
            }
            queue.idle += 1;
            self.shared.changed.wait(&mut queue);
            queue.idle -= 1;
            next = queue.next();
        }
        next
    }

    /// The connection has ended, or is about to: what waits is answered with [`Outcome::Ended`].
    pub(crate) fn end(&self) {
        let callbacks = {
            let mut queue = self.shared.queue.lock();
            queue.has_ended = true;
            if let Some(untold) = self.shared.untold.get() {
                untold.forget_all();
            }
            queue.take_all()
        };
        self.shared.changed.notify_all();
        call(callbacks, Outcome::Ended);
    }

    /// Waits until all senders have ended, after [`Self::end`]. False: one is held up inside the kernel for
    /// longer than a caller waits.
    pub(crate) fn wait_for_senders(&self) -> bool {
        let Shared { queue, changed, config, .. } = &*self.shared;
        let mut queue = queue.lock();
        !changed.wait_while_for(&mut queue, |queue| queue.senders > 0, config.wait_max).timed_out()
    }

    /// Sends it now, past the queue. Waits for what the kernel waits for.
    fn carry_out(&self, notification: &Notification) -> Outcome {
        if self.shared.queue.lock().has_ended {
            return Outcome::Ended;
        }
        let code = notification.code();
        match self.send(notification) {
            Ok(Delivery::Delivered) => Outcome::Done,
            Ok(Delivery::Gone) if self.shared.queue.lock().has_ended => Outcome::Ended,
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
}
