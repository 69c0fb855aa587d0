//! Flushes of a device, one after another, and what a failed one means.
//!
//! Purpose: a kernel tells an error of a flush once, to one who asks, and takes what was to be flushed for
//! clean. Were two flushes under way at once, or another one made behind a failed one, what is lost would be
//! reported as durable.
//!
//! Thread safety: shared by all threads; those that come while a flush is under way share the next one.
//! Invariants: a call returns when a flush has succeeded that began after the call did; from a failed flush
//! on, or from one that panics, every call fails.

use std::io;

use kvfs_locks::{Condvar, Mutex, class};

/// See the module.
#[derive(Default)]
pub(crate) struct Flushes {
    state: Mutex<State, class::DeviceFlushesState>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Flushes that have begun.
    begun: u64,
    /// The last of them has not ended.
    is_under_way: bool,
    failed: Option<io::Error>,
}

impl State {
    /// Flushes that have succeeded, as long as none has failed.
    fn done(&self) -> u64 {
        self.begun - u64::from(self.is_under_way)
    }
}

/// An error that is told once more: the same errno, or the same kind and words.
pub fn same_error(error: &io::Error) -> io::Error {
    let in_words = || io::Error::new(error.kind(), error.to_string());
    error.raw_os_error().map_or_else(in_words, io::Error::from_raw_os_error)
}

impl Flushes {
    /// Flushes by `flush`, or waits for one that another thread makes.
    ///
    /// # Errors
    /// That of the first flush that failed, from then on.
    pub(crate) fn flush(&self, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let covering = state.begun + 1;
        while state.is_under_way && state.done() < covering && state.failed.is_none() {
            self.ended.wait(&mut state);
        }
        if let Some(failed) = &state.failed {
            return Err(same_error(failed));
        }
        if state.done() >= covering {
            return Ok(());
        }
        state.begun += 1;
        state.is_under_way = true;
        drop(state);
        let panicked = io::Error::other("a thread that flushed the device has panicked");
        let mut under_way = UnderWay { flushes: self, failed: Some(panicked) };
        let flushed = flush();
        under_way.failed = flushed.as_ref().err().map(same_error);
        flushed
    }
}

/// A flush by this thread. It ends when this is dropped.
struct UnderWay<'f> {
    flushes: &'f Flushes,
    /// Why it has failed. Of one that panics nothing is known.
    failed: Option<io::Error>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.flushes.state.lock();
        state.is_under_way = false;
        state.failed = self.failed.take();
        self.flushes.ended.notify_all();
    }
}

#[cfg(test)]
mod tests;
