//! Transactions over files: what is seen, what is refused, and what a commit does to nodes that the main line
//! knows. Each promise at both isolation levels where it holds at both.

use std::collections::HashSet;
use std::sync::Arc;

use kvfs_fs::{
    Append, Attr, BeginOptions, Caller, ChangedNames, FileSystem, FoundByNames, FsError, Invalidations,
    NodeId, Owner, RenameMode, Result, Rival, SetAttr, WriteFlags, XattrMode, remove_found, rename_found,
};
use kvfs_store::{Durability, Isolation};

use crate::setup::{Setup, patiently};

const ROOT: NodeId = NodeId::ROOT;
const BOTH: [Isolation; 2] = [Isolation::Snapshot, Isolation::Serializable];

pub(crate) fn begin(main: &Setup, isolation: Isolation) -> Setup {
    let options = BeginOptions {
        isolation,
        owner: Owner { uid: 1000, pid: 1, name: "test".into() },
        ..BeginOptions::default()
    };
    main.through(main.fs.begin(&options).unwrap(), main.options)
}

pub(crate) fn commit(view: &FileSystem) -> Result<Invalidations> {
    let planned = view.expect_txn()?.freeze()?.plan()?;
    planned.commit(|| ()).map(|committed| committed.invalidations)
}

fn look(view: &Setup, parent: NodeId, name: &str) -> Result<(NodeId, Attr)> {
    let entry = view.lookup(&view.caller, parent, name.as_bytes())?;
    Ok((entry.node, entry.attr))
}

