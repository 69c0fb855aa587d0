//! Verification: every entry of the newest state is read, and those of named snapshots that lie in other
//! tables.
//!
//! Thread safety: functions. Invariant: damage is a finding, and what keeps from reading on is an error.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use kvfs_store::progress;
use kvfs_store::{BLOCK_BYTES, KeyRange, Result, StoreError, Verified};
use slatedb::VersionedManifest;

use crate::pin::Pin;
use crate::segments::BlockRef;
use crate::shared::Shared;
use crate::wait_limit::Waiter;

/// Verifies a store.
pub(crate) fn verify(shared: &Arc<Shared>) -> Result<Verified> {
    let mut verified = Verified::default();
    let newest = Pin::newest(shared)?;
    // What it refers to is there then.
    let sent = async {
        shared.segments.pass().await;
        Ok(())
    };
    shared.within_limit(Waiter::Caller, "verifying a store", sent)?;
    let mut referred = Referred::default();
    let (keys, bytes) = walk(&newest, "", &mut referred, &mut verified.findings)?;
    let has_segments = shared.segments_bytes() > 0;
    let mut known = tables_of(&shared.manifest());
    let names: Vec<_> = shared.named_snapshots().into_iter().map(|info| info.name).collect();
    for name in &names {
        let of = format!("snapshot \"{name}\", ");
        match shared.open_snapshot(name) {
            Ok(opened) => {
                let tables = tables_of(&opened.shown().reader.db.manifest());
                // Its entries may be in tables of the newest state, where others hide what they refer to.
                if has_segments || !tables.is_subset(&known) {
                    walk(&Pin::of_named(shared, opened), &of, &mut referred, &mut verified.findings)?;
                    known.extend(tables);
                }
            }
            // It was deleted meanwhile, here or elsewhere.
            Err(StoreError::NoSnapshot(_)) => {}
            Err(error @ StoreError::Corrupt { .. }) => verified.findings.push(format!("{of}{error}")),
            Err(error) => return Err(error),
        }
    }
    verified.counts = vec![
        ("keyspaces".to_owned(), shared.spaces.read().len() as u64),
        ("keys".to_owned(), keys),
        ("bytes of keys and values".to_owned(), bytes),
        ("snapshots".to_owned(), names.len() as u64),
    ];
    Ok(verified)
}

/// What a manifest refers to.
fn tables_of(manifest: &VersionedManifest) -> HashSet<String> {
    manifest.all_sst_views().map(|view| view.sst.id.value().to_string()).collect()
}

/// Reads all entries of a state, and what they refer to. Returns how many there are, and their bytes.
fn walk(pin: &Pin, of: &str, referred: &mut Referred, findings: &mut Vec<String>) -> Result<(u64, u64)> {
    let (mut keys, mut bytes) = (0, 0);
    let spaces = pin.shared().spaces.read().clone();
    for space in &spaces {
        // Every block that is read is compared with its checksum, and every table that there should be is
        // read.
        let walked = pin.view().walk(space, &KeyRange::all(), usize::MAX, &mut |key, value| {
            progress::check_wanted()?;
            keys += 1;
            bytes += key.len() as u64;
            match space.reference(value) {
                Some(reference) => {
                    bytes += BLOCK_BYTES as u64;
                    referred.add(pin.shared(), reference)?;
                }
                None => bytes += value.len() as u64,
            }
            Ok(true)
        });
        let walked = walked.and(referred.check(pin.shared()));
        let mut found =
            |error: &StoreError| findings.push(format!("{of}keyspace \"{}\": {error}", space.name));
        for error in std::mem::take(&mut referred.findings) {
            found(&error);
        }
        match walked {
            Err(error @ StoreError::Corrupt { .. }) => found(&error),
            walked => walked?,
        }
    }
    Ok((keys, bytes))
}

/// Blocks of segments that are verified together, at most: 8 MiB.
const TOGETHER: usize = 2048;

/// What entries refer to, and what is wrong with that.
#[derive(Default)]
struct Referred {
    by_segment: BTreeMap<u64, Vec<BlockRef>>,
    count: usize,
    findings: Vec<StoreError>,
    /// One finding of each is enough.
    damaged: HashSet<u64>,
    /// The blocks of each segment that were verified, a bit for each.
    verified: HashMap<u64, Vec<u64>>,
}

impl Referred {
    fn add(&mut self, shared: &Shared, reference: BlockRef) -> Result<()> {
        let index = usize::from(reference.index);
        let verified = self.verified.entry(reference.segment).or_default();
        verified.resize(verified.len().max(index / 64 + 1), 0);
        let (word, bit) = (&mut verified[index / 64], 1 << (index % 64));
        if *word & bit != 0 {
            return Ok(());
        }
        *word |= bit;
        self.by_segment.entry(reference.segment).or_default().push(reference);
        self.count += 1;
        if self.count < TOGETHER { Ok(()) } else { self.check(shared) }
    }

    /// Verifies those that were added.
    fn check(&mut self, shared: &Shared) -> Result<()> {
        self.count = 0;
        for (segment, references) in std::mem::take(&mut self.by_segment) {
            let verified = shared.within_limit(
                Waiter::Caller,
                "verifying a segment",
                shared.segments.verify(&references),
            );
            match verified {
                Err(error @ StoreError::Corrupt { .. }) => {
                    if self.damaged.insert(segment) {
                        self.findings.push(error);
                    }
                }
                verified => verified?,
            }
        }
        Ok(())
    }
}
