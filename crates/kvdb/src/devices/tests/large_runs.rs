//! Runs of large transactions, which are made anew as a whole before a part of them is moved: that can be
//! ended.

use super::placement::{wish, wishes};
use super::*;

/// A store whose files are of one transaction, all on the slow device, and wish for the fast one; in pieces
/// of a quarter of a file.
fn of_one_transaction() -> Arc<Db> {
    of_one_transaction_on(&first(), memory(SLOW_BYTES))
}

fn of_one_transaction_on(first: &Arc<dyn Device>, slow: Arc<dyn Device>) -> Arc<Db> {
    create(first);
    let mut options = Options { private_bytes: 64 << 10, batch_commit_bytes_max: 64 << 10, ..options() };
    options.merge.piece_bytes = 64 << 10;
    let db = open(first, &[], options).expect("opens");
    db.add_device(slow, Tier::Slow).expect("adds");
    let rows = db.open_keyspace("rows", KeyspaceKind::Tuple, None).expect("opens");
    wishes(&db);
    // The transaction's seqnos are counted from a base.
    db.apply(wish(&db, 0, None), Durability::Buffered).expect("writes");
    let txn = db.begin(TxnOptions::default()).expect("begins");
    for file in 0..FILES {
        let mut batch = Batch::new();
        batch.put(rows, file.to_be_bytes().to_vec(), 1_u64.to_be_bytes().to_vec());
        batch.put_blocks(files(&db), file.to_be_bytes().to_vec(), 0, content(file, 1));
        txn.apply(batch).expect("writes");
    }
    txn.commit(Durability::Synced).expect("commits");
    db.flush().expect("flushes");
    for file in 0..FILES {
        db.apply(wish(&db, file, Some(Tier::Fast)), Durability::Buffered).expect("is noted");
    }
    let runs = pieces_of_largest_run(&db);
    assert!(runs > FILES as usize, "one run of {runs} pieces");
    db
}

fn pieces_of_largest_run(db: &Db) -> usize {
    let view = db.parts.live.view();
    let runs = view.version.runs(files(db).0).iter();
    let adopted = |run: &Arc<crate::version::Run>| {
        run.pieces.iter().filter(|piece| piece.seqno_min() != piece.desc().seqno_min).count()
    };
    runs.map(adopted).max().unwrap_or(0)
}

fn is_begun(db: &Db) -> bool {
    !db.parts.live.view().version.merges(files(db).0).is_empty()
}

fn goes_on_to_the_end(db: &Db) {
    while db.parts.merger.merge_once().expect("merges") {}
    assert!(db.migrate(&mut |_| true).expect("migrates"));
    assert_eq!(db.migration_plan().expect("plans").bytes(), 0);
    check(db, 1);
}

/// Told to end, or by the end of the store.
#[test]
fn migration_or_drain_of_a_large_run_ends_behind_a_step_of_it() {
    for (is_drain, is_stopped) in [(false, false), (false, true), (true, false), (true, true)] {
        let db = of_one_transaction();
        let before = live(&db, 1);
        let mut calls = 0;
        let mut goes_on = |_| {
            calls += 1;
            if calls == 5 && is_stopped {
                db.parts.runtime.stop();
            }
            calls < 5 || is_stopped
        };
        let moved = if is_drain { db.drain_device(1, &mut goes_on) } else { db.migrate(&mut goes_on) };
        assert!(!moved.expect("ends"), "drain {is_drain}, stopped {is_stopped}");
        assert!(is_begun(&db), "it ends on the way: drain {is_drain}, stopped {is_stopped}");
        assert!(calls <= 8, "{calls} calls");
        assert!(live(&db, 1) > before / 4 * 3, "{} of {before} are left", live(&db, 1));
        if !is_stopped && !is_drain {
            goes_on_to_the_end(&db);
        }
    }
}

#[test]
fn migration_of_a_large_run_gives_way_to_a_writer_that_waits_for_space() {
    let db = of_one_transaction();
    let before = live(&db, 1);
    thread::scope(|scope| {
        let mut waits = None;
        let mut calls = 0;
        let mut goes_on = |_| {
            calls += 1;
            if calls == 4 {
                let waiting = scope.spawn(|| {
                    let _alone = db.parts.merger.claim_all();
                    live(&db, 1)
                });
                // It has ended at once where no claim is in its way.
                while !db.parts.pressure.pace.is_hurried() && !waiting.is_finished() {
                    thread::yield_now();
                }
                waits = Some(waiting);
            }
            true
        };
        db.migrate(&mut goes_on).expect("gives way");
        let left = waits.expect("was asked").join().expect("ends");
        assert!(left > before / 4 * 3, "{left} of {before} are left");
    });
    goes_on_to_the_end(&db);
}

#[test]
fn large_run_that_merges_have_left_out_is_moved_once_its_devices_answer_again() {
    for is_drain in [false, true] {
        // Metadata, which is all that is read here, lies on both.
        let media = [(0, FIRST_ZONES * ZONE_BYTES), (SLOW_BYTES, SLOW_BYTES)]
            .map(|(len, len_max)| Arc::new(FaultDevice::new(MemoryDevice::growable(len, len_max))));
        let [first, slow] = [0, 1].map(|at: usize| Arc::clone(&media[at]) as Arc<dyn Device>);
        let db = of_one_transaction_on(&first, Arc::clone(&slow));
        let mut calls = 0;
        let mut goes_on = |_| {
            calls += 1;
            calls < 5
        };
        let moved = if is_drain { db.drain_device(1, &mut goes_on) } else { db.migrate(&mut goes_on) };
        assert!(!moved.expect("ends") && is_begun(&db), "it ends on the way");
        db.close().expect("closes");
        drop(db);

        // No metadata stays in memory.
        let options = Options { memory_bytes: 1, ..options() };
        let db = open(&first, &[slow], options).expect("opens");
        assert!(is_begun(&db), "merges go on with it");
        let reads_nothing = FaultRule::from(Call::Read, 0, FaultError::EIO);
        for medium in &media {
            medium.add(reads_nothing.clone());
        }
        let mut failed = 0;
        while db.parts.merger.merge_once().unwrap_or_else(|_| {
            failed += 1;
            true
        }) {}
        assert!(failed > 0, "its devices read nothing");
        for medium in &media {
            medium.clear();
        }
        assert!(!db.parts.merger.merge_once().expect("looks"), "merges leave it out");
        assert_eq!(db.failure(), None);
        let mut on = |_| true;
        let moved = if is_drain { db.drain_device(1, &mut on) } else { db.migrate(&mut on) };
        assert!(moved.expect("reads it again"), "drain {is_drain}: {:?}", db.devices());
        if is_drain {
            db.remove_device(1).expect("holds nothing");
        }
        check(&db, 1);
    }
}
