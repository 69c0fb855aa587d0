//! Projects: what a tree's files are counted for, what their limits refuse, and what never crosses their
//! borders.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::transfer::{Receiver, SendStream, StreamReader};
use kvfs_fs::{
    Caller, FileType, FsError, Limits, MountOptions, NodeId, PROJECT_ATTRIBUTE, Project, QuotaKind,
    RenameMode, Result, Selection, SetAttr, TakenBack, Undo, WriteFlags, XattrMode, repair,
};
use kvfs_kvdb::Background;
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Durability, Isolation, Store};

use crate::engine;
use crate::setup::{Random, Setup};
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

fn on(setup: &Setup) {
    setup.fs.quotas().turn_on(&|_| {}).unwrap();
}

fn give(setup: &Setup, node: NodeId, id: u32) {
    setup.set_project(&setup.caller, node, Project { id, hands_down: true }).unwrap();
}

/// A directory below the root that belongs to a project.
fn tree(setup: &Setup, name: &str, id: u32) -> NodeId {
    let directory = setup.dir(ROOT, name);
    give(setup, directory, id);
    directory
}

fn id_of(setup: &Setup, node: NodeId) -> u32 {
    setup.project(&setup.caller, node).unwrap().id
}

/// Bytes and inodes.
fn has(setup: &Setup, id: u32) -> (i64, i64) {
    let usage = setup.fs.quotas().get(QuotaKind::Project, id).unwrap().usage;
    (usage.bytes, usage.inodes)
}

fn limit(setup: &Setup, id: u32, change: impl FnOnce(&mut Limits)) {
    let mut limits = Limits::default();
    change(&mut limits);
    setup.fs.quotas().set(QuotaKind::Project, id, limits).unwrap();
}

fn look(setup: &Setup, parent: NodeId, name: &str) -> NodeId {
    setup.lookup(&setup.caller, parent, name.as_bytes()).unwrap().node
}

