//! Rows that no kvfs writes, as a store may hold that was made to do harm: all that meets them ends, and
//! names the place.

use std::collections::VecDeque;
use std::fmt::Debug;

use bytes::Bytes;
use kvfs_fs::{Caller, DetachedTrees, NodeId, Result, check, remove_tree, repair};
use kvfs_store::{Batch, Durability, Isolation, Keyspace};

use crate::clones::clone;
use crate::detached::{All, Asking, remove, trees};
use crate::setup::Setup;
use crate::undo::{keeping, look, over_the_engine, undo, write};
use crate::views::begin;

const ROOT: NodeId = NodeId::ROOT;

/// Where a row has the inode number of the parent.
const PARENT: std::ops::Range<usize> = 48..56;

fn meta(main: &Setup) -> Keyspace {
    main.store.keyspaces().iter().find(|info| info.name == "meta").unwrap().keyspace
}

fn key(directory: NodeId, name: &[u8]) -> Bytes {
    [&directory.0.to_be_bytes()[..], b"\0", name].concat().into()
}

fn row(main: &Setup, key: &[u8]) -> Vec<u8> {
    main.store.get(meta(main), key).unwrap().unwrap().to_vec()
}

fn change(main: &Setup, change: impl FnOnce(&mut Batch, Keyspace)) {
    let mut batch = Batch::new();
    change(&mut batch, meta(main));
    main.store.apply(batch, Durability::Buffered).unwrap();
}

/// What an entry is that leads to a directory.
fn reference(to: NodeId) -> Vec<u8> {
    [&[0x12][..], &to.0.to_le_bytes(), &to.0.to_le_bytes()].concat()
}

#[track_caller]
fn assert_corrupt<T: Debug>(result: Result<T>, context: &str) {
    let Err(error) = result else { panic!("{context}: {result:?}") };
    assert!(error.to_string().starts_with("corrupt metadata of "), "{context}: {error}");
}

#[test]
fn names_that_no_file_may_have_are_told_as_damage_and_reach_no_caller() {
    let long = [b'x'; 256];
    for name in [&b"../../etc/passwd"[..], b"/", b".", b"..", b"zero\0", &long] {
        for what in ["file", "directory", "linked"] {
            let mut main = Setup::new(64);
            let d = main.dir(ROOT, "d");
            let (file, directory) = (main.file(d, "file"), main.dir(d, "directory"));
            main.write_at(file, 0, b"content").unwrap();
            write(&main, directory, "in", "content");
            let linked = main.file(d, "linked");
            main.write_at(linked, 0, b"content").unwrap();
            main.link(&main.caller, linked, ROOT, b"outside").unwrap();
            let moved = row(&main, &key(d, what.as_bytes()));
            change(&main, |batch, meta| {
                batch.delete(meta, key(d, what.as_bytes()));
                batch.put(meta, key(d, name), moved);
            });
            main.reopen();
            let context = format!("{what} as {}", name.escape_ascii());
            for plus in [false, true] {
                let mut listed = VecDeque::from([0]);
                let mut result = Ok(());
                while let Some(offset) = listed.pop_front().filter(|_| result.is_ok()) {
                    result = main.list_once(look(&main, ROOT, "d"), offset, 1, plus).map(|reply| {
                        let is_in_order = |name: &[u8]| {
                            [&b"."[..], b"..", b"file", b"directory", b"linked"].contains(&name)
                        };
                        assert!(reply.iter().all(|entry| is_in_order(&entry.name)), "{context}");
                        listed.extend(reply.last().map(|entry| entry.offset));
                    });
                }
                assert_corrupt(result, &context);
            }
            let told = check::check(&main.store).unwrap().problems;
            assert!(told.iter().any(|problem| problem.place.starts_with("entry ")), "{context}: {told:?}");
            let report = repair::repair(&main.store, &*main.clock, &[], false).unwrap();
            assert_eq!(report.left, [], "{context}");
            assert!(
                report.fixed.iter().any(|fixed| fixed.detail.contains("this name")),
                "{context}: {report:?}"
            );
            main.reopen();
            main.assert_sound(&context);
            let found = match what {
                "linked" => look(&main, ROOT, "outside"),
                "file" => look(&main, look(&main, ROOT, "lost+found"), &format!("file-{}", file.0)),
                _ => {
                    let lost = look(&main, ROOT, "lost+found");
                    look(&main, look(&main, lost, &format!("directory-{}", directory.0)), "in")
                }
            };
            assert_eq!(main.read_all(found), b"content", "{context}");
        }
    }
}

