//! How far a stream is, for people: one line on standard error, when that is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use kvfs_store::clock::{Clock, SystemClock};

use crate::units::human_bytes;

const PERIOD: Duration = Duration::from_millis(500);

/// Bytes that pass, and since when.
pub(super) struct Progress {
    clock: SystemClock,
    /// `sent` or `received`.
    what: &'static str,
    begun_at: u64,
    /// 0: unknown.
    expected: u64,
    is_shown: bool,
    shown: Duration,
}

impl Progress {
    /// A stream that begins at byte `begun_at` of about `expected`.
    pub(super) fn new(what: &'static str, begun_at: u64, expected: u64) -> Self {
        let is_shown = std::io::stderr().is_terminal();
        Self { clock: SystemClock::new(), what, begun_at, expected, is_shown, shown: Duration::ZERO }
    }

    /// The stream is at `position`.
    pub(super) fn at(&mut self, position: u64) {
        if self.is_shown && self.clock.monotonic() >= self.shown + PERIOD {
            self.shown = self.clock.monotonic();
            eprint!("\r{}\x1b[K", self.line(position));
        }
    }

    /// It has ended: the line goes.
    pub(super) fn end(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }

    fn line(&self, position: u64) -> String {
        let seconds = self.clock.monotonic().as_secs_f64().max(0.001);
        let speed = human_bytes((position.saturating_sub(self.begun_at) as f64 / seconds) as u64);
        let of = match self.expected {
            0 => String::new(),
            expected => format!(" of about {}", human_bytes(expected.max(position))),
        };
        format!("{} {}{of}, {speed}/s", self.what, human_bytes(position))
    }
}
