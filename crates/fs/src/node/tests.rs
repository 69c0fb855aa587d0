use std::sync::atomic::Ordering;

use kvfs_store::Position;

use super::*;
use crate::schema::{Header, Placement, RowPatch};
use crate::{FileType, Timestamp};

fn table() -> NodeTable {
    NodeTable::new(1 << 20, 64 * 100)
}

fn intern<'t>(
    table: &'t NodeTable,
    inode: u64,
    location: &dyn Fn() -> Location,
    epoch: Option<u64>,
) -> Option<Pin<'t>> {
    let header = Header::new(inode, FileType::Directory, Timestamp::default());
    let directory = Some(Box::new(DirectoryPart::new(Placement::own_subtree(inode))));
    table.intern(Intern { header, location, directory, content: &[], changed_at: Position(0) }, epoch)
}

#[test]
fn a_child_keeps_its_ancestors_and_the_last_reference_frees_them_all() {
    let table = table();
    let mut inode = 1;
    let mut pin = intern(&table, inode, &|| Location::Root, None).unwrap();
    for _ in 0..100_000 {
        inode += 1;
        let child = intern(&table, inode, &|| pin.entry(b"name"), None).unwrap();
        pin = child;
    }
    assert_eq!(table.stats().nodes, 100_001);
    pin.count_lookup();
    drop(pin);
    assert_eq!(table.stats().nodes, 100_001);
    table.forget(inode, 1);
    let stats = table.stats();
    assert_eq!((stats.nodes, stats.bytes), (0, 0), "also for a deep tree, without recursion");
}

#[test]
fn a_row_that_may_be_out_of_date_becomes_no_node() {
    let table = table();
    let epoch = table.epoch();
    let pin = intern(&table, 20, &|| Location::Own, Some(epoch)).unwrap();
    drop(pin);
    assert!(table.get(20).is_none());
    let pin = intern(&table, 20, &|| Location::Own, Some(epoch)).unwrap();
    pin.update(&RowPatch { uid: Some(5), ..RowPatch::default() }, Position(3));
    let known = intern(&table, 20, &|| Location::Own, Some(epoch)).unwrap();
    assert_eq!(known.header().uid, 5, "the node knows better than the row");
    drop((pin, known));
    assert!(intern(&table, 20, &|| Location::Own, Some(epoch)).is_none());
    assert!(intern(&table, 20, &|| Location::Own, Some(table.epoch())).is_some());
}

#[test]
fn moving_gives_back_the_old_parent() {
    let table = table();
    let root = intern(&table, 1, &|| Location::Root, None).unwrap();
    let (a, b) = (
        intern(&table, 2, &|| root.entry(b"a"), None).unwrap(),
        intern(&table, 3, &|| root.entry(b"b"), None).unwrap(),
    );
    let child = intern(&table, 4, &|| a.entry(b"c"), None).unwrap();
    drop(a);
    assert!(table.get(2).is_some());
    child.relocate(b.entry(b"c"));
    assert!(table.get(2).is_none());
    drop(b);
    assert!(table.get(3).is_some());
    child.relocate(Location::Orphan);
    assert!(table.get(3).is_none());
    drop(child);
    let dead: Vec<u64> = table.take_dead(10).into_iter().map(|orphan| orphan.header.inode).collect();
    assert_eq!(dead, [4]);
}

#[test]
fn forgetting_more_than_was_looked_up_does_no_harm() {
    let table = table();
    let pin = intern(&table, 20, &|| Location::Own, None).unwrap();
    pin.count_lookup();
    table.forget(20, 1000);
    assert_eq!(pin.lookups.load(Ordering::Relaxed), 0);
    assert!(table.get(20).is_some());
    drop(pin);
    assert!(table.get(20).is_none());
    table.forget(20, 1);
}

#[test]
fn cached_content_is_bounded() {
    let table = table();
    let mut pins = Vec::new();
    for inode in 0..1000 {
        let header = Header::new(inode, FileType::Regular, Timestamp::default());
        let location = || Location::Own;
        let intern = Intern {
            header,
            location: &location,
            directory: None,
            content: &[1; 60],
            changed_at: Position(0),
        };
        pins.push(table.intern(intern, None).unwrap());
    }
    let kept = pins.iter().filter(|pin| pin.state().content.is_some()).count() as u64;
    assert_eq!(table.stats().content_bytes, kept * 60);
    assert!((32..=128).contains(&kept), "{kept}");
    drop(pins);
    assert_eq!(table.stats().content_bytes, 0);
}
