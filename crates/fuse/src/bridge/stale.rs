//! Pages that became old by a request itself: dropped apart from what commits tell the kernel.
//!
//! To drop a page waits for the WRITE that holds it inside the kernel, and that may wait for a transaction's
//! lock, for as long as its owner likes to let it. Commits of other files need not wait for that.
//!
//! Thread safety: one short lock. What is submitted is carried out in order, by one thread of the blocking
//! pool at a time.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use kvfs_locks::{Mutex, class};

use super::background::{Job, guarded};
use super::blocking_pool::BlockingPool;
use super::commit::everything_of;
use super::{Reply, Shared};
use crate::dispatch::Payload;
use crate::notify::{Notification, Notifier};

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Notification, Option<Job>)>,
    is_under_way: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct StalePages {
    queue: Arc<Mutex<Queue, class::FuseBridgeStaleQueue>>,
    blocking_pool: OnceLock<BlockingPool>,
}

impl StalePages {
    /// Gives the threads that drop pages; until then there are none to be dropped.
    pub(super) fn attach(&self, blocking_pool: &BlockingPool) {
        // Called once.
        let _ = self.blocking_pool.set(blocking_pool.clone());
    }

    /// Has the pages dropped, and calls `done` then.
    fn submit(&self, notifier: &Notifier, pages: Notification, done: Option<Job>) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back((pages, done));
        if std::mem::replace(&mut queue.is_under_way, true) {
            return;
        }
        drop(queue);
        let (of_job, notifier) = (Arc::clone(&self.queue), notifier.clone());
        let sender = notifier.clone();
        let job: Job = Box::new(move || carry_out(&of_job, &sender));
        let is_refused =
            self.blocking_pool.get().is_none_or(|blocking_pool| blocking_pool.submit(job).is_err());
        if is_refused {
            self.leave_to(&notifier);
        }
    }

    /// No thread is to be had: what waits goes among the other notifications.
    fn leave_to(&self, notifier: &Notifier) {
        let waiting = {
            let mut queue = self.queue.lock();
            queue.is_under_way = false;
            std::mem::take(&mut queue.waiting)
        };
        for (pages, done) in waiting {
            let done = Arc::new(Mutex::new(done));
            let last = Arc::clone(&done);
            let call = |done: &Mutex<Option<Job>, class::FuseBridgeStaleJob>| {
                let done = done.lock().take();
                if let Some(done) = done {
                    done();
                }
            };
            if notifier.submit_then(pages, move |_| call(&done)).is_err() {
                // Without a connection there are no pages.
                call(&last);
            }
        }
    }
}

/// Until nothing waits.
fn carry_out(queue: &Mutex<Queue, class::FuseBridgeStaleQueue>, notifier: &Notifier) {
    loop {
        let (pages, done) = {
            let mut queue = queue.lock();
            let Some(next) = queue.waiting.pop_front() else {
                queue.is_under_way = false;
                return;
            };
            next
        };
        notifier.carry_out(&pages);
        if let Some(done) = done {
            guarded(done);
        }
    }
}

impl Shared {
    /// Answers when the kernel has dropped these pages.
    pub(super) fn answer_after<T: Payload + Send + 'static>(
        &self,
        pages: Notification,
        reply: Reply<T>,
        value: T,
    ) {
        let answer = Box::new(move || {
            reply.ok(value);
        });
        self.after_pages(pages, answer);
    }

    /// Goes on when the kernel has written these pages, if they were dirty, and dropped them.
    pub(super) fn after_pages(&self, pages: Notification, job: Job) {
        match self.notifier.get() {
            Some(notifier) => self.stale.submit(notifier, pages, Some(job)),
            // Without a connection there are no pages.
            None => job(),
        }
    }

    /// The kernel has put what it wrote where it believed the end of the file to be. It holds these pages
    /// until it is answered, and then drops them.
    pub(super) fn forget_pages(&self, node: u64) {
        if let Some(notifier) = self.notifier.get() {
            self.stale.submit(notifier, everything_of(node), None);
        }
    }
}