fn rename(
    on: &Setup,
    (from, name): (NodeId, &str),
    (to, new): (NodeId, &str),
    mode: RenameMode,
) -> Result<()> {
    on.rename(&on.caller, from, name.as_bytes(), to, new.as_bytes(), mode)
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

#[test]
fn what_is_made_in_a_tree_gets_its_project() {
    let mut setup = Setup::new(100);
    let inherited = Project { id: 7, hands_down: true };
    let before = setup.file(ROOT, "before");
    let top = tree(&setup, "top", 7);
    let inner = setup.dir(top, "inner");
    assert_eq!(setup.project(&setup.caller, inner).unwrap(), inherited);
    let file = setup.file(inner, "f");
    let device = FileType::CharDevice.mode_bits() | 0o600;
    let device = setup.mknod(&setup.caller, inner, b"null", device, 0x0103).unwrap();
    assert_eq!((device.attr.rdev, device.attr.blocks), (0x0103, 0));
    let link = setup.symlink(&setup.caller, inner, b"l", b"f").unwrap().node;
    let unnamed = setup.tmpfile(&setup.caller, inner, 0o600, true).unwrap().node;
    for node in [file, device.node, link, unnamed] {
        let project = setup.project(&setup.caller, node).unwrap();
        assert_eq!(project, Project { id: 7, hands_down: false });
    }
    assert_eq!((id_of(&setup, before), id_of(&setup, ROOT)), (0, 0));
    setup.link(&setup.caller, file, top, b"g").unwrap();
    setup.reopen();
    let top = look(&setup, ROOT, "top");
    let inner = look(&setup, top, "inner");
    for (parent, name) in [(top, "g"), (inner, "f"), (inner, "null"), (inner, "l"), (top, "inner")] {
        assert_eq!(id_of(&setup, look(&setup, parent, name)), 7, "{name}");
    }
    let null = setup.lookup(&setup.caller, inner, b"null").unwrap().attr;
    assert_eq!((null.rdev, null.blocks), (0x0103, 0));
    assert_eq!(Project::trees(&setup.fs).unwrap(), [(7, b"/top".to_vec())]);
    // A directory may belong to a project that it does not hand down.
    setup.set_project(&setup.caller, inner, Project { id: 8, hands_down: false }).unwrap();
    assert_eq!(id_of(&setup, setup.file(inner, "plain")), 0);
    give(&setup, inner, 0);
    assert_eq!(Project::trees(&setup.fs).unwrap(), [(7, b"/top".to_vec())]);
    give(&setup, inner, 9);
    assert_eq!(Project::trees(&setup.fs).unwrap(), [(7, b"/top".to_vec()), (9, b"/top/inner".to_vec())]);
    setup.assert_sound("in trees");
}

#[test]
fn a_project_is_an_attribute_that_is_not_listed() {
    let setup = Setup::new(100);
    let top = setup.dir(ROOT, "top");
    let get = |node| setup.getxattr(&setup.caller, node, PROJECT_ATTRIBUTE);
    let set = |node, value: &[u8], mode| setup.setxattr(&setup.caller, node, PROJECT_ATTRIBUTE, value, mode);
    assert_eq!(get(top).unwrap(), &b"0"[..]);
    set(top, b"42\n", XattrMode::Set).unwrap();
    let file = setup.file(top, "f");
    assert_eq!((get(top).unwrap(), get(file).unwrap()), (Bytes::from("42"), Bytes::from("42")));
    set(top, b"42 alone", XattrMode::Replace).unwrap();
    assert_eq!(get(top).unwrap(), &b"42 alone"[..]);
    assert_eq!(setup.project(&setup.caller, top).unwrap(), Project { id: 42, hands_down: false });
    assert!(setup.listxattr(&setup.caller, top).unwrap().is_empty());
    for wrong in [&b"x"[..], b"-1", b"4294967296", b"7 there", b""] {
        assert!(matches!(set(top, wrong, XattrMode::Set), Err(FsError::Invalid(_))));
    }
    assert!(matches!(set(top, b"1", XattrMode::Create), Err(FsError::Exists)));
    setup.removexattr(&setup.caller, top, PROJECT_ATTRIBUTE).unwrap();
    assert_eq!(get(top).unwrap(), &b"0"[..]);
}

#[test]
fn nothing_of_another_project_comes_into_a_tree() {
    let setup = Setup::new(100);
    let (one, two, plain) = (tree(&setup, "one", 1), tree(&setup, "two", 2), setup.dir(ROOT, "plain"));
    for parent in [one, two, plain] {
        setup.file(parent, "f");
        setup.dir(parent, "d");
    }
    let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
    let is_refused = |done: Result<()>| {
        assert!(matches!(done, Err(FsError::OtherProject)), "{done:?}");
        assert_eq!(done.unwrap_err().errno(), 18);
    };
    for (from, to) in [(one, two), (two, one), (plain, one)] {
        is_refused(rename(&setup, (from, "f"), (to, "new"), replace));
        is_refused(rename(&setup, (from, "d"), (to, "new"), RenameMode::NoReplace));
        is_refused(rename(&setup, (from, "f"), (to, "f"), replace));
        is_refused(rename(&setup, (from, "f"), (to, "f"), exchange));
        is_refused(setup.link(&setup.caller, look(&setup, from, "f"), to, b"new").map(drop));
    }
    // One side of an exchange suffices.
    is_refused(rename(&setup, (one, "f"), (plain, "f"), exchange));
    // Whole trees stay where they may be, and what is moved out keeps its project.
    is_refused(rename(&setup, (ROOT, "two"), (one, "two"), replace));
    rename(&setup, (ROOT, "two"), (plain, "two"), replace).unwrap();
    rename(&setup, (one, "f"), (plain, "out"), replace).unwrap();
    assert_eq!(id_of(&setup, look(&setup, plain, "out")), 1);
    rename(&setup, (plain, "out"), (one, "d2"), replace).unwrap();
    // Inside of a tree, and inside of one directory, all is as ever.
    let d = look(&setup, one, "d");
    rename(&setup, (one, "d2"), (d, "f"), replace).unwrap();
    let file = look(&setup, d, "f");
    setup.set_project(&setup.caller, file, Project { id: 5, hands_down: false }).unwrap();
    rename(&setup, (d, "f"), (d, "g"), replace).unwrap();
    is_refused(rename(&setup, (d, "g"), (one, "g"), replace));
    let unnamed = setup.tmpfile(&setup.caller, two, 0o600, true).unwrap().node;
    is_refused(setup.link(&setup.caller, unnamed, one, b"unnamed").map(drop));
    setup.link(&setup.caller, unnamed, two, b"unnamed").unwrap();
    setup.assert_sound("moved");
}

#[test]
fn usage_follows_projects() {
    let setup = Setup::new(100);
    let early = tree(&setup, "early", 3);
    setup.file(early, "f");
    on(&setup);
    assert_eq!(has(&setup, 3), (0, 2), "counted when quotas were turned on");
    let top = tree(&setup, "top", 7);
    let file = setup.file(top, "f");
    setup.write_at(file, 0, &[1; 5000]).unwrap();
    assert_eq!(has(&setup, 7), (8192, 2));
    setup.set_project(&setup.caller, file, Project { id: 8, hands_down: true }).unwrap();
    assert_eq!((has(&setup, 7), has(&setup, 8)), ((0, 1), (8192, 1)));
    setup.unlink(&setup.caller, top, b"f").unwrap();
    assert_eq!(has(&setup, 8), (8192, 1), "it is still open");
    setup.forget(file, 1);
    setup.housekeep().unwrap();
    assert_eq!(has(&setup, 8), (0, 0));
    let lines = setup.fs.quotas().report();
    assert!(lines.iter().all(|line| (line.kind, line.id) != (QuotaKind::Project, 0)), "0 is none");
    assert!(matches!(setup.quotas().set(QuotaKind::Project, 0, Limits::default()), Err(FsError::Invalid(_))));
    setup.assert_sound("counted");
}

#[test]
fn limits_of_projects_keep_root_too_and_show_as_capacity() {
    let mut setup = Setup::new(100);
    on(&setup);
    let top = tree(&setup, "top", 7);
    let file = setup.file(top, "f");
    limit(&setup, 7, |limits| (limits.bytes_hard, limits.inodes_hard) = (16384, 3));
    let root = Caller { uid: 0, gid: 0, ..setup.caller.clone() };
    let write = |setup: &Setup, len: usize| {
        let data = Bytes::from(vec![1; len]);
        setup.write(&root, file, 0, data, WriteFlags::default())
    };
    let refused = write(&setup, 16385);
    assert!(matches!(refused, Err(FsError::ProjectFull)), "{refused:?}");
    assert_eq!((refused.unwrap_err().errno(), has(&setup, 7)), (28, (0, 2)));
    write(&setup, 8000).unwrap();
    let shown = setup.statfs_at(file);
    assert_eq!((shown.blocks, shown.blocks_free, shown.blocks_available), (4, 2, 2));
    assert_eq!((shown.files, shown.files_free), (3, 1));
    assert_eq!(setup.statfs_at(top), shown);
    assert_eq!(setup.statfs_at(ROOT), setup.statfs());
    setup.mkdir(&root, top, b"d", 0o755).unwrap();
    assert!(matches!(setup.mkdir(&root, top, b"e", 0o755), Err(FsError::ProjectFull)));
    // The other limits count beside it.
    limit(&setup, 7, |_| {});
    let users = Limits { bytes_hard: 12288, ..Limits::default() };
    setup.quotas().set(QuotaKind::User, 1000, users).unwrap();
    assert!(matches!(setup.write_at(file, 0, &[1; 16384]), Err(FsError::QuotaExceeded)));
    assert_eq!(setup.statfs_at(top), setup.statfs());
    // The soft limit and its time of grace.
    limit(&setup, 7, |limits| (limits.bytes_soft, limits.grace_seconds) = (4096, 100));
    assert_eq!((setup.statfs_at(top).blocks, setup.statfs_at(top).blocks_free), (1, 0));
    write(&setup, 12288).unwrap();
    setup.clock.advance(Duration::from_secs(101));
    assert!(matches!(write(&setup, 16384), Err(FsError::ProjectFull)));
    // Giving something to a full project is for callers with the right to.
    let other = setup.file(ROOT, "other");
    setup.set_project(&setup.caller, other, Project { id: 7, hands_down: false }).unwrap();
    setup.setattr(&root, file, &size(0)).unwrap();
    setup.housekeep().unwrap();
    setup.reopen();
    assert_eq!(has(&setup, 7), (0, 4));
    setup.assert_sound("limited");
}

#[test]
fn a_transaction_heeds_projects_and_counts_at_its_commit() {
    let main = Setup::new(100);
    on(&main);
    let top = tree(&main, "top", 7);
    limit(&main, 7, |limits| limits.bytes_hard = 16384);
    let view = begin(&main, Isolation::Snapshot);
    let file = view.file(look(&view, ROOT, "top"), "f");
    view.write_at(file, 0, &[1; 12288]).unwrap();
    assert_eq!((id_of(&view, file), has(&main, 7)), (7, (0, 1)));
    assert_eq!((view.statfs_at(top).blocks_free, main.statfs_at(top).blocks_free), (1, 4));
    assert!(matches!(view.write_at(file, 0, &vec![1; 16385]), Err(FsError::ProjectFull)));
    let other = main.file(top, "other");
    main.write_at(other, 0, &[1; 8192]).unwrap();
    assert!(matches!(commit(&view.fs).map(drop), Err(FsError::ProjectFull)));
    view.setattr(&view.caller, file, &size(8192)).unwrap();
    commit(&view.fs).unwrap();
    assert_eq!(has(&main, 7), (16384, 3));
    let view = begin(&main, Isolation::Serializable);
    give(&view, look(&view, ROOT, "top"), 8);
    view.unlink(&view.caller, top, b"f").unwrap();
    view.fs.txn().unwrap().abort();
    assert_eq!((has(&main, 7), id_of(&main, top)), ((16384, 3), 7));
    main.assert_sound("committed");
}

#[test]
fn a_change_of_project_excludes_entries_and_space() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let main = Setup::new(100);
        on(&main);
        let directory = main.dir(ROOT, "d");
        let file = main.file(ROOT, "f");
        // The main line has made a file in it before, or does so later.
        for main_gives in [true, false] {
            let view = begin(&main, isolation);
            let same = if main_gives && isolation == Isolation::Serializable {
                directory
            } else {
                look(&view, ROOT, "d")
            };
            let id = 5 + u32::from(main_gives);
            let done = if main_gives {
                give(&main, directory, id);
                view.create(&view.caller, look(&view, ROOT, "d"), b"new", 0o600, true)
                    .map(|(entry, _)| assert_eq!(id_of(&view, entry.node), id))
            } else {
                view.create(&view.caller, same, b"old", 0o600, true).unwrap();
                main.set_project(&main.caller, directory, Project { id, hands_down: true })
            };
            let is_canceled = matches!(done, Err(FsError::Canceled(_) | FsError::Parked(_)));
            assert!(is_canceled || (main_gives && isolation == Isolation::Serializable), "{done:?}");
        }
        // And so for space.
        let view = begin(&main, Isolation::Snapshot);
        let same = look(&view, ROOT, "f");
        main.set_project(&main.caller, file, Project { id: 9, hands_down: false }).unwrap();
        let done = view.write_at(same, 1 << 20, b"x").map(drop);
        assert!(matches!(done, Err(FsError::Canceled(_))), "{done:?}");
        main.assert_sound("apart");
    }
}

