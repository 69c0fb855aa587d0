//! The publisher under thousands of random schedules; shuttle prints the schedule that fails.

use kvfs_store::{Seqno, StoreError};
use shuttle::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use super::publisher::{Publisher, Ticket};

const SCHEDULES: usize = 2_000;

/// Runs `writers` commits of 1 to 3 seqnos; the one numbered `given_up` is dropped unpublished.
/// Returns the last seqno of each commit, in order, and which `publish` calls succeeded.
fn run(writers: u64, given_up: Option<u64>) -> (Vec<Seqno>, Vec<bool>, Seqno) {
    let publisher = Arc::new(Publisher::new(0));
    // As in a store: one lock gives out seqnos and announces commits in their order.
    let order = Arc::new(Mutex::new((1, Vec::new())));
    let inserted = Arc::new((0..=3 * writers).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
    let commit = move |publisher: &Publisher, order: &Mutex<(Seqno, Vec<Seqno>)>, n: u64| {
        let ticket: Ticket<'_> = {
            let mut order = order.lock().unwrap();
            let ticket = publisher.begin(order.0, 1 + n % 3);
            order.0 += 1 + n % 3;
            let (_, last) = ticket.seqnos();
            order.1.push(last);
            ticket
        };
        let (first, last) = ticket.seqnos();
        for seqno in first..=last {
            inserted[seqno as usize].store(1, Ordering::Relaxed);
        }
        if given_up == Some(n) {
            drop(ticket);
            return (last, false);
        }
        match ticket.publish() {
            Ok(()) => {
                let visible = publisher.visible();
                assert!(visible >= last, "published, but {visible} < {last}");
                for slot in &inserted[1..=visible as usize] {
                    assert_eq!(slot.load(Ordering::Relaxed), 1, "visible before it was inserted");
                }
                (last, true)
            }
            Err(StoreError::Failed { .. }) => (last, false),
            Err(other) => panic!("{other}"),
        }
    };
    let commit = Arc::new(commit);
    let threads: Vec<_> = (0..writers)
        .map(|n| {
            let (publisher, order, commit) =
                (Arc::clone(&publisher), Arc::clone(&order), Arc::clone(&commit));
            shuttle::thread::spawn(move || commit(&publisher, &order, n))
        })
        .collect();
    let reader = {
        let publisher = Arc::clone(&publisher);
        shuttle::thread::spawn(move || {
            let first = publisher.visible();
            shuttle::thread::yield_now();
            assert!(publisher.visible() >= first, "the watermark went back");
        })
    };
    let mut outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    reader.join().unwrap();
    outcomes.sort_unstable();
    let ends = order.lock().unwrap().1.clone();
    (ends, outcomes.into_iter().map(|(_, is_ok)| is_ok).collect(), publisher.visible())
}

#[test]
fn every_writer_returns_and_sees_its_commit() {
    shuttle::check_random(
        || {
            let (ends, outcomes, visible) = run(4, None);
            assert_eq!(outcomes, [true; 4]);
            assert_eq!(Some(&visible), ends.last());
        },
        SCHEDULES,
    );
}

#[test]
fn commit_given_up_stops_the_watermark_below_it_and_no_thread_hangs() {
    shuttle::check_random(
        || {
            let (ends, outcomes, visible) = run(4, Some(2));
            let failed = outcomes.iter().position(|is_ok| !is_ok).unwrap();
            assert!(outcomes[failed..].iter().all(|is_ok| !is_ok), "{outcomes:?}");
            let below = failed.checked_sub(1).map_or(0, |last| ends[last]);
            assert_eq!(visible, below);
        },
        SCHEDULES,
    );
}
