//! Snapshots: those of `SlateDB`, a state that is shown, or a named one, with the deleted ranges of their
//! time.
//!
//! Thread safety: immutable. Invariant: a snapshot and its ranges are taken while no range goes.

use std::ops::Range;
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
use crate::segments::Held;
use crate::shared::{Database, Shared};
use crate::view::{Source, View};
use crate::wait_limit::Waiter;

/// What stays as it is.
#[derive(Clone)]
enum State {
    Snapshot(Arc<DbSnapshot>),
    Reader(Arc<Reader>),
    Named(Arc<Opened>),
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Pin {
    // Before the store, which it is of.
    held: State,
    shared: Arc<Shared>,
    dead: Arc<DeadRanges>,
    /// Of the position.
    sequence: u64,
    waiter: Waiter,
    /// It is known to be read; `None`: what it is of knows that, or nothing is removed in this process.
    _position: Option<Arc<Held>>,
}

impl Pin {
    /// Of the newest position.
    pub(crate) fn newest(shared: &Arc<Shared>) -> Result<Self> {
        let mut position = None;
        let (held, dead, sequence) = match &shared.database {
            Database::Writer(db) => {
                // Before the snapshot.
                position = Some(Arc::new(shared.hold_newest()));
                let (dead, snapshot) = shared.dead_with(|| db.snapshot());
                let snapshot = snapshot.map_err(|error| of_slatedb("taking a snapshot", &error))?;
                let sequence = snapshot.seq();
                (State::Snapshot(snapshot), dead, sequence)
            }
            Database::Reader(follower) => {
                let state = follower.current();
                (State::Reader(Arc::clone(&state.reader)), Arc::clone(&state.meta.dead), state.sequence)
            }
        };
        Ok(Self {
            held,
            shared: Arc::clone(shared),
            dead,
            sequence,
            waiter: Waiter::Caller,
            _position: position,
        })
    }

    /// Of a named snapshot.
    pub(crate) fn of_named(shared: &Arc<Shared>, opened: Arc<Opened>) -> Self {
        let (dead, sequence) = (Arc::clone(&opened.shown().dead), opened.sequence());
        Self {
            held: State::Named(opened),
            shared: Arc::clone(shared),
            dead,
            sequence,
            waiter: Waiter::Caller,
            _position: None,
        }
    }

    /// The same, to be read by a thread of the store.
    pub(crate) fn of_background(self) -> Self {
        Self { waiter: Waiter::Background, ..self }
    }

    pub(crate) fn view(&self) -> View<'_> {
        let (source, at) = match &self.held {
            State::Snapshot(snapshot) => (Source::Snapshot(snapshot), self.sequence),
            // All that it has is visible.
            State::Reader(reader) => (Source::Reader(Arc::clone(reader)), u64::MAX),
            State::Named(opened) => (Source::Reader(Arc::clone(&opened.shown().reader)), u64::MAX),
        };
        View { shared: &self.shared, source, dead: Arc::clone(&self.dead), at, waiter: self.waiter }
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
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
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        self.view().next_extent(&*self.shared.space(keyspace)?, prefix, blocks, kind)
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
