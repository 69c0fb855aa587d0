//! Content that was changed behind the kernel's back, which may have older pages of it.
//!
//! A mapping writes whole pages, with bytes that its program has not changed as they were when the page was
//! read. Of a commit it is not known which bytes it has changed: such a page is refused (`writers`). Of what
//! another front end changes it is: these bytes stay, and all others of the page are written.
//!
//! Thread safety: one lock, with which nothing else is called. Invariants: what another front end has changed
//! is here before a page that was read earlier can be written over it; it goes when a message behind the
//! change, by which the kernel drops its pages, was carried out.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use kvfs_fs::{Caller, ContentObserver, FileSystem, NodeId, WriteFlags, Written};
use kvfs_locks::{Mutex, class};
use rustix::io::Errno;

use super::Failure;
use super::cached::Cached;
use crate::notify::Keep;

/// As many ranges of a file are told apart.
const RANGES_MAX: usize = 64;

/// Bytes of a file: ascending, and none of the ranges touches the next one.
#[derive(Default)]
struct Ranges(Vec<Range<u64>>);

impl Ranges {
    fn add(&mut self, mut added: Range<u64>) {
        self.0.retain(|range| {
            let touches = range.start <= added.end && added.start <= range.end;
            if touches {
                added = range.start.min(added.start)..range.end.max(added.end);
            }
            !touches
        });
        let place = self.0.partition_point(|range| range.start < added.start);
        self.0.insert(place, added);
        let gap_before = |index: &usize| self.0[*index].start - self.0[index - 1].end;
        if self.0.len() > RANGES_MAX
            && let Some(index) = (1..self.0.len()).min_by_key(gap_before)
        {
            let range = self.0.remove(index);
            self.0[index - 1].end = range.end;
        }
    }

    fn add_all(&mut self, other: &Self) {
        other.0.iter().for_each(|range| self.add(range.clone()));
    }
}

/// What the messages of one [`OldPages`] are for.
#[derive(Default)]
struct Told {
    id: u64,
    by_commit: bool,
    beside: Ranges,
}

/// Of one file.
#[derive(Default)]
struct File {
    /// What was changed by others, and no message says yet.
    untold: Ranges,
    told: Vec<Told>,
}

#[derive(Default)]
struct State {
    files: HashMap<u64, File>,
    ids: u64,
}

impl State {
    fn keep(&mut self, node: u64, by_commit: bool, beside: Ranges) -> u64 {
        self.ids += 1;
        self.files.entry(node).or_default().told.push(Told { id: self.ids, by_commit, beside });
        self.ids
    }

    fn take(&mut self, pages: &OldPages) -> Option<Told> {
        let file = self.files.get_mut(&pages.node)?;
        let index = file.told.iter().position(|told| told.id == pages.id)?;
        let told = file.told.swap_remove(index);
        if file.told.is_empty() && file.untold.0.is_empty() {
            self.files.remove(&pages.node);
        }
        Some(told)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct OldContent {
    state: Mutex<State, class::FuseBridgeOldContent>,
    /// To be looked at without the lock.
    has_some: AtomicBool,
}

/// The kernel may have older pages of a file; dropped when it has them no more.
pub(super) struct OldPages {
    content: Arc<OldContent>,
    node: u64,
    id: u64,
}

impl OldContent {
    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        self.has_some.store(!state.files.is_empty(), Ordering::Release);
        changed
    }

    fn look<R: Default>(&self, node: u64, look: impl FnOnce(&File) -> R) -> R {
        if !self.has_some.load(Ordering::Acquire) {
            return R::default();
        }
        self.state.lock().files.get(&node).map(look).unwrap_or_default()
    }

    /// A commit has changed `node`.
    pub(super) fn of_commit(self: &Arc<Self>, node: u64) -> OldPages {
        let id = self.change(|state| state.keep(node, true, Ranges::default()));
        OldPages { content: Arc::clone(self), node, id }
    }

    /// Another front end has changed these bytes.
    fn add(&self, node: u64, bytes: Range<u64>) {
        self.change(|state| state.files.entry(node).or_default().untold.add(bytes));
    }

    /// What others have changed of `node`, of which the kernel is told from now on.
    pub(super) fn take_untold(self: &Arc<Self>, node: u64) -> Option<OldPages> {
        if !self.look(node, |file| !file.untold.0.is_empty()) {
            return None;
        }
        let id = self.change(|state| {
            let untold = std::mem::take(&mut state.files.get_mut(&node)?.untold);
            (!untold.0.is_empty()).then(|| state.keep(node, false, untold))
        });
        Some(OldPages { content: Arc::clone(self), node, id: id? })
    }

    /// Whether the kernel may have pages of `node` that are older than a commit.
    pub(super) fn is_older_than_commit(&self, node: u64) -> bool {
        self.look(node, |file| file.told.iter().any(|told| told.by_commit))
    }

    /// Which of these bytes others have changed: ascending, and none touches the next one.
    pub(super) fn changed_beside(&self, node: u64, bytes: &Range<u64>) -> Vec<Range<u64>> {
        self.look(node, |file| {
            let mut all = Ranges::default();
            file.told.iter().map(|told| &told.beside).chain([&file.untold]).for_each(|one| all.add_all(one));
            all.0.retain(|range| range.start < bytes.end && bytes.start < range.end);
            all.0
        })
    }
}

impl OldContent {
    /// Writes pages that the kernel had, but for what is newer there.
    pub(super) fn write_pages(
        &self,
        fs: &FileSystem,
        caller: &Caller,
        (node, offset): (NodeId, u64),
        data: Bytes,
        flags: WriteFlags,
    ) -> Result<Written, Failure> {
        if self.is_older_than_commit(node.0) {
            tracing::warn!(
                node = node.0,
                "a page of a mapping was lost: a transaction has changed it meanwhile"
            );
            return Err(Failure::Plain(Errno::IO));
        }
        let changed = |bytes| self.changed_beside(node.0, &bytes);
        Ok(kvfs_fs::write_pages(fs, caller, node, offset, data, flags, &changed)?)
    }
}

impl OldPages {
    pub(super) fn node(&self) -> u64 {
        self.node
    }
}

impl Keep for OldPages {
    fn take_over(&mut self, before: Box<dyn Keep>) {
        let before: Box<dyn Any> = before;
        let Ok(before) = before.downcast::<Self>() else { return };
        self.content.change(|state| {
            let Some(taken) = state.take(&before) else { return };
            let told = state.files.get_mut(&self.node).into_iter().flat_map(|file| &mut file.told);
            for told in told.filter(|told| told.id == self.id) {
                told.by_commit |= taken.by_commit;
                told.beside.add_all(&taken.beside);
            }
        });
    }
}

impl Drop for OldPages {
    fn drop(&mut self) {
        self.content.change(|state| state.take(self));
    }
}

/// Notes what other front ends change of files of which the kernel may have pages.
pub(super) struct ContentBeside {
    pub(super) cached: Arc<Cached>,
    pub(super) old: Arc<OldContent>,
    /// A page that is written whole is kept back without having been asked for.
    pub(super) is_writeback: bool,
}

impl fmt::Debug for ContentBeside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentBeside").field("is_writeback", &self.is_writeback).finish_non_exhaustive()
    }
}

