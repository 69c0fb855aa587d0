//! Nodes that the kernel is asked to forget: when there are too many, and when they have gone.
//!
//! Thread safety: for the thread that keeps house.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{DetachedTrees, FileSystem, NodeId, PruneCandidate, StaleOfTrees};

use super::Shared;
use super::commit::{attributes_of, everything_of};
use crate::abi::notify::PRUNE;
use crate::mount::names_above_mounts;
use crate::notify::{Notification, Notifier};

/// Nodes that the kernel is asked to forget at a time.
const PRUNE_COUNT: usize = 1024;

/// How long a refused operation waits for the kernel to forget what has gone.
const FORGET_WAIT_MAX: Duration = Duration::from_secs(1);

/// How often it looks meanwhile.
const FORGET_LOOK_PERIOD: Duration = Duration::from_millis(10);

/// Names of detached trees that have gone, as housekeeping has counted them.
#[derive(Default)]
pub(super) struct NamesGone {
    last: AtomicU64,
    /// The time before: what had gone then is forgotten by now.
    settled: AtomicU64,
}

impl NamesGone {
    pub(super) fn settle(&self, fs: &FileSystem) {
        let gone = DetachedTrees::of(fs).stats().names_removed;
        self.settled.store(self.last.swap(gone, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Shared {
    /// Files of detached trees that the kernel knows keep their space. Where some have gone a moment ago:
    /// asks it to forget them, and waits until that has given something back, a second at most.
    pub(super) fn has_forgotten_detached(&self) -> bool {
        let gone = DetachedTrees::of(&self.fs).stats().names_removed;
        if gone == self.names_gone.settled.load(Ordering::Relaxed) {
            return false;
        }
        self.forget_detached();
        let looks = FORGET_WAIT_MAX.as_millis() / FORGET_LOOK_PERIOD.as_millis();
        for _ in 0..looks {
            if self.fs.nodes().stats().orphans_queued > 0 {
                return true;
            }
            std::thread::park_timeout(FORGET_LOOK_PERIOD);
        }
        false
    }

    /// Asks the kernel to forget nodes, when there are too many. One round at a time: the next begins when
    /// the kernel has carried out the last notification of this one.
    pub(super) fn prune(&self) {
        let Some(notifier) = self.notifier.get() else { return };
        if self.pruning.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut candidates = self.fs.nodes().prune_candidates(PRUNE_COUNT);
        if !notifier.supports(PRUNE) && !candidates.is_empty() {
            // By its name the kernel forgets a node whatever is mounted below it.
            let kept = names_above_mounts();
            candidates.retain(|gone| gone.link.as_ref().is_none_or(|(_, name)| !kept.contains(&name[..])));
        }
        let mut notifications = self.forgetting(notifier, candidates);
        let last = notifications.pop();
        for notification in notifications {
            // One that is refused comes again in a later round.
            let _ = notifier.submit(notification);
        }
        let pruning = Arc::clone(&self.pruning);
        let submitted =
            last.map(|last| notifier.submit_then(last, move |_| pruning.store(false, Ordering::Release)));
        if !matches!(submitted, Some(Ok(()))) {
            self.pruning.store(false, Ordering::Release);
        }
    }

    /// What has the kernel forget these nodes.
    fn forgetting(&self, notifier: &Notifier, nodes: Vec<PruneCandidate>) -> Vec<Notification> {
        if notifier.supports(PRUNE) {
            let number = |gone: &PruneCandidate| self.base + gone.node.0;
            let parts = nodes.chunks(PRUNE_COUNT).map(|part| part.iter().map(number).collect());
            return parts.map(|nodes| Notification::Prune { nodes }).collect();
        }
        let links = nodes.into_iter().filter_map(|gone| gone.link);
        // A caller that waits in a setxattr of the root, or is about to, holds the lock that this would wait
        // for.
        links
            .filter(|(parent, _)| *parent != NodeId::ROOT)
            .map(|(parent, name)| Notification::InvalEntry {
                parent: self.base + parent.0,
                name: Bytes::from(name),
                expire_only: false,
            })
            .collect()
    }

    /// Has the kernel forget what has gone of detached trees: what it knows lives on. And what has changed
    /// with that: first of what has a name still, and at last of what a process may have open.
    pub(super) fn forget_detached(&self) {
        let Some(notifier) = self.notifier.get() else { return };
        let StaleOfTrees { gone, linked, emptied } = DetachedTrees::of(&self.fs).take_stale();
        let changed = gone.iter().map(|gone| &gone.node).chain(&linked).chain(&emptied);
        self.writers.told.mark(changed.map(|node| node.0));
        // Cached listings are pages of the directory.
        let listings = emptied.into_iter().map(|node| everything_of(self.base + node.0));
        let others = gone.iter().map(|gone| gone.node).filter(|node| !linked.contains(node));
        let others: Vec<_> = others.map(|node| attributes_of(self.base + node.0)).collect();
        let linked = linked.into_iter().map(|node| attributes_of(self.base + node.0));
        let gone = self.forgetting(notifier, gone);
        // After the connection's end there is no more to be done.
        let _ = notifier.submit_all(listings.chain(linked).chain(gone).chain(others));
    }
}
