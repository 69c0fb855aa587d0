//! Nodes that the kernel is asked to forget: when there are too many, and when they have gone.
//!
//! Thread safety: for the thread that keeps house.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use kvfs_fs::{DetachedTrees, NodeId, StaleName};

use super::Shared;
use crate::abi::notify::PRUNE;
use crate::notify::Notification;

/// Nodes that the kernel is asked to forget at a time.
const PRUNE_COUNT: usize = 1024;

impl Shared {
    /// Asks the kernel to forget nodes, when there are too many. One round at a time: the next begins when
    /// the kernel has carried out the last notification of this one.
    pub(super) fn prune(&self) {
        let Some(notifier) = self.notifier.get() else { return };
        if self.pruning.swap(true, Ordering::AcqRel) {
            return;
        }
        let candidates = self.fs.nodes().prune_candidates(PRUNE_COUNT);
        let mut notifications = if notifier.supports(PRUNE) {
            let nodes: Vec<u64> = candidates.iter().map(|candidate| self.base + candidate.node.0).collect();
            if nodes.is_empty() { Vec::new() } else { vec![Notification::Prune { nodes }] }
        } else {
            let links = candidates.into_iter().filter_map(|candidate| candidate.link);
            // A caller that waits in a setxattr of the root, or is about to, holds the lock that this would wait for.
            links
                .filter(|(parent, _)| *parent != NodeId::ROOT)
                .map(|(parent, name)| Notification::InvalEntry {
                    parent: self.base + parent.0,
                    name: Bytes::from(name),
                    expire_only: false,
                })
                .collect()
        };
        let last = notifications.pop();
        for notification in notifications {
            if notifier.submit(notification).is_err() {
                break;
            }
        }
        let pruning = Arc::clone(&self.pruning);
        let submitted =
            last.map(|last| notifier.submit_then(last, move |_| pruning.store(false, Ordering::Release)));
        if !matches!(submitted, Some(Ok(()))) {
            self.pruning.store(false, Ordering::Release);
        }
    }

    /// Has the kernel forget names of detached trees that have gone: what it knows lives on.
    pub(super) fn forget_detached(&self) {
        let Some(notifier) = self.notifier.get() else { return };
        let gone = DetachedTrees::of(&self.fs).take_stale_names();
        if notifier.supports(PRUNE) {
            for some in gone.chunks(PRUNE_COUNT) {
                let nodes = some.iter().map(|gone| self.base + gone.node.0).collect();
                if notifier.submit(Notification::Prune { nodes }).is_err() {
                    break;
                }
            }
            return;
        }
        for StaleName { directory, name, .. } in gone {
            let (parent, name) = (self.base + directory.0, Bytes::from(name));
            if notifier.submit(Notification::InvalEntry { parent, name, expire_only: false }).is_err() {
                break;
            }
        }
    }
}
