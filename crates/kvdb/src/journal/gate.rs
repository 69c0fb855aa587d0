//! Where the clients of one flush wait, without the journal's lock: they need not take it, one after the
//! other, after they have been woken, and one call wakes them all.
//!
//! Thread safety: any number of threads wait; any opens.

use std::time::Duration;

use super::monitor::Monitor;

/// Why a client no longer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    /// What it waits for has happened.
    Done,
    /// It should look again: maybe it leads next.
    Look,
    /// The time is over.
    TimeOver,
}

/// Which clients a gate lets through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Pass {
    #[default]
    Closed,
    /// The first client that comes, to look.
    One,
    /// All clients, for good.
    All(Wake),
}

/// A [`Gate`] over any monitor.
pub(super) trait Gate: Send + Sync {
    /// Returns when the gate lets this client through, or after so much time.
    fn wait(&self, at_most: Option<Duration>) -> Wake;
    /// Lets one of the clients that wait, or come to, look.
    fn call_one(&self);
    /// Lets all clients through, now and later.
    fn open(&self, wake: Wake);
}

impl<M: Monitor<Pass>> Gate for M {
    fn wait(&self, at_most: Option<Duration>) -> Wake {
        let mut pass = self.lock();
        let mut is_over = false;
        loop {
            match *pass {
                Pass::All(wake) => return wake,
                Pass::One => {
                    *pass = Pass::Closed;
                    return Wake::Look;
                }
                Pass::Closed if is_over => return Wake::TimeOver,
                Pass::Closed => {}
            }
            (pass, is_over) = match at_most {
                Some(time) => self.wait_at_most(pass, time),
                None => (Monitor::wait(self, pass), false),
            };
        }
    }

    fn call_one(&self) {
        let mut pass = self.lock();
        if *pass == Pass::Closed {
            *pass = Pass::One;
        }
        drop(pass);
        self.notify_one();
    }

    fn open(&self, wake: Wake) {
        *self.lock() = Pass::All(wake);
        self.notify_all();
    }
}
