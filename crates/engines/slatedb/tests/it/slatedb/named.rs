//! Named snapshots: what is in them, how long they last, and what object storage holds for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_engine_slatedb::seam::futures::TryStreamExt;
use kvfs_engine_slatedb::seam::object_store::{ObjectStore, ObjectStoreExt};
use kvfs_engine_slatedb::seam::slatedb::admin::{Admin, AdminBuilder};
use kvfs_engine_slatedb::seam::slatedb::config::{GarbageCollectorDirectoryOptions, GarbageCollectorOptions};
use kvfs_engine_slatedb::seam::tokio;
use kvfs_store::{EngineStore, Follow, KeyRange, SnapshotInfo, StoreError};

use super::faults::{Cloud, Outage};
use super::*;

const TIMEOUT: Duration = Duration::from_secs(3);

fn impatient() -> SlateOptions {
    SlateOptions { timeout: Some(TIMEOUT), request_time: Duration::from_millis(300), ..options() }
}

pub(super) type Opened = (Fixture<Slate>, Arc<SlateStore>);

pub(super) fn open_over(service: Arc<dyn ObjectStore>, options: &SlateOptions) -> Opened {
    let store = Arc::new(SlateStore::open_over(service, options).unwrap());
    fixture_of(store)
}

fn fixture_of(store: Arc<SlateStore>) -> Opened {
    (Fixture::over(Arc::clone(&store) as Arc<dyn Store>), store)
}

pub(super) fn made(cloud: &Arc<Cloud>, options: &SlateOptions) -> Opened {
    let service = cloud.crash();
    SlateStore::create_over(Arc::clone(&service), options, [7; 16]).unwrap();
    open_over(service, options)
}

fn read_only(cloud: &Arc<Cloud>, follows: bool) -> SlateStore {
    let options = SlateOptions { read_only: true, follows, ..impatient() };
    SlateStore::open_over(cloud.beside(), &options).unwrap()
}

/// Seen from outside of the store.
pub(super) struct Outside {
    cloud: Arc<Cloud>,
    runtime: tokio::runtime::Runtime,
}

impl Outside {
    pub(super) fn of(cloud: &Arc<Cloud>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { cloud: Arc::clone(cloud), runtime }
    }

    fn admin(&self) -> Admin {
        AdminBuilder::new("", self.cloud.beside()).build()
    }

    /// Names of checkpoints that do not expire.
    fn checkpoints(&self) -> Vec<String> {
        let all = self.runtime.block_on(self.admin().list_checkpoints(None)).unwrap();
        let lasting = all.into_iter().filter(|checkpoint| checkpoint.expire_time.is_none());
        lasting.filter_map(|checkpoint| checkpoint.name).collect()
    }

    /// Those of compactions, which last for minutes.
    pub(super) fn expire_checkpoints(&self) {
        self.runtime.block_on(async {
            let admin = self.admin();
            for checkpoint in admin.list_checkpoints(None).await.unwrap() {
                if checkpoint.expire_time.is_some() {
                    admin.delete_checkpoint(checkpoint.id).await.unwrap();
                }
            }
        });
    }

    /// As after the ages that the store gives to objects.
    fn collect_garbage(&self) {
        let now = || {
            let min_age = Duration::ZERO;
            Some(GarbageCollectorDirectoryOptions { interval: None, min_age, ..Default::default() })
        };
        let options = GarbageCollectorOptions {
            manifest_options: now(),
            wal_options: now(),
            compacted_options: now(),
            compactions_options: now(),
            ..GarbageCollectorOptions::default()
        };
        self.expire_checkpoints();
        self.runtime.block_on(self.admin().run_gc_once(options)).unwrap();
    }

    /// Those of the newest state.
    pub(super) fn live_tables(&self) -> BTreeSet<String> {
        let manifest = self.runtime.block_on(self.admin().read_manifest(None)).unwrap().unwrap();
        manifest.all_sst_views().map(|view| format!("compacted/{}.sst", view.sst.id.value())).collect()
    }

