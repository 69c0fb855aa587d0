//! The commit of a transaction, as far as the kernel has a part in it.
//!
//! The view is closed for all but WRITEs; its own kernel side writes out what is dirty; the main line's
//! kernel side writes out and drops its pages of the files that are about to change (what was dirty there
//! meets the transaction's locks, which is a conflict); the store commits; the main line's kernel side
//! forgets what has changed; the committer is answered.
//!
//! The pages of the view may wait for another transaction's lock. A caller that keeps what the end of that
//! one may need (a lock of the kernel, a thread that is one of few) must say how long they may take. A pool
//! thread writes them then, and goes on when the caller gives up.
//!
//! Where the kernel has no time for a notification, because a process keeps the lock of a directory or of a
//! file's pages, the commit goes on without it, and the kernel is told as soon as it has ([`soon`]).
//!
//! Thread safety: for threads that may block, never workers and senders of notifications. Commits take turns
//! behind what takes long of a large one ([`FrozenView::prepare`]), until the names: a notification of one
//! may wait for a request that waits for another transaction's lock, and that one must still be free to give
//! way.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{
    Caller, CommitPlan, ContentObserver, Durability, FileSystem, FrozenView, FsError, Invalidations,
    ManyNames, NodeId, Position, Telling,
};

use kvfs_locks::{Condvar, Mutex, class};

use super::background::Job;
use super::cached::Cached;
use super::old_content::{ContentBeside, OldPages};
use super::writers::{Rested, Writers};
use super::{Bridge, Shared};
use crate::notify::{Message, Notification, Notifier, Told, WAIT_EACH};

/// So long READs wait for the kernel to take greater sizes: longer than one that is not held up by a READ
/// takes.
const SIZE_WAIT_MAX: Duration = Duration::from_millis(20);

/// Pages and attributes of a file; dirty pages are written first.
pub(super) fn everything_of(node: u64) -> Notification {
    Notification::InvalInode { node, offset: 0, len: 0 }
}

/// Attributes of a node.
pub(super) fn attributes_of(node: u64) -> Notification {
    Notification::InvalInode { node, offset: -1, len: 0 }
}

impl Shared {
    /// See [`Bridge::write_back`].
    fn write_back(&self) -> Result<(), FsError> {
        if self.fs.txn().is_none() {
            // What was lost before has been reported on the file; a view, though, has lost it for good.
            self.lost_write.lock().take();
        }
        let mut is_late = false;
        if let Some(notifier) = self.notifier.get() {
            let mut files = self.fs.nodes().cached_files();
            files.retain(|file| self.config.writeback || self.cached.has(file.0));
            match notifier.carry_out_all(files.into_iter().map(|file| everything_of(file.0))) {
                Ok(told) => is_late = !told.late.is_empty(),
                // The last user of the mount has gone, and wrote its pages before.
                Err(error) => tracing::debug!(%error, "the view was unmounted before its commit"),
            }
        }
        self.lost_write.lock().clone().map_or(Ok(()), Err)?;
        if is_late { Err(FsError::PagesWait) } else { Ok(()) }
    }
}

/// The dirty pages of a view on their way out, by a thread of the blocking pool.
#[derive(Default)]
pub(super) struct WriteOut {
    state: Mutex<Round, class::FuseBridgeCommitState>,
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
struct InvalidatedPages<'a> {
    writers: &'a Arc<Writers>,
    fs: &'a FileSystem,
    notifier: &'a Notifier,
    cached: &'a Cached,
    /// Before the commit, of the files that were known then.
    sizes: HashMap<u64, u64>,
    /// Files that the kernel did not have: it may be about to learn their old attributes from an answer on
    /// its way.
    absent: HashSet<u64>,
}

