//! Verification: every entry of the newest state is read, and those of named snapshots that lie in other tables.
//!
//! Thread safety: functions. Invariant: damage is a finding, and what keeps from reading on is an error.

use std::collections::HashSet;
use std::sync::Arc;

use kvfs_store::{KeyRange, Result, StoreError, Verified};
use slatedb::VersionedManifest;

use crate::pin::Pin;
use crate::shared::Shared;

/// Verifies a store.
pub(crate) fn verify(shared: &Arc<Shared>) -> Result<Verified> {
    let mut verified = Verified::default();
    let newest = Pin::newest(shared)?;
    let (keys, bytes) = walk(&newest, "", &mut verified.findings)?;
    let mut known = tables_of(&shared.manifest());
    let names: Vec<_> = shared.named_snapshots().into_iter().map(|info| info.name).collect();
    for name in &names {
        let of = format!("snapshot \"{name}\", ");
        match shared.open_snapshot(name) {
            Ok(opened) => {
                let tables = tables_of(&opened.shown().reader.db.manifest());
                if !tables.is_subset(&known) {
                    walk(&Pin::of_named(shared, opened), &of, &mut verified.findings)?;
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

/// Reads all entries of a state. Returns how many there are, and their bytes.
fn walk(pin: &Pin, of: &str, findings: &mut Vec<String>) -> Result<(u64, u64)> {
    let (mut keys, mut bytes) = (0, 0);
    let spaces = pin.shared().spaces.read().clone();
    for space in &spaces {
        // Every block that is read is compared with its checksum, and every table that there should be is read.
        let walked = pin.view().walk(space, &KeyRange::all(), usize::MAX, &mut |key, value| {
            keys += 1;
            bytes += (key.len() + value.len()) as u64;
            Ok(true)
        });
        match walked {
            Err(error @ StoreError::Corrupt { .. }) => {
                findings.push(format!("{of}keyspace \"{}\": {error}", space.name));
            }
            walked => walked?,
        }
    }
    Ok((keys, bytes))
}
