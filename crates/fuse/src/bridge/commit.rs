//! The commit of a transaction, as far as the kernel has a part in it.
//!
//! The view is closed for all but WRITEs; its own kernel side writes out what is dirty; the main line's kernel
//! side writes out and drops its pages of the files that are about to change (what was dirty there meets the
//! transaction's locks, which is a conflict); the store commits; the main line's kernel side forgets what has
//! changed; the committer is answered.
//!
//! Who commits while the kernel holds a lock for him says how long the pages of the view may take: they may wait for a
//! transaction that wants this very lock. They are written by a thread of the crew then, which goes on when he gives up.
//!
//! Thread safety: for threads that may block, never workers and notification threads. Commits take turns from
//! the plan on: a notification of one may wait for a request that waits for another transaction's lock, and
//! that one must still be free to give way.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{CommitPlan, Durability, FileSystem, FsError, Invalidations, NodeId, Position};

use parking_lot::{Condvar, Mutex};

use super::background::Job;
use super::writers::Writers;
use super::{Bridge, Shared};
use crate::abi::notify::INC_EPOCH;
use crate::notify::Notification;

/// Names to forget one by one; where there are more, the kernel asks anew for every name that it knows.
const ENTRIES_MAX: usize = 1000;

/// Pages and attributes of a file; dirty pages are written first.
pub(super) fn everything_of(node: u64) -> Notification {
    Notification::InvalInode { node, offset: 0, len: 0 }
}

fn attributes_of(node: u64) -> Notification {
    Notification::InvalInode { node, offset: -1, len: 0 }
}

impl Shared {
    /// See [`Bridge::write_back`].
    fn write_back(&self) -> Result<(), FsError> {
        if self.fs.txn_id().is_none() {
            // What was lost before has been told to whom it concerned; a view, though, has lost it for good.
            self.lost_write.lock().take();
        }
        if let Some(notifier) = self.notifier.get() {
            let files = self.fs.cached_files();
            let ended = notifier.carry_out_all(files.into_iter().map(|file| everything_of(file.0)));
            if let Err(error) = ended {
                // The last user of the mount has gone, and wrote its pages before.
                tracing::debug!(%error, "the view was unmounted before its commit");
            }
        }
        self.lost_write.lock().clone().map_or(Ok(()), Err)
    }
}

/// The dirty pages of a view on their way out, by a thread of the crew.
#[derive(Default)]
pub(super) struct WriteOut {
    state: Mutex<Round>,
    ended: Condvar,
}

#[derive(Default)]
struct Round {
    is_under_way: bool,
    failed: Option<FsError>,
}

/// Ends the round when it is dropped, whatever came of it.
struct UnderWay(Arc<Shared>);

impl UnderWay {
    fn carry_out(&self) {
        let failed = self.0.write_back().err();
        self.0.write_out.state.lock().failed = failed;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.write_out.state.lock().is_under_way = false;
        self.0.write_out.ended.notify_all();
    }
}

/// Files of which the main line's kernel side has no old pages, and gets none, until this is dropped.
struct DrivenOut<'a>(&'a Writers);

impl Drop for DrivenOut<'_> {
    fn drop(&mut self) {
        self.0.rest();
    }
}

impl Bridge {
    /// Commits the transaction of `view`, which came from this bridge's main line and is reached through
    /// `own`, if it is mounted. When this returns, whoever uses the main line sees the changes, and nothing
    /// older; with [`Durability::Synced`] they survive a power cut. `pages_max`: how long the view's dirty pages may
    /// take, at about.
    ///
    /// # Errors
    /// As [`FileSystem::commit`]; `Busy`: the pages take longer, and go on. After `Canceled` there is nothing left but to
    /// abort; after others it can be tried again.
    pub fn commit(
        &self,
        view: &Arc<FileSystem>,
        own: Option<&Self>,
        durability: Durability,
        pages_max: Option<Duration>,
    ) -> Result<Position, FsError> {
        // Who has changed nothing and has no kernel side has nothing to tell the kernel, and waits for nobody.
        if own.is_none()
            && let Some(position) = view.commit_unwritten()
        {
            if durability == Durability::Synced {
                self.files.shared.fs.sync(position)?;
            }
            return Ok(position);
        }
        view.freeze()?;
        let written = own.map_or(Ok(()), |own| own.write_back_within(pages_max));
        let done = written.and_then(|()| self.commit_frozen(view, durability));
        if done.is_err() {
            view.thaw();
        }
        done
    }