impl InvalidatedPages<'_> {
    /// The commit has appeared.
    fn end(self) -> Rested {
        // A read(2) may have looked at the size before the commit, and READ only now. The kernel takes a
        // smaller one from the answer; a greater one it takes from data that is stored at the end of the
        // file, before it waits for the page, which a READ may hold.
        let unknown = self.writers.waiting_reads().into_iter().filter(|node| !self.sizes.contains_key(node));
        let files = self.sizes.iter().map(|(node, size)| (*node, *size)).chain(unknown.map(|node| (node, 0)));
        let ends: Vec<_> = files.filter_map(|(node, size)| Some((node, self.new_end(node, size)?))).collect();
        let stored: HashSet<u64> = ends.iter().map(|(node, _)| *node).collect();
        let (pending, _) = self.notifier.submit_all(ends.into_iter().map(|(_, end)| end));
        let are_stored = pending.wait_for(SIZE_WAIT_MAX);
        let mut rested = self.writers.rest(true);
        rested.forgotten.retain(|node| !self.absent.contains(node));
        if !are_stored {
            // A page is held by a READ, which goes on now, or by a WRITE, which waits for the locks of this
            // very commit. The byte may come behind what that writes, so the page goes once more when the
            // locks have gone.
            rested.forgotten.retain(|node| !stored.contains(node));
        }
        rested
    }

    fn size(&self, node: u64) -> Option<u64> {
        Some(self.fs.getattr(&daemon(), NodeId(node)).ok()?.size)
    }

    /// The last byte of a file that has become larger than `size_before`, for the kernel's cache.
    fn new_end(&self, node: u64, size_before: u64) -> Option<Notification> {
        if !self.writers.takes_end(node) {
            return None;
        }
        let size = self.size(node).filter(|size| *size > size_before)?;
        let (offset, mut byte) = (size - 1, [0]);
        // Where a write is in the way, the file is left as it is; its writer tells the kernel the size.
        self.cached.note(node);
        let len = self.fs.read(&daemon(), NodeId(node), offset, &mut byte).ok()?;
        (len == 1).then(|| Notification::Store { node, offset, data: Bytes::copy_from_slice(&byte) })
    }
}

/// The daemon itself, which leaves access times alone.
fn daemon() -> Caller {
    Caller { keeps_atime: true, ..Caller::default() }
}

impl Drop for InvalidatedPages<'_> {
    fn drop(&mut self) {
        self.writers.rest(false);
    }
}

/// Nodes that the kernel did not have when it was told to forget their attributes, and may have learnt since,
/// of before: from an answer that was on its way. It is told again, twice: so long no answer is on its way.
#[derive(Default)]
pub(super) struct Late {
    nodes: Mutex<LateNodes, class::FuseBridgeCommitNodes>,
}

#[derive(Default)]
struct LateNodes {
    new: BTreeSet<u64>,
    told_once: BTreeSet<u64>,
    /// Entries that the kernel had been answered at the last look, and at the one before it.
    entries: [u32; 2],
}

impl Late {
    fn add(&self, nodes: impl IntoIterator<Item = u64>) {
        self.nodes.lock().new.extend(nodes);
    }

    /// Those to be told of now, when the kernel has been answered so many entries. Called from time to time.
    fn take(&self, entries: u32) -> BTreeSet<u64> {
        let mut nodes = self.nodes.lock();
        let mut due = std::mem::take(&mut nodes.told_once);
        nodes.told_once = std::mem::take(&mut nodes.new);
        let [last, before] = nodes.entries;
        nodes.entries = [entries, last];
        if before == entries {
            // It has learnt nothing, and no answer of before the last look is on its way any more.
            return BTreeSet::new();
        }
        due.extend(&nodes.told_once);
        due
    }
}

impl Shared {
    /// See [`Late`].
    pub(super) fn forget_late(&self) {
        let Some(notifier) = self.notifier.get() else { return };
        notifier.look(self.config.housekeep_period);
        notifier.expire_given_up();
        if notifier.has_stalled() {
            // The last one of a round may be among those that the kernel has no time for.
            self.pruning.store(false, Ordering::Release);
        }
        for node in self.late.take(self.entries.load(Ordering::Relaxed)) {
            // Where the queue is full or the connection has ended, there is no more to be done.
            let _ = notifier.submit(attributes_of(node));
        }
    }

