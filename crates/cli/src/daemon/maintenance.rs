//! What nobody waits for: orphans are reaped, lazily kept access times written, and the kernel is asked to
//! forget nodes when there are too many.
//!
//! Thread safety: two threads, since the first may wait for the disk and the second bounds memory.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::FileSystem;
use kvfs_fuse::{Notification, Notifier};
use parking_lot::{Condvar, Mutex};

use crate::error::{CliError, Code, Result};

/// How often orphans and access times get their turn.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);
/// How often the size of the node table is looked at.
const PRUNE_INTERVAL: Duration = Duration::from_millis(250);
/// The same, while the kernel is forgetting.
const PRUNE_INTERVAL_BUSY: Duration = Duration::from_millis(20);
/// Nodes that the kernel is asked to forget at a time.
const PRUNE_COUNT: usize = 1024;

/// The threads; dropped, they end.
pub(super) struct Maintenance {
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

/// Ends waits.
#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Waits; true: it is time to end.
    fn wait(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.changed.wait_for(&mut stopped, time);
        }
        *stopped
    }
}

impl Maintenance {
    pub(super) fn start(fs: &Arc<FileSystem>, notifier: Notifier, read_only: bool) -> Result<Self> {
        let mut threads = Self { stop: Arc::default(), threads: Vec::new() };
        let (pruned, stop) = (Arc::clone(fs), Arc::clone(&threads.stop));
        threads.spawn("kvfs-prune", move || prune_loop(&pruned, &notifier, &stop))?;
        if !read_only {
            let (kept, stop) = (Arc::clone(fs), Arc::clone(&threads.stop));
            threads.spawn("kvfs-housekeep", move || housekeep_loop(&kept, &stop))?;
        }
        Ok(threads)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|error| CliError::new(Code::Failed, format!("cannot start thread {name}: {error}")))?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a maintenance thread panicked");
            }
        }
    }
}

fn housekeep_loop(fs: &FileSystem, stop: &Stop) {
    let mut failing = false;
    while !stop.wait(HOUSEKEEPING_INTERVAL) {
        match fs.housekeep() {
            Ok(()) => failing = false,
            // Once is enough: a store that refuses writes goes on refusing them.
            Err(error) if !failing => {
                tracing::warn!(%error, "housekeeping failed; it is tried again");
                failing = true;
            }
            Err(_) => {}
        }
    }
}

fn prune_loop(fs: &FileSystem, notifier: &Notifier, stop: &Stop) {
    let mut interval = PRUNE_INTERVAL;
    while !stop.wait(interval) {
        interval = if prune(fs, notifier) { PRUNE_INTERVAL_BUSY } else { PRUNE_INTERVAL };
    }
}

/// Asks the kernel to forget a few nodes, if there are too many; false: there are not.
fn prune(fs: &FileSystem, notifier: &Notifier) -> bool {
    let candidates = fs.prune_candidates(PRUNE_COUNT);
    if candidates.is_empty() {
        return false;
    }
    let nodes = candidates.iter().map(|candidate| candidate.node.0).collect();
    if notifier.submit(Notification::Prune { nodes }).is_ok() {
        return true;
    }
    for (parent, name) in candidates.into_iter().filter_map(|candidate| candidate.link) {
        let name = name.into_vec().into();
        let entry = Notification::InvalEntry { parent: parent.0, name, expire_only: false };
        if notifier.submit(entry).is_err() {
            break;
        }
    }
    true
}
