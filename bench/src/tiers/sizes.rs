//! How large everything is.
//!
//! Thread safety: plain data.

use clap::ValueEnum;
use std::time::Duration;

/// How much is done.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// What the goals are meant for
    Full,
    /// An eighth
    Quick,
    /// To try the harness, not to quote
    Trial,
}

/// In bytes and times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// What is read and written at a time of the life of the store.
    pub(crate) hot_bytes: u64,
    /// Of all files.
    pub(crate) data_bytes: u64,
    /// Of the fast device beside a slow one.
    pub(crate) fast_bytes: u64,
    /// Of every other device.
    pub(crate) whole_bytes: u64,
    /// What moves while latencies are taken.
    pub(crate) moving_bytes: u64,
    /// `--memory` of the daemon: the block cache is to hold little of what is hot.
    pub(crate) memory_bytes: u64,
    /// For how long a rate is taken.
    pub(crate) timing: Duration,
}

impl Sizes {
    pub(crate) fn of(suite: Suite) -> Self {
        let (hot_mib, seconds) = match suite {
            Suite::Full => (2048, 60),
            Suite::Quick => (256, 20),
            Suite::Trial => (32, 5),
        };
        let hot_bytes = hot_mib << 20;
        Self {
            hot_bytes,
            data_bytes: 10 * hot_bytes,
            fast_bytes: 2 * hot_bytes + (256 << 20),
            whole_bytes: 13 * hot_bytes + (1 << 30),
            moving_bytes: hot_bytes / 2,
            memory_bytes: 64 << 20,
            timing: Duration::from_secs(seconds),
        }
    }
}
