//! Repairs of a file system of which rows, blocks or attributes were lost or spoilt.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::repair::{DamagedKeys, RepairReport, describe, repair};
use kvfs_fs::{KEYSPACES, Limits, NodeId, QuotaKind, SetAttr, Usage, XattrMode, check};
use kvfs_store::{Batch, Durability, KeyRange, Keyspace, KeyspaceKind, Store};

use crate::setup::{Random, Setup};

/// A file, and the keys without which it can't be there.
struct Known {
    path: Vec<String>,
    content: Vec<u8>,
    /// Rows, in `meta`.
    rows: Vec<Bytes>,
    inode: u64,
}

fn row_key(directory: u64, name: &str) -> Bytes {
    [&directory.to_be_bytes()[..], b"\0", name.as_bytes()].concat().into()
}

/// Directories, small and large files, links, attributes.
struct Tree {
    setup: Setup,
    files: Vec<Known>,
}

impl Tree {
    fn new(random: &mut Random) -> Self {
        let mut tree = Self { setup: Setup::new(64), files: Vec::new() };
        tree.fill(NodeId::ROOT, &mut Vec::new(), &mut Vec::new(), 0, random);
        tree.setup.assert_sound("before");
        tree
    }

    fn fill(
        &mut self,
        directory: NodeId,
        path: &mut Vec<String>,
        rows: &mut Vec<Bytes>,
        depth: u32,
        random: &mut Random,
    ) {
        for number in 0..5 {
            let name = format!("f{number}");
            let len = if random.one_in(2) { random.below(60) } else { random.below(40_000) };
            let content: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            let node = self.setup.file(directory, &name);
            self.setup.write_at(node, 0, &content).unwrap();
            if random.one_in(4) {
                let caller = self.setup.caller.clone();
                self.setup.setxattr(&caller, node, b"user.a", b"value", XattrMode::Set).unwrap();
            }
            let mut all = rows.clone();
            all.push(row_key(directory.0, &name));
            if random.one_in(4) {
                let linked = format!("l{number}");
                self.setup.link(&self.setup.caller, node, directory, linked.as_bytes()).unwrap();
                all.push(row_key(node.0, ""));
                let mut others = rows.clone();
                others.extend([row_key(directory.0, &linked), row_key(node.0, "")]);
                let path = [&path[..], &[linked]].concat();
                self.files.push(Known { path, content: content.clone(), rows: others, inode: node.0 });
            }
            let path = [&path[..], &[name]].concat();
            self.files.push(Known { path, content, rows: all, inode: node.0 });
        }
        for number in 0..if depth < 3 { 2 } else { 0 } {
            let name = format!("d{number}");
            let node = self.setup.dir(directory, &name);
            rows.push(row_key(directory.0, &name));
            path.push(name);
            self.fill(node, path, rows, depth + 1, random);
            path.pop();
            rows.pop();
        }
    }

    fn keyspace(&self, name: &str) -> Keyspace {
        let all = self.setup.store.keyspaces();
        all.iter().find(|info| info.name == name).unwrap().keyspace
    }

    fn keys(&self, name: &str) -> Vec<(Bytes, Bytes)> {
        let snapshot = self.setup.store.snapshot().unwrap();
        let mut cursor = snapshot.cursor(self.keyspace(name), KeyRange::all()).unwrap();
        let mut all = Vec::new();
        loop {
            cursor.next().unwrap();
            let Some((key, value)) = cursor.entry() else { return all };
            all.push((Bytes::copy_from_slice(key), value.clone()));
        }
    }

    fn apply(&self, change: impl FnOnce(&mut Batch)) {
        let mut batch = Batch::new();
        change(&mut batch);
        self.setup.store.apply(batch, Durability::Buffered).unwrap();
    }

    /// Repairs, and makes sure that it is sound and can be used afterwards.
    fn repair(&mut self, context: &str) -> RepairReport {
        self.repair_damaged(&[], context)
    }

    fn repair_damaged(&mut self, damaged: &[DamagedKeys], context: &str) -> RepairReport {
        let report = repair(&self.setup.store, &*self.setup.clock, damaged, false).unwrap();
        assert!(report.left.is_empty(), "{context}: {:#?} is left after {:#?}", report.left, report.fixed);
        self.setup.assert_sound(context);
        self.setup.reopen();
        self.setup.file(NodeId::ROOT, "afterwards");
        self.setup.assert_sound(context);
        report
    }

