//! Pins on positions: snapshots, and what cursors hold on to.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::cursor::ModelCursor;
use super::{Commit, Shared};
use crate::{Cursor, Extent, ExtentKind, KeyRange, Keyspace, Read, Result, Seqno, Snapshot};

/// A pin on `seqno`; the versions that it sees stay until it is dropped.
pub(super) struct Pin {
    shared: Arc<Shared>,
    seqno: Seqno,
}

impl Pin {
    /// Pins the newest committed position.
    pub(super) fn newest(shared: &Arc<Shared>) -> Self {
        Self::newest_with(shared, |_, _| ()).0
    }

    /// As [`Pin::newest`]; `also` is done under the same lock.
    pub(super) fn newest_with<R>(
        shared: &Arc<Shared>,
        also: impl FnOnce(&mut Commit, Seqno) -> R,
    ) -> (Self, R) {
        let mut commit = shared.commit.lock();
        // Read under the lock: a batch in flight would prune what the pin must see.
        let seqno = shared.newest();
        commit.pin(seqno);
        let done = also(&mut commit, seqno);
        drop(commit);
        (Self { shared: Arc::clone(shared), seqno }, done)
    }

    /// A pin on a position that `commit`, of the same store, has pinned already.
    pub(super) fn another(shared: &Arc<Shared>, commit: &mut Commit, seqno: Seqno) -> Self {
        commit.pin(seqno);
        Self { shared: Arc::clone(shared), seqno }
    }

    /// Another pin on the same position.
    fn again(&self) -> Self {
        Self::another(&self.shared, &mut self.shared.commit.lock(), self.seqno)
    }

    /// The position.
    pub(super) fn at(&self) -> Seqno {
        self.seqno
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.shared.commit.lock().unpin(self.seqno);
    }
}

impl Commit {
    pub(super) fn pin(&mut self, seqno: Seqno) {
        *self.pins.entry(seqno).or_insert(0) += 1;
    }

    pub(super) fn unpin(&mut self, seqno: Seqno) {
        if let Some(count) = self.pins.get_mut(&seqno) {
            *count -= 1;
            if *count == 0 {
                self.pins.remove(&seqno);
            }
        }
    }
}

impl Read for Pin {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.shared.table(keyspace)?.get(key, self.seqno))
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        Ok(self.shared.table(keyspace)?.multi_get(keys, self.seqno))
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(ModelCursor::new(self.shared.table(keyspace)?, self.again(), range)))
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.shared.table(keyspace)?.read_blocks(prefix, first, buf, self.seqno)
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.shared.table(keyspace)?.next_extent(prefix, blocks, kind, self.seqno)
    }
}

impl Snapshot for Pin {
    fn seqno(&self) -> Seqno {
        self.seqno
    }
}
