//! Cycles of waiting, and which member gives way.

use super::*;
use crate::{DoomReason, Rival};

fn nice(priority: i32) -> TxnTraits {
    TxnTraits { priority, ..TxnTraits::default() }
}

fn write(directory: u64) -> [Want<'static>; 1] {
    [Want::exclusive(identity(directory))]
}

#[test]
fn of_equals_the_youngest_gives_way() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    fixture.lock(&one, &write(1)).unwrap();
    fixture.lock(&two, &write(2)).unwrap();
    let parked = ticket(fixture.lock(&two, &write(1)));
    let other = ticket(fixture.lock(&one, &write(2)));
    let doomed = two.doomed().unwrap();
    assert_eq!(doomed.reason, DoomReason::Deadlock);
    assert_eq!(doomed.rival, Some(one.state.rival()));
    assert_eq!(doomed.name, Some(identity(1).into()));
    assert!(parked.is_ready() && other.is_ready(), "locks of the doomed are free at once");
    fixture.admission.try_lock(&one, &write(2), Some(&other)).unwrap();
    assert_eq!(doom(fixture.admission.try_lock(&two, &write(1), Some(&parked))), doomed);
    drop((one, two, parked, other));
    assert!(fixture.is_idle());
}

#[test]
fn cycle_closed_by_any_member_dooms_the_least_important() {
    for order in [[1_u64, 2, 3], [2, 3, 1], [3, 1, 2]] {
        let fixture = Fixture::new();
        let owners =
            [fixture.begin_as(1, &nice(5)), fixture.begin_as(2, &nice(0)), fixture.begin_as(3, &nice(-5))];
        for owner in &owners {
            fixture.lock(owner, &write(owner.id().0)).unwrap();
        }
        for id in order {
            let _ = fixture.lock(&owners[id as usize - 1], &write(id % 3 + 1)).map_err(std::mem::forget);
        }
        let doomed: Vec<bool> = owners.iter().map(|owner| owner.doomed().is_some()).collect();
        assert_eq!(doomed, [true, false, false], "{order:?}");
    }
}

#[test]
fn a_committing_member_is_spared() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    fixture.lock(&one, &write(1)).unwrap();
    fixture.lock(&two, &write(2)).unwrap();
    two.begin_commit().unwrap();
    let parked = ticket(fixture.lock(&two, &write(1)));
    assert_eq!(doom(fixture.lock(&one, &write(2))).reason, DoomReason::Deadlock);
    assert!(parked.is_ready() && two.doomed().is_none());
}

#[test]
fn several_threads_of_one_transaction_wait_at_once() {
    let fixture = Fixture::new();
    let (one, two, three) = (fixture.begin(1), fixture.begin(2), fixture.begin(3));
    for owner in [&one, &two, &three] {
        fixture.lock(owner, &write(owner.id().0)).unwrap();
    }
    let _first = ticket(fixture.lock(&one, &write(2)));
    let _second = ticket(fixture.lock(&one, &write(3)));
    assert_eq!(doom(fixture.lock(&three, &write(1))).reason, DoomReason::Deadlock);
    assert!(one.doomed().is_none() && two.doomed().is_none());
}

#[test]
fn a_lock_granted_while_another_thread_waits_can_close_the_cycle() {
    let fixture = Fixture::new();
    let (one, two, three) = (fixture.begin(1), fixture.begin(2), fixture.begin_as(3, &nice(-5)));
    fixture.lock(&two, &write(2)).unwrap();
    fixture.lock(&one, &[Want::shared(identity(1))]).unwrap();
    let _two = ticket(fixture.lock(&two, &write(1)));
    let _three = ticket(fixture.lock(&three, &write(2)));
    // More important, so it is not stopped by the writer that waits, but stops it from now on.
    fixture.lock(&three, &[Want::shared(identity(1))]).unwrap();
    assert_eq!(two.doomed().unwrap().reason, DoomReason::Deadlock);
    assert!(one.doomed().is_none() && three.doomed().is_none());
}

