//! Who may use which branch, without a front end.

use super::*;
use crate::lines::PlaceLine;
use crate::testing::{World, assert_denied, has_file, make_file, stranger};

const DENIED: &str = "only root and the store's owner work with branches";

#[test]
fn operation_on_branches_by_another_user_is_refused_and_the_list_is_empty() {
    let world = World::new(false);
    let (store, own, other) = (world.mounted(), Caller::own(), stranger());
    store.create_branch(&own, "try", (b"/", None), false).expect("is made");
    assert_denied(store.create_branch(&other, "x", (b"/", None), true), DENIED);
    assert_denied(store.fork_branch(&other, "x", "try", true), DENIED);
    assert_denied(store.mount_branch(&other, "try", Path::new("/x")), DENIED);
    assert_denied(store.unmount_branch(&other, "try"), DENIED);
    assert_denied(store.settle_branch(&other, Path::new("/x")), DENIED);
    assert_denied(store.branch_diff(&other, "try"), DENIED);
    assert_denied(store.merge_branch(&other, "try", None), DENIED);
    assert_denied(store.delete_branch(&other, "try"), DENIED);
    assert!(store.list_branches(&other).expect("are read").is_empty());
    let line = &store.list_branches(&own).expect("are read")[0];
    assert_eq!((line.name.as_str(), line.uid, line.dir.len()), ("try", own.uid, 0));
}

#[test]
fn branch_whose_ended_view_is_held_is_opened_merged_and_deleted() {
    let world = World::new(false);
    let (store, own) = (world.mounted(), Caller::own());
    let held = ["merged", "deleted"].map(|name| {
        store.create_branch(&own, name, (b"/", None), false).expect("is made");
        let view = world.fs.open_branch(name).expect("opens");
        make_file(&view, name, 0);
        view.branches().checkpoint().expect("is kept");
        make_file(&view, "lost", 0);
        assert_eq!(store.delete_branch(&own, name).expect_err("is open").kind(), ErrorKind::InUse);
        view.txn().expect("is one").abort();
        view
    });
    let again = world.fs.open_branch("merged").expect("opens again");
    assert!(has_file(&again, "merged") && !has_file(&again, "lost"));
    drop(again);
    store.merge_branch(&own, "merged", None).expect("is merged");
    store.delete_branch(&own, "deleted").expect("is deleted");
    drop(held);
    assert!(has_file(&world.fs, "merged") && !has_file(&world.fs, "deleted"));
    assert!(store.list_branches(&own).expect("are read").is_empty());
}

#[test]
fn branch_on_a_writeback_mount_is_refused_as_files_are() {
    let world = World::new(true);
    let store = world.mounted();
    assert!(matches!(
        store.create_branch(&Caller::own(), "try", (b"/", None), false),
        Err(ServiceError::NoFiles)
    ));
    assert!(matches!(store.fork_branch(&Caller::own(), "x", "try", false), Err(ServiceError::NoFiles)));
    assert!(matches!(store.merge_branch(&Caller::own(), "try", None), Err(ServiceError::NoFiles)));
    assert!(
        world.unmounted().create_branch(&Caller::own(), "try", (b"/", None), false).is_ok(),
        "no kernel keeps anything"
    );
}

