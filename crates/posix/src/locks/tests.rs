//! Locks of ranges: who is in whose way.

use std::thread::ScopedJoinHandle;

use kvfs_socket::{Exempt, Shares};

use super::*;

const A: LockOwner = LockOwner::Process(1);
const B: LockOwner = LockOwner::Process(2);
const FILE: Place = (7, LockSpace::Ranges);

fn wish(range: Range<u64>, is_exclusive: bool) -> RangeLock {
    RangeLock { range, is_exclusive }
}

fn held(table: &LockTable, owner: LockOwner) -> Vec<(Range<u64>, bool)> {
    let tables = table.tables.lock();
    let held = tables.held.get(&FILE).into_iter().flatten();
    let own = held.filter(|(who, _)| *who == owner);
    let mut own: Vec<_> = own.map(|(_, lock)| (lock.range.clone(), lock.is_exclusive)).collect();
    own.sort_by_key(|(range, _)| range.start);
    own
}

#[test]
fn ranges_are_split_joined_and_converted() {
    let table = LockTable::default();
    table.lock(A, FILE, &wish(0..100, true), &Patience::None, None).expect("is free");
    table.unlock(A, FILE, &(40..60)).expect("is given up");
    assert_eq!(held(&table, A), [(0..40, true), (60..100, true)]);
    table.lock(A, FILE, &wish(30..70, false), &Patience::None, None).expect("is its own");
    assert_eq!(held(&table, A), [(0..30, true), (30..70, false), (70..100, true)]);
    table.lock(A, FILE, &wish(30..70, true), &Patience::None, None).expect("is its own");
    assert_eq!(held(&table, A), [(0..100, true)]);
    table.unlock(A, FILE, &(0..u64::MAX)).expect("is given up");
    assert!(table.tables.lock().held.is_empty(), "nothing is kept of a file without locks");
}

#[test]
fn exclusive_locks_are_in_the_way_and_shared_ones_of_each_other_not() {
    let table = LockTable::default();
    table.lock(A, FILE, &wish(10..20, false), &Patience::None, None).expect("is free");
    table.lock(B, FILE, &wish(0..15, false), &Patience::None, None).expect("both are shared");
    let refused = table.lock(B, FILE, &wish(0..15, true), &Patience::None, None).expect_err("A reads there");
    assert_eq!(refused.errno(), Errno::AGAIN);
    assert_eq!(table.find(B, FILE, &wish(0..15, true)), Some((A, wish(10..20, false))));
    assert_eq!(held(&table, B), [(0..15, false)], "what it had it keeps");
    table.lock(B, FILE, &wish(20..30, true), &Patience::None, None).expect("is free");
    table
        .lock(B, (8, LockSpace::Ranges), &wish(10..20, true), &Patience::None, None)
        .expect("is another file");
    table
        .lock(B, (7, LockSpace::Whole), &wish(0..u64::MAX, true), &Patience::None, None)
        .expect("are other locks");
}

#[test]
fn wait_is_called_by_what_its_holder_changes_in_its_range_and_by_no_other_change() {
    let table = LockTable::default();
    let (file, other) = (LockOwner::File(3), (8, LockSpace::Ranges));
    for (owner, place, range) in [(A, FILE, 0..10), (B, FILE, 20..30), (B, other, 0..10)] {
        table.lock(owner, place, &wish(range, true), &Patience::None, None).expect("is free");
    }
    let id = table.tables.lock().begin_wait(file, FILE, &wish(5..25, true), A).0;
    let is_called = || table.tables.lock().is_called(id);
    // Of another file, of another owner, and beside it.
    table.unlock_all(B, other);
    table.unlock(B, FILE, &(20..30)).expect("is given up");
    table.lock(B, FILE, &wish(20..30, true), &Patience::None, None).expect("is free");
    table.unlock(A, FILE, &(0..5)).expect("is given up");
    table.lock(A, FILE, &wish(40..50, true), &Patience::None, None).expect("is free");
    assert!(!is_called());
    table.lock(A, FILE, &wish(5..10, false), &Patience::None, None).expect("is its own");
    assert!(is_called());
}

