//! The registry without a front end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kvfs_fs::{BeginOptions, Durability, FsError, NodeId, settled};

use super::entry::ServedView;
use super::limits::Slot;
use super::{Begin, TxnState};
use crate::caller::Caller;
use crate::error::{ErrorKind, ServiceError};
use crate::testing::{TestView, World, stranger};

#[test]
fn negative_priority_is_refused_to_all_but_root_and_the_owner_on_every_way_in() {
    let world = World::new(false);
    let begin = || Begin { nice: -1, ..Begin::default() };
    let keys = Caller::of_keys(7, stranger().uid, 1);
    for caller in [stranger(), keys] {
        let error = world.transactions.begin(&caller, begin()).expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert_eq!(
            error.to_string(),
            "only root and the store's owner run transactions with a negative --nice"
        );
        let id = world.transactions.begin(&caller, Begin::default()).expect("begins");
        assert_eq!(world.transactions.state(&caller, id).expect("is open"), TxnState::Open);
    }
    for caller in [Caller::own(), Caller::of_mount(0, 1)] {
        world.transactions.begin(&caller, begin()).expect("begins");
    }
}

#[test]
fn label_is_cut_and_made_printable_on_every_way_in() {
    let world = World::new(false);
    let begin = Begin { label: format!("a\x1b{}", "b".repeat(200)), ..Begin::default() };
    let id = world.transactions.begin(&stranger(), begin).expect("begins");
    let label = format!("a {}", "b".repeat(78));
    assert_eq!(world.transactions.list(&stranger())[0].label, label);
    assert_eq!(world.transactions.labelled(&stranger(), &label), Some(id));
    assert_eq!(world.transactions.labelled(&Caller::own(), &label), None, "it is another user's");
}

#[test]
fn transaction_over_files_on_a_writeback_mount_is_refused_and_over_keys_is_not() {
    let world = World::new(true);
    let files = Begin { needs_files: true, ..Begin::default() };
    assert!(matches!(world.transactions.begin(&stranger(), files), Err(ServiceError::NoFiles)));
    let id = world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    assert!(matches!(world.transactions.path(&stranger(), id), Err(ServiceError::NoFiles)));
    world.transactions.commit(&stranger(), id, Durability::Buffered, None).expect("commits");
    assert!(
        matches!(world.transactions.view(&stranger(), id), Err(ServiceError::Unknown(unknown)) if unknown == id)
    );
}

#[test]
fn transaction_of_another_user_is_refused_and_an_aborted_one_says_why() {
    let world = World::new(false);
    let id = world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    let other = Caller::of_mount(stranger().uid + 1, 1);
    let refused = world.transactions.commit(&other, id, Durability::Buffered, None);
    assert!(matches!(refused, Err(ServiceError::NotYours { uid, .. }) if uid == stranger().uid));
    assert_eq!(world.transactions.abort(&Caller::of_mount(0, 5), id).expect("aborts"), None);
    let ended = world.transactions.view(&stranger(), id).expect_err("has ended");
    assert_eq!(ended.to_string(), format!("transaction {id}: aborted by user 0 (pid 5)"));
}

#[test]
fn transaction_whose_connection_ends_is_gone_at_once_or_when_it_is_given_back() {
    let world = World::new(false);
    let caller = Caller::of_keys(7, stranger().uid, 1);
    let begin = || world.transactions.begin(&caller, Begin { tied: true, ..Begin::default() });
    let (free, used) = (begin().expect("begins"), begin().expect("begins"));
    let stays = world.transactions.begin(&caller, Begin::default()).expect("begins");
    let taken = world.transactions.take(&caller, used, "being read").expect("is free");
    assert!(matches!(world.transactions.view(&caller, used), Err(ServiceError::Busy { .. })));
    world.transactions.line_gone(caller.number);
    let ended = world.transactions.view(&caller, free).expect_err("has ended");
    assert_eq!(ended.to_string(), format!("transaction {free}: aborted: its connection ended"));
    assert!(matches!(world.transactions.view(&caller, used), Err(ServiceError::Busy { .. })));
    taken.give_back(true);
    assert!(matches!(world.transactions.view(&caller, used), Err(ServiceError::Unknown(_))));
    let taken = world.transactions.take(&caller, stays, "being read").expect("is free");
    taken.give_back(true);
    assert_eq!(world.transactions.state(&caller, stays).expect("is open"), TxnState::Open);
}

#[test]
fn what_the_daemon_is_at_work_at_ends_at_its_next_operation_when_all_is_aborted() {
    let world = World::new(false);
    let (at_work, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let carried = scope.spawn(|| {
            world.transactions.carry_out(&BeginOptions::default(), |view| {
                at_work.send(()).expect("is awaited");
                let mut names = 0..;
                loop {
                    let name = format!("name{:?}", names.next());
                    settled(|caller| view.create(caller, NodeId::ROOT, name.as_bytes(), 0o644, true))?;
                }
            })
        });
        told.recv().expect("is at work");
        world.transactions.abort_all("the test ends");
        assert!(world.transactions.list(&Caller::own()).is_empty());
        let error = carried.join().expect("returns").expect_err("is given up");
        assert!(matches!(error, ServiceError::NotCommitted { .. }), "{error}");
    });
}

