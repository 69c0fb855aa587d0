//! Taking committed transactions back: the tree is as it was, what others did beside it stays, and what was
//! built on it is in the way.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{
    Area, FileType, FsError, MountOptions, NodeId, Planned, Result, Selection, SetAttr, TakenBack, Timestamp,
    TxnId, Undo, XattrMode, settled, undo_points,
};
use kvfs_kv::KeyspaceOwner;
use kvfs_kvdb::Background;
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Durability, Isolation, Keyspace, KeyspaceKind, StoreError};

use crate::engine;
use crate::setup::{Random, Setup};
use crate::snapshots::{Tree, lines, rename, tree};
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

pub(crate) fn keeping(inline_len_max: u32) -> Setup {
    let store = Arc::new(ModelStore::new());
    store.keep_for_undo(8);
    Setup::with(store, inline_len_max, MountOptions::default())
}

pub(crate) fn over_the_engine(memtable_bytes: u64) -> Setup {
    let db = engine::open_keeping(&engine::create(), memtable_bytes, Background::Manual, 8);
    Setup::with(db, 200, MountOptions::default())
}

/// Does `work` in a transaction and commits.
pub(crate) fn txn(main: &Setup, work: impl FnOnce(&Setup)) -> TxnId {
    let view = begin(main, Isolation::Snapshot);
    work(&view);
    // So that later times of change are others.
    main.clock.advance(Duration::from_secs(1));
    let id = view.fs.txn().unwrap().id();
    commit(&view.fs).unwrap();
    id
}

/// The lines of what is in the way; none: taken back.
pub(crate) fn undo(main: &Setup, id: TxnId) -> Result<Vec<String>> {
    undo_selected(main, id, &Selection::default())
}

pub(crate) fn undo_selected(main: &Setup, id: TxnId, selection: &Selection) -> Result<Vec<String>> {
    let undo = Undo::open(&main.fs, id)?;
    let view = begin(main, Isolation::Snapshot);
    let found = undo.plan(&view.fs, selection)?.into_obstacles();
    match undo.plan(&view.fs, selection)?.carry_out()? {
        TakenBack::Refused(obstacles) => {
            assert_eq!(found, obstacles);
            let what: Vec<_> = obstacles.into_iter().map(|obstacle| obstacle.what).collect();
            Ok(lines(&what))
        }
        TakenBack::Done(_) => {
            assert_eq!(found, []);
            commit(&view.fs)?;
            Ok(Vec::new())
        }
    }
}

#[track_caller]
pub(crate) fn undone(main: &Setup, id: TxnId) {
    assert_eq!(undo(main, id).unwrap(), [""; 0]);
}

pub(crate) fn look(view: &Setup, parent: NodeId, name: &str) -> NodeId {
    view.lookup(&view.caller, parent, name.as_bytes()).unwrap().node
}

fn put(view: &Setup, keyspace: Keyspace, key: &str, value: Option<&str>) {
    let value = value.map(|value| Bytes::copy_from_slice(value.as_bytes()));
    settled(|caller| view.fs.keys().set(caller, keyspace, key.as_bytes(), value.clone())).unwrap();
}