#[test]
fn branch_is_merged_on_either_kind_of_store_and_conflicts_leave_it_as_it_was() {
    for is_mounted in [true, false] {
        let world = World::new(false);
        let store = if is_mounted { world.mounted() } else { world.unmounted() };
        let own = Caller::own();
        for name in ["good", "bad"] {
            store.create_branch(&own, name, (b"/", None), false).expect("is made");
            let view = world.fs.open_branch(name).expect("opens");
            make_file(&view, name, 0);
            view.branches().checkpoint().expect("is kept");
            view.txn().expect("is one").abort();
        }
        make_file(&world.fs, "bad", 0);
        assert_eq!(store.branch_diff(&own, "good").expect("is compared").len(), 1);
        store.merge_branch(&own, "good", None).expect("is merged");
        assert!(has_file(&world.fs, "good"));
        let refused = store.merge_branch(&own, "bad", None).expect_err("is refused");
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(refused.to_string().contains("`kvfs branch merge bad --prefer branch`"), "{refused}");
        // What was said already is not advised again.
        let elsewhere = vec![PlaceLine::Path(b"/elsewhere".to_vec())];
        let preferred = SelectionLine { force: elsewhere, ..SelectionLine::default() };
        let refused = store.merge_branch(&own, "bad", Some(preferred)).expect_err("is refused");
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(refused.to_string().contains("no path behind `--prefer` covers these"), "{refused}");
        store.delete_branch(&own, "bad").expect("is still there");
        let missing = store.delete_branch(&own, "bad").expect_err("is gone");
        assert_eq!(missing.to_string(), "there is no branch \"bad\"; `kvfs branch list` shows them");
    }
}

/// Does something in a branch, and leaves it.
fn work_in(world: &World, name: &str, file: &str) {
    let view = world.fs.open_branch(name).expect("opens");
    make_file(&view, file, 0);
    view.branches().checkpoint().expect("is kept");
    view.txn().expect("is one").abort();
}

#[test]
fn branch_of_a_branch_is_merged_into_that_one_which_waits_for_it() {
    for is_mounted in [true, false] {
        let world = World::new(false);
        let store = if is_mounted { world.mounted() } else { world.unmounted() };
        let own = Caller::own();
        let none = store.fork_branch(&own, "fix", "try", false).expect_err("is none");
        assert_eq!(none.to_string(), "there is no branch \"try\"; `kvfs branch list` shows them");
        store.create_branch(&own, "try", (b"/", None), false).expect("is made");
        work_in(&world, "try", "a");
        for name in ["fix", "late"] {
            store.fork_branch(&own, name, "try", true).expect("is made");
            work_in(&world, name, name);
        }
        let taken = store.fork_branch(&own, "late", "try", false).expect_err("is there");
        assert_eq!(taken.to_string(), "branch \"late\" exists already");
        let lines = store.list_branches(&own).expect("are read");
        let parents: Vec<_> = lines.iter().map(|line| (&*line.name, line.parent.as_deref())).collect();
        assert_eq!(parents, [("try", None), ("fix", Some("try")), ("late", Some("try"))]);
        for held in [store.delete_branch(&own, "try"), store.merge_branch(&own, "try", None)] {
            let held = held.expect_err("has branches");
            assert_eq!(held.kind(), ErrorKind::InUse);
            assert!(held.to_string().contains("fix, late; merge or delete these first"), "{held}");
        }
        store.merge_branch(&own, "fix", None).expect("is merged");
        assert!(!has_file(&world.fs, "a") && !has_file(&world.fs, "fix"));
        work_in(&world, "try", "late");
        let refused = store.merge_branch(&own, "late", None).expect_err("is refused");
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        for part in ["/late was changed outside of the branch, in branch \"try\"", "late --prefer branch`"] {
            assert!(refused.to_string().contains(part), "{part}: {refused}");
        }
        // Whichever of the two is in use is named.
        for (in_use, name) in [("try", "late"), ("late", "late")] {
            let view = world.fs.open_branch(in_use).expect("opens");
            let refused = store.merge_branch(&own, name, None).expect_err("is in use");
            assert_eq!(refused.to_string(), format!("branch \"{in_use}\" is in use"));
            drop(view);
        }
        let sides = SelectionLine { force: vec![PlaceLine::All], ..SelectionLine::default() };
        store.merge_branch(&own, "late", Some(sides)).expect("is merged");
        store.merge_branch(&own, "try", None).expect("is merged");
        assert!(["a", "fix", "late"].iter().all(|name| has_file(&world.fs, name)));
        assert!(store.list_branches(&own).expect("are read").is_empty());
    }
}