impl ContentObserver for ContentBeside {
    fn content_changed(&self, node: NodeId, bytes: Range<u64>) {
        if self.is_writeback || self.cached.has(node.0) {
            self.old.add(node.0, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(ranges: &[Range<u64>]) -> Vec<(u64, u64)> {
        ranges.iter().map(|range| (range.start, range.end)).collect()
    }

    fn changed(content: &OldContent) -> Vec<(u64, u64)> {
        pairs(&content.changed_beside(7, &(0..u64::MAX)))
    }

    #[test]
    fn ranges_that_touch_are_one_and_of_too_many_the_nearest_are() {
        let mut all = Ranges::default();
        for range in [10..20, 30..40, 20..25, 26..27, 24..31] {
            all.add(range);
        }
        assert_eq!(pairs(&all.0), [(10, 40)]);
        for n in 0..RANGES_MAX as u64 - 2 {
            all.add(1000 * n + 100..1000 * n + 200);
        }
        all.add(50..60);
        assert_eq!((all.0.len(), &pairs(&all.0)[..2]), (RANGES_MAX, &[(10, 40), (50, 60)][..]));
        all.add(u64::MAX - 1..u64::MAX);
        assert_eq!((all.0.len(), &pairs(&all.0)[..2]), (RANGES_MAX, &[(10, 60), (100, 200)][..]));
    }

    #[test]
    fn changed_bytes_are_kept_until_a_message_behind_their_change_was_carried_out() {
        let content = Arc::new(OldContent::default());
        assert!(content.take_untold(7).is_none());
        content.add(7, 0..10);
        let first = content.take_untold(7).expect("is untold");
        assert!(content.take_untold(7).is_none());
        content.add(7, 20..30);
        assert_eq!(changed(&content), [(0, 10), (20, 30)]);
        assert!(!content.is_older_than_commit(7) && content.changed_beside(8, &(0..30)).is_empty());
        drop(first);
        assert_eq!(changed(&content), [(20, 30)], "no message says so yet");
        drop(content.take_untold(7));
        assert!(changed(&content).is_empty() && !content.has_some.load(Ordering::Acquire));
    }

    #[test]
    fn message_that_is_carried_out_for_an_earlier_one_keeps_what_that_has_kept() {
        let content = Arc::new(OldContent::default());
        let of_commit = content.of_commit(7);
        content.add(7, 0..10);
        let mut second = content.take_untold(7).expect("is untold");
        second.take_over(Box::new(of_commit));
        content.add(7, 20..30);
        let mut third = content.take_untold(7).expect("is untold");
        third.take_over(Box::new(second));
        assert!(content.is_older_than_commit(7));
        assert_eq!(changed(&content), [(0, 10), (20, 30)]);
        drop(third);
        assert!(!content.is_older_than_commit(7) && changed(&content).is_empty());
    }
}