    /// Of nodes that the kernel did not have: those that it is about to learn.
    fn learnt_soon(&self, nodes: impl IntoIterator<Item = u64>) -> impl Iterator<Item = u64> {
        nodes.into_iter().filter(|node| self.fs.nodes().knows(NodeId(*node)))
    }
}

/// Has all carried out, but for what the kernel has no time for.
fn soon(notifier: &Notifier, messages: &mut dyn Iterator<Item = Message>) -> Told {
    // The connection's end forgets everything.
    notifier.carry_out_soon(messages).unwrap_or_default()
}

impl Bridge {
    /// Commits the transaction of `view`, which came from this bridge's main line and is reached through
    /// `own`, if it is mounted. When this returns, every user of the main line sees the changes, and nothing
    /// older; with [`Durability::Synced`] they survive a power cut. `pages_max`: how long the view's dirty
    /// pages may take, at about.
    ///
    /// # Errors
    /// As [`kvfs_fs::PlannedCommit::commit`]; `PagesWait`: the pages take longer, and go on. After `Canceled`
    /// there is nothing left but to abort; after others it can be tried again.
    pub fn commit(
        &self,
        view: &Arc<FileSystem>,
        own: Option<&Self>,
        durability: Durability,
        pages_max: Option<Duration>,
    ) -> Result<Position, FsError> {
        let txn = view.expect_txn()?;
        // A view without changes and without a kernel side has nothing to tell the kernel, and waits for no
        // other commit.
        if own.is_none()
            && let Some(position) = txn.commit_unwritten()
        {
            if durability == Durability::Synced {
                self.files.shared.fs.sync(position)?;
            }
            return Ok(position);
        }
        let frozen = txn.freeze()?;
        own.map_or(Ok(()), |own| own.write_back_within(pages_max))?;
        self.commit_frozen(view, frozen, durability)
    }

    fn commit_frozen(
        &self,
        view: &Arc<FileSystem>,
        frozen: FrozenView,
        durability: Durability,
    ) -> Result<Position, FsError> {
        let prepared = frozen.prepare()?;
        let turn = self.files.shared.commits.lock();
        let planned = prepared.begin()?;
        let invalidated = self.invalidate_pages(view, planned.plan());
        let mut rested = Rested::default();
        let mut committed = planned.commit(|| {
            rested = invalidated.map_or_else(Rested::default, InvalidatedPages::end);
        })?;
        let on = &self.files.shared;
        let telling = committed.telling.take();
        let changes = std::mem::take(&mut committed.invalidations);
        on.forget_changes(changes, telling, rested, || {
            // Any user can hold up the names. Those that come meanwhile are flushed together.
            drop(turn);
        });
        committed.harden(durability)
    }

    /// Has the kernel write out every dirty page of this view, of shared mappings too, and drop its pages.
    /// Waits for about `time_max` at most, if that is given, and what each known file may take; for views, by
    /// one caller at a time.
    ///
    /// # Errors
    /// That of a page that could not be written. `PagesWait`: they take longer, or the kernel has no time for
    /// them, and go on.
    pub fn write_back(&self, time_max: Option<Duration>) -> Result<(), FsError> {
        let known = || u32::try_from(self.files.shared.fs.nodes().cached_files().len()).unwrap_or(u32::MAX);
        self.write_back_within(time_max.map(|time_max| time_max + WAIT_EACH.saturating_mul(known())))
    }

