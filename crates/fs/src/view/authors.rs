//! Which operations outside of transactions have changed what lately, so that a conflict can name the
//! process.
//!
//! Thread safety: one short lock, taken only while a transaction is open. Invariants: bounded; a process is
//! named only if its operation held a name of what was changed while the change was made, and no other
//! process did.

use std::collections::VecDeque;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

use kvfs_locks::{Mutex, class};
use kvfs_store::Seqno;
use kvfs_txn::{LockName, LockNameBuf, Want};

/// So many operations are remembered: those of some seconds of a busy main line.
const OPERATIONS_MAX: usize = 4096;

/// An operation that has ended.
struct Operation {
    pid: u32,
    /// It wrote behind this position …
    before: Seqno,
    /// … and at or before this one.
    after: Seqno,
    marks: Vec<u64>,
}

/// The last operations, oldest first.
#[derive(Default)]
pub(crate) struct Authors(Mutex<VecDeque<Operation>, class::FsViewAuthors>);

/// An operation under way.
pub(crate) struct Author {
    pid: u32,
    before: Seqno,
    marks: Vec<u64>,
}

impl Author {
    /// Process `pid` holds the names of `wants`; the newest position is `before`.
    pub(super) fn new(pid: u32, before: Seqno, wants: &[Want<'_>]) -> Self {
        let mut author = Self { pid, before, marks: Vec::with_capacity(wants.len()) };
        author.extend(wants);
        author
    }

    /// It holds these names, too.
    pub(super) fn extend(&mut self, wants: &[Want<'_>]) {
        self.marks.extend(wants.iter().map(|want| mark(&want.name)));
    }
}

impl Authors {
    /// The operation has ended; the newest position is `after`.
    pub(super) fn note(&self, author: Author, after: Seqno) {
        let Author { pid, before, marks } = author;
        if pid == 0 || after <= before {
            return;
        }
        let mut operations = self.0.lock();
        if operations.len() == OPERATIONS_MAX {
            operations.pop_front();
        }
        operations.push_back(Operation { pid, before, after, marks });
    }

    /// The process that made the change at `seqno`, which one of these names means, if that is certain.
    /// O(operations).
    pub(super) fn find(&self, seqno: Seqno, names: &[LockNameBuf]) -> Option<u32> {
        let marks: Vec<u64> = names.iter().map(|name| mark(&name.as_name())).collect();
        let operations = self.0.lock();
        let mut found = None;
        for operation in operations.iter() {
            let is_in_range = operation.before < seqno && seqno <= operation.after;
            if is_in_range && operation.marks.iter().any(|mark| marks.contains(mark)) {
                if found.is_some_and(|pid| pid != operation.pid) {
                    return None;
                }
                found = Some(operation.pid);
            }
        }
        found
    }
}

/// Stands for what a name is about: an entry, an inode, the first one of some keys.
fn mark(name: &LockName<'_>) -> u64 {
    fn hash(of: impl Hash) -> u64 {
        BuildHasherDefault::<DefaultHasher>::default().hash_one(of)
    }
    match *name {
        LockName::Entry { directory, name } => hash((directory, name)),
        LockName::Entries { directory: inode }
        | LockName::Identity { directory: inode }
        | LockName::Counters { directory: inode }
        | LockName::Placement { directory: inode }
        | LockName::Attributes { inode, .. }
        | LockName::Blocks { inode, .. } => hash(inode),
        LockName::Keys { keyspace, start, .. } => hash((keyspace.0, start, "keys")),
    }
}

#[cfg(test)]
mod tests {
    use kvfs_txn::Fields;

    use super::*;

    fn attributes(inode: u64) -> LockName<'static> {
        LockName::Attributes { inode, fields: Fields::ALL }
    }

    #[test]
    fn change_is_of_the_one_process_that_held_its_name_meanwhile() {
        let authors = Authors::default();
        let note = |pid, before, after, inode| {
            authors.note(Author::new(pid, before, &[Want::exclusive(attributes(inode))]), after);
        };
        note(10, 5, 8, 1);
        note(11, 6, 9, 2);
        note(12, 9, 9, 1);
        let find = |seqno, inode| authors.find(seqno, &[attributes(inode).into()]);
        assert_eq!(find(7, 1), Some(10));
        assert_eq!(find(7, 2), Some(11), "both wrote then, each to its own");
        assert_eq!((find(5, 1), find(9, 1), find(7, 3)), (None, None, None));
        note(13, 6, 8, 1);
        assert_eq!((find(7, 1), find(6, 1)), (None, Some(10)), "of two it may be either");
    }

    #[test]
    fn operations_that_are_remembered_are_bounded() {
        let authors = Authors::default();
        for seqno in 0..2 * OPERATIONS_MAX as u64 {
            authors.note(Author::new(1, seqno, &[Want::exclusive(attributes(1))]), seqno + 1);
        }
        assert_eq!(authors.0.lock().len(), OPERATIONS_MAX);
        assert_eq!(authors.find(1, &[attributes(1).into()]), None);
    }
}
