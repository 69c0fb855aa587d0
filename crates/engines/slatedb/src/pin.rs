//! Snapshots: those of `SlateDB`, a state that is shown, or a named one, with the deleted ranges of their time.
//!
//! Thread safety: immutable. Invariant: a snapshot and its ranges are taken while no range goes.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BlockRange, Cursor, Extent, ExtentKind, KeyRange, Keyspace, Read, Result, Seqno, Snapshot};
use slatedb::DbSnapshot;

use crate::cursor::SlateCursor;
use crate::error::of_slatedb;
use crate::follower::Reader;
use crate::keys;
use crate::named::Opened;
use crate::ranges::DeadRanges;
use crate::shared::{Database, Shared};
use crate::view::{Source, View};

/// What stays as it is.
#[derive(Clone)]
enum Held {
    Snapshot(Arc<DbSnapshot>),
    Reader(Arc<Reader>),
    Named(Arc<Opened>),
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Pin {
    // Before the store, which it is of.
    held: Held,
    shared: Arc<Shared>,
    dead: Arc<DeadRanges>,
    /// Of the position.
    sequence: u64,
}

impl Pin {
    /// Of the newest position.
    pub(crate) fn newest(shared: &Arc<Shared>) -> Result<Self> {
        let (held, dead, sequence) = match &shared.database {
            Database::Writer(db) => {
                let (dead, snapshot) = shared.dead_with(|| db.snapshot());
                let snapshot = snapshot.map_err(|error| of_slatedb("taking a snapshot", &error))?;
                let sequence = snapshot.seq();
                (Held::Snapshot(snapshot), dead, sequence)
            }
            Database::Reader(follower) => {
                let state = follower.current();
                (Held::Reader(Arc::clone(&state.reader)), Arc::clone(&state.meta.dead), state.sequence)
            }
        };
        Ok(Self { held, shared: Arc::clone(shared), dead, sequence })
    }

    /// Of a named snapshot.
    pub(crate) fn of_named(shared: &Arc<Shared>, opened: Arc<Opened>) -> Self {
        let (dead, sequence) = (Arc::clone(&opened.shown().dead), opened.sequence());
        Self { held: Held::Named(opened), shared: Arc::clone(shared), dead, sequence }
    }

    pub(crate) fn view(&self) -> View<'_> {
        let (source, at) = match &self.held {
            Held::Snapshot(snapshot) => (Source::Snapshot(snapshot), self.sequence),
            // All that it has is visible.
            Held::Reader(reader) => (Source::Reader(Arc::clone(reader)), u64::MAX),
            Held::Named(opened) => (Source::Reader(Arc::clone(&opened.shown().reader)), u64::MAX),
        };
        View { shared: &self.shared, source, dead: Arc::clone(&self.dead), at }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

impl Read for Pin {
    fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Bytes>> {
        self.view().get(&*self.shared.space(keyspace)?, key)
    }

    fn multi_get(&self, keyspace: Keyspace, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        self.view().multi_get(&*self.shared.space(keyspace)?, keys)
    }

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(SlateCursor::new(self.clone(), keyspace, range)?))
    }

    fn read_blocks(&self, keyspace: Keyspace, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        self.view().read_blocks(&*self.shared.space(keyspace)?, prefix, first, buf)
    }

    fn next_extent(
        &self,
        keyspace: Keyspace,
        prefix: &[u8],
        from: u64,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.view().next_extent(&*self.shared.space(keyspace)?, prefix, from, kind)
    }

    fn will_need(&self, keyspace: Keyspace, ranges: Vec<BlockRange>) {
        // One that is not there is found out when it is read.
        if let Ok(space) = self.shared.space(keyspace) {
            self.view().will_need(&space, ranges);
        }
    }
}

impl Snapshot for Pin {
    fn seqno(&self) -> Seqno {
        keys::seqno(self.sequence)
    }
}