    fn content(&self, path: &[String]) -> Option<Vec<u8>> {
        let mut node = NodeId::ROOT;
        for name in path {
            node = self.setup.lookup(&self.setup.caller, node, name.as_bytes()).ok()?.node;
        }
        Some(self.setup.read_all(node))
    }
}

fn has(problems: &[check::Problem], words: &str) -> bool {
    problems.iter().any(|problem| problem.to_string().contains(words))
}

#[test]
fn a_sound_file_system_is_not_changed() {
    let mut tree = Tree::new(&mut Random::new(1));
    let before = tree.keys("meta");
    let report = repair(&tree.setup.store, &*tree.setup.clock, &[], false).unwrap();
    assert_eq!(report, RepairReport::default());
    assert_eq!(tree.keys("meta"), before);
    tree.repair("sound");
}

#[test]
fn whatever_rows_and_blocks_are_lost_or_spoilt_all_else_is_there() {
    for seed in 0..60 {
        let mut random = Random::new(0x4e9a_0000 + seed);
        let mut tree = Tree::new(&mut random);
        if seed % 2 == 0 {
            tree.setup.fs.quotas().turn_on(&|_| {}).unwrap();
        }
        let (mut touched, mut inodes) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..=random.below(8) {
            let space = ["meta", "meta", "data", "xattr"][random.below(4) as usize];
            let keys = tree.keys(space);
            let (key, value) = &keys[random.below(keys.len() as u64) as usize];
            let (_, other) = &keys[random.below(keys.len() as u64) as usize];
            let inode = u64::from_be_bytes(*key.first_chunk().unwrap());
            let keyspace = tree.keyspace(space);
            match random.below(4) {
                0 if space == "meta" => {
                    // Another row in its place: an inode that is there twice.
                    touched
                        .extend(keys.iter().filter(|(_, value)| value == other).map(|(key, _)| key.clone()));
                    tree.apply(|batch| batch.put(keyspace, key.clone(), other.clone()));
                }
                1 if space == "meta" => {
                    let mut spoilt = value.to_vec();
                    spoilt[0] = 99;
                    tree.apply(|batch| batch.put(keyspace, key.clone(), spoilt));
                }
                _ => tree.apply(|batch| batch.delete(keyspace, key.clone())),
            }
            if space == "meta" {
                touched.insert(key.clone());
            }
            if space == "data" {
                inodes.insert(inode);
            }
        }
        let context = format!("seed {seed}, touched {touched:?}, content of {inodes:?}");
        let report = tree.repair(&context);
        for known in &tree.files {
            if inodes.contains(&known.inode) || known.rows.iter().any(|row| touched.contains(row)) {
                continue;
            }
            let content = tree.content(&known.path);
            assert_eq!(content.as_ref(), Some(&known.content), "{context}: {:?}: {report:#?}", known.path);
        }
        for inode in inodes {
            let lost = tree
                .files
                .iter()
                .find(|known| known.inode == inode && !known.rows.iter().any(|row| touched.contains(row)));
            if let Some(known) = lost {
                let place = format!("/{}", known.path.join("/"));
                let is_told = report.lost.iter().any(|problem| {
                    problem.place == place
                        || tree.files.iter().any(|other| {
                            other.inode == inode && problem.place == format!("/{}", other.path.join("/"))
                        })
                });
                assert!(is_told, "{context}: the content of {place} is not told: {report:#?}");
            }
        }
    }
}

/// A tree with a directory that has lost its name, and a file in it with content; returns also the directory.
fn with_a_lost_name() -> (Tree, NodeId) {
    let tree = Tree::new(&mut Random::new(2));
    let setup = &tree.setup;
    let above = setup.dir(NodeId::ROOT, "above");
    let node = setup.dir(above, "gone");
    let file = setup.file(node, "file");
    setup.write_at(file, 0, b"content").unwrap();
    let meta = tree.keyspace("meta");
    tree.apply(|batch| batch.delete(meta, row_key(above.0, "gone")));
    (tree, node)
}