fn chmod(view: &Setup, node: NodeId, mode: u32) {
    view.setattr(&view.caller, node, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
}

/// Random changes below `top`; names that are made begin with `prefix`.
pub(crate) fn mess(view: &Setup, random: &mut Random, top: NodeId, prefix: &str, steps: usize) {
    for step in 0..steps {
        let mut directories = vec![top];
        let mut entries = Vec::new();
        let mut at = 0;
        while at < directories.len() {
            let directory = directories[at];
            at += 1;
            for listed in view.list(directory, 50, false) {
                if listed.name == b"." || listed.name == b".." {
                    continue;
                }
                let attr = view.lookup(&view.caller, directory, &listed.name).unwrap().attr;
                if attr.kind == FileType::Directory {
                    directories.push(NodeId(attr.inode));
                }
                entries.push((directory, listed.name, NodeId(attr.inode), attr.kind));
            }
        }
        let directory = directories[random.below(directories.len() as u64) as usize];
        let name = format!("{prefix}{}", random.below(12));
        let caller = &view.caller;
        let mine: Vec<_> =
            entries.iter().filter(|(_, name, ..)| name.starts_with(prefix.as_bytes())).collect();
        let entry = (!mine.is_empty()).then(|| mine[random.below(mine.len() as u64) as usize].clone());
        // Whatever makes no sense fails without a trace.
        match (random.below(11), entry) {
            (0, _) => drop(view.mkdir(caller, directory, name.as_bytes(), 0o755)),
            (1 | 2, _) => {
                if let Ok((made, _)) = view.create(caller, directory, name.as_bytes(), 0o644, true) {
                    view.write_at(made.node, 0, &vec![step as u8; random.below(9000) as usize]).unwrap();
                }
            }
            (3, _) => drop(view.symlink(caller, directory, name.as_bytes(), b"somewhere")),
            (4 | 5, Some((_, _, node, FileType::Regular))) => {
                view.write_at(node, random.below(9000), b"changed").unwrap();
            }
            (6, Some((.., node, _))) => chmod(view, node, 0o600 | random.below(8) as u32),
            (7, Some((.., node, FileType::Regular))) => {
                let value = [step as u8; 20];
                view.setxattr(caller, node, b"user.note", &value, XattrMode::Set).unwrap();
            }
            (8, Some((parent, name, _, kind))) => drop(if kind == FileType::Directory {
                view.rmdir(caller, parent, &name)
            } else {
                view.unlink(caller, parent, &name)
            }),
            (9, Some((parent, from, ..))) => {
                let mode = kvfs_fs::RenameMode::Replace;
                drop(view.rename(caller, parent, &from, directory, name.as_bytes(), mode));
            }
            (10, Some((.., node, FileType::Regular))) => {
                drop(view.link(caller, node, directory, name.as_bytes()));
            }
            _ => {}
        }
    }
}

/// Without what others' entries in the same directories change.
fn alone(mut tree: Tree) -> Tree {
    for seen in tree.values_mut() {
        seen.first_name.clear();
        if seen.kind == FileType::Directory {
            (seen.nlink, seen.size, seen.mtime) = (0, 0, Timestamp { seconds: 0, nanos: 0 });
        }
    }
    tree
}

/// Contents would fill screens.
#[track_caller]
pub(crate) fn same(found: &Tree, expected: &Tree, context: &str) {
    let differs = |path: &&String| found.get(*path) != expected.get(*path);
    let paths: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).filter(differs).collect();
    assert!(paths.is_empty(), "{context}: {paths:?}");
}

fn takes_back_random_changes(main: &Setup, seed: u64) {
    let mut random = Random::new(seed);
    mess(main, &mut random, ROOT, "n", 60);
    let before = tree(main).0;
    let first = txn(main, |view| mess(view, &mut random, ROOT, "n", 40));
    let after = tree(main).0;
    undone(main, first);
    same(&tree(main).0, &before, &format!("seed {seed}"));
    main.assert_sound(&format!("seed {seed}, taken back"));
    // The transaction that took it back is one like any other.
    let Some((point, owner)) = undo_points(&**main.fs.store()).pop() else { return };
    assert_eq!((owner.uid, &owner.name[..]), (1000, "test"));
    if point.txn > first {
        undone(main, point.txn);
        let found = tree(main).0;
        same(&found, &after, &format!("seed {seed}: taking back is taken back"));
    }
    main.assert_sound(&format!("seed {seed}, and back again"));
}

#[test]
fn a_transaction_that_is_taken_back_leaves_the_tree_that_was() {
    for seed in 1..=40 {
        for inline_len_max in [100, 4096] {
            takes_back_random_changes(&keeping(inline_len_max), seed);
        }
    }
}

#[test]
fn a_transaction_that_is_taken_back_leaves_the_tree_that_was_over_the_engine() {
    for seed in 101..=112 {
        takes_back_random_changes(&over_the_engine(if seed % 2 == 0 { 16 << 10 } else { 1 << 20 }), seed);
    }
}

#[test]
fn what_others_did_beside_it_stays() {
    let mut taken_back = 0;
    for seed in 1..=30 {
        let main = keeping(100);
        let mut random = Random::new(seed);
        let shared = main.dir(ROOT, "shared");
        mess(&main, &mut random, shared, "t", 30);
        mess(&main, &mut random, shared, "o", 30);
        // What lies in another one's directory is not looked at.
        let of = |tree: &Tree, prefix: &str| {
            let is_own = |path: &str| {
                let mut parts = path.split('/').skip(1);
                parts.next() == Some("shared") && parts.all(|part| part.starts_with(prefix))
            };
            let own = tree.iter().filter(|(path, _)| path.len() > 7 && is_own(path));
            alone(own.map(|(path, seen)| (path.clone(), seen.clone())).collect())
        };
        let before = tree(&main).0;
        let id = txn(&main, |view| mess(view, &mut random, look(view, ROOT, "shared"), "t", 30));
        mess(&main, &mut random, shared, "o", 30);
        let now = tree(&main).0;
        let obstacles = undo(&main, id).unwrap();
        let found = tree(&main).0;
        main.assert_sound(&format!("seed {seed}"));
        if obstacles.is_empty() {
            taken_back += 1;
            same(&of(&found, "o"), &of(&now, "o"), &format!("seed {seed}: others' names"));
            same(&of(&found, "t"), &of(&before, "t"), &format!("seed {seed}: its own names"));
        } else {
            same(&found, &now, &format!("seed {seed}: refused, {obstacles:?}"));
        }
    }
    assert!((5..=28).contains(&taken_back), "{taken_back} of 30 were taken back");
}

