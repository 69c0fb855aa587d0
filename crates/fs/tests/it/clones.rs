//! Clones of trees: the same again, of its own, all or nothing.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kvfs_fs::{
    Attr, Caller, CloneRights, Cloned, FallocateMode, FileSystem, FileType, FsError, Limits, NodeId, Project,
    QuotaKind, Result, SetAttr, TIER_ATTRIBUTE, TreeError, WriteFlags, XattrMode, clone_tree,
};
use kvfs_store::Isolation;

use crate::privileges::OUTSIDER;
use crate::setup::{Random, Setup, patiently};
use crate::snapshots::{Seen, Tree, tree};
use crate::tiers::told;
use crate::undo::{keeping, look, mess, over_the_engine, same, txn, undone, write};
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

/// Root's.
struct All;

impl CloneRights for All {
    fn is_everything(&self) -> bool {
        true
    }

    fn check_source(&self, _: NodeId, _: &Attr) -> Result<()> {
        Ok(())
    }

    fn owner_of(&self, attr: &Attr) -> (u32, u32) {
        (attr.uid, attr.gid)
    }

    fn is_alone(&self) -> bool {
        false
    }
}

pub(crate) fn clone(
    view: &FileSystem,
    from: (NodeId, &str),
    to: (NodeId, &str),
) -> Result<Cloned, TreeError> {
    let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
    let (cloned, told) = clone_tree(view, &Caller::default(), from, to, &All)?;
    assert!(told.entries.iter().any(|(_, name)| **name == *to.1));
    Ok(cloned)
}

/// What is below `top`, by paths from there. Names elsewhere don't count.
fn below(all: &Tree, top: &str) -> Tree {
    let cut = |path: &str| path.strip_prefix(top).map(str::to_owned);
    let is_below =
        |path: &&String| path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let mut below: Tree = all
        .iter()
        .filter(|(path, _)| is_below(path))
        .map(|(path, seen)| (cut(path).unwrap(), seen.clone()))
        .collect();
    let mut names: std::collections::BTreeMap<String, Vec<String>> = std::collections::BTreeMap::new();
    for (path, seen) in &below {
        names.entry(seen.first_name.clone()).or_default().push(path.clone());
    }
    for paths in names.values() {
        for path in paths {
            let seen: &mut Seen = below.get_mut(path).unwrap();
            seen.first_name.clone_from(&paths[0]);
            if seen.kind != FileType::Directory {
                seen.nlink = paths.len() as u32;
            }
        }
    }
    below
}

/// A tree with everything that there is, small and large.
fn grown(main: &Setup, random: &mut Random) -> NodeId {
    let top = main.dir(ROOT, "tree");
    mess(main, random, top, "n", 60);
    let caller = Caller::default();
    let (directory, empty) = (main.dir(top, "d"), main.dir(top, "empty"));
    for number in 0..600 {
        write(main, directory, &format!("{number:03}"), &format!("file {number}"));
    }
    write(main, directory, "zz", "the last one of them");
    let large = main.file(directory, "large");
    main.write_at(large, 0, &vec![7; 300 << 10]).unwrap();
    let sparse = main.file(directory, "sparse");
    main.write_at(sparse, 1 << 20, b"far").unwrap();
    main.fallocate(&caller, sparse, 1 << 40, 8192, FallocateMode::Allocate { keep_size: true }).unwrap();
    main.mknod(&caller, directory, b"fifo", 0o010_644, 0).unwrap();
    main.mknod(&caller, directory, b"device", 0o020_600, 0x103).unwrap();
    main.symlink(&caller, directory, b"link", b"../somewhere").unwrap();
    for (parent, name) in [(directory, "twice"), (empty, "thrice"), (ROOT, "outside")] {
        main.link(&caller, large, parent, name.as_bytes()).unwrap();
    }
    let set_id = SetAttr { mode: Some(0o4755), uid: Some(7), gid: Some(8), ..SetAttr::default() };
    main.setattr(&caller, look(main, directory, "000"), &set_id).unwrap();
    for (name, value) in [("user.note", "text"), ("security.capability", "cap"), ("trusted.own", "root's")] {
        let node = look(main, directory, "001");
        main.setxattr(&caller, node, name.as_bytes(), value.as_bytes(), XattrMode::Set).unwrap();
    }
    top
}

