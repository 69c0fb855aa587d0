use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use kvfs_store::Keyspace;

use super::*;
use crate::{Fields, LockName};

const fn entry(directory: u64, name: &[u8]) -> LockName<'_> {
    LockName::Entry { directory, name }
}

const fn blocks(first: u64, end: u64) -> LockName<'static> {
    LockName::Blocks { inode: 9, first, end }
}

#[test]
fn modes_conflict_as_the_table_says() {
    use crate::Mode::{Exclusive, Increment, Shared};
    let latches = Arc::new(Latches::new());
    for (first, second, fits) in [
        (Shared, Shared, true),
        (Shared, Increment, false),
        (Shared, Exclusive, false),
        (Increment, Increment, true),
        (Increment, Exclusive, false),
        (Exclusive, Exclusive, false),
    ] {
        for (a, b) in [(first, second), (second, first)] {
            let held = latches.try_acquire(&[Want { name: entry(1, b"a"), mode: a }], None).unwrap();
            let other = latches.try_acquire(&[Want { name: entry(1, b"a"), mode: b }], None);
            assert_eq!(other.is_ok(), fits, "{a:?} then {b:?}");
            drop(held);
        }
    }
    assert_eq!(latches.held_count() + latches.waiting_count(), 0);
}

#[test]
fn only_overlapping_parts_conflict() {
    let latches = Arc::new(Latches::new());
    let _range = latches.try_acquire(&[Want::exclusive(blocks(4, 8))], None).unwrap();
    assert!(
        latches
            .try_acquire(&[Want::exclusive(blocks(0, 4)), Want::shared(blocks(8, u64::MAX))], None)
            .is_ok()
    );
    assert!(latches.try_acquire(&[Want::shared(blocks(7, 9))], None).is_err());
    let attributes = |fields| Want::exclusive(LockName::Attributes { inode: 9, fields });
    let _size = latches.try_acquire(&[attributes(Fields::SIZE)], None).unwrap();
    assert!(latches.try_acquire(&[attributes(Fields::MODE)], None).is_ok());
    assert!(latches.try_acquire(&[attributes(Fields::ALL)], None).is_err());
    let keys = |start, end| Want::exclusive(LockName::Keys { keyspace: Keyspace(1), start, end });
    let _keys = latches.try_acquire(&[keys(b"b", Some(b"d"))], None).unwrap();
    assert!(latches.try_acquire(&[keys(b"a", Some(b"b")), keys(b"d", None)], None).is_ok());
    assert!(latches.try_acquire(&[keys(b"a", None)], None).is_err());
}

#[test]
fn a_failed_operation_holds_nothing_and_an_owner_never_stops_itself() {
    let latches = Arc::new(Latches::new());
    let held = latches.try_acquire(&[Want::exclusive(entry(1, b"b"))], None).unwrap();
    let error = latches.try_acquire(&[Want::exclusive(entry(1, b"a")), Want::shared(entry(1, b"b"))], None);
    let ticket = error.unwrap_err();
    assert_eq!(latches.held_count(), 1);
    assert!(!ticket.is_ready());
    drop(held);
    assert!(ticket.is_ready());
    let twice = [Want::exclusive(entry(1, b"b")), Want::increment(entry(1, b"b"))];
    drop(latches.try_acquire(&twice, Some(&ticket)).unwrap());
    assert_eq!(latches.held_count() + latches.waiting_count(), 0);
}

#[test]
fn operation_that_is_stopped_at_its_second_guard_keeps_its_place() {
    let latches = Arc::new(Latches::new());
    let (first, second) = ([Want::shared(entry(1, b"a"))], [Want::exclusive(entry(1, b"b"))]);
    let held = latches.try_acquire(&[Want::exclusive(entry(1, b"a"))], None).unwrap();
    let ticket = latches.try_acquire(&first, None).unwrap_err();
    drop(held);
    let held = latches.try_acquire(&second, None).unwrap();
    let guard = latches.try_acquire(&first, Some(&ticket)).unwrap();
    let again = latches.try_acquire(&second, Some(&ticket)).unwrap_err();
    drop(guard);
    assert!(!again.is_ready());
    drop(held);
    assert!(again.is_ready(), "it is called");
    let guard = latches.try_acquire(&first, Some(&ticket)).unwrap();
    drop(latches.try_acquire(&second, Some(&ticket)).unwrap());
    drop(guard);
    assert_eq!(latches.held_count() + latches.waiting_count(), 0);
}