#[test]
fn restores_and_undo_bring_projects_back() {
    let store = Arc::new(ModelStore::new());
    store.keep_for_undo(8);
    let mut main = Setup::with(store, 100, MountOptions::default());
    on(&main);
    let (one, _) = (tree(&main, "one", 1), tree(&main, "two", 2));
    main.dir(one, "d");
    for name in ["f", "g"] {
        let file = main.file(one, name);
        main.write_at(file, 0, &[1; 5000]).unwrap();
    }
    main.store.create_snapshot("then").unwrap();
    let before = [has(&main, 1), has(&main, 2)];
    let change = |view: &Setup| {
        let (one, two) = (look(view, ROOT, "one"), look(view, ROOT, "two"));
        view.unlink(&view.caller, one, b"f").unwrap();
        let moved = look(view, one, "g");
        view.set_project(&view.caller, moved, Project { id: 2, hands_down: false }).unwrap();
        rename(view, (one, "g"), (two, "g"), RenameMode::Replace).unwrap();
        view.rmdir(&view.caller, one, b"d").unwrap();
        give(view, one, 3);
        view.file(one, "new");
    };
    let txn = begin(&main, Isolation::Snapshot);
    change(&txn);
    let id = txn.fs.txn().unwrap().id();
    commit(&txn.fs).unwrap();
    drop(txn);
    assert_eq!((has(&main, 3).1, id_of(&main, one), has(&main, 2).1), (2, 3, 2));
    // Where it was there is no room any more: what was is brought back at any rate.
    limit(&main, 1, |limits| (limits.inodes_hard, limits.bytes_hard) = (1, 4096));
    let undo = Undo::open(&main.fs, id).unwrap();
    let undoing = begin(&main, Isolation::Snapshot);
    let done = undo.plan(&undoing.fs, &Selection::default()).unwrap().carry_out().unwrap();
    assert!(matches!(done, TakenBack::Done(_)), "{done:?}");
    commit(&undoing.fs).unwrap();
    drop((undo, undoing));
    is_as_before(&mut main, before);
    change(&main);
    let then = main.fs.view_of(main.store.open_snapshot("then").unwrap()).unwrap();
    let restoring = begin(&main, Isolation::Snapshot);
    kvfs_fs::restore(&restoring.fs, &then).unwrap();
    commit(&restoring.fs).unwrap();
    drop((then, restoring));
    is_as_before(&mut main, before);
}

