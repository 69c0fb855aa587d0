//! A batch of `SlateDB` as it comes to be, and what it weighs in the backlog.
//!
//! Thread safety: plain values. Invariant: what it weighs is that of all that it writes and deletes.

use bytes::Bytes;
use slatedb::WriteBatch;

use crate::backlog::Backlog;

/// See the module.
#[derive(Default)]
pub(crate) struct Write {
    batch: WriteBatch,
    entries: usize,
    bytes: usize,
}

impl Write {
    /// By whole keys of the database.
    pub(crate) fn put(&mut self, key: Bytes, value: Bytes) {
        self.entries += 1;
        self.bytes += key.len() + value.len();
        self.batch.put_bytes(key, value);
    }

    pub(crate) fn put_all(&mut self, entries: impl IntoIterator<Item = (Bytes, Bytes)>) {
        for (key, value) in entries {
            self.put(key, value);
        }
    }

    pub(crate) fn delete(&mut self, key: Bytes) {
        self.entries += 1;
        self.bytes += key.len();
        self.batch.delete(key);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The batch, and its weight.
    pub(crate) fn finish(self) -> (WriteBatch, u64) {
        (self.batch, Backlog::weight(self.entries, self.bytes))
    }
}
