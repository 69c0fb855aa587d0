//! Who may use which branch, without a front end.

use std::sync::Arc;

use kvfs_fs::NodeId;
use kvfs_store::Checkpoints as _;

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

/// A branch "try" with a branch "fix" of it, both mounted.
fn world_with_mounted_kin() -> World {
    let world = World::new(false);
    let (store, own) = (world.mounted(), Caller::own());
    store.create_branch(&own, "try", (b"/", None), false).expect("is made");
    store.fork_branch(&own, "fix", "try", false).expect("is made");
    for name in ["try", "fix"] {
        store.mount_branch(&own, name, Path::new(name)).expect("is mounted");
    }
    world
}

#[test]
fn merge_of_a_branch_that_is_made_anew_while_both_are_unmounted_is_refused() {
    let world = world_with_mounted_kin();
    let (store, own) = (world.mounted(), Caller::own());
    let authorized = world.fs.branches().get("fix").expect("is there").id;
    *world.branch_mounts.on_unmount.lock() = Some(("try".into(), |parent| {
        let fix = parent.branches().get("fix").expect("is there");
        parent.branches().delete(&fix).expect("is deleted");
        parent.branches().fork("fix", fix.uid).expect("is made anew");
    }));
    let refused = store.merge_branch(&own, "fix", None).expect_err("is another one");
    assert_eq!(refused.to_string(), "there is no branch \"fix\"; `kvfs branch list` shows them");
    let lines = store.list_branches(&own).expect("are read");
    let found: Vec<_> = lines.iter().map(|line| (&*line.name, &*line.dir)).collect();
    assert_eq!(found, [("try", &b"try"[..]), ("fix", &b""[..])], "the other one is not mounted");
    assert_ne!(lines[1].id, authorized.0);
}

#[test]
fn branch_that_is_made_anew_after_it_was_authorized_is_not_used_in_its_place() {
    let world = world_with_mounted_kin();
    let (store, own) = (world.mounted(), Caller::own());
    for name in ["fix", "try"] {
        store.unmount_branch(&own, name).expect("is unmounted");
    }
    let gone = ["fix", "try"].map(|name| world.fs.branches().get(name).expect("is there"));
    for name in ["fix", "try"] {
        store.delete_branch(&own, name).expect("is deleted");
    }
    store.create_branch(&own, "try", (b"/", None), false).expect("is made anew");
    store.fork_branch(&own, "fix", "try", false).expect("is made anew");
    for branch in &gone {
        let is_gone = |used: Result<(), FsError>| assert!(matches!(used, Err(FsError::NotFound)));
        is_gone(kvfs_fs::open_branch(&world.fs, branch).map(drop));
        is_gone(kvfs_fs::begin_merge(&world.fs, branch, 1).map(drop));
        is_gone(world.fs.branches().delete(branch));
        assert!(world.branches.mount(branch, Path::new("x"), &own).is_err());
    }
    assert!(matches!(kvfs_fs::merge_into_parent(&world.fs, &gone[0], None), Err(FsError::NotFound)));
    assert_eq!(store.list_branches(&own).expect("are read").len(), 2);
}

fn the_line(store: &ServedStore<'_>) -> BranchLine {
    store.list_branches(&Caller::own()).expect("are read").remove(0)
}

#[test]
fn branch_that_is_not_kept_when_it_is_unmounted_from_outside_is_refused_until_it_is() {
    let world = World::with_branch_not_kept();
    let (store, own) = (world.mounted(), Caller::own());
    let uses: [(&str, &dyn Fn() -> Result<()>); 5] = [
        ("create --of", &|| store.fork_branch(&own, "fix", "try", false)),
        ("merge", &|| store.merge_branch(&own, "try", None)),
        ("mount", &|| store.mount_branch(&own, "try", Path::new("again"))),
        ("umount", &|| store.unmount_branch(&own, "try")),
        ("sync", &|| store.sync().map(drop)),
    ];
    for (what, attempt) in uses {
        let refused = attempt().expect_err(what).to_string();
        for part in ["is not kept yet: ", "no space", "`kvfs branch delete try`"] {
            assert!(refused.contains(part), "{what}: {part}: {refused}");
        }
    }
    assert!(
        the_line(&store).not_kept.is_some_and(|why| why.contains("no space"))
            && the_line(&store).dir.is_empty()
    );
    let health = store.health();
    assert_eq!(health.branches_not_kept, 1);
    assert!(health.trouble().is_some_and(|trouble| trouble.contains("1 unmounted branch")));
    assert_eq!(store.branch_diff(&own, "try").expect("is compared").len(), 1, "all is there");
    world.model.refuse_checkpoints(false);
    store.fork_branch(&own, "fix", "try", false).expect("is kept first");
    assert!(has_file(&world.fs.open_branch("fix").expect("opens"), "late"));
    assert!(has_file(&world.fs.open_branch("try").expect("opens"), "late"));
    assert!(the_line(&store).not_kept.is_none());
    assert_eq!(store.health().branches_not_kept, 0);
}

