//! Watches the resident set of a daemon while it works.
//!
//! Thread safety: one watching thread per daemon, ended and joined by [`MemoryWatch::finish`].

use crate::host::kib_field;
use serde::Serialize;
use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(20);

/// The most that was seen (bytes).
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct MemoryPeak {
    /// Resident set with mapped files, as the kernel keeps it (`VmHWM`).
    pub resident_bytes_max: u64,
    /// Its anonymous part, the highest of the samples (`RssAnon`).
    pub anonymous_bytes_max: u64,
}

impl MemoryPeak {
    /// The larger of both, field by field.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            resident_bytes_max: self.resident_bytes_max.max(other.resident_bytes_max),
            anonymous_bytes_max: self.anonymous_bytes_max.max(other.anonymous_bytes_max),
        }
    }

    fn sample(pid: u32) -> Self {
        // The daemon may be gone already; then there is nothing to see.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        Self {
            resident_bytes_max: kib_field(&status, "VmHWM:").unwrap_or(0),
            anonymous_bytes_max: kib_field(&status, "RssAnon:").unwrap_or(0),
        }
    }
}

/// A thread that samples one process.
pub struct MemoryWatch {
    stop: Sender<()>,
    thread: JoinHandle<MemoryPeak>,
}

impl MemoryWatch {
    /// Starts to watch the process.
    pub fn start(pid: u32) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut peak = MemoryPeak::sample(pid);
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                peak = peak.max(MemoryPeak::sample(pid));
            }
            peak.max(MemoryPeak::sample(pid))
        });
        Self { stop, thread }
    }

    /// Stops watching; the process may have ended already.
    pub fn finish(self) -> MemoryPeak {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}
