//! Which locks go beside which; how locks come and go.

use kvfs_store::Keyspace;

use super::*;
use crate::{DoomReason, Fields, Mode, Phase, Rival};

#[test]
fn modes_of_two_transactions_conflict_as_the_table_says() {
    use Mode::{Exclusive, Increment, Shared};
    for (first, second, fits) in [
        (Shared, Shared, true),
        (Shared, Increment, false),
        (Shared, Exclusive, false),
        (Increment, Increment, true),
        (Increment, Exclusive, false),
        (Exclusive, Exclusive, false),
    ] {
        for (a, b) in [(first, second), (second, first)] {
            for name in [entry(1, b"a"), blocks(3, 5), identity(1)] {
                let fixture = Fixture::new();
                let (one, two) = (fixture.begin(1), fixture.begin(2));
                fixture.lock(&one, &[Want { name, mode: a }]).unwrap();
                assert_eq!(fixture.lock(&two, &[Want { name, mode: b }]).is_ok(), fits, "{a:?} {b:?} {name}");
                assert_eq!(fixture.main(&[Want { name, mode: b }]).is_ok(), fits, "{a:?} main {b:?} {name}");
            }
        }
    }
}

#[test]
fn only_overlapping_parts_conflict() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    let keys = |start, end| LockName::Keys { keyspace: Keyspace(1), start, end };
    let fields = |fields| LockName::Attributes { inode: 9, fields };
    let held = [blocks(4, 8), keys(b"b", Some(b"d")), fields(Fields::SIZE), entry(1, b"b")];
    fixture.lock(&one, &held.map(Want::exclusive)).unwrap();
    for free in [
        blocks(0, 4),
        blocks(8, u64::MAX),
        keys(b"a", Some(b"b")),
        keys(b"d", None),
        keys(b"e", Some(b"e\0")),
        fields(Fields::MODE.union(Fields::XATTRS)),
        entry(1, b"b\0"),
        entry(1, b"a"),
        entry(2, b"b"),
        LockName::Entries { directory: 2 },
        LockName::Keys { keyspace: Keyspace(2), start: b"", end: None },
        identity(9),
    ] {
        assert!(fixture.lock(&two, &[Want::exclusive(free)]).is_ok(), "{free}");
    }
    for taken in [
        blocks(7, 9),
        LockName::file(9),
        keys(b"a", Some(b"b\0")),
        keys(b"cc", Some(b"cc\0")),
        keys(b"", None),
        fields(Fields::ALL),
        entry(1, b"b"),
        LockName::Entries { directory: 1 },
    ] {
        assert!(fixture.main(&[Want::shared(taken)]).is_err(), "{taken}");
        assert!(fixture.lock(&two, &[Want::shared(taken)]).is_err(), "{taken}");
    }
}

#[test]
fn a_lock_on_all_entries_conflicts_with_each_and_a_prefix_with_each_key() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    let prefix = LockName::Keys { keyspace: Keyspace(1), start: b"user/", end: Some(b"user0") };
    fixture.lock(&one, &[Want::shared(LockName::Entries { directory: 5 }), Want::exclusive(prefix)]).unwrap();
    fixture.lock(&two, &[Want::shared(entry(5, b"x"))]).unwrap();
    let _ = ticket(fixture.lock(&two, &[Want::exclusive(entry(5, b"new"))]));
    let _ = ticket(fixture.main(&[Want::exclusive(entry(5, b"new"))]));
    let key = LockName::Keys { keyspace: Keyspace(1), start: b"user/7", end: Some(b"user/7\0") };
    let _ = ticket(fixture.main(&[Want::shared(key)]));
}

#[test]
fn locks_outlast_the_operation_and_latches_do_not() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    let want = [Want::exclusive(entry(1, b"a"))];
    let guard = fixture.admission.try_acquire(Party::Txn(&one), &want, |_| true, None).unwrap();
    assert_eq!(fixture.admission.latches().held_count(), 1);
    drop(guard);
    assert_eq!(fixture.admission.latches().held_count(), 0);
    let parked = ticket(fixture.main(&want));
    assert!(!parked.is_ready());
    one.end();
    assert!(parked.is_ready());
    assert_eq!(one.doomed().unwrap().reason, DoomReason::Ended);
    assert_eq!(doom(fixture.lock(&one, &want)).reason, DoomReason::Ended);
    drop(parked);
    assert!(fixture.is_idle());
}

