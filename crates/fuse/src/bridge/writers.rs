//! Writers of the main line that wait for a transaction's lock.
//!
//! A WRITE holds its pages locked inside the kernel until it is answered, and dropping a file's pages waits
//! for them. So a commit must not have pages dropped where a WRITE waits for the committer; and where one
//! comes to wait meanwhile, the committer gives way.
//!
//! A mapping writes whole pages. One that was read after the old pages were dropped, and before the commit, has the old
//! content in all bytes that its program does not change: written after the commit, it would take back what that has
//! brought. So the committer also gives way to who reads through a file that is open for writing, and to dirty pages,
//! until it has committed.
//!
//! Thread safety: one short lock, which a READ takes only during a commit; nothing is called with it held. Invariant:
//! while pages are dropped, a file either has waiting writers or is being driven out, or its committer has been told to
//! give way.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_fs::{FileSystem, NodeId};
use parking_lot::Mutex;

/// A commit that changes what the main line may have pages of.
struct Driving {
    /// The files whose pages are dropped, or were.
    nodes: HashSet<u64>,
    view: Arc<FileSystem>,
    /// The pages are dropped: what comes now is of the time between that and the commit.
    is_through: bool,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u64, u32>,
    driving: Option<Driving>,
}

impl State {
    /// Who commits changes of this file just now.
    fn committer(&self, node: u64, gives_way: impl Fn(&Driving) -> bool) -> Option<Arc<FileSystem>> {
        let driving =
            self.driving.as_ref().filter(|driving| driving.nodes.contains(&node) && gives_way(driving));
        driving.map(|driving| Arc::clone(&driving.view))
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Writers {
    state: Mutex<State>,
    is_driving: AtomicBool,
}

/// A WRITE that waits.
pub(super) struct Place {
    writers: Arc<Writers>,
    node: u64,
}

impl Writers {
    /// A WRITE of `node` by process `pid` comes to wait; `is_page`: of a dirty page.
    pub(super) fn wait(self: &Arc<Self>, node: u64, pid: u32, is_page: bool) -> Place {
        let committer = {
            let mut state = self.state.lock();
            *state.waiting.entry(node).or_default() += 1;
            state.committer(node, |driving| is_page || !driving.is_through)
        };
        if let Some(view) = committer {
            view.give_way(pid, NodeId(node));
        }
        Place { writers: Arc::clone(self), node }
    }

    /// A READ of `node` begins, by process `pid`, for a file that is open for writing.
    pub(super) fn read(&self, node: u64, pid: u32) {
        if !self.is_driving.load(Ordering::Acquire) {
            return;
        }
        let committer = self.state.lock().committer(node, |_| true);
        if let Some(view) = committer {
            view.give_way(pid, NodeId(node));
        }
    }

    /// From now on, until [`Self::rest`], the committer `view` gives way to new writers of these files.
    /// Returns those whose pages may be dropped: nobody waits to write them.
    pub(super) fn drive(&self, nodes: Vec<NodeId>, view: &Arc<FileSystem>) -> Vec<u64> {
        let mut state = self.state.lock();
        let free: Vec<u64> =
            nodes.into_iter().map(|node| node.0).filter(|node| !state.waiting.contains_key(node)).collect();
        let nodes = free.iter().copied().collect();
        state.driving = Some(Driving { nodes, view: Arc::clone(view), is_through: false });
        self.is_driving.store(true, Ordering::Release);
        free
    }

    /// The pages are dropped: who writes with a system call now waits for the committer, and not he for him.
    pub(super) fn is_through(&self) {
        if let Some(driving) = &mut self.state.lock().driving {
            driving.is_through = true;
        }
    }

    /// The commit is over.
    pub(super) fn rest(&self) {
        self.is_driving.store(false, Ordering::Release);
        self.state.lock().driving = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.writers.state.lock();
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
        let _elsewhere = writers.wait(9, 1, false);
        assert!(view.doom().is_none());
        let _there = writers.wait(8, 42, false);
        assert_eq!(view.doom().expect("doomed").rival, Some(Rival::Main { pid: 42 }));
    }

    #[test]
    fn between_the_pages_and_the_commit_only_what_may_carry_old_pages_makes_the_committer_give_way() {
        let begin = || {
            let (writers, view) = (Arc::new(Writers::default()), committing());
            assert_eq!(writers.drive(vec![NodeId(7)], &view), [7]);
            writers.is_through();
            (writers, view)
        };
        let (writers, view) = begin();
        let _by_call = writers.wait(7, 1, false);
        writers.read(8, 1);
        assert!(view.doom().is_none());
        writers.read(7, 42);
        assert_eq!(view.doom().expect("doomed").rival, Some(Rival::Main { pid: 42 }));
        let (writers, view) = begin();
        let _page = writers.wait(7, 43, true);
        assert_eq!(view.doom().expect("doomed").rival, Some(Rival::Main { pid: 43 }));
        let (writers, view) = begin();
        writers.rest();
        writers.read(7, 42);
        assert!(view.doom().is_none(), "the commit is over");
    }

    #[test]
    fn files_with_waiting_writers_are_left_out_and_nobody_is_doomed_afterwards() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        let waiting = writers.wait(7, 1, false);
        assert_eq!(writers.drive(vec![NodeId(7), NodeId(8)], &view), [8]);
        writers.rest();
        drop(waiting);
        let _late = writers.wait(8, 1, true);
        assert!(view.doom().is_none());
        assert_eq!(writers.drive(vec![NodeId(7)], &view), [7]);
    }
}