#[test]
fn a_clone_is_the_same_again_and_of_its_own() {
    let check = |main: &Setup, seed: u64, isolation: Isolation| {
        let mut random = Random::new(seed);
        main.fs.quotas().turn_on(&|_| {}).unwrap();
        grown(main, &mut random);
        let context = format!("seed {seed}");
        let view = begin(main, isolation);
        if seed.is_multiple_of(2) {
            // What the transaction has written itself comes along.
            let top = look(&view, ROOT, "tree");
            mess(&view, &mut random, top, "m", 20);
        }
        let mut source = below(&tree(&view).0, "/tree");
        let cloned = clone(&view, (ROOT, "tree"), (ROOT, "copy")).unwrap();
        assert_eq!(cloned.names, source.len() as u64, "{context}");
        assert!(cloned.bytes >= (1 << 20) + (300 << 10), "{context}: {cloned:?}");
        same(&below(&tree(&view).0, "/copy"), &source, &format!("{context}, in the view"));
        assert!(!tree(main).0.contains_key("/copy"), "{context}");
        commit(&view.fs).unwrap();
        drop(view);
        main.assert_sound(&context);
        let after = tree(main).0;
        // Views show no device numbers.
        let shown = std::mem::replace(&mut source, below(&after, "/tree"));
        assert!(shown.keys().eq(source.keys()), "{context}");
        same(&below(&after, "/copy"), &source, &context);
        // Each goes its own way, and a clone of a clone is one.
        txn(main, |view| {
            clone(view, (ROOT, "copy"), (look(view, ROOT, "copy"), "inside")).unwrap_err();
        });
        txn(main, |view| {
            clone(view, (ROOT, "copy"), (ROOT, "again")).unwrap();
        });
        let (top, copy) = (look(main, ROOT, "tree"), look(main, ROOT, "copy"));
        mess(main, &mut random, copy, "n", 40);
        let large = look(main, look(main, copy, "d"), "large");
        main.write_at(large, 100_000, b"changed").unwrap();
        let changed = below(&tree(main).0, "/copy");
        same(&below(&tree(main).0, "/tree"), &source, &format!("{context}, the copy has changed"));
        mess(main, &mut random, top, "n", 40);
        main.write_at(look(main, look(main, top, "d"), "large"), 0, b"other").unwrap();
        same(&below(&tree(main).0, "/copy"), &changed, &format!("{context}, the source has changed"));
        same(&below(&tree(main).0, "/again"), &source, &format!("{context}, both have changed"));
        main.assert_sound(&context);
    };
    for seed in 0..6 {
        let isolation = if seed % 3 == 0 { Isolation::Serializable } else { Isolation::Snapshot };
        check(&keeping(100), seed, isolation);
        check(&over_the_engine(if seed % 2 == 0 { 4 << 10 } else { 64 << 20 }), seed, isolation);
    }
}

#[test]
fn a_clone_can_be_taken_back() {
    for main in [keeping(100), over_the_engine(16 << 10)] {
        grown(&main, &mut Random::new(1));
        let before = tree(&main).0;
        let id = txn(&main, |view| {
            clone(view, (ROOT, "tree"), (ROOT, "copy")).unwrap();
        });
        undone(&main, id);
        same(&tree(&main).0, &before, "taken back");
        main.assert_sound("taken back");
        let view = begin(&main, Isolation::Snapshot);
        clone(&view, (ROOT, "tree"), (ROOT, "copy")).unwrap();
        drop(view);
        same(&tree(&main).0, &before, "dropped");
        main.assert_sound("dropped");
    }
}

#[test]
fn names_of_one_file_are_names_of_one_clone() {
    let main = over_the_engine(16 << 10);
    grown(&main, &mut Random::new(2));
    txn(&main, |view| {
        clone(view, (ROOT, "tree"), (ROOT, "copy")).unwrap();
        // One of several names alone is a file with one.
        clone(view, (ROOT, "outside"), (ROOT, "single")).unwrap();
    });
    let copy = look(&main, ROOT, "copy");
    let nodes =
        [look(&main, look(&main, copy, "d"), "large"), look(&main, look(&main, copy, "empty"), "thrice")];
    assert_eq!(nodes[0], nodes[1]);
    assert_ne!(nodes[0], look(&main, ROOT, "outside"));
    assert_eq!(main.getattr(&main.caller, nodes[0]).unwrap().nlink, 3);
    assert_eq!(main.getattr(&main.caller, look(&main, ROOT, "outside")).unwrap().nlink, 4);
    let single = look(&main, ROOT, "single");
    assert_eq!(main.getattr(&main.caller, single).unwrap().nlink, 1);
    assert_eq!(main.read_all(single), vec![7; 300 << 10]);
    main.assert_sound("cloned");
}

