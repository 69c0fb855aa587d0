//! The wish of directories and files on which tier content lies.

use std::sync::Arc;

use kvfs_fs::{FsError, NodeId, RenameMode, Selection, TIER_ATTRIBUTE, TakenBack, Undo, XattrMode};
use kvfs_store::{Isolation, KeyRange, KeyspaceKind, Store, Tier};

use crate::setup::Setup;
use crate::undo;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

fn set(setup: &Setup, node: NodeId, words: &str) -> Result<(), FsError> {
    setup.setxattr(&setup.caller, node, TIER_ATTRIBUTE, words.as_bytes(), XattrMode::Set)
}

fn get(setup: &Setup, node: NodeId) -> String {
    let value = setup.getxattr(&setup.caller, node, TIER_ATTRIBUTE).unwrap();
    String::from_utf8(value.to_vec()).unwrap()
}

/// Which inodes the store is told to place where.
pub(crate) fn told(store: &Arc<dyn Store>) -> Vec<(u64, Tier)> {
    if store.keyspaces().iter().all(|info| info.name != "\u{1}tiers") {
        return Vec::new();
    }
    let keyspace = store.open_keyspace("\u{1}tiers", KeyspaceKind::Tuple, None).unwrap();
    let mut cursor = store.cursor(keyspace, KeyRange::all()).unwrap();
    let mut rows = Vec::new();
    cursor.next().unwrap();
    while let Some((key, value)) = cursor.entry() {
        let inode = u64::from_be_bytes(key.try_into().unwrap());
        rows.push((inode, Tier::from_code(value[0]).unwrap()));
        cursor.next().unwrap();
    }
    rows
}

#[test]
fn new_files_take_over_the_tier_of_their_directory_and_keep_it() {
    let mut setup = Setup::new(100);
    let (dir, other) = (setup.dir(ROOT, "dir"), setup.dir(ROOT, "other"));
    let old = setup.file(dir, "old");
    assert_eq!(get(&setup, dir), "auto");
    set(&setup, dir, "slow").unwrap();
    assert_eq!([get(&setup, dir), get(&setup, old), get(&setup, ROOT)], ["slow", "auto", "auto"]);
    assert_eq!(told(&setup.store), [], "a directory has no blocks");
    let sub = setup.dir(dir, "sub");
    let file = setup.file(sub, "file");
    assert_eq!([get(&setup, sub), get(&setup, file)], ["slow", "slow"]);
    assert_eq!(told(&setup.store), [(file.0, Tier::Slow)]);
    setup.rename(&setup.caller, sub, b"file", other, b"moved", RenameMode::Replace).unwrap();
    setup.link(&setup.caller, file, ROOT, b"name").unwrap();
    setup.unlink(&setup.caller, other, b"moved").unwrap();
    assert_eq!(get(&setup, file), "slow", "moved and linked elsewhere");
    set(&setup, sub, "auto").unwrap();
    assert_eq!(get(&setup, setup.file(sub, "plain")), "auto");
    set(&setup, file, "fast").unwrap();
    setup.reopen();
    let found = setup.lookup(&setup.caller, ROOT, b"name").unwrap().node;
    assert_eq!((get(&setup, found), told(&setup.store)), ("fast".to_owned(), vec![(found.0, Tier::Fast)]));
    setup.removexattr(&setup.caller, found, TIER_ATTRIBUTE).unwrap();
    assert_eq!((get(&setup, found), told(&setup.store)), ("auto".to_owned(), vec![]));
    setup.assert_sound("after changes of tiers");
}

#[test]
fn the_wish_of_a_file_goes_when_the_file_goes() {
    let setup = Setup::new(100);
    set(&setup, ROOT, "slow").unwrap();
    let (empty, small, large) = (setup.file(ROOT, "a"), setup.file(ROOT, "b"), setup.file(ROOT, "c"));
    setup.write_at(small, 0, b"in the row").unwrap();
    setup.write_at(large, 0, &[7; 9000]).unwrap();
    let nameless = setup.tmpfile(&setup.caller, ROOT, 0o600, true).unwrap().node;
    let wished = [empty, small, large, nameless].map(|node| (node.0, Tier::Slow));
    assert_eq!(told(&setup.store), wished);
    for name in [b"a", b"b", b"c"] {
        setup.unlink(&setup.caller, ROOT, name).unwrap();
    }
    for node in [empty, small, large, nameless] {
        setup.forget(node, 1);
    }
    setup.housekeep().unwrap();
    assert_eq!(told(&setup.store), []);
    setup.assert_sound("after the files are gone");
}

