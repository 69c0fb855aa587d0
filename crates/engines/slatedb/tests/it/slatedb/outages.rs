//! Object storage that can't be reached, or refuses: what goes on, what waits and for how long, and what is
//! there afterwards.

use kvfs_device::Rng;
use kvfs_engine_slatedb::seam::object_store::ObjectStore;
use kvfs_store::{EngineStore, StoreError};

use super::faults::{Cloud, Outage};
use super::*;

/// Calls give up after this: more than `SlateDB` waits between two attempts, which is two seconds at most.
const TIMEOUT: Duration = Duration::from_secs(3);

fn impatient() -> SlateOptions {
    SlateOptions { timeout: Some(TIMEOUT), request_time: Duration::from_millis(300), ..options() }
}

fn open_over(service: Arc<dyn ObjectStore>, options: &SlateOptions) -> (Fixture<Slate>, Arc<SlateStore>) {
    let store = Arc::new(SlateStore::open_over(service, options).unwrap());
    (Fixture::over(Arc::clone(&store) as Arc<dyn Store>), store)
}

fn made(cloud: &Arc<Cloud>, options: &SlateOptions) -> (Fixture<Slate>, Arc<SlateStore>) {
    let service = cloud.crash();
    SlateStore::create_over(Arc::clone(&service), options, [7; 16]).unwrap();
    open_over(service, options)
}

fn is_unanswered<T>(result: &Result<T>) -> bool {
    matches!(result, Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::TimedOut)
}

#[test]
fn sync_in_an_outage_fails_after_its_timeout_and_everything_goes_on_by_itself_afterwards() {
    std::thread::scope(|scope| {
        for outage in [Outage::Down, Outage::Silent, Outage::Full, Outage::Expired, Outage::NoBucket] {
            scope.spawn(move || live_through(outage));
        }
    });
}

fn live_through(outage: Outage) {
    let cloud = Cloud::new(1, 0);
    let (f, store) = made(&cloud, &impatient());
    store.sync(f.put("before", "1")).unwrap();
    cloud.set(outage);
    let clock = SystemClock::new();
    let position = f.put("during", "1");
    let begun = clock.monotonic();
    assert!(is_unanswered(&store.sync(position)), "{outage:?}");
    let waited = clock.monotonic().saturating_sub(begun);
    assert!(waited >= TIMEOUT && waited < TIMEOUT * 10, "{outage:?}: {waited:?}");
    // What is in memory is read, and written.
    assert_eq!(text(store.get(f.plain, b"during").unwrap()), Some("1".to_owned()));
    let position = f.put("later", "1");
    assert_eq!(listing(&*store, f.plain).len(), 3, "{outage:?}");
    // That the outage goes on is no failure.
    assert_eq!(store.failure(), None, "{outage:?}");
    cloud.set(Outage::None);
    store.sync(position).unwrap();
    // As after a kill.
    let (f, store) = open_over(cloud.crash(), &impatient());
    assert_eq!(listing(&*store, f.plain).len(), 3, "{outage:?}");
    store.close().unwrap();
}

#[test]
fn sync_behind_a_long_outage_is_durable_when_storage_answers_however_long_it_was() {
    let cloud = Cloud::new(7, 0);
    let options = SlateOptions { timeout: Some(Duration::from_millis(1500)), ..impatient() };
    let (f, store) = made(&cloud, &options);
    cloud.set(Outage::Down);
    let first = f.put("first", "1");
    // One flush, for all that time; what comes later is for the next one.
    for later in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        assert!(is_unanswered(&store.sync(first)));
        f.put(later, "1");
    }
    cloud.set(Outage::None);
    while store.sync(first).is_err() {}
    store.sync(store.position()).unwrap();
    store.close().unwrap();
    let (f, store) = open_over(cloud.crash(), &options);
    assert_eq!(listing(&*store, f.plain).len(), 9);
}

#[test]
fn writers_wait_in_an_outage_when_memory_is_full_and_fail_after_their_timeout_without_a_trace() {
    let cloud = Cloud::new(2, 0);
    // Four memtables of the least size.
    let options = SlateOptions { memory_bytes: 1 << 20, ..impatient() };
    let (f, store) = made(&cloud, &options);
    cloud.set(Outage::Down);
    let value = |number: u64| vec![number as u8; 512 << 10];
    let key = |number: u64| number.to_be_bytes().to_vec();
    let mut count = 0;
    let refused = loop {
        match f.try_apply(|b| b.put(f.plain, key(count), value(count))) {
            Ok(_) => count += 1,
            refused => break refused,
        }
        assert!(count < 100, "writers are never held up");
    };
    assert!(is_unanswered(&refused) && count >= 8, "{count}: {refused:?}");
    let position = store.position();
    // All that wait at the same time fail at about the same time, and nothing of them is there.
    let clock = SystemClock::new();
    let begun = clock.monotonic();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (f, key, value) = (&f, &key, &value);
            scope.spawn(move || {
                let refused = f.try_apply(|b| b.put(f.plain, key(1000 + number), value(number)));
                assert!(is_unanswered(&refused), "{refused:?}");
            });
        }
    });
    assert!(clock.monotonic().saturating_sub(begun) < TIMEOUT * 10);
    assert_eq!(store.position(), position);
    assert!(store.get(f.plain, &key(1000)).unwrap().is_none());
    // With another one that waits when the storage comes back.
    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| while f.try_apply(|b| b.put(f.plain, key(count), value(count))).is_err() {});
        cloud.set(Outage::None);
        waiting.join().unwrap();
    });
    store.sync(store.position()).unwrap();
    let (f, store) = open_over(cloud.crash(), &options);
    for number in 0..=count {
        assert_eq!(store.get(f.plain, &key(number)).unwrap().unwrap(), value(number), "{number} of {count}");
    }
    store.close().unwrap();
}

