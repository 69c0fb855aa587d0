//! Writers of the main line that wait for a transaction's lock.
//!
//! A WRITE holds its pages locked inside the kernel until it is answered, and dropping a file's pages waits
//! for them. So a commit must not have pages dropped where a WRITE waits for the committer; and where one
//! comes to wait meanwhile, the committer gives way.
//!
//! A mapping writes whole pages. One that was read before the commit has the old content in all bytes that
//! its program does not change: written after the commit, it would take back what that has brought. A dirty
//! page that waits when the commit begins, or comes while it has not decided, is a conflict: the locks see to
//! that, and this where one waits for something else. So what is left is to keep old pages from coming in
//! behind those that are dropped: a file that is read meanwhile, whether it was known before or not, is
//! dropped once more; once all are, READs of them wait until what is committed has appeared. Where old pages
//! stay all the same, since a file is read without pause or has waiting writers, a dirty page that comes in
//! between the commit and their end is refused: its program is told, and what was committed stays. Their end
//! is that of the message by which the commit itself has them dropped ([`OldPages`]), however many follow.
//!
//! A read(2) takes the size that the kernel has when the pages are there, and asks for it before only where
//! that is invalid or not greater than what is read. So the size must change together with the content:
//! dropping pages makes the attributes invalid, too; from then on requests for them wait, and what other
//! answers say of them is not to be kept, so that every later read(2) to the end of the file asks, and is
//! answered when the content is there. A read(2) that had asked before is answered with the old content, in
//! one of the rounds; for one that comes after them the kernel is given the greater size before its answer
//! (`commit`). A file that was left alone in the last round needs no invalidation after the commit, and must
//! not get one: it would keep the kernel from taking a smaller size from the short answer of a READ that is
//! under way.
//!
//! Thread safety: one short lock, which a READ takes only during a commit; nothing of the file system
//! is called with it held.
//! Invariant: while pages are dropped, a file either has waiting writers or its pages are being dropped, or
//! its committer has been told to give way.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_fs::{CommitPlan, FileSystem, NodeId};
use kvfs_locks::{Mutex, class};

use super::background::Job;
use super::old_content::{OldContent, OldPages};
use super::timeouts::InvalidationClock;

/// Rounds of dropping pages; for a file that is read all the time, no number would do. A round takes some 50
/// µs, and two readers in a loop are in about every tenth one.
const ROUNDS_MAX: u32 = 16;

/// A commit that changes what the main line may have pages of.
struct PageInvalidation {
    /// The files whose pages are dropped, or were, or of which there were none.
    nodes: HashSet<u64>,
    view: Arc<FileSystem>,
    rounds: u32,
    /// Which of them have been read in this round.
    read: HashSet<u64>,
    /// The process that has read them, in any round, through a file that is open for writing.
    read_to_write: HashMap<u64, u32>,
    /// Those that have been read in the last one, or that the kernel has had no time for: it has old pages of
    /// them.
    nodes_read: HashSet<u64>,
    /// Files with waiting writers, which are left alone: the kernel has old pages of them, too.
    left_out: Vec<u64>,
    /// The pages are dropped: what comes now is of the time between that and the commit.
    is_through: bool,
    /// What goes on when the commit is over: requests for attributes, and then for content.
    attributes: Vec<Job>,
    readers: Vec<(u64, Job)>,
}

/// Of one file.
#[derive(Default)]
struct Waiting {
    writers: u32,
    /// The processes whose dirty pages are among them.
    pages: Vec<u32>,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u64, Waiting>,
    invalidation: Option<PageInvalidation>,
}