    /// The same, and no longer, however many files are known.
    fn write_back_within(&self, time_max: Option<Duration>) -> Result<(), FsError> {
        let shared = &self.files.shared;
        let Some(time_max) = time_max else { return shared.write_back() };
        let WriteOut { state, ended } = &shared.write_out;
        let mut round = state.lock();
        let is_late = |round: &mut kvfs_locks::MutexGuard<'_, Round, class::FuseBridgeCommitState>| {
            ended.wait_while_for(round, |round| round.is_under_way, time_max).timed_out()
        };
        // One that began before may have passed by what is dirty now.
        if is_late(&mut round) {
            return Err(FsError::PagesWait);
        }
        *round = Round { is_under_way: true, failed: None };
        drop(round);
        let under_way = UnderWay(Arc::clone(shared));
        let job: Job = Box::new(move || under_way.carry_out());
        if let Err(job) = self.files.background.blocking_pool.submit(job) {
            // No thread is to be had just now.
            drop(job);
            return Err(FsError::PagesWait);
        }
        let mut round = state.lock();
        if is_late(&mut round) {
            return Err(FsError::PagesWait);
        }
        round.failed.take().map_or(Ok(()), Err)
    }

    /// Has the kernel drop its pages and attributes of these files. What is dirty comes in, and dooms the
    /// transaction. Until what this returns is dropped, requests for them wait.
    fn invalidate_pages(&self, view: &Arc<FileSystem>, plan: &CommitPlan) -> Option<InvalidatedPages<'_>> {
        let notifier = self.files.shared.notifier.get().filter(|_| !plan.contents.is_empty())?;
        let Shared { writers, fs, cached, .. } = &*self.files.shared;
        let (sizes, absent) = (HashMap::new(), HashSet::new());
        let mut invalidated = InvalidatedPages { writers, fs, notifier, cached, sizes, absent };
        let mut files = writers.begin_invalidation(plan, view);
        files.retain(|file| fs.nodes().knows(NodeId(*file)));
        invalidated.sizes = files.iter().filter_map(|file| Some((*file, invalidated.size(*file)?))).collect();
        // Of one that has given way nothing will appear.
        while view.txn().is_some_and(|txn| txn.doom().is_none()) {
            let told = soon(notifier, &mut files.into_iter().map(everything_of).map(Message::from));
            // Of others' messages nothing follows: what they tell of may be newer.
            writers.leave_old(told.late);
            invalidated.absent.extend(self.files.shared.learnt_soon(told.not_cached));
            files = writers.next_round();
            if files.is_empty() {
                break;
            }
        }
        Some(invalidated)
    }

    /// Has the kernel forget what another front end has changed; `telling`: what it has noted of names
    /// ([`kvfs_fs::Caller::changed_names`]), which ends when the kernel has been told. It may wait for
    /// requests, so the caller must hold nothing that one needs; it waits no longer than a commit does, and
    /// the kernel is told late then.
    pub fn forget_beside(&self, changes: Invalidations, telling: Option<Telling>) {
        self.files.shared.forget_beside(changes, telling);
    }

    /// For another front end that shows the same: must be told of content that it changes. The call that
    /// changes it must then end with [`Self::forget_beside`].
    pub fn content_observer(&self) -> Arc<dyn ContentObserver> {
        let Shared { cached, writers, config, .. } = &*self.files.shared;
        let (cached, old) = (Arc::clone(cached), Arc::clone(&writers.old));
        Arc::new(ContentBeside { cached, old, is_writeback: config.writeback })
    }

    /// Has the kernel forget what was found to have changed since the last call, where the store is written
    /// to elsewhere; `is_newer`: looks for that first, since a newer state is shown
    /// ([`kvfs_fs::show_newer`]). On a thread that holds nothing that a request needs.
    pub fn forget_renewed(&self, is_newer: bool) {
        let shared = &self.files.shared;
        if is_newer {
            kvfs_fs::renew_cached(&shared.fs, |file| shared.cached.has(file.0));
        }
        shared.forget_changes(kvfs_fs::take_renewed(&shared.fs), None, Rested::default(), || {});
    }
}