#[test]
fn what_makes_no_clone_is_refused() {
    let main = keeping(100);
    let top = main.dir(ROOT, "tree");
    let deep = main.dir(top, "deep");
    main.file(ROOT, "file");
    let error = |to: (NodeId, &str), from: &str| {
        let view = begin(&main, Isolation::Snapshot);
        // A view knows what it has looked up.
        look(&view, look(&view, ROOT, "tree"), "deep");
        look(&view, ROOT, "file");
        *clone(&view, (ROOT, from), to).unwrap_err().error
    };
    assert!(matches!(error((ROOT, "file"), "tree"), FsError::Exists));
    assert!(matches!(error((top, "in"), "tree"), FsError::Invalid(_)));
    assert!(matches!(error((deep, "in"), "tree"), FsError::Invalid(_)));
    assert!(matches!(error((ROOT, "new"), "none"), FsError::NotFound));
    assert!(matches!(error((look(&main, ROOT, "file"), "new"), "tree"), FsError::NotDirectory));
    assert!(matches!(error((ROOT, ".."), "tree"), FsError::Invalid(_)));
    let on_main = clone(&main, (ROOT, "tree"), (ROOT, "new")).unwrap_err();
    assert!(matches!(*on_main.error, FsError::Invalid(_)));
    main.fs.quotas().turn_on(&|_| {}).unwrap();
    let limits = Limits { inodes_hard: 8, ..Limits::default() };
    main.fs.quotas().set(QuotaKind::User, 1000, limits).unwrap();
    for number in 0..3 {
        main.file(deep, &format!("{number}"));
    }
    let view = begin(&main, Isolation::Snapshot);
    let caller = Caller { uid: 1000, gid: 100, ..Caller::default() };
    let user = User { asked: RefCell::default(), refuses: "no file" };
    let refused = clone_tree(&view.fs, &caller, (ROOT, b"tree"), (ROOT, b"new"), &user).unwrap_err();
    assert!(matches!(*refused.error, FsError::QuotaExceeded), "{refused:?}");
}

/// User 1000, whom one inode is refused, by its size.
struct User {
    asked: RefCell<Vec<u64>>,
    refuses: &'static str,
}

impl CloneRights for User {
    fn is_everything(&self) -> bool {
        false
    }

    fn check_source(&self, node: NodeId, attr: &Attr) -> Result<()> {
        self.asked.borrow_mut().push(node.0);
        if attr.kind == FileType::Regular && attr.size == self.refuses.len() as u64 {
            return Err(FsError::AccessDenied("not this one"));
        }
        Ok(())
    }

    fn owner_of(&self, attr: &Attr) -> (u32, u32) {
        (1000, attr.gid)
    }

    fn is_alone(&self) -> bool {
        true
    }
}

#[test]
fn privileges_of_others_do_not_come_along() {
    let main = over_the_engine(16 << 10);
    grown(&main, &mut Random::new(3));
    let caller = Caller { uid: 1000, gid: 100, ..Caller::default() };
    let user = User { asked: RefCell::default(), refuses: "no file has so many bytes" };
    txn(&main, |view| {
        clone_tree(&view.fs, &caller, (ROOT, b"tree"), (ROOT, b"copy"), &user).unwrap();
    });
    let all = tree(&main).0;
    let inodes: std::collections::BTreeSet<_> =
        below(&all, "/tree").values().map(|seen| seen.first_name.clone()).collect();
    let asked: std::collections::BTreeSet<_> = user.asked.borrow().iter().copied().collect();
    assert_eq!(asked.len(), inodes.len(), "each inode is asked for");
    let directory = look(&main, look(&main, ROOT, "copy"), "d");
    let attr = main.getattr(&main.caller, look(&main, directory, "000")).unwrap();
    assert_eq!((attr.uid, attr.gid, attr.mode), (1000, 8, 0o755));
    let names = main.listxattr(&Caller::default(), look(&main, directory, "001")).unwrap();
    assert_eq!(&names[..], b"user.note\0");
    main.assert_sound("cloned by a user");
    // In an open transaction a clone that is refused leaves nothing behind, however much of it was made.
    main.fs.quotas().turn_on(&|_| {}).unwrap();
    let before = tree(&main).0;
    let user = User { asked: RefCell::default(), refuses: "the last one of them" };
    let view = begin(&main, Isolation::Snapshot);
    write(&view, ROOT, "beside", "kept");
    let refused = clone_tree(&view.fs, &caller, (ROOT, b"tree"), (ROOT, b"other"), &user).unwrap_err();
    assert_eq!(String::from_utf8_lossy(&refused.below), "d/zz");
    commit(&view.fs).unwrap();
    drop(view);
    main.assert_sound("refused");
    let mut after = tree(&main).0;
    assert!(after.remove("/beside").is_some());
    after.insert("/".to_owned(), before["/"].clone());
    same(&after, &before, "refused");
}

