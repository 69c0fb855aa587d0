//! Names that the kernel has not been told of, as far as the queue knows of it.

use std::sync::Arc;

use kvfs_fs::{Telling, UntoldNames};
use rustix::io::Errno;

use super::{Notification, Notifier, Outcome, call};
use crate::abi::notify as wire;

impl Notifier {
    /// Where more names wait than may, behind what the kernel has no time for: one message for all of those.
    pub(super) fn bound_names(&self) {
        let (callbacks, unforgotten) = {
            let mut queue = self.shared.queue.lock();
            let Some((directories, callbacks)) = queue.take_stalled_names(self.shared.config.len_max) else {
                return;
            };
            let mut given_up = self.shared.untold.get().map(|untold| untold.give_up(directories));
            if self.supports(wire::INC_EPOCH) {
                let (notifier, telling) = (self.clone(), given_up.take());
                let done = move |outcome| {
                    if let Some(telling) = telling {
                        notifier.end_by_epoch(telling, outcome);
                    }
                };
                queue.push(Notification::IncEpoch, Some(Box::new(done)));
                self.shared.changed.notify_one();
            }
            (callbacks, given_up)
        };
        tracing::warn!("too many names wait to be forgotten by the kernel: it is told to forget all");
        if let Some(telling) = unforgotten {
            telling.keep();
        }
        call(callbacks, Outcome::Failed(Errno::AGAIN));
    }

    /// Has the kernel trust no name any more. Nothing inside the kernel is waited for.
    pub(crate) fn tell_epoch(&self) -> Outcome {
        if self.supports(wire::INC_EPOCH) {
            self.carry_out(&Notification::IncEpoch)
        } else {
            Outcome::Unsupported
        }
    }

    /// The kernel was told of no name of `telling`, but of a new epoch, with this outcome.
    pub(crate) fn end_by_epoch(&self, telling: Telling, outcome: Outcome) {
        match outcome {
            Outcome::Done | Outcome::Ended => self.end_telling(telling),
            // Nothing in the queue says when the kernel knows.
            _ => telling.keep(),
        }
    }

    /// From now on `untold` is told what the kernel has been told.
    pub(crate) fn attach(&self, untold: Arc<UntoldNames>) {
        let _ = self.shared.untold.set(untold);
    }

    /// The names of `telling` were submitted, so it ends when none of a directory of it waits.
    pub(crate) fn end_telling(&self, telling: Telling) {
        let queue = self.shared.queue.lock();
        telling.end(|directory| queue.has_names(directory));
    }

    /// To be called from time to time: ends what the kernel can't know any more, though it was not told.
    pub(crate) fn expire_given_up(&self) {
        let Some(untold) = self.shared.untold.get() else { return };
        let queue = self.shared.queue.lock();
        untold.expire(|directory| queue.has_names(directory));
    }
}
