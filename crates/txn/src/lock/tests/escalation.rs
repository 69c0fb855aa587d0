//! Many locks become one; memory is counted.

use super::*;

fn names(fixture: &Fixture) -> Vec<String> {
    fixture.admission.list().iter().map(|info| format!("{} {}", info.name, info.mode)).collect()
}

fn lock_entries(fixture: &Fixture, owner: &LockOwner, from: u32, to: u32) {
    for n in from..to {
        fixture.lock(owner, &[Want::exclusive(entry(1, format!("{n:05}").as_bytes()))]).unwrap();
    }
}

#[test]
fn locks_become_one_only_where_memory_is_short() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    lock_entries(&fixture, &one, 0, 50_000);
    assert_eq!(fixture.admission.transactions()[0].names_count, 50_000);
    fixture.main(&[Want::exclusive(entry(1, b"other"))]).unwrap();
    assert!(fixture.main(&[Want::shared(entry(1, b"00007"))]).is_err());
    drop(one);
    assert!(fixture.is_idle());
}

#[test]
fn objects_with_most_parts_collapse_first() {
    let fixture = crowded();
    let one = fixture.begin(1);
    for n in 0..8 {
        fixture.lock(&one, &[Want::exclusive(entry(2, &[n]))]).unwrap();
        fixture.lock(&one, &[Want::exclusive(blocks(2 * u64::from(n), 2 * u64::from(n) + 1))]).unwrap();
    }
    let before = fixture.admission.transactions()[0].names_count;
    lock_entries(&fixture, &one, 0, 2000);
    let held = names(&fixture);
    assert!(held.contains(&"all entries of directory 1 exclusive".to_owned()), "{held:?}");
    assert_eq!(held.len(), before + 1, "{held:?}");
    fixture.main(&[Want::exclusive(entry(2, b"other"))]).unwrap();
    // Many directories of few entries each, and none that is larger.
    for directory in 10..60 {
        for n in 0..4 {
            fixture.lock(&one, &[Want::exclusive(entry(directory, &[n]))]).unwrap();
        }
    }
    assert!(fixture.admission.bytes() <= BYTES_MAX);
    drop(one);
    assert!(fixture.is_idle());
}

#[test]
fn no_escalation_against_the_locks_of_others() {
    let fixture = crowded();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    fixture.lock(&two, &[Want::shared(entry(1, b"theirs"))]).unwrap();
    let mut count = 0;
    let refused = loop {
        let name = format!("{count:05}");
        match fixture.lock(&one, &[Want::exclusive(entry(1, name.as_bytes()))]) {
            Ok(()) => count += 1,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, Refused::Full(_)) && count > 100, "{count} {refused:?}");
    assert_eq!(fixture.admission.transactions()[0].names_count, count);
    two.end();
    lock_entries(&fixture, &one, count as u32, count as u32 + 20);
    let held = names(&fixture);
    assert!(held.contains(&"all entries of directory 1 exclusive".to_owned()), "{held:?}");
}

#[test]
fn shared_locks_escalate_to_a_shared_one() {
    let fixture = crowded();
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    fixture.lock(&two, &[Want::shared(blocks(1, 2))]).unwrap();
    for n in 0..1000 {
        fixture.lock(&one, &[Want::shared(blocks(2 * n, 2 * n + 1))]).unwrap();
    }
    let held = names(&fixture);
    assert!(held.contains(&"all blocks of inode 9 shared".to_owned()), "{held:?}");
    fixture.main(&[Want::shared(LockName::file(9))]).unwrap();
}

#[test]
fn a_file_written_from_front_to_back_is_one_lock() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    for n in 0..1000 {
        fixture.lock(&one, &[Want::exclusive(blocks(n * 32, n * 32 + 32))]).unwrap();
    }
    assert_eq!(names(&fixture), ["blocks 0..32000 of inode 9 exclusive"]);
    assert!(fixture.admission.bytes() < 1000, "{}", fixture.admission.bytes());
}

const BYTES_MAX: usize = 50_000;

fn crowded() -> Fixture {
    Fixture::with(LockOptions { bytes_max: BYTES_MAX, ..LockOptions::default() })
}

fn begin_of(fixture: &Fixture, id: u64, uid: u32) -> Arc<LockOwner> {
    let owner = Owner { uid, pid: 1, name: "p".into() };
    fixture.admission.begin(TxnId(id), TxnTraits { owner, ..TxnTraits::default() })
}

