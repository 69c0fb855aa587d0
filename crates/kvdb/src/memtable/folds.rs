//! Folds: what a long chain of merge operands of one key comes to, kept beside the records of a memtable.
//!
//! A row or a block may be changed by merge records any number of times before its memtable is flushed. A
//! read that has met many of them keeps what they come to: so the next read has only the newer ones to meet,
//! and n changes and m reads take O(n + m) steps, not O(n · m). A block's fold is made of what the table has
//! of it ([`super::patched`]); a row's of the whole read, since rows are read down to their base anyway.
//!
//! Thread safety: a fold at seqno s stands for everything at or below s that the table has of its key, and a
//! row's for all that older layers have, too. The reader that makes it must read at a position that is
//! published, so that all of this is there, and stays what it is. Two readers that make the same one make it
//! alike.

use kvfs_store::Seqno;

use super::keyspace::KeyspaceTable;
use super::skiplist::Record;
use crate::format::RecordKind;

/// Operands that a read meets before it keeps what they come to.
pub(super) const CHAIN_LEN_MAX: usize = 32;

/// The versions of a key in one table, newest first, up to and with the first fold.
pub(super) struct Versions<'a> {
    /// The last one that was given, or the first.
    at: Option<Record<'a>>,
    has_begun: bool,
    fold: Option<Record<'a>>,
}

impl KeyspaceTable {
    /// The versions of `key` at or below `snapshot`. O(log n), and O(1) for each version.
    pub(super) fn versions(&self, key: &[u8], snapshot: Seqno) -> Versions<'_> {
        let at = self.records.seek(key, snapshot).filter(|at| at.record().key == key);
        let is_merged = at.is_some_and(|at| at.record().kind == RecordKind::Merge);
        let fold = is_merged.then(|| self.folds.seek(key, snapshot)).flatten();
        Versions { at, has_begun: false, fold: fold.filter(|fold| fold.record().key == key) }
    }
}

impl<'a> Iterator for Versions<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let mut at = self.at.take()?;
        if self.has_begun {
            let key = at.record().key;
            if !at.advance() || at.record().key != key {
                return None;
            }
        }
        self.has_begun = true;
        if let Some(fold) = self.fold.filter(|fold| fold.record().seqno >= at.record().seqno) {
            return Some(fold);
        }
        self.at = Some(at);
        Some(at)
    }
}
