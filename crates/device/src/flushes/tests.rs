//! What callers are told of flushes that overlap and fail.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

use super::*;

const EIO: i32 = 5;

fn eio() -> io::Error {
    io::Error::from_raw_os_error(EIO)
}

/// Begins a flush that is under way until it is told its result.
fn begin(flushes: &Arc<Flushes>) -> (Sender<io::Result<()>>, JoinHandle<io::Result<()>>) {
    let (result, told) = channel();
    let begun = Arc::new(Barrier::new(2));
    let (flushes, has_begun) = (Arc::clone(flushes), Arc::clone(&begun));
    let thread = std::thread::spawn(move || {
        flushes.flush(|| {
            has_begun.wait();
            told.recv().expect("is told")
        })
    });
    begun.wait();
    (result, thread)
}

/// Begins another one meanwhile.
fn begin_behind(flushes: &Arc<Flushes>) -> JoinHandle<io::Result<()>> {
    let flushes = Arc::clone(flushes);
    std::thread::spawn(move || flushes.flush(|| Ok(())))
}

#[test]
fn who_comes_while_a_flush_is_under_way_waits_for_the_next_one() {
    let flushes = Arc::new(Flushes::default());
    let (result, first) = begin(&flushes);
    let (made, is_first_over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let others: Vec<_> = (0..4)
        .map(|_| {
            let (flushes, made, over) = (Arc::clone(&flushes), Arc::clone(&made), Arc::clone(&is_first_over));
            std::thread::spawn(move || {
                let flushed = flushes.flush(|| {
                    made.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                });
                assert_eq!(over.load(Ordering::Acquire), 1, "the first one was under way");
                flushed
            })
        })
        .collect();
    is_first_over.store(1, Ordering::Release);
    result.send(Ok(())).expect("is under way");
    first.join().expect("ends").expect("is flushed");
    for other in others {
        other.join().expect("ends").expect("is flushed");
    }
    // Those that came before the first one ended share one; those that came later have one each at most.
    assert!((1..=4).contains(&made.load(Ordering::Relaxed)));
}

#[test]
fn failed_flush_fails_for_all_that_wait_and_all_that_come() {
    let flushes = Arc::new(Flushes::default());
    let (result, first) = begin(&flushes);
    let waiting = begin_behind(&flushes);
    result.send(Err(eio())).expect("is under way");
    for thread in [first, waiting] {
        assert_eq!(thread.join().expect("ends").expect_err("has failed").raw_os_error(), Some(EIO));
    }
    let later = flushes.flush(|| unreachable!("nothing is flushed any more"));
    assert_eq!(later.expect_err("has failed").raw_os_error(), Some(EIO));
    let flushes = Flushes::default();
    flushes.flush(|| Err(io::Error::new(io::ErrorKind::StorageFull, "full"))).expect_err("fails");
    let again = flushes.flush(|| Ok(())).expect_err("has failed");
    assert_eq!((again.kind(), again.to_string().as_str()), (io::ErrorKind::StorageFull, "full"));
}

#[test]
fn flush_that_panics_fails_for_all_that_wait_and_all_that_come() {
    let flushes = Arc::new(Flushes::default());
    let (result, first) = begin(&flushes);
    let waiting = begin_behind(&flushes);
    // It is never told its result.
    drop(result);
    first.join().expect_err("panics");
    let failed = waiting.join().expect("ends").expect_err("has failed");
    assert!(failed.to_string().contains("panicked"), "{failed}");
    let later = flushes.flush(|| unreachable!("nothing is flushed any more"));
    assert!(later.expect_err("has failed").to_string().contains("panicked"));
}