#[test]
fn waiter_in_a_cycle_behind_a_queue_passes_it_undoomed() {
    let fixture = Fixture::new();
    let (one, two, three) = (fixture.begin(1), fixture.begin(2), fixture.begin(3));
    let read = [Want::shared(identity(1))];
    fixture.lock(&one, &read).unwrap();
    fixture.lock(&two, &write(2)).unwrap();
    let writer = ticket(fixture.lock(&three, &write(1)));
    let reader = ticket(fixture.lock(&two, &read));
    // No holder stands against what the reader wants: it waits for its turn. Now the holder waits for the
    // reader.
    let holder = ticket(fixture.lock(&one, &write(2)));
    assert!([&one, &two, &three].iter().all(|owner| owner.doomed().is_none()));
    assert!(reader.is_ready() && !writer.is_ready() && !holder.is_ready());
    fixture.admission.try_lock(&two, &read, Some(&reader)).unwrap();
    two.end();
    assert!(holder.is_ready() && !writer.is_ready());
}

#[test]
fn waiter_in_a_cycle_behind_the_main_line_passes_it() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    fixture.lock(&one, &[Want::shared(identity(1))]).unwrap();
    fixture.lock(&two, &write(2)).unwrap();
    let main = ticket(fixture.main(&write(1)));
    let reader = ticket(fixture.lock(&two, &[Want::shared(identity(1))]));
    let _holder = ticket(fixture.lock(&one, &write(2)));
    assert!(reader.is_ready() && !main.is_ready());
    assert!(one.doomed().is_none() && two.doomed().is_none());
}

#[test]
fn long_cycles_over_many_names_end_with_one_victim() {
    let fixture = Fixture::new();
    let owners: Vec<_> = (1..=200).map(|id| fixture.begin(id)).collect();
    for owner in &owners {
        fixture.lock(owner, &write(owner.id().0)).unwrap();
    }
    let mut tickets = Vec::new();
    for owner in &owners {
        match fixture.lock(owner, &write(owner.id().0 % 200 + 1)) {
            Err(Refused::Wait(ticket)) => tickets.push(ticket),
            Err(Refused::Full(share)) => panic!("{share:?}"),
            Err(Refused::Doomed(doom)) => {
                assert_eq!(doom.rival, Some(Rival::clone(&owners[0].state.rival())));
            }
            Ok(()) => panic!("granted"),
        }
    }
    let doomed: Vec<u64> =
        owners.iter().filter(|owner| owner.doomed().is_some()).map(|owner| owner.id().0).collect();
    assert_eq!(doomed, [200]);
    assert_eq!(tickets.iter().filter(|ticket| ticket.is_ready()).count(), 1);
}

#[test]
fn main_line_that_closes_a_cycle_is_passed_by_its_waiters() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    fixture.lock(&one, &[Want::shared(identity(1))]).unwrap();
    fixture.lock(&two, &write(2)).unwrap();
    let both = [Want::exclusive(identity(1)), Want::exclusive(identity(2))];
    let main = ticket(fixture.main(&both));
    // It stands behind the main line, which does not wait for anything of it yet.
    let reader = ticket(fixture.lock(&two, &[Want::shared(identity(1))]));
    one.end();
    assert!(main.is_ready() && !reader.is_ready());
    let party = Party::Main { pid: 7 };
    let again = ticket(fixture.admission.try_acquire(party, &both, |_| true, Some(&main)).map(drop));
    assert!(reader.is_ready() && !again.is_ready() && two.doomed().is_none());
    fixture.admission.try_lock(&two, &[Want::shared(identity(1))], Some(&reader)).unwrap();
    two.end();
    assert!(again.is_ready());
}

#[test]
fn a_place_at_a_latch_is_given_up_while_its_operation_waits_for_a_lock() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    fixture.lock(&one, &write(2)).unwrap();
    let party = Party::Main { pid: 7 };
    let both = [Want::exclusive(identity(1)), Want::exclusive(identity(2))];
    let latch = fixture.admission.try_acquire(party, &write(1), |_| true, None).unwrap();
    let parked = ticket(fixture.main(&both));
    drop(latch);
    let again = ticket(fixture.admission.try_acquire(party, &both, |_| true, Some(&parked)).map(drop));
    // The holder must get through, though an older operation wants the same latch.
    fixture.lock(&one, &write(1)).unwrap();
    one.end();
    assert!(again.is_ready());
}