fn exists(view: &Setup, parent: NodeId, name: &str) -> bool {
    match look(view, parent, name) {
        Ok((node, _)) => {
            view.forget(node, 1);
            true
        }
        Err(FsError::NotFound) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The content, as a reader sees it that comes by the name.
fn content(view: &Setup, parent: NodeId, name: &str) -> Vec<u8> {
    let (node, _) = look(view, parent, name).unwrap();
    let content = view.read_all(node);
    view.forget(node, 1);
    content
}

fn names(view: &Setup, directory: NodeId) -> Vec<String> {
    let listed = view.list(directory, 3, false).into_iter();
    let names = listed.map(|entry| String::from_utf8(entry.name).unwrap());
    names.filter(|name| name != "." && name != "..").collect()
}

fn is_canceled<T>(result: &Result<T>) -> bool {
    matches!(result, Err(FsError::Canceled(_)))
}

pub(crate) fn is_parked<T>(result: &Result<T>) -> bool {
    matches!(result, Err(FsError::Parked(_)))
}

fn rename(view: &Setup, from: (NodeId, &str), to: (NodeId, &str)) -> Result<()> {
    let mode = RenameMode::Replace;
    view.rename(&view.caller, from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), mode)
}

#[test]
fn writes_of_a_transaction_are_seen_by_it_alone() {
    for isolation in BOTH {
        let main = Setup::new(100);
        let old = main.file(ROOT, "old");
        main.write_at(old, 0, b"before").unwrap();
        let view = begin(&main, isolation);
        for size in [50, 10_000] {
            let name = format!("new-{size}");
            let dir = view.dir(ROOT, &format!("dir-{size}"));
            let file = view.file(dir, &name);
            view.write_at(file, 0, &vec![7; size]).unwrap();
            assert_eq!(content(&view, dir, &name), vec![7; size]);
        }
        let (old_there, _) = look(&view, ROOT, "old").unwrap();
        view.write_at(old_there, 3, b"ly").unwrap();
        rename(&view, (ROOT, "old"), (ROOT, "moved")).unwrap();
        assert_eq!(content(&view, ROOT, "moved"), b"beflye");
        assert_eq!(names(&view, ROOT), ["dir-10000", "dir-50", "moved"]);

        assert_eq!(names(&main, ROOT), ["old"]);
        assert_eq!(content(&main, ROOT, "old"), b"before");
        assert!(!exists(&main, ROOT, "moved") && !exists(&main, ROOT, "dir-50"));
        let second = begin(&main, Isolation::Snapshot);
        assert_eq!(names(&second, ROOT), ["old"]);
        drop((second, view));
        main.assert_sound("after both were dropped");
        assert_eq!(names(&main, ROOT), ["old"]);
    }
}

#[test]
fn a_commit_appears_on_the_main_line_whole() {
    for isolation in BOTH {
        let main = Setup::new(100);
        let dir = main.dir(ROOT, "dir");
        let (kept, gone, moved) = (main.file(dir, "kept"), main.file(dir, "gone"), main.file(dir, "moved"));
        for file in [kept, gone, moved] {
            main.write_at(file, 0, b"small").unwrap();
        }
        assert!(!exists(&main, dir, "new"));
        let entries_before = main.getattr(&main.caller, dir).unwrap().size;

        let view = begin(&main, isolation);
        let (vdir, _) = look(&view, ROOT, "dir").unwrap();
        let (vkept, _) = look(&view, vdir, "kept").unwrap();
        view.write_at(vkept, 0, &vec![9; 20_000]).unwrap();
        view.setattr(&view.caller, vkept, &SetAttr { mode: Some(0o700), ..SetAttr::default() }).unwrap();
        view.setxattr(&view.caller, vkept, b"user.a", b"v", XattrMode::Set).unwrap();
        view.unlink(&view.caller, vdir, b"gone").unwrap();
        let sub = view.dir(vdir, "sub");
        let new = view.file(sub, "new");
        view.write_at(new, 0, b"fresh").unwrap();
        rename(&view, (vdir, "moved"), (sub, "moved")).unwrap();
        let invalidations = commit(&view).unwrap();

        // Nodes that the main line knew show the new state at once.
        let attr = main.getattr(&main.caller, kept).unwrap();
        assert_eq!((attr.size, attr.mode), (20_000, 0o700));
        assert_eq!(main.read_all(kept), vec![9; 20_000]);
        assert_eq!(main.getxattr(&main.caller, kept, b"user.a").unwrap(), "v");
        assert_eq!(main.getattr(&main.caller, gone).unwrap().nlink, 0);
        assert_eq!(main.read_all(gone), b"small", "it is open, so it lives on");
        assert_eq!(main.read_all(moved), b"small");
        assert_eq!(names(&main, dir), ["kept", "sub"]);
        let attr = main.getattr(&main.caller, dir).unwrap();
        assert_eq!((attr.size, attr.nlink), (entries_before - 1, 3));
        let (main_sub, _) = look(&main, dir, "sub").unwrap();
        assert_eq!(content(&main, main_sub, "new"), b"fresh");
        assert_eq!(look(&main, main_sub, "moved").unwrap().0, moved);
        main.write_at(moved, 5, b"er").unwrap();
        assert_eq!(content(&main, main_sub, "moved"), b"smaller");

        // The kernel is told about all that it may know.
        let told: Vec<NodeId> = invalidations.nodes.iter().map(|(node, _)| *node).collect();
        assert!([dir, kept, gone, moved].iter().all(|node| told.contains(node)), "{told:?}");
        let entries: Vec<&[u8]> = invalidations
            .entries
            .iter()
            .filter(|(node, _)| *node == dir)
            .map(|(_, name)| &name[..])
            .collect();
        assert!([&b"gone"[..], b"moved", b"sub"].iter().all(|name| entries.contains(name)), "{entries:?}");
        drop(view);
        main.forget(gone, 1);
        main.housekeep().unwrap();
        main.assert_sound("after the commit");
    }
}

#[test]
fn names_of_a_large_commit_are_told_without_being_held() {
    let main = Setup::new(100);
    let dir = main.dir(ROOT, "dir");
    let unknown = main.dir(ROOT, "unknown");
    main.dir(dir, "moves");
    main.file(dir, "goes");
    main.forget(unknown, 1);

    let view = begin(&main, Isolation::Snapshot);
    let (in_view, _) = look(&view, ROOT, "dir").unwrap();
    let (unknown, _) = look(&view, ROOT, "unknown").unwrap();
    let mut wanted = HashSet::new();
    for number in 0..20_000 {
        let name = format!("{number}");
        view.file(in_view, &name);
        wanted.insert((name, false));
    }
    view.unlink(&view.caller, in_view, b"goes").unwrap();
    rename(&view, (in_view, "moves"), (in_view, "moved")).unwrap();
    view.file(unknown, "not told");
    wanted.extend([("goes".to_owned(), false), ("moves".to_owned(), true), ("moved".to_owned(), false)]);
    let Invalidations { entries, moved, many, .. } = commit(&view).unwrap();

    assert!(entries.is_empty() && moved.is_empty(), "{} names held", entries.len() + moved.len());
    let many = many.expect("there are many");
    assert_eq!(many.directories().collect::<Vec<_>>(), [dir]);
    let mut told = HashSet::new();
    for ((directory, name), has_moved) in many {
        assert_eq!(directory, dir);
        assert!(told.insert((String::from_utf8(name.into()).unwrap(), has_moved)), "told twice");
    }
    assert_eq!(told, wanted);
}

#[test]
fn an_ended_view_is_stale() {
    let main = Setup::new(100);
    for ends_well in [false, true] {
        let view = begin(&main, Isolation::Snapshot);
        let file = view.file(ROOT, if ends_well { "committed" } else { "aborted" });
        if ends_well {
            commit(&view).unwrap();
        } else {
            view.txn().unwrap().abort();
        }
        assert!(matches!(view.getattr(&view.caller, file), Err(FsError::ViewEnded(_))));
        let again = view.create(&view.caller, ROOT, b"late", 0o644, true);
        assert!(matches!(again, Err(FsError::ViewEnded(_))));
        assert!(matches!(view.expect_txn().unwrap().freeze(), Err(FsError::ViewEnded(_))));
        view.txn().unwrap().abort();
    }
    assert_eq!(names(&main, ROOT), ["committed"]);
    assert!(main.admission().transactions().is_empty());
    main.assert_sound("after the end");
}

#[test]
fn the_first_updater_wins_and_no_update_is_lost() {
    for isolation in BOTH {
        let main = Setup::new(100);
        let file = main.file(ROOT, "counter");
        main.write_at(file, 0, b"1").unwrap();
        let (first, second) = (begin(&main, isolation), begin(&main, isolation));
        let (a, _) = look(&first, ROOT, "counter").unwrap();
        let b = (isolation == Isolation::Snapshot).then(|| look(&second, ROOT, "counter").unwrap().0);
        first.write_at(a, 0, b"2").unwrap();
        if let Some(b) = b {
            // The second waits for the lock, and is too late when it gets it.
            assert!(is_parked(&second.write_at(b, 0, b"3")));
            commit(&first).unwrap();
            assert!(is_canceled(&second.write_at(b, 0, b"3")));
            assert!(is_canceled(&second.expect_txn().unwrap().freeze()));
        } else {
            // Reading waits, and sees the new state.
            assert!(is_parked(&look(&second, ROOT, "counter").and_then(|(b, _)| {
                let mut buffer = [0; 1];
                second.read(&second.caller, b, 0, &mut buffer)
            })));
            commit(&first).unwrap();
            assert_eq!(content(&second, ROOT, "counter"), b"2");
        }
        drop((first, second));
        assert_eq!(content(&main, ROOT, "counter"), b"2");
        main.assert_sound("after the conflict");
    }
}

#[test]
fn a_change_on_the_main_line_after_the_snapshot_is_a_conflict() {
    let main = Setup::new(100);
    let file = main.file(ROOT, "f");
    main.write_at(file, 0, b"one").unwrap();
    let view = begin(&main, Isolation::Snapshot);
    main.write_at(file, 0, b"two").unwrap();
    assert_eq!(content(&view, ROOT, "f"), b"one", "the snapshot stays");
    let (node, _) = look(&view, ROOT, "f").unwrap();
    assert!(is_canceled(&view.write_at(node, 0, b"six")));
    assert_eq!(content(&main, ROOT, "f"), b"two");
}

#[test]
fn conflict_names_the_process_that_changed_the_main_line() {
    let main = Setup::new(100);
    let (small, large) = (main.file(ROOT, "small"), main.file(ROOT, "large"));
    main.write_at(small, 0, b"one").unwrap();
    main.write_at(large, 0, &[1; 12_000]).unwrap();
    let rival_of = |change: &dyn Fn(&Setup), meet: &dyn Fn(&Setup) -> Result<()>| {
        let view = begin(&main, Isolation::Snapshot);
        let mut by_another = main.through(Arc::clone(&main.fs), main.options);
        by_another.caller.pid = 4711;
        change(&by_another);
        match meet(&view) {
            Err(FsError::Canceled(doom)) => doom.rival,
            other => panic!("{other:?}"),
        }
    };
    let node = |view: &Setup, name: &str| look(view, ROOT, name).unwrap().0;
    let write = |view: &Setup, name: &str| view.write_at(node(view, name), 0, b"six").map(drop);
    let found = Some(Rival::Main { pid: 4711 });
    let words = || main.fs.lock_words().party(&Rival::Main { pid: 4711 });
    let by_row = rival_of(&|main| write(main, "small").unwrap(), &|view| write(view, "small"));
    assert_eq!(by_row, found, "the content is in the row");
    let by_block = rival_of(&|main| write(main, "large").unwrap(), &|view| write(view, "large"));
    assert_eq!(by_block, found, "the content is in blocks");
    let made = |setup: &Setup| setup.create(&setup.caller, ROOT, b"made", 0o644, true).map(drop);
    assert_eq!(rival_of(&|main| made(main).unwrap(), &made), found, "an entry");
    assert_eq!(words(), "an operation on the main line (pid 4711)");
    kvfs_fs::name_processes(&main.fs, |pid| Some(format!("git-{pid}")));
    rival_of(&|main| write(main, "small").unwrap(), &|view| write(view, "small"));
    assert_eq!(words(), "git-4711 (pid 4711) on the main line");
    // The process of the caller is not known.
    let unknown =
        rival_of(&|_| main.write_at(small, 0, b"two").map(drop).unwrap(), &|view| write(view, "small"));
    assert_eq!(unknown, Some(Rival::Main { pid: 0 }));
}

#[test]
fn reading_on_the_main_line_dooms_no_transaction() {
    let main = Setup::new(100);
    let dir = main.dir(ROOT, "dir");
    let file = main.file(dir, "f");
    main.write_at(file, 0, b"content").unwrap();
    let view = begin(&main, Isolation::Snapshot);
    main.clock.advance(std::time::Duration::from_secs(200_000));
    // A find, a grep, a backup: access times are written.
    assert_eq!(names(&main, dir), ["f"]);
    assert_eq!(main.read_all(file), b"content");
    main.housekeep().unwrap();
    let (vdir, _) = look(&view, ROOT, "dir").unwrap();
    let (node, _) = look(&view, vdir, "f").unwrap();
    view.write_at(node, 0, b"CONTENT").unwrap();
    view.file(vdir, "g");
    // And while its locks are held.
    assert_eq!(main.read_all(file), b"content");
    assert_eq!(names(&main, dir), ["f"]);
    commit(&view).unwrap();
    assert_eq!(main.read_all(file), b"CONTENT");
    main.housekeep().unwrap();
    main.assert_sound("after it all");
}

#[test]
fn entries_made_side_by_side_in_one_directory_are_no_conflict() {
    for isolation in BOTH {
        let main = Setup::new(100);
        let dir = main.dir(ROOT, "dir");
        let views = [begin(&main, isolation), begin(&main, isolation)];
        for (index, view) in views.iter().enumerate() {
            let vdir = view.lookup(&view.caller, ROOT, b"dir");
            // Looking at the directory's own attributes is what serializable transactions lock.
            let Ok(vdir) = vdir else { continue };
            view.file(vdir.node, &format!("from-{index}"));
        }
        main.file(dir, "from-main");
        for view in &views {
            commit(view).unwrap();
        }
        let made = names(&main, dir);
        assert!(made.len() >= 2, "{made:?}");
        assert_eq!(main.getattr(&main.caller, dir).unwrap().size, made.len() as u64);
        drop(views);
        main.assert_sound("after both commits");
    }
}

#[test]
fn write_skew_is_possible_in_snapshots_and_not_among_serializable_ones() {
    // Two doctors on call; each goes if the other stays.
    for isolation in BOTH {
        let main = Setup::new(100);
        for name in ["alice", "bob"] {
            let file = main.file(ROOT, name);
            main.write_at(file, 0, b"on").unwrap();
        }
        let (one, two) = (begin(&main, isolation), begin(&main, isolation));
        let go = |view: &Setup, stays: &str, goes: &str| -> Result<()> {
            let (other, _) = look(view, ROOT, stays)?;
            let mut state = [0; 2];
            view.read(&view.caller, other, 0, &mut state)?;
            assert_eq!(&state, b"on");
            let (me, _) = look(view, ROOT, goes)?;
            view.write_at(me, 0, b"no").map(drop)
        };
        let first = go(&one, "bob", "alice");
        let second = go(&two, "alice", "bob");
        let mut committed = 0;
        for (view, gone) in [(&one, &first), (&two, &second)] {
            committed += u32::from(gone.is_ok() && commit(view).is_ok());
        }
        let on = ["alice", "bob"].iter().filter(|name| content(&main, ROOT, name) == b"on").count();
        match isolation {
            Isolation::Snapshot => assert_eq!((committed, on), (2, 0), "allowed, and it happens"),
            Isolation::Serializable => assert!(committed <= 1 && on >= 1, "{committed} committed, {on} on"),
        }
    }
}

#[test]
fn no_phantom_appears_to_a_serializable_transaction() {
    let main = Setup::new(100);
    let dir = main.dir(ROOT, "dir");
    main.file(dir, "a");
    let view = begin(&main, Isolation::Serializable);
    let (vdir, _) = look(&view, ROOT, "dir").unwrap();
    assert_eq!(names(&view, vdir), ["a"]);
    let entered = main.create(&main.caller, dir, b"b", 0o644, true);
    assert!(is_parked(&entered), "it waits for the transaction");
    assert_eq!(names(&view, vdir), ["a"]);
    commit(&view).unwrap();
    main.file(dir, "b");
    main.assert_sound("after the commit");
}

#[test]
fn a_directory_is_not_removed_under_a_new_entry() {
    for isolation in BOTH {
        // The transaction enters, the main line removes: before and after the entry.
        let main = Setup::new(100);
        main.dir(ROOT, "dir");
        let view = begin(&main, isolation);
        let (vdir, _) = look(&view, ROOT, "dir").unwrap();
        view.file(vdir, "f");
        assert!(is_parked(&main.rmdir(&main.caller, ROOT, b"dir")));
        commit(&view).unwrap();
        assert!(matches!(main.rmdir(&main.caller, ROOT, b"dir"), Err(FsError::NotEmpty)));
        main.assert_sound("entered first");

        let main = Setup::new(100);
        main.dir(ROOT, "dir");
        let view = begin(&main, Isolation::Snapshot);
        let (vdir, _) = look(&view, ROOT, "dir").unwrap();
        main.rmdir(&main.caller, ROOT, b"dir").unwrap();
        assert!(is_canceled(&view.create(&view.caller, vdir, b"f", 0o644, true)));
        drop(view);
        main.assert_sound("removed first");

        // The transaction removes, the main line enters.
        let main = Setup::new(100);
        let dir = main.dir(ROOT, "dir");
        let view = begin(&main, Isolation::Snapshot);
        main.file(dir, "f");
        assert!(is_canceled(&view.rmdir(&view.caller, ROOT, b"dir")));
        drop(view);
        let view = begin(&main, isolation);
        let (vdir, _) = look(&view, ROOT, "dir").unwrap();
        view.unlink(&view.caller, vdir, b"f").unwrap();
        view.rmdir(&view.caller, ROOT, b"dir").unwrap();
        assert!(is_parked(&main.create(&main.caller, dir, b"g", 0o644, true)));
        commit(&view).unwrap();
        let late = main.create(&main.caller, dir, b"g", 0o644, true);
        assert!(matches!(late, Err(FsError::NotFound)), "{late:?}");
        main.assert_sound("removed by a commit");
    }
}

#[test]
fn two_moves_never_make_a_circle() {
    for isolation in BOTH {
        let main = Setup::new(100);
        main.dir(ROOT, "a");
        main.dir(ROOT, "b");
        let (one, two) = (begin(&main, isolation), begin(&main, isolation));
        let into = |view: &Setup, name: &str, target: &str| -> Result<()> {
            let (target, _) = look(view, ROOT, target)?;
            rename(view, (ROOT, name), (target, name))
        };
        let first = into(&one, "a", "b");
        let second = into(&two, "b", "a");
        assert!(!(first.is_ok() && second.is_ok()), "both moves went through");
        if first.is_ok() {
            commit(&one).unwrap();
            assert!(into(&two, "b", "a").is_err(), "the later one fails against the newest state");
        }
        drop((one, two));
        main.assert_sound("after two moves");
        assert!(!names(&main, ROOT).is_empty());
    }
}

#[test]
fn a_commit_moves_files_to_where_the_main_line_has_not_been() {
    let mut main = Setup::new(100);
    let far = main.dir(main.dir(ROOT, "x"), "y");
    let there = main.file(far, "there");
    main.write_at(there, 0, b"1").unwrap();
    let (here, linked) = (main.file(ROOT, "here"), main.file(ROOT, "linked"));
    main.write_at(here, 0, b"content").unwrap();
    main.write_at(linked, 0, b"shared").unwrap();
    // Only the files are known to the main line, not where they go.
    for name in ["x", "y", "there"] {
        let _ = name;
    }
    main.reopen();
    let (here, _) = look(&main, ROOT, "here").unwrap();
    let (linked, _) = look(&main, ROOT, "linked").unwrap();

    let view = begin(&main, Isolation::Snapshot);
    let (x, _) = look(&view, ROOT, "x").unwrap();
    let (y, _) = look(&view, x, "y").unwrap();
    rename(&view, (ROOT, "here"), (y, "moved")).unwrap();
    let (vlinked, _) = look(&view, ROOT, "linked").unwrap();
    view.link(&view.caller, vlinked, y, b"second").unwrap();
    commit(&view).unwrap();

    assert_eq!(main.read_all(here), b"content");
    main.write_at(here, 0, b"C").unwrap();
    main.write_at(linked, 0, b"S").unwrap();
    assert_eq!(main.getattr(&main.caller, linked).unwrap().nlink, 2);
    let (x, _) = look(&main, ROOT, "x").unwrap();
    let (y, _) = look(&main, x, "y").unwrap();
    assert_eq!(content(&main, y, "moved"), b"Content");
    assert_eq!(content(&main, y, "second"), b"Shared");
    // The directory above was reached by its number first, and has its name now.
    rename(&main, (x, "y"), (ROOT, "z")).unwrap();
    let into_itself = rename(&main, (ROOT, "z"), (y, "q"));
    assert!(matches!(into_itself, Err(FsError::Invalid(_))), "{into_itself:?}");
    drop(view);
    main.assert_sound("after the moves");
}

#[test]
fn files_made_and_removed_in_a_transaction_leave_nothing() {
    let main = Setup::new(100);
    let view = begin(&main, Isolation::Snapshot);
    for round in 0..200 {
        let file = view.file(ROOT, "tmp");
        view.write_at(file, 0, &vec![1; 100 * round]).unwrap();
        view.unlink(&view.caller, ROOT, b"tmp").unwrap();
        view.forget(file, 1);
    }
    let open = view.file(ROOT, "open");
    view.write_at(open, 0, &[5; 9000]).unwrap();
    view.unlink(&view.caller, ROOT, b"open").unwrap();
    commit(&view).unwrap();
    drop(view);
    main.housekeep().unwrap();
    assert!(names(&main, ROOT).is_empty());
    main.assert_sound("nothing is left");
    let report = kvfs_fs::check::check(&main.store).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
}

#[test]
fn a_main_line_operation_in_the_way_goes_on_after_the_end() {
    let main = Setup::new(100);
    let file = main.file(ROOT, "f");
    main.write_at(file, 0, b"0").unwrap();
    for ends_well in [false, true] {
        let view = begin(&main, Isolation::Snapshot);
        let (node, _) = look(&view, ROOT, "f").unwrap();
        view.write_at(node, 0, b"1").unwrap();
        let Err(FsError::Parked(ticket)) = main.write_at(file, 1, b"2") else { panic!("not parked") };
        assert!(!ticket.is_ready());
        if ends_well {
            commit(&view).unwrap();
        } else {
            view.txn().unwrap().abort();
        }
        assert!(ticket.is_ready(), "the waiting operation is called");
        drop(ticket);
        main.write_at(file, 1, b"2").unwrap();
        assert_eq!(content(&main, ROOT, "f"), if ends_well { b"12" } else { b"02" });
    }
}

#[test]
fn growing_an_empty_file_and_writing_into_it_are_a_conflict() {
    // The one makes blocks of it, the other would write content into its row.
    for grows_first in [false, true] {
        let main = Setup::new(300);
        main.file(ROOT, "f");
        let (one, two) = (begin(&main, Isolation::Snapshot), begin(&main, Isolation::Snapshot));
        let write = |view: &Setup, len: usize| {
            let (node, _) = look(view, ROOT, "f").unwrap();
            view.write_at(node, 0, &vec![1; len])
        };
        let (first_len, second_len) = if grows_first { (6000, 1) } else { (1, 6000) };
        write(&one, first_len).unwrap();
        commit(&one).unwrap();
        assert!(is_canceled(&write(&two, second_len)), "grows first: {grows_first}");
        assert_eq!(content(&main, ROOT, "f"), vec![1; first_len]);
        main.assert_sound("after the conflict");
    }
}

#[test]
fn setting_what_is_set_already_is_an_update_too() {
    let main = Setup::new(300);
    let file = main.file(ROOT, "f");
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    main.setattr(&main.caller, file, &mode(0o600)).unwrap();
    let view = begin(&main, Isolation::Snapshot);
    main.setattr(&main.caller, file, &mode(0o640)).unwrap();
    let (node, attr) = look(&view, ROOT, "f").unwrap();
    assert_eq!(attr.mode, 0o600);
    assert!(is_canceled(&view.setattr(&view.caller, node, &mode(0o600))));
}

#[test]
fn project_compression_tier_and_no_list_that_are_set_already_are_updates_too() {
    // The list: the owner, user 7, the group, the mask, others.
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in
        [(1, 6, u32::MAX), (2, 6, 7), (4, 4, u32::MAX), (16, 6, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend([u16::to_le_bytes(tag), u16::to_le_bytes(rights)].concat());
        list.extend(u32::to_le_bytes(id));
    }
    let settings: [(&[u8], &[u8], &[u8]); 4] = [
        (kvfs_fs::PROJECT_ATTRIBUTE, b"0", b"6"),
        (kvfs_fs::COMPRESSION_ATTRIBUTE, b"none", b"lz4"),
        (kvfs_fs::TIER_ATTRIBUTE, b"auto", b"slow"),
        (b"system.posix_acl_access", b"", &list),
    ];
    for (name, then, now) in settings {
        let main = Setup::new(300);
        let file = main.file(ROOT, "f");
        let set = |view: &Setup, node, value: &[u8]| match value {
            b"" => view.removexattr(&view.caller, node, name),
            value => view.setxattr(&view.caller, node, name, value, XattrMode::Set),
        };
        let late = begin(&main, Isolation::Snapshot);
        set(&main, file, now).unwrap();
        let (node, _) = look(&late, ROOT, "f").unwrap();
        assert!(is_canceled(&set(&late, node, then)), "{}", name.escape_ascii());
        // Without a change since it commits.
        let alone = begin(&main, Isolation::Snapshot);
        let (node, _) = look(&alone, ROOT, "f").unwrap();
        set(&alone, node, now).unwrap();
        commit(&alone.fs).unwrap();
        main.assert_sound("after a setting that was set already");
    }
}

#[test]
fn a_change_of_owner_conflicts_with_a_set_id_bit_that_is_set_meanwhile() {
    let main = Setup::new(300);
    let file = main.file(ROOT, "f");
    let view = begin(&main, Isolation::Snapshot);
    // Its owner makes it set-user-id, the transaction gives it to root: in either order the bit would be
    // gone.
    main.setattr(&main.caller, file, &SetAttr { mode: Some(0o4755), ..SetAttr::default() }).unwrap();
    let (node, _) = look(&view, ROOT, "f").unwrap();
    let to_root = SetAttr { uid: Some(0), ..SetAttr::default() };
    assert!(is_canceled(&view.setattr(&view.caller, node, &to_root)));
}

#[test]
fn nothing_comes_into_a_commit_that_takes_place() {
    let main = Setup::new(300);
    let view = begin(&main, Isolation::Snapshot);
    let file = view.file(ROOT, "f");
    let frozen = view.expect_txn().unwrap().freeze().unwrap();
    // What the kernel still owes comes in until the commit, and everything else does not.
    view.write_at(file, 0, b"owed").unwrap();
    assert!(matches!(view.create(&view.caller, ROOT, b"g", 0o644, true), Err(FsError::ViewEnded(_))));
    assert!(matches!(view.tmpfile(&view.caller, ROOT, 0o644, true), Err(FsError::ViewEnded(_))));
    let planned = frozen.plan().unwrap();
    assert!(matches!(view.write_at(file, 0, b"late"), Err(FsError::ViewEnded(_))));
    assert!(matches!(view.tmpfile(&view.caller, ROOT, 0o644, true), Err(FsError::ViewEnded(_))));
    planned.commit(|| ()).unwrap().harden(Durability::Synced).unwrap();
    assert!(view.write_at(file, 0, b"late").is_err());
    assert_eq!(content(&main, ROOT, "f"), b"owed");
    main.assert_sound("committed");
}

/// Neither those that want what it had locked, nor others that commit.
#[test]
fn others_go_on_while_a_commit_becomes_durable() {
    let main = Setup::new(300);
    let file = main.file(ROOT, "f");
    let view = begin(&main, Isolation::Snapshot);
    look(&view, ROOT, "f").unwrap();
    view.write_at(file, 0, b"committed").unwrap();
    let resize = SetAttr { size: Some(4), ..SetAttr::default() };
    assert!(matches!(main.fs.setattr(&main.caller, file, &resize), Err(FsError::Parked(_))));
    let planned = view.expect_txn().unwrap().freeze().unwrap().plan().unwrap();
    let committed = planned.commit(|| ()).unwrap();
    main.fs.setattr(&main.caller, file, &resize).unwrap();
    let other = begin(&main, Isolation::Snapshot);
    other.file(ROOT, "g");
    commit(&other.fs).unwrap();
    committed.harden(Durability::Synced).unwrap();
    assert_eq!(content(&main, ROOT, "f"), b"comm");
}

#[test]
fn commit_that_is_given_up_leaves_its_view_open_in_every_state() {
    for isolation in BOTH {
        let main = Setup::new(100);
        let view = begin(&main, isolation);
        let file = view.file(ROOT, "f");
        for text in [b"one", b"two", b"six"] {
            let frozen = view.expect_txn().unwrap().freeze().unwrap();
            assert!(view.expect_txn().unwrap().freeze().is_err(), "its commit is under way");
            match text {
                b"one" => drop(frozen),
                b"two" => drop(frozen.prepare().unwrap()),
                _ => drop(frozen.plan().unwrap()),
            }
            assert!(!view.txn().unwrap().is_over());
            view.write_at(file, 0, text).unwrap();
            assert!(!exists(&main, ROOT, "f"));
        }
        commit(&view).unwrap();
        assert!(view.txn().unwrap().is_over());
        assert_eq!(content(&main, ROOT, "f"), b"six");
    }
}

#[test]
fn abort_ends_a_frozen_view_and_not_one_whose_commit_takes_place() {
    for isolation in BOTH {
        let main = Setup::new(100);
        let (aborted, committed) = (begin(&main, isolation), begin(&main, isolation));
        aborted.file(ROOT, "aborted");
        let frozen = aborted.expect_txn().unwrap().freeze().unwrap();
        aborted.txn().unwrap().abort();
        assert!(frozen.plan().is_err() && aborted.txn().unwrap().is_over());
        assert!(aborted.create(&aborted.caller, ROOT, b"late", 0o644, true).is_err());
        committed.file(ROOT, "committed");
        let planned = committed.expect_txn().unwrap().freeze().unwrap().plan().unwrap();
        committed.txn().unwrap().abort();
        drop(planned.commit(|| ()).unwrap());
        assert_eq!(names(&main, ROOT), ["committed"]);
        main.assert_sound("after both");
    }
}

#[test]
fn a_read_on_the_main_line_is_before_or_after_a_commit_never_in_between() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let main = Setup::new(300);
    let file = main.file(ROOT, "f");
    let states: [Vec<u8>; 3] = [vec![b'a'; 250], vec![b'b'; 10], vec![b'c'; 9000]];
    main.write_at(file, 0, &states[0]).unwrap();
    let done = AtomicBool::new(false);
    let (fs, caller) = (Arc::clone(&main.fs), main.caller.clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 10_000];
            while !done.load(Ordering::Acquire) {
                let read = patiently(&caller, |caller| fs.read(caller, file, 0, &mut buffer)).unwrap();
                assert!(states.iter().any(|state| *state == buffer[..read]), "{read} bytes of no state");
            }
        });
        for round in 1..300 {
            let view = begin(&main, Isolation::Snapshot);
            let (node, _) = look(&view, ROOT, "f").unwrap();
            let state = &states[round % 3];
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            patiently(&view.caller, |caller| view.setattr(caller, node, &cut)).unwrap();
            patiently(&view.caller, |caller| {
                view.write(caller, node, 0, state.clone().into(), WriteFlags::default())
            })
            .unwrap();
            commit(&view).unwrap();
        }
        done.store(true, Ordering::Release);
    });
    main.assert_sound("after all commits");
}