type Use = dyn Fn(&ServedStore<'_>, &Caller) -> Result<()>;

#[test]
fn branch_that_is_not_kept_is_kept_by_the_first_use_that_can() {
    let uses: [(&str, &Use); 4] = [
        ("merge", &|store, own| store.merge_branch(own, "try", None)),
        ("mount", &|store, own| store.mount_branch(own, "try", Path::new("dir"))),
        ("list", &|store, own| store.list_branches(own).map(drop)),
        ("diff", &|store, own| store.branch_diff(own, "try").map(drop)),
    ];
    for (what, attempt) in uses {
        let world = World::with_branch_not_kept();
        let (store, own) = (world.mounted(), Caller::own());
        // Found by the clock, or by the use.
        while what == "list" && world.branches.count_not_kept() == 0 {
            std::thread::yield_now();
        }
        world.model.refuse_checkpoints(false);
        attempt(&store, &own).expect(what);
        assert_eq!(world.branches.count_not_kept(), 0, "{what}");
        let id = world.fs.branches().get("try").map(|branch| branch.id);
        let view = id.map_or_else(|_| Some(Arc::clone(&world.fs)), |id| world.branches.view(id));
        let view = view.unwrap_or_else(|| world.fs.open_branch("try").expect("opens"));
        assert!(has_file(&view, "late"), "{what}");
    }
}

#[test]
fn branch_that_is_not_kept_can_be_deleted_on_a_full_store() {
    let world = World::with_branch_not_kept();
    let (store, own) = (world.mounted(), Caller::own());
    assert!(store.merge_branch(&own, "try", None).is_err());
    store.delete_branch(&own, "try").expect("is deleted");
    assert!(store.list_branches(&own).expect("are read").is_empty());
    assert_eq!(store.health().branches_not_kept, 0);
    store.create_branch(&own, "try", (b"/", None), false).expect_err("is full");
    world.model.refuse_checkpoints(false);
    store.create_branch(&own, "try", (b"/", None), false).expect("the name is free");
}

/// A sync that can't be vouched for because of one branch is one of all others and the main line.
#[test]
fn branch_that_is_not_kept_is_in_the_way_of_no_other_one() {
    let world = World::with_branch_not_kept();
    let (store, own) = (world.mounted(), Caller::own());
    let not_kept = world.fs.branches().get("try").expect("is there").id;
    world.model.refuse_checkpoints_of(move |id| id == not_kept);
    store.create_branch(&own, "other", (b"/", None), false).expect("is made");
    store.mount_branch(&own, "other", Path::new("other")).expect("is mounted");
    let other = world.fs.branches().get("other").expect("is there").id;
    make_file(&world.branches.view(other).expect("is mounted"), "new", 0);
    let saved = || {
        let all = world.model.checkpointed();
        all.iter().find(|info| info.id == other).expect("is there").operations
    };
    let before = saved();
    let refused = store.sync().expect_err("one is not kept");
    assert!(refused.to_string().contains("branch \"try\""), "{refused}");
    assert!(saved() > before, "the other one is");
}

#[test]
fn merge_is_waited_for_no_longer_than_a_transaction() {
    let world = World::new(false);
    let (store, own) = (world.mounted(), Caller::own());
    make_file(&world.fs, "shared", 0);
    store.create_branch(&own, "try", (b"/", None), false).expect("is made");
    let view = world.fs.open_branch("try").expect("opens");
    kvfs_fs::settled(|caller| view.unlink(caller, NodeId::ROOT, b"shared")).expect("is removed");
    view.branches().checkpoint().expect("is kept");
    view.txn().expect("is one").abort();
    drop(view);
    // No transaction is open, and this one takes its time.
    let branch = world.fs.branches().get("try").expect("is there");
    let merging = kvfs_fs::begin_merge(&world.fs, &branch, 1).expect("locks what it brings in");
    kvfs_fs::settled(|caller| world.fs.unlink(caller, NodeId::ROOT, b"shared")).expect("has waited");
    assert!(merging.txn().expect("is one").doom().is_some(), "it has given way");
}