#[test]
fn one_who_waits_goes_on_and_a_circle_is_refused() {
    let table = LockTable::default();
    table.lock(A, FILE, &wish(0..10, true), &Patience::None, None).expect("is free");
    table.lock(B, FILE, &wish(10..20, true), &Patience::None, None).expect("is free");
    std::thread::scope(|scope| {
        let waiter = scope
            .spawn(|| table.lock(A, FILE, &wish(10..20, true), &Patience::Until(&Waits::default()), None));
        while table.tables.lock().waiting.is_empty() {
            std::thread::yield_now();
        }
        let refused = table
            .lock(B, FILE, &wish(0..10, true), &Patience::Until(&Waits::default()), None)
            .expect_err("would wait for itself");
        assert_eq!(refused.errno(), Errno::DEADLK);
        table.unlock(B, FILE, &(0..u64::MAX)).expect("is given up");
        waiter.join().expect("ends").expect("has it now");
    });
    assert_eq!(held(&table, A), [(0..20, true)]);
    assert!(table.tables.lock().waiting.is_empty());
}

#[test]
fn locks_of_open_files_are_waited_for_whatever_waits_for_them() {
    let table = LockTable::default();
    let (a, b) = (LockOwner::File(1), LockOwner::File(2));
    table.lock(a, FILE, &wish(0..10, true), &Patience::None, None).expect("is free");
    table.lock(b, FILE, &wish(10..20, true), &Patience::None, None).expect("is free");
    std::thread::scope(|scope| {
        let wait = |owner, range| {
            table.lock(owner, FILE, &wish(range, true), &Patience::Until(&Waits::default()), None)
        };
        let waiters = [scope.spawn(move || wait(a, 10..20)), scope.spawn(move || wait(b, 0..10))];
        while table.tables.lock().waiting.len() < 2 && !waiters.iter().any(ScopedJoinHandle::is_finished) {
            std::thread::yield_now();
        }
        table.unlock(a, FILE, &(0..10)).expect("is given up by another thread");
        table.unlock(b, FILE, &(10..20)).expect("is given up by another thread");
        for waiter in waiters {
            waiter.join().expect("ends").expect("has it now");
        }
    });
    assert!(table.tables.lock().waiting.is_empty());
}

#[test]
fn a_wait_that_is_ended_takes_no_lock() {
    let (table, waits) = (LockTable::default(), Waits::default());
    table.lock(A, FILE, &wish(0..10, true), &Patience::None, None).expect("is free");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| table.lock(B, FILE, &wish(0..10, true), &Patience::Until(&waits), None));
        while table.tables.lock().waiting.is_empty() {
            std::thread::yield_now();
        }
        waits.end();
        table.look_again();
        let refused = waiter.join().expect("ends").expect_err("was ended");
        assert_eq!(refused.errno(), Errno::INTR);
    });
    assert!(held(&table, B).is_empty());
    assert!(table.tables.lock().waiting.is_empty(), "it waits no longer");
}

#[test]
fn a_user_with_its_share_of_locks_is_refused_and_keeps_what_it_had() {
    let table = LockTable::default();
    let (descriptors, locks) = (Shares::new(0, 0, Exempt::None), Shares::new(6, 3, Exempt::None));
    let bounds = Bounds { uid: 1, descriptors, locks };
    let lock =
        |owner, place, lock: &RangeLock| table.lock(owner, place, lock, &Patience::None, Some(&bounds));
    lock(A, FILE, &wish(0..100, true)).expect("one");
    lock(A, FILE, &wish(40..60, false)).expect("three");
    let refused = lock(A, FILE, &wish(10..20, false)).expect_err("two more");
    assert_eq!(refused.errno(), Errno::NOLCK);
    let refused = table.unlock(A, FILE, &(45..50)).expect_err("one more");
    assert_eq!(refused.errno(), Errno::NOLCK);
    let kept = [(0..40, true), (40..60, false), (60..100, true)];
    assert_eq!(held(&table, A), kept);
    assert!(lock(B, (8, LockSpace::Whole), &wish(0..u64::MAX, true)).is_err(), "of the same user");
    let other = Bounds { uid: 2, ..bounds.clone() };
    table.lock(B, FILE, &wish(200..300, true), &Patience::None, Some(&other)).expect("of another user");
    table
        .lock(LockOwner::Process(3), FILE, &wish(300..400, true), &Patience::None, None)
        .expect("is not bound");
    // Fewer are never refused.
    lock(A, FILE, &wish(0..100, true)).expect("one");
    table.unlock(A, FILE, &(20..30)).expect("two");
    table.unlock_all(A, FILE);
    table.unlock(B, FILE, &(0..u64::MAX)).expect("none");
    assert!(bounds.locks.is_whole() && table.tables.lock().shares.is_empty());
}