#[test]
fn an_append_goes_to_the_end_of_now_however_many_commits_have_moved_it() {
    let main = Setup::new(300);
    let file = main.file(ROOT, "log");
    let append = |offset: u64, line: &'static [u8]| {
        let flags = WriteFlags { append: Append::KnownEnd, ..WriteFlags::default() };
        main.write(&main.caller, file, offset, line.into(), flags).unwrap()
    };
    assert_eq!(append(0, b"main\n").offset, 0);
    // As long as no commit has moved the end, the front end knows best.
    assert_eq!(append(2, b"in\n").offset, 2);
    for _ in 0..9 {
        let view = begin(&main, Isolation::Snapshot);
        let (node, attr) = look(&view, ROOT, "log").unwrap();
        view.write_at(node, attr.size, b"txn\n").unwrap();
        commit(&view).unwrap();
    }
    // The front end still takes the end for where it was.
    assert_eq!(append(5, b"main\n").offset, 5 + 9 * 4);
    assert_eq!(
        content(&main, ROOT, "log"),
        [&b"main\n"[..2], b"in\n", &b"txn\n".repeat(9), b"main\n"].concat()
    );
}

#[test]
fn the_view_of_a_snapshot_stays_as_it_is_and_takes_no_writes() {
    let main = Setup::new(300);
    let file = main.file(ROOT, "f");
    main.write_at(file, 0, b"before").unwrap();
    let snapshot = main.store.snapshot().unwrap();
    let past = main.through(main.fs.view_of(snapshot).unwrap(), main.options);
    main.write_at(file, 0, b"after!").unwrap();
    main.file(ROOT, "g");
    assert_eq!(names(&past, ROOT), ["f"]);
    assert_eq!(content(&past, ROOT, "f"), b"before");
    let (there, _) = look(&past, ROOT, "f").unwrap();
    assert!(matches!(past.write_at(there, 0, b"x"), Err(FsError::ReadOnly)));
    assert!(matches!(past.unlink(&past.caller, ROOT, b"f"), Err(FsError::ReadOnly)));
    assert_eq!(content(&main, ROOT, "f"), b"after!");
}

