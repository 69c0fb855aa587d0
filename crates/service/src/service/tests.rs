//! What front ends share of a store, from opening to closing.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::testing::{TestEngine, World, assert_denied, make_file, stranger};
use crate::transactions::Begin;

fn service(world: &World) -> Service {
    service_on(world, TestEngine::default())
}

fn service_on(world: &World, engine: TestEngine) -> Service {
    let undo = UndoLimits { count_max: 10, age_max: std::time::Duration::from_mins(1) };
    let engine = TestEngine { is_closed: Arc::clone(&world.engine.is_closed), ..engine };
    Service::new(Opened { fs: Arc::clone(&world.fs), engine: Box::new(engine), undo })
}

#[test]
fn closed_service_answers_nothing_and_has_closed_the_engine() {
    let world = World::new(false);
    let service = service(&world);
    assert!(service.health().is_some() && !service.stats(&Caller::own()).is_empty());
    service.close().expect("closes");
    assert!(world.engine.is_closed.load(Ordering::Relaxed));
    assert!(service.health().is_none() && service.with(|_| ()).is_none());
    assert!(service.stats(&Caller::own()).is_empty());
    service.close().expect("does nothing");
}

#[test]
fn transactions_are_served_from_the_mount_on() {
    let world = World::new(false);
    let (service, own) = (service(&world), Caller::own());
    let refused = service.commit(&own, 1, Durability::Buffered).expect_err("is not mounted");
    assert_eq!(refused.kind(), ErrorKind::NotMounted);
    assert_eq!(service.leave(&own, Leave::IfNoneIsOpen).expect("nothing is open"), Vec::<String>::new());
    service.serve_transactions(&world.transactions, &world.branches);
    let id = world.transactions.begin(&own, Begin::default()).expect("begins");
    make_file(&world.transactions.view(&own, id).expect("is open"), "new", own.uid);
    let outcome = service.commit(&own, id, Durability::Synced).expect("commits");
    assert_eq!(outcome, CommitOutcome { has_changes: true, is_kept: true });
    let id = world.transactions.begin(&own, Begin::default()).expect("begins");
    let outcome = service.commit(&own, id, Durability::Buffered).expect("commits");
    assert_eq!(outcome, CommitOutcome { has_changes: false, is_kept: false });
}

#[test]
fn store_is_left_by_those_that_may_and_as_they_say() {
    let world = World::new(false);
    let (service, own) = (service(&world), Caller::own());
    service.serve_transactions(&world.transactions, &world.branches);
    for how in [Leave::IfNoneIsOpen, Leave::Abort, Leave::Keep] {
        assert_denied(
            service.leave(&stranger(), how),
            "only root and the user that has mounted the store unmount it",
        );
    }
    world.transactions.begin(&own, Begin::default()).expect("begins");
    let in_use = service.leave(&own, Leave::IfNoneIsOpen).expect_err("one is open");
    assert_eq!(in_use.kind(), ErrorKind::InUse);
    service.leave(&own, Leave::Abort).expect("aborts");
    assert!(world.transactions.list(&own).is_empty());
    let id = world.transactions.begin(&own, Begin::default()).expect("begins");
    let kept = service.leave(&own, Leave::Keep).expect("keeps");
    assert_eq!(kept, [format!("txn-{id}")]);
}

/// Nothing that was acknowledged in it is given up by an unmount of the store.
#[test]
fn store_with_a_branch_that_is_not_kept_is_not_left_until_it_is() {
    let world = World::with_branch_not_kept();
    let (service, own) = (service(&world), Caller::own());
    service.serve_transactions(&world.transactions, &world.branches);
    for how in [Leave::IfNoneIsOpen, Leave::Abort, Leave::Keep] {
        let refused = service.leave(&own, how).expect_err("something would be lost").to_string();
        assert!(refused.contains("`kvfs branch delete try`"), "{refused}");
    }
    world.model.refuse_checkpoints(false);
    service.leave(&own, Leave::IfNoneIsOpen).expect("is kept now");
    assert_eq!(world.branches.count_not_kept(), 0);
    // In a store that has failed nothing can be kept any more.
    let world = World::with_branch_not_kept();
    let engine = TestEngine { failure: Some("no device".to_owned()), ..TestEngine::default() };
    let service = service_on(&world, engine);
    service.serve_transactions(&world.transactions, &world.branches);
    service.leave(&own, Leave::IfNoneIsOpen).expect("there is no other way");
}

#[test]
fn store_that_is_being_checked_and_compared_is_closed_at_once() {
    let world = World::new(false);
    let (has_begun, compares) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let engine = TestEngine { endless_check: Some(Arc::clone(&has_begun)), ..TestEngine::default() };
    let (service, own) = (service_on(&world, engine), Caller::own());
    let endless = || {
        let begin = || loop {
            kvfs_store::progress::check_wanted()?;
            compares.store(true, Ordering::Relaxed);
            std::thread::yield_now();
        };
        let compared = Compared::Snapshots(None, None);
        service.with(|_| service.compare(&own, compared, (0, 1, 1), begin)).expect("is open")
    };
    std::thread::scope(|scope| {
        let check = scope.spawn(|| service.with(|store| store.check(&own)).expect("is open"));
        let compared = scope.spawn(endless);
        while !has_begun.load(Ordering::Relaxed) || !compares.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        service.close().expect("closes");
        let errors = [check.join().expect("returns").err(), compared.join().expect("returns").err()];
        assert!(errors.into_iter().all(|error| error.is_some_and(|e| e.kind() == ErrorKind::NotMounted)));
    });
    assert!(world.engine.is_closed.load(Ordering::Relaxed));
}