#[test]
fn names_that_the_transaction_created_itself_are_not_locked() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    let wants = [Want::exclusive(entry(1, b"shared")), Want::exclusive(entry(77, b"private"))];
    let public = |want: &Want<'_>| !matches!(want.name, LockName::Entry { directory: 77, .. });
    let mut guard = fixture.admission.try_acquire(Party::Txn(&one), &wants, public, None).unwrap();
    guard.try_extend(&[Want::exclusive(identity(77))], |_| false).unwrap();
    assert_eq!(fixture.admission.latches().held_count(), 3);
    drop(guard);
    assert_eq!(fixture.admission.list().len(), 1);
}

#[test]
fn an_operation_that_must_wait_takes_none_of_its_locks() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    fixture.lock(&one, &[Want::exclusive(identity(2))]).unwrap();
    let wants = [Want::exclusive(identity(1)), Want::exclusive(identity(2))];
    let parked = ticket(fixture.lock(&two, &wants));
    assert_eq!(fixture.admission.list().len(), 1);
    drop(one);
    assert!(parked.is_ready());
    fixture.admission.try_lock(&two, &wants, Some(&parked)).unwrap();
    assert_eq!(fixture.admission.list().len(), 2);
    drop(parked);
    drop(two);
    assert!(fixture.is_idle());
}

#[test]
fn one_ticket_waits_at_a_latch_and_then_at_a_lock() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    let want = [Want::exclusive(entry(1, b"a"))];
    let latch = fixture.admission.try_acquire(Party::Txn(&one), &want, |_| true, None).unwrap();
    let parked = ticket(fixture.main(&want));
    let mut newcomer = ticket(fixture.main(&want));
    drop(latch);
    assert!(parked.is_ready() && !newcomer.is_ready());
    let main = Party::Main { pid: 7 };
    let again = ticket(fixture.admission.try_acquire(main, &want, |_| true, Some(&parked)).map(drop));
    assert!(!parked.is_ready() && !again.is_ready());
    assert!(newcomer.is_ready(), "an operation that waits for a lock stops no other at a latch");
    newcomer = ticket(fixture.admission.try_acquire(main, &want, |_| true, Some(&newcomer)).map(drop));
    one.end();
    assert!(again.is_ready() && newcomer.is_ready());
    let guard = fixture.admission.try_acquire(main, &want, |_| true, Some(&again)).unwrap();
    newcomer = ticket(fixture.admission.try_acquire(main, &want, |_| true, Some(&newcomer)).map(drop));
    drop(guard);
    assert!(newcomer.is_ready());
    drop((parked, again, newcomer));
    assert!(fixture.is_idle());
}

#[test]
fn waiters_go_by_importance_and_then_by_age() {
    let fixture = Fixture::new();
    let holder = fixture.begin(1);
    let nice = |priority| TxnTraits { priority, ..TxnTraits::default() };
    let late = fixture.begin_as(2, &nice(10));
    let first = fixture.begin_as(3, &nice(0));
    let second = fixture.begin_as(4, &nice(0));
    let urgent = fixture.begin_as(5, &nice(-5));
    let want = [Want::exclusive(entry(1, b"a"))];
    fixture.lock(&holder, &want).unwrap();
    let owners = [late, first, second, urgent];
    let tickets: Vec<Ticket> = owners.iter().map(|owner| ticket(fixture.lock(owner, &want))).collect();
    let main = ticket(fixture.main(&want));
    holder.end();
    assert!(main.is_ready(), "the main line keeps nothing, so it goes first");
    fixture.admission.try_acquire(Party::Main { pid: 7 }, &want, |_| true, Some(&main)).unwrap();
    drop(main);
    for index in [3, 1, 2, 0] {
        let ready: Vec<bool> = tickets.iter().map(Ticket::is_ready).collect();
        assert!(ready[index], "{index}: {ready:?}");
        fixture.admission.try_lock(&owners[index], &want, Some(&tickets[index])).unwrap();
        owners[index].end();
    }
    drop(tickets);
    assert!(fixture.is_idle());
}

#[test]
fn newcomers_stand_behind_an_equal_that_waits() {
    let fixture = Fixture::new();
    let (reader, writer, newcomer) = (fixture.begin(1), fixture.begin(2), fixture.begin(3));
    let (read, write) = ([Want::shared(identity(1))], [Want::exclusive(identity(1))]);
    fixture.lock(&reader, &read).unwrap();
    let waiting = ticket(fixture.lock(&writer, &write));
    let behind = ticket(fixture.lock(&newcomer, &read));
    fixture.main(&read).unwrap();
    reader.end();
    assert!(waiting.is_ready() && !behind.is_ready());
    waiting.cancel();
    assert!(behind.is_ready(), "a canceled waiter stops no other");
}