impl State {
    /// Of this file, if a commit changes it just now.
    fn invalidation(&mut self, node: u64) -> Option<&mut PageInvalidation> {
        self.invalidation.as_mut().filter(|invalidation| invalidation.nodes.contains(&node))
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Writers {
    state: Mutex<State, class::FuseBridgeWritersState>,
    is_invalidating: AtomicBool,
    pub(super) old: Arc<OldContent>,
    /// Of what the kernel was told, by commits and by others.
    pub(super) told: InvalidationClock,
}

/// A WRITE that waits.
pub(super) struct Place {
    writers: Arc<Writers>,
    node: u64,
    /// Of a dirty page of this process.
    page: Option<u32>,
}

/// What the kernel has of the files of a commit when that has appeared.
#[derive(Default)]
pub(super) struct Rested {
    /// Neither pages nor attributes of before.
    pub(super) forgotten: HashSet<u64>,
    pub(super) old: Vec<OldPages>,
}

impl Writers {
    /// A WRITE of `node` by process `pid` comes to wait; `is_page`: of a dirty page.
    pub(super) fn wait(self: &Arc<Self>, node: u64, pid: u32, is_page: bool) -> Place {
        let committer = {
            let mut state = self.state.lock();
            let waiting = state.waiting.entry(node).or_default();
            waiting.writers += 1;
            waiting.pages.extend(is_page.then_some(pid));
            let invalidation = state.invalidation(node).filter(|invalidation| !invalidation.is_through);
            invalidation.map(|invalidation| Arc::clone(&invalidation.view))
        };
        if let Some(view) = committer {
            give_way(&view, node, pid);
        }
        Place { writers: Arc::clone(self), node, page: is_page.then_some(pid) }
    }

    /// A READ of `node` begins; `writer`: the process, if it is for a file that is open for writing. True: it
    /// has to wait, with [`Self::wait_for_commit`].
    pub(super) fn read(&self, node: u64, writer: Option<u32>) -> bool {
        if !self.is_invalidating() {
            return false;
        }
        let mut state = self.state.lock();
        let Some(invalidation) = state.invalidation(node) else { return false };
        if !invalidation.is_through {
            invalidation.read.insert(node);
            if let Some(pid) = writer {
                invalidation.read_to_write.insert(node, pid);
            }
        }
        invalidation.is_through
    }

    /// Whether a commit changes the content of any file just now.
    pub(super) fn is_invalidating(&self) -> bool {
        self.is_invalidating.load(Ordering::Acquire)
    }

    /// Whether a commit changes the content of `node` just now, so that the kernel may not keep attributes of
    /// it.
    pub(super) fn is_changing(&self, node: u64) -> bool {
        self.is_invalidating() && self.state.lock().invalidation(node).is_some()
    }

    /// Runs `again`, which answers with attributes of `node`, when no commit changes its content.
    pub(super) fn wait_for_attributes(&self, node: u64, again: Job) {
        let mut state = self.state.lock();
        if let Some(invalidation) = state.invalidation(node) {
            invalidation.attributes.push(again);
            return;
        }
        drop(state);
        again();
    }

    /// Runs `again`, a READ of `node`, when no commit is between its pages and its end.
    pub(super) fn wait_for_commit(&self, node: u64, again: Job) {
        let mut state = self.state.lock();
        if let Some(invalidation) = state.invalidation.as_mut().filter(|invalidation| invalidation.is_through)
        {
            invalidation.readers.push((node, again));
            return;
        }
        drop(state);
        again();
    }

    /// From now on, until [`Self::rest`], the committer `view` gives way to new writers of the files of
    /// `plan`, and now to those that wait with a dirty page. Returns the files whose pages may be dropped: no
    /// writer waits for them. Ask which of them the kernel knows only after this: one that it comes to know
    /// from now on, it has to read.
    pub(super) fn begin_invalidation(&self, plan: &CommitPlan, view: &Arc<FileSystem>) -> Vec<u64> {
        let mut state = self.state.lock();
        let nodes = plan.contents.iter().map(|node| node.0);
        let (written, free): (Vec<u64>, Vec<u64>) = nodes.partition(|node| state.waiting.contains_key(node));
        let page = written.iter().find_map(|node| Some((*node, *state.waiting.get(node)?.pages.first()?)));
        state.invalidation = Some(PageInvalidation {
            nodes: free.iter().copied().collect(),
            view: Arc::clone(view),
            rounds: 1,
            read: HashSet::new(),
            read_to_write: HashMap::new(),
            nodes_read: HashSet::new(),
            left_out: written,
            is_through: false,
            attributes: Vec::new(),
            readers: Vec::new(),
        });
        self.is_invalidating.store(true, Ordering::Release);
        drop(state);
        if let Some((node, pid)) = page {
            give_way(view, node, pid);
        }
        free
    }

    /// The pages of all files, or of those that this has returned, are dropped. Returns those that have been
    /// read meanwhile and must be dropped again. None: from now on a writer by system call waits for the
    /// committer, and not the committer for the writer; a reader waits, too.
    pub(super) fn next_round(&self) -> Vec<u64> {
        let mut state = self.state.lock();
        let Some(invalidation) = &mut state.invalidation else { return Vec::new() };
        let read = std::mem::take(&mut invalidation.read);
        if !read.is_empty() && invalidation.rounds < ROUNDS_MAX {
            invalidation.rounds += 1;
            return read.into_iter().collect();
        }
        invalidation.is_through = true;
        let writer = read.iter().find_map(|node| Some((*node, *invalidation.read_to_write.get(node)?)));
        invalidation.nodes_read.extend(read);
        let view = Arc::clone(&invalidation.view);
        drop(state);
        if let Some((node, pid)) = writer {
            give_way(&view, node, pid);
        }
        Vec::new()
    }

    /// The kernel has had no time to drop the pages of `nodes`, which the commit does not wait for.
    pub(super) fn leave_old(&self, nodes: impl IntoIterator<Item = u64>) {
        if let Some(invalidation) = &mut self.state.lock().invalidation {
            invalidation.nodes_read.extend(nodes);
        }
    }

    /// Whether the kernel may be given the end of `node` before anything else of the commit. A waiting WRITE
    /// tells it the size itself, and holds the page until then; old pages would become a version that has
    /// never been, old in content and new in size, until they are dropped.
    pub(super) fn takes_end(&self, node: u64) -> bool {
        let mut state = self.state.lock();
        !state.waiting.contains_key(&node)
            && state.invalidation(node).is_none_or(|invalidation| !invalidation.nodes_read.contains(&node))
    }

    /// The files that are to be read when the commit is over.
    pub(super) fn waiting_reads(&self) -> HashSet<u64> {
        let state = self.state.lock();
        let readers = state.invalidation.iter().flat_map(|invalidation| &invalidation.readers);
        readers.map(|(node, _)| *node).collect()
    }

    /// What was committed has appeared, or nothing will.
    pub(super) fn rest(&self, has_appeared: bool) -> Rested {
        let mut state = self.state.lock();
        if let Some(invalidation) = state.invalidation.as_ref().filter(|_| has_appeared) {
            // What was read of them before they changed may still be on its way to the kernel, which is told
            // of most of them no more.
            self.told.mark(invalidation.nodes.iter().copied());
        }
        self.is_invalidating.store(false, Ordering::Release);
        let Some(mut invalidation) = state.invalidation.take() else { return Rested::default() };
        let old = invalidation.nodes_read.iter().chain(&invalidation.left_out).filter(|_| has_appeared);
        let old: Vec<_> = old.map(|node| self.old.of_commit(*node)).collect();
        drop(state);
        let readers = invalidation.readers.into_iter().map(|(_, again)| again);
        invalidation.attributes.into_iter().chain(readers).for_each(|again| again());
        invalidation.nodes.retain(|node| invalidation.is_through && !invalidation.nodes_read.contains(node));
        Rested { forgotten: invalidation.nodes, old }
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

/// The committer of `view` is in the way of process `pid`, which writes to `node`.
fn give_way(view: &FileSystem, node: u64, pid: u32) {
    if let Some(txn) = view.txn() {
        txn.give_way(pid, NodeId(node));
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Deref;

    use kvfs_fs::{BeginOptions, Doom, MkfsOptions, MountOptions, PlannedCommit, Rival};
    use kvfs_store::Store;
    use kvfs_store::clock::SystemClock;
    use kvfs_store::model::ModelStore;

    use super::*;

    /// A view in the middle of its commit.
    struct Committing {
        view: Arc<FileSystem>,
        _planned: PlannedCommit,
    }

    impl Deref for Committing {
        type Target = Arc<FileSystem>;

        fn deref(&self) -> &Arc<FileSystem> {
            &self.view
        }
    }

    fn committing() -> Committing {
        let store: Arc<dyn Store> = Arc::new(ModelStore::new());
        let clock = Arc::new(SystemClock::new());
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes");
        let main = FileSystem::open(store, clock, MountOptions::default()).expect("opens");
        let options = BeginOptions::default();
        let view = Arc::new(main).begin(&options).expect("begins");
        let frozen = view.expect_txn().expect("is one").freeze().expect("freezes");
        Committing { view, _planned: frozen.plan().expect("plans") }
    }

    fn doom(view: &FileSystem) -> Option<Doom> {
        view.txn().expect("is one").doom()
    }

    fn of<const N: usize>(nodes: [u64; N]) -> CommitPlan {
        CommitPlan { contents: nodes.map(NodeId).into() }
    }

    #[test]
    fn writer_during_page_invalidation_makes_the_committer_give_way() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        assert_eq!(writers.begin_invalidation(&of([7, 8]), &view), [7, 8]);
        let _elsewhere = writers.wait(9, 1, false);
        assert!(doom(&view).is_none());
        let _there = writers.wait(8, 42, false);
        assert_eq!(doom(&view).expect("doomed").rival, Some(Rival::Main { pid: 42 }));
    }

    fn invalidating(node: u64) -> (Arc<Writers>, Committing) {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        assert_eq!(writers.begin_invalidation(&of([node]), &view), [node]);
        (writers, view)
    }

    #[test]
    fn a_dirty_page_that_waits_for_something_else_makes_the_committer_give_way() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        let (by_call, page) = (writers.wait(7, 1, false), writers.wait(7, 43, true));
        drop(page);
        assert!(writers.begin_invalidation(&of([7]), &view).is_empty());
        assert!(doom(&view).is_none(), "it was written");
        writers.rest(false);
        let _page = writers.wait(7, 43, true);
        drop(by_call);
        assert!(writers.begin_invalidation(&of([7]), &view).is_empty());
        assert_eq!(doom(&view).expect("doomed").rival, Some(Rival::Main { pid: 43 }));
    }

    #[test]
    fn file_that_becomes_known_during_a_commit_is_invalidated_and_read_later() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        assert_eq!(writers.begin_invalidation(&of([7, 9]), &view), [7, 9], "one of which is not known");
        assert!(!writers.read(9, Some(1)));
        assert_eq!(writers.next_round(), [9]);
        assert!(writers.next_round().is_empty());
        assert!(writers.read(9, Some(1)) && doom(&view).is_none());
        writers.rest(false);
    }

    #[test]
    fn writer_between_pages_and_commit_dooms_no_committer() {
        let (writers, view) = invalidating(7);
        assert!(writers.next_round().is_empty());
        let (_by_call, _page) = (writers.wait(7, 1, false), writers.wait(7, 43, true));
        assert!(doom(&view).is_none(), "what they may meet are locks");
    }

    #[test]
    fn pages_read_during_invalidation_are_invalidated_again() {
        let (writers, view) = invalidating(7);
        assert!(!writers.read(8, None) && !writers.read(7, None) && !writers.read(7, Some(1)));
        assert_eq!(writers.next_round(), [7]);
        assert!(writers.next_round().is_empty(), "it was not read this time");
        assert!(doom(&view).is_none());

        for (reader, is_doomed) in [(None, false), (Some(42), true)] {
            let (writers, view) = invalidating(7);
            for _ in 1..ROUNDS_MAX {
                writers.read(7, reader);
                assert_eq!(writers.next_round(), [7]);
            }
            writers.read(7, reader);
            assert!(writers.next_round().is_empty(), "not for ever");
            assert_eq!(
                doom(&view).is_some(),
                is_doomed,
                "the commit gives way only to a process that may write it back"
            );
        }
    }

    #[test]
    fn reader_between_pages_and_commit_waits_for_its_end() {
        let (writers, view) = invalidating(7);
        assert!(writers.next_round().is_empty());
        assert!(writers.read(7, None) && !writers.read(8, None));
        let goes_on = Arc::new(AtomicBool::new(false));
        let again = |goes_on: &Arc<AtomicBool>| -> Job {
            let goes_on = Arc::clone(goes_on);
            Box::new(move || goes_on.store(true, Ordering::Release))
        };
        writers.wait_for_commit(7, again(&goes_on));
        assert_eq!(writers.waiting_reads(), HashSet::from([7]));
        assert!(!goes_on.load(Ordering::Acquire));
        writers.rest(false);
        assert!(goes_on.load(Ordering::Acquire) && !writers.read(7, Some(42)) && doom(&view).is_none());
        let late = Arc::new(AtomicBool::new(false));
        writers.wait_for_commit(7, again(&late));
        assert!(late.load(Ordering::Acquire), "it was over before");
    }

    #[test]
    fn attributes_during_commit_wait_and_are_answered_before_reads() {
        let (writers, view) = invalidating(7);
        assert!(writers.is_changing(7) && !writers.is_changing(8), "from the first round on");
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let job = |name: &'static str| -> Job {
            let order = Arc::clone(&order);
            Box::new(move || order.lock().push(name))
        };
        writers.wait_for_attributes(8, job("of another file"));
        assert!(writers.next_round().is_empty());
        writers.wait_for_commit(7, job("content"));
        writers.wait_for_attributes(7, job("attributes"));
        assert_eq!(*order.lock(), ["of another file"]);
        assert_eq!(writers.rest(true).forgotten, HashSet::from([7]), "the kernel has nothing old of it");
        assert_eq!(*order.lock(), ["of another file", "attributes", "content"]);
        writers.wait_for_attributes(7, job("later"));
        assert_eq!(order.lock().len(), 4);
        assert!(!writers.is_changing(7) && doom(&view).is_none());
    }

    #[test]
    fn file_that_is_read_in_every_round_is_invalidated_after_commit() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        writers.begin_invalidation(&of([7, 8]), &view);
        for _ in 0..ROUNDS_MAX {
            writers.read(7, None);
            writers.next_round();
        }
        assert!(!writers.takes_end(7) && writers.takes_end(8), "old pages keep the old size");
        assert_eq!(writers.rest(true).forgotten, HashSet::from([8]));
    }