#[test]
fn files_in_the_same_directory_and_other_parts_of_a_file_are_no_obstacle() {
    let main = keeping(100);
    let dir = main.dir(ROOT, "dir");
    let both = main.file(dir, "both");
    main.write_at(both, 0, &[1; 9000]).unwrap();
    let id = txn(&main, |view| {
        let dir = look(view, ROOT, "dir");
        view.file(dir, "made");
        let both = look(view, dir, "both");
        chmod(view, both, 0o600);
        view.setxattr(&view.caller, both, b"user.a", b"1", XattrMode::Set).unwrap();
    });
    main.file(dir, "beside");
    main.dir(dir, "below");
    main.write_at(both, 5000, b"later").unwrap();
    main.setxattr(&main.caller, both, b"user.b", b"2", XattrMode::Set).unwrap();
    rename(&main, (ROOT, "dir"), (ROOT, "moved"));
    undone(&main, id);
    let names: Vec<String> = tree(&main).0.into_keys().collect();
    assert_eq!(names, ["/", "/moved", "/moved/below", "/moved/beside", "/moved/both"]);
    assert_eq!(&main.read_all(both)[4999..5005], b"\x01later");
    assert_eq!(main.getattr(&main.caller, both).unwrap().mode, 0o644);
    assert_eq!(main.getxattr(&main.caller, both, b"user.b").unwrap(), "2");
    assert!(matches!(main.getxattr(&main.caller, both, b"user.a"), Err(FsError::NoAttribute)));
    main.assert_sound("taken back");
}

#[test]
fn what_was_built_on_it_is_named() {
    let main = keeping(100);
    let tags = main.store.open_keyspace("tags", KeyspaceKind::Tuple, None).unwrap();
    for name in ["changed", "removed", "moved"] {
        let file = main.file(ROOT, name);
        main.write_at(file, 0, b"old").unwrap();
    }
    main.dir(ROOT, "mode");
    let id = txn(&main, |view| {
        let made = view.dir(ROOT, "made");
        view.file(made, "inside");
        view.write_at(look(view, ROOT, "changed"), 0, b"new").unwrap();
        view.unlink(&view.caller, ROOT, b"removed").unwrap();
        rename(view, (ROOT, "moved"), (made, "moved"));
        chmod(view, look(view, ROOT, "mode"), 0o700);
        put(view, tags, "song", Some("new"));
    });
    let before = tree(&main).0;
    main.clock.advance(Duration::from_secs(1));
    // Each of them, and each alone.
    let made = look(&main, ROOT, "made");
    let later = txn(&main, |view| {
        let made = look(view, ROOT, "made");
        view.file(made, "later");
        view.write_at(look(view, made, "inside"), 0, b"more").unwrap();
        view.write_at(look(view, ROOT, "changed"), 1, b"!").unwrap();
        view.file(ROOT, "removed");
        rename(view, (made, "moved"), (ROOT, "away"));
        chmod(view, look(view, ROOT, "mode"), 0o711);
        put(view, tags, "song", Some("newer"));
    });
    let now = tree(&main).0;
    assert_ne!(before, now);
    let expected = [
        "~ /changed",
        "~ /made/inside",
        "+ /made/later",
        "- /made/moved",
        "~ /mode",
        "+ /removed",
        "~ key tags/song",
    ];
    assert_eq!(undo(&main, id).unwrap(), expected);
    assert_eq!(tree(&main).0, now, "nothing was done");
    let undo = Undo::open(&main.fs, id).unwrap();
    let view = begin(&main, Isolation::Snapshot);
    for obstacle in undo.plan(&view.fs, &Selection::default()).unwrap().into_obstacles() {
        assert_eq!(obstacle.by.map(|point| point.txn), Some(later), "{:?}", obstacle.what);
    }
    drop(view);
    // When that is taken back, this one can be.
    undone(&main, later);
    assert_eq!(tree(&main).0, before);
    undone(&main, id);
    let names: Vec<String> = tree(&main).0.into_keys().collect();
    assert_eq!(names, ["/", "/changed", "/mode", "/moved", "/removed"]);
    assert_eq!(main.store.get(tags, b"song").unwrap(), None);
    main.forget(made, 1);
    main.assert_sound("taken back");
}