#[test]
fn a_tier_is_set_in_a_transaction_and_taken_back_with_it() {
    let store = Arc::new(kvfs_store::model::ModelStore::new());
    store.keep_for_undo(8);
    let setup = Setup::with(store, 100, kvfs_fs::MountOptions::default());
    let (file, dir) = (setup.file(ROOT, "file"), setup.dir(ROOT, "dir"));
    setup.store.create_snapshot("before").unwrap();
    let aborted = begin(&setup, Isolation::Snapshot);
    let found = aborted.lookup(&aborted.caller, ROOT, b"file").unwrap().node;
    set(&aborted, found, "fast").unwrap();
    aborted.fs.expect_txn().unwrap().abort();
    assert_eq!((get(&setup, file), told(&setup.store)), ("auto".to_owned(), vec![]));

    let view = begin(&setup, Isolation::Snapshot);
    for name in [b"file".as_slice(), b"dir"] {
        view.lookup(&view.caller, ROOT, name).unwrap();
    }
    set(&view, file, "slow").unwrap();
    set(&view, dir, "fast").unwrap();
    let made = view.file(dir, "made");
    assert_eq!([get(&view, file), get(&setup, file)], ["slow", "auto"]);
    let id = view.fs.txn().unwrap().id();
    commit(&view.fs).unwrap();
    assert_eq!([get(&setup, file), get(&setup, dir)], ["slow", "fast"]);
    assert_eq!(told(&setup.store), [(file.0, Tier::Slow), (made.0, Tier::Fast)]);
    let before = setup.fs.view_of(setup.store.open_snapshot("before").unwrap()).unwrap();
    let before = setup.through(before, setup.options);
    before.lookup(&before.caller, ROOT, b"file").unwrap();
    assert_eq!(get(&before, file), "auto", "a snapshot tells what was");

    let undo = Undo::open(&setup.fs, id).unwrap();
    let view = begin(&setup, Isolation::Snapshot);
    assert!(matches!(
        undo.plan(&view.fs, &Selection::default()).unwrap().carry_out().unwrap(),
        TakenBack::Done(_)
    ));
    commit(&view.fs).unwrap();
    assert_eq!([get(&setup, file), get(&setup, dir)], ["auto", "auto"]);
    setup.housekeep().unwrap();
    assert_eq!(told(&setup.store), []);
    setup.assert_sound("after it was taken back");
}

#[test]
fn settings_that_others_made_stay_with_an_undo() {
    let main = undo::keeping(100);
    let dir = main.dir(ROOT, "dir");
    let file = main.file(dir, "file");
    let compression = |node, words: Option<&str>| {
        if let Some(words) = words {
            let name = kvfs_fs::COMPRESSION_ATTRIBUTE;
            main.setxattr(&main.caller, node, name, words.as_bytes(), XattrMode::Set).unwrap();
        }
        main.getxattr(&main.caller, node, kvfs_fs::COMPRESSION_ATTRIBUTE).unwrap()
    };
    // It changes the directory and the file otherwise, or one of the two settings.
    for sets_tier in [false, true] {
        let id = undo::txn(&main, |view| {
            let dir = undo::look(view, ROOT, "dir");
            let file = undo::look(view, dir, "file");
            if sets_tier {
                set(view, dir, "fast").unwrap();
                set(view, file, "fast").unwrap();
            } else {
                undo::write(view, dir, "new", "text");
                view.write_at(file, 0, b"more").unwrap();
            }
        });
        for node in [dir, file] {
            compression(node, Some("zstd:3"));
        }
        if !sets_tier {
            set(&main, dir, "slow").unwrap();
            set(&main, file, "slow").unwrap();
        }
        undo::undone(&main, id);
        for node in [dir, file] {
            assert_eq!((&compression(node, None)[..], &get(&main, node)[..]), (&b"zstd:3"[..], "slow"));
            compression(node, Some("none"));
        }
    }
    // Of both.
    let id = undo::txn(&main, |view| {
        let dir = undo::look(view, ROOT, "dir");
        let file = undo::look(view, dir, "file");
        set(view, dir, "fast").unwrap();
        set(view, file, "fast").unwrap();
    });
    set(&main, dir, "auto").unwrap();
    set(&main, file, "auto").unwrap();
    assert_eq!(undo::undo(&main, id).unwrap(), ["~ /dir", "~ /dir/file"]);
    let force = Selection { force: vec![kvfs_fs::Area::All], ..Selection::default() };
    assert_eq!(undo::undo_selected(&main, id, &force).unwrap(), [""; 0]);
    assert_eq!([get(&main, dir), get(&main, file)], ["slow", "slow"]);
    main.assert_sound("taken back");
}

#[test]
fn a_tier_is_no_listed_attribute_and_only_of_files_and_directories() {
    let setup = Setup::new(4096);
    set(&setup, ROOT, "slow").unwrap();
    assert_eq!(setup.listxattr(&setup.caller, ROOT).unwrap(), b"");
    for words in ["", "hot", "Fast", "slow fast", "\u{fffd}"] {
        assert!(matches!(set(&setup, ROOT, words), Err(FsError::Invalid(_))), "{words}");
    }
    let link = setup.symlink(&setup.caller, ROOT, b"link", b"target").unwrap().node;
    assert!(matches!(set(&setup, link, "fast"), Err(FsError::NotSupported(_))));
    setup.setxattr(&setup.caller, ROOT, kvfs_fs::COMPRESSION_ATTRIBUTE, b"zstd:19", XattrMode::Set).unwrap();
    let file = setup.file(ROOT, "file");
    let compression = setup.getxattr(&setup.caller, file, kvfs_fs::COMPRESSION_ATTRIBUTE).unwrap();
    assert_eq!((get(&setup, file), &compression[..]), ("slow".to_owned(), &b"zstd:19"[..]));
}