    #[test]
    fn mapping_that_may_write_in_any_round_makes_the_committer_give_way() {
        let (writers, view) = invalidating(7);
        writers.read(7, Some(42));
        for _ in 0..ROUNDS_MAX {
            writers.next_round();
            // In the last round by a reader alone, whose pages the mapping may write.
            writers.read(7, None);
        }
        assert_eq!(doom(&view).expect("doomed").rival, Some(Rival::Main { pid: 42 }));
    }

    #[test]
    fn old_pages_are_refused_from_the_commit_until_they_are_dropped() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        let _waiting = writers.wait(6, 1, false);
        writers.begin_invalidation(&of([6, 7, 8]), &view);
        for _ in 0..ROUNDS_MAX {
            writers.read(7, None);
            writers.next_round();
        }
        assert!(
            [6, 7, 8].iter().all(|node| !writers.old.is_older_than_commit(*node)),
            "nothing has changed yet"
        );
        let mut old = writers.rest(true).old;
        assert!(
            writers.old.is_older_than_commit(6)
                && writers.old.is_older_than_commit(7)
                && !writers.old.is_older_than_commit(8)
        );
        old.retain(|pages| pages.node() == 7);
        assert!(
            !writers.old.is_older_than_commit(6) && writers.old.is_older_than_commit(7),
            "the kernel has yet to drop its pages"
        );
        let _waiting = writers.wait(7, 1, false);
        writers.begin_invalidation(&of([7]), &view);
        let of_next = writers.rest(true).old;
        drop(old);
        assert!(writers.old.is_older_than_commit(7), "those of the next commit are yet to be dropped");
        drop(of_next);
        assert!(!writers.old.is_older_than_commit(7));

        let (writers, _view) = invalidating(7);
        writers.rest(false);
        assert!(!writers.old.is_older_than_commit(7), "nothing was committed");
    }

    #[test]
    fn files_with_waiting_writers_are_left_out_and_doom_no_committer_afterwards() {
        let (writers, view) = (Arc::new(Writers::default()), committing());
        let waiting = writers.wait(7, 1, false);
        assert!(!writers.takes_end(7) && writers.takes_end(8));
        assert_eq!(writers.begin_invalidation(&of([7, 8]), &view), [8]);
        writers.rest(false);
        drop(waiting);
        let _late = writers.wait(8, 1, true);
        assert!(doom(&view).is_none());
        assert_eq!(writers.begin_invalidation(&of([7]), &view), [7]);
    }
}