/// Something that a caller tries.
type Attempt<'a> = Box<dyn Fn(&Caller) -> Result<()> + 'a>;

#[test]
fn names_that_a_commit_has_changed_are_looked_up_again_before_the_kernel_changes_them() {
    let main = Setup::new(100);
    let kernel = Caller { goes_by_names: true, ..main.caller.clone() };
    for name in ["x", "y", "gone"] {
        main.file(ROOT, name);
    }
    let view = begin(&main, Isolation::Snapshot);
    view.file(ROOT, "new");
    rename(&view, (ROOT, "new"), (ROOT, "x")).unwrap();
    view.unlink(&view.caller, ROOT, b"gone").unwrap();
    let mode = RenameMode::Replace;
    let changes: [Attempt<'_>; 4] = [
        Box::new(|caller| main.rename(caller, ROOT, b"x", ROOT, b"z", mode)),
        Box::new(|caller| main.rename(caller, ROOT, b"y", ROOT, b"x", mode)),
        Box::new(|caller| main.unlink(caller, ROOT, b"x")),
        Box::new(|caller| main.mkdir(caller, ROOT, b"gone", 0o755).map(drop)),
    ];
    let waiting = changes.iter().map(|change| match change(&kernel) {
        Err(FsError::Parked(ticket)) => Caller { ticket: Some(ticket), ..kernel.clone() },
        done => panic!("{done:?}"),
    });
    let waiting: Vec<Caller> = waiting.collect();
    // A look that began before tells of what was before.
    let committed = view.expect_txn().unwrap().freeze().unwrap().plan().unwrap().commit(|| ()).unwrap();
    for (change, caller) in changes.iter().zip(&waiting) {
        let late = patiently(caller, change);
        assert!(matches!(late, Err(FsError::NameChanged)), "{late:?}");
        // Nor has one that comes only now been told.
        assert!(matches!(change(&kernel), Err(FsError::NameChanged)));
    }
    // Others go by what they find.
    assert!(matches!(main.unlink(&main.caller, ROOT, b"gone"), Err(FsError::NotFound)));
    let found = main.lookup(&kernel, ROOT, b"x").unwrap().node;
    assert!(matches!(main.lookup(&kernel, ROOT, b"gone"), Err(FsError::NotFound)));
    changes[0](&kernel).unwrap();
    changes[3](&kernel).unwrap();
    assert_eq!(main.lookup(&kernel, ROOT, b"z").unwrap().node, found);
    drop(committed);
    changes[1](&kernel).unwrap();
    changes[2](&kernel).unwrap();
    main.assert_sound("changed");
}