impl Shared {
    /// See [`Bridge::forget_beside`].
    pub(super) fn forget_beside(&self, changes: Invalidations, telling: Option<Telling>) {
        let changed = changes.nodes.iter().filter(|(_, content)| *content);
        let old = changed.filter_map(|(node, _)| self.writers.old.take_untold(node.0)).collect();
        self.forget_changes(changes, telling, Rested { old, ..Rested::default() }, || {});
    }

    /// Has the kernel forget `changes`, but for the files of `rested` of which it has nothing old.
    /// `telling` ends when it has been told all names, however late. `then` is called before the names.
    fn forget_changes(
        &self,
        changes: Invalidations,
        telling: Option<Telling>,
        rested: Rested,
        then: impl FnOnce(),
    ) {
        // Cached listings are pages of the directory.
        let names = changes.entries.iter().chain(&changes.moved);
        let many = changes.many.iter().flat_map(ManyNames::directories);
        let listings = names.map(|(directory, _)| *directory).chain(many);
        let listings: BTreeSet<u64> = listings.map(|directory| directory.0).collect();
        let changed = changes.nodes.iter().map(|(node, _)| node.0);
        self.writers.told.mark(changed.chain(listings.iter().copied()));
        let Some(notifier) = self.notifier.get() else { return };
        let nodes = changes.nodes.into_iter();
        let Rested { mut forgotten, old } = rested;
        // Each goes by its own message, which may be late, and old pages are refused until then.
        forgotten.extend(old.iter().map(OldPages::node));
        let old = old.into_iter().map(|pages| Message::keeping(everything_of(pages.node()), pages));
        let nodes = nodes.filter(|(node, _)| !listings.contains(&node.0) && !forgotten.contains(&node.0));
        // A page that is written whole is kept back without having been asked for. Listings are pages, too.
        let has_pages =
            |node: u64| self.config.writeback || self.cached.has(node) || self.names_cached.has(node);
        let changed_of = |(node, content): (NodeId, bool)| match node.0 {
            node if content && has_pages(node) => everything_of(node),
            node => attributes_of(node),
        };
        let nodes = nodes.map(changed_of).chain(listings.iter().copied().map(attributes_of));
        // Modes, owners and lists first: a name that is new in a directory which is closed from now on is not
        // opened by what the kernel knew of the directory. Each process that may list a directory can hold up
        // all else that is told of it.
        let told = soon(notifier, &mut old.chain(nodes.map(Message::from)));
        self.late.add(self.learnt_soon(told.not_cached));
        then();
        let (root_names, is_in_root) = (&self.root_names, listings.contains(&NodeId::ROOT.0));
        let by_name = is_in_root.then(|| root_names.by_name());
        // A new epoch detaches whatever is mounted in the file system, so names go one by one, however many
        // they are.
        let by_epoch = matches!(by_name, Some(None));
        // Of a directory that has moved the kernel would drop all that it knows below, under the lock of the
        // one that it was in: it looks the name up again, and finds out.
        let entries = changes.entries.into_iter().map(|entry| (entry, false));
        let entries = entries.chain(changes.moved.into_iter().map(|entry| (entry, true)));
        let entries = entries.chain(changes.many.into_iter().flatten());
        let entries = entries
            .filter(|((directory, _), _)| !by_epoch && self.names_cached.has(directory.0))
            .map(|((directory, name), expire_only)| Notification::InvalEntry {
                parent: directory.0,
                name: Bytes::from(name),
                expire_only,
            });
        let epoch = by_epoch.then(|| notifier.tell_epoch());
        let listings = listings.into_iter().filter(|directory| self.names_cached.has(*directory));
        let listings = listings.map(everything_of);
        soon(notifier, &mut listings.chain(entries).map(Message::from));
        match (telling, epoch) {
            (Some(telling), Some(outcome)) => notifier.end_by_epoch(telling, outcome),
            (Some(telling), None) => notifier.end_telling(telling),
            (None, _) => {}
        }
        drop(by_name);
    }
}
