//! Going on to newer states of a store that is written to elsewhere.
//!
//! Thread safety: one thread, ended by its owner. Invariants: what another process has made durable is shown
//! within [`AGE_MAX`], as long as the store can be reached; what a front end caches unasked it asks for again
//! within [`CACHE_TIME_MAX`].

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::FileSystem;
use kvfs_locks::{Condvar, Mutex, class};

/// What is shown is at most so old.
pub const AGE_MAX: Duration = Duration::from_secs(2);

/// A front end may keep names and attributes so long.
pub const CACHE_TIME_MAX: Duration = Duration::from_millis(500);

/// From the end of one look to the next one. What is left is for the look itself.
const LOOK_PERIOD: Duration = Duration::from_millis(900);

const _: () = assert!(
    CACHE_TIME_MAX.as_millis() + LOOK_PERIOD.as_millis() < AGE_MAX.as_millis(),
    "a look takes its time, too"
);

#[derive(Default)]
struct Asked {
    is_over: Mutex<bool, class::ServiceFollowOver>,
    changed: Condvar,
}

/// The thread that looks for newer states.
pub struct Follower {
    fs: Arc<FileSystem>,
    asked: Arc<Asked>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Calls `shown` after each look: whether a newer state is shown. `None`: the file system does not
    /// follow.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start(fs: &Arc<FileSystem>, shown: impl Fn(bool) + Send + 'static) -> io::Result<Option<Self>> {
        if !kvfs_fs::follows(fs) {
            return Ok(None);
        }
        let asked = Arc::new(Asked::default());
        let (theirs, of_thread) = (Arc::clone(&asked), Arc::clone(fs));
        let thread = std::thread::Builder::new().name("kvfs-follow".into());
        let thread = thread.spawn(move || run(&of_thread, &theirs, &shown))?;
        Ok(Some(Self { fs: Arc::clone(fs), asked, thread: Some(thread) }))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        *self.asked.is_over.lock() = true;
        self.asked.changed.notify_all();
        if let Some(follow) = self.fs.store().follow() {
            follow.stop_following();
        }
        // A panic of the thread has been told of already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(fs: &FileSystem, asked: &Asked, shown: &dyn Fn(bool)) {
    let mut is_failing = false;
    loop {
        {
            let mut is_over = asked.is_over.lock();
            if !*is_over {
                asked.changed.wait_for(&mut is_over, LOOK_PERIOD);
            }
            if *is_over {
                return;
            }
        }
        match kvfs_fs::show_newer(fs) {
            Ok(is_newer) => {
                if std::mem::take(&mut is_failing) {
                    tracing::info!("newer states of the store are found again");
                }
                shown(is_newer);
            }
            // Once, until it works again.
            Err(error) if !std::mem::replace(&mut is_failing, true) => {
                tracing::warn!(%error, "the store can't be followed; the state that was found last is shown until it can");
            }
            Err(_) => {}
        }
    }
}
