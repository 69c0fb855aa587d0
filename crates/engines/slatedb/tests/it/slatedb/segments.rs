//! Long runs of blocks, which are objects of their own: they read as others do, are there after crashes, and
//! go when nothing refers to them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvfs_device::Rng;
use kvfs_engine_slatedb::seam::object_store::ObjectStoreExt;
use kvfs_engine_slatedb::seam::slatedb::Db;
use kvfs_engine_slatedb::seam::tokio;
use kvfs_store::{BLOCK_BYTES, EngineStore, KeyRange, StoreError};

use super::faults::{Cloud, Outage};
use super::flaky::{made, open_over, seeds};
use super::*;

/// Of a segment, by [`options`].
const SEGMENT_BLOCKS: u64 = 16;

fn content(seed: u64, count: u64) -> Vec<u8> {
    (0..count).flat_map(|block| block_of(seed + block)).collect()
}

fn block_of(seed: u64) -> [u8; BLOCK_BYTES] {
    let mut block = [seed as u8; BLOCK_BYTES];
    block[..8].copy_from_slice(&seed.to_le_bytes());
    block
}

fn read(read: &dyn Read, f: &Fixture<Slate>, file: &str, first: u64, count: u64) -> Result<Vec<u8>> {
    let mut buf = vec![1; count as usize * BLOCK_BYTES];
    read.read_blocks(f.blocks, file.as_bytes(), first, &mut buf).map(|()| buf)
}

fn segments(dir: &TempDir) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(dir.path().join("segments")).into_iter().flatten();
    listed.map(|entry| entry.unwrap().path()).collect()
}

/// Those that were overwritten are looked at when others are written, which are deleted.
fn look_at_all(f: &Fixture<Slate>) {
    for _ in 0..40 {
        f.apply(|b| b.put_blocks(f.blocks, "other", 0, content(7, SEGMENT_BLOCKS)));
        f.apply(|b| b.delete_range(f.blocks, "other", "othes"));
        f.store.sync(f.store.position()).unwrap();
    }
}

#[test]
fn long_runs_are_sent_once_and_read_as_others_are_before_and_after() {
    const COUNT: u64 = 4 * SEGMENT_BLOCKS + 3;
    let (dir, f, store) = new_store();
    f.apply(|b| {
        b.put_blocks(f.blocks, "file", 7, content(100, COUNT));
        b.put_blocks(f.blocks, "short", 0, content(5, 1));
        // A part of a run that is overwritten in its own batch.
        b.patch_block(f.blocks, "file", 9, 1, "patched");
    });
    let mut patched = block_of(102);
    patched[1..8].copy_from_slice(b"patched");
    let expected = || {
        let mut expected = vec![0; BLOCK_BYTES];
        expected.extend(content(100, COUNT));
        expected[3 * BLOCK_BYTES..4 * BLOCK_BYTES].copy_from_slice(&patched);
        expected.extend([0; BLOCK_BYTES]);
        expected
    };
    let check = |store: &dyn Read, f: &Fixture<Slate>| {
        assert_eq!(read(store, f, "file", 6, COUNT + 2).unwrap(), expected());
        let key = |number: u64| [b"file", &number.to_be_bytes()[..]].concat();
        assert_eq!(store.get(f.blocks, &key(8)).unwrap().unwrap(), &block_of(101)[..]);
        let found = store.multi_get(f.blocks, &[&key(9), &key(6), &key(7)]).unwrap();
        assert_eq!(found[0].as_deref(), Some(&patched[..]));
        assert_eq!((found[1].as_deref(), found[2].as_deref()), (None, Some(&block_of(100)[..])));
        let shown = entries(store, f.blocks);
        assert_eq!((shown.len() as u64, &shown[&key(10)][..]), (COUNT + 1, &block_of(103)[..]));
        let mut cursor = store.cursor(f.blocks, KeyRange::prefix(b"file")).unwrap();
        cursor.last().unwrap();
        for number in (7..7 + COUNT).rev() {
            let (found, value) = cursor.entry().unwrap();
            assert_eq!((found, &value[..]), (&key(number)[..], &shown[&key(number)][..]));
            cursor.prev().unwrap();
        }
        assert!(cursor.entry().is_none());
    };
    check(&*f.store, &f);
    f.store.sync(f.store.position()).unwrap();
    let sent = segments(&dir);
    assert_eq!(sent.len() as u64, COUNT.div_ceil(SEGMENT_BLOCKS));
    let bytes: u64 = sent.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!((bytes, f.stat("slatedb.segments_bytes")), (COUNT * BLOCK_BYTES as u64, bytes));
    assert_eq!(f.stat("slatedb.segments_unsent_bytes"), 0);
    check(&*f.store, &f);
    let reader = SlateOptions { read_only: true, ..options() };
    let reader = Arc::new(SlateStore::open(&place(dir.path()), &reader).unwrap());
    let other = Fixture::<Slate>::over(Arc::clone(&reader) as Arc<dyn Store>);
    check(&*other.store, &other);
    assert!(other.store.space().used_bytes >= bytes);
    store.close().unwrap();
    drop((f, store));
    let (f, store) = fixture(dir.path());
    check(&*f.store, &f);
    // Patches of what lies in a segment.
    f.apply(|b| b.patch_block(f.blocks, "file", 8, 8, "new"));
    let mut patched = block_of(101);
    patched[8..11].copy_from_slice(b"new");
    assert_eq!(read(&*f.store, &f, "file", 8, 1).unwrap(), patched);
    let verified = store.verify().unwrap();
    assert!(verified.findings.is_empty(), "{:?}", verified.findings);
    store.close().unwrap();
}