fn is_as_before(main: &mut Setup, before: [(i64, i64); 2]) {
    // What was removed is open no more.
    main.reopen();
    assert_eq!([has(main, 1), has(main, 2), has(main, 3)], [before[0], before[1], (0, 0)]);
    let (one, two) = (look(main, ROOT, "one"), look(main, ROOT, "two"));
    let d = look(main, one, "d");
    assert_eq!(main.project(&main.caller, d).unwrap(), Project { id: 1, hands_down: true });
    assert_eq!((id_of(main, one), id_of(main, look(main, one, "f"))), (1, 1));
    assert_eq!((id_of(main, two), id_of(main, look(main, one, "g"))), (2, 1));
    main.assert_sound("as before");
}

#[test]
fn branches_count_for_projects_when_they_are_merged() {
    let main = Setup::new(100);
    on(&main);
    let (top, other) = (tree(&main, "top", 7), main.dir(ROOT, "other"));
    let finish = |view: Setup| {
        view.branches().checkpoint().unwrap();
        drop(view);
        commit(&*kvfs_fs::begin_merge(&main.fs, &main.branch("try"), 1)?).map(drop)
    };
    let branch = || {
        main.fs.branches().create("try", 1000).unwrap();
        main.through(main.fs.open_branch("try").unwrap(), main.options)
    };
    let view = branch();
    let file = view.file(look(&view, ROOT, "top"), "f");
    view.write_at(file, 0, &[1; 5000]).unwrap();
    let inner = view.dir(look(&view, ROOT, "other"), "inner");
    give(&view, inner, 8);
    view.file(inner, "g");
    finish(view).unwrap();
    assert_eq!((has(&main, 7), has(&main, 8)), ((8192, 2), (0, 2)));
    // What came into a directory whose project has changed meanwhile is in the way.
    for main_gives in [true, false] {
        let view = branch();
        let (giver, maker) = if main_gives { (&main, &view) } else { (&view, &main) };
        give(giver, look(giver, ROOT, "other"), 9 + u32::from(main_gives));
        maker.file(look(maker, ROOT, "other"), if main_gives { "here" } else { "there" });
        let refused = finish(view);
        assert!(matches!(refused, Err(FsError::MergeRefused { .. })), "{refused:?}");
        main.fs.branches().delete(&main.branch("try")).unwrap();
    }
    assert_eq!((id_of(&main, top), id_of(&main, other)), (7, 10));
    main.assert_sound("merged");
}

