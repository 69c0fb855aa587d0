//! Who verifies a store, and what of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::lines::SelectionLine;
use crate::testing::{Line, TestEngine, World, assert_denied, has_file, make_file, stranger};

#[test]
fn owner_of_a_store_that_another_user_serves_has_one_check_at_a_time() {
    let owner = Caller::of_mount(Caller::own().uid + 2000, 1);
    let world = World::owned_by(owner.uid, false);
    let running = world.checks.lock();
    let refused = world.mounted().check(&owner).expect_err("is refused");
    assert_eq!(refused.kind(), ErrorKind::InUse);
    world.mounted().check(&Caller::own()).expect("is the server's");
    drop(running);
    world.mounted().check(&owner).expect("is the only one");
}

#[test]
fn check_tells_findings_of_the_engine_and_counts_of_both() {
    let mut world = World::new(false);
    let findings = vec!["run 3: wrong checksum".to_owned(), "odd".to_owned()];
    world.engine = TestEngine { findings, ..TestEngine::default() };
    let store = world.unmounted();
    assert_denied(store.check(&stranger()), "only root and the store's owner check the store");
    let checked = store.check(&Caller::own()).expect("checks");
    let places: Vec<&str> = checked.findings.iter().map(|finding| &*finding.place).collect();
    assert_eq!(places, ["run 3", "store"]);
    let names: Vec<&str> = checked.counts.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["runs", "directories", "files", "names", "orphans", "extended attributes"]);
}

#[test]
fn check_whose_caller_has_gone_is_given_up_and_lets_the_next_one_begin() {
    let mut world = World::new(false);
    let (has_begun, line) = (Arc::new(AtomicBool::new(false)), Arc::new(Line::default()));
    world.engine = TestEngine { endless_check: Some(Arc::clone(&has_begun)), ..TestEngine::default() };
    let caller = Line::caller(&line);
    std::thread::scope(|scope| {
        let check = scope.spawn(|| world.mounted().check(&caller));
        while !has_begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        line.is_gone.store(true, Ordering::Relaxed);
        let error = check.join().expect("returns").expect_err("is given up");
        assert_eq!(error.kind(), ErrorKind::NotMounted);
    });
    assert!(world.checks.try_lock().is_some());
}

#[test]
fn long_work_whose_caller_has_gone_is_given_up_and_nothing_of_it_stays() {
    let world = World::new(false);
    let (store, own) = (world.mounted(), Caller::own());
    store.create_snapshot(&own, "monday", false, false).expect("is made");
    let txn = world.transactions.carry_out(&kvfs_fs::BeginOptions::default(), |view| {
        make_file(view, "new", own.uid);
        Ok(())
    });
    let txn = txn.expect("commits");
    let line = Arc::new(Line::default());
    let caller = Line::caller(&line);
    line.is_gone.store(true, Ordering::Relaxed);
    let given_up = |what, error: Option<ServiceError>| {
        let error = error.unwrap_or_else(|| panic!("{what} is given up"));
        assert_eq!(error.kind(), ErrorKind::NotMounted, "{what}: {error}");
    };
    given_up("a check", store.check(&caller).err());
    given_up("a count", store.turn_quotas_on(&caller, false).err());
    given_up("a search for projects", store.project_trees(&caller).err());
    given_up("a restore", store.restore_snapshot(&caller, "monday", &[]).err());
    let selection = SelectionLine::default;
    given_up("a look at an undo", store.undo_obstacles(&caller, txn, selection()).err());
    given_up("an undo", store.take_back(&caller, txn, selection()).err());
    assert!(has_file(&world.fs, "new") && !world.fs.quotas().are_on());
    assert!(world.transactions.list(&own).is_empty());
    store.restore_snapshot(&own, "monday", &[]).expect("restores");
    assert!(!has_file(&world.fs, "new"));
    store.turn_quotas_on(&own, false).expect("are on");
    given_up("a count of exclusive bytes", store.quota_report(&caller, true).err());
}