/// What the keyspace holds after each batch.
struct History {
    states: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    acknowledged: usize,
}

impl History {
    /// Applies a random batch; an error has changed nothing.
    fn apply(&mut self, f: &Fixture<Slate>, rng: &mut Rng) {
        let mut state = self.states.last().unwrap().clone();
        let key = |file: u64, block: u64| [&file.to_be_bytes()[..], &block.to_be_bytes()].concat();
        let applied = f.try_apply(|b| {
            for _ in 0..=rng.below(3) {
                let file = rng.below(3);
                let name = file.to_be_bytes().to_vec();
                let (first, count) = (rng.below(40), 1 + rng.below(40));
                match rng.below(8) {
                    0 => {
                        b.delete_range(f.blocks, key(file, first), key(file, first + count));
                        state
                            .retain(|found, _| !(key(file, first)..key(file, first + count)).contains(found));
                    }
                    1 => {
                        b.patch_block(f.blocks, name, first, 9, "patch");
                        let block = state.entry(key(file, first)).or_insert_with(|| vec![0; BLOCK_BYTES]);
                        block[9..14].copy_from_slice(b"patch");
                    }
                    _ => {
                        let seed = rng.below(1 << 40);
                        b.put_blocks(f.blocks, name, first, content(seed, count));
                        state.extend(
                            (0..count).map(|at| (key(file, first + at), block_of(seed + at).to_vec())),
                        );
                    }
                }
            }
            // Each batch has another state.
            let number = (self.states.len() as u64).to_le_bytes();
            b.patch_block(f.blocks, u64::MAX.to_be_bytes().to_vec(), 0, 0, number.to_vec());
            let block = state.entry(key(u64::MAX, 0)).or_insert_with(|| vec![0; BLOCK_BYTES]);
            block[..8].copy_from_slice(&number);
        });
        match applied {
            Ok(_) => self.states.push(state),
            Err(StoreError::Io { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn check(&self, read: &dyn Read, f: &Fixture<Slate>, at: usize) {
        let found = entries(read, f.blocks);
        assert!(found == self.states[at], "it is not the state behind batch {at}");
    }
}

#[test]
fn blocks_are_a_prefix_with_all_that_was_acknowledged_after_each_crash_whatever_becomes_of_segments() {
    for seed in seeds(4) {
        let mut rng = Rng::new(seed);
        let rate = if seed % 2 == 0 { 0 } else { 20 };
        let cloud = Cloud::new(seed, rate);
        let kept = if rng.below(2) == 0 { Duration::ZERO } else { Duration::from_mins(1) };
        let segments = SegmentOptions { run_blocks_min: 4, blocks_max: 32 };
        // What is asked for by a process that has crashed is given up soon.
        let timeout = Some(Duration::from_millis(2500));
        let request_time = Duration::from_millis(200);
        let options = SlateOptions { segments, kept, timeout, request_time, ..options() };
        let service = cloud.crash();
        SlateStore::create_over(Arc::clone(&service), &options, [7; 16]).unwrap();
        let mut store = open_over(&service, &options);
        let mut f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
        let mut history = History { states: vec![BTreeMap::new()], acknowledged: 0 };
        for _ in 0..5 {
            let mut held = None;
            for _ in 0..rng.below(30) {
                history.apply(&f, &mut rng);
                match rng.below(12) {
                    0 => {
                        let at = history.states.len() - 1;
                        if f.store.sync(f.store.position()).is_ok() {
                            history.acknowledged = at;
                        }
                    }
                    1 => held = Some((f.store.snapshot().unwrap(), history.states.len() - 1)),
                    2 => {
                        if let Some((snapshot, at)) = &held {
                            history.check(&**snapshot, &f, *at);
                        }
                    }
                    3 => history.check(&*f.store, &f, history.states.len() - 1),
                    _ => {}
                }
            }
            let service = cloud.crash();
            drop((held, f, store));
            store = open_over(&service, &options);
            f = Fixture::over(Arc::clone(&store) as Arc<dyn Store>);
            let found = entries(&*f.store, f.blocks);
            let at = history.states.iter().rposition(|state| *state == found);
            let at = at.unwrap_or_else(|| panic!("seed {seed}: it is no state of the store"));
            assert!(at >= history.acknowledged, "seed {seed}: {at} of {}", history.acknowledged);
            history.states.truncate(at + 1);
        }
        let findings = store.verify().unwrap().findings;
        assert!(findings.is_empty(), "seed {seed}: {findings:?}");
    }
}

#[test]
fn segments_go_when_nothing_refers_to_them_and_no_snapshot_does() {
    let (dir, f, store) = new_store();
    let write = |seed| f.apply(|b| b.put_blocks(f.blocks, "file", 0, content(seed, SEGMENT_BLOCKS)));
    let has = |count: usize| {
        f.store.sync(f.store.position()).unwrap();
        wait_until("segments go", || segments(&dir).len() == count);
    };
    write(1);
    let named = f.store.snapshots().unwrap();
    named.create_snapshot("first").unwrap();
    let open = f.store.snapshot().unwrap();
    write(2);
    let held = f.store.snapshot().unwrap();
    write(3);
    named.create_snapshot("third").unwrap();
    write(4);
    // Each one that is written has others looked at.
    for seed in 5..30 {
        write(seed);
    }
    f.store.sync(f.store.position()).unwrap();
    let check = |read_at: &dyn Read, seed| {
        assert_eq!(read(read_at, &f, "file", 0, SEGMENT_BLOCKS).unwrap(), content(seed, SEGMENT_BLOCKS));
    };
    check(&*open, 1);
    check(&*held, 2);
    drop((open, held));
    // Those of the two snapshots and the newest one stay, and at most about as many that have not been looked
    // at again.
    for seed in 30..60 {
        write(seed);
        f.store.sync(f.store.position()).unwrap();
    }
    wait_until("what is in no use goes", || segments(&dir).len() <= 8);
    check(&*named.open_snapshot("first").unwrap(), 1);
    check(&*named.open_snapshot("third").unwrap(), 3);
    named.delete_snapshot("first").unwrap();
    named.delete_snapshot("third").unwrap();
    f.apply(|b| b.delete_range(f.blocks, "file", "filf"));
    look_at_all(&f);
    has(0);
    wait_until("nothing counts", || f.stat("slatedb.segments_bytes") == 0);
    // By the reaper, of many keys.
    f.apply(|b| b.put_blocks(f.blocks, "file", 0, content(1, 8 * SEGMENT_BLOCKS)));
    f.store.sync(f.store.position()).unwrap();
    assert_eq!(segments(&dir).len(), 8);
    f.apply(|b| b.delete_range(f.blocks, "file", "filf"));
    has(0);
    // Overwritten block by block, which makes no segment.
    f.apply(|b| b.put_blocks(f.blocks, "file", 0, content(1, 4 * SEGMENT_BLOCKS)));
    for round in 0..3 {
        for block in 0..4 * SEGMENT_BLOCKS {
            f.apply(|b| b.put_blocks(f.blocks, "file", block, content(round, 1)));
        }
    }
    has(0);
    store.close().unwrap();
}

#[test]
fn old_snapshot_that_is_read_keeps_its_own_segments_alone() {
    let (dir, f, store) = new_store();
    f.apply(|b| b.put_blocks(f.blocks, "old", 0, content(9, SEGMENT_BLOCKS)));
    let named = f.store.snapshots().unwrap();
    named.create_snapshot("monday").unwrap();
    let monday = named.open_snapshot("monday").unwrap();
    f.apply(|b| b.delete_range(f.blocks, "old", "ole"));
    f.apply(|b| b.put_blocks(f.blocks, "file", 0, content(1, 2 * SEGMENT_BLOCKS)));
    f.store.sync(f.store.position()).unwrap();
    assert_eq!(segments(&dir).len(), 3);
    f.apply(|b| b.delete_range(f.blocks, "file", "filf"));
    f.store.sync(f.store.position()).unwrap();
    look_at_all(&f);
    wait_until("what came later goes", || segments(&dir).len() == 1);
    named.delete_snapshot("monday").unwrap();
    look_at_all(&f);
    assert_eq!(read(&*monday, &f, "old", 0, SEGMENT_BLOCKS).unwrap(), content(9, SEGMENT_BLOCKS));
    drop(monday);
    look_at_all(&f);
    wait_until("the last one goes", || segments(&dir).is_empty());
    store.close().unwrap();
}

#[test]
fn segment_that_is_overwritten_while_it_is_filled_goes_when_it_is_sent() {
    let (dir, f, store) = new_store();
    store.set_commit_interval(Duration::from_hours(1));
    f.apply(|b| b.put_blocks(f.blocks, "file", 0, content(1, SEGMENT_BLOCKS / 2)));
    let one_by_one = |file: &'static str, count: u64| {
        for block in 0..count {
            f.apply(|b| b.put_blocks(f.blocks, file, block, content(2, 1)));
        }
    };
    one_by_one("file", SEGMENT_BLOCKS / 2);
    // As many as have it looked at more than once, and nothing is written behind the sync.
    one_by_one("other", 20 * SEGMENT_BLOCKS);
    f.store.sync(f.store.position()).unwrap();
    wait_until("it goes", || segments(&dir).is_empty());
    store.close().unwrap();
}

#[test]
fn segment_that_is_hardly_in_use_is_written_anew_and_what_is_deleted_meanwhile_stays_deleted() {
    let (dir, f, store) = new_store();
    let count = 4 * SEGMENT_BLOCKS;
    f.apply(|b| b.put_blocks(f.blocks, "file", 0, content(0, count)));
    f.store.sync(f.store.position()).unwrap();
    let old = segments(&dir);
    // One run of each segment stays, others are overwritten one by one.
    for segment in 0..4 {
        for at in 4..SEGMENT_BLOCKS {
            let block = segment * SEGMENT_BLOCKS + at;
            f.apply(|b| b.put_blocks(f.blocks, "file", block, block_of(block).to_vec()));
        }
    }
    let mut number = 0;
    wait_until("they are written anew", || {
        // Others have to be written for these to be looked at.
        if number < 40 {
            let name = format!("other{number}");
            number += 1;
            f.apply(|b| b.put_blocks(f.blocks, name.clone(), 0, content(7, SEGMENT_BLOCKS)));
            f.store.sync(f.store.position()).unwrap();
            f.apply(|b| b.delete_range(f.blocks, name, "p"));
        }
        assert_eq!(read(&*f.store, &f, "file", 0, count).unwrap(), content(0, count));
        old.iter().all(|path| !path.exists())
    });
    f.apply(|b| b.delete_range(f.blocks, "", "z"));
    look_at_all(&f);
    wait_until("all go", || segments(&dir).is_empty());
    assert!(entries(&*f.store, f.blocks).is_empty());
    store.close().unwrap();
}

#[test]
fn damaged_segment_keeps_no_other_one_that_was_overwritten() {
    let (dir, f, store) = new_store();
    f.apply(|b| b.put_blocks(f.blocks, "file", 0, content(0, 4 * SEGMENT_BLOCKS)));
    store.close().unwrap();
    drop((f, store));
    let mut old = segments(&dir);
    old.sort();
    // In a block that stays in use, so it can't be written anew.
    let mut bytes = std::fs::read(&old[0]).unwrap();
    bytes[BLOCK_BYTES + 5] ^= 1;
    std::fs::write(&old[0], &bytes).unwrap();
    let (f, store) = fixture(dir.path());
    let overwrite = |blocks: std::ops::Range<u64>| {
        for block in blocks {
            f.apply(|b| b.put_blocks(f.blocks, "file", block, block_of(block).to_vec()));
        }
    };
    let others = |what: &str, is_met: &dyn Fn() -> bool| {
        let mut number = 0;
        wait_until(what, || {
            // Others have to be written for these to be looked at.
            if number < 40 {
                number += 1;
                f.apply(|b| b.put_blocks(f.blocks, "other", 0, content(7, SEGMENT_BLOCKS)));
                f.store.sync(f.store.position()).unwrap();
                f.apply(|b| b.delete_range(f.blocks, "other", "othes"));
            }
            is_met()
        });
    };
    overwrite(2..SEGMENT_BLOCKS);
    others("it is read", &|| f.stat("slatedb.segments_received_bytes") > 0);
    overwrite(SEGMENT_BLOCKS..4 * SEGMENT_BLOCKS);
    others("the others go", &|| old[1..].iter().all(|path| !path.exists()));
    assert!(old[0].exists());
    assert_eq!(store.failure(), None);
    assert_eq!(read(&*f.store, &f, "file", 2, 30).unwrap(), content(2, 30));
    store.close().unwrap();
}

#[test]
fn segment_that_an_earlier_mount_found_unused_is_kept_whatever_its_clock_was() {
    const KEPT: Duration = Duration::from_secs(3);
    const SEGMENT: u64 = 1 << 32 | 1;
    let cloud = Cloud::new(1, 0);
    made(&cloud, &options()).close().unwrap();
    // By a clock that was two hours behind.
    let at_secs = SystemClock::new().wall().as_secs() - 7200;
    let key = [&0_u32.to_be_bytes()[..], b"segment-dead/", &SEGMENT.to_be_bytes()].concat();
    let value = [1, 1, at_secs, 0].map(u64::to_le_bytes).concat();
    let service = cloud.beside();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        service.put(&format!("segments/{SEGMENT:016x}").into(), vec![1; BLOCK_BYTES].into()).await.unwrap();
        let db = Db::open("", Arc::clone(&service)).await.unwrap();
        db.put(&key, &value).await.unwrap();
        db.close().await.unwrap();
    });
    let clock = SystemClock::new();
    let begun = clock.monotonic();
    let store = open_over(&cloud.crash(), &SlateOptions { kept: KEPT, ..options() });
    wait_until("it goes", || cloud.count("delete", "segments") > 0);
    assert!(clock.monotonic().saturating_sub(begun) >= KEPT);
    store.close().unwrap();
}

#[test]
fn segments_that_a_crash_has_left_go_at_the_next_opening_and_others_stay() {
    let (dir, f, store) = new_store();
    // One that a snapshot alone needs.
    f.apply(|b| b.put_blocks(f.blocks, "old", 0, content(9, SEGMENT_BLOCKS)));
    f.store.snapshots().unwrap().create_snapshot("kept").unwrap();
    f.apply(|b| b.delete_range(f.blocks, "old", "ole"));
    store.close().unwrap();
    drop((f, store));
    let (f, store) = fixture(dir.path());
    f.apply(|b| b.put_blocks(f.blocks, "file", 0, content(1, 2 * SEGMENT_BLOCKS)));
    store.close().unwrap();
    drop((f, store));
    let sent = segments(&dir);
    assert_eq!(sent.len(), 3);
    let last = sent.iter().max().unwrap().file_name().unwrap().to_str().unwrap();
    let orphan = format!("{:016x}", u64::from_str_radix(last, 16).unwrap() + 1);
    std::fs::write(dir.path().join("segments").join(orphan), b"of no use").unwrap();
    let (f, store) = fixture(dir.path());
    wait_until("it goes", || segments(&dir).len() == 3);
    let kept = f.store.snapshots().unwrap().open_snapshot("kept").unwrap();
    assert_eq!(read(&*kept, &f, "old", 0, SEGMENT_BLOCKS).unwrap(), content(9, SEGMENT_BLOCKS));
    assert_eq!(read(&*f.store, &f, "file", 0, 2 * SEGMENT_BLOCKS).unwrap(), content(1, 2 * SEGMENT_BLOCKS));
    store.close().unwrap();
}

#[test]
fn missing_and_damaged_segments_are_found() {
    let (dir, f, store) = new_store();
    f.apply(|b| b.put_blocks(f.blocks, "file", 0, content(1, 3 * SEGMENT_BLOCKS)));
    f.store.sync(f.store.position()).unwrap();
    let mut sent = segments(&dir);
    sent.sort();
    // One that a snapshot alone needs.
    f.apply(|b| b.put_blocks(f.blocks, "old", 0, content(9, SEGMENT_BLOCKS)));
    f.store.snapshots().unwrap().create_snapshot("kept").unwrap();
    f.apply(|b| b.delete_range(f.blocks, "old", "ole"));
    store.close().unwrap();
    drop((f, store));
    let old = segments(&dir).into_iter().find(|path| !sent.contains(path)).unwrap();
    std::fs::remove_file(&old).unwrap();
    std::fs::remove_file(&sent[0]).unwrap();
    let mut bytes = std::fs::read(&sent[1]).unwrap();
    bytes[BLOCK_BYTES + 5] ^= 1;
    std::fs::write(&sent[1], &bytes).unwrap();
    std::fs::write(&sent[2], &bytes[..BLOCK_BYTES]).unwrap();
    let (f, store) = fixture(dir.path());
    let findings = store.verify().unwrap().findings;
    let name = |at: usize| sent[at].file_name().unwrap().to_str().unwrap();
    assert_eq!(findings.len(), 4, "{findings:?}");
    let old = old.file_name().unwrap().to_str().unwrap();
    assert!(findings[3].starts_with("snapshot \"kept\"") && findings[3].contains(old), "{findings:?}");
    assert!(findings[0].contains(name(0)) && findings[0].contains("missing"), "{findings:?}");
    assert!(findings[1].contains(&format!("{}, block 1", name(1))), "{findings:?}");
    assert!(findings[2].contains(name(2)), "{findings:?}");
    for (first, is_there) in [(0, false), (SEGMENT_BLOCKS, true), (SEGMENT_BLOCKS + 1, false)] {
        let found = read(&*f.store, &f, "file", first, 1);
        match found {
            Ok(found) => assert!(is_there && found == block_of(1 + first)),
            Err(error) => assert!(!is_there && matches!(error, StoreError::Corrupt { .. }), "{error}"),
        }
    }
    store.close().unwrap();
}

#[test]
fn parts_of_segments_on_the_local_disk_are_bounded_and_their_loss_or_damage_is_only_a_miss() {
    const FILES: u64 = 8;
    const BYTES_MAX: u64 = 2 << 20;
    let (dir, cache) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    create(dir.path());
    let count = 4 * SEGMENT_BLOCKS;
    let open = || {
        // So little memory that it is read from the disk.
        let cache = Some((cache.path().join("cache"), BYTES_MAX));
        let segments = SegmentOptions { blocks_max: 256, ..options().segments };
        let options = SlateOptions { memory_bytes: 1 << 20, cache, segments, ..options() };
        let store = Arc::new(SlateStore::open(&place(dir.path()), &options).unwrap());
        (Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>), store)
    };
    let (f, store) = open();
    for file in 0..FILES {
        f.apply(|b| b.put_blocks(f.blocks, file.to_string(), 0, content(file << 32, count)));
    }
    store.close().unwrap();
    drop((f, store));
    let read_all = |f: &Fixture<Slate>| {
        for file in 0..FILES {
            let found = read(&*f.store, f, &file.to_string(), 0, count).unwrap();
            assert!(found == content(file << 32, count), "{file}");
        }
    };
    let parts = || -> Vec<PathBuf> {
        let listed = std::fs::read_dir(cache.path().join("cache/segments")).into_iter().flatten();
        listed.map(|entry| entry.unwrap().path()).collect()
    };
    let (f, store) = open();
    read_all(&f);
    let bytes =
        || -> u64 { parts().iter().filter_map(|path| path.metadata().ok()).map(|found| found.len()).sum() };
    wait_until("it is used, and bounded", || (1..=BYTES_MAX / 2).contains(&bytes()));
    let received_for_last = || {
        let before = f.stat("slatedb.segments_received_bytes");
        read(&*f.store, &f, "7", 0, count).unwrap();
        f.stat("slatedb.segments_received_bytes") - before
    };
    // What was read is written to the disk behind its reader.
    wait_until("what was read is on the disk", || received_for_last() == 0);
    assert_eq!([(); 4].map(|()| received_for_last()), [0; 4]);
    for path in parts() {
        let len = path.metadata().map_or(0, |found| found.len());
        std::fs::write(&path, vec![0xa5; len as usize]).unwrap();
    }
    store.set_memory_bytes(0);
    read_all(&f);
    store.close().unwrap();
    drop((f, store));
    std::fs::remove_dir_all(cache.path().join("cache")).unwrap();
    let (f, store) = open();
    read_all(&f);
    store.close().unwrap();
}

