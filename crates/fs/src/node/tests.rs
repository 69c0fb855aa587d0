use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use kvfs_store::Position;

use super::*;
use crate::schema::{Header, Placement, RowPatch};
use crate::{FileType, Timestamp};

fn table() -> NodeTable {
    NodeTable::new(1, 1 << 20, 64 * 100)
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
fn reads_wait_for_the_nodes_of_a_commit_and_for_no_others() {
    let table = table();
    let node = |inode| intern(&table, inode, &|| Location::Own, None).unwrap();
    let (changed, other) = (node(20), node(30));
    let mut touched = table.begin_walk();
    touched.insert(changed.inode);
    let late = node(40);
    let is_behind = AtomicBool::new(false);
    let committed: Result<_, ()> = table.publish_behind(touched, || {
        is_behind.store(true, Ordering::SeqCst);
        Ok("committed")
    });
    let ((_, _, behind), reads) = (committed.unwrap(), AtomicUsize::new(0));
    let read = |node| {
        let _settled = table.settled(node);
        assert!(!is_behind.load(Ordering::SeqCst), "it was not waited for");
        reads.fetch_add(1, Ordering::SeqCst);
    };
    thread::scope(|scope| {
        // While this one is being read the nodes are brought up to date.
        let _settled = table.settled(&other);
        scope.spawn(|| read(&changed));
        scope.spawn(|| read(&late));
        drop(table.settled(&other));
        is_behind.store(false, Ordering::SeqCst);
        drop(behind);
    });
    read(&other);
    assert_eq!(reads.into_inner(), 3);
    let failed: Result<_, _> = table.publish_behind(table.begin_walk(), || Err::<(), _>("full"));
    assert_eq!(failed.err(), Some("full"));
    drop(table.settled(&changed));
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
    let dead: Vec<u64> = table.dead().take(10).orphans.iter().map(|orphan| orphan.inode).collect();
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

/// The root, and files beneath it by these names.
fn named<'t>(table: &'t NodeTable, names: &[Vec<u8>]) -> Vec<Pin<'t>> {
    let root = intern(table, 1, &|| Location::Root, None).unwrap();
    let file = |(name, inode): (&Vec<u8>, u64)| intern(table, inode, &|| root.entry(name), None).unwrap();
    names.iter().zip(2..).map(file).collect()
}

#[test]
fn names_are_kept_only_where_asked_for() {
    let table = table();
    assert!(matches!(table.named(1, b"a"), Err(None)));
    assert!(table.change_name(1, b"a").is_none());
    table.keep_names();
    assert!(matches!(table.named(1, b"a"), Err(Some(_))));
}

#[test]
fn name_that_is_or_was_being_changed_is_not_kept() {
    let table = table();
    table.keep_names();
    let node = named(&table, &[b"a".to_vec()]).remove(0);
    let unkept = || table.named(1, b"a").err().flatten();
    let before = unkept().unwrap();
    let change = table.change_name(1, b"a");
    table.keep_name(before, 1, b"a", &node);
    assert!(unkept().is_none(), "the change is under way");
    drop(change);
    table.keep_name(before, 1, b"a", &node);
    let after = unkept().unwrap();
    table.keep_name(after, 1, b"a", &node);
    assert!(table.named(1, b"a").is_ok_and(|found| found.inode == node.inode));
    assert!(table.named(2, b"a").is_err() && table.named(1, b"b").is_err());
    drop(table.change_name(1, b"a"));
    assert!(unkept().is_some(), "it is no longer kept");
    drop(node);
    assert_eq!(table.stats().nodes, 0);
}