#[test]
fn a_directory_that_was_put_below_what_moved_is_in_the_way() {
    let main = keeping(100);
    let outer = main.dir(ROOT, "outer");
    main.dir(ROOT, "other");
    let inner = main.dir(outer, "inner");
    let id = txn(&main, |view| {
        rename(view, (look(view, ROOT, "outer"), "inner"), (look(view, ROOT, "other"), "inner"));
    });
    rename(&main, (ROOT, "outer"), (inner, "outer"));
    assert_eq!(undo(&main, id).unwrap(), ["> /other/inner/outer"]);
    rename(&main, (inner, "outer"), (ROOT, "outer"));
    undone(&main, id);
    let names: Vec<String> = tree(&main).0.into_keys().collect();
    assert_eq!(names, ["/", "/other", "/outer", "/outer/inner"]);
    main.assert_sound("taken back");
}

#[test]
fn what_changes_meanwhile_is_a_conflict_and_what_is_not_kept_is_told() {
    let main = keeping(100);
    let file = main.file(ROOT, "file");
    main.write_at(file, 0, b"old").unwrap();
    let id = txn(&main, |view| {
        view.write_at(look(view, ROOT, "file"), 0, b"new").unwrap();
    });
    let kept = Undo::open(&main.fs, id).unwrap();
    let view = begin(&main, Isolation::Snapshot);
    main.write_at(file, 0, b"own").unwrap();
    let refused = kept.plan(&view.fs, &Selection::default()).and_then(Planned::carry_out);
    assert!(matches!(refused, Err(FsError::Canceled(_))), "{refused:?}");
    drop(view);
    assert_eq!(main.read_all(file), b"own");
    for _ in 0..8 {
        txn(&main, |view| {
            view.write_at(look(view, ROOT, "file"), 0, b"xyz").unwrap();
        });
    }
    let gone = undo(&main, id);
    assert!(
        matches!(&gone, Err(FsError::Store(error)) if matches!(**error, StoreError::NotKept(_))),
        "{gone:?}"
    );
    let refused = kept.plan(&main.fs, &Selection::default()).and_then(Planned::carry_out);
    assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
}

#[test]
fn keys_are_taken_back_with_files() {
    let main = over_the_engine(1 << 20);
    let tags = main.store.open_keyspace("tags", KeyspaceKind::Tuple, None).unwrap();
    let mut batch = Batch::new();
    batch.put(tags, "changed", "old");
    batch.put(tags, "removed", "old");
    main.store.apply(batch, Durability::Buffered).unwrap();
    let id = txn(&main, |view| {
        view.file(ROOT, "song");
        put(view, tags, "changed", Some("new"));
        put(view, tags, "removed", None);
        put(view, tags, "added", Some("new"));
    });
    put(&main, tags, "other", Some("later"));
    let undo = Undo::open(&main.fs, id).unwrap();
    let would = lines(&undo.diff().next_page(usize::MAX, usize::MAX).unwrap());
    assert_eq!(would, ["- /song", "- key tags/added", "~ key tags/changed", "+ key tags/removed"]);
    drop(undo);
    undone(&main, id);
    let values = ["changed", "removed", "added", "other"].map(|key| {
        main.store.get(tags, key.as_bytes()).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
    });
    let some = |value: &str| Some(value.to_owned());
    assert_eq!(values, [some("old"), some("old"), None, some("later")]);
    assert_eq!(tree(&main).0.len(), 1);
}

