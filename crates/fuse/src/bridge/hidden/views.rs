//! Views of snapshots that the kernel knows something of.
//!
//! A view is opened when its name is looked up, and ends when the kernel has forgotten all of its nodes.
//! Where many are open, the kernel is asked to forget the one that was looked up longest ago, but for those
//! in which something is mounted: it would be detached. A view whose snapshot is deleted is closed at once:
//! what the kernel asks of it from then on is stale.
//!
//! Thread safety: one lock, held for moments; views are opened and dropped without it. Invariants: while the
//! kernel knows a node of a view, no other view gets its index.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use kvfs_fs::FileSystem;
use kvfs_locks::{RwLock, class};
use rustix::io::Errno;

use super::SnapshotItem;
use crate::bridge::{Failure, Files, Shared, ids};
use crate::mount::names_above_mounts;
use crate::notify::Notification;

/// Views that may be open before the kernel is asked to forget one.
const OPEN_MAX: usize = 8;

/// How many nodes of a view the kernel knows, each as often as it was told of it.
#[derive(Default)]
pub(in crate::bridge) struct Known(AtomicU64);

impl Known {
    pub(in crate::bridge) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(in crate::bridge) fn take(&self, count: u64) {
        let less = |known: u64| Some(known.saturating_sub(count));
        // Always some.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
    }

