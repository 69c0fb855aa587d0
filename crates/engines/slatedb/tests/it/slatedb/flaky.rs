//! Random work behind a network that fails now and then, with outages and crashes: nothing that was
//! acknowledged is lost, and what is there is the state behind some batch.

use std::collections::BTreeMap;
use std::thread::JoinHandle;

use kvfs_device::Rng;
use kvfs_engine_slatedb::seam::object_store::ObjectStore;
use kvfs_fs::{MountOptions, NodeId};
use kvfs_store::{EngineStore, StoreError};

use super::faults::{Cloud, FAULTS, Outage};
use super::*;
use crate::driver::Driver;
use crate::setup::Setup;

/// Requests of a thousand that fail.
pub(super) const RATE: u64 = 60;

/// How many seeds are tried; a few unless this says otherwise.
const SEEDS: &str = "KVFS_SLATEDB_SEEDS";

pub(super) fn seeds(few: u64) -> std::ops::RangeInclusive<u64> {
    1..=std::env::var(SEEDS).map_or(few, |text| text.parse().unwrap())
}

pub(super) fn patient() -> SlateOptions {
    // Stalls are noticed soon.
    let segments = SegmentOptions { run_blocks_min: 4, blocks_max: 256 };
    SlateOptions { memory_bytes: 16 << 20, request_time: Duration::from_millis(400), segments, ..options() }
}

/// Opens it as often as the network asks for.
pub(super) fn open_over(service: &Arc<dyn ObjectStore>, options: &SlateOptions) -> Arc<SlateStore> {
    let mut last = None;
    for _ in 0..50 {
        match SlateStore::open_over(Arc::clone(service), options) {
            Ok(store) => return Arc::new(store),
            Err(error @ StoreError::Io { .. }) => last = Some(error),
            Err(error) => panic!("{error}"),
        }
    }
    panic!("it can't be opened: {last:?}");
}

pub(super) fn made(cloud: &Arc<Cloud>, options: &SlateOptions) -> Arc<SlateStore> {
    let service = cloud.crash();
    SlateStore::create_over(Arc::clone(&service), options, [7; 16]).unwrap();
    open_over(&service, options)
}

#[test]
fn files_behind_a_bad_network_behave_like_the_reference_also_after_crashes() {
    for seed in seeds(2) {
        let cloud = Cloud::new(seed, RATE);
        let store = made(&cloud, &patient());
        let mut setup = Setup::with(Arc::clone(&store) as Arc<dyn Store>, 1000, MountOptions::default());
        let mut last = store;
        setup.reopen_store = Some(Box::new(move || {
            last.sync(last.position()).unwrap();
            last = open_over(&cloud.crash(), &patient());
            Arc::clone(&last) as Arc<dyn Store>
        }));
        Driver::new(setup, seed, 20_000).run(300);
    }
}

/// What a store holds after each batch.
pub(super) struct History {
    states: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    acknowledged: usize,
}

/// Holds how many batches there were.
const COUNT: &[u8] = b"~count";

impl History {
    pub(super) fn new() -> Self {
        Self { states: vec![BTreeMap::new()], acknowledged: 0 }
    }