/// Others have moved, removed or replaced names of a file whose names or attributes the transaction touched.
#[test]
fn a_file_keeps_its_last_name_and_one_that_was_moved_is_left_alone() {
    let link = |view: &Setup| {
        view.link(&view.caller, look(view, ROOT, "a"), ROOT, b"b").unwrap();
    };
    let start = || {
        let main = keeping(200);
        main.write_at(main.file(ROOT, "a"), 0, b"content").unwrap();
        main
    };
    // The name that it gave is the last one by now.
    let main = start();
    let id = txn(&main, link);
    main.unlink(&main.caller, ROOT, b"a").unwrap();
    assert_eq!(undo(&main, id).unwrap(), ["~ /b"]);
    assert_eq!(main.read_all(look(&main, ROOT, "b")), b"content");
    // A user has put another file into the place of the first one.
    let main = start();
    let id = txn(&main, link);
    main.file(ROOT, "new");
    main.unlink(&main.caller, ROOT, b"a").unwrap();
    rename(&main, (ROOT, "new"), (ROOT, "a"));
    assert_eq!(undo(&main, id).unwrap(), ["~ /b"]);
    // Moved: the name that it gave goes, the file stays where it is.
    let main = start();
    let id = txn(&main, link);
    rename(&main, (ROOT, "a"), (ROOT, "c"));
    undone(&main, id);
    assert_eq!(main.read_all(look(&main, ROOT, "c")), b"content");
    // Nothing is left to give the name back to.
    let main = start();
    link(&main);
    let id = txn(&main, |view| view.unlink(&view.caller, ROOT, b"a").unwrap());
    main.unlink(&main.caller, ROOT, b"b").unwrap();
    assert_eq!(undo(&main, id).unwrap().len(), 1);
    // A mode that was set to what it was.
    let main = start();
    let id = txn(&main, |view| {
        let node = look(view, ROOT, "a");
        chmod(view, node, 0o600);
        chmod(view, node, 0o644);
        view.file(ROOT, "made");
    });
    rename(&main, (ROOT, "a"), (ROOT, "c"));
    undone(&main, id);
}

/// Files below the root with their content, and keys.
fn shown(main: &Setup, tags: Keyspace) -> Vec<String> {
    let mut shown = Vec::new();
    let mut todo = vec![(ROOT, String::new())];
    while let Some((directory, path)) = todo.pop() {
        for listed in main.list(directory, 50, false) {
            let name = String::from_utf8(listed.name).unwrap();
            if name == "." || name == ".." {
                continue;
            }
            let node = look(main, directory, &name);
            let path = format!("{path}/{name}");
            if main.getattr(&main.caller, node).unwrap().kind == FileType::Directory {
                todo.push((node, path.clone()));
                shown.push(path);
            } else {
                shown.push(format!("{path} {}", String::from_utf8(main.read_all(node)).unwrap()));
            }
        }
    }
    for key in ["one", "two"] {
        if let Some(value) = settled(|caller| main.fs.keys().get(caller, tags, key.as_bytes())).unwrap() {
            shown.push(format!("{key}={}", String::from_utf8(value.to_vec()).unwrap()));
        }
    }
    shown.sort();
    shown
}

pub(crate) fn write(view: &Setup, parent: NodeId, name: &str, text: &str) {
    let node = view.create(&view.caller, parent, name.as_bytes(), 0o644, false).unwrap().0.node;
    let change = SetAttr { size: Some(0), ..SetAttr::default() };
    view.setattr(&view.caller, node, &change).unwrap();
    view.write_at(node, 0, text.as_bytes()).unwrap();
}

pub(crate) fn below(paths: &[&str]) -> Vec<Area> {
    paths.iter().map(|path| Area::path(path.as_bytes())).collect()
}

/// A transaction that changes, makes, moves and removes; what it did, and the keyspace of its keys.
fn many_changes(main: &Setup) -> (TxnId, Keyspace) {
    let owner = KeyspaceOwner { uid: 0, gid: 0, mode: 0o600 };
    let tags = main.keys().make_keyspace("tags", owner).unwrap().0.keyspace;
    let dir = main.mkdir(&main.caller, ROOT, b"d", 0o755).unwrap().node;
    for name in ["a", "b", "gone", "moved"] {
        write(main, dir, name, "old");
    }
    put(main, tags, "one", Some("old"));
    let id = txn(main, |view| {
        let dir = look(view, ROOT, "d");
        write(view, dir, "a", "new");
        write(view, dir, "b", "new");
        view.unlink(&view.caller, dir, b"gone").unwrap();
        let made = view.mkdir(&view.caller, ROOT, b"made", 0o755).unwrap().node;
        write(view, made, "x", "new");
        rename(view, (dir, "moved"), (made, "moved"));
        put(view, tags, "one", Some("new"));
        put(view, tags, "two", Some("new"));
    });
    (id, tags)
}

