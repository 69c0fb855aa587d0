//! Lets the thread that gets a reply run first, on the worker's own CPU.
//!
//! Purpose: when a worker wakes its caller, the scheduler sees a busy CPU and sends the caller to an idle
//! one, which has to be woken; a CPU with nothing but idle-class threads on it counts as free, and is kept.
//! So a worker that was steered to its caller's CPU (`session::steering`), and does not stay in the idle
//! class, joins it while it sends the reply, and leaves it as soon as it runs again, which is when the caller
//! sleeps in its next request.
//!
//! Thread safety: any thread. Invariants: nothing happens here in the idle class but the sending of a reply,
//! which holds no lock that another request waits for. On a CPU that has enough to do the thread may stay
//! there for a while: a session lets one worker be courteous, and another one watches over it.

use std::cell::Cell;

use crate::process::policy::{IDLE, NORMAL, policy, set_policy};

thread_local! {
    /// The request whose reply this thread sends from the idle class; 0: none.
    static OWED: Cell<u64> = const { Cell::new(0) };
}

/// Whether a thread that joined the idle class could leave it again. Tried out in a thread of its own, since
/// without the right to leave there would be no way back.
pub(crate) fn is_possible() -> bool {
    let probe = || policy() == NORMAL && set_policy(IDLE).is_ok() && set_policy(NORMAL).is_ok();
    let thread = std::thread::Builder::new().name("policy-probe".to_owned()).spawn(probe);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// From now on, the calling thread's reply to `unique`, if it is this thread that sends it, is sent from the
/// idle class.
pub(crate) fn owe(unique: u64) {
    OWED.set(unique);
}

/// Sends the reply to `unique`.
pub(super) fn send<R>(unique: u64, send: impl FnOnce() -> R) -> R {
    if OWED.get() != unique {
        return send();
    }
    OWED.set(0);
    let is_idle = set_policy(IDLE).is_ok();
    let sent = send();
    if is_idle && let Err(error) = set_policy(NORMAL) {
        // It was possible when the session began.
        tracing::error!(%error, "a worker cannot leave the idle class; remount to cure it");
    }
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_owed_reply_is_sent_from_the_idle_class() {
        if !is_possible() {
            // Ordinary users may not.
            return;
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                owe(7);
                assert_eq!(send(6, policy), NORMAL);
                assert_eq!(send(7, policy), IDLE);
                assert_eq!(policy(), NORMAL);
                assert_eq!(send(7, policy), NORMAL, "once");
            });
        });
    }
}
