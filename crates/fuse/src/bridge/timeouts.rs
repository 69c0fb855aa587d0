//! For how long the kernel may keep what it is answered.
//!
//! What an operation has read may be of before a change of which the kernel has been told by the time of the
//! answer: it would be kept for a day. So of such an answer the kernel keeps nothing: no attributes of a node
//! that it was told of since the operation began, or that changes just now, and no name in such a directory,
//! be it there or missing.
//!
//! Linux does a part of this itself, which is left to it. It leaves out attributes for which it asked before
//! it was told of their node (5.16), and it is told of a name when no request for one is under way in that
//! directory. But it compares nothing where it asked for something else than attributes: those of LINK, and
//! before 6.16 those of SETATTR, count whatever it was told meanwhile. And of a file whose pages a commit has
//! had dropped before it appears the kernel is not told once more behind that ([`super::writers`]).
//!
//! Thread safety: atomics. Invariant: a node is marked when its change can be read, and before the kernel is
//! told of it or the commit that changes it is over; so an answer that goes out behind either, and had begun
//! to read before the change, finds the mark.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use kvfs_fs::{Attr, NodeId};

use super::{Shared, convert};
use crate::dispatch::{Attributes, DirectoryBuffer, Entry, ExtendedAttributes};

/// Marks that are told apart; nodes that share one cost a request more, and nothing else.
const MARKS: usize = 1024;

/// Of which nodes the kernel was told, by a count that each change raises.
pub(super) struct InvalidationClock {
    now: AtomicU64,
    /// By a hash of the node: the count when it was marked last.
    marks: Box<[AtomicU64]>,
}

impl Default for InvalidationClock {
    fn default() -> Self {
        Self { now: AtomicU64::new(0), marks: (0..MARKS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl InvalidationClock {
    fn place(&self, node: u64) -> &AtomicU64 {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(node);
        &self.marks[hash as usize % MARKS]
    }

    /// To be called before anything is read that is to be answered.
    fn now(&self) -> u64 {
        self.now.load(Ordering::SeqCst)
    }

    /// These nodes have changed, and the kernel is told next.
    pub(super) fn mark(&self, nodes: impl IntoIterator<Item = u64>) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        for node in nodes {
            self.place(node).fetch_max(now, Ordering::SeqCst);
        }
    }

    /// Whether anything was marked since `then`. To be called when all is read that is to be answered.
    fn has_moved_since(&self, then: u64) -> bool {
        fence(Ordering::Acquire);
        self.now.load(Ordering::SeqCst) != then
    }

    /// Whether `node` was marked since `then`; called as [`Self::has_moved_since`].
    fn is_marked_since(&self, node: u64, then: u64) -> bool {
        self.has_moved_since(then) && self.place(node).load(Ordering::SeqCst) > then
    }
}

/// One try of an operation. Makes its answer of what the file system says.
pub(super) struct Attempt<'s> {
    shared: &'s Shared,
    began: u64,
}

impl Deref for Attempt<'_> {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        self.shared
    }
}

impl<'s> Attempt<'s> {
    /// Before the operation reads anything.
    pub(super) fn begin(shared: &'s Shared) -> Self {
        Self { shared, began: shared.writers.told.now() }
    }

    /// Whether what was read of `node`, or of names in it, may be older than what the kernel was told.
    fn may_be_old(&self, node: u64) -> bool {
        // In this order: a commit marks what it has changed before it is over.
        self.writers.is_changing(node) || self.writers.told.is_marked_since(node, self.began)
    }

    /// `timeout`, where the kernel may keep what was read of `node`.
    fn limit(&self, timeout: Duration, node: u64) -> Duration {
        if self.may_be_old(node) { Duration::ZERO } else { timeout }
    }

    /// The answer that a name of directory `parent` leads to `entry`.
    pub(super) fn entry(&self, parent: NodeId, entry: &kvfs_fs::Entry) -> Entry {
        let out = self.listed(entry);
        Entry {
            entry_timeout: self.limit(out.entry_timeout, parent.0),
            attr_timeout: self.limit(out.attr_timeout, entry.attr.inode),
            ..out
        }
    }

    /// The answer that there is no such name in directory `parent`.
    pub(super) fn missing(&self, parent: NodeId) -> Entry {
        Entry::negative(self.limit(self.config.negative_timeout, parent.0))
    }

    /// The same as [`Self::entry`], for a listing that ends with [`Self::limit_listed`].
    pub(super) fn listed(&self, entry: &kvfs_fs::Entry) -> Entry {
        let mut out = convert::entry(entry, &self.config);
        out.node += self.base;
        out.attr.ino += self.base;
        out
    }

    /// All that is answered of directory `parent` is in `listing`.
    pub(super) fn limit_listed(&self, parent: NodeId, listing: &mut DirectoryBuffer) {
        if !self.writers.is_invalidating() && !self.writers.told.has_moved_since(self.began) {
            return;
        }
        let are_names_old = self.may_be_old(parent.0);
        listing.expire(are_names_old, |node| self.may_be_old(node - self.base));
    }

    pub(super) fn attributes(&self, attr: &Attr) -> Attributes {
        let mut out = convert::attributes(attr, &self.config);
        out.timeout = self.limit(out.timeout, attr.inode);
        out.attr.ino += self.base;
        out
    }

    pub(super) fn extended(&self, attr: &Attr) -> ExtendedAttributes {
        let mut out = convert::extended(attr, &self.config);
        out.timeout = self.limit(out.timeout, attr.inode);
        out.stat.ino += self.base;
        out
    }
}

#[cfg(test)]
mod tests;
