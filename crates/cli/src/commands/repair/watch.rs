//! How far a repair is: one line on standard error, when that is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use kvfs_store::clock::{Clock, SystemClock};
use parking_lot::Mutex;

const PERIOD: Duration = Duration::from_millis(500);

/// Shared by all parts of a repair.
pub(super) struct Watch {
    clock: SystemClock,
    is_shown: bool,
    shown: Mutex<Duration>,
}

impl Watch {
    pub(super) fn new() -> Self {
        let is_shown = std::io::stderr().is_terminal();
        Self { clock: SystemClock::new(), is_shown, shown: Mutex::new(Duration::ZERO) }
    }

    /// `done` of `total`, if that is known.
    pub(super) fn at(&self, what: &str, done: u64, total: Option<u64>) {
        if !self.is_shown {
            return;
        }
        let (now, mut shown) = (self.clock.monotonic(), self.shown.lock());
        if now >= *shown + PERIOD {
            *shown = now;
            match total.filter(|&total| total > 0) {
                Some(total) => eprint!("\r{what}: {} %\x1b[K", done * 100 / total),
                None => eprint!("\r{what}: {done}\x1b[K"),
            }
        }
    }

    /// The line goes.
    pub(super) fn end(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}