    /// Applies a random batch; an error has changed nothing.
    pub(super) fn apply(&mut self, f: &Fixture<Slate>, rng: &mut Rng) {
        let mut state = self.states.last().unwrap().clone();
        let key = |number: u64| format!("{number:03}").into_bytes();
        let applied = f.try_apply(|b| {
            for _ in 0..=rng.below(4) {
                let at = rng.below(400);
                match rng.below(10) {
                    0 => {
                        let end = at + rng.below(200);
                        b.delete_range(f.plain, key(at), key(end));
                        state.retain(|found, _| found < &key(at) || found >= &key(end));
                    }
                    1 | 2 => {
                        b.delete(f.plain, key(at));
                        state.remove(&key(at));
                    }
                    _ => {
                        let value = vec![rng.below(256) as u8; 1 + rng.index(30_000)];
                        b.put(f.plain, key(at), value.clone());
                        state.insert(key(at), value);
                    }
                }
            }
            let count = self.states.len().to_string().into_bytes();
            b.put(f.plain, COUNT, count.clone());
            state.insert(COUNT.to_vec(), count);
        });
        match applied {
            Ok(_) => self.states.push(state),
            Err(StoreError::Io { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether it is acknowledged.
    pub(super) fn sync(&mut self, store: &SlateStore) -> bool {
        let count = self.states.len() - 1;
        match store.sync(store.position()) {
            Ok(()) => self.acknowledged = count,
            Err(StoreError::Io { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.acknowledged == count
    }

    /// What is there after a crash is one of the states, not older than what was acknowledged, and from now
    /// on the last one.
    pub(super) fn check(&mut self, f: &Fixture<Slate>, context: &str) {
        let found = entries(&*f.store, f.plain);
        let count: usize =
            found.get(COUNT).map_or(0, |count| std::str::from_utf8(count).unwrap().parse().unwrap());
        assert!(count >= self.acknowledged, "{context}: {count} of {} batches", self.acknowledged);
        assert!(found == self.states[count], "{context}: not the state behind batch {count}");
        self.states.truncate(count + 1);
        self.acknowledged = count;
    }
}

/// Lets go of a store that has crashed, which takes until its calls have given up.
pub(super) fn abandon(f: Fixture<Slate>, store: Arc<SlateStore>) -> JoinHandle<()> {
    std::thread::spawn(move || drop((f, store)))
}

fn work_through(seed: u64) -> Arc<Cloud> {
    let mut rng = Rng::new(seed);
    let cloud = Cloud::new(seed, RATE);
    let options = SlateOptions { timeout: Some(Duration::from_millis(2500)), ..patient() };
    let mut history = History::new();
    let mut store = made(&cloud, &options);
    let mut abandoned = Vec::new();
    for life in 0..6 {
        let f = Fixture::over(Arc::clone(&store) as Arc<dyn Store>);
        history.check(&f, &format!("seed {seed}, life {life}"));
        for _ in 0..rng.below(60) {
            match rng.below(40) {
                0..=4 => drop(history.sync(&store)),
                5 => {
                    let outages =
                        [Outage::Down, Outage::Silent, Outage::Full, Outage::Expired, Outage::NoBucket];
                    cloud.set(outages[rng.index(outages.len())]);
                }
                6..=9 => cloud.set(Outage::None),
                _ => history.apply(&f, &mut rng),
            }
            assert_eq!(store.failure(), None, "seed {seed}, life {life}");
        }
        if rng.chance(1, 2) {
            // It crashes while something becomes durable.
            let syncing = Arc::clone(&store);
            abandoned.push(std::thread::spawn(move || drop(syncing.sync(syncing.position()))));
            let requests = cloud.requests();
            wait_until("it is under way", || cloud.requests() > requests);
        }
        let service = cloud.crash();
        cloud.set(Outage::None);
        abandoned.push(abandon(f, std::mem::replace(&mut store, open_over(&service, &options))));
    }
    let f = Fixture::over(Arc::clone(&store) as Arc<dyn Store>);
    history.check(&f, &format!("seed {seed}, at the end"));
    assert!(store.verify().unwrap().findings.is_empty());
    for thread in abandoned {
        thread.join().unwrap();
    }
    cloud
}

#[test]
fn batches_behind_a_bad_network_are_a_prefix_with_all_that_was_acknowledged_after_each_crash() {
    let clouds: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = seeds(6).map(|seed| scope.spawn(move || work_through(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for fault in FAULTS {
        let met: u64 = clouds.iter().map(|cloud| cloud.met(fault)).sum();
        assert!(met > 0, "nothing has met {fault:?}");
    }
}

#[test]
fn store_behind_a_slow_network_is_taken_over_from_one_that_goes_on_compacting() {
    let cloud = Cloud::new(1, 20);
    cloud.set_latency(Duration::from_millis(150));
    let options = SlateOptions { memory_bytes: 1 << 20, ..patient() };
    let old = made(&cloud, &options);
    let f = Fixture::<Slate>::over(Arc::clone(&old) as Arc<dyn Store>);
    let key = |number: u64| number.to_be_bytes().to_vec();
    let acknowledged = std::thread::scope(|scope| {
        let (f, old) = (&f, &old);
        let writer = scope.spawn(move || {
            let mut acknowledged = 0;
            for number in 0_u64.. {
                let Ok(position) = f.try_apply(|b| b.put(f.plain, key(number), vec![1; 256 << 10])) else {
                    break;
                };
                if old.sync(position).is_err() {
                    break;
                }
                acknowledged = number + 1;
            }
            acknowledged
        });
        wait_until("there are tables", || {
            old.stats().iter().any(|(n, v)| n == "slatedb.l0_tables" && *v > 3)
        });
        let claimant = Claimant { takes_over: true, ..options.claimant.clone() };
        let new = open_over(&cloud.beside(), &SlateOptions { claimant, ..options.clone() });
        let acknowledged = writer.join().unwrap();
        (new, acknowledged)
    });
    let (new, acknowledged) = acknowledged;
    assert!(old.failure().unwrap().contains("taken this store over"));
    for number in 0..acknowledged {
        assert!(new.get(f.plain, &key(number)).unwrap().is_some(), "{number} of {acknowledged}");
    }
    new.close().unwrap();
}

#[test]
fn follower_behind_a_bad_network_shows_states_that_were_durable() {
    let cloud = Cloud::new(9, RATE);
    let store = made(&cloud, &patient());
    let f = Fixture::<Slate>::over(Arc::clone(&store) as Arc<dyn Store>);
    let mut history = History::new();
    let mut rng = Rng::new(9);
    let reading = SlateOptions { read_only: true, follows: true, ..patient() };
    history.apply(&f, &mut rng);
    history.sync(&store);
    let reader = open_over(&cloud.beside(), &reading);
    let shown = Fixture::<Slate>::over(Arc::clone(&reader) as Arc<dyn Store>);
    for _ in 0..12 {
        (0..5).for_each(|_| history.apply(&f, &mut rng));
        history.sync(&store);
        let follow = Store::follow(&*reader).unwrap();
        wait_until("it is shown", || {
            let found = follow.find_newer().unwrap();
            follow.show_newer();
            let found = found || entries(&*shown.store, shown.plain) == history.states[history.acknowledged];
            found && entries(&*shown.store, shown.plain) == history.states[history.acknowledged]
        });
    }
    reader.close().unwrap();
    store.close().unwrap();
}

/// What the file of a number holds.
fn pattern(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1000 + (number as usize * 7919) % 150_000];
    Rng::new(number).fill(&mut bytes);
    bytes
}

/// Makes the file of a number, which is durable then.
fn make_file(setup: &Setup, number: u64) -> kvfs_fs::Result<()> {
    let name = number.to_string();
    let (entry, _) = setup.create(&setup.caller, NodeId::ROOT, name.as_bytes(), 0o644, true)?;
    let mut at = 0;
    for part in pattern(number).chunks(60_000) {
        at += setup.write_at(entry.node, at, part)?;
    }
    setup.sync(setup.sync_target(entry.node)?)
}

/// Each file that is there holds what was written, from its begin, and those of `synced` all of it.
fn check_files(setup: &Setup, synced: &[u64], context: &str) {
    setup.assert_sound(context);
    for listed in setup.list(NodeId::ROOT, 1 << 20, true) {
        let Ok(number) = String::from_utf8_lossy(&listed.name).parse::<u64>() else { continue };
        let entry = setup.lookup(&setup.caller, NodeId::ROOT, &listed.name).unwrap();
        let found = setup.read_all(entry.node);
        let whole = pattern(number);
        assert!(whole.starts_with(&found), "{context}: file {number} holds what was never written");
        assert!(
            found.len() == whole.len() || !synced.contains(&number),
            "{context}: file {number} was synced"
        );
    }
    for number in synced {
        let name = number.to_string();
        let found = setup.lookup(&setup.caller, NodeId::ROOT, name.as_bytes());
        assert!(found.is_ok(), "{context}: file {number} is lost");
    }
}

#[test]
fn files_that_were_synced_are_whole_after_outages_that_outlast_the_timeout_and_after_crashes() {
    let (cloud, mut rng) = (Cloud::new(11, 20), Rng::new(11));
    let options =
        SlateOptions { timeout: Some(Duration::from_millis(2500)), memory_bytes: 1 << 20, ..patient() };
    let store = made(&cloud, &options);
    let mut setup = Setup::with(store as Arc<dyn Store>, 1000, MountOptions::default());
    let (mut synced, mut failures) = (Vec::new(), 0);
    let mut number = 0;
    for life in 0..4 {
        for _ in 0..3 {
            let outages = [Outage::Down, Outage::Silent, Outage::Full, Outage::Expired];
            for outage in [Outage::None, outages[rng.index(outages.len())]] {
                cloud.set(outage);
                // Until one fails, in an outage.
                for _ in 0..3 + rng.below(5) {
                    number += 1;
                    match make_file(&setup, number) {
                        Ok(()) => synced.push(number),
                        Err(_) => failures += 1,
                    }
                    if outage != Outage::None {
                        break;
                    }
                }
            }
            cloud.set(Outage::None);
            check_files(&setup, &synced, &format!("life {life}"));
        }
        let service = cloud.crash();
        setup.store = open_over(&service, &options);
        setup.reopen();
        check_files(&setup, &synced, &format!("after crash {life}"));
    }
    assert!(failures >= 8 && synced.len() > 30, "{failures} files failed, {} did not", synced.len());
}
