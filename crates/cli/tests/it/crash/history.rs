//! What several threads did, and which of it may be missing after a crash.
//!
//! The promise: what remains is a prefix of the history of the whole file system, and reaches at least to
//! whatever was fsynced. Requests that overlapped in time may have come in either order, so a surviving
//! request proves only that those survived that had been answered before it was sent.
//!
//! A call may be several requests: the kernel cuts a write behind its first page when it covers only a part
//! of that page and does not know the rest of it.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use super::tree::{Step, Survivor, Tree};

/// Gives out the moments at which requests are sent and answered.
#[derive(Debug, Default)]
pub(super) struct Moments(AtomicU64);

impl Moments {
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) fn so_far(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A step and when it happened.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) step: Step,
    sent: u64,
    /// `u64::MAX`: never, it may have happened or not.
    answered: u64,
}

/// What one thread did in a directory of its own, in order.
#[derive(Debug)]
pub(super) struct History {
    pub(super) directory: String,
    /// What should be there now.
    pub(super) tree: Tree,
    done: Vec<Done>,
    /// Steps that survive whatever happens.
    synced: usize,
    /// Why.
    synced_by: String,
}

impl History {
    pub(super) fn new(directory: String) -> Self {
        Self { directory, tree: Tree::new(), done: Vec::new(), synced: 0, synced_by: String::new() }
    }

    pub(super) fn summary(&self) -> String {
        format!("{}/{}", self.synced, self.done.len())
    }

    /// Does steps, all by the one call `work`, which tells how many of them it did. Writes down what came of
    /// it.
    pub(super) fn steps(
        &mut self,
        moments: &Moments,
        steps: Vec<Step>,
        work: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<()> {
        let (sent, wanted) = (moments.next(), steps.len());
        let result = work();
        let answered = moments.next();
        let count = *result.as_ref().unwrap_or(&0);
        for (index, step) in steps.into_iter().enumerate() {
            self.tree.apply(&step);
            self.done.push(Done { step, sent, answered: if index < count { answered } else { u64::MAX } });
        }
        // Cut short by an error that the next call would give.
        if result? < wanted { Err(Errno::IO.into()) } else { Ok(()) }
    }

    /// An fsync of `path` has been answered.
    pub(super) fn synced(&mut self, path: &str) {
        let changed = self.tree.changed(path);
        if changed > self.synced {
            self.synced = changed;
            self.synced_by = format!("fsync of \"{path}\" after step {}", self.done.len());
        }
    }

    /// The numbers of steps after which the tree was as it is now.
    fn candidates(&self, survivor: &Survivor) -> Result<Vec<usize>, String> {
        let mut tree = Tree::new();
        let mut candidates = Vec::new();
        let mut nearest: Option<(usize, Vec<String>)> = None;
        for steps in 0..=self.done.len() {
            if steps > 0 {
                tree.apply(&self.done[steps - 1].step);
            }
            let limit = nearest.as_ref().map_or(8, |(_, differences)| differences.len());
            let differences = survivor.compare(&tree, limit);
            if differences.is_empty() {
                candidates.push(steps);
            } else if differences.len() < limit || nearest.is_none() {
                nearest = Some((steps, differences));
            }
        }
        let (all, synced) = (self.done.len(), self.synced);
        if let Some(last) = candidates.last().filter(|last| **last < synced) {
            let lost = &self.done[*last..synced];
            return Err(format!(
                "{last} steps of {all} survived, but {synced} were synced by {}; lost: {lost:#?}",
                self.synced_by
            ));
        }
        if candidates.is_empty() {
            let (steps, differences) = nearest.unwrap_or_default();
            let around = &self.done[steps.saturating_sub(3)..all.min(steps + 3)];
            return Err(format!(
                "no prefix of the {all} steps ({synced} synced); the nearest has {steps}: {differences:#?}\naround it: {around:#?}"
            ));
        }
        candidates.retain(|steps| *steps >= synced);
        Ok(candidates)
    }

    /// Steps that were answered before `moment`.
    fn answered_before(&self, moment: u64) -> usize {
        self.done.partition_point(|done| done.answered < moment)
    }
}

/// Compares what a crash left below `root` with what may be there.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn verify(histories: &[History], root: &Path) -> Result<(), String> {
    let mut candidates = Vec::new();
    for history in histories {
        let survivor = Survivor::read(&root.join(&history.directory))?;
        let found = history.candidates(&survivor).map_err(|why| format!("{}: {why}", history.directory))?;
        candidates.push(found);
    }
    // The least choice: raise it wherever a survivor of another thread asks for more.
    let mut chosen: Vec<usize> = candidates.iter().map(|found| found[0]).collect();
    let mut settled = false;
    while !settled {
        settled = true;
        for later in 0..histories.len() {
            let Some(last) = chosen[later].checked_sub(1).map(|index| &histories[later].done[index]) else {
                continue;
            };
            for earlier in 0..histories.len() {
                let needed = histories[earlier].answered_before(last.sent);
                if chosen[earlier] >= needed {
                    continue;
                }
                settled = false;
                let next = candidates[earlier].iter().find(|steps| **steps >= needed);
                chosen[earlier] = *next.ok_or_else(|| {
                    let lost = &histories[earlier].done[chosen[earlier]..needed];
                    let (earlier, later) = (&histories[earlier].directory, &histories[later].directory);
                    format!(
                        "no prefix: {later} kept {last:?}, but {earlier} lost what came before: {lost:#?}"
                    )
                })?;
            }
        }
    }
    Ok(())
}