#[test]
fn a_repair_knows_of_projects() {
    let mut setup = Setup::new(100);
    let top = tree(&setup, "top", 7);
    setup.file(top, "f");
    let meta = setup.store.open_keyspace("meta", kvfs_store::KeyspaceKind::Tuple, None).unwrap();
    let mut batch = Batch::new();
    batch.delete(meta, [&[0; 9][..], b"superblock"].concat());
    setup.store.apply(batch, Durability::Buffered).unwrap();
    let report = repair::repair(&setup.store, &*setup.clock, &[], false).unwrap();
    assert!(report.left.is_empty(), "{report:?}");
    assert_eq!(version(&*setup.store), 3);
    setup.reopen();
    on(&setup);
    assert_eq!(has(&setup, 7), (0, 2));
    setup.assert_sound("repaired");
}

#[test]
fn a_change_of_project_shows_in_comparisons_and_stands_in_the_way_of_undo() {
    let store = Arc::new(ModelStore::new());
    store.keep_for_undo(8);
    let main = Setup::with(store, 100, MountOptions::default());
    let top = main.dir(ROOT, "top");
    let txn = begin(&main, Isolation::Snapshot);
    give(&txn, look(&txn, ROOT, "top"), 7);
    let shown = kvfs_fs::diff(&txn.fs).unwrap();
    assert_eq!(shown.iter().map(|line| &line.place[..]).collect::<Vec<_>>(), [b"/top"]);
    let id = txn.fs.txn().unwrap().id();
    commit(&txn.fs).unwrap();
    give(&main, top, 8);
    let undo = Undo::open(&main.fs, id).unwrap();
    let obstacles =
        undo.plan(&begin(&main, Isolation::Snapshot).fs, &Selection::default()).unwrap().into_obstacles();
    assert_eq!(obstacles.len(), 1, "{obstacles:?}");
}

