//! What the notes of threads say.

use std::panic::Location;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::held::{Access, Held, cycle, held};
use crate::{Mutex, RwLock, Watch, class};

/// The notes about locks of one class: other tests run beside this one.
fn notes_of(lock: &str) -> Vec<Held> {
    held().into_iter().filter(|entry| entry.lock == lock).collect()
}

#[test]
#[cfg(debug_assertions)]
fn lock_against_the_order_panics_with_both_names() {
    let (early, late) =
        (Mutex::<_, class::KvTableMaking>::new(()), RwLock::<_, class::KvTableKnown>::new(()));
    drop((early.lock(), late.read()));
    let against = thread::spawn(move || {
        let _late = late.write();
        drop(early.lock());
    });
    let panic = against.join().expect_err("panics");
    let message = panic.downcast_ref::<String>().expect("has a message");
    let here = "crates/locks/src/tests.rs";
    assert!(message.contains("`kv/table.making`") && message.contains("`kv/table.known`"), "{message}");
    assert_eq!(message.matches(here).count(), 2, "{message}");
}

#[test]
#[cfg(debug_assertions)]
fn wait_takes_its_lock_again_under_what_the_thread_holds() {
    type Early = Mutex<(), class::KvTableMaking>;
    let (early, late) = (Early::new(()), RwLock::<_, class::KvTableKnown>::new(()));
    let waits = [
        |guard: &mut _| assert!(crate::Condvar::new().wait_for(guard, Duration::ZERO).timed_out()),
        |guard: &mut _| crate::MutexGuard::unlocked(guard, || ()),
    ];
    for wait in waits {
        wait(&mut early.lock());
        let against = thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut guard = early.lock();
                let _late = late.write();
                wait(&mut guard);
            });
            waiter.join()
        });
        let panic = against.expect_err("panics");
        let message = panic.downcast_ref::<String>().expect("has a message");
        assert!(message.contains("`kv/table.making`") && message.contains("`kv/table.known`"), "{message}");
    }
}

#[test]
fn held_shows_holder_and_waiter_with_their_locations() {
    let lock = Mutex::<_, class::SocketSharesTaken>::new(());
    let guard = lock.lock();
    let line_held = line!() - 1;
    thread::scope(|scope| {
        let waiter = thread::Builder::new().name("a-waiter".to_owned());
        let waiter = waiter.spawn_scoped(scope, || (drop(lock.lock()), line!()).1).expect("starts");
        let notes = loop {
            let notes = notes_of("socket/shares.taken");
            if notes.len() == 2 {
                break notes;
            }
            thread::yield_now();
        };
        let of = |access| notes.iter().find(|entry| entry.access == access).expect("is shown");
        let (holds, waits) = (of(Access::Holds), of(Access::Waits));
        assert_eq!((holds.at.line(), holds.at.file()), (line_held, file!()));
        assert_eq!((waits.thread_name().as_str(), waits.address), ("a-waiter", holds.address));
        drop(guard);
        assert_eq!(waits.at.line(), waiter.join().expect("gets the lock"));
    });
    assert!(notes_of("socket/shares.taken").is_empty());
}

#[test]
fn condvar_waiter_holds_nothing_until_it_is_woken() {
    let (lock, woken) = (&Mutex::<_, class::FuseNotifyQueue>::new(false), &crate::Condvar::new());
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        scope.spawn(move || {
            let mut is_woken = lock.lock();
            sender.send(()).expect("is received");
            woken.wait_while(&mut is_woken, |is_woken| !*is_woken);
            assert_eq!(notes_of("fuse/notify.queue").len(), 1);
        });
        receiver.recv().expect("it has the lock");
        let mut is_woken = lock.lock();
        assert_eq!(notes_of("fuse/notify.queue").len(), 1, "of this thread alone");
        *is_woken = true;
        woken.notify_one();
    });
}

#[test]
fn threads_that_wait_for_each_other_are_a_cycle() {
    let at = Location::caller();
    let entry = |thread, address, access, is_shared| Held {
        lock: "x",
        rank: 0,
        address,
        access,
        is_shared,
        thread,
        at,
        age: Duration::ZERO,
        slot: 0,
        number: 1,
    };
    let (holds, waits) = (Access::Holds, Access::Waits);
    // Of the two that share lock 1, the second waits for lock 2, whose holder waits for lock 1.
    let mut entries = vec![
        entry(10, 1, holds, true),
        entry(11, 1, holds, true),
        entry(11, 2, waits, false),
        entry(12, 2, holds, false),
        entry(13, 2, waits, false),
    ];
    assert!(cycle(&entries).is_empty());
    entries.push(entry(12, 1, waits, false));
    assert_eq!(cycle(&entries), [11, 12]);
}

#[test]
fn watch_reports_a_long_hold_once() {
    let watch = Watch::default();
    let lock = RwLock::<_, class::CliNames>::new(());
    let reported = |seconds| {
        let report = watch.report(Duration::from_secs(seconds));
        report.long_held.into_iter().filter(|(held, _)| held.lock == "cli/names").count()
    };
    let guard = lock.read();
    assert_eq!([reported(10), reported(11), reported(12)], [0, 1, 0]);
    drop(guard);
    let _again = lock.write();
    assert_eq!([reported(13), reported(14), reported(15)], [0, 1, 0], "another hold in the same slot");
}