#[test]
fn tickets_are_served_by_age_and_newcomers_stand_behind_them() {
    let latches = Arc::new(Latches::new());
    let want = [Want::exclusive(entry(1, b"a"))];
    let held = latches.try_acquire(&want, None).unwrap();
    let first = latches.try_acquire(&want, None).unwrap_err();
    let second = latches.try_acquire(&want, None).unwrap_err();
    drop(held);
    assert!(first.is_ready() && !second.is_ready());
    let newcomer = latches.try_acquire(&want, None).unwrap_err();
    let held = latches.try_acquire(&want, Some(&first)).unwrap();
    assert!(!second.is_ready());
    drop(held);
    assert!(second.is_ready() && !newcomer.is_ready());
    drop(second);
    assert!(newcomer.is_ready(), "a dropped ticket gives up its place");
}

#[test]
fn an_extension_that_fails_releases_everything_and_keeps_the_place() {
    let latches = Arc::new(Latches::new());
    let other = latches.try_acquire(&[Want::exclusive(entry(2, b"x"))], None).unwrap();
    let mut guard = latches.try_acquire(&[Want::exclusive(entry(1, b"a"))], None).unwrap();
    let ticket = guard.try_extend(&[Want::exclusive(entry(2, b"x"))]).unwrap_err();
    drop(guard);
    assert_eq!((latches.held_count(), latches.waiting_count()), (1, 1));
    drop(other);
    assert!(ticket.is_ready());
    let mut guard = latches.try_acquire(&[Want::exclusive(entry(1, b"a"))], Some(&ticket)).unwrap();
    guard.try_extend(&[Want::exclusive(entry(2, b"x"))]).unwrap();
    drop(guard);
    assert_eq!((latches.held_count(), latches.waiting_count()), (0, 0));
}

#[test]
fn callbacks_are_called_once_and_cancelled_ones_never() {
    let latches = Arc::new(Latches::new());
    let want = [Want::exclusive(entry(1, b"a"))];
    let held = latches.try_acquire(&want, None).unwrap();
    let called = Arc::new(AtomicU32::new(0));
    let count = |called: &Arc<AtomicU32>| {
        let called = Arc::clone(called);
        Box::new(move || {
            called.fetch_add(1, Ordering::Relaxed);
        })
    };
    let kept = latches.try_acquire(&want, None).unwrap_err();
    kept.on_ready(count(&called));
    let cancelled = latches.try_acquire(&want, None).unwrap_err();
    let never = Arc::new(AtomicU32::new(0));
    cancelled.on_ready(count(&never));
    cancelled.cancel();
    cancelled.wait();
    assert_eq!(called.load(Ordering::Relaxed), 0);
    drop(held);
    assert_eq!(called.load(Ordering::Relaxed), 1);
    kept.on_ready(count(&called));
    assert_eq!(called.load(Ordering::Relaxed), 2, "ready already: called at once");
    drop(kept);
    assert_eq!((never.load(Ordering::Relaxed), latches.waiting_count()), (0, 0));
}