#[test]
fn a_directory_without_a_name_goes_to_lost_and_found_with_all_that_is_in_it() {
    let (mut tree, node) = with_a_lost_name();
    let report = tree.repair("a lost name");
    let place = format!("directory-{}", node.0);
    let path = ["lost+found".to_owned(), place.clone(), "file".to_owned()];
    assert_eq!(tree.content(&path).as_deref(), Some(&b"content"[..]));
    assert!(has(&report.fixed, &format!("/lost+found/{place}")), "{report:?}");
}

#[test]
fn what_closed_directories_held_is_not_put_where_others_may_look() {
    let (mut tree, node) = with_a_lost_name();
    let setup = &tree.setup;
    let open = setup.dir(NodeId::ROOT, "lost+found");
    setup.setattr(&setup.caller, open, &SetAttr { mode: Some(0o755), ..SetAttr::default() }).unwrap();
    let report = tree.repair("a lost name");
    let place = format!("/lost+found.1/directory-{}", node.0);
    assert!(has(&report.fixed, &place), "{report:?}");
}

#[test]
fn a_circle_of_directories_is_cut() {
    let mut tree = Tree::new(&mut Random::new(3));
    let setup = &tree.setup;
    let a = setup.dir(NodeId::ROOT, "a");
    let b = setup.dir(a, "b");
    setup.file(b, "file");
    let meta = tree.keyspace("meta");
    let to_a = tree.setup.store.get(meta, &row_key(1, "a")).unwrap().unwrap();
    tree.apply(|batch| {
        batch.delete(meta, row_key(1, "a"));
        batch.put(meta, row_key(b.0, "up"), to_a);
    });
    let report = tree.repair("a circle");
    assert!(has(&report.fixed, "had no way to the root"), "{report:?}");
}

#[test]
fn lost_blocks_are_holes_and_a_lost_end_makes_the_file_shorter() {
    let mut tree = Tree::new(&mut Random::new(4));
    let node = tree.setup.file(NodeId::ROOT, "large");
    let content: Vec<u8> = (0..10 * 4096_u32).map(|at| (at / 7) as u8 | 1).collect();
    tree.setup.write_at(node, 0, &content).unwrap();
    let data = tree.keyspace("data");
    let block = |block: u64| Bytes::from([node.0.to_be_bytes(), block.to_be_bytes()].concat());
    tree.apply(|batch| {
        batch.delete_range(data, block(2), block(4));
        batch.delete_range(data, block(8), block(11));
    });
    let report = tree.repair("lost blocks");
    assert!(has(&report.lost, "/large: bytes 8192-16384, 32768-40960 of the file"), "{report:?}");
    let left = tree.content(&["large".to_owned()]).unwrap();
    assert_eq!(left.len(), 8 * 4096);
    assert!(left[2 * 4096..4 * 4096].iter().all(|&byte| byte == 0));
    assert_eq!((&left[..2 * 4096], &left[4 * 4096..]), (&content[..2 * 4096], &content[4 * 4096..8 * 4096]));
}

#[test]
fn content_behind_the_end_is_kept_where_the_row_is_an_older_one_and_else_taken_away() {
    // Blocks behind the end, and bytes behind it in the last block.
    for (len, len_then) in [(20_000, 50_000), (20_000, 20_400)] {
        for is_older in [true, false] {
            let mut tree = Tree::new(&mut Random::new(4));
            let node = tree.setup.file(NodeId::ROOT, "grows");
            let content: Vec<u8> = (0..len_then).map(|at| (at / 7) as u8 | 1).collect();
            let (meta, key) = (tree.keyspace("meta"), row_key(1, "grows"));
            tree.setup.write_at(node, 0, &content[..len]).unwrap();
            let older = tree.setup.store.get(meta, &key).unwrap().unwrap();
            tree.setup.write_at(node, len as u64, &content[len..]).unwrap();
            tree.apply(|batch| batch.put(meta, key.clone(), older));
            let mut damaged = DamagedKeys { keyspace: "meta".to_owned(), ..DamagedKeys::default() };
            damaged.older.extend(is_older.then_some(key));
            let context = format!("{len} of {len_then}, {is_older}");
            let report = tree.repair_damaged(&[damaged], &context);
            let mut expected = content[..if is_older { len_then } else { len }].to_vec();
            expected.resize(if is_older { len_then.next_multiple_of(4096) } else { len }, 0);
            assert!(tree.content(&["grows".to_owned()]) == Some(expected), "{context}: {report:#?}");
            assert_eq!(has(&report.lost, "/grows: exact size"), is_older, "{context}: {report:#?}");
        }
    }
}

