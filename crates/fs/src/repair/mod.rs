//! Making the file system whole again after something of it was lost: `kvfs check --repair`.
//!
//! Purpose: brings rows, names, counters, blocks and attributes into agreement, so that [`crate::check`]
//! finds nothing. What can't be reached any more goes to `lost+found/` in the root, as `directory-INODE` or
//! `file-INODE`; what refers to nothing is taken away; what is missing of a file becomes a hole, at its end
//! it gets shorter. Each change is told.
//!
//! All of it is one transaction of the store: a crash leaves the file system as it was, or repaired.
//!
//! Thread safety: one thread, and no [`crate::FileSystem`] is open on the store. Memory: as for a check.

mod content;
mod counters;
mod edit;
mod found;
mod names;
mod paths;
mod quotas;
mod rows;
mod survey;

use std::collections::BTreeSet;
use std::sync::Arc;

use kvfs_store::clock::Clock;
use kvfs_store::{Batch, Durability, Keyspace, KeyspaceKind, Store, Txn, TxnOptions};

use crate::check::{self, CheckReport, Problem};
use crate::quota;
use crate::schema::{Keyspaces, Receiving, Row, decode_receiving, receiving_key};
use crate::transfer::finish_receive;
use crate::{Result, Timestamp};
pub use paths::{DamagedKeys, describe};
pub(crate) use paths::{FilePaths, describe_unread};

/// What a repair changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Where, and what was done.
    pub fixed: Vec<Problem>,
    /// What is lost: path and bytes, attributes or the whole.
    pub lost: Vec<Problem>,
    /// Files of which `lost` lists the bytes.
    pub holed: BTreeSet<u64>,
    /// Contradictions that are still there; empty, or a bug.
    pub left: Vec<Problem>,
}

/// The keyspaces of every file system, in the order in which they are made, with their kinds.
pub const KEYSPACES: [(&str, KeyspaceKind); 4] = [
    (crate::KEYSPACES[0], KeyspaceKind::Tuple),
    (crate::KEYSPACES[1], KeyspaceKind::Block),
    (crate::KEYSPACES[2], KeyspaceKind::Tuple),
    (crate::KEYSPACES[3], KeyspaceKind::Tuple),
];

/// Opens these keyspaces of `store` with what resolves their merge records.
///
/// # Errors
/// Store errors.
pub fn open_keyspaces(store: &Arc<dyn Store>) -> Result<()> {
    Keyspaces::open(&**store).map(drop)
}

/// Repairs the file system in `store`, which has transactions. Where there is nothing to repair, nothing is
/// written. The engine could not bring back what is `damaged`; where it `is_uncertain`, anything may be there
/// in an older state.
///
/// # Errors
/// Store errors, also where the store itself is damaged still; no space. Nothing has changed then.
pub fn repair(
    store: &Arc<dyn Store>,
    clock: &dyn Clock,
    damaged: &[DamagedKeys],
    is_uncertain: bool,
) -> Result<RepairReport> {
    let keyspaces = Keyspaces::open(&**store)?;
    let quotas = quota::find_keyspace(&**store)?;
    let txn = store.begin(TxnOptions::default())?;
    let now: Timestamp = clock.wall().into();
    let has_quotas = match quotas {
        Some(keyspace) => quota::are_on(&*txn, keyspace)?,
        None => false,
    };
    let older = if is_uncertain { None } else { Some(older_rows(&*txn, &keyspaces, damaged)?) };
    let mut edit = edit::Edit::new(&*txn, keyspaces, now, has_quotas, older);
    let repaired = rows::repair(&mut edit)
        .and_then(|()| names::repair(&mut edit))
        .and_then(|()| content::repair(&mut edit))
        .and_then(|()| counters::repair(&mut edit))
        .and_then(|()| quotas::repair(&mut edit, quotas))
        .and_then(|()| edit.finish())
        .and_then(|report| recount(&*txn, &keyspaces, quotas, report))
        .and_then(|report| Ok((report, check::check_read(&*txn, &keyspaces)?.problems)));
    let (report, left) = match repaired {
        Ok(done) => done,
        Err(error) => {
            txn.abort();
            return Err(error);
        }
    };
    if report.fixed.is_empty() && report.lost.is_empty() {
        txn.abort();
    } else {
        txn.commit(Durability::Synced)?;
    }
    Ok(RepairReport { left, ..report })
}

/// Inodes of rows that are there in an older state.
fn older_rows(txn: &dyn Txn, keyspaces: &Keyspaces, damaged: &[DamagedKeys]) -> Result<BTreeSet<u64>> {
    let mut inodes = BTreeSet::new();
    let [meta, _, _, orphans] = crate::KEYSPACES;
    for (name, keyspace) in [(meta, keyspaces.meta), (orphans, keyspaces.orphans)] {
        for key in damaged.iter().filter(|of| of.keyspace == name).flat_map(|of| &of.older) {
            let row = txn.get(keyspace, key)?;
            inodes.extend(row.as_deref().and_then(Row::parse).map(|row| row.inode()));
        }
    }
    Ok(inodes)
}

/// Names what was received last, as an opening does, before anything else is written. Where the store is not
/// `is_whole` it gets no name, which would stand for what was sent; that is told.
///
/// # Errors
/// Store errors.
pub fn settle_receive(store: &Arc<dyn Store>, is_whole: bool) -> Result<Option<Problem>> {
    let meta = Keyspaces::open(&**store)?.meta;
    let Some(bytes) = store.get(meta, &receiving_key())? else { return Ok(None) };
    // A record that can't be read is lost as any other one is: the repair tells of it.
    let Ok(Receiving { name, .. }) = decode_receiving(&bytes) else { return Ok(None) };
    if is_whole || store.named_snapshots().iter().any(|info| info.name == name) {
        finish_receive(&**store, meta)?;
        return Ok(None);
    }
    let mut batch = Batch::new();
    batch.delete(meta, receiving_key());
    store.apply(batch, Durability::Synced)?;
    let detail = "it was received, and has no name, as some of it may be lost".to_owned();
    Ok(Some(Problem { place: format!("snapshot \"{name}\""), detail }))
}

/// Where what is counted for quotas does not fit any more, the next mount counts anew.
fn recount(
    txn: &dyn Txn,
    keyspaces: &Keyspaces,
    quotas: Option<Keyspace>,
    mut report: RepairReport,
) -> Result<RepairReport> {
    let Some(keyspace) = quotas else { return Ok(report) };
    let mut usage = CheckReport::default();
    quota::check_usage(txn, keyspaces, keyspace, &mut usage)?;
    if !usage.problems.is_empty() {
        let mut batch = Batch::new();
        quota::forget_count(&mut batch, keyspace);
        txn.apply(batch)?;
        let detail = "the next mount counts anew".to_owned();
        report.fixed.push(Problem { place: "quotas".to_owned(), detail });
    }
    Ok(report)
}
