//! Writers of the main line that wait for a transaction's lock.
//!
//! A WRITE holds its pages locked inside the kernel until it is answered, and dropping a file's pages waits
//! for them. So a commit must not have pages dropped where a WRITE waits for the committer; and where one
//! comes to wait meanwhile, the committer gives way.
//!
//! A mapping writes whole pages. One that was read before the commit has the old content in all bytes that its program
//! does not change: written after the commit, it would take back what that has brought. A dirty page that waits when the
//! commit begins, or comes while it has not decided, is a conflict: the locks see to that, and this where one waits for
//! something else. So what is left is to keep old pages from coming in behind those that are dropped: a file that is read
//! meanwhile, whether it was known before or not, is driven out once more; once all are, READs of them wait until what is
//! committed has appeared.
//!
//! Thread safety: one short lock, which a READ takes only during a commit; nothing is called with it held. Invariant:
//! while pages are dropped, a file either has waiting writers or is being driven out, or its committer has been told to
//! give way.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_fs::{CommitPlan, FileSystem, NodeId};
use parking_lot::Mutex;

use super::background::Job;

/// A file that is read all the time can't be driven out: so often it is tried.
const ROUNDS_MAX: u32 = 4;

/// A commit that changes what the main line may have pages of.
struct Driving {
    /// The files whose pages are dropped, or were, or of which there were none.
    nodes: HashSet<u64>,
    view: Arc<FileSystem>,
    rounds: u32,
    /// Which of them have been read in this round; by whom, if for a file that is open for writing.
    read: HashMap<u64, Option<u32>>,
    /// The pages are dropped: what comes now is of the time between that and the commit.
    is_through: bool,
    /// What goes on when the commit is over.
    readers: Vec<Job>,
}

/// Of one file.
#[derive(Default)]
struct Waiting {
    writers: u32,
    /// Whose dirty pages are among them.
    pages: Vec<u32>,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u64, Waiting>,
    driving: Option<Driving>,
}

impl State {
    /// Of this file, if a commit changes it just now.
    fn driving(&mut self, node: u64) -> Option<&mut Driving> {
        self.driving.as_mut().filter(|driving| driving.nodes.contains(&node))
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
    /// Of a dirty page of this process.
    page: Option<u32>,
}

impl Writers {
    /// A WRITE of `node` by process `pid` comes to wait; `is_page`: of a dirty page.
    pub(super) fn wait(self: &Arc<Self>, node: u64, pid: u32, is_page: bool) -> Place {
        let committer = {
            let mut state = self.state.lock();
            let waiting = state.waiting.entry(node).or_default();
            waiting.writers += 1;
            waiting.pages.extend(is_page.then_some(pid));
            let driving = state.driving(node).filter(|driving| !driving.is_through);
            driving.map(|driving| Arc::clone(&driving.view))
        };
        if let Some(view) = committer {
            view.give_way(pid, NodeId(node));
        }
        Place { writers: Arc::clone(self), node, page: is_page.then_some(pid) }
    }

    /// A READ of `node` begins; `writer`: the process, if it is for a file that is open for writing. True: it has to
    /// wait, with [`Self::wait_for_commit`].
    pub(super) fn read(&self, node: u64, writer: Option<u32>) -> bool {
        if !self.is_driving.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.state.lock();
        let Some(driving) = state.driving(node) else { return false };
        if !driving.is_through {
            let known = driving.read.entry(node).or_default();
            *known = known.or(writer);
        }
        driving.is_through
    }

    /// Runs `again` when no commit is between its pages and its end.
    pub(super) fn wait_for_commit(&self, again: Job) {
        let mut state = self.state.lock();
        if let Some(driving) = state.driving.as_mut().filter(|driving| driving.is_through) {
            driving.readers.push(again);
            return;
        }
        drop(state);
        again();
    }

    /// From now on, until [`Self::rest`], the committer `view` gives way to new writers of the files of `plan`, and now to those
    /// who wait with a dirty page. Returns the files whose pages may be dropped: nobody waits to write them. Ask which of
    /// them are known only after this: who comes to know one from now on has to read it.
    pub(super) fn drive(&self, plan: &CommitPlan, view: &Arc<FileSystem>) -> Vec<u64> {
        let mut state = self.state.lock();
        let nodes = plan.contents.iter().map(|node| node.0);
        let (written, free): (Vec<u64>, Vec<u64>) = nodes.partition(|node| state.waiting.contains_key(node));
        let page = written.iter().find_map(|node| Some((*node, *state.waiting.get(node)?.pages.first()?)));
        state.driving = Some(Driving {
            nodes: free.iter().copied().collect(),
            view: Arc::clone(view),
            rounds: 1,
            read: HashMap::new(),
            is_through: false,
            readers: Vec::new(),
        });
        self.is_driving.store(true, Ordering::Release);
        drop(state);
        if let Some((node, pid)) = page {
            view.give_way(pid, NodeId(node));
        }
        free
    }

    /// The pages of all files, or of those that this has returned, are dropped. Returns those that have been read meanwhile
    /// and are to be driven out again. None: from now on, who writes with a system call waits for the
    /// committer, and not he for him, and who reads waits, too.
    pub(super) fn next_round(&self) -> Vec<u64> {
        let mut state = self.state.lock();
        let Some(driving) = &mut state.driving else { return Vec::new() };
        let read = std::mem::take(&mut driving.read);
        if !read.is_empty() && driving.rounds < ROUNDS_MAX {
            driving.rounds += 1;
            return read.into_keys().collect();
        }
        driving.is_through = true;
        let view = Arc::clone(&driving.view);
        drop(state);
        if let Some((node, pid)) = read.into_iter().find_map(|(node, writer)| Some((node, writer?))) {
            view.give_way(pid, NodeId(node));
        }
        Vec::new()
    }