#[test]
fn undo_of_paths_takes_back_only_what_was_done_there() {
    for inline in [0, 1000] {
        let main = keeping(inline);
        let (id, tags) = many_changes(&main);
        let only = Selection { only: below(&["/d/a", "/d/gone"]), ..Selection::default() };
        assert_eq!(undo_selected(&main, id, &only).unwrap(), [""; 0]);
        assert_eq!(
            shown(&main, tags),
            [
                "/d",
                "/d/a old",
                "/d/b new",
                "/d/gone old",
                "/made",
                "/made/moved old",
                "/made/x new",
                "one=new",
                "two=new"
            ]
        );
        // A file that was moved goes back as a whole, with one of its names.
        let moved = Selection { only: below(&["/made/moved"]), ..Selection::default() };
        assert_eq!(undo_selected(&main, id, &moved).unwrap(), [""; 0]);
        assert!(shown(&main, tags).contains(&"/d/moved old".to_owned()), "{:?}", shown(&main, tags));
        let keys = Selection { only: vec![Area::Keys(b"tags/two".to_vec())], ..Selection::default() };
        assert_eq!(undo_selected(&main, id, &keys).unwrap(), [""; 0]);
        assert!(!shown(&main, tags).contains(&"two=new".to_owned()));
        main.assert_sound("taken back in parts");
    }
}

#[test]
fn files_with_several_names_are_meant_and_left_out_by_each_of_them() {
    for inline in [0, 1000] {
        let main = keeping(inline);
        let (dir, file) = (main.dir(ROOT, "d"), main.file(ROOT, "f"));
        main.write_at(file, 0, b"old").unwrap();
        main.link(&main.caller, file, dir, b"g").unwrap();
        let other = main.file(ROOT, "h");
        main.write_at(other, 0, b"old").unwrap();
        let change = |text: &'static [u8]| {
            txn(&main, |view| {
                for name in ["f", "h"] {
                    view.write_at(look(view, ROOT, name), 0, text).unwrap();
                }
            })
        };
        let content =
            || [main.read_all(file), main.read_all(other)].map(|all| String::from_utf8(all).unwrap());
        let id = change(b"new");
        let skip = Selection { skip: below(&["/d/g"]), ..Selection::default() };
        assert_eq!(undo_selected(&main, id, &skip).unwrap(), [""; 0]);
        assert_eq!(content(), ["new", "old"]);
        let id = change(b"NEW");
        let only = Selection { only: below(&["/f"]), ..Selection::default() };
        assert_eq!(undo_selected(&main, id, &only).unwrap(), [""; 0]);
        assert_eq!(content(), ["new", "NEW"]);
        let id = change(b"yes");
        main.write_at(file, 0, b"own").unwrap();
        assert_eq!(undo(&main, id).unwrap().len(), 1);
        let keep = Selection { keep: below(&["/d"]), ..Selection::default() };
        assert_eq!(undo_selected(&main, id, &keep).unwrap(), [""; 0]);
        assert_eq!(content(), ["own", "NEW"]);
        let force = Selection { force: below(&["/f"]), ..Selection::default() };
        assert_eq!(undo_selected(&main, id, &force).unwrap(), [""; 0]);
        assert_eq!(content(), ["new", "NEW"]);
        main.assert_sound("taken back in parts");
    }
}

#[test]
fn undo_that_skips_a_path_leaves_it_with_what_it_needs() {
    let main = keeping(1000);
    let (id, tags) = many_changes(&main);
    // The directory that was made stays, since what is skipped is in it; a moved file stays where it is.
    let skip = [below(&["/made/x", "/d/a"]), vec![Area::Keys(b"tags/one".to_vec())]].concat();
    let selection = Selection { skip, ..Selection::default() };
    assert_eq!(undo_selected(&main, id, &selection).unwrap(), [""; 0]);
    assert_eq!(
        shown(&main, tags),
        ["/d", "/d/a new", "/d/b old", "/d/gone old", "/d/moved old", "/made", "/made/x new", "one=new"]
    );
    main.assert_sound("taken back but for what was skipped");
}