fn version(store: &dyn Store) -> u32 {
    let meta = store.open_keyspace("meta", kvfs_store::KeyspaceKind::Tuple, None).unwrap();
    let key = [&[0; 9][..], b"superblock"].concat();
    let record = store.get(meta, &key).unwrap().unwrap();
    u32::from_le_bytes(record[8..12].try_into().unwrap())
}

#[test]
fn superblock_of_a_store_with_projects_has_version_3() {
    for quotas_first in [true, false] {
        let db = engine::open(&engine::create(), 1 << 20, Background::Manual);
        let mut setup = Setup::with(Arc::clone(&db) as Arc<dyn Store>, 200, MountOptions::default());
        let file = setup.file(ROOT, "f");
        assert_eq!(setup.getxattr(&setup.caller, file, PROJECT_ATTRIBUTE).unwrap(), &b"0"[..]);
        setup.set_project(&setup.caller, file, Project::default()).unwrap();
        assert_eq!(version(&*db), 1, "nothing has one");
        if quotas_first {
            on(&setup);
            assert_eq!(version(&*db), 2);
        }
        give(&setup, ROOT, 4);
        assert_eq!(version(&*db), 3);
        setup.reopen();
        on(&setup);
        for number in 0..5000 {
            let name = format!("d{number}");
            let made = setup.mkdir(&setup.caller, ROOT, name.as_bytes(), 0o755).unwrap();
            setup.forget(made.node, 1);
        }
        assert_eq!((version(&*db), has(&setup, 4).1), (3, 5001));
        setup.reopen();
        assert_eq!(has(&setup, 4).1, 5001);
        setup.assert_sound("declared");
    }
}

#[test]
fn streams_carry_projects() {
    let of = |uuid| Setup::with(Arc::new(ModelStore::with_uuid([uuid; 16])), 200, MountOptions::default());
    let (source, mut target) = (of(1), of(2));
    on(&target);
    let send = |name: &str, from: Option<&str>| {
        source.store.create_snapshot(name).unwrap();
        let id = |name: &str| {
            let info = source.store.named_snapshots().into_iter().find(|info| info.name == name).unwrap();
            source.fs.snapshots().id(&info).unwrap()
        };
        SendStream::new(&source.fs, from.map(id).as_ref(), &id(name)).unwrap()
    };
    let receive = |target: &mut Setup, mut stream: SendStream| {
        let begin = stream.begin().clone();
        let mut bytes = Vec::new();
        while let Some(frame) = stream.next_frame().unwrap() {
            bytes.extend(frame);
        }
        let reader = StreamReader::new(begin.stream());
        Receiver::new(&target.fs).receive(reader, &mut &bytes[..], false).unwrap();
        target.reopen();
        begin.has_projects
    };
    source.file(ROOT, "plain");
    assert!(!receive(&mut target, send("first", None)));
    assert_eq!(version(&*target.store), 2);
    let top = tree(&source, "top", 7);
    let file = source.file(top, "f");
    source.write_at(file, 0, &[1; 5000]).unwrap();
    assert!(receive(&mut target, send("second", Some("first"))));
    assert_eq!((version(&*target.store), has(&target, 7)), (3, (8192, 2)));
    let top = look(&target, ROOT, "top");
    assert_eq!(target.project(&target.caller, top).unwrap(), Project { id: 7, hands_down: true });
    target.assert_sound("received");
}