/// Acquires until it works, as a blocking caller does.
fn acquire<'l>(latches: &'l Arc<Latches>, wants: &[Want<'_>]) -> Guard<'l> {
    let mut ticket: Option<Ticket> = None;
    loop {
        match latches.try_acquire(wants, ticket.as_ref()) {
            Ok(guard) => return guard,
            Err(again) => {
                again.wait();
                ticket = Some(again);
            }
        }
    }
}

#[test]
fn exclusive_names_exclude_under_threads() {
    let latches = Arc::new(Latches::new());
    let counters: Arc<Vec<AtomicU64>> = Arc::new((0..4).map(|_| AtomicU64::new(0)).collect());
    thread::scope(|scope| {
        for seed in 0..4_u64 {
            let (latches, counters) = (Arc::clone(&latches), Arc::clone(&counters));
            scope.spawn(move || {
                let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
                for _ in 0..2000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let (a, b) = (random % 4, (random >> 8) % 4);
                    let guard = acquire(
                        &latches,
                        &[
                            Want::exclusive(LockName::Identity { directory: a }),
                            Want::exclusive(LockName::Identity { directory: b }),
                        ],
                    );
                    for index in [a, b] {
                        // Not atomic as a whole: lost updates would show.
                        let value = counters[index as usize].load(Ordering::Relaxed);
                        thread::yield_now();
                        counters[index as usize].store(value + 1, Ordering::Relaxed);
                    }
                    drop(guard);
                }
            });
        }
    });
    let total: u64 = counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
    assert_eq!(total, 4 * 2000 * 2);
    assert_eq!((latches.held_count(), latches.waiting_count()), (0, 0));
}

#[test]
fn a_wide_operation_is_not_starved_by_a_stream_of_narrow_ones() {
    let latches = Arc::new(Latches::new());
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for name in [&b"a"[..], b"b", b"a"] {
            let (latches, stop) = (Arc::clone(&latches), Arc::clone(&stop));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let guard = acquire(&latches, &[Want::shared(entry(1, name))]);
                    thread::yield_now();
                    drop(guard);
                }
            });
        }
        let wide = Arc::clone(&latches);
        scope.spawn(move || {
            for _ in 0..50 {
                drop(acquire(&wide, &[Want::exclusive(entry(1, b"a")), Want::exclusive(entry(1, b"b"))]));
            }
            sender.send(()).unwrap();
        });
        receiver.recv().unwrap();
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_place_that_is_renewed_in_another_mode_lets_others_go() {
    let latches = Arc::new(Latches::new());
    let _held = latches.try_acquire(&[Want::exclusive(blocks(0, 1))], None).unwrap();
    let first = latches.try_acquire(&[Want::exclusive(blocks(0, 4))], None).unwrap_err();
    let behind = latches.try_acquire(&[Want::shared(blocks(2, 3))], None).unwrap_err();
    assert!(!behind.is_ready());
    let again = latches.try_acquire(&[Want::shared(blocks(0, 4))], Some(&first)).unwrap_err();
    assert!(behind.is_ready() && !again.is_ready());
}

#[test]
fn all_entries_of_a_directory_are_one_name_against_each() {
    let latches = Arc::new(Latches::new());
    let all = LockName::Entries { directory: 1 };
    let held = latches.try_acquire(&[Want::shared(all), Want::exclusive(entry(2, b"a"))], None).unwrap();
    drop(latches.try_acquire(&[Want::shared(entry(1, b"a"))], None).unwrap());
    let first = latches.try_acquire(&[Want::exclusive(entry(1, b"a"))], None).unwrap_err();
    let second = latches.try_acquire(&[Want::exclusive(entry(1, b"b"))], None).unwrap_err();
    drop(held);
    assert!(first.is_ready() && second.is_ready(), "entries with different names don't wait for each other");
}

#[test]
fn a_ticket_keeps_its_places_at_two_entries_of_one_directory() {
    let latches = Arc::new(Latches::new());
    let wants = [Want::exclusive(entry(1, b"a")), Want::exclusive(entry(1, b"b"))];
    let a = latches.try_acquire(&wants[..1], None).unwrap();
    let b = latches.try_acquire(&wants[1..], None).unwrap();
    let both = latches.try_acquire(&wants, None).unwrap_err();
    drop(a);
    assert!(both.is_ready());
    let both = latches.try_acquire(&wants, Some(&both)).unwrap_err();
    let newcomer = latches.try_acquire(&wants[..1], None).unwrap_err();
    assert!(!both.is_ready() && !newcomer.is_ready());
    drop(b);
    assert!(both.is_ready() && !newcomer.is_ready());
    drop(latches.try_acquire(&wants, Some(&both)).unwrap());
    assert!(newcomer.is_ready());
}