    /// What was committed has appeared, or nothing will.
    pub(super) fn rest(&self) {
        self.is_driving.store(false, Ordering::Release);
        let driving = self.state.lock().driving.take();
        driving.into_iter().flat_map(|driving| driving.readers).for_each(|again| again());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.writers.state.lock();
        let Some(waiting) = state.waiting.get_mut(&self.node) else { return };
        waiting.writers -= 1;
        if let Some(index) = waiting.pages.iter().position(|pid| Some(*pid) == self.page) {
            waiting.pages.swap_remove(index);
        }
        if waiting.writers == 0 {
            state.waiting.remove(&self.node);
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

    fn of<const N: usize>(nodes: [u64; N]) -> CommitPlan {
        CommitPlan { contents: nodes.map(NodeId).into() }
    }

    #[test]
    fn a_writer_that_comes_while_its_file_is_driven_out_makes_the_committer_give_way() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        assert_eq!(writers.drive(&of([7, 8]), &view), [7, 8]);
        let _elsewhere = writers.wait(9, 1, false);
        assert!(view.doom().is_none());
        let _there = writers.wait(8, 42, false);
        assert_eq!(view.doom().expect("doomed").rival, Some(Rival::Main { pid: 42 }));
    }

    fn driving_out(node: u64) -> (Arc<Writers>, Arc<FileSystem>) {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        assert_eq!(writers.drive(&of([node]), &view), [node]);
        (writers, view)
    }

    #[test]
    fn a_dirty_page_that_waits_for_something_else_makes_the_committer_give_way() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        let (by_call, page) = (writers.wait(7, 1, false), writers.wait(7, 43, true));
        drop(page);
        assert!(writers.drive(&of([7]), &view).is_empty());
        assert!(view.doom().is_none(), "it was written");
        writers.rest();
        let _page = writers.wait(7, 43, true);
        drop(by_call);
        assert!(writers.drive(&of([7]), &view).is_empty());
        assert_eq!(view.doom().expect("doomed").rival, Some(Rival::Main { pid: 43 }));
    }

    #[test]
    fn a_file_that_becomes_known_during_a_commit_is_driven_out_and_read_later() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        assert_eq!(writers.drive(&of([7, 9]), &view), [7, 9], "one of which is not known");
        assert!(!writers.read(9, Some(1)));
        assert_eq!(writers.next_round(), [9]);
        assert!(writers.next_round().is_empty());
        assert!(writers.read(9, Some(1)) && view.doom().is_none());
        writers.rest();
    }

    #[test]
    fn between_the_pages_and_the_commit_who_comes_to_wait_makes_nobody_give_way() {
        let (writers, view) = driving_out(7);
        assert!(writers.next_round().is_empty());
        let (_by_call, _page) = (writers.wait(7, 1, false), writers.wait(7, 43, true));
        assert!(view.doom().is_none(), "what they may meet are locks");
    }

    #[test]
    fn what_is_read_while_pages_are_dropped_is_driven_out_again() {
        let (writers, view) = driving_out(7);
        assert!(!writers.read(8, None) && !writers.read(7, None) && !writers.read(7, Some(1)));
        assert_eq!(writers.next_round(), [7]);
        assert!(writers.next_round().is_empty(), "nobody has read it this time");
        assert!(view.doom().is_none());

        for (reader, is_doomed) in [(None, false), (Some(42), true)] {
            let (writers, view) = driving_out(7);
            for _ in 1..ROUNDS_MAX {
                writers.read(7, reader);
                assert_eq!(writers.next_round(), [7]);
            }
            writers.read(7, reader);
            assert!(writers.next_round().is_empty(), "not for ever");
            assert_eq!(view.doom().is_some(), is_doomed, "only whoever may write it back is given way to");
        }
    }

    #[test]
    fn who_reads_between_the_pages_and_the_commit_waits_for_its_end() {
        let (writers, view) = driving_out(7);
        assert!(writers.next_round().is_empty());
        assert!(writers.read(7, None) && !writers.read(8, None));
        let goes_on = Arc::new(AtomicBool::new(false));
        let again = |goes_on: &Arc<AtomicBool>| -> Job {
            let goes_on = Arc::clone(goes_on);
            Box::new(move || goes_on.store(true, Ordering::Release))
        };
        writers.wait_for_commit(again(&goes_on));
        assert!(!goes_on.load(Ordering::Acquire));
        writers.rest();
        assert!(goes_on.load(Ordering::Acquire) && !writers.read(7, Some(42)) && view.doom().is_none());
        let late = Arc::new(AtomicBool::new(false));
        writers.wait_for_commit(again(&late));
        assert!(late.load(Ordering::Acquire), "it was over before");
    }

    #[test]
    fn files_with_waiting_writers_are_left_out_and_nobody_is_doomed_afterwards() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        let waiting = writers.wait(7, 1, false);
        assert_eq!(writers.drive(&of([7, 8]), &view), [8]);
        writers.rest();
        drop(waiting);
        let _late = writers.wait(8, 1, true);
        assert!(view.doom().is_none());
        assert_eq!(writers.drive(&of([7]), &view), [7]);
    }
}