#[test]
fn a_block_that_no_file_can_have_is_dropped() {
    let mut tree = Tree::new(&mut Random::new(7));
    let data = tree.keyspace("data");
    let prefix = 5000_u64.to_be_bytes().to_vec();
    tree.apply(|batch| {
        batch.put_blocks(data, prefix.clone(), 3, vec![1; 4096]);
        batch.put_blocks(data, prefix, 1 << 60, vec![2; 4096]);
    });
    let report = tree.repair("a block far behind");
    assert!(has(&report.lost, "its key is no inode and block of a file"), "{report:?}");
    assert!(has(&report.fixed, "1 blocks of a file whose row is lost (inode 5000)"), "{report:?}");
}

#[test]
fn the_root_and_the_superblock_record_are_made_anew() {
    let mut tree = Tree::new(&mut Random::new(5));
    let meta = tree.keyspace("meta");
    tree.apply(|batch| {
        batch.delete(meta, row_key(1, ""));
        batch.delete(meta, row_key(0, "superblock"));
    });
    let report = tree.repair("no root");
    assert!(has(&report.lost, "/: owner, mode and times"), "{report:?}");
    for known in &tree.files {
        assert_eq!(tree.content(&known.path).as_ref(), Some(&known.content));
    }
}

#[test]
fn a_superblock_record_that_is_made_anew_says_that_there_are_quotas() {
    let mut tree = Tree::new(&mut Random::new(8));
    tree.setup.quotas().turn_on(&|_| {}).unwrap();
    let meta = tree.keyspace("meta");
    let superblock = |tree: &Tree| tree.setup.store.get(meta, &row_key(0, "superblock")).unwrap().unwrap();
    let version = |tree: &Tree| u32::from_le_bytes(superblock(tree)[8..12].try_into().unwrap());
    let before = version(&tree);
    tree.apply(|batch| batch.delete(meta, row_key(0, "superblock")));
    tree.repair("no superblock record");
    assert_eq!((before, version(&tree)), (2, 2), "a program that knows no quotas refuses it");
}

#[test]
fn records_of_quotas_that_say_nothing_are_taken_away_and_counted_anew() {
    let limits = Limits { inodes_hard: 1000, ..Limits::default() };
    let account = |part: u8| [&b"u"[..], &7_u32.to_be_bytes(), &[part]].concat();
    let records: [(&str, Vec<u8>); 4] =
        [("state", b"state".to_vec()), ("usage", account(0)), ("limits", account(1)), ("times", account(2))];
    for (what, key) in records {
        let mut tree = Tree::new(&mut Random::new(9));
        tree.setup.quotas().turn_on(&|_| {}).unwrap();
        tree.setup.quotas().set(QuotaKind::User, 1000, limits).unwrap();
        let quotas = tree.keyspace("\u{1}quota");
        tree.apply(|batch| batch.put(quotas, key.clone(), "nonsense!"));
        let damage = check::check(&tree.setup.store).unwrap();
        assert_eq!(damage.problems.len(), 1, "{what}: {damage:?}");
        let report = tree.repair(what);
        assert_eq!(report.lost.len(), usize::from(what == "limits"), "{what}: {report:?}");
        assert_eq!(report.fixed.len(), usize::from(what != "limits"), "{what}: {report:?}");
        // With the usage.
        tree.setup.assert_sound(what);
        let line = |id| tree.setup.quotas().get(QuotaKind::User, id).unwrap();
        assert_eq!(line(1000).limits, limits, "{what}: others keep theirs");
        assert_eq!((line(7).limits, line(7).usage), (Limits::default(), Usage::default()), "{what}");
    }
}

