//! Threads beside the workers: one tries parked requests again, one waits for the disk, one keeps house.
//!
//! Thread safety: jobs are submitted from any thread and never wait there. Their number needs no bound of
//! its own: each stands for a request, and the kernel bounds those by the number of callers.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvfs_fs::{FileSystem, FsError, Position};
use kvfs_locks::{Condvar, Mutex, class};
use kvfs_socket::{Exempt, Shares};

use super::blocking_pool::{BlockingPool, job_shares};

/// A queue that one thread empties.
pub(super) struct Queue<T> {
    state: Mutex<(VecDeque<T>, bool), class::FuseBridgeBackgroundState>,
    changed: Condvar,
}

impl<T> Queue<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new((VecDeque::new(), false)), changed: Condvar::new() })
    }

    /// Appends; gives the item back when the thread has ended.
    pub(super) fn submit(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.1 {
            return Err(item);
        }
        state.0.push_back(item);
        self.changed.notify_one();
        Ok(())
    }

    /// Everything that waits; empty when the queue has ended.
    fn take_all(&self) -> VecDeque<T> {
        let mut state = self.state.lock();
        while state.0.is_empty() && !state.1 {
            self.changed.wait(&mut state);
        }
        std::mem::take(&mut state.0)
    }

    /// Waits for `period` or the end; true: the end.
    fn wait_for_end(&self, period: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.1 {
            self.changed.wait_for(&mut state, period);
        }
        state.1
    }

    fn end(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }
}

/// Something to be done by a thread that isn't a worker.
pub(super) type Job = Box<dyn FnOnce() + Send>;
/// Called when a position is durable, or can't be made so.
pub(super) type Synced = Box<dyn FnOnce(Result<(), FsError>) + Send>;

/// Housekeeping of a view, for as long as the view keeps it.
pub(super) type Tick = Arc<dyn Fn() + Send + Sync>;

type Tenants = Arc<Mutex<Vec<Weak<dyn Fn() + Send + Sync>>, class::FuseBridgeBackgroundTenants>>;

/// The threads.
pub(super) struct Background {
    /// Parked requests that may go on.
    pub(super) retries: Arc<Queue<Job>>,
    /// Positions that callers wait for.
    pub(super) syncs: Arc<Queue<(Position, Synced)>>,
    /// What may wait for something that another request does.
    pub(super) blocking_pool: BlockingPool,
    /// Its jobs that are calls on what is shown.
    pub(super) view_calls: Shares,
    /// Requests for which space is made.
    pub(super) space_makers: Shares,
    /// Bytes that parked requests hold to be written.
    pub(super) waiting_bytes: Shares,
    timer: Arc<Queue<()>>,
    /// Housekeeping of the views that share these threads.
    tenants: Tenants,
    threads: Mutex<Vec<JoinHandle<()>>, class::FuseBridgeBackgroundThreads>,
}

impl Background {
    /// Starts the threads; `tick` is called every `period` on one of its own.
    pub(super) fn start(
        fs: Arc<FileSystem>,
        period: Duration,
        waiting_bytes_max: usize,
        tick: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let background = Self {
            retries: Queue::new(),
            syncs: Queue::new(),
            blocking_pool: BlockingPool::default(),
            view_calls: job_shares(),
            space_makers: job_shares(),
            waiting_bytes: Shares::new(waiting_bytes_max, waiting_bytes_max / 2, Exempt::Whole(0)),
            timer: Queue::new(),
            tenants: Tenants::default(),
            threads: Mutex::default(),
        };
        let retries = Arc::clone(&background.retries);
        background.spawn("fuse-retry", move || {
            drain(&retries, |jobs| jobs.into_iter().for_each(guarded));
        })?;
        let syncs = Arc::clone(&background.syncs);
        background.spawn("fuse-sync", move || drain(&syncs, |waiting| guarded(|| sync_all(&fs, waiting))))?;
        let (timer, tenants) = (Arc::clone(&background.timer), Arc::clone(&background.tenants));
        background.spawn("fuse-housekeep", move || {
            while !timer.wait_for_end(period) {
                guarded(&tick);
                for tick in living(&tenants) {
                    guarded(|| tick());
                }
            }
        })?;
        Ok(background)
    }

    /// Has `tick` called with the others from now on, until it is dropped.
    pub(super) fn admit(&self, tick: &Tick) {
        self.tenants.lock().push(Arc::downgrade(tick));
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body)?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Lets the threads do what is queued, and end. Callable more than once.
    pub(super) fn end(&self) {
        self.retries.end();
        self.syncs.end();
        self.timer.end();
        self.blocking_pool.end();
    }

    /// As [`Self::end`], and waits for them.
    pub(super) fn join(&self) {
        self.end();
        self.blocking_pool.join();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a job; a panic ends the job (whose request then answers EIO), not the thread.
pub(super) fn guarded(job: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(job)).is_err() {
        tracing::error!("a job beside the workers panicked");
    }
}

/// Those that are still kept; the others go.
fn living(tenants: &Tenants) -> Vec<Tick> {
    let mut living = Vec::new();
    tenants.lock().retain(|tick| tick.upgrade().map(|tick| living.push(tick)).is_some());
    living
}

fn drain<T>(queue: &Queue<T>, mut handle: impl FnMut(VecDeque<T>)) {
    loop {
        let items = queue.take_all();
        if items.is_empty() {
            return;
        }
        handle(items);
    }
}

/// One sync serves all waiting requests: those that come meanwhile are the next group.
fn sync_all(fs: &FileSystem, waiting: VecDeque<(Position, Synced)>) {
    let Some(position) = waiting.iter().map(|(position, _)| *position).max() else { return };
    let outcome = fs.sync(position);
    for (_, done) in waiting {
        done(outcome.clone());
    }
}