#[test]
fn change_that_a_commit_overtakes_is_refused_once_though_other_transactions_want_its_names() {
    for (has_waited, isolation) in
        [false, true].into_iter().flat_map(|waits| BOTH.map(|level| (waits, level)))
    {
        let main = Setup::new(100);
        let kernel = Caller { goes_by_names: true, pid: 7, ..main.caller.clone() };
        for name in ["x", "y"] {
            main.file(ROOT, name);
        }
        let replaces = |view: &Setup, caller: &Caller| {
            view.rename(caller, ROOT, b"new", ROOT, b"x", RenameMode::Replace)
        };
        let view = begin(&main, isolation);
        view.file(ROOT, "new");
        replaces(&view, &view.caller).unwrap();
        let change = |caller: &Caller| main.rename(caller, ROOT, b"x", ROOT, b"y", RenameMode::Replace);
        let waiting = has_waited.then(|| match change(&kernel) {
            Err(FsError::Parked(ticket)) => Caller { ticket: Some(ticket), ..kernel.clone() },
            done => panic!("{done:?}"),
        });
        let committed = view.expect_txn().unwrap().freeze().unwrap().plan().unwrap().commit(|| ()).unwrap();
        let refused = patiently(waiting.as_ref().unwrap_or(&kernel), change);
        assert!(matches!(refused, Err(FsError::NameChanged)), "{refused:?}");
        drop(waiting);
        let next = begin(&main, isolation);
        next.file(ROOT, "new");
        let Err(FsError::Parked(ticket)) = replaces(&next, &next.caller) else { panic!("not parked") };
        // Another change by the kernel waits for no other's.
        main.lookup(&kernel, ROOT, b"x").unwrap();
        main.link(&kernel, main.lookup(&kernel, ROOT, b"y").unwrap().node, ROOT, b"link").unwrap();
        assert!(!ticket.is_ready());
        change(&kernel).unwrap();
        assert!(ticket.is_ready());
        drop(committed);
        let caller = Caller { ticket: Some(ticket), ..next.caller.clone() };
        assert!(!matches!(replaces(&next, &caller), Err(FsError::Parked(_))));
        main.assert_sound("changed");
    }
}