#[test]
fn damage_is_told_by_path_and_key() {
    let tree = Tree::new(&mut Random::new(6));
    let directory = tree.setup.dir(NodeId::ROOT, "dir");
    let node = tree.setup.file(directory, "file");
    let store: Arc<dyn Store> = Arc::clone(&tree.setup.store);
    store.open_keyspace("tags", KeyspaceKind::Tuple, None).unwrap();
    let row = |name: &str| row_key(directory.0, name);
    let damaged = [
        DamagedKeys {
            keyspace: "meta".into(),
            txn: None,
            first: row("a"),
            last: row("z"),
            older: vec![row("file")],
            gone_max: Some(3),
            blocks: vec![],
        },
        DamagedKeys {
            keyspace: "data".into(),
            gone_max: Some(2),
            blocks: vec![(Bytes::copy_from_slice(&node.0.to_be_bytes()), 1, 2)],
            ..DamagedKeys::default()
        },
        DamagedKeys {
            keyspace: "tags".into(),
            first: "a".into(),
            last: "b".into(),
            ..DamagedKeys::default()
        },
    ];
    let told: Vec<String> =
        describe(&store, &damaged, &BTreeSet::new()).unwrap().iter().map(ToString::to_string).collect();
    let expected = [
        "/dir/file: its newest state is lost; it is as it was earlier, and may have been deleted since",
        "between /dir/a and /dir/z: up to 3 names (or rows of directories) are lost",
        "/dir/file: bytes 4096-12288 are lost: a hole",
        "keyspace tags: keys from a to b may be lost",
    ];
    assert_eq!(told, expected);
}

/// A file of two names with blocks, or a directory, of which both or the one were removed while it was open;
/// a crash, and one name comes back. What row it has then, in meta and among the orphans.
fn with_a_name_that_came_back(is_directory: bool) -> (Tree, NodeId, Vec<u8>) {
    let mut tree = Tree::new(&mut Random::new(11));
    let setup = &tree.setup;
    let caller = setup.caller.clone();
    let content: Vec<u8> = (0..9 * 4096_u32).map(|at| (at / 5) as u8 | 1).collect();
    let node = if is_directory { setup.dir(NodeId::ROOT, "one") } else { setup.file(NodeId::ROOT, "one") };
    if is_directory {
        // It has more than its row, so that it stays.
        setup.setxattr(&caller, node, b"user.a", b"value", XattrMode::Set).unwrap();
    } else {
        setup.write_at(node, 0, &content).unwrap();
        setup.link(&caller, node, NodeId::ROOT, b"two").unwrap();
    }
    let mode = SetAttr { mode: Some(0o751), ..SetAttr::default() };
    setup.setattr(&caller, node, &mode).unwrap();
    let meta = tree.keyspace("meta");
    let name = setup.store.get(meta, &row_key(1, "one")).unwrap().unwrap();
    if is_directory {
        setup.rmdir(&caller, NodeId::ROOT, b"one").unwrap();
    } else {
        setup.unlink(&caller, NodeId::ROOT, b"one").unwrap();
        setup.unlink(&caller, NodeId::ROOT, b"two").unwrap();
    }
    assert!(tree.keys("orphans").iter().any(|(key, _)| **key == node.0.to_be_bytes()));
    tree.apply(|batch| batch.put(meta, row_key(1, "one"), name));
    let report = tree.repair("a name of an orphan");
    assert!(has(&report.fixed, "it is its own again") && report.lost.is_empty(), "{report:?}");
    (tree, node, content)
}

#[test]
fn an_orphan_with_a_name_that_came_back_is_whole_again() {
    for is_directory in [false, true] {
        let (tree, node, content) = with_a_name_that_came_back(is_directory);
        let setup = &tree.setup;
        let found = setup.lookup(&setup.caller, NodeId::ROOT, b"one").unwrap();
        assert_eq!((found.node, found.attr.mode & 0o7777), (node, 0o751));
        assert_eq!(found.attr.nlink, if is_directory { 2 } else { 1 });
        if !is_directory {
            assert!(setup.read_all(node) == content, "nothing has taken its blocks away");
        }
    }
}

#[test]
fn a_file_of_several_names_with_its_row_under_an_old_one_has_it_back() {
    let mut tree = Tree::new(&mut Random::new(12));
    let setup = &tree.setup;
    let content = vec![7; 3 * 4096];
    let node = setup.file(NodeId::ROOT, "one");
    setup.write_at(node, 0, &content).unwrap();
    let meta = tree.keyspace("meta");
    let old = setup.store.get(meta, &row_key(1, "one")).unwrap().unwrap();
    setup.link(&setup.caller, node, NodeId::ROOT, b"two").unwrap();
    tree.apply(|batch| {
        batch.put(meta, row_key(1, "one"), old);
        batch.delete(meta, row_key(node.0, ""));
    });
    let report = tree.repair("a row of old");
    assert!(report.lost.is_empty(), "{report:?}");
    for name in ["one", "two"] {
        assert_eq!(tree.content(&[name.to_owned()]).as_ref(), Some(&content));
    }
}

