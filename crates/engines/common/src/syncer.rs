//! The thread that syncs what nothing else syncs, within the commit interval.
//!
//! Thread safety: one thread, ended by its owner. Invariant: it keeps no store open that its owner has let go
//! of.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_locks::{Condvar, Mutex, class};
use kvfs_store::{Result, StoreError};

/// What is asked of it.
struct Wish {
    is_over: bool,
    interval: Duration,
}

struct Asked {
    wish: Mutex<Wish, class::EngineSyncerWish>,
    changed: Condvar,
}

/// See the module.
pub struct Syncer {
    asked: Arc<Asked>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// Calls `sync` each `interval`, until the drop: it makes durable what is not yet, and keeps its failure
    /// for the next write.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(interval: Duration, sync: impl Fn() -> Result<()> + Send + 'static) -> Result<Self> {
        let wish = Mutex::new(Wish { is_over: false, interval });
        let asked = Arc::new(Asked { wish, changed: Condvar::default() });
        let theirs = Arc::clone(&asked);
        let thread = std::thread::Builder::new().name("kvfs-engine-sync".into());
        let thread = thread.spawn(move || run(&sync, &theirs));
        let thread = thread.map_err(|error| StoreError::io("starting a thread", error))?;
        Ok(Self { asked, thread: Some(thread) })
    }

    /// From now on.
    pub fn set_interval(&self, interval: Duration) {
        self.asked.wish.lock().interval = interval;
        self.asked.changed.notify_all();
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.asked.wish.lock().is_over = true;
        self.asked.changed.notify_all();
        // A panic of the thread has been told of already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(sync: &impl Fn() -> Result<()>, asked: &Asked) {
    loop {
        let mut wish = asked.wish.lock();
        if !wish.is_over {
            let interval = wish.interval;
            asked.changed.wait_for(&mut wish, interval);
        }
        if wish.is_over {
            return;
        }
        drop(wish);
        // The failure is kept, and told to the next write.
        let _ = sync();
    }
}
