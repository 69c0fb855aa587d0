//! Watches of content: the holder of a copy of a file is told of each change of it, by whichever front end,
//! or commit, it is made.
//!
//! A transaction remembers which bytes of files it has changed, to say so at its commit.
//!
//! Thread safety: leaf locks; watchers are called by any thread, without them. Invariant: of a change that a
//! read after the begin of a watch does not see, its watcher is told.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};

use kvfs_locks::{Mutex, class};

use crate::node::Pin;
use crate::{ByteRanges, Caller, FileSystem, NodeId};

/// Holds a copy of the content of a file. Must neither wait nor use the file system when it is told.
pub trait ContentWatcher: fmt::Debug + Send + Sync {
    /// These bytes have changed. Called while the operation still holds them, as
    /// [`ContentObserver`](crate::ContentObserver) is.
    fn bytes_changed(&self, bytes: Range<u64>);

    /// A commit has changed the file; which bytes is not known. Called, as for the bytes of a commit that are
    /// known, before another operation can change what the commit has changed.
    fn file_changed(&self);
}

/// Of so many files a transaction remembers it.
const FILES_MAX: usize = 64;

/// Which bytes of files a transaction has changed, as far as it remembers.
#[derive(Debug, Default)]
pub(crate) struct ChangedContent(Mutex<HashMap<u64, ByteRanges>, class::FsFileChangedContent>);

impl ChangedContent {
    fn add(&self, inode: u64, bytes: Range<u64>) {
        let mut files = self.0.lock();
        if files.len() < FILES_MAX || files.contains_key(&inode) {
            files.entry(inode).or_default().add(bytes);
        }
    }

    /// All that it has changed of the file. `None`: that is not known.
    pub(crate) fn of(&self, inode: u64) -> Option<ByteRanges> {
        self.0.lock().get(&inode).cloned()
    }
}

/// Watchers of one file, with the numbers of their watches.
type Watchers = Vec<(u64, Arc<dyn ContentWatcher>)>;

/// Those of a view.
#[derive(Default)]
pub(crate) struct ContentWatches {
    files: Mutex<HashMap<u64, Watchers>, class::FsFileWatches>,
    /// Of `files`, so that a view without any costs nothing.
    count: AtomicUsize,
    next: AtomicU64,
    /// That of the transaction whose view it is.
    changed: OnceLock<Arc<ChangedContent>>,
}

impl ContentWatches {
    fn add(&self, inode: u64, watcher: Arc<dyn ContentWatcher>) -> u64 {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut files = self.files.lock();
        files.entry(inode).or_default().push((id, watcher));
        self.count.store(files.len(), Ordering::Relaxed);
        // Before the file is read.
        fence(Ordering::SeqCst);
        id
    }

    fn remove(&self, inode: u64, id: u64) {
        let mut files = self.files.lock();
        let removed = files.get_mut(&inode).map(|all| {
            let removed: Watchers = all.extract_if(.., |(other, _)| *other == id).collect();
            (removed, all.is_empty())
        });
        if matches!(removed, Some((_, true))) {
            files.remove(&inode);
        }
        self.count.store(files.len(), Ordering::Relaxed);
    }

    fn tell(&self, inode: u64, but_for: Option<u64>, tell: impl Fn(&dyn ContentWatcher)) {
        // Behind the change.
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let told = self.files.lock().get(&inode).cloned().unwrap_or_default();
        for (_, watcher) in told.iter().filter(|(id, _)| Some(*id) != but_for) {
            tell(&**watcher);
        }
    }

    /// From now on what is changed is remembered there.
    pub(crate) fn remember(&self, changed: &Arc<ChangedContent>) {
        let _ = self.changed.set(Arc::clone(changed));
    }

    /// A commit has changed the content of the file: these bytes, or it is not known which.
    pub(crate) fn tell_committed(&self, inode: u64, bytes: Option<&ByteRanges>) {
        self.tell(inode, None, |watcher| match bytes {
            Some(bytes) => bytes.iter().for_each(|range| watcher.bytes_changed(range.clone())),
            None => watcher.file_changed(),
        });
    }
}

/// Ends when it is dropped.
pub struct ContentWatch {
    fs: Arc<FileSystem>,
    inode: u64,
    id: u64,
}

impl fmt::Debug for ContentWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentWatch").field("inode", &self.inode).finish_non_exhaustive()
    }
}

/// Tells `watcher` of changes of a file in the view `fs`, from now on. The caller must hold the node.
pub fn watch_content(fs: &Arc<FileSystem>, node: NodeId, watcher: Arc<dyn ContentWatcher>) -> ContentWatch {
    let id = fs.nodes.watches.add(node.0, watcher);
    ContentWatch { fs: Arc::clone(fs), inode: node.0, id }
}

impl ContentWatch {
    /// As which a caller writes back what the watcher holds: of this the watcher is not told.
    pub fn of_writer(&self) -> u64 {
        self.id
    }
}

impl Drop for ContentWatch {
    fn drop(&mut self) {
        self.fs.nodes.watches.remove(self.inode, self.id);
    }
}

impl Pin<'_> {
    /// To be called when the caller has changed these bytes of the file, before they are let go of.
    pub(crate) fn note_content(&self, caller: &Caller, bytes: Range<u64>) {
        if let Some(observer) = &caller.content_observer {
            observer.content_changed(NodeId(self.inode), bytes.clone());
        }
        let watches = &self.table().watches;
        if let Some(changed) = watches.changed.get() {
            changed.add(self.inode, bytes.clone());
        }
        watches.tell(self.inode, caller.writes_back, |watcher| watcher.bytes_changed(bytes.clone()));
    }
}