/// An operation in one of a few trees; failures are a part of it.
fn something(on: &Setup, trees: &[NodeId], random: &mut Random) -> Result<()> {
    let some = |random: &mut Random| format!("n{}", random.below(8));
    let caller = on.caller.clone();
    let (from, to) = (trees[random.below(4) as usize], trees[random.below(4) as usize]);
    let (name, new) = (some(random), some(random));
    let known = |name: &str| on.lookup(&caller, from, name.as_bytes()).map(|entry| entry.node);
    match random.below(12) {
        0 | 1 => on.create(&caller, from, name.as_bytes(), 0o644, true).map(drop),
        2 => on.mkdir(&caller, from, name.as_bytes(), 0o755).map(drop),
        3 | 4 => {
            let data = Bytes::from(vec![1; random.below(30_000) as usize + 1]);
            on.write(&caller, known(&name)?, random.below(20_000), data, WriteFlags::default()).map(drop)
        }
        5 => {
            let mode = [RenameMode::Replace, RenameMode::Exchange][random.below(2) as usize];
            rename(on, (from, &name), (to, &new), mode)
        }
        6 => on.link(&caller, known(&name)?, to, new.as_bytes()).map(drop),
        7 => on.unlink(&caller, from, name.as_bytes()),
        8 => on.rmdir(&caller, from, name.as_bytes()),
        9 => {
            let project = Project { id: random.below(4) as u32, hands_down: random.one_in(2) };
            on.set_project(&caller, known(&name)?, project)
        }
        10 => {
            let node = on.tmpfile(&caller, from, 0o600, true)?.node;
            on.write_at(node, 0, &[1; 5000])?;
            if random.one_in(2) {
                on.link(&caller, node, to, new.as_bytes())?;
            }
            Ok(())
        }
        _ => {
            let project = Project { id: random.below(4) as u32, hands_down: true };
            on.set_project(&caller, to, project)
        }
    }
}

#[test]
fn usage_of_projects_is_exact_in_transactions_and_after_taking_them_back() {
    for seed in 1..=12 {
        let store = Arc::new(ModelStore::new());
        store.keep_for_undo(16);
        let mut main = Setup::with(store, 100, MountOptions::default());
        let mut random = Random::new(seed);
        on(&main);
        let names = ["t0", "t1", "t2", "t3"];
        for (index, name) in names.iter().enumerate() {
            tree(&main, name, index as u32);
        }
        limit(&main, 2, |limits| (limits.bytes_hard, limits.inodes_hard) = (60_000, 12));
        for round in 0..12 {
            let context = format!("seed {seed}, round {round}");
            let view = random.below(3).ne(&0).then(|| begin(&main, Isolation::Snapshot));
            let on = view.as_ref().unwrap_or(&main);
            let trees: Vec<NodeId> = names.iter().map(|name| look(on, ROOT, name)).collect();
            for _ in 0..60 {
                // Refused or not: what was refused left nothing.
                let _ = something(on, &trees, &mut random);
            }
            if let Some(view) = view {
                let id = view.fs.txn().unwrap().id();
                if random.one_in(4) {
                    view.fs.txn().unwrap().abort();
                } else if let Err(error) = commit(&view.fs) {
                    assert!(matches!(error, FsError::ProjectFull), "{context}: {error}");
                    view.fs.txn().unwrap().abort();
                } else if random.one_in(2) {
                    let undo = Undo::open(&main.fs, id).unwrap();
                    let undoing = begin(&main, Isolation::Snapshot);
                    let done = undo.plan(&undoing.fs, &Selection::default()).unwrap().carry_out().unwrap();
                    assert!(matches!(done, TakenBack::Done(_)), "{context}: {done:?}");
                    commit(&undoing.fs).unwrap();
                }
            }
            main.assert_sound(&context);
            if random.one_in(3) {
                main.housekeep().unwrap();
                main.assert_sound(&format!("{context}, swept"));
                main.reopen();
                main.assert_sound(&format!("{context}, opened again"));
            }
        }
        let shown = main.fs.quotas().report();
        main.fs.quotas().turn_off().unwrap();
        on(&main);
        let usage = |lines: &[kvfs_fs::QuotaLine]| {
            lines.iter().map(|line| (line.kind, line.id, line.usage)).collect::<Vec<_>>()
        };
        assert_eq!(usage(&main.fs.quotas().report()), usage(&shown), "seed {seed}: counted again");
    }
}
