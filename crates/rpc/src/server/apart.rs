//! Threads for what may wait for other requests, which need none of these: one for each piece of work.
//!
//! Thread safety: shared. Invariant: what was begun has a thread of its own, so that none waits for the end
//! of another one; what gets no thread is refused.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use tokio::sync::oneshot;
use tonic::Status;

use super::call::failed_inside;

/// What a commit may need.
const STACK_BYTES: usize = 2 << 20;

/// See the module.
pub(super) struct Apart {
    stack_bytes: usize,
    /// Each thread has one.
    running: Sender<Infallible>,
}

impl Apart {
    /// And the end of it and all of its threads: then what is returned is disconnected.
    pub(super) fn new() -> (Self, Receiver<Infallible>) {
        let (running, ended) = channel();
        (Self { stack_bytes: STACK_BYTES, running }, ended)
    }

    /// Does `work`, also if what this returns is dropped before its end.
    ///
    /// # Errors
    /// `FailedPrecondition`, as of a transaction that is busy: no thread is to be had, and nothing happened.
    /// `Internal`: it panicked.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let (sender, done) = oneshot::channel();
        let running = self.running.clone();
        let body = move || {
            let _running = running;
            // A client that has gone does not want to know.
            let _ = sender.send(work());
        };
        let thread = thread::Builder::new().name("kv-commit".into()).stack_size(self.stack_bytes).spawn(body);
        thread.map_err(|error| {
            tracing::warn!(%error, "no thread for a commit");
            let message = format!("nothing was done: there is no thread for it ({error}); try again later");
            // Not `ResourceExhausted`, by which a client knows a full store.
            Status::failed_precondition(message)
        })?;
        done.await.map_err(|error| failed_inside(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvError;

    use tonic::Code;

    use super::*;

    fn settled<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn work_without_a_thread_is_refused_and_goes_when_there_is_one() {
        let (mut apart, ended) = Apart::new();
        // No address space has room for it: the system refuses the thread, as where there are too many.
        apart.stack_bytes = 1 << 60;
        let refused = settled(apart.run(|| unreachable!("there is no thread"))).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().starts_with("nothing was done: there is no thread for it"), "{refused}");
        apart.stack_bytes = STACK_BYTES;
        assert_eq!(settled(apart.run(|| 7)).unwrap(), 7);
        drop(apart);
        assert_eq!(ended.recv(), Err(RecvError));
    }

    #[test]
    fn work_that_panics_is_answered() {
        let (apart, _ended) = Apart::new();
        let failed = settled(apart.run(|| panic!("as a commit may"))).unwrap_err();
        assert_eq!(failed.code(), Code::Internal);
    }

    #[test]
    fn work_that_no_caller_waits_for_is_done_before_the_end() {
        let (apart, ended) = Apart::new();
        let (told, tells) = channel();
        let (goes_on, waits) = channel::<()>();
        let work = move || {
            waits.recv().unwrap();
            told.send(7).unwrap();
        };
        settled(async {
            tokio::select! {
                biased;
                done = apart.run(work) => unreachable!("{done:?}"),
                () = std::future::ready(()) => {}
            }
        });
        drop(apart);
        goes_on.send(()).unwrap();
        assert_eq!(ended.recv(), Err(RecvError));
        assert_eq!(tells.try_recv(), Ok(7));
    }
}