/// What others do in the same view meanwhile: content that shrinks, grows and goes.
fn disturb(view: &FileSystem, directory: NodeId, is_over: &AtomicBool) {
    let (mut random, caller) = (Random::new(7), Caller::default());
    while !is_over.load(Ordering::Acquire) {
        let name = format!("{:03}", random.below(40));
        let Ok(entry) = view.lookup(&caller, directory, name.as_bytes()) else {
            drop(view.create(&caller, directory, name.as_bytes(), 0o644, true));
            continue;
        };
        let size = SetAttr { size: Some(random.below(3) * 9000), ..SetAttr::default() };
        // The view may be over by now.
        drop(match random.below(4) {
            0 => view.unlink(&caller, directory, name.as_bytes()),
            1 => view.setattr(&caller, entry.node, &size).map(drop),
            _ => {
                let data = vec![7; 5000].into();
                view.write(&caller, entry.node, random.below(100_000), data, WriteFlags::default()).map(drop)
            }
        });
        view.forget(entry.node, 1);
    }
}

#[test]
fn files_that_change_while_they_are_cloned_are_whole() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let main = over_the_engine(256 << 10);
        main.fs.quotas().turn_on(&|_| {}).unwrap();
        grown(&main, &mut Random::new(4));
        let view = begin(&main, isolation);
        let directory = look(&view, look(&view, ROOT, "tree"), "d");
        let (fs, is_over) = (&*view.fs, AtomicBool::new(false));
        thread::scope(|scope| {
            let disturber = scope.spawn(|| disturb(fs, directory, &is_over));
            for number in 0..8 {
                clone(&view, (ROOT, "tree"), (ROOT, &format!("copy{number}"))).unwrap();
            }
            is_over.store(true, Ordering::Release);
            disturber.join().unwrap();
        });
        commit(&view.fs).unwrap();
        drop(view);
        main.assert_sound(&format!("{isolation:?}"));
    }
}

#[test]
fn a_commit_comes_before_a_clone_or_behind_it() {
    for round in 0..12 {
        let main = over_the_engine(256 << 10);
        main.fs.quotas().turn_on(&|_| {}).unwrap();
        grown(&main, &mut Random::new(5));
        let view = begin(&main, Isolation::Snapshot);
        look(&view, look(&view, ROOT, "tree"), "d");
        let fs = &*view.fs;
        let cloned = thread::scope(|scope| {
            let cloner = scope.spawn(|| clone(fs, (ROOT, "tree"), (ROOT, "copy")).is_ok());
            for _ in 0..round * 50 {
                drop(view.getattr(&view.caller, ROOT));
            }
            // While it is under way there is no commit.
            while matches!(commit(&view.fs).map(drop), Err(FsError::Busy(_))) {}
            cloner.join().unwrap()
        });
        drop(view);
        assert_eq!(tree(&main).0.contains_key("/copy/d/zz"), cloned, "round {round}");
        main.assert_sound(&format!("round {round}"));
    }
}

/// Root's, whose clone meets other work whenever a source is asked for.
struct Beside<F> {
    work: F,
    is_alone: bool,
}

impl<F: Fn()> CloneRights for Beside<F> {
    fn is_everything(&self) -> bool {
        false
    }

    fn check_source(&self, _: NodeId, _: &Attr) -> Result<()> {
        (self.work)();
        Ok(())
    }

    fn owner_of(&self, attr: &Attr) -> (u32, u32) {
        (attr.uid, attr.gid)
    }

    fn is_alone(&self) -> bool {
        self.is_alone
    }
}

/// Two others work in a view, and all the time a commit of it is tried.
fn work_and_commit(view: &Setup) {
    let (fs, caller) = (&*view.fs, &view.caller);
    let work = |number: u32| {
        for round in 0..500 {
            let name = format!("{number}-{round}");
            patiently(caller, |caller| fs.create(caller, ROOT, name.as_bytes(), 0o644, true)).unwrap();
        }
    };
    thread::scope(|scope| {
        let workers = [0, 1].map(|number| scope.spawn(move || work(number)));
        while workers.iter().any(|worker| !worker.is_finished()) {
            let refused = commit(fs);
            assert!(matches!(refused, Err(FsError::Busy(_))), "{refused:?}");
        }
    });
}