#[test]
fn undo_by_force_overwrites_what_has_changed_since() {
    for inline in [0, 1000] {
        let main = keeping(inline);
        let (id, tags) = many_changes(&main);
        let dir = look(&main, ROOT, "d");
        let made = look(&main, ROOT, "made");
        write(&main, dir, "a", "others, and longer");
        main.unlink(&main.caller, dir, b"b").unwrap();
        write(&main, dir, "gone", "others");
        let deep = main.mkdir(&main.caller, made, b"deep", 0o755).unwrap().node;
        write(&main, deep, "file", "others");
        put(&main, tags, "one", Some("others"));
        main.clock.advance(Duration::from_secs(1));
        let found = undo(&main, id).unwrap();
        assert_eq!(found.len(), 5, "{found:?}");
        // Not what belongs to others: everything here is root's.
        let as_user = Selection { force: vec![Area::All], uid: Some(2000), ..Selection::default() };
        assert_eq!(undo_selected(&main, id, &as_user).unwrap(), found);
        // In part: what is left is told.
        let part = Selection { force: below(&["/d"]), ..Selection::default() };
        assert_eq!(undo_selected(&main, id, &part).unwrap().len(), 2);
        let force = Selection { force: vec![Area::All], ..Selection::default() };
        assert_eq!(undo_selected(&main, id, &force).unwrap(), [""; 0]);
        assert_eq!(
            shown(&main, tags),
            ["/d", "/d/a old", "/d/b old", "/d/gone old", "/d/moved old", "one=old"]
        );
        main.assert_sound("taken back by force");
    }
}

#[test]
fn undo_of_a_removed_file_of_several_names_tells_one_and_by_force_brings_all() {
    let main = keeping(200);
    let dir = main.dir(ROOT, "d");
    write(&main, dir, "a", "old");
    main.link(&main.caller, look(&main, dir, "a"), ROOT, b"b").unwrap();
    let id = txn(&main, |view| write(view, look(view, ROOT, "d"), "a", "new, and longer"));
    main.unlink(&main.caller, dir, b"a").unwrap();
    main.unlink(&main.caller, ROOT, b"b").unwrap();
    let found = undo(&main, id).unwrap();
    assert!(["- /b", "- /d/a"].contains(&&*found.concat()), "{found:?}");
    let force = Selection { force: vec![Area::All], ..Selection::default() };
    assert_eq!(undo_selected(&main, id, &force).unwrap(), [""; 0]);
    assert_eq!(main.read_all(look(&main, look(&main, ROOT, "d"), "a")), b"old");
    assert_eq!(look(&main, look(&main, ROOT, "d"), "a"), look(&main, ROOT, "b"));
    main.assert_sound("all names are back");
}

/// The transaction has moved the file or not, written to it or not, and others have written to it or not.
#[test]
fn undo_by_force_of_a_file_that_others_have_moved_on_brings_its_content_back() {
    for inline in [0, 1000] {
        for (is_moved, is_written, others_write) in
            [(true, false, true), (true, true, false), (true, true, true), (false, true, false)]
        {
            for target in ["gone", "c"] {
                let main = keeping(inline);
                let dir = main.dir(ROOT, "d");
                write(&main, dir, "a", "old");
                write(&main, dir, "gone", "old, too");
                let file = look(&main, dir, "a");
                let left = if is_moved { "b" } else { "a" };
                let id = txn(&main, |view| {
                    let dir = look(view, ROOT, "d");
                    view.unlink(&view.caller, dir, b"gone").unwrap();
                    if is_moved {
                        rename(view, (dir, "a"), (dir, "b"));
                    }
                    if is_written {
                        write(view, dir, left, "new, and longer");
                    }
                });
                rename(&main, (dir, left), (dir, target));
                if others_write {
                    write(&main, dir, target, "others");
                }
                let moved_on = main.read_all(file);
                let case = format!("{inline} {is_moved} {is_written} {others_write} {target}");
                assert!(!undo(&main, id).unwrap().is_empty(), "{case}");
                let force = Selection { force: vec![Area::All], ..Selection::default() };
                assert_eq!(undo_selected(&main, id, &force).unwrap(), [""; 0], "{case}");
                let back = look(&main, dir, "a");
                if target == "gone" {
                    // It is in the place of a file that comes back.
                    assert_eq!(back, file, "{case}");
                    let content = if is_written { "old" } else { "others" };
                    assert_eq!(main.read_all(back), content.as_bytes(), "{case}");
                } else {
                    // It is in no way of anything, and stays.
                    assert_eq!(look(&main, dir, "c"), file, "{case}");
                    assert_eq!(main.read_all(file), moved_on, "{case}");
                    assert_eq!(main.read_all(back), b"old", "{case}");
                    main.unlink(&main.caller, dir, b"c").unwrap();
                }
                let names: Vec<_> = tree(&main).0.into_keys().collect();
                assert_eq!(names, ["/", "/d", "/d/a", "/d/gone"], "{case}");
                assert_eq!(main.read_all(look(&main, dir, "gone")), b"old, too", "{case}");
                main.assert_sound(&case);
            }
        }
    }
}

