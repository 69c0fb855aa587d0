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
fn a_shared_lock_of_another_user_gives_way_to_a_transaction_in_time() {
    let fixture = Fixture::new();
    let begin = |id, uid| {
        let owner = Owner { uid, pid: 1, name: "p".into() };
        fixture.admission.begin(TxnId(id), TxnTraits { owner, ..TxnTraits::default() })
    };
    let (reader, own, writer, root) = (begin(1, 1000), begin(2, 0), begin(3, 1001), begin(4, 0));
    fixture.lock(&reader, &[Want::shared(identity(1))]).unwrap();
    fixture.lock(&own, &[Want::shared(identity(1)), Want::shared(identity(2))]).unwrap();
    fixture.lock(&writer, &[Want::exclusive(identity(3))]).unwrap();
    let want = [Want::exclusive(identity(1))];
    let parked = ticket(fixture.lock(&root, &want));
    let behind = ticket(fixture.lock(&root, &[Want::exclusive(identity(3))]));
    fixture.clock.advance(ms(9_999));
    assert_eq!(fixture.admission.tick(), Some(ms(1)));
    assert!(reader.doomed().is_none());
    fixture.clock.advance(ms(1));
    fixture.admission.tick();
    let doomed = reader.doomed().unwrap();
    assert_eq!((doomed.reason, doomed.rival), (DoomReason::MainLine, Some(root.state.rival())));
    assert_eq!(doomed.name, Some(identity(1).into()), "it is told over what");
    assert!(own.doomed().is_none() && !parked.is_ready(), "transactions of one user wait for each other");
    assert!(
        writer.doomed().is_none() && !behind.is_ready(),
        "what may be written is locked as long as it takes"
    );
    own.end();
    fixture.admission.try_lock(&root, &want, Some(&parked)).unwrap();
}

#[test]
fn a_transaction_that_gives_up_before_leaves_readers_alone() {
    let fixture = Fixture::new();
    let owner = Owner { uid: 0, pid: 1, name: "p".into() };
    let traits = TxnTraits { lock_wait_max: Some(ms(5_000)), owner, ..TxnTraits::default() };
    let (reader, root) = (fixture.begin(1), fixture.admission.begin(TxnId(2), traits));
    fixture.lock(&reader, &[Want::shared(identity(1))]).unwrap();
    let _parked = ticket(fixture.lock(&root, &[Want::exclusive(identity(1))]));
    assert_eq!(fixture.admission.tick(), Some(ms(5_000)));
    fixture.clock.advance(ms(20_000));
    fixture.admission.tick();
    assert_eq!(root.doomed().unwrap().reason, DoomReason::LockTimeout);
    assert!(reader.doomed().is_none());
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

#[test]
fn transaction_without_operations_ends_by_its_idle_timeout() {
    let fixture = Fixture::new();
    let traits = TxnTraits { idle_max: Some(ms(1000)), ..TxnTraits::default() };
    let (one, two) = (fixture.begin_as(1, &traits), fixture.begin_as(2, &traits));
    fixture.lock(&one, &[Want::exclusive(identity(1))]).unwrap();
    fixture.clock.advance(ms(900));
    two.touch();
    assert_eq!(fixture.admission.tick(), Some(ms(100)));
    fixture.clock.advance(ms(100));
    assert_eq!(fixture.admission.tick(), Some(ms(900)));
    let doom = one.doomed().unwrap();
    assert_eq!(doom.reason, DoomReason::Idle { idle_max_ms: 1000 });
    assert!(doom.to_string().contains("idle time-out: no operation for 1 s"), "{doom}");
    assert_eq!(fixture.admission.bytes(), 0, "its locks are gone");
    assert!(two.doomed().is_none());
    assert_eq!(two.idle(), ms(100));
    two.begin_commit().unwrap();
    fixture.clock.advance(ms(5000));
    fixture.admission.tick();
    assert!(two.doomed().is_none(), "a commit is no idle time");
}