#[test]
fn commit_that_a_clone_is_in_the_way_of_disturbs_nothing() {
    let main = over_the_engine(256 << 10);
    write(&main, main.dir(ROOT, "tree"), "file", "text");
    let view = begin(&main, Isolation::Snapshot);
    let was_asked = Cell::new(false);
    let work = || {
        if !was_asked.replace(true) {
            work_and_commit(&view);
        }
    };
    let rights = Beside { work, is_alone: false };
    clone_tree(&view.fs, &Caller::default(), (ROOT, b"tree"), (ROOT, b"copy"), &rights).unwrap();
    commit(&view.fs).unwrap();
    drop(view);
    let all = tree(&main).0;
    assert!(["/copy/file", "/0-499", "/1-499"].iter().all(|path| all.contains_key(*path)));
    main.assert_sound("committed");
}

#[test]
fn clone_that_fails_leaves_no_wish_for_a_tier() {
    let main = over_the_engine(16 << 10);
    let top = main.dir(ROOT, "tree");
    main.setxattr(&main.caller, top, TIER_ATTRIBUTE, b"slow", XattrMode::Set).unwrap();
    for number in 0..600 {
        write(&main, top, &format!("{number:03}"), "text");
    }
    write(&main, top, "zz", "the last one of them");
    let wishes = told(&main.store);
    assert_eq!(wishes.len(), 601);
    let caller = Caller { uid: 1000, gid: 100, ..Caller::default() };
    let user = User { asked: RefCell::default(), refuses: "the last one of them" };
    let view = begin(&main, Isolation::Snapshot);
    clone_tree(&view.fs, &caller, (ROOT, b"tree"), (ROOT, b"copy"), &user).unwrap_err();
    commit(&view.fs).unwrap();
    drop(view);
    assert_eq!(told(&main.store), wishes);
    main.assert_sound("refused");
}

#[test]
fn checkpoint_of_a_branch_comes_before_a_clone_or_behind_it() {
    for is_kept in [false, true] {
        let main = over_the_engine(256 << 10);
        grown(&main, &mut Random::new(5));
        main.fs.branches().create("b", 1000).unwrap();
        let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
        write(&branch, ROOT, "beside", "text");
        branch.branches().checkpoint().unwrap();
        let asked = Cell::new(0);
        let work = || {
            asked.set(asked.get() + 1);
            let done = branch.branches().checkpoint();
            assert!(matches!(done, Err(FsError::Busy(_))), "{done:?}");
        };
        let rights = Beside { work, is_alone: false };
        let (source, target) = ((ROOT, &b"tree"[..]), (ROOT, &b"copy"[..]));
        clone_tree(&branch.fs, &Caller::default(), source, target, &rights).unwrap();
        assert!(asked.get() > 100);
        if is_kept {
            branch.branches().checkpoint().unwrap();
        }
        // A crash takes what was not checkpointed.
        drop(branch);
        commit(&kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1).unwrap()).unwrap();
        assert!(tree(&main).0.contains_key("/beside"));
        assert_eq!(tree(&main).0.contains_key("/copy/d/zz"), is_kept);
        main.assert_sound("merged");
    }
}

#[test]
fn large_copies_are_clones() {
    for in_view in [false, true] {
        let main = over_the_engine(1 << 20);
        main.fs.quotas().turn_on(&|_| {}).unwrap();
        let caller = Caller::default();
        let source = main.file(ROOT, "source");
        let mut random = Random::new(9);
        let mut content: Vec<u8> = (0..20 << 20).map(|_| random.below(256) as u8).collect();
        content.extend_from_slice(b"a tail that is no block");
        for (at, part) in content.chunks(1 << 20).enumerate() {
            main.write_at(source, (at as u64) << 20, part).unwrap();
        }
        let holes = main.file(ROOT, "holes");
        main.write_at(holes, 5 << 20, b"middle").unwrap();
        main.write_at(holes, (30 << 20) + 5, b"end").unwrap();
        let target = main.file(ROOT, "target");
        main.setattr(&caller, target, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }).unwrap();
        let view = if in_view {
            begin(&main, Isolation::Serializable)
        } else {
            main.through(main.fs.clone(), main.options)
        };
        for name in ["source", "holes", "target"] {
            look(&view, ROOT, name);
        }
        let user = Caller { uid: 1000, gid: 100, credentials: Some(&OUTSIDER), ..Caller::default() };
        let undoable = kvfs_fs::undo_points(&*main.store).len();
        let copied = view.copy_file_range(&user, source, 0, target, 0, u64::MAX >> 2).unwrap();
        assert_eq!(copied.bytes, content.len() as u64, "in one call");
        assert!(view.read_all(target) == content);
        assert_eq!(view.getattr(&caller, target).unwrap().mode, 0o755, "set-id bits go");
        // Behind the end, in blocks: with a hole between. In the middle it is a copy.
        let copied = view.copy_file_range(&user, holes, 0, target, 24 << 20, 1 << 30).unwrap();
        assert_eq!(copied.bytes, (30 << 20) + 8);
        let copied = view.copy_file_range(&user, source, 0, target, 0, 1 << 30).unwrap();
        assert!(copied.bytes <= 4 << 20);
        // A part of a block is not cloned.
        let part = view.create(&view.caller, ROOT, b"part", 0o644, true).unwrap().0.node;
        let copied = view.copy_file_range(&user, source, 4096, part, 4096, (17 << 20) + 7).unwrap();
        assert_eq!(copied.bytes, 17 << 20);
        view.write_at(source, 0, b"changed").unwrap();
        let found = view.read_all(target);
        assert!(
            found[..content.len()] == content && found[content.len()..24 << 20].iter().all(|&byte| byte == 0)
        );
        assert!(found[24 << 20..] == view.read_all(holes));
        assert!(view.read_all(part)[4096..] == content[4096..][..17 << 20]);
        if in_view {
            commit(&view.fs).unwrap();
        } else {
            assert_eq!(
                kvfs_fs::undo_points(&*main.store).len(),
                undoable,
                "it is no transaction of a user's"
            );
        }
        drop(view);
        main.assert_sound("copied");
        assert!(main.read_all(target) == found);
    }
}