/// `tree/a/b` with a name in `b` that leads to `to`, one of these three, which says so where it is told.
fn circle(main: Setup, to: usize, is_told: bool) -> Setup {
    let mut at = vec![main.dir(ROOT, "tree")];
    for name in ["a", "b"] {
        write(&main, at[at.len() - 1], "file", "content");
        at.push(main.dir(at[at.len() - 1], name));
    }
    main.dir(ROOT, "keep");
    let (b, to) = (at[2], at[to]);
    let mut own = row(&main, &key(to, b""));
    own[PARENT].copy_from_slice(&b.0.to_le_bytes());
    change(&main, |batch, meta| {
        batch.put(meta, key(b, b"up"), reference(to));
        if is_told {
            batch.put(meta, key(to, b""), own);
        }
    });
    let mut main = main;
    main.reopen();
    main
}

fn each_circle(make: impl Fn() -> Setup, each: impl Fn(Setup, &str)) {
    for to in 0..3 {
        for is_told in [false, true] {
            each(circle(make(), to, is_told), &format!("to {to}, told: {is_told}"));
        }
    }
}

#[test]
fn detached_trees_with_a_circle_are_left_and_keep_no_other_from_going() {
    each_circle(
        || keeping(100),
        |mut main, context| {
            // The tree is detached as damage has left it.
            write(&main, main.dir(ROOT, "second"), "file", "content");
            let top = key(look(&main, ROOT, "tree"), b"");
            let told = row(&main, &top)[PARENT].to_vec();
            remove(&main, ROOT, "tree");
            remove(&main, ROOT, "second");
            if told != 1_u64.to_le_bytes() {
                let mut own = row(&main, &top);
                own[PARENT].copy_from_slice(&told);
                change(&main, |batch, meta| batch.put(meta, top, own));
            }
            main.reopen();
            for _ in 0..3 {
                assert_corrupt(main.housekeep(), context);
            }
            assert_eq!(trees(&main.fs), 1, "{context}");
            assert_corrupt(DetachedTrees::of(&main.fs).remove_all(), context);
            let report = repair::repair(&main.store, &*main.clock, &[], false).unwrap();
            assert_eq!(report.left, [], "{context}");
            main.reopen();
            main.housekeep().unwrap();
            main.assert_sound(context);
        },
    );
}

#[test]
fn clone_and_removal_of_a_tree_with_a_circle_end() {
    each_circle(
        || keeping(100),
        |main, context| {
            let view = begin(&main, Isolation::Snapshot);
            let cloned = clone(&view.fs, (ROOT, "tree"), (ROOT, "again")).map(drop);
            assert_corrupt(cloned.map_err(|failed| *failed.error), context);
            let removed =
                remove_tree(&view.fs, &Caller::default(), (ROOT, b"tree"), &Asking(|| ())).map(drop);
            assert_corrupt(removed.map_err(|failed| *failed.error), context);
        },
    );
}

#[test]
fn removal_name_by_name_of_a_tree_with_a_circle_ends() {
    each_circle(
        || over_the_engine(1 << 20),
        |main, context| {
            // Of a snapshot of before the first transaction.
            main.store.create_snapshot("before").unwrap();
            main.fs.branches().create_of("b", 1000, b"/", Some("before")).unwrap();
            let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
            let removed = remove_tree(&branch.fs, &Caller::default(), (ROOT, b"tree"), &All).map(drop);
            assert_corrupt(removed.map_err(|failed| *failed.error), context);
        },
    );
}

#[test]
fn merge_and_undo_of_the_removal_of_a_tree_with_a_circle_end() {
    each_circle(
        || over_the_engine(1 << 20),
        |main, context| {
            main.fs.branches().create("b", 1000).unwrap();
            let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
            remove_tree(&branch.fs, &Caller::default(), (ROOT, b"tree"), &All).unwrap();
            branch.branches().checkpoint().unwrap();
            drop(branch);
            let merged = kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1).map(drop);
            assert_corrupt(merged, context);
            let removed = remove(&main, ROOT, "tree");
            assert_corrupt(undo(&main, removed), context);
        },
    );
}
