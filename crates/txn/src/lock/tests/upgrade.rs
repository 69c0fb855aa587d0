//! An owner and what it holds already.

use super::*;
use crate::{DoomReason, Mode};

#[test]
fn an_owner_never_stops_itself() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    for mode in [Mode::Shared, Mode::Increment, Mode::Exclusive, Mode::Shared] {
        for name in [entry(1, b"a"), LockName::Entries { directory: 1 }, blocks(2, 6), blocks(4, 8)] {
            fixture.lock(&one, &[Want { name, mode }]).unwrap();
        }
    }
    let all: Vec<String> =
        fixture.admission.list().iter().map(|info| format!("{} {}", info.name, info.mode)).collect();
    assert_eq!(all, ["all entries of directory 1 exclusive", "blocks 2..8 of inode 9 exclusive"]);
}

#[test]
fn shared_becomes_exclusive_when_the_other_sharers_are_gone() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    let (read, write) = ([Want::shared(identity(1))], [Want::exclusive(identity(1))]);
    fixture.lock(&one, &read).unwrap();
    fixture.lock(&two, &read).unwrap();
    let parked = ticket(fixture.lock(&one, &write));
    two.end();
    assert!(parked.is_ready());
    fixture.admission.try_lock(&one, &write, Some(&parked)).unwrap();
    assert!(fixture.main(&read).is_err());
}

#[test]
fn upgrade_of_a_held_lock_goes_before_its_waiters() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    let (read, write) = ([Want::shared(identity(1))], [Want::exclusive(identity(1))]);
    fixture.lock(&one, &read).unwrap();
    let parked = ticket(fixture.lock(&two, &write));
    fixture.lock(&one, &write).unwrap();
    assert!(!parked.is_ready() && one.doomed().is_none() && two.doomed().is_none());
}

#[test]
fn two_upgrades_of_one_name_are_a_deadlock() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    let (read, write) = ([Want::shared(identity(1))], [Want::exclusive(identity(1))]);
    fixture.lock(&one, &read).unwrap();
    fixture.lock(&two, &read).unwrap();
    let parked = ticket(fixture.lock(&one, &write));
    assert_eq!(doom(fixture.lock(&two, &write)).reason, DoomReason::Deadlock);
    assert!(parked.is_ready());
    fixture.admission.try_lock(&one, &write, Some(&parked)).unwrap();
}

#[test]
fn increment_and_shared_of_one_owner_are_exclusive_against_others() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    let name = LockName::Counters { directory: 1 };
    fixture.lock(&one, &[Want::increment(name)]).unwrap();
    fixture.main(&[Want::increment(name)]).unwrap();
    fixture.lock(&one, &[Want::shared(name)]).unwrap();
    assert!(fixture.main(&[Want::increment(name)]).is_err());
    assert!(fixture.main(&[Want::shared(name)]).is_err());
}
