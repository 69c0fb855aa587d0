//! Operations that are refused for a moment, and come again.

use super::*;
use crate::lock::kept::{KEEP_MAX, KEPT_MAX};

const OPERATION: u64 = 42;

/// An operation outside of transactions on `wants` finds them free, and is refused.
fn refuse(fixture: &Fixture, operation: u64, wants: &[Want<'_>], again: Option<&Ticket>) {
    let guard = fixture.admission.try_acquire(Party::Main { pid: 7 }, wants, |_| true, again);
    guard.unwrap().keep_places(operation, wants);
}

/// Its next try, which does what it wants.
fn come_again(fixture: &Fixture, wants: &[Want<'_>]) {
    let again = fixture.admission.kept_places(|| OPERATION).unwrap();
    fixture.admission.try_acquire(Party::Main { pid: 7 }, wants, |_| true, Some(&again)).unwrap();
}

#[test]
fn transaction_waits_for_the_next_try_of_an_operation_that_was_refused() {
    let fixture = Fixture::new();
    let wants = [entry(1, b"from"), entry(1, b"to"), entry(2, b"to")].map(Want::exclusive);
    let owners = [1, 2, 3].map(|id| fixture.begin(id));
    refuse(&fixture, OPERATION, &wants, None);
    assert_eq!(fixture.admission.latches().held_count(), 0);
    let waiting: Vec<Ticket> =
        owners.iter().zip(&wants).map(|(owner, want)| ticket(fixture.lock(owner, &[*want]))).collect();
    assert!(fixture.lock(&owners[0], &[Want::exclusive(entry(2, b"from"))]).is_ok());
    assert!(fixture.main(&wants).is_ok(), "what keeps nothing waits for none");
    assert!(fixture.admission.kept_places(|| OPERATION + 1).is_none());
    assert!(waiting.iter().all(|waiting| !waiting.is_ready()));
    come_again(&fixture, &wants);
    assert!(waiting.iter().all(Ticket::is_ready));
    for ((owner, want), waiting) in owners.iter().zip(&wants).zip(&waiting) {
        fixture.admission.try_lock(owner, &[*want], Some(waiting)).unwrap();
    }
    drop((owners, waiting));
    assert!(fixture.is_idle());
}

#[test]
fn operation_that_waited_and_was_refused_comes_before_what_waits_behind_it() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    let wants = [Want::exclusive(entry(1, b"name"))];
    fixture.lock(&one, &wants).unwrap();
    let first = ticket(fixture.main(&wants));
    let second = ticket(fixture.lock(&two, &wants));
    one.end();
    assert!(first.is_ready() && !second.is_ready());
    refuse(&fixture, OPERATION, &wants, Some(&first));
    drop(first);
    assert!(!second.is_ready());
    come_again(&fixture, &wants);
    assert!(second.is_ready());
}

#[test]
fn places_are_kept_for_a_moment_and_of_so_many_operations() {
    let fixture = Fixture::new();
    let two = fixture.begin(2);
    let wants = [Want::exclusive(entry(1, b"name"))];
    refuse(&fixture, OPERATION, &wants, None);
    let waiting = ticket(fixture.lock(&two, &wants));
    assert_eq!(fixture.admission.tick(), Some(KEEP_MAX));
    assert!(!waiting.is_ready());
    fixture.clock.advance(KEEP_MAX);
    fixture.admission.tick();
    assert!(waiting.is_ready() && fixture.admission.kept_places(|| OPERATION).is_none());
    fixture.admission.try_lock(&two, &wants, Some(&waiting)).unwrap();
    two.end();
    refuse(&fixture, OPERATION, &wants, None);
    fixture.clock.advance(KEEP_MAX);
    let three = fixture.begin(3);
    let late = ticket(fixture.lock(&three, &wants));
    assert!(late.is_ready(), "nothing has looked meanwhile");
    drop((two, waiting, three, late));
    assert!(fixture.is_idle());

    for operation in 0..=KEPT_MAX as u64 {
        refuse(&fixture, operation, &wants, None);
    }
    let kept = (0..=KEPT_MAX as u64).filter_map(|operation| fixture.admission.kept_places(|| operation));
    assert_eq!(kept.count(), KEPT_MAX);
    assert!(fixture.is_idle());
}