#[test]
fn large_copy_that_waits_for_one_transaction_after_another_is_called_again() {
    let main = over_the_engine(1 << 20);
    let (source, target) = (main.file(ROOT, "source"), main.file(ROOT, "target"));
    for at in 0..17 {
        main.write_at(source, at << 20, &vec![3; 1 << 20]).unwrap();
    }
    let changing = |set: SetAttr| {
        let view = begin(&main, Isolation::Snapshot);
        let node = look(&view, ROOT, "target");
        view.setattr(&view.caller, node, &set).unwrap();
        view
    };
    let first = changing(SetAttr { size: Some(1 << 30), ..SetAttr::default() });
    let second = changing(SetAttr { mode: Some(0o600), ..SetAttr::default() });
    let copy = |caller: &Caller| main.fs.copy_file_range(caller, source, 0, target, 0, 17 << 20);
    let Err(FsError::Parked(ticket)) = copy(&main.caller) else { panic!("the size is changed") };
    assert!(!ticket.is_ready());
    first.txn().unwrap().abort();
    assert!(ticket.is_ready());
    let again = Caller { ticket: Some(ticket), ..main.caller.clone() };
    let Err(FsError::Parked(ticket)) = copy(&again) else { panic!("the mode is changed") };
    assert!(!ticket.is_ready());
    second.txn().unwrap().abort();
    assert!(ticket.is_ready(), "the copy waits for nothing");
    assert_eq!(copy(&again).unwrap().bytes, 17 << 20);
    main.assert_sound("copied");
}

#[test]
fn large_copy_of_what_a_transaction_changes_is_a_copy_and_dooms_nothing() {
    const LEN: u64 = 17 << 20;
    let main = over_the_engine(1 << 20);
    let source = main.file(ROOT, "source");
    for at in 0..17 {
        main.write_at(source, at << 20, &vec![7; 1 << 20]).unwrap();
    }
    let copy_into = |target| main.copy_file_range(&main.caller, source, 0, target, 0, LEN).unwrap().bytes;
    let targets = ["overwritten", "longer", "emptied"].map(|name| main.file(ROOT, name));
    for (number, &target) in targets.iter().enumerate() {
        let view = begin(&main, Isolation::Snapshot);
        look(&view, ROOT, "source");
        let changed = match number {
            0 => view.write_at(source, 1 << 20, b"overwritten").map(drop),
            1 => view.write_at(source, LEN, b"longer").map(drop),
            _ => {
                let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                view.setattr(&view.caller, source, &empty).map(drop)
            }
        };
        changed.unwrap();
        let before = main.read_all(source);
        assert_eq!(copy_into(target), 4 << 20);
        assert!(main.read_all(target) == before[..4 << 20]);
        main.clock.advance(Duration::from_secs(2));
        main.admission().tick();
        commit(&view.fs).unwrap();
    }
    assert_eq!(copy_into(main.file(ROOT, "behind")), 0);
    main.assert_sound("copied");
}

