//! Stores that are opened by machines whose clocks differ.

use kvfs_store::EngineStore;

use super::faults::Cloud;
use super::*;

/// Of a machine whose clock is right, or an hour ahead.
fn with_clock(is_ahead: bool) -> SlateOptions {
    let ahead: fn() -> Duration = || SystemClock::new().wall() + Duration::from_hours(1);
    if is_ahead { SlateOptions { wall: ahead, ..options() } } else { options() }
}

#[test]
fn store_is_written_to_by_a_machine_whose_clock_is_behind_that_of_its_last_writer() {
    for is_closed in [true, false] {
        let cloud = Cloud::new(1, 0);
        let mut service = cloud.crash();
        SlateStore::create_over(Arc::clone(&service), &with_clock(true), [7; 16]).unwrap();
        for (round, is_ahead) in [true, false, false].into_iter().enumerate() {
            let store = Arc::new(SlateStore::open_over(service, &with_clock(is_ahead)).unwrap());
            let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
            let key = |round: usize| round.to_string().into_bytes();
            store.sync(f.apply(|b| b.put(f.plain, key(round), "v"))).unwrap();
            for earlier in 0..=round {
                assert!(store.get(f.plain, &key(earlier)).unwrap().is_some(), "{earlier} of {round}");
            }
            // What was written goes to a table, or stays in the log alone.
            if is_closed {
                store.close().unwrap();
            }
            assert_eq!(store.failure(), None);
            service = cloud.crash();
            drop(std::thread::spawn(move || drop((f, store))));
        }
        // Many tables, and their compactions.
        let store = Arc::new(SlateStore::open_over(service, &with_clock(false)).unwrap());
        let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
        for number in 0..12_u8 {
            f.apply(|b| b.put(f.plain, vec![b'n', number], "v"));
            f.store.snapshots().unwrap().create_snapshot(&number.to_string()).unwrap();
        }
        wait_until("tables are compacted", || f.stat("slatedb.l0_tables") < 12);
        assert_eq!(store.failure(), None);
        store.close().unwrap();
    }
}