#[test]
fn a_number_that_only_a_name_or_an_entry_has_is_not_given_out_again() {
    for is_named in [true, false] {
        let mut tree = Tree::new(&mut Random::new(13));
        let setup = &tree.setup;
        let above = setup.dir(NodeId::ROOT, "above");
        let node = setup.dir(above, "known");
        let meta = tree.keyspace("meta");
        if is_named {
            tree.apply(|batch| batch.delete(meta, row_key(node.0, "")));
        } else {
            // With a number below its own.
            tree.setup.link(&tree.setup.caller, look(&tree, "f0"), node, b"entry").unwrap();
            tree.apply(|batch| {
                batch.delete(meta, row_key(node.0, ""));
                batch.delete(meta, row_key(above.0, "known"));
            });
        }
        tree.apply(|batch| batch.delete(meta, row_key(0, "superblock")));
        tree.repair("numbers");
        let setup = &tree.setup;
        for name in ["a", "b", "c"] {
            assert!(setup.dir(NodeId::ROOT, name).0 > node.0);
        }
        tree.setup.assert_sound("numbers");
    }
}

fn look(tree: &Tree, name: &str) -> NodeId {
    tree.setup.lookup(&tree.setup.caller, NodeId::ROOT, name.as_bytes()).unwrap().node
}

#[test]
fn permission_bits_follow_an_access_list_whatever_other_attributes_there_are() {
    let mut tree = Tree::new(&mut Random::new(14));
    let setup = &tree.setup;
    let caller = setup.caller.clone();
    let node = setup.file(NodeId::ROOT, "listed");
    let meta = tree.keyspace("meta");
    let before = setup.store.get(meta, &row_key(1, "listed")).unwrap().unwrap();
    // Owner rw, user 7 r, group -, mask r, others -.
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    };
    let none = u32::MAX;
    let list = [
        2_u32.to_le_bytes().to_vec(),
        entry(1, 6, none),
        entry(2, 4, 7),
        entry(4, 0, none),
        entry(0x10, 4, none),
        entry(0x20, 0, none),
    ]
    .concat();
    setup.setxattr(&caller, node, b"system.posix_acl_access", &list, XattrMode::Set).unwrap();
    setup.setxattr(&caller, node, b"user.z", b"value", XattrMode::Set).unwrap();
    assert_eq!(setup.getattr(&caller, node).unwrap().mode & 0o7777, 0o640);
    // The row as it was without them.
    tree.apply(|batch| batch.put(meta, row_key(1, "listed"), before));
    tree.repair("an old row");
    assert_eq!(tree.setup.getattr(&caller, look(&tree, "listed")).unwrap().mode & 0o7777, 0o640);
}

#[test]
fn what_was_received_last_gets_its_name_from_a_repair_unless_something_is_lost() {
    for is_whole in [true, false] {
        let setup = Setup::new(64);
        let all = setup.store.keyspaces();
        let meta = all.iter().find(|info| info.name == KEYSPACES[0]).unwrap().keyspace;
        let key = [&[0; 9][..], b"receiving"].concat();
        let record = [&1_u32.to_le_bytes()[..], &7_u64.to_le_bytes(), b"tuesday"].concat();
        let mut batch = Batch::new();
        batch.put(meta, key.clone(), record);
        setup.store.apply(batch, Durability::Synced).unwrap();
        let told = kvfs_fs::repair::settle_receive(&setup.store, is_whole).unwrap();
        let named: Vec<_> = setup.store.named_snapshots().into_iter().map(|info| info.name).collect();
        assert_eq!(named.as_slice() == ["tuesday"], is_whole);
        assert_eq!(told.map(|problem| problem.place), (!is_whole).then(|| "snapshot \"tuesday\"".to_owned()));
        assert_eq!(setup.store.get(meta, &key).unwrap(), None, "the next opening names nothing");
    }
}