    fn commit_frozen(&self, view: &Arc<FileSystem>, durability: Durability) -> Result<Position, FsError> {
        let _turn = self.files.shared.commits.lock();
        let plan = view.commit_plan()?;
        let driving = self.drive_out(view, &plan);
        let committed = view.commit(durability, || drop(driving))?;
        self.have_forgotten(committed.invalidations);
        committed.durable.map(|()| committed.position)
    }

    /// Has the kernel write out every dirty page of this view, of shared mappings too, and drop its pages.
    ///
    /// # Errors
    /// That of a page that could not be written.
    pub fn write_back(&self) -> Result<(), FsError> {
        self.files.shared.write_back()
    }

    /// The same for a view, waiting for about `time_max` at most, if that is given.
    fn write_back_within(&self, time_max: Option<Duration>) -> Result<(), FsError> {
        let Some(time_max) = time_max else { return self.write_back() };
        let shared = &self.files.shared;
        let WriteOut { state, ended } = &shared.write_out;
        let mut round = state.lock();
        let is_late = |round: &mut parking_lot::MutexGuard<'_, Round>| {
            ended.wait_while_for(round, |round| round.is_under_way, time_max).timed_out()
        };
        let late = || FsError::Busy("the view's dirty pages wait for somebody else's lock");
        // One that began before may have passed by what is dirty now.
        if is_late(&mut round) {
            return Err(late());
        }
        *round = Round { is_under_way: true, failed: None };
        drop(round);
        let under_way = UnderWay(Arc::clone(shared));
        let job: Job = Box::new(move || under_way.carry_out());
        if let Err(job) = self.files.background.crew.submit(job) {
            // No thread is to be had just now.
            drop(job);
            return Err(late());
        }
        let mut round = state.lock();
        if is_late(&mut round) {
            return Err(late());
        }
        round.failed.take().map_or(Ok(()), Err)
    }

    /// Has the kernel drop its pages of these files. What is dirty comes in, and dooms the transaction.
    /// Until what this returns is dropped, who reads them waits.
    fn drive_out(&self, view: &Arc<FileSystem>, plan: &CommitPlan) -> Option<DrivenOut<'_>> {
        let notifier = self.files.shared.notifier.get().filter(|_| !plan.contents.is_empty())?;
        let driven = DrivenOut(&self.files.shared.writers);
        let mut files = driven.0.drive(plan, view);
        files.retain(|file| self.files.shared.fs.knows(NodeId(*file)));
        // Of one that has given way nothing will appear.
        while view.doom().is_none() {
            // The connection's end leaves no pages either.
            let _ = notifier.carry_out_all(files.into_iter().map(everything_of));
            files = driven.0.next_round();
            if files.is_empty() {
                break;
            }
        }
        Some(driven)
    }

    /// Has the kernel forget what a commit changed.
    fn have_forgotten(&self, changes: Invalidations) {
        let Some(notifier) = self.files.shared.notifier.get() else { return };
        // Cached listings are pages of the directory.
        let listings: BTreeSet<u64> = changes.entries.iter().map(|(directory, _)| directory.0).collect();
        let nodes = changes.nodes.into_iter().filter(|(node, _)| !listings.contains(&node.0));
        let nodes = nodes
            .map(|(node, content)| if content { everything_of(node.0) } else { attributes_of(node.0) })
            .chain(listings.iter().copied().map(everything_of));
        let (root_names, is_in_root) = (&self.files.shared.root_names, listings.contains(&NodeId::ROOT.0));
        let by_name = is_in_root.then(|| root_names.by_name());
        let by_epoch = (changes.entries.len() > ENTRIES_MAX && notifier.supports(INC_EPOCH))
            || matches!(by_name, Some(None));
        let entries = changes.entries.into_iter().filter(|_| !by_epoch).map(|(directory, name)| {
            Notification::InvalEntry { parent: directory.0, name: Bytes::from(name), expire_only: false }
        });
        let epoch = by_epoch.then_some(Notification::IncEpoch);
        // The connection's end forgets everything.
        let _ = notifier.carry_out_all(epoch.into_iter().chain(entries).chain(nodes));
        drop(by_name);
    }
}
