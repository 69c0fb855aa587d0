//! Pages and attributes that became old by a request itself: dropped apart from what commits tell the kernel.
//!
//! To drop a page waits for the WRITE that holds it inside the kernel, and that may wait for a transaction's
//! lock, for as long as its owner likes to let it. Neither other files nor their commits wait for that
//! ([`crate::notify`]), and no request for as many such pages as the kernel can be told of at once: it is
//! answered, and the kernel drops the pages when it has time.
//!
//! Thread safety: as the notifier. What is to be done then is done by a sender of notifications, and must not
//! wait.

use super::commit::everything_of;
use super::{Reply, Shared};
use crate::dispatch::Payload;
use crate::notify::{Notification, Outcome};

/// What goes on when the kernel has been told of pages, or will only be told late.
pub(super) type AfterPages = Box<dyn FnOnce(Outcome) + Send>;

impl Shared {
    /// Answers when the kernel has dropped what is `stale`, or has no time for that.
    pub(super) fn answer_after<T: Payload + Send + 'static>(
        &self,
        stale: Notification,
        reply: Reply<T>,
        value: T,
    ) {
        let answer = Box::new(move |_| {
            reply.ok(value);
        });
        self.after_pages(stale, answer);
    }

    /// Goes on when the kernel has written these pages, if they were dirty, and dropped them; with
    /// [`Outcome::Late`] when it has no time for that.
    pub(super) fn after_pages(&self, pages: Notification, then: AfterPages) {
        match self.notifier.get() {
            Some(notifier) => notifier.carry_out_then(pages, then),
            // Without a connection there are no pages.
            None => then(Outcome::Ended),
        }
    }

    /// The kernel has put what it wrote where it believed the end of the file to be. It holds these pages
    /// until it is answered, and then drops them.
    pub(super) fn forget_pages(&self, node: u64) {
        self.after_pages(everything_of(node), Box::new(|_| {}));
    }
}