#[test]
fn writers_of_long_runs_wait_in_an_outage_and_what_they_wrote_is_there_afterwards() {
    let cloud = Cloud::new(1, 0);
    let timeout = Some(Duration::from_millis(500));
    let options = SlateOptions { timeout, request_time: Duration::from_millis(200), ..options() };
    let service = cloud.crash();
    SlateStore::create_over(Arc::clone(&service), &options, [7; 16]).unwrap();
    let store = Arc::new(SlateStore::open_over(service, &options).unwrap());
    let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
    cloud.set(Outage::Down);
    let mut written = 0;
    let error = loop {
        let first = written * SEGMENT_BLOCKS;
        match f.try_apply(|b| b.put_blocks(f.blocks, "file", first, content(first, SEGMENT_BLOCKS))) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    assert!((4..20).contains(&written), "{written} segments are in memory");
    assert_eq!(read(&*f.store, &f, "file", 0, SEGMENT_BLOCKS).unwrap(), content(0, SEGMENT_BLOCKS));
    assert!(f.store.sync(f.store.position()).is_err());
    cloud.set(Outage::None);
    wait_until("it goes on", || f.store.sync(f.store.position()).is_ok());
    drop((f, store));
    let store = Arc::new(SlateStore::open_over(cloud.crash(), &options).unwrap());
    let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
    let count = written * SEGMENT_BLOCKS;
    assert_eq!(
        read(&*f.store, &f, "file", 0, count + 1).unwrap()[..count as usize * BLOCK_BYTES],
        content(0, count)
    );
    assert_eq!(entries(&*f.store, f.blocks).len() as u64, count);
    store.close().unwrap();
}