/// It reads what the transaction began with.
#[test]
fn large_copy_in_a_transaction_is_a_clone_while_another_one_changes_the_source() {
    let main = over_the_engine(1 << 20);
    let (source, target) = (main.file(ROOT, "source"), main.file(ROOT, "target"));
    for at in 0..17 {
        main.write_at(source, at << 20, &vec![7; 1 << 20]).unwrap();
    }
    let view = begin(&main, Isolation::Snapshot);
    look(&view, ROOT, "source");
    view.setattr(&view.caller, source, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    let other = begin(&main, Isolation::Snapshot);
    for name in ["source", "target"] {
        look(&other, ROOT, name);
    }
    let copied = other.copy_file_range(&other.caller, source, 0, target, 0, 1 << 30).unwrap();
    assert_eq!(copied.bytes, 17 << 20);
    commit(&view.fs).unwrap();
    assert!(other.read_all(target) == vec![7; 17 << 20]);
    commit(&other.fs).unwrap();
    main.assert_sound("copied");
}

#[test]
fn what_is_there_is_allocated_without_space() {
    let main = over_the_engine(1 << 20);
    let file = main.file(ROOT, "file");
    let available = || main.store.space().available_bytes;
    let mut size = 0;
    while size <= available() {
        main.write_at(file, size, &vec![7; 1 << 20]).unwrap();
        size += 1 << 20;
    }
    let mode = FallocateMode::Allocate { keep_size: false };
    main.fallocate(&main.caller, file, 0, size, mode).unwrap();
    let most = size + available() / 4096 * 4096;
    main.fallocate(&main.caller, file, 0, most, mode).unwrap();
    let refused = main.fallocate(&main.caller, file, 0, most + (1 << 20), mode);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
}

#[test]
fn small_directories_are_cloned_many_at_once() {
    const DIRECTORIES: usize = 300;
    let main = over_the_engine(256 << 10);
    let top = main.dir(ROOT, "tree");
    for number in 0..DIRECTORIES {
        let directory = main.dir(top, &format!("{number:03}"));
        write(&main, directory, "file", &"content in blocks ".repeat(300));
    }
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let view = begin(&main, isolation);
        clone(&view, (ROOT, "tree"), (ROOT, "copy")).unwrap();
        // Each is looked through by all that comes behind it, so that one for each directory took time by its
        // square.
        let batches = view.txn().unwrap().stats().batches;
        assert!(batches < DIRECTORIES as u64 / 2, "{batches} batches and runs for {DIRECTORIES} directories");
        let all = tree(&view).0;
        same(&below(&all, "/copy"), &below(&all, "/tree"), "in the view");
    }
}

#[test]
fn content_of_files_with_several_names_is_not_kept_in_memory() {
    const FILES: u64 = 2000;
    const BYTES: usize = 180;
    let main = keeping(100);
    let (top, outside) = (main.dir(ROOT, "tree"), main.dir(ROOT, "outside"));
    for number in 0..FILES {
        let name = format!("a{number:04}");
        write(&main, top, &name, &"x".repeat(BYTES));
        let places = [(top, format!("b{number:04}")), (outside, name.clone())];
        for (parent, other) in &places[..=(number % 2) as usize] {
            main.link(&Caller::default(), look(&main, top, &name), *parent, other.as_bytes()).unwrap();
        }
    }
    let view = begin(&main, Isolation::Snapshot);
    let bytes_written = Cell::new(0);
    let work = || bytes_written.set(view.fs.txn().unwrap().stats().bytes_written);
    let rights = Beside { work, is_alone: true };
    clone_tree(&view.fs, &Caller::default(), (ROOT, b"tree"), (ROOT, b"copy"), &rights).unwrap();
    let before_the_end = bytes_written.get();
    assert!(before_the_end > FILES / 2 * BYTES as u64, "{before_the_end} bytes written before the end");
    commit(&view.fs).unwrap();
    drop(view);
    let all = tree(&main).0;
    same(&below(&all, "/copy"), &below(&all, "/tree"), "committed");
    main.assert_sound("committed");
}

/// Does something when the clone of the top is begun.
struct AtBegin<F> {
    act: RefCell<Option<F>>,
    is_alone: bool,
}

impl<F: FnOnce()> CloneRights for AtBegin<F> {
    fn is_everything(&self) -> bool {
        false
    }

    fn check_source(&self, _: NodeId, _: &Attr) -> Result<()> {
        Ok(())
    }

    fn owner_of(&self, attr: &Attr) -> (u32, u32) {
        if let Some(act) = self.act.take() {
            act();
        }
        (attr.uid, attr.gid)
    }

    fn is_alone(&self) -> bool {
        self.is_alone
    }
}