#[test]
fn names_that_another_front_end_has_changed_are_looked_up_again_before_the_kernel_changes_them() {
    let main = Setup::new(100);
    let kernel = Caller { goes_by_names: true, ..main.caller.clone() };
    let changed = Arc::new(ChangedNames::default());
    let beside = Caller { changed_names: Some(Arc::clone(&changed)), ..main.caller.clone() };
    let [x, y, gone, file] = ["x", "y", "gone", "file"].map(|name| main.file(ROOT, name));
    let found = FoundByNames { moved: y, replaced: Some(x) };
    let changes: [(&[&str], Attempt<'_>); 4] = [
        (
            &["x", "y"],
            Box::new(|caller| {
                rename_found(&main, caller, (ROOT, b"y"), (ROOT, b"x"), RenameMode::Replace, found)
            }),
        ),
        (&["gone"], Box::new(|caller| remove_found(&main, caller, (ROOT, b"gone"), gone, false))),
        (&["new"], Box::new(|caller| main.mkdir(caller, ROOT, b"new", 0o755).map(drop))),
        (&["link"], Box::new(|caller| main.link(caller, file, ROOT, b"link").map(drop))),
    ];
    for (names, change) in &changes {
        change(&beside).unwrap();
        for name in *names {
            let unlink = || main.unlink(&kernel, ROOT, name.as_bytes());
            let rename = || main.rename(&kernel, ROOT, name.as_bytes(), ROOT, b"other", RenameMode::Replace);
            assert!(matches!(unlink(), Err(FsError::NameChanged)), "{name}");
            assert!(matches!(rename(), Err(FsError::NameChanged)), "{name}");
            // It looks again, and knows then.
            let _ = main.lookup(&kernel, ROOT, name.as_bytes());
            assert!(!matches!(unlink(), Err(FsError::NameChanged)), "{name}");
        }
        drop(changed.take().expect("the caller is to tell the kernel"));
    }
    // One that fails may have changed the name before it had to wait.
    let again = main.mkdir(&beside, ROOT, b"new", 0o755);
    assert!(matches!(again, Err(FsError::Exists)));
    assert!(matches!(main.rmdir(&kernel, ROOT, b"new"), Err(FsError::NameChanged)));
    drop(changed.take());
    main.rmdir(&kernel, ROOT, b"new").unwrap();
    // A view's names are no matter of the kernel behind the main line.
    let view = begin(&main, Isolation::Snapshot);
    // What was refused above does not come again.
    main.clock.advance(std::time::Duration::from_secs(1));
    patiently(&beside, |caller| view.mkdir(caller, ROOT, b"new", 0o755)).unwrap();
    assert!(changed.take().is_none());
}