#[test]
fn names_do_not_outlast_a_commit() {
    let table = table();
    table.keep_names();
    let node = named(&table, &[b"a".to_vec()]).remove(0);
    let unkept = || table.named(1, b"a").err().flatten();
    let before = unkept().unwrap();
    let ((), _) = table.publish(|| assert!(unkept().is_none(), "a commit becomes visible"));
    table.keep_name(before, 1, b"a", &node);
    table.keep_name(unkept().unwrap(), 1, b"a", &node);
    assert!(unkept().is_none());
    table.publish(|| ());
    assert!(unkept().is_some());
    drop(node);
    assert_eq!(table.stats().nodes, 2);
    table.sweep_names();
    assert_eq!(table.stats().nodes, 0);
}

#[test]
fn names_that_are_kept_are_bounded_and_the_used_ones_stay() {
    let table = NodeTable::new(1, 512 * 64, 0);
    table.keep_names();
    let names: Vec<Vec<u8>> = (0..2000).map(|number: u32| number.to_string().into_bytes()).collect();
    let root = intern(&table, 1, &|| Location::Root, None).unwrap();
    let lookup = |number: usize| {
        let (inode, name) = (number as u64 + 2, &names[number]);
        let unkept = match table.named(1, name) {
            Ok(found) => return assert_eq!(found.inode, inode),
            Err(unkept) => unkept.unwrap(),
        };
        let node = intern(&table, inode, &|| root.entry(name), None).unwrap();
        table.keep_name(unkept, 1, name, &node);
    };
    for number in 0..names.len() {
        lookup(number);
        lookup(0);
    }
    assert!(table.named(1, b"0").is_ok(), "it was used all the time");
    let nodes = table.stats().nodes;
    assert!((8..=70).contains(&nodes), "{nodes}");
    table.forget_names();
    assert_eq!(table.stats().nodes, 1);
}

#[test]
fn listed_names_drive_out_no_name_that_was_looked_up() {
    let table = NodeTable::new(1, 1 << 18, 0);
    table.keep_names();
    let names: Vec<Vec<u8>> = (0..400).map(|number: u32| number.to_string().into_bytes()).collect();
    let nodes = named(&table, &names);
    let list = || {
        let listed = table.begin_listing().unwrap();
        for (name, node) in names.iter().zip(&nodes) {
            table.keep_listed(listed, 1, name, node);
        }
    };
    let is_kept = |number: usize| table.named(1, &names[number]).is_ok();
    for number in 0..8 {
        let unkept = table.named(1, &names[number]).err().flatten().unwrap();
        table.keep_name(unkept, 1, &names[number], &nodes[number]);
    }
    // More than there is room for, those that were looked up among them.
    list();
    list();
    assert!((0..8).all(is_kept));
    assert!((8..400).any(is_kept));
}

#[test]
fn names_of_any_length_are_kept() {
    let table = table();
    table.keep_names();
    let names: Vec<Vec<u8>> = (0..255).map(|len| vec![b'n'; len + 1]).collect();
    let nodes = named(&table, &names);
    for (name, node) in names.iter().zip(&nodes) {
        let unkept = table.named(1, name).err().flatten().unwrap();
        table.keep_name(unkept, 1, name, node);
        assert!(table.named(1, name).is_ok_and(|found| found.inode == node.inode), "{}", name.len());
    }
}

#[test]
fn listed_names_are_kept_unless_any_name_was_changed_meanwhile() {
    let table = table();
    assert!(table.begin_listing().is_none(), "no names are kept");
    table.keep_names();
    let node = named(&table, &[b"a".to_vec()]).remove(0);
    let begin = || table.begin_listing();
    let change = table.change_name(7, b"other");
    assert!(begin().is_none(), "it may become visible in the middle of the listing");
    drop(change);
    let before = begin().unwrap();
    drop(table.change_name(7, b"other"));
    table.keep_listed(before, 1, b"a", &node);
    assert!(table.named(1, b"a").is_err());
    let before = begin().unwrap();
    table.publish(|| assert!(begin().is_none()));
    table.keep_listed(before, 1, b"a", &node);
    assert!(table.named(1, b"a").is_err());
    table.keep_listed(begin().unwrap(), 1, b"a", &node);
    assert!(table.named(1, b"a").is_ok_and(|found| found.inode == node.inode));
}