#[test]
fn transaction_of_a_thread_that_panics_is_aborted_and_keeps_nothing_from_ending() {
    let world = World::new(false);
    let id = world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    let tied =
        world.transactions.begin(&stranger(), Begin { tied: true, ..Begin::default() }).expect("begins");
    let failed = |work: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
    for id in [id, tied] {
        failed(&|| {
            let _taken = world.transactions.take(&stranger(), id, "committing").expect("is free");
            panic!("as a commit may");
        });
        let ended = world.transactions.view(&stranger(), id).expect_err("has ended");
        assert_eq!(
            ended.to_string(),
            format!("transaction {id}: the daemon failed in it: aborted, unless it was being committed")
        );
    }
    failed(&|| drop(world.transactions.carry_out(&BeginOptions::default(), |_| panic!("at work"))));
    world.transactions.close();
    assert!(world.fs.admission().transactions().is_empty(), "their locks have gone");
}

#[test]
fn transaction_that_is_doomed_while_its_pages_wait_fails_by_the_conflict() {
    let world = World::with_commit(|view| {
        view.expect_txn().expect("is one").give_way(7, NodeId::ROOT);
        FsError::PagesWait
    });
    let id = world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    let refused = world.transactions.commit(&stranger(), id, Durability::Buffered, None);
    let refused = refused.map(drop).expect_err("met a conflict");
    assert!(matches!(refused.of_file_system(), Some(FsError::Canceled(_))), "{refused}");
    assert!(matches!(world.transactions.view(&stranger(), id), Err(ServiceError::Unknown(_))));
}

#[test]
fn transaction_whose_pages_wait_stays_open() {
    let world = World::with_commit(|_| FsError::PagesWait);
    let id = world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    let refused = world.transactions.commit(&stranger(), id, Durability::Buffered, None);
    let refused = refused.map(drop).expect_err("waits");
    assert!(matches!(refused.of_file_system(), Some(FsError::PagesWait)), "{refused}");
    assert_eq!(world.transactions.state(&stranger(), id).expect("is open"), TxnState::Open);
}

#[test]
fn transaction_whose_commit_fails_while_an_unmount_keeps_transactions_is_kept() {
    static FAILS: AtomicBool = AtomicBool::new(false);
    let world = World::with_commit(|_| {
        while !FAILS.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        FsError::NoSpace
    });
    let begin = || world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    let (committing, free, given_up) = (begin(), begin(), begin());
    std::thread::scope(|scope| {
        let commit =
            || world.transactions.commit(&stranger(), committing, Durability::Buffered, None).map(drop);
        let commit = scope.spawn(commit);
        while world.transactions.state(&stranger(), committing).expect("is known") == TxnState::Open {
            std::thread::yield_now();
        }
        let kept = scope.spawn(|| world.transactions.keep_all());
        // Until it waits.
        while world.transactions.changed.notify_all() == 0 && !kept.is_finished() {
            std::thread::yield_now();
        }
        let goes_on = world.transactions.state(&stranger(), free);
        // What would be lost with the command that ends with it goes on.
        let committed =
            world.transactions.take(&stranger(), free, "committing").map(|taken| taken.give_back(true));
        let aborted = world.transactions.abort(&stranger(), given_up);
        let begun = world.transactions.begin(&stranger(), Begin::default());
        let second = world.transactions.keep_all_within(Duration::ZERO);
        FAILS.store(true, Ordering::Release);
        assert!(commit.join().expect("returns").is_err());
        let kept = kept.join().expect("returns").expect("keeps");
        assert_eq!(kept, [format!("txn-{committing}"), format!("txn-{free}")]);
        assert_eq!(goes_on.expect("is known"), TxnState::Open, "nothing was taken before");
        committed.expect("is free to be committed");
        assert_eq!(aborted.expect("aborts"), None);
        let refused = begun.expect_err("is refused");
        assert_eq!(refused.kind(), ErrorKind::InUse);
        assert_eq!(
            refused.to_string(),
            "the store is being unmounted, and open transactions kept; try again"
        );
        let refused = second.expect_err("is refused");
        assert_eq!(refused.kind(), ErrorKind::InUse);
        assert_eq!(
            refused.to_string(),
            "another unmount is keeping transactions as branches; try again later"
        );
    });
}