#[test]
fn reads_of_what_is_not_in_memory_fail_after_their_timeout_and_are_right_afterwards() {
    let cloud = Cloud::new(3, 0);
    let (f, store) = made(&cloud, &impatient());
    let key = |number: u64| number.to_be_bytes().to_vec();
    for number in 0..64 {
        f.apply(|b| b.put(f.plain, key(number), vec![number as u8; 64 << 10]));
    }
    store.close().unwrap();
    let options = SlateOptions { memory_bytes: 1 << 20, ..impatient() };
    let (f, store) = open_over(cloud.crash(), &options);
    store.set_memory_bytes(0);
    cloud.set(Outage::Silent);
    let read = store.get(f.plain, &key(7));
    assert!(is_unanswered(&read), "{read:?}");
    let mut cursor = store.cursor(f.plain, KeyRange::all()).unwrap();
    assert!(is_unanswered(&cursor.first()));
    // A write that needs the old value.
    assert!(is_unanswered(&f.try_apply(|b| b.delete_range(f.plain, key(3), key(9)))));
    assert_eq!(store.failure(), None);
    cloud.set(Outage::None);
    assert_eq!(store.get(f.plain, &key(7)).unwrap().unwrap(), vec![7; 64 << 10]);
    cursor.first().unwrap();
    assert_eq!(cursor.entry().unwrap().0, key(0));
    store.close().unwrap();
}

#[test]
fn store_is_closed_and_opened_within_bounds_in_an_outage() {
    let cloud = Cloud::new(4, 0);
    let (f, store) = made(&cloud, &impatient());
    store.sync(f.put("before", "1")).unwrap();
    for outage in [Outage::Silent, Outage::Down] {
        let (f, store) = open_over(cloud.crash(), &impatient());
        cloud.set(outage);
        f.put("lost", "1");
        let closed = store.close();
        assert!(is_unanswered(&closed), "{closed:?}");
        let refused = SlateStore::open_over(cloud.crash(), &impatient()).err().unwrap();
        assert!(matches!(refused, StoreError::Io { .. }), "{refused}");
        cloud.set(Outage::None);
    }
    let (f, store) = open_over(cloud.crash(), &impatient());
    assert_eq!(listing(&*store, f.plain).len(), 1);
    // A keyspace whose maker has waited in vain is there, and durable for the next one that opens it.
    cloud.set(Outage::Down);
    let made = || store.open_keyspace("new", KeyspaceKind::Tuple, None);
    assert!(is_unanswered(&made()) && is_unanswered(&made()));
    cloud.set(Outage::None);
    made().unwrap();
    let (_, store) = open_over(cloud.crash(), &impatient());
    assert!(store.keyspaces().iter().any(|info| info.name == "new"));
    store.close().unwrap();
}

#[test]
fn store_without_a_timeout_waits_for_as_long_as_the_outage_takes() {
    let cloud = Cloud::new(5, 0);
    let (f, store) = made(&cloud, &SlateOptions { timeout: None, ..impatient() });
    cloud.set(Outage::Down);
    let position = f.put("during", "1");
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| store.sync(position));
        let requests = cloud.requests();
        // It has been tried a few times.
        wait_until("it is tried again", || cloud.requests() > requests + 10);
        assert!(!sync.is_finished());
        cloud.set(Outage::None);
        sync.join().unwrap().unwrap();
    });
    store.close().unwrap();
}

#[test]
fn deleted_range_that_takes_longer_than_the_timeout_to_read_is_passed_over_and_goes_while_storage_answers() {
    const KEYS: u64 = 768;
    let cloud = Cloud::new(6, 0);
    let (f, store) = made(&cloud, &options());
    let key = |number: u64| number.to_be_bytes().to_vec();
    let mut rng = Rng::new(6);
    for number in 0..=KEYS {
        let mut value = vec![0; 8 << 10];
        rng.fill(&mut value);
        f.apply(|b| b.put(f.plain, key(number), value));
    }
    store.close().unwrap();
    drop((f, store));
    // What deletes the keys of the range does not get to it.
    let (f, store) = open_over(cloud.crash(), &options());
    cloud.set_latency(Duration::from_secs(2));
    store.sync(f.apply(|b| b.delete_range(f.plain, key(0), key(KEYS)))).unwrap();
    assert_eq!(f.stat("slatedb.deleted_ranges"), 1);
    cloud.set_latency(Duration::from_millis(400));
    let slow = SlateOptions { timeout: Some(Duration::from_secs(2)), ..options() };
    let (reader, _) = open_over(cloud.crash(), &SlateOptions { read_only: true, ..slow.clone() });
    let listed: Vec<_> = entries(&*reader.store, reader.plain).into_keys().collect();
    assert_eq!(listed, [key(KEYS)]);
    drop((f, store, reader));
    let (f, store) = open_over(cloud.crash(), &slow);
    wait_until("its keys are gone", || f.stat("slatedb.deleted_ranges") == 0);
    cloud.set_latency(Duration::ZERO);
    store.close().unwrap();
}