    fn is_nothing(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

/// Where a view is seen.
#[derive(Clone)]
pub(super) struct Seen {
    /// Node of the folder.
    pub(super) folder: u64,
    pub(super) name: Bytes,
}

impl Seen {
    fn forgotten(self) -> Notification {
        Notification::InvalEntry { parent: self.folder, name: self.name, expire_only: false }
    }
}

struct View {
    id: u64,
    known: Arc<Known>,
    /// `None`: closed.
    files: Option<Arc<Files>>,
    is_kept: Arc<dyn Fn() -> bool + Send + Sync>,
    seen: Seen,
    /// When it was looked up last, as a count of lookups.
    used: u64,
}

#[derive(Default)]
struct State {
    views: HashMap<u16, View>,
    lookups: u64,
}

impl State {
    /// Counts a lookup of the root of the view of snapshot `id`, if it is open.
    fn reenter(&mut self, id: u64, seen: &Seen) -> Option<(u16, Arc<Files>)> {
        self.lookups += 1;
        let (&index, view) = self.views.iter_mut().find(|(_, view)| view.id == id && view.files.is_some())?;
        let files = Arc::clone(view.files.as_ref()?);
        view.known.add(1);
        view.used = self.lookups;
        view.seen = seen.clone();
        Some((index, files))
    }

    /// Gives `fs` an index, and counts a lookup of its root.
    fn install(
        &mut self,
        main: &Files,
        fs: Arc<FileSystem>,
        (id, is_kept): (u64, Arc<dyn Fn() -> bool + Send + Sync>),
        seen: Seen,
    ) -> Result<(u16, Arc<Files>), Failure> {
        let used = self.lookups;
        // The same snapshot has the same index, and its files the same numbers, whenever that is free.
        let max = u64::from(ids::VIEW_INDEX_MAX);
        for index in (0..max).map(|step| (1 + (id % max + step) % max) as u16) {
            let Slot::Vacant(slot) = self.views.entry(index) else { continue };
            let known = Arc::new(Known::default());
            known.add(1);
            let files = Arc::new(main.of_snapshot(fs, ids::base(index), Arc::clone(&known)));
            slot.insert(View { id, known, files: Some(Arc::clone(&files)), is_kept, seen, used });
            return Ok((index, files));
        }
        Err(Failure::Plain(Errno::NFILE))
    }
}

/// See the module.
#[derive(Default)]
pub(in crate::bridge) struct Views(RwLock<State, class::FuseBridgeHiddenViews>);

impl Views {
    /// The files of the view with this index; `None`: it is closed.
    pub(in crate::bridge) fn get(&self, index: u16) -> Option<Arc<Files>> {
        self.0.read().views.get(&index)?.files.clone()
    }

    /// Opens the view of `item`, if it isn't open, and counts a lookup of its root: give that back by
    /// [`Self::forget`]. `main` are the files that it is shown beside.
    pub(super) fn enter(
        &self,
        main: &Files,
        item: SnapshotItem,
        seen: Seen,
    ) -> Result<(u16, Arc<Files>), Failure> {
        let open = self.0.write().reenter(item.id, &seen);
        if let Some(open) = open {
            return Ok(open);
        }
        let fs = (item.open)()?;
        let opened = {
            let mut state = self.0.write();
            // Another lookup may have been faster.
            match state.reenter(item.id, &seen) {
                Some(open) => Ok(open),
                None => state.install(main, fs, (item.id, item.is_kept), seen),
            }
        };
        if let Some(crowd) = self.crowd()
            && let Some(notifier) = main.shared.notifier.get()
        {
            // Refused when there is much else to do: the next lookup tries again.
            let _ = notifier.submit(crowd.forgotten());
        }
        opened
    }

    /// Where the view is seen that was looked up longest ago, of those in which nothing is mounted, when
    /// there are too many.
    fn crowd(&self) -> Option<Seen> {
        let state = self.0.read();
        let open = || state.views.values().filter(|view| view.files.is_some());
        if open().count() <= OPEN_MAX {
            return None;
        }
        let mut seen: Vec<_> = open().map(|view| (view.used, view.seen.clone())).collect();
        drop(state);
        let kept = names_above_mounts();
        seen.retain(|(_, seen)| !kept.contains(&seen.name[..]));
        seen.into_iter().min_by_key(|(used, _)| *used).map(|(_, seen)| seen)
    }

    /// The kernel knows `inode` of a view `count` times less.
    pub(in crate::bridge) fn forget(&self, index: u16, inode: u64, count: u64) {
        let (files, known) = {
            let state = self.0.read();
            let Some(view) = state.views.get(&index) else { return };
            (view.files.clone(), Arc::clone(&view.known))
        };
        match files {
            Some(files) => files.shared.forget(inode, count),
            None => known.take(count),
        }
        if known.is_nothing() {
            self.drop_unknown(index);
        }
    }

    /// The end of a view that the kernel knows nothing of.
    fn drop_unknown(&self, index: u16) {
        let gone = {
            let mut state = self.0.write();
            match state.views.entry(index) {
                Slot::Occupied(slot) if slot.get().known.is_nothing() => Some(slot.remove()),
                _ => None,
            }
        };
        drop(gone);
    }

    /// The snapshot `id` is gone: from now on its nodes are stale, and the kernel is told so.
    fn close(&self, on: &Shared, id: u64) {
        let closed = {
            let mut state = self.0.write();
            let view = state.views.values_mut().find(|view| view.id == id);
            view.and_then(|view| Some((view.files.take()?, view.seen.clone())))
        };
        let Some((files, seen)) = closed else { return };
        drop(files);
        if let Some(notifier) = on.notifier.get() {
            // When it is refused, the kernel learns of it when it looks the name up again.
            let _ = notifier.submit(seen.forgotten());
        }
    }

    /// Closes the views of snapshots that exist no more.
    pub(in crate::bridge) fn sweep(&self, on: &Shared) {
        let open: Vec<_> = {
            let state = self.0.read();
            let open = state.views.values().filter(|view| view.files.is_some());
            open.map(|view| (view.id, Arc::clone(&view.is_kept))).collect()
        };
        for (id, _) in open.into_iter().filter(|(_, is_kept)| !is_kept()) {
            self.close(on, id);
        }
    }

    /// Indices in use.
    pub(in crate::bridge) fn len(&self) -> usize {
        self.0.read().views.len()
    }
}