/// Locks directory after directory until it is refused; how many it got.
fn lock_all(fixture: &Fixture, owner: &LockOwner) -> u64 {
    let first = owner.id().0 << 32;
    for count in 0.. {
        match fixture.lock(owner, &[Want::exclusive(identity(first + count))]) {
            Ok(()) => {}
            Err(Refused::Full(share)) => {
                assert!(share.bytes_free < BYTES_MAX);
                return count;
            }
            Err(refused) => panic!("{refused:?}"),
        }
    }
    unreachable!()
}

#[test]
fn locks_beyond_a_users_share_are_refused_and_the_transaction_goes_on() {
    let fixture = crowded();
    let (one, other) = (begin_of(&fixture, 1, 1000), begin_of(&fixture, 2, 1000));
    let count = lock_all(&fixture, &one);
    assert!(count > 50, "{count}");
    let bytes = fixture.admission.bytes();
    assert!(bytes <= BYTES_MAX / 2 && bytes > BYTES_MAX / 2 - 1000, "{bytes}");
    assert!(one.doomed().is_none());
    fixture.lock(&one, &[Want::exclusive(identity(1 << 32))]).unwrap();
    assert_eq!(lock_all(&fixture, &other), 0, "the share is the user's, not the transaction's");
    one.end();
    assert!(lock_all(&fixture, &other) >= count);
    other.end();
    drop((one, other));
    assert!(fixture.is_idle());
}

#[test]
fn locks_of_users_at_their_share_leave_room_for_others_and_root() {
    let fixture = crowded();
    let owners: Vec<_> = (1..5).map(|user| begin_of(&fixture, user, 1000 + user as u32)).collect();
    let counts: Vec<u64> = owners.iter().map(|owner| lock_all(&fixture, owner)).collect();
    assert!(counts.iter().all(|&count| count > 5) && counts.is_sorted_by(|a, b| a > b), "{counts:?}");
    let (root, late) = (begin_of(&fixture, 9, 0), begin_of(&fixture, 10, 2000));
    fixture.lock(&late, &[Want::exclusive(identity(1))]).unwrap();
    assert!(lock_all(&fixture, &root) > 5);
    assert!(fixture.admission.bytes() <= BYTES_MAX);
    assert!(owners.iter().chain([&root, &late]).all(|owner| owner.doomed().is_none()));
}

#[test]
fn locks_at_the_share_escalate_before_they_are_refused() {
    let fixture = crowded();
    let one = begin_of(&fixture, 1, 1000);
    lock_entries(&fixture, &one, 0, 2000);
    assert!(names(&fixture).contains(&"all entries of directory 1 exclusive".to_owned()));
    assert!(fixture.admission.bytes() < BYTES_MAX / 2);
}

#[test]
fn waiting_operations_count_in_their_users_share_and_are_refused_beyond_it() {
    let fixture = crowded();
    let (holder, waiter) = (begin_of(&fixture, 1, 2000), begin_of(&fixture, 2, 1000));
    fixture.lock(&holder, &[Want::exclusive(identity(1))]).unwrap();
    let before = fixture.admission.bytes();
    let mut tickets = Vec::new();
    let share = loop {
        match fixture.lock(&waiter, &[Want::exclusive(identity(1))]) {
            Err(Refused::Wait(ticket)) => tickets.push(ticket),
            Err(Refused::Full(share)) => break share,
            other => panic!("{other:?}"),
        }
    };
    assert!(tickets.len() > 20 && share.bytes > BYTES_MAX / 3, "{} {share:?}", tickets.len());
    // Nothing is counted twice when an operation is tried again.
    let full = fixture.admission.bytes();
    let again = fixture.admission.try_lock(&waiter, &[Want::exclusive(identity(1))], Some(&tickets[0]));
    assert!(matches!(again, Err(Refused::Wait(_))), "{again:?}");
    assert_eq!(fixture.admission.bytes(), full);
    fixture.lock(&holder, &[Want::exclusive(identity(2))]).unwrap();
    assert!(waiter.doomed().is_none());
    drop((again, tickets));
    assert!(fixture.admission.bytes() < before + 2000, "{}", fixture.admission.bytes());
    drop((holder, waiter));
    assert!(fixture.is_idle());
}