#[test]
fn a_commit_that_has_begun_is_doomed_late_only_and_a_decided_one_never() {
    let fixture = Fixture::new();
    let aborted = || Doom::new(DoomReason::Aborted);
    let one = fixture.begin(1);
    one.begin_commit().unwrap();
    assert!(!one.doom(aborted()));
    assert!(one.doom_late(aborted()));
    assert_eq!(one.decide(), Err(aborted()));
    assert_eq!(one.doomed(), Some(aborted()));
    let two = fixture.begin(2);
    assert!(two.decide().is_err(), "no commit has begun");
    two.begin_commit().unwrap();
    two.decide().unwrap();
    assert!(!two.doom(aborted()) && !two.doom_late(aborted()));
    assert_eq!((two.phase(), two.doomed()), (Phase::Decided, None));
    let three = fixture.begin(3);
    assert!(three.doom(aborted()));
    assert_eq!(three.begin_commit(), Err(aborted()));
    let four = fixture.begin(4);
    four.begin_commit().unwrap();
    four.decide().unwrap();
    four.undecide().unwrap();
    assert!(four.doom(aborted()), "a commit that failed with nothing done can be doomed again");
}

#[test]
fn a_page_written_out_during_a_commit_dooms_the_committer_and_finds_the_lock_free() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    let want = [Want::exclusive(blocks(0, 4))];
    fixture.lock(&one, &want).unwrap();
    let launder = Party::Launder { pid: 9 };
    let attempt =
        |ticket: Option<&Ticket>| fixture.admission.try_acquire(launder, &want, |_| true, ticket).map(drop);
    let patient = ticket(attempt(None));
    assert!(!patient.is_ready() && one.doomed().is_none(), "an active holder is waited for");
    drop(patient);
    one.begin_commit().unwrap();
    let again = ticket(attempt(None));
    let doomed = one.doomed().unwrap();
    assert_eq!((doomed.reason, doomed.rival), (DoomReason::Conflict, Some(Rival::Main { pid: 9 })));
    assert!(again.is_ready());
    attempt(Some(&again)).unwrap();
    fixture.lock(&two, &want).unwrap();
    two.begin_commit().unwrap();
    two.decide().unwrap();
    let waits = ticket(attempt(None));
    assert!(two.doomed().is_none() && !waits.is_ready());
    two.end();
    assert!(waits.is_ready());
    drop((again, waits, one, two));
    assert!(fixture.is_idle());
}

#[test]
fn a_doom_refuses_operations_that_wait_and_frees_those_behind_them() {
    let fixture = Fixture::new();
    let (one, two, three) = (fixture.begin(1), fixture.begin(2), fixture.begin(3));
    let (read, write) = ([Want::shared(identity(1))], [Want::exclusive(identity(1))]);
    fixture.lock(&one, &read).unwrap();
    let waiting = ticket(fixture.lock(&two, &write));
    let behind = ticket(fixture.lock(&three, &read));
    assert!(two.doom(Doom::new(DoomReason::Aborted)));
    assert!(waiting.is_ready() && behind.is_ready());
    let refused = fixture.admission.try_lock(&two, &write, Some(&waiting));
    assert_eq!(doom(refused).reason, DoomReason::Aborted);
    fixture.admission.try_lock(&three, &read, Some(&behind)).unwrap();
    drop((one, two, three, waiting, behind));
    assert!(fixture.is_idle());
}

#[test]
fn messages_name_the_other_party_and_the_name() {
    let rival = Rival::Txn { id: TxnId(3), owner: Owner { uid: 5, pid: 6, name: "tar".into() } };
    let name = Some(entry(12, b"a\n").into());
    let doom = Doom { reason: DoomReason::Deadlock, rival: Some(rival), name };
    let text = "deadlock, with transaction 3 (tar, pid 6, uid 5), over entry \"a\\n\" of directory 12";
    assert_eq!(doom.to_string(), text);
    let doom = Doom { rival: Some(Rival::Main { pid: 0 }), reason: DoomReason::MainLine, ..doom };
    let text = "it kept others waiting too long, with an operation on the main line, over music/a";
    assert_eq!(doom.message(|_| "music/a".to_owned(), Rival::to_string), text);
}

#[test]
fn a_place_that_is_renewed_in_another_mode_lets_others_go() {
    let fixture = Fixture::new();
    let (one, two, three) = (fixture.begin(1), fixture.begin(2), fixture.begin(3));
    fixture.lock(&one, &[Want::exclusive(blocks(0, 1))]).unwrap();
    let first = ticket(fixture.lock(&two, &[Want::exclusive(blocks(0, 4))]));
    let behind = ticket(fixture.lock(&three, &[Want::shared(blocks(2, 3))]));
    assert!(!behind.is_ready());
    let again = [Want::shared(blocks(0, 4))];
    let again = ticket(fixture.admission.try_lock(&two, &again, Some(&first)));
    assert!(behind.is_ready() && !again.is_ready());
}
