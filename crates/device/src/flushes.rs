//! Flushes of a device, one after another, and what a failed one means.
//!
//! Purpose: a kernel tells an error of a flush once, to one who asks, and takes what was to be flushed for clean. Were two flushes under
//! way at once, or another one made behind a failed one, what is lost would be reported as durable.
//!
//! Thread safety: shared by all threads; those that come while a flush is under way share the next one. Invariants: a call returns
//! when a flush has succeeded that began after the call did; from a failed flush on every call fails.

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
    /// Those of them that have succeeded, which all have but one that is under way.
    done: u64,
    is_under_way: bool,
    failed: Option<Failure>,
}

/// The error of a flush, to be told again.
#[derive(Clone)]
struct Failure {
    kind: io::ErrorKind,
    errno: Option<i32>,
    message: String,
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        Self { kind: error.kind(), errno: error.raw_os_error(), message: error.to_string() }
    }

    fn error(&self) -> io::Error {
        match self.errno {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::new(self.kind, self.message.clone()),
        }
    }
}

impl Flushes {
    /// Flushes by `flush`, or waits for one that another thread makes.
    ///
    /// # Errors
    /// That of the first flush that failed, from then on.
    pub(crate) fn flush(&self, flush: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let covering = state.begun + 1;
        while state.is_under_way && state.done < covering && state.failed.is_none() {
            self.ended.wait(&mut state);
        }
        if let Some(failed) = &state.failed {
            return Err(failed.error());
        }
        if state.done >= covering {
            return Ok(());
        }
        state.begun += 1;
        state.is_under_way = true;
        drop(state);
        let flushed = flush();
        let mut state = self.state.lock();
        state.is_under_way = false;
        match &flushed {
            Ok(()) => state.done = state.begun,
            Err(error) => state.failed = Some(Failure::of(error)),
        }
        self.ended.notify_all();
        flushed
    }
}

#[cfg(test)]
mod tests;