    pub(super) fn tables(&self) -> BTreeSet<String> {
        let service = self.cloud.beside();
        let all = service.list(Some(&"compacted".into())).map_ok(|found| found.location.to_string());
        self.runtime.block_on(all.try_collect()).unwrap()
    }
}

fn names(store: &SlateStore) -> Vec<String> {
    (store as &dyn Store).named_snapshots().into_iter().map(|info| info.name).collect()
}

fn create_named(store: &SlateStore, name: &str) -> SnapshotInfo {
    (store as &dyn Store).create_snapshot(name).unwrap()
}

fn delete_named(store: &SlateStore, name: &str) {
    (store as &dyn Store).delete_snapshot(name).unwrap();
}

fn open_named(store: &SlateStore, name: &str) -> Arc<dyn kvfs_store::Snapshot> {
    (store as &dyn Store).open_snapshot(name).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Keys and values, which are short.
fn contents(read: &dyn Read, f: &Fixture<Slate>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut cursor = read.cursor(f.plain, KeyRange::all()).unwrap();
    let mut all = Vec::new();
    cursor.first().unwrap();
    while let Some((key, value)) = cursor.entry() {
        all.push((key.to_vec(), value.to_vec()));
        cursor.next().unwrap();
    }
    all
}

fn is_unanswered<T>(result: &Result<T>) -> bool {
    matches!(result, Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::TimedOut)
}

#[test]
fn named_snapshots_are_there_after_a_close_a_crash_and_a_take_over() {
    let cloud = Cloud::new(1, 0);
    let (f, store) = made(&cloud, &impatient());
    let mut expected = Vec::new();
    let mut at = |store: &SlateStore, f: &Fixture<Slate>, name: &str| {
        let state = contents(store, f);
        // What was applied before is in it, and durable, without another sync.
        expected.push((create_named(store, name), state));
    };
    at(&store, &f, "empty");
    f.apply(|b| (0..500).for_each(|n| b.put(f.plain, key(n), "old")));
    at(&store, &f, "full");
    // A range with keys that go in the background, before and after.
    f.apply(|b| b.delete_range(f.plain, key(100), key(400)));
    at(&store, &f, "hollow");
    f.apply(|b| (200..300).for_each(|n| b.put(f.plain, key(n), "new")));
    at(&store, &f, "… again");
    create_named(&store, "gone");
    f.apply(|b| b.delete_range(f.plain, vec![0], vec![255]));
    delete_named(&store, "gone");
    let check = |store: &SlateStore, f: &Fixture<Slate>| {
        let infos: Vec<_> = expected.iter().map(|(info, _)| info.clone()).collect();
        assert_eq!((store as &dyn Store).named_snapshots(), infos);
        for (info, state) in &expected {
            let snapshot = open_named(store, &info.name);
            assert_eq!(snapshot.seqno(), info.position.0);
            assert!(contents(&*snapshot, f) == *state, "{}", info.name);
        }
    };
    check(&store, &f);
    let (f, store) = open_over(cloud.crash(), &impatient());
    check(&store, &f);
    store.close().unwrap();
    assert!(matches!((&*store as &dyn Store).open_snapshot("full").err(), Some(StoreError::Failed { .. })));
    let (f, old) = open_over(cloud.crash(), &impatient());
    check(&old, &f);
    let claimant = Claimant { takes_over: true, ..options().claimant };
    let (f, store) = open_over(cloud.beside(), &SlateOptions { claimant, ..impatient() });
    check(&store, &f);
    // The one that was taken over neither makes nor removes any.
    wait_until("it notices", || old.failure().is_some());
    for refused in [
        (&*old as &dyn Store).create_snapshot("late").map(drop),
        (&*old as &dyn Store).delete_snapshot("full"),
    ] {
        assert!(
            matches!(&refused, Err(StoreError::Failed { reason }) if reason.contains("taken")),
            "{refused:?}"
        );
    }
    check(&store, &f);
    assert!(store.verify().unwrap().findings.is_empty());
    store.close().unwrap();
}

#[test]
fn snapshot_among_writers_has_each_batch_up_to_its_position_and_no_other() {
    let cloud = Cloud::new(2, 0);
    let (f, store) = made(&cloud, &impatient());
    let base = store.position().0;
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..3_u64 {
            let f = &f;
            scope.spawn(move || {
                for number in 0_u64.. {
                    f.apply(|b| b.put(f.plain, [writer.to_be_bytes(), number.to_be_bytes()].concat(), "v"));
                    if is_over.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
        }
        for number in 0..12 {
            let before = store.position();
            let info = create_named(&store, &number.to_string());
            assert!(info.position >= before);
            let snapshot = open_named(&store, &info.name);
            assert_eq!(contents(&*snapshot, &f).len() as u64, info.position.0 - base);
        }
        is_over.store(true, Ordering::Release);
    });
    let (f, store) = open_over(cloud.crash(), &impatient());
    for info in (&*store as &dyn Store).named_snapshots() {
        let snapshot = open_named(&store, &info.name);
        assert_eq!(contents(&*snapshot, &f).len() as u64, info.position.0 - base);
    }
    store.close().unwrap();
}

/// Has so many tables made, and most of them merged into others.
pub(super) fn make_tables(f: &Fixture<Slate>, store: &SlateStore, rounds: std::ops::Range<u64>) {
    for round in rounds {
        f.apply(|b| (0..100).for_each(|n| b.put(f.plain, key(n), round.to_string())));
        create_named(store, "table");
        delete_named(store, "table");
    }
}

/// Collects until `is_met`: what compactions leave can be collected when they are over.
fn collect_until(outside: &Outside, f: &Fixture<Slate>, store: &SlateStore, is_met: impl Fn() -> bool) {
    let mut round = 1000;
    wait_until("it is collected", || {
        make_tables(f, store, round..round + 1);
        round += 1;
        outside.collect_garbage();
        is_met()
    });
}

#[test]
fn objects_of_a_snapshot_are_kept_until_it_is_deleted_and_collected_then() {
    let cloud = Cloud::new(3, 0);
    let outside = Outside::of(&cloud);
    let (f, store) = made(&cloud, &impatient());
    make_tables(&f, &store, 0..3);
    create_named(&store, "kept");
    let state = contents(&*store, &f);
    let tables = outside.tables();
    // Of the newest state no table is left that the snapshot has.
    collect_until(&outside, &f, &store, || tables.is_disjoint(&outside.live_tables()));
    assert!(tables.is_subset(&outside.tables()));
    let (f, store) = open_over(cloud.crash(), &impatient());
    store.set_memory_bytes(0);
    assert!(contents(&*open_named(&store, "kept"), &f) == state);
    assert_eq!(outside.checkpoints().len(), 1);
    delete_named(&store, "kept");
    assert!(outside.checkpoints().is_empty());
    collect_until(&outside, &f, &store, || tables.is_disjoint(&outside.tables()));
    store.close().unwrap();
}

#[test]
fn deleted_snapshot_is_read_on_until_its_last_reader_goes_and_leaves_nothing_after_a_crash() {
    let cloud = Cloud::new(4, 0);
    let outside = Outside::of(&cloud);
    let (f, store) = made(&cloud, &impatient());
    store.set_memory_bytes(0);
    make_tables(&f, &store, 0..3);
    let state = contents(&*store, &f);
    create_named(&store, "s");
    let tables = outside.tables();
    let (first, second) = (open_named(&store, "s"), open_named(&store, "s"));
    delete_named(&store, "s");
    assert!(names(&store).is_empty());
    assert_eq!(outside.checkpoints(), ["kvfs-kept/1"]);
    make_tables(&f, &store, 10..30);
    outside.collect_garbage();
    drop(first);
    assert!(contents(&*second, &f) == state);
    assert_eq!(outside.checkpoints().len(), 1);
    drop(second);
    wait_until("it goes", || outside.checkpoints().is_empty());
    collect_until(&outside, &f, &store, || tables.is_disjoint(&outside.tables()));

    create_named(&store, "s");
    let reader = open_named(&store, "s");
    delete_named(&store, "s");
    assert_eq!(outside.checkpoints().len(), 1);
    let service = cloud.crash();
    let (_, next) = open_over(service, &impatient());
    wait_until("it goes", || outside.checkpoints().is_empty());
    next.close().unwrap();
    drop((f, store, reader));
}

#[test]
fn stores_that_are_read_only_list_and_open_snapshots_and_make_none() {
    let cloud = Cloud::new(5, 0);
    let (f, store) = made(&cloud, &impatient());
    store.sync(f.put("a", "1")).unwrap();
    create_named(&store, "first");
    let state = contents(&*store, &f);
    let still = read_only(&cloud, false);
    let following = read_only(&cloud, true);
    store.sync(f.put("b", "1")).unwrap();
    create_named(&store, "second");
    for reader in [&still, &following] {
        assert_eq!(names(reader), ["first"]);
        assert!(contents(&*open_named(reader, "first"), &f) == state);
        for refused in [
            (reader as &dyn Store).create_snapshot("x").map(drop),
            (reader as &dyn Store).delete_snapshot("first"),
        ] {
            assert!(matches!(refused, Err(StoreError::ReadOnly)), "{refused:?}");
        }
    }
    let look = || {
        following.find_newer().unwrap();
        following.show_newer();
    };
    wait_until("it is listed", || {
        look();
        names(&following) == ["first", "second"]
    });
    assert_eq!(contents(&*open_named(&following, "second"), &f).len(), 2);
    delete_named(&store, "first");
    wait_until("it is not listed", || {
        look();
        names(&following) == ["second"]
    });
    // One that stays where it is knows of it still.
    let gone = (&still as &dyn Store).open_snapshot("first").map(drop);
    assert!(matches!(&gone, Err(StoreError::NoSnapshot(name)) if name == "first"), "{gone:?}");
    assert!(still.verify().unwrap().findings.is_empty());
    still.close().unwrap();
    following.close().unwrap();
    store.close().unwrap();
}

#[test]
fn open_snapshot_asks_object_storage_for_what_is_read_alone_and_is_shared() {
    let cloud = Cloud::new(6, 0);
    let (f, store) = made(&cloud, &impatient());
    f.apply(|b| (0..100).for_each(|n| b.put(f.plain, key(n), "v")));
    create_named(&store, "s");
    store.close().unwrap();
    // It does nothing by itself.
    let store = read_only(&cloud, false);
    let first = open_named(&store, "s");
    let state = contents(&*first, &f);
    assert_eq!(state.len(), 100);
    let requests = cloud.requests();
    let again = open_named(&store, "s");
    assert!(contents(&*again, &f) == state);
    let clock = SystemClock::new();
    wait_until("it would have looked for something newer", || {
        std::thread::park_timeout(Duration::from_millis(50));
        clock.monotonic() > Duration::from_secs(3)
    });
    assert_eq!(
        cloud.requests(),
        requests,
        "the second reader shares the first one's state, and nothing polls"
    );
    store.close().unwrap();
}

#[test]
fn snapshots_are_made_deleted_and_opened_within_bounds_in_an_outage() {
    let cloud = Cloud::new(7, 0);
    let outside = Outside::of(&cloud);
    for outage in [Outage::Down, Outage::Silent, Outage::Full] {
        let cloud = if outage == Outage::Down { Arc::clone(&cloud) } else { Cloud::new(8, 0) };
        let outside = if outage == Outage::Down { &outside } else { &Outside::of(&cloud) };
        let (f, store) = made(&cloud, &impatient());
        let named = &*store as &dyn Store;
        f.put("a", "1");
        create_named(&store, "kept");
        create_named(&store, "deleted");
        f.put("b", "1");
        cloud.set(outage);
        let clock = SystemClock::new();
        let begun = clock.monotonic();
        let made = named.create_snapshot("late");
        assert!(is_unanswered(&made), "{outage:?}: {made:?}");
        // All that is written is durable, so it waits for the manifest.
        let deleted = named.delete_snapshot("deleted");
        assert!(is_unanswered(&deleted), "{outage:?}: {deleted:?}");
        if outage != Outage::Full {
            let opened = named.open_snapshot("kept").map(drop);
            assert!(is_unanswered(&opened), "{outage:?}: {opened:?}");
        }
        assert!(clock.monotonic().saturating_sub(begun) < TIMEOUT * 20);
        // Writers go on meanwhile, and the store is sound.
        f.put("c", "1");
        assert_eq!(store.failure(), None, "{outage:?}");
        cloud.set(Outage::None);
        wait_until("what was given up is over", || outside.checkpoints().len() == 1);
        assert_eq!(names(&store), ["kept"], "{outage:?}");
        assert_eq!(contents(&*open_named(&store, "kept"), &f).len(), 1);
        create_named(&store, "late");
        assert_eq!(contents(&*open_named(&store, "late"), &f).len(), 3);
        let (_, store) = open_over(cloud.crash(), &impatient());
        assert_eq!(names(&store), ["kept", "late"], "{outage:?}");
        store.close().unwrap();
    }
}

#[test]
fn snapshot_that_was_given_up_while_its_checkpoint_was_made_is_removed_again() {
    let cloud = Cloud::new(9, 0);
    let outside = Outside::of(&cloud);
    let (f, store) = made(&cloud, &impatient());
    store.sync(f.put("a", "1")).unwrap();
    // There is nothing to sync, so SlateDB has begun when the storage does not answer.
    cloud.set(Outage::Full);
    let made = (&*store as &dyn Store).create_snapshot("late");
    assert!(is_unanswered(&made), "{made:?}");
    assert!(names(&store).is_empty());
    // The next one waits for the end of that.
    let made = (&*store as &dyn Store).create_snapshot("later");
    assert!(is_unanswered(&made), "{made:?}");
    cloud.set(Outage::None);
    let info = create_named(&store, "late");
    assert_eq!(outside.checkpoints().len(), 1);
    assert_eq!((&*store as &dyn Store).named_snapshots(), [info]);
    store.close().unwrap();
}

#[test]
fn mount_that_was_taken_over_deletes_no_snapshot_of_the_next_one() {
    let cloud = Cloud::new(12, 0);
    let outside = Outside::of(&cloud);
    let is_cut_off = Arc::new(AtomicBool::new(false));
    let service = cloud.beside_behind(&is_cut_off);
    SlateStore::create_over(Arc::clone(&service), &impatient(), [7; 16]).unwrap();
    let (f, old) = open_over(service, &impatient());
    f.put("a", "1");
    create_named(&old, "kept");
    f.put("b", "1");
    create_named(&old, "other");
    is_cut_off.store(true, Ordering::SeqCst);
    let deleted = (&*old as &dyn Store).delete_snapshot("kept");
    assert!(is_unanswered(&deleted), "{deleted:?}");
    assert_eq!(names(&old), ["other"]);
    let claimant = Claimant { takes_over: true, ..options().claimant };
    let (f, new) = open_over(cloud.beside(), &SlateOptions { claimant, ..impatient() });
    is_cut_off.store(false, Ordering::SeqCst);
    wait_until("the deletion is over", || {
        names(&old) == ["kept", "other"] || outside.checkpoints().len() < 2
    });
    assert_eq!(outside.checkpoints().len(), 2);
    assert!(old.failure().unwrap().contains("taken this store over"));
    assert_eq!(names(&new), ["kept", "other"]);
    assert_eq!(contents(&*open_named(&new, "kept"), &f).len(), 1);
    new.close().unwrap();
}

#[test]
fn snapshot_that_was_deleted_elsewhere_is_not_listed_and_may_be_made_again() {
    let cloud = Cloud::new(13, 0);
    let outside = Outside::of(&cloud);
    let (f, store) = made(&cloud, &impatient());
    f.put("a", "1");
    create_named(&store, "gone");
    create_named(&store, "kept");
    let all = outside.runtime.block_on(outside.admin().list_checkpoints(None)).unwrap();
    let of = |name: &str| {
        let is_of = |found: &str| found.starts_with("kvfs-snapshot/") && found.ends_with(name);
        all.iter().find(|checkpoint| checkpoint.name.as_deref().is_some_and(is_of)).unwrap().id
    };
    outside.runtime.block_on(outside.admin().delete_checkpoint(of("/gone"))).unwrap();
    wait_until("it is noticed", || names(&store) == ["kept"]);
    let opened = (&*store as &dyn Store).open_snapshot("gone").map(drop);
    assert!(matches!(&opened, Err(StoreError::NoSnapshot(_))), "{opened:?}");
    f.put("b", "1");
    create_named(&store, "gone");
    // One that was made a moment ago is there at once.
    assert_eq!(names(&store), ["kept", "gone"]);
    assert_eq!(contents(&*open_named(&store, "gone"), &f).len(), 2);
    delete_named(&store, "gone");
    assert_eq!((names(&store), outside.checkpoints().len()), (vec!["kept".to_owned()], 1));
    store.close().unwrap();
}

#[test]
fn snapshots_behind_a_bad_network_are_what_they_were_made_of_also_after_crashes() {
    let options = SlateOptions { request_time: Duration::from_millis(300), ..options() };
    std::thread::scope(|scope| {
        for seed in 20..23 {
            let options = &options;
            scope.spawn(move || snapshots_behind_a_bad_network(seed, options));
        }
    });
}

/// Opens it as often as the network asks for.
fn open_behind_faults(service: &Arc<dyn ObjectStore>, options: &SlateOptions) -> Opened {
    for _ in 0..50 {
        match SlateStore::open_over(Arc::clone(service), options) {
            Ok(store) => return fixture_of(Arc::new(store)),
            Err(StoreError::Io { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it can't be opened");
}

fn snapshots_behind_a_bad_network(seed: u64, options: &SlateOptions) {
    let cloud = Cloud::new(seed, 60);
    let mut rng = kvfs_device::Rng::new(seed);
    let service = cloud.crash();
    SlateStore::create_over(Arc::clone(&service), options, [7; 16]).unwrap();
    let (mut f, mut store) = open_behind_faults(&service, options);
    let mut states = BTreeMap::new();
    for step in 0..60_u64 {
        match rng.below(10) {
            0..=1 => {
                create_named(&store, &step.to_string());
                states.insert(step.to_string(), contents(&*store, &f));
            }
            2 if !states.is_empty() => {
                let name = states.keys().nth(rng.index(states.len())).unwrap().clone();
                delete_named(&store, &name);
                states.remove(&name);
            }
            3 => {
                let from = rng.below(200);
                f.apply(|b| b.delete_range(f.plain, key(from), key(from + 100)));
            }
            4 => {
                store.sync(store.position()).unwrap();
                let expected = contents(&*store, &f);
                let service = cloud.crash();
                let crashed = std::mem::replace(&mut store, open_behind_faults(&service, options).1);
                f = Fixture::over(Arc::clone(&store) as Arc<dyn Store>);
                std::thread::spawn(move || drop(crashed));
                assert!(contents(&*store, &f) == expected, "seed {seed}, step {step}");
                let known: BTreeSet<_> = names(&store).into_iter().collect();
                assert_eq!(known, states.keys().cloned().collect(), "seed {seed}, step {step}");
            }
            _ => {
                let from = rng.below(200);
                f.apply(|b| (from..from + 80).for_each(|n| b.put(f.plain, key(n), step.to_string())));
            }
        }
        if let Some((name, state)) = states.iter().nth(rng.index(states.len().max(1))) {
            assert!(contents(&*open_named(&store, name), &f) == *state, "seed {seed}, step {step}: {name}");
        }
    }
    store.close().unwrap();
}

#[test]
fn differences_of_named_snapshots_and_the_newest_state_are_what_was_written_whatever_was_compacted() {
    let cloud = Cloud::new(10, 0);
    let (f, store) = made(&cloud, &impatient());
    f.apply(|b| (0..1000).for_each(|n| b.put(f.plain, key(n), "old")));
    create_named(&store, "older");
    f.apply(|b| {
        b.put(f.plain, key(7), "old");
        b.put(f.plain, key(8), "new");
        b.delete(f.plain, key(9));
        b.delete_range(f.plain, key(500), key(700));
        b.put(f.plain, key(600), "new");
    });
    create_named(&store, "newer");
    for round in 0..20 {
        f.apply(|b| b.put(f.merging, format!("{round}"), "v"));
        create_named(&store, "table");
        delete_named(&store, "table");
    }
    let changed = |older: &dyn kvfs_store::Snapshot, newer: &dyn kvfs_store::Snapshot| {
        let store = &*store as &dyn Store;
        let mut ranges =
            store.changed_ranges(f.plain, KeyRange::all(), older.seqno(), newer.seqno()).unwrap();
        let mut all = Vec::new();
        while let Some(range) = ranges.next().unwrap() {
            all.push(range);
        }
        all
    };
    let expected = [(7, 9), (500, 699)];
    let expected = expected.map(|(first, last)| KeyRange::new(key(first), [key(last), vec![0]].concat()));
    let (older, newer) = (open_named(&store, "older"), open_named(&store, "newer"));
    assert_eq!(changed(&*older, &*newer), expected);
    let live = store.snapshot().unwrap();
    assert_eq!(changed(&*older, &*live), expected);
    assert_eq!(changed(&*newer, &*live), []);
    // A long run of new keys comes in parts, in order.
    f.apply(|b| (2000..5000).for_each(|n| b.put(f.plain, key(n), "new")));
    let later = store.snapshot().unwrap();
    let parts = changed(&*newer, &*later);
    assert_eq!(parts.len(), 3);
    assert!(parts.is_sorted_by(|a, b| a.end.as_ref().is_some_and(|end| *end <= b.start)));
    assert!((2000..5000).all(|n| parts.iter().any(|part| part.contains(&key(n)))));
    // Of a position that nothing holds all may have been written.
    let seqno = older.seqno() - 1;
    let mut ranges =
        (&*store as &dyn Store).changed_ranges(f.plain, KeyRange::all(), seqno, live.seqno()).unwrap();
    let whole = ranges.next().unwrap().unwrap();
    assert!(whole.contains(&[]) && whole.contains(&[255; kvfs_store::KEY_LEN_MAX]));
    assert!(ranges.next().unwrap().is_none());
    store.close().unwrap();
}

#[test]
fn missing_and_damaged_objects_of_a_snapshot_are_found() {
    let cloud = Cloud::new(11, 0);
    let outside = Outside::of(&cloud);
    let (f, store) = made(&cloud, &impatient());
    f.apply(|b| (0..1000).for_each(|n| b.put(f.plain, key(n), vec![n as u8; 1000])));
    create_named(&store, "s");
    let tables = outside.live_tables();
    collect_until(&outside, &f, &store, || tables.is_disjoint(&outside.live_tables()));
    store.close().unwrap();
    let check = || read_only(&cloud, false).verify().unwrap();
    let verified = check();
    assert!(
        verified.findings.is_empty() && verified.counts.contains(&("snapshots".to_owned(), 1)),
        "{verified:?}"
    );
    let service = cloud.beside();
    let largest = tables.iter().map(|table| {
        let table = table.as_str().into();
        let got = outside.runtime.block_on(async { service.get(&table).await?.bytes().await });
        (table, got.unwrap().to_vec())
    });
    let (table, whole) = largest.max_by_key(|(_, content)| content.len()).unwrap();
    let put = |content: Vec<u8>| _ = outside.runtime.block_on(service.put(&table, content.into())).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    put(damaged);
    let findings = check().findings;
    assert!(
        matches!(&findings[..], [one] if one.contains("\"s\"") && one.contains("\"plain\"")),
        "{findings:?}"
    );
    outside.runtime.block_on(service.delete(&table)).unwrap();
    let findings = check().findings;
    assert!(matches!(&findings[..], [one, ..] if one.contains("\"s\"")), "{findings:?}");
    put(whole);
    assert_eq!(check().findings, [] as [String; 0]);
}
