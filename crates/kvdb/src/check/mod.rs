//! Verifying an open store: every checksum is read, every reference followed.

mod lost_keys;
mod zones;

pub use lost_keys::LostKeys;
pub(crate) use lost_keys::blocks_of;
pub(crate) use zones::zone_map;
pub use zones::{ZoneInfo, ZoneKind, ZoneMap};

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{KeyspaceKind, Result, Seqno};

use crate::format::PieceId;
use crate::layers::view::{Sealed, View};
use crate::parts::Parts;
use crate::space::Zones;
use crate::table::LostPart;
use crate::table::salvage::unreadable;
use crate::version::{Run, RunId};

/// The last group of the journal, where it was not whole at the opening.
const INCOMPLETE_GROUP: &str = "bytes at the end of the journal that were never acknowledged or are damaged";

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// Damage, one line each; empty: clean.
    pub findings: Vec<String>,
    /// What was looked at, by name.
    pub counts: Vec<(String, u64)>,
    /// Which keys the damage is about, as far as they are not transactions'.
    pub unreadable: Vec<Unreadable>,
}

/// Keys of which the newest state, or any, can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Keyspace.
    pub keyspace: String,
    /// The smallest one.
    pub first: Bytes,
    /// The greatest one, inclusive.
    pub last: Bytes,
    /// At most so many keys; `None`: any number.
    pub keys_max: Option<u64>,
    /// In a keyspace of blocks, those that nothing newer replaces: prefix, first block, count.
    pub blocks: Vec<(Bytes, u64, u64)>,
}

/// Totals of a check in progress.
#[derive(Default)]
struct Tally {
    findings: Vec<String>,
    runs: u64,
    pieces: u64,
    records: u64,
    bytes_verified: u64,
    /// Pieces in which nothing is wrong: forks have the same ones.
    sound: HashSet<PieceId>,
    /// By keyspace and place of the run.
    parts: Vec<(u32, (Seqno, RunId), LostPart)>,
}

pub(crate) fn check(parts: &Parts) -> Result<Checked> {
    let view = parts.live.view();
    let mut tally = Tally { findings: parts.devices.damaged_labels(), ..Tally::default() };
    let runs = view.version.keyspaces().flat_map(|(_, runs)| runs);
    progress::stage("verifying checksums", Unit::Bytes, runs.map(|run| run.data_bytes()).sum());
    for (keyspace, runs) in view.version.keyspaces() {
        let meta = parts.keyspaces.get(keyspace)?;
        for run in runs {
            tally.runs += 1;
            check_run(run, (keyspace, &meta.name, true), &mut tally)?;
        }
    }
    // Those of commits that wait for older memtables.
    let waiting = || view.sealed.iter().flat_map(Sealed::all_runs);
    for (keyspace, run) in waiting() {
        tally.runs += 1;
        check_run(run, (keyspace, &parts.keyspaces.get(keyspace)?.name, true), &mut tally)?;
    }
    let checkpointed = parts.checkpoints.runs();
    for (keyspace, run) in &checkpointed {
        tally.runs += 1;
        check_run(run, (*keyspace, &parts.keyspaces.get(*keyspace)?.name, false), &mut tally)?;
    }
    let in_version = view.version.keyspaces().flat_map(|(_, runs)| runs);
    let others = waiting().map(|(_, run)| run).chain(checkpointed.iter().map(|(_, run)| run));
    check_zones(&parts.runtime.ctx.zones, in_version.chain(others), &mut tally);
    let unreadable = unreadable_keys(parts, &view, tally.parts)?;
    let counts = [
        ("runs", tally.runs),
        ("pieces", tally.pieces),
        ("records and blocks", tally.records),
        ("bytes verified", tally.bytes_verified),
    ];
    // Not damage as far as it can be known: a power cut leaves it, too.
    let incomplete_bytes = parts.runtime.counters.journal_incomplete_bytes();
    let incomplete = (incomplete_bytes > 0).then_some((INCOMPLETE_GROUP, incomplete_bytes));
    let counts = counts.into_iter().chain(incomplete).map(|(name, count)| (name.to_owned(), count)).collect();
    Ok(Checked { findings: tally.findings, counts, unreadable })
}

fn unreadable_keys(
    parts: &Parts,
    view: &View,
    damaged: Vec<(u32, (Seqno, RunId), LostPart)>,
) -> Result<Vec<Unreadable>> {
    let seqno = parts.history.read_view().1;
    let mut all = Vec::new();
    for (keyspace, place, part) in damaged {
        let meta = parts.keyspaces.get(keyspace)?;
        let (keys_max, blocks) = match meta.kind {
            KeyspaceKind::Tuple => (part.keys.as_ref().map(|keys| keys.len() as u64), Vec::new()),
            KeyspaceKind::Block => match blocks_of(view, seqno, keyspace, (&part, place)) {
                Ok(found) => (found.gone_max, found.blocks),
                // What lies above is damaged, too.
                Err(_) => (None, Vec::new()),
            },
        };
        let (keyspace, LostPart { first, last, .. }) = (meta.name.to_string(), part);
        all.push(Unreadable { keyspace, first, last, keys_max, blocks });
    }
    Ok(all)
}

/// Every zone that a piece refers to must be known as used.
fn check_zones<'a>(zones: &Zones, runs: impl Iterator<Item = &'a Arc<Run>>, tally: &mut Tally) {
    let mut expected: BTreeMap<u32, u64> = BTreeMap::new();
    for piece in runs.flat_map(|run| &run.pieces) {
        for zone_use in &piece.desc().zones {
            *expected.entry(zone_use.zone.0).or_default() += zone_use.bytes;
        }
    }
    for (zone, _, live) in zones.table() {
        let wanted = expected.remove(&zone.0).unwrap_or(0);
        if live < wanted {
            tally
                .findings
                .push(format!("zone {}: {live} bytes counted as live, but {wanted} are in use", zone.0));
        }
    }
    for zone in expected.keys() {
        tally.findings.push(format!("zone {zone} is in use, but not part of the device"));
    }
}

/// Of a run that is not of a transaction the parts that can't be read are noted.
fn check_run(run: &Run, (keyspace, name, is_main): (u32, &str, bool), tally: &mut Tally) -> Result<()> {
    for pair in run.pieces.windows(2) {
        if pair[0].desc().last_key > pair[1].desc().first_key {
            tally.findings.push(format!("keyspace {name}, run {}: pieces overlap", run.id.0));
        }
    }
    for piece in &run.pieces {
        progress::check_wanted()?;
        if tally.sound.contains(&piece.desc().id) {
            continue;
        }
        tally.pieces += 1;
        tally.records += piece.desc().records;
        let verified = piece.verify().and_then(|bytes| Ok((bytes, piece.has_damaged_copy()?)));
        match verified {
            Ok((bytes, has_damaged_copy)) => {
                tally.bytes_verified += bytes;
                progress::advance(bytes);
                tally.sound.insert(piece.desc().id);
                if has_damaged_copy {
                    let number = piece.desc().id.0;
                    tally.findings.push(format!(
                        "keyspace {name}, piece {number}: the copy of its index is damaged; the index itself serves"
                    ));
                }
            }
            Err(error) => {
                tally.findings.push(format!("keyspace {name}, piece {}: {error}", piece.desc().id.0));
                let mut parts = if is_main { unreadable(piece) } else { Vec::new() };
                parts.retain_mut(|part| {
                    part.first = part.first.clone().max(run.lower_bound.clone());
                    part.last >= run.lower_bound
                });
                let place = (run.age, run.id);
                tally.parts.extend(parts.into_iter().map(|part| (keyspace, place, part)));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
