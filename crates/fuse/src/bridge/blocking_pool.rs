//! Threads for what may wait for something that another one of them does: one for each job.
//!
//! A commit waits for its turn and for the kernel, which may wait for a request that waits for another
//! transaction, which may end by the next job. So no job ever waits for a thread. An idle thread is kept for
//! a while.
//!
//! Thread safety: jobs come from any thread, and submitting never waits. Jobs of a kind that a user can have
//! without end take a part of [`job_shares`] first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvfs_locks::{Condvar, Mutex, class};
use kvfs_socket::{Exempt, Shares};

use super::background::{Job, guarded};

/// A thread without work ends after this.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Jobs of a user at once, root excepted, of a kind that a user can have without end: threads are what all
/// users share.
const JOBS_PER_USER_MAX: usize = 64;

/// What such jobs take part of.
pub(super) fn job_shares() -> Shares {
    Shares::new(usize::MAX, JOBS_PER_USER_MAX, Exempt::Unbounded(0))
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle_count: usize,
    has_ended: bool,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State, class::FuseBridgeBlockingPoolState>,
    changed: Condvar,
}

/// See the module.
#[derive(Clone, Default)]
pub(super) struct BlockingPool(Arc<Shared>);

impl BlockingPool {
    /// Has `job` done on a thread of its own. Gives it back after the end, or when there is no thread to be
    /// had.
    pub(super) fn submit(&self, job: Job) -> Result<(), Job> {
        let mut state = self.0.state.lock();
        if state.has_ended {
            return Err(job);
        }
        state.jobs.push_back(job);
        if state.jobs.len() <= state.idle_count {
            self.0.changed.notify_one();
            return Ok(());
        }
        state.threads.retain(|thread| !thread.is_finished());
        let shared = Arc::clone(&self.0);
        match thread::Builder::new().name("fuse-blocking".to_owned()).spawn(move || shared.work()) {
            Ok(thread) => {
                state.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, "no thread for a request that may wait");
                // No thread has taken it: the lock was held.
                state.jobs.pop_back().map_or(Ok(()), Err)
            }
        }
    }

    /// Lets the threads do what is there, and end.
    pub(super) fn end(&self) {
        self.0.state.lock().has_ended = true;
        self.0.changed.notify_all();
    }

    /// As [`Self::end`], and waits for them.
    pub(super) fn join(&self) {
        self.end();
        let threads = std::mem::take(&mut self.0.state.lock().threads);
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread for requests that may wait panicked");
            }
        }
    }
}

impl Shared {
    /// Body of each thread.
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                guarded(job);
                state = self.state.lock();
                continue;
            }
            if state.has_ended {
                return;
            }
            state.idle_count += 1;
            let is_late = self.changed.wait_for(&mut state, IDLE_MAX).timed_out();
            state.idle_count -= 1;
            if is_late && state.jobs.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn jobs_that_wait_for_each_other_all_end() {
        let blocking_pool = BlockingPool::default();
        let (done, ended) = mpsc::channel();
        // Each waits for the one that is submitted after it.
        let mut waits: Option<mpsc::Sender<()>> = None;
        for _ in 0..20 {
            let (tell, told) = mpsc::channel();
            let (before, done) = (waits.replace(tell), done.clone());
            let job: Job = Box::new(move || {
                drop(before);
                let _ = told.recv();
                let _ = done.send(());
            });
            assert!(blocking_pool.submit(job).is_ok());
        }
        drop((waits, done));
        assert_eq!(ended.iter().count(), 20);
        blocking_pool.join();
        assert!(blocking_pool.submit(Box::new(|| {})).is_err());
    }

    #[test]
    fn jobs_of_a_user_are_bounded_and_come_back() {
        let jobs = job_shares();
        let take = |uid| (0..JOBS_PER_USER_MAX).map(|_| jobs.take(uid, 1)).collect::<Vec<_>>();
        let [mut held, of_another, of_root] = [take(1000), take(1001), take(0)];
        assert!([&held, &of_another, &of_root].iter().all(|shares| shares.iter().all(Option::is_some)));
        assert!(jobs.take(1000, 1).is_none() && jobs.take(0, 1).is_some());
        drop(held.pop());
        assert!(jobs.take(1000, 1).is_some());
        drop((held, of_another, of_root));
        assert!(jobs.is_whole());
    }
}
