//! On which tier blocks are wished to lie: rows of a keyspace of tuples, by the prefix of the blocks.
//!
//! Thread safety: any thread. Invariants: a wish is looked up when blocks are placed, and kept nowhere else;
//! so it is never wrong for longer than what is under way. A row that can't be read is no wish, since nothing
//! is to fail for one.

use std::sync::Arc;

use kvfs_store::{Batch, Keyspace, KeyspaceKind, Op, Result, Seqno, StoreError, Tier};

use crate::live::LiveSet;
use crate::live::keyspaces::Keyspaces;
use crate::memtable::{Lookup, MemTable, Merger};
use crate::space::TierWishes;

/// The rows of one keyspace.
struct Rows {
    live: Arc<LiveSet>,
    keyspace: u32,
    /// The private table of a transaction, whose rows come before all others. Those that it has spilled
    /// before don't count.
    own: Option<Arc<MemTable>>,
}

impl Rows {
    fn find(&self, prefix: &[u8]) -> Result<Option<Tier>> {
        let mut lookup = Lookup::new(prefix, Seqno::MAX);
        if let Some(own) = &self.own {
            own.lookup(self.keyspace, &mut lookup);
        }
        if !lookup.is_decided() {
            self.live.view().lookup(self.keyspace, &mut lookup)?;
        }
        Ok(lookup.finish(&Merger::new("tiers", None))?.and_then(|value| tier_of_row(&value)))
    }
}

impl TierWishes for Rows {
    fn tier_of(&self, prefix: &[u8]) -> Option<Tier> {
        self.find(prefix).unwrap_or_else(|error| {
            tracing::warn!(%error, "where blocks are wished to lie can't be read");
            None
        })
    }
}

fn tier_of_row(value: &[u8]) -> Option<Tier> {
    match value {
        [code] => Tier::from_code(*code),
        _ => None,
    }
}

impl LiveSet {
    /// As [`kvfs_store::Place::place_by`].
    pub(crate) fn place_by(&self, keyspaces: &Keyspaces, data: Keyspace, wishes: Keyspace) -> Result<()> {
        for (keyspace, wanted) in [(data, KeyspaceKind::Block), (wishes, KeyspaceKind::Tuple)] {
            let meta = keyspaces.get(keyspace.0)?;
            if meta.kind != wanted {
                return Err(StoreError::wrong_kind("place_by", &*meta.name, meta.kind));
            }
        }
        self.placed_by.write().insert(data.0, wishes.0);
        Ok(())
    }

    /// The keyspaces of blocks that are placed by rows, with the keyspaces of these.
    pub(crate) fn placed_by(&self) -> Vec<(u32, u32)> {
        self.placed_by.read().iter().map(|(&data, &wishes)| (data, wishes)).collect()
    }

    /// Where blocks of the keyspace are wished to lie, by the rows of `own` before those that are committed.
    /// `None`: there are no such rows, or it makes no difference where blocks lie.
    pub(crate) fn tier_wishes(
        self: &Arc<Self>,
        data: u32,
        own: Option<&Arc<MemTable>>,
    ) -> Option<Arc<dyn TierWishes>> {
        let keyspace = *self.placed_by.read().get(&data)?;
        let is_of_both = self.runtime.ctx.zones.are_of_both_tiers();
        is_of_both.then(|| {
            Arc::new(Rows { live: Arc::clone(self), keyspace, own: own.cloned() }) as Arc<dyn TierWishes>
        })
    }

    /// Where blocks of `prefix` are wished to lie, when `batch` is committed.
    pub(crate) fn tier_wished_with(
        self: &Arc<Self>,
        batch: &Batch,
        data: u32,
        prefix: &[u8],
    ) -> Option<Tier> {
        let wishes = self.tier_wishes(data, None)?;
        let keyspace = Keyspace(*self.placed_by.read().get(&data)?);
        let own = batch.ops().iter().rev().find_map(|op| match op {
            Op::Put { keyspace: of, key, value } if *of == keyspace && *key == prefix => {
                Some(tier_of_row(value))
            }
            Op::Delete { keyspace: of, key } if *of == keyspace && *key == prefix => Some(None),
            _ => None,
        });
        own.unwrap_or_else(|| wishes.tier_of(prefix))
    }
}
