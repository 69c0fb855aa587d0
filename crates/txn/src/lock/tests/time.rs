//! Time-outs, with a clock that stands still.

use super::*;
use crate::{DoomReason, Rival};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn the_main_line_waits_a_second_and_then_the_holders_are_doomed() {
    let fixture = Fixture::new();
    let (one, two, other) = (fixture.begin(1), fixture.begin(2), fixture.begin(3));
    let read = [Want::shared(identity(1))];
    fixture.lock(&one, &read).unwrap();
    fixture.lock(&two, &read).unwrap();
    fixture.lock(&other, &[Want::shared(identity(2))]).unwrap();
    assert_eq!(fixture.admission.tick(), None);
    let parked = ticket(fixture.main(&[Want::exclusive(identity(1))]));
    fixture.clock.advance(ms(900));
    assert_eq!(fixture.admission.tick(), Some(ms(100)));
    assert!(!parked.is_ready());
    fixture.clock.advance(ms(100));
    assert_eq!(fixture.admission.tick(), None);
    assert!(parked.is_ready() && other.doomed().is_none());
    for owner in [&one, &two] {
        let doomed = owner.doomed().unwrap();
        assert_eq!(doomed.reason, DoomReason::MainLine);
        assert_eq!((doomed.rival, doomed.name), (Some(Rival::Main { pid: 7 }), Some(identity(1).into())));
    }
    let want = [Want::exclusive(identity(1))];
    fixture.admission.try_acquire(Party::Main { pid: 7 }, &want, |_| true, Some(&parked)).unwrap();
    drop((one, two, other, parked));
    assert!(fixture.is_idle());
}

#[test]
fn the_second_counts_over_all_locks_that_one_operation_meets() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    fixture.lock(&one, &[Want::exclusive(identity(1))]).unwrap();
    fixture.lock(&two, &[Want::exclusive(identity(2))]).unwrap();
    let wants = [Want::shared(identity(1)), Want::shared(identity(2))];
    let parked = ticket(fixture.main(&wants));
    fixture.clock.advance(ms(600));
    one.end();
    assert!(parked.is_ready());
    fixture.clock.advance(ms(300));
    let main = Party::Main { pid: 7 };
    let parked = ticket(fixture.admission.try_acquire(main, &wants, |_| true, Some(&parked)).map(drop));
    assert!(!parked.is_ready());
    fixture.clock.advance(ms(100));
    fixture.admission.tick();
    assert!(parked.is_ready() && two.doomed().is_some());
}

#[test]
fn a_holder_that_commits_is_waited_for() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    fixture.lock(&one, &[Want::exclusive(identity(1))]).unwrap();
    one.begin_commit().unwrap();
    let parked = ticket(fixture.main(&[Want::shared(identity(1))]));
    fixture.clock.advance(ms(5000));
    fixture.admission.tick();
    assert!(!parked.is_ready() && one.doomed().is_none());
    one.decide().unwrap();
    one.end();
    assert!(parked.is_ready());
}

#[test]
fn a_transaction_waits_for_a_lock_as_long_as_it_said() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    let traits = TxnTraits { lock_wait_max: Some(ms(300)), ..TxnTraits::default() };
    let two = fixture.begin_as(2, &traits);
    fixture.lock(&one, &[Want::exclusive(identity(1))]).unwrap();
    fixture.lock(&two, &[Want::exclusive(identity(2))]).unwrap();
    let parked = ticket(fixture.lock(&two, &[Want::shared(identity(1))]));
    fixture.clock.advance(ms(299));
    assert_eq!(fixture.admission.tick(), Some(ms(1)));
    fixture.clock.advance(ms(1));
    fixture.admission.tick();
    assert!(parked.is_ready() && one.doomed().is_none());
    let refused = fixture.admission.try_lock(&two, &[Want::shared(identity(1))], Some(&parked));
    let doomed = doom(refused);
    assert_eq!((doomed.reason, doomed.rival), (DoomReason::LockTimeout, Some(one.state.rival())));
    assert_eq!(fixture.admission.list().len(), 1, "its own locks are gone");
}

#[test]
fn a_transaction_without_patience_is_refused_at_once() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    let two = fixture.begin_as(2, &TxnTraits { lock_wait_max: Some(Duration::ZERO), ..TxnTraits::default() });
    fixture.lock(&one, &[Want::exclusive(identity(1))]).unwrap();
    let refused = fixture.lock(&two, &[Want::shared(identity(1))]);
    assert_eq!(doom(refused).reason, DoomReason::LockTimeout);
}

#[test]
fn a_transaction_takes_as_long_as_it_may() {
    let fixture = Fixture::new();
    let one = fixture.begin_as(1, &TxnTraits { timeout: Some(ms(1000)), ..TxnTraits::default() });
    let two = fixture.begin_as(2, &TxnTraits { timeout: Some(ms(1000)), ..TxnTraits::default() });
    fixture.lock(&one, &[Want::exclusive(identity(1))]).unwrap();
    two.begin_commit().unwrap();
    assert_eq!(fixture.admission.tick(), Some(ms(1000)));
    fixture.clock.advance(ms(1000));
    assert_eq!(fixture.admission.tick(), None);
    assert_eq!(one.doomed().unwrap().reason, DoomReason::TimedOut);
    assert!(two.doomed().is_none(), "its commit has begun in time");
    assert_eq!(fixture.admission.bytes(), 0);
}
