//! What is gone, in terms of keys.
//!
//! The index of a damaged block tells the range of its keys, the fingerprints which of the keys that are
//! there now were in it. So a key that was never damaged is not suspected (but for one in 2^32), and one
//! whose newest value is lost is listed, though an older value of it may have come back.

use std::collections::BTreeSet;

use bytes::Bytes;
use kvfs_store::{KeyRange, Keyspace, KeyspaceKind, Read, Result, Seqno, TxnId};

use crate::check::{LostKeys, blocks_of};
use crate::db::Db;
use crate::flush::patches::Gone;
use crate::memtable::Lookup;
use crate::repair::Repaired;
use crate::repair::pieces::counted;
use crate::runtime::options::new_uuid;
use crate::table::{LostPart, fingerprint};
use crate::version::{ManifestState, RunId};

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A part of a run that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Keyspace.
    pub keyspace: String,
    /// Layout of its values.
    pub kind: KeyspaceKind,
    /// Not committed yet: the part belonged to this transaction.
    pub txn: Option<TxnId>,
    /// Keys and seqnos, these without `base`.
    pub part: LostPart,
    /// What the seqnos count from.
    pub base: Seqno,
    /// Age and number of the run.
    pub(super) place: (Seqno, RunId),
}

impl Lost {
    /// What a flush has to know of it.
    pub(super) fn gone(&self) -> Gone {
        Gone { part: self.part.clone(), place: self.place }
    }
}

/// Makes other snapshots of those that may see less than they did, or more, and gives their names: each is
/// created at another moment within a second. The moment is a part of what other stores know a snapshot by,
/// and they must not take this one for the one that they know. `journal_from`: the first change that was
/// taken from a damaged journal.
pub(super) fn replace_snapshots(
    state: &mut ManifestState,
    repaired: &Repaired,
    journal_from: Option<Seqno>,
) -> Result<BTreeSet<String>> {
    // Nothing tells where in the history a transaction's part came to be.
    let since = |lost: &Lost| lost.txn.map_or(counted(lost.part.seqno_min, lost.base), |_| 0);
    let oldest =
        repaired.lost.iter().map(since).chain(journal_from).chain(repaired.is_uncertain.then_some(0));
    let Some(oldest) = oldest.min() else { return Ok(BTreeSet::new()) };
    let mut names = BTreeSet::new();
    for (name, snapshot) in state.snapshots.iter_mut().filter(|(_, snapshot)| snapshot.seqno >= oldest) {
        let later = 1 + u128::from_le_bytes(new_uuid()?) % (NANOS_PER_SECOND - 1);
        snapshot.created = snapshot.created.wrapping_add(later as u64);
        names.insert(name.clone());
    }
    Ok(names)
}

impl Db {
    /// What `lost` means for the newest state of the repaired store, of which this is the first opening.
    /// Keyspaces with merge records have been opened with their functions.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn lost_keys(&self, lost: &Lost) -> Result<LostKeys> {
        if lost.txn.is_some() {
            return Ok(LostKeys::default());
        }
        let Some((keyspace, meta)) = self.parts.keyspaces.find(&lost.keyspace) else {
            return Ok(LostKeys::default());
        };
        match meta.kind {
            KeyspaceKind::Tuple => self.lost_tuples(lost, keyspace),
            KeyspaceKind::Block => self.lost_blocks(lost, keyspace),
        }
    }

    fn lost_tuples(&self, lost: &Lost, keyspace: u32) -> Result<LostKeys> {
        let (view, seqno) = self.parts.history.read_view();
        let mut end = lost.part.last.to_vec();
        end.push(0);
        let range = KeyRange::new(lost.part.first.clone(), end);
        let mut gone: Option<Vec<u32>> = lost.part.keys.clone();
        let mut found = LostKeys::default();
        let mut cursor = self.cursor(Keyspace(keyspace), range)?;
        loop {
            cursor.next()?;
            let Some((key, _)) = cursor.entry() else { break };
            let key = Bytes::copy_from_slice(key);
            if !lost.part.may_hold(&key) {
                continue;
            }
            if let Some(gone) = &mut gone {
                gone.retain(|&other| other != fingerprint(&key));
            }
            let mut lookup = Lookup::new(&key, seqno);
            view.lookup_above(keyspace, &mut lookup, lost.place)?;
            if lookup.is_decided() {
                continue;
            }
            found.older.push(key);
        }
        found.gone_max = gone.map(|gone| gone.len() as u64);
        Ok(found)
    }

    fn lost_blocks(&self, lost: &Lost, keyspace: u32) -> Result<LostKeys> {
        let (view, seqno) = self.parts.history.read_view();
        blocks_of(&view, seqno, keyspace, (&lost.part, lost.place))
    }
}
