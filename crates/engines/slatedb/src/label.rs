//! Names of checkpoints: what makes one of `SlateDB` a named snapshot of kvfs.
//!
//! Purpose: the checkpoint is all that there is of a named snapshot, so it is made, and removed, by one write
//! of the manifest, and a crash leaves no half of it. Its name holds what a list of snapshots tells, so that
//! listing them costs no request.
//!
//! Thread safety: plain values. Invariant: other checkpoints, such as those of compactions and of other
//! programs, are left alone.

use std::collections::HashSet;
use std::time::Duration;

use kvfs_store::{Position, SnapshotInfo, check_snapshot_name};
use slatedb::VersionedManifest;
use uuid::Uuid;

use crate::keys;

/// Before sequence number, time of creation (nanoseconds) and name, with slashes between them; a name has
/// none.
const NAMED: &str = "kvfs-snapshot/1/";

/// The name of a checkpoint that keeps the objects of a deleted snapshot for those that still read it.
pub(crate) const KEPT: &str = "kvfs-kept/1";

/// What a list tells of a named snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Label {
    /// Everything up to this sequence number is in it.
    pub(crate) sequence: u64,
    /// Since 1970-01-01 UTC.
    pub(crate) created: Duration,
    pub(crate) name: String,
}

impl Label {
    /// The name of the checkpoint.
    pub(crate) fn text(&self) -> String {
        format!("{NAMED}{}/{}/{}", self.sequence, self.created.as_nanos(), self.name)
    }

    /// `None`: it is not of a named snapshot.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix(NAMED)?.splitn(3, '/');
        let mut number = || parts.next()?.parse().ok();
        let (sequence, created) = (number()?, Duration::from_nanos(number()?));
        let name = parts.next()?;
        check_snapshot_name(name).ok()?;
        Some(Self { sequence, created, name: name.to_owned() })
    }

    pub(crate) fn info(&self) -> SnapshotInfo {
        let position = Position(keys::seqno(self.sequence));
        SnapshotInfo { name: self.name.clone(), position, created: self.created }
    }
}

/// A named snapshot, and its checkpoint.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) id: Uuid,
    /// The first manifest that may have it.
    pub(crate) manifest: u64,
    pub(crate) label: Label,
}

/// Those in a manifest, oldest first.
pub(crate) fn named_in(manifest: &VersionedManifest) -> Vec<Entry> {
    let mut known = HashSet::new();
    let entries = manifest.checkpoints().iter().filter_map(|checkpoint| {
        let label = Label::parse(checkpoint.name.as_deref()?)?;
        // SlateDB adds a checkpoint a second time where the answer to the first write was lost.
        let (id, manifest) = (checkpoint.id, checkpoint.manifest_id);
        known.insert(id).then_some(Entry { id, manifest, label })
    });
    let mut entries: Vec<_> = entries.collect();
    entries.sort_by_key(|entry| entry.label.sequence);
    entries
}

/// Checkpoints in a manifest that keep objects of deleted snapshots.
pub(crate) fn kept_in(manifest: &VersionedManifest) -> HashSet<Uuid> {
    let kept = manifest.checkpoints().iter().filter(|checkpoint| checkpoint.name.as_deref() == Some(KEPT));
    kept.map(|checkpoint| checkpoint.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_as_they_were_written_and_other_names_are_none() {
        let label = Label {
            sequence: 7 << 16,
            created: Duration::from_nanos(1_234_567_890_123),
            name: "…a b".to_owned(),
        };
        assert_eq!(Label::parse(&label.text()), Some(label.clone()));
        assert_eq!(label.info().position, Position(7));
        let others = [
            "",
            "daily",
            KEPT,
            NAMED,
            "kvfs-snapshot/2/1/1/a",
            "kvfs-snapshot/1/x/1/a",
            "kvfs-snapshot/1/1/1/",
        ];
        for other in others {
            assert_eq!(Label::parse(other), None, "{other}");
        }
    }
}
