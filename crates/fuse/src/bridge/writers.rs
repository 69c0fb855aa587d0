//! Writers of the main line that wait for a transaction's lock.
//!
//! A WRITE holds its pages locked inside the kernel until it is answered, and dropping a file's pages waits
//! for them. So a commit must not have pages dropped where a WRITE waits for the committer; and where one
//! comes to wait meanwhile, the committer gives way.
//!
//! Thread safety: one short lock; nothing is called with it held. Invariant: at any moment a file either has
//! waiting writers or is being driven out, or its committer has been told to give way.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kvfs_fs::{FileSystem, NodeId};
use parking_lot::Mutex;

#[derive(Default)]
struct State {
    waiting: HashMap<u64, u32>,
    /// Files whose pages are being dropped before a commit, and who commits.
    driving: Option<(HashSet<u64>, Arc<FileSystem>)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Writers(Mutex<State>);

/// A WRITE that waits.
pub(super) struct Place {
    writers: Arc<Writers>,
    node: u64,
}

impl Writers {
    /// A WRITE of `node` by process `pid` comes to wait.
    pub(super) fn wait(self: &Arc<Self>, node: u64, pid: u32) -> Place {
        let committer = {
            let mut state = self.0.lock();
            *state.waiting.entry(node).or_default() += 1;
            let driving = state.driving.as_ref().filter(|(nodes, _)| nodes.contains(&node));
            driving.map(|(_, view)| Arc::clone(view))
        };
        if let Some(view) = committer {
            view.give_way(pid, NodeId(node));
        }
        Place { writers: Arc::clone(self), node }
    }

    /// From now on, until [`Self::rest`], the committer `view` gives way to new writers of these files.
    /// Returns those whose pages may be dropped: nobody waits to write them.
    pub(super) fn drive(&self, nodes: Vec<NodeId>, view: &Arc<FileSystem>) -> Vec<u64> {
        let mut state = self.0.lock();
        let free: Vec<u64> =
            nodes.into_iter().map(|node| node.0).filter(|node| !state.waiting.contains_key(node)).collect();
        state.driving = Some((free.iter().copied().collect(), Arc::clone(view)));
        free
    }

    /// The pages are dropped.
    pub(super) fn rest(&self) {
        self.0.lock().driving = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.writers.0.lock();
        if let Some(count) = state.waiting.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                state.waiting.remove(&self.node);
            }
        }
    }
}
