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

#[cfg(test)]
mod tests {
    use kvfs_fs::{BeginOptions, Isolation, MkfsOptions, MountOptions, Owner, Rival};
    use kvfs_store::Store;
    use kvfs_store::clock::SystemClock;
    use kvfs_store::model::ModelStore;

    use super::*;

    fn committing() -> Arc<FileSystem> {
        let store: Arc<dyn Store> = Arc::new(ModelStore::new());
        let clock = Arc::new(SystemClock::new());
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes");
        let main = FileSystem::open(store, clock, MountOptions::default()).expect("opens");
        let options = BeginOptions {
            isolation: Isolation::Snapshot,
            priority: 0,
            timeout: None,
            lock_wait_max: None,
            owner: Owner::default(),
        };
        let view = Arc::new(main).begin(&options).expect("begins");
        view.freeze().expect("freezes");
        view.commit_plan().expect("plans");
        view
    }

    #[test]
    fn a_writer_that_comes_while_its_file_is_driven_out_makes_the_committer_give_way() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        let nodes = vec![NodeId(7), NodeId(8)];
        assert_eq!(writers.drive(nodes, &view), [7, 8]);
        let _elsewhere = writers.wait(9, 1);
        assert!(view.doom().is_none());
        let _there = writers.wait(8, 42);
        assert_eq!(view.doom().expect("doomed").rival, Some(Rival::Main { pid: 42 }));
    }

    #[test]
    fn files_with_waiting_writers_are_left_out_and_nobody_is_doomed_afterwards() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        let waiting = writers.wait(7, 1);
        assert_eq!(writers.drive(vec![NodeId(7), NodeId(8)], &view), [8]);
        writers.rest();
        drop(waiting);
        let _late = writers.wait(8, 1);
        assert!(view.doom().is_none());
        assert_eq!(writers.drive(vec![NodeId(7)], &view), [7]);
    }
}
