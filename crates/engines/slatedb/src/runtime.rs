//! The runtime of a store, and how a call waits for what it does.
//!
//! Purpose: futures of `SlateDB` are polled on the thread that needs their result, so that what is in memory
//! costs no change of threads; requests and background work run on threads of the runtime.
//!
//! Thread safety: shared by all threads. Invariant: a thread that waits here is never one of the runtime's
//! own, so the runtime goes on.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use kvfs_store::{Result, StoreError};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads for requests and background work, at most and at least.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;

/// See the module.
pub(crate) struct Executor {
    /// `None`: it is being dropped.
    runtime: Option<Runtime>,
}

impl Executor {
    pub(crate) fn start() -> Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut builder = Builder::new_multi_thread();
        builder.enable_all().thread_name("kvfs-slatedb");
        builder.worker_threads(processors.clamp(*THREADS.start(), *THREADS.end()));
        let runtime = builder.build().map_err(|error| StoreError::io("starting a runtime", error))?;
        Ok(Self { runtime: Some(runtime) })
    }

    /// For tasks that others begin.
    pub(crate) fn handle(&self) -> Handle {
        self.runtime.as_ref().expect("it is there until the drop").handle().clone()
    }

    /// Runs `task` on the threads of the runtime, until its end or that of the runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }

    /// Drives `future` to its end.
    pub(crate) fn wait<F: Future>(&self, future: F) -> F::Output {
        let runtime = self.runtime.as_ref().expect("it is there until the drop");
        let _inside = runtime.enter();
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(output) => return output,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // A runtime that is dropped waits for its threads, which a thread of another runtime must not.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn futures_are_driven_on_any_thread_and_within_another_runtime() {
        let executor = Executor::start().unwrap();
        let sleep = || async {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            tokio::spawn(async { 7 }).await.unwrap()
        };
        assert_eq!(executor.wait(sleep()), 7);
        let other = Executor::start().unwrap();
        let (executor, other) = (&executor, &other);
        assert_eq!(other.wait(async move { executor.wait(sleep()) }), 7);
    }
}