#[test]
fn unmount_that_keeps_transactions_is_refused_while_one_is_being_committed() {
    let world = World::new(false);
    let begin = || world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    let (free, committing) = (begin(), begin());
    let taken = world.transactions.take(&stranger(), committing, "committing").expect("is free");
    let refused = world.transactions.keep_all_within(Duration::ZERO).expect_err("is busy");
    assert_eq!(refused.kind(), ErrorKind::InUse);
    assert_eq!(
        refused.to_string(),
        format!(
            "transaction {committing} can't be kept as a branch: it is still committing after 0 s; try again \
             later; all are open as before"
        )
    );
    assert_eq!(world.transactions.state(&stranger(), free).expect("is open"), TxnState::Open);
    taken.give_back(false);
    let goes_on = world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    world.transactions.commit(&stranger(), goes_on, Durability::Buffered, None).expect("commits");
    assert_eq!(world.transactions.keep_all().expect("keeps"), [format!("txn-{free}")]);
}

/// A transaction is being committed at each moment: a commit goes on when the next one has begun.
#[test]
fn unmount_keeps_transactions_of_clients_that_commit_one_after_the_other_without_a_gap() {
    const CLIENTS: usize = 4;
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    static CLIENTS_LEFT: AtomicUsize = AtomicUsize::new(CLIENTS);
    let world = World::with_commit(|_| {
        let begun = BEGUN.fetch_add(1, Ordering::AcqRel) + 1;
        while BEGUN.load(Ordering::Acquire) == begun && CLIENTS_LEFT.load(Ordering::Acquire) > 1 {
            std::thread::yield_now();
        }
        FsError::NoSpace
    });
    let transactions = &world.transactions;
    // Returns the one that it has open when a commit is refused.
    let client = || {
        let left = loop {
            let Ok(id) = transactions.begin(&stranger(), Begin::default()) else { break None };
            let commit = transactions.commit(&stranger(), id, Durability::Buffered, None).map(drop);
            let is_refused = !matches!(commit, Err(ServiceError::NotCommitted { .. }));
            if is_refused || transactions.abort(&stranger(), id).is_err() {
                break Some(id);
            }
        };
        CLIENTS_LEFT.fetch_sub(1, Ordering::AcqRel);
        left
    };
    let free = transactions.begin(&stranger(), Begin::default()).expect("begins");
    std::thread::scope(|scope| {
        let clients = [(); CLIENTS].map(|()| scope.spawn(client));
        while BEGUN.load(Ordering::Acquire) < 10 * CLIENTS {
            std::thread::yield_now();
        }
        let kept = transactions.keep_all();
        // A client may have begun another one since.
        transactions.close();
        let open: Vec<_> = clients.into_iter().filter_map(|client| client.join().expect("returns")).collect();
        let kept = kept.expect("keeps");
        assert!(kept.contains(&format!("txn-{free}")), "{kept:?}");
        let open: Vec<_> = open.into_iter().chain([free]).map(|id| format!("txn-{id}")).collect();
        assert!(kept.iter().all(|name| open.contains(name)), "{kept:?} of {open:?}");
    });
}

#[test]
fn unmount_that_keeps_transactions_is_refused_for_a_serializable_one_before_it_waits() {
    let world = World::new(false);
    let begin = |serializable| {
        let begin = Begin { serializable, ..Begin::default() };
        world.transactions.begin(&stranger(), begin).expect("begins")
    };
    let (committing, serializable) = (begin(false), begin(true));
    let taken = world.transactions.take(&stranger(), committing, "committing").expect("is free");
    let refused = world.transactions.keep_all_within(Duration::ZERO).expect_err("is serializable");
    assert!(refused.to_string().starts_with(&format!("transaction {serializable} is ser")), "{refused}");
    taken.give_back(true);
}

#[test]
fn unmount_that_keeps_transactions_does_not_wait_for_what_the_daemon_is_at_work_at() {
    let world = World::new(false);
    let free = world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    world
        .transactions
        .carry_out(&BeginOptions::default(), |_| {
            let kept = world.transactions.keep_all_within(Duration::ZERO).expect("keeps");
            assert_eq!(kept, [format!("txn-{free}")]);
            Ok(())
        })
        .expect("commits");
}

#[test]
fn commit_without_wait_leaves_what_has_a_mounted_view_and_what_is_taken_gets_none() {
    let world = World::new(false);
    let begin = || world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    let mount = |id: u64| {
        let view = ServedView::new(Box::<TestView>::default(), Slot::uncounted());
        world.transactions.install_view_mount(id, view)
    };
    let commit = |id| {
        let committed = world.transactions.commit_unmounted(&stranger(), id, Durability::Buffered);
        committed.expect("is known").is_some()
    };
    let (mounted, taken, plain) = (begin(), begin(), begin());
    mount(mounted).expect("is free");
    assert!(!commit(mounted));
    assert_eq!(world.transactions.state(&stranger(), mounted).expect("is open"), TxnState::Open);
    world.transactions.commit(&stranger(), mounted, Durability::Buffered, None).expect("commits");
    let committing = world.transactions.take_unmounted_to_commit(&stranger(), taken);
    let committing = committing.expect("is known").expect("has no view");
    assert!(matches!(mount(taken), Err(ServiceError::Unknown(id)) if id == taken));
    committing.give_back(false);
    assert!(commit(plain));
    assert!(matches!(world.transactions.view(&stranger(), plain), Err(ServiceError::Unknown(_))));
}