#[test]
fn undo_by_force_after_random_changes_of_others_keeps_the_tree_sound() {
    for seed in 0..60 {
        let main = keeping(if seed % 2 == 0 { 0 } else { 1000 });
        let mut random = Random::new(seed);
        mess(&main, &mut random, ROOT, "a", 30);
        let id = txn(&main, |view| mess(view, &mut random, ROOT, "a", 20));
        mess(&main, &mut random, ROOT, "a", 15);
        let force = Selection { force: vec![Area::All], ..Selection::default() };
        // What can't be forced (links, circles) is told, and then nothing happens.
        let _ = undo_selected(&main, id, &force).unwrap_or_else(|e| panic!("force {seed} {e}"));
        let keep = Selection { keep: vec![Area::All], ..Selection::default() };
        let _ = undo_selected(&main, id, &keep).unwrap_or_else(|e| panic!("keep {seed} {e}"));
        main.assert_sound(&format!("seed {seed}"));
    }
}

#[test]
fn keys_of_two_keyspaces_that_are_told_alike_are_two_obstacles() {
    let main = keeping(100);
    let owned = |name, uid| {
        let owner = KeyspaceOwner { uid, gid: 0, mode: 0o600 };
        main.keys().make_keyspace(name, owner).unwrap().0.keyspace
    };
    let keys = [(owned("app", 7), "cache/k"), (owned("app/cache", 8), "k")];
    let put_all = |view: &Setup, value| {
        for (of, key) in keys {
            put(view, of, key, Some(value));
        }
    };
    let values = || keys.map(|(of, key)| main.store.get(of, key.as_bytes()).unwrap().unwrap());
    put_all(&main, "old");
    let id = txn(&main, |view| put_all(view, "new"));
    put_all(&main, "newer");
    assert_eq!(undo(&main, id).unwrap(), ["~ key app/cache/k"; 2]);
    // Force gives a user no right to the keyspace of another one.
    let forced = Selection { force: vec![Area::All], uid: Some(7), ..Selection::default() };
    assert_eq!(undo_selected(&main, id, &forced).unwrap(), ["~ key app/cache/k"]);
    // All of `app` is no part of `app/cache`.
    let forced = Selection { force: vec![Area::Keys(b"app/".to_vec())], ..Selection::default() };
    assert_eq!(undo_selected(&main, id, &forced).unwrap(), ["~ key app/cache/k"]);
    assert_eq!(values(), ["newer"; 2]);
    let both = Selection { keep: vec![Area::All], ..forced };
    assert_eq!(undo_selected(&main, id, &both).unwrap(), [""; 0]);
    assert_eq!(values(), ["old", "newer"]);
}

#[test]
fn conflict_names_the_transaction_that_was_first() {
    let main = keeping(1000);
    write(&main, ROOT, "f", "old");
    let late = begin(&main, Isolation::Snapshot);
    txn(&main, |view| write(view, ROOT, "f", "first"));
    let node = look(&late, ROOT, "f");
    let met = late.write_at(node, 0, b"second").unwrap_err();
    let FsError::Canceled(doom) = met else { panic!("{met}") };
    assert!(matches!(doom.rival, Some(kvfs_fs::Rival::Txn { .. })), "{doom}");
    let text = late.fs.lock_words().explain(&doom);
    assert!(text.contains("transaction") && text.contains("/f"), "{text}");
}

#[test]
fn merge_that_prefers_a_side_after_random_changes_keeps_the_tree_sound() {
    for seed in 100..160 {
        let main = keeping(if seed % 2 == 0 { 0 } else { 1000 });
        let mut random = Random::new(seed);
        mess(&main, &mut random, ROOT, "a", 30);
        main.fs.branches().create("b", 0).unwrap();
        let view = main.through(main.fs.open_branch("b").unwrap(), main.options);
        mess(&view, &mut random, ROOT, "a", 20);
        view.branches().checkpoint().unwrap();
        drop(view);
        main.clock.advance(Duration::from_secs(1));
        mess(&main, &mut random, ROOT, "a", 15);
        let all = vec![Area::All];
        let selection = if seed % 3 == 0 {
            Selection { keep: all, ..Selection::default() }
        } else {
            Selection { force: all, ..Selection::default() }
        };
        let owner = kvfs_fs::Owner { uid: 0, pid: 1, name: "merge".to_owned() };
        match kvfs_fs::begin_merge_preferring(&main.fs, &main.branch("b"), owner, &selection) {
            Ok([merging, _branch]) => drop(commit(&merging).unwrap()),
            // What can't be forced is told.
            Err(FsError::MergeRefused { .. }) if seed % 3 != 0 => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
        main.assert_sound(&format!("seed {seed}"));
    }
}