#[test]
fn clone_into_a_directory_whose_project_changes_meanwhile_is_refused_and_leaves_nothing() {
    let project = |id| Project { id, hands_down: id != 0 };
    for (before, after) in [(0, 7), (7, 8), (7, 0)] {
        for source in ["tree", "file"] {
            for is_alone in [true, false] {
                let context = format!("{source} from {before} to {after}, alone: {is_alone}");
                let main = over_the_engine(256 << 10);
                main.fs.quotas().turn_on(&|_| {}).unwrap();
                write(&main, main.dir(ROOT, "tree"), "file", "text");
                write(&main, ROOT, "file", "text");
                let to = main.dir(ROOT, "to");
                main.set_project(&main.caller, to, project(before)).unwrap();
                let view = begin(&main, Isolation::Snapshot);
                let to = look(&view, ROOT, "to");
                let act = || view.set_project(&view.caller, to, project(after)).unwrap();
                let rights = AtBegin { act: RefCell::new(Some(act)), is_alone };
                let place = (to, &b"copy"[..]);
                let cloned = clone_tree(&view.fs, &view.caller, (ROOT, source.as_bytes()), place, &rights);
                let error = cloned.expect_err(&context);
                assert!(matches!(*error.error, FsError::OtherProject), "{context}: {error:?}");
                // As it is now, it gets its clone.
                clone(&view, (ROOT, source), (to, "another")).unwrap();
                commit(&view.fs).unwrap();
                drop(view);
                let all = tree(&main).0;
                assert!(!all.contains_key("/to/copy"), "{context}");
                let top = look(&main, look(&main, ROOT, "to"), "another");
                assert_eq!(main.project(&main.caller, top).unwrap().id, after, "{context}");
                main.assert_sound(&context);
                let inodes = |id| main.fs.quotas().get(QuotaKind::Project, id).unwrap().usage.inodes;
                let made = if source == "tree" { 2 } else { 1 };
                for id in [7, 8] {
                    let of_parent = i64::from(id == after);
                    assert_eq!(inodes(id), of_parent * (1 + made), "{context}: project {id}");
                }
            }
        }
    }
}

/// What a clone has asked for: directories that it knows of, and of which it has come to nothing yet.
#[derive(Default)]
struct Asked {
    times: HashMap<u64, usize>,
    waiting: HashSet<u64>,
    most_waiting: usize,
}

struct Watching<'a> {
    asked: RefCell<Asked>,
    /// Directories, by what is in them.
    above: &'a HashMap<u64, u64>,
    is_alone: bool,
}

impl CloneRights for Watching<'_> {
    fn is_everything(&self) -> bool {
        false
    }

    fn check_source(&self, node: NodeId, attr: &Attr) -> Result<()> {
        let mut asked = self.asked.borrow_mut();
        *asked.times.entry(node.0).or_default() += 1;
        if let Some(above) = self.above.get(&node.0) {
            asked.waiting.remove(above);
        }
        if attr.kind == FileType::Directory {
            asked.waiting.insert(node.0);
        }
        asked.most_waiting = asked.most_waiting.max(asked.waiting.len());
        Ok(())
    }

    fn owner_of(&self, attr: &Attr) -> (u32, u32) {
        (attr.uid, attr.gid)
    }

    fn is_alone(&self) -> bool {
        self.is_alone
    }
}

#[test]
fn clone_of_a_deep_and_wide_tree_knows_a_page_of_directories_and_asks_once_for_each_name() {
    const DEPTH: usize = 50;
    const WIDTH: usize = 60;
    // As the walk reads at once.
    const PAGE: usize = 1024;
    let main = over_the_engine(256 << 10);
    let mut above = HashMap::new();
    let top = main.dir(ROOT, "tree");
    let mut directory = top;
    for _ in 0..DEPTH {
        let mut next = directory;
        for number in 0..WIDTH {
            let below = main.dir(directory, &format!("d{number:02}"));
            above.insert(below.0, directory.0);
            above.insert(main.file(below, "a").0, below.0);
            next = if number == 0 { below } else { next };
        }
        directory = next;
    }
    for is_alone in [true, false] {
        let view = begin(&main, Isolation::Snapshot);
        let rights = Watching { asked: RefCell::default(), above: &above, is_alone };
        clone_tree(&view.fs, &Caller::default(), (ROOT, b"tree"), (ROOT, b"copy"), &rights).unwrap();
        let Asked { times, most_waiting, .. } = rights.asked.into_inner();
        assert!(most_waiting <= PAGE + 1, "{most_waiting} directories were known at once");
        assert_eq!(times.len(), above.len() + 1);
        assert!(times.values().all(|&times| times == 1), "a name is read again");
        let all = tree(&view).0;
        same(&below(&all, "/copy"), &below(&all, "/tree"), "in the view");
    }
}
