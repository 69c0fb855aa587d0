//! `.kvfs/snapshots`: the named snapshots of the store.

use std::sync::Arc;

use kvfs_fs::{FileSystem, FileType, FsError};
use kvfs_fuse::bridge::{Folder, Item, Name, SnapshotItem};
use kvfs_service::shown_snapshots;
use kvfs_store::SnapshotInfo;

/// See the module.
#[derive(Debug)]
pub(super) struct Snapshots {
    pub(super) fs: Arc<FileSystem>,
}

impl Folder for Snapshots {
    fn list(&self, uid: u32) -> Vec<Name> {
        let name = |info: &SnapshotInfo| Name {
            name: info.name.as_bytes().into(),
            kind: FileType::Directory,
            // An offset of a listing is a signed word.
            place: snapshot_id(info) >> 2,
        };
        let mut names: Vec<Name> = shown_snapshots(&self.fs, uid).iter().map(name).collect();
        names.sort_by_key(|name| name.place);
        names
    }

    fn find(&self, uid: u32, name: &[u8]) -> Result<Option<Item>, FsError> {
        let found = shown_snapshots(&self.fs, uid).into_iter().find(|info| info.name.as_bytes() == name);
        Ok(found.map(|info| {
            let (id, fs) = (snapshot_id(&info), Arc::clone(&self.fs));
            let (kept, wanted) = (Arc::clone(&fs), info.clone());
            let is_kept = Arc::new(move || kept.store().named_snapshots().contains(&wanted));
            let open = Box::new(move || kvfs_fs::show_snapshot(&fs, &info));
            Item::Snapshot(SnapshotItem { id, open, is_kept })
        }))
    }
}

/// A number for a snapshot that no other one has or will have: of its name and its position (FNV-1a).
fn snapshot_id(info: &SnapshotInfo) -> u64 {
    let position = info.position.0.to_le_bytes();
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    info.name.as_bytes().iter().chain(&position).fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use kvfs_store::Position;

    use super::*;

    #[test]
    fn a_name_that_is_given_again_is_another_snapshot() {
        let of = |name: &str, position| {
            let info =
                SnapshotInfo { name: name.to_owned(), position: Position(position), created: Duration::ZERO };
            snapshot_id(&info)
        };
        let names = ["a", "b", "nightly-1", "nightly-2"];
        let ids: HashSet<u64> =
            names.iter().flat_map(|name| (0..1000).map(|position| of(name, position))).collect();
        assert_eq!(ids.len(), 4000);
        assert_eq!(of("a", 7), of("a", 7));
    }
}
