//! The thread that syncs what nothing else syncs, within the commit interval.
//!
//! Thread safety: one thread, ended by its owner. Invariant: it keeps no store open that its owner has let go of.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_locks::{Condvar, Mutex, class};
use kvfs_store::{Position, Result, StoreError};

use crate::database::Database;
use crate::shared::Shared;

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
pub(crate) struct Syncer {
    asked: Arc<Asked>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    pub(crate) fn start<D: Database>(shared: &Arc<Shared<D>>, interval: Duration) -> Result<Self> {
        let wish = Mutex::new(Wish { is_over: false, interval });
        let asked = Arc::new(Asked { wish, changed: Condvar::default() });
        let (theirs, shared) = (Arc::clone(&asked), Arc::clone(shared));
        let thread = std::thread::Builder::new().name("kvfs-engine-sync".into());
        let thread = thread.spawn(move || run(&shared, &theirs));
        let thread = thread.map_err(|error| StoreError::io("starting a thread", error))?;
        Ok(Self { asked, thread: Some(thread) })
    }

    /// From now on.
    pub(crate) fn set_interval(&self, interval: Duration) {
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

fn run<D: Database>(shared: &Shared<D>, asked: &Asked) {
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
        if !shared.is_synced() {
            // The failure is kept, and told to the next write.
            let _ = shared.sync(Position(shared.newest()));
        }
    }
}
