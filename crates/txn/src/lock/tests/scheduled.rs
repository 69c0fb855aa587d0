//! Parking, release, doom and cancellation under thousands of random schedules; shuttle prints the one that
//! fails, and finds it itself when all threads wait.

use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::mpsc;
use shuttle::thread;

use super::*;
use crate::DoomReason;
use crate::sync::scheduled::with_schedules;

const SCHEDULES: usize = 600;

fn explore(test: fn()) {
    with_schedules(|| {
        shuttle::check_random(test, SCHEDULES);
        shuttle::check_pct(test, SCHEDULES / 2, 3);
    });
}

/// Waits as a parked request does: for the callback.
fn wait(ticket: &Ticket) {
    let (sender, receiver) = mpsc::channel();
    ticket.on_ready(Box::new(move || sender.send(()).unwrap()));
    receiver.recv().unwrap();
}

/// Repeats until it is granted or doomed.
fn until_done(mut attempt: impl FnMut(Option<&Ticket>) -> Result<(), Refused>) -> Result<(), Doom> {
    let mut ticket: Option<Ticket> = None;
    loop {
        match attempt(ticket.as_ref()) {
            Ok(()) => return Ok(()),
            Err(Refused::Full(share)) => panic!("{share:?}"),
            Err(Refused::Doomed(doom)) => return Err(doom),
            Err(Refused::Wait(again)) => {
                wait(&again);
                ticket = Some(again);
            }
        }
    }
}

/// A transaction that takes two names one after the other, adds to both counters, and commits; again from the
/// start when it is doomed.
fn transfer(fixture: &Fixture, id: u64, names: [u64; 2], counters: &[AtomicU64; 2]) {
    for attempt in 0.. {
        let owner = fixture.begin(id + 10 * attempt);
        let take = |name: u64| {
            let want = [Want::exclusive(identity(name))];
            until_done(|ticket| fixture.admission.try_lock(&owner, &want, ticket))
        };
        let taken = take(names[0]).and_then(|()| take(names[1]));
        if taken.is_err() || owner.begin_commit().and_then(|()| owner.decide()).is_err() {
            continue;
        }
        for name in names {
            // Not atomic as a whole: two holders at once would lose an update.
            let counter = &counters[name as usize];
            let value = counter.load(Ordering::SeqCst);
            thread::yield_now();
            counter.store(value + 1, Ordering::SeqCst);
        }
        owner.end();
        return;
    }
}

#[test]
fn transactions_that_cross_each_other_all_commit_in_the_end() {
    explore(|| {
        let fixture = Arc::new(Fixture::new());
        let counters = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let threads: Vec<_> = [[0, 1], [1, 0], [0, 1]]
            .into_iter()
            .zip(1..)
            .map(|(names, id)| {
                let (fixture, counters) = (Arc::clone(&fixture), Arc::clone(&counters));
                thread::spawn(move || transfer(&fixture, id, names, &counters))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(counters.each_ref().map(|counter| counter.load(Ordering::SeqCst)), [3, 3]);
        assert!(fixture.is_idle());
    });
}

#[test]
fn the_main_line_never_acts_under_a_lock() {
    explore(|| {
        let fixture = Arc::new(Fixture::new());
        let counters = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let txn = {
            let (fixture, counters) = (Arc::clone(&fixture), Arc::clone(&counters));
            thread::spawn(move || transfer(&fixture, 1, [0, 1], &counters))
        };
        let main: Vec<_> = (0..2_u64)
            .map(|name| {
                let (fixture, counters) = (Arc::clone(&fixture), Arc::clone(&counters));
                thread::spawn(move || {
                    let want = [Want::exclusive(identity(name))];
                    let main = Party::Main { pid: 1 };
                    until_done(|ticket| {
                        let _guard = fixture.admission.try_acquire(main, &want, |_| true, ticket)?;
                        let value = counters[name as usize].load(Ordering::SeqCst);
                        thread::yield_now();
                        counters[name as usize].store(value + 1, Ordering::SeqCst);
                        Ok(())
                    })
                    .unwrap();
                })
            })
            .collect();
        txn.join().unwrap();
        for thread in main {
            thread.join().unwrap();
        }
        assert_eq!(counters.each_ref().map(|counter| counter.load(Ordering::SeqCst)), [2, 2]);
        assert!(fixture.is_idle());
    });
}

#[test]
fn a_doom_and_a_commit_that_race_have_one_winner() {
    explore(|| {
        let fixture = Arc::new(Fixture::new());
        let owner = fixture.begin(1);
        let want = [Want::exclusive(identity(1))];
        fixture.lock(&owner, &want).unwrap();
        let commit = {
            let owner = Arc::clone(&owner);
            thread::spawn(move || {
                let decided = owner.begin_commit().and_then(|()| owner.decide()).is_ok();
                owner.end();
                decided
            })
        };
        let doom = {
            let owner = Arc::clone(&owner);
            thread::spawn(move || owner.doom_late(Doom::new(DoomReason::Aborted)))
        };
        until_done(|ticket| {
            let main = Party::Main { pid: 1 };
            fixture.admission.try_acquire(main, &[Want::shared(identity(1))], |_| true, ticket).map(drop)
        })
        .unwrap();
        let (decided, doomed) = (commit.join().unwrap(), doom.join().unwrap());
        assert!(!(decided && doomed), "committed and doomed");
        assert_eq!(decided, owner.doomed().unwrap().reason == DoomReason::Ended || !doomed);
        drop(owner);
        assert!(fixture.is_idle());
    });
}

#[test]
fn a_doom_refuses_its_waiting_operation_whenever_it_comes() {
    explore(|| {
        let fixture = Arc::new(Fixture::new());
        let (holder, victim) = (fixture.begin(1), fixture.begin(2));
        let want = [Want::exclusive(identity(1))];
        fixture.lock(&holder, &want).unwrap();
        let waiter = {
            let (fixture, victim) = (Arc::clone(&fixture), Arc::clone(&victim));
            thread::spawn(move || {
                until_done(|ticket| {
                    fixture.admission.try_lock(&victim, &[Want::exclusive(identity(1))], ticket)
                })
            })
        };
        let doomer = {
            let victim = Arc::clone(&victim);
            thread::spawn(move || victim.doom(Doom::new(DoomReason::Aborted)))
        };
        // The holder never releases while the victim waits: only the doom can wake it.
        assert_eq!(waiter.join().unwrap().unwrap_err().reason, DoomReason::Aborted);
        assert!(doomer.join().unwrap());
        drop((holder, victim));
        assert!(fixture.is_idle());
    });
}

#[test]
fn cancel_during_release_leaves_no_waiter_behind() {
    explore(|| {
        let fixture = Arc::new(Fixture::new());
        let (holder, first, second) = (fixture.begin(1), fixture.begin(2), fixture.begin(3));
        let want = [Want::exclusive(identity(1))];
        fixture.lock(&holder, &want).unwrap();
        let parked = ticket(fixture.lock(&first, &want));
        let canceller = thread::spawn(move || parked.cancel());
        let releaser = thread::spawn(move || drop(holder));
        until_done(|ticket| fixture.admission.try_lock(&second, &want, ticket)).unwrap();
        canceller.join().unwrap();
        releaser.join().unwrap();
        drop((first, second));
        assert!(fixture.is_idle());
    });
}
