//! The journal on a local disk: what it acknowledges is there after crashes, outages and losses of power, and
//! is never applied to what another mount has written since.

use std::path::PathBuf;

use kvfs_device::Rng;
use kvfs_engine_slatedb::JournalOptions;
use kvfs_engine_slatedb::seam::object_store::ObjectStore;
use kvfs_engine_slatedb::seam::{slatedb, tokio};
use kvfs_fs::MountOptions;
use kvfs_store::{BLOCK_BYTES, EngineStore, StoreError};

use super::faults::{Cloud, Outage};
use super::flaky::{History, RATE, abandon, made, open_over, patient, seeds};
use super::*;
use crate::driver::Driver;
use crate::setup::Setup;

/// Of a machine: where its journals are.
struct Machine {
    dir: TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    /// Another one with a copy of the journal.
    fn copied(&self) -> Self {
        let copy = Self::new();
        std::fs::create_dir(copy.journal()).unwrap();
        for path in self.files() {
            std::fs::copy(&path, copy.journal().join(path.file_name().unwrap())).unwrap();
        }
        copy
    }

    fn journal(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    /// As the machine opens it, with a journal or for object storage alone.
    fn options(&self, is_written: bool) -> SlateOptions {
        let journal = Some(JournalOptions { dir: self.journal(), is_written });
        SlateOptions { journal, timeout: Some(Duration::from_millis(2500)), ..patient() }
    }

    fn files(&self) -> Vec<PathBuf> {
        let listed = std::fs::read_dir(self.journal()).into_iter().flatten();
        let mut files: Vec<_> = listed.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// Of the journal that is there, by its first file.
    fn opening(&self) -> u64 {
        let first = &self.files()[0];
        let name = first.file_name().unwrap().to_str().unwrap();
        u64::from_str_radix(name.split_once('-').unwrap().0, 16).unwrap()
    }

    /// Where the last file ends.
    fn end(&self) -> Option<(PathBuf, u64)> {
        let last = self.files().pop()?;
        let len = last.metadata().unwrap().len();
        Some((last, len))
    }

    /// Power goes: of what was written and not synced since `synced`, some is not there.
    fn lose_power(&self, synced: Option<&(PathBuf, u64)>, rng: &mut Rng) {
        let Some((last, len)) = self.end() else { return };
        // Files are begun on the disk.
        let kept = synced.filter(|(path, _)| *path == last).map_or(40, |(_, len)| *len);
        let file = std::fs::File::options().write(true).open(&last).unwrap();
        file.set_len(kept + rng.below(len.saturating_sub(kept) + 1)).unwrap();
    }
}

fn over(store: &Arc<SlateStore>) -> Fixture<Slate> {
    Fixture::over(Arc::clone(store) as Arc<dyn Store>)
}

fn put(f: &Fixture<Slate>, key: &'static str) {
    f.apply(|b| b.put(f.plain, key, key));
}

/// As much as a file of the journal takes before another one is begun.
fn put_file_full(f: &Fixture<Slate>) {
    f.apply(|b| (0..9).for_each(|number| b.put(f.plain, format!("large {number}"), vec![1; 1 << 20])));
}

fn has(f: &Fixture<Slate>, key: &str) -> bool {
    f.store.get(f.plain, key.as_bytes()).unwrap().is_some()
}

/// What would be opened by a machine that asks for no journal and takes nothing over.
fn open_elsewhere(service: &Arc<dyn ObjectStore>) -> Result<SlateStore> {
    SlateStore::open_over(Arc::clone(service), &SlateOptions { journal: None, ..patient() })
}

#[test]
fn what_is_synced_in_an_outage_is_there_after_a_crash_and_then_the_journal_is_gone() {
    let (cloud, machine) = (Cloud::new(1, 0), Machine::new());
    let store = made(&cloud, &machine.options(true));
    let f = over(&store);
    cloud.set(Outage::Down);
    for number in 0..20 {
        f.apply(|b| {
            b.put(f.plain, format!("key {number}"), "value");
            b.put_blocks(f.blocks, "file", number * 8, vec![number as u8 + 1; 8 * BLOCK_BYTES]);
        });
        store.sync(store.position()).unwrap();
    }
    f.apply(|b| {
        b.delete_range(f.plain, "key 1", "key 2");
        b.delete_range(f.blocks, [b"file".as_slice(), &5_u64.to_be_bytes()].concat(), "filf");
        b.patch_block(f.blocks, "file", 2, 10, "patched");
        b.merge(f.merging, "list", "a");
    });
    f.apply(|b| b.merge(f.merging, "list", "b"));
    store.sync(store.position()).unwrap();
    let position = store.position();
    assert!(!machine.files().is_empty() && f.stat("slatedb.journal_bytes") > 512 << 10);
    let (plain, blocks, merging) = (f.plain, f.blocks, f.merging);
    let expected = [plain, blocks, merging].map(|keyspace| entries(&*store, keyspace));
    let service = cloud.crash();
    let gone = abandon(f, store);
    cloud.set(Outage::None);
    // What shows less than was acknowledged is refused, unless it asks for that.
    let reading = |follows| SlateOptions { read_only: true, follows, ..machine.options(false) };
    let refused = SlateStore::open_over(Arc::clone(&service), &reading(false)).err().unwrap().to_string();
    assert!(refused.contains("holds 22 changes") && refused.contains("mount it once"), "{refused}");
    let reader = open_over(&service, &reading(true));
    assert!(!has(&over(&reader), "key 0"));
    reader.close().unwrap();
    // Another machine does not go on without it.
    let refused = open_elsewhere(&service).err().unwrap().to_string();
    assert!(refused.contains("a mount; mount it there"), "{refused}");
    // This one has it, whatever it asks for now.
    let store = open_over(&service, &machine.options(false));
    let f = over(&store);
    assert_eq!(store.position(), position);
    assert!([plain, blocks, merging].map(|keyspace| entries(&*store, keyspace)) == expected);
    assert_eq!((machine.files().len(), f.stat("slatedb.journal_bytes")), (0, 0));
    assert!(store.verify().unwrap().findings.is_empty());
    store.close().unwrap();
    open_elsewhere(&service).unwrap().close().unwrap();
    gone.join().unwrap();
}

fn work_through(seed: u64) {
    let mut rng = Rng::new(seed);
    let (cloud, machine) = (Cloud::new(seed, RATE), Machine::new());
    let mut history = History::new();
    let mut store = made(&cloud, &machine.options(true));
    let mut abandoned = Vec::new();
    for life in 0..6 {
        let f = over(&store);
        history.check(&f, &format!("seed {seed}, life {life}"));
        let mut synced = machine.end();
        for _ in 0..rng.below(80) {
            match rng.below(40) {
                0..=9 => {
                    if history.sync(&store) {
                        synced = machine.end();
                    }
                }
                10 => {
                    let outages = [Outage::Down, Outage::Silent, Outage::Full, Outage::Expired];
                    cloud.set(outages[rng.index(outages.len())]);
                }
                11 | 12 => cloud.set(Outage::None),
                _ => history.apply(&f, &mut rng),
            }
            assert_eq!(store.failure(), None, "seed {seed}, life {life}");
        }
        let service = cloud.crash();
        abandoned.push(abandon(f, store));
        machine.lose_power(synced.as_ref(), &mut rng);
        cloud.set(Outage::None);
        let options = machine.options(rng.chance(2, 3));
        // The last one is closed, however busy the machine is.
        let timeout = options.timeout.filter(|_| life < 5);
        store = open_over(&service, &SlateOptions { timeout, ..options });
    }
    let f = over(&store);
    history.check(&f, &format!("seed {seed}, at the end"));
    assert!(store.verify().unwrap().findings.is_empty());
    store.close().unwrap();
    assert_eq!(machine.files().len(), 0, "seed {seed}");
    for thread in abandoned {
        thread.join().unwrap();
    }
}

#[test]
fn batches_with_a_journal_are_a_prefix_with_all_that_was_acknowledged_after_each_loss_of_power() {
    std::thread::scope(|scope| {
        let threads: Vec<_> = seeds(6).map(|seed| scope.spawn(move || work_through(seed))).collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn files_with_a_journal_behave_like_the_reference_also_after_crashes() {
    for seed in seeds(2) {
        let (cloud, machine) = (Cloud::new(seed, RATE), Machine::new());
        let store = made(&cloud, &machine.options(true));
        let mut setup = Setup::with(Arc::clone(&store) as Arc<dyn Store>, 1000, MountOptions::default());
        let mut last = store;
        setup.reopen_store = Some(Box::new(move || {
            last.sync(last.position()).unwrap();
            last = open_over(&cloud.crash(), &machine.options(true));
            Arc::clone(&last) as Arc<dyn Store>
        }));
        Driver::new(setup, seed, 20_000).run(300);
    }
}

#[test]
fn journal_of_a_store_that_was_taken_over_is_refused_until_it_is_moved_away() {
    let (cloud, machine, other) = (Cloud::new(1, 0), Machine::new(), Machine::new());
    let named = |machine: &Machine, name: &str, takes_over| {
        let claimant = Claimant { name: name.to_owned(), takes_over, ..options().claimant };
        SlateOptions { claimant, ..machine.options(true) }
    };
    let store = made(&cloud, &named(&machine, "host one", false));
    let f = over(&store);
    put(&f, "sent");
    store.sync(store.position()).unwrap();
    wait_until("it is sent", || {
        let reading = SlateOptions { read_only: true, ..patient() };
        let reader = open_over(&cloud.beside(), &reading);
        let is_there = has(&over(&reader), "sent");
        reader.close().unwrap();
        is_there
    });
    cloud.set(Outage::Down);
    put(&f, "kept");
    put(&f, "kept, too");
    store.sync(store.position()).unwrap();
    let service = cloud.crash();
    let gone = abandon(f, store);
    cloud.set(Outage::None);

    // Also of one that has a journal of something else.
    let stale = other.journal().join("00000000000000ff-00000000");
    std::fs::create_dir(other.journal()).unwrap();
    std::fs::write(&stale, "").unwrap();
    let refused = SlateStore::open_over(Arc::clone(&service), &named(&other, "host two", false));
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("host one") && refused.contains("take_over"), "{refused}");
    let store = open_over(&service, &named(&other, "host two", true));
    assert!(!stale.exists());
    // The one that was refused has fenced no mount, which may be alive.
    assert_eq!(other.opening(), machine.opening() + 1);
    let f = over(&store);
    assert!(has(&f, "sent") && !has(&f, "kept"));
    put(&f, "new");
    store.close().unwrap();
    drop((f, store));

    // The first one comes back: it has more, which does not fit what is there now.
    for _ in 0..2 {
        let refused = SlateStore::open_over(Arc::clone(&service), &named(&machine, "host one", true));
        let refused = refused.err().unwrap().to_string();
        assert!(
            refused.contains("holds 2 changes") && refused.contains("move these files away"),
            "{refused}"
        );
    }
    std::fs::remove_dir_all(machine.journal()).unwrap();
    let store = open_over(&service, &named(&machine, "host one", false));
    let f = over(&store);
    assert!(has(&f, "sent") && has(&f, "new") && !has(&f, "kept"));
    store.close().unwrap();
    gone.join().unwrap();
}

#[test]
fn journal_of_a_store_that_was_taken_over_with_everything_in_it_goes() {
    let (cloud, machine) = (Cloud::new(1, 0), Machine::new());
    let store = made(&cloud, &machine.options(true));
    let f = over(&store);
    put(&f, "sent");
    store.sync(store.position()).unwrap();
    // Which waits for object storage.
    store.snapshots().unwrap().create_snapshot("now").unwrap();
    let service = cloud.crash();
    let gone = abandon(f, store);
    let claimant = Claimant { takes_over: true, ..options().claimant };
    let other = open_over(&service, &SlateOptions { claimant, ..patient() });
    other.close().unwrap();
    assert!(!machine.files().is_empty());
    let store = open_over(&service, &machine.options(false));
    assert!(has(&over(&store), "sent"));
    assert_eq!(machine.files().len(), 0);
    store.close().unwrap();
    gone.join().unwrap();
}

#[test]
fn copy_of_a_journal_does_not_make_the_whole_one_go() {
    let (cloud, machine) = (Cloud::new(1, 0), Machine::new());
    let store = made(&cloud, &machine.options(true));
    let f = over(&store);
    cloud.set(Outage::Down);
    put(&f, "first");
    store.sync(store.position()).unwrap();
    let copy = machine.copied();
    put(&f, "second");
    store.sync(store.position()).unwrap();
    let service = cloud.crash();
    let gone = abandon(f, store);
    cloud.set(Outage::None);
    // A second copy is as good as none by then, and changes nothing.
    let second = copy.copied();
    for copy in [copy, second] {
        let store = open_over(&service, &copy.options(false));
        assert!(has(&over(&store), "first"));
        store.close().unwrap();
        assert_eq!(copy.files().len(), 0);
    }
    let refused = SlateStore::open_over(Arc::clone(&service), &machine.options(false)).err().unwrap();
    assert!(refused.to_string().contains("holds 1 changes"), "{refused}");
    gone.join().unwrap();
}

#[test]
fn journal_that_lacks_changes_before_others_is_refused() {
    let (cloud, machine) = (Cloud::new(1, 0), Machine::new());
    // So that there is room for two files of it.
    let store = made(&cloud, &SlateOptions { memory_bytes: 256 << 20, ..machine.options(true) });
    let f = over(&store);
    cloud.set(Outage::Down);
    put_file_full(&f);
    store.sync(store.position()).unwrap();
    put(&f, "small");
    store.sync(store.position()).unwrap();
    let service = cloud.crash();
    let gone = abandon(f, store);
    cloud.set(Outage::None);
    let files = machine.files();
    assert_eq!(files.len(), 2);
    let aside = machine.dir.path().join("aside");
    std::fs::rename(&files[0], &aside).unwrap();
    for _ in 0..2 {
        let refused = SlateStore::open_over(Arc::clone(&service), &machine.options(true)).err().unwrap();
        assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused}");
    }
    std::fs::rename(&aside, &files[0]).unwrap();
    let store = open_over(&service, &machine.options(true));
    let f = over(&store);
    assert!(has(&f, "large 8") && has(&f, "small"));
    store.close().unwrap();
    gone.join().unwrap();
}

#[test]
fn journal_of_another_store_is_left_alone() {
    let (cloud, machine) = (Cloud::new(1, 0), Machine::new());
    let store = made(&cloud, &machine.options(true));
    put(&over(&store), "kept");
    store.sync(store.position()).unwrap();
    let gone = abandon(over(&store), store);
    let files = machine.files();
    let other = Cloud::new(2, 0).crash();
    SlateStore::create_over(Arc::clone(&other), &options(), [8; 16]).unwrap();
    let refused = SlateStore::open_over(other, &machine.options(true)).err().unwrap();
    assert!(refused.to_string().contains("of another store"), "{refused}");
    assert_eq!(machine.files(), files);
    gone.join().unwrap();
}

#[test]
fn store_says_what_it_holds_when_a_journal_is_over() {
    let (cloud, machine) = (Cloud::new(1, 0), Machine::new());
    // What an older kvfs would look at, and refuse or not.
    let version = |service: &Arc<dyn ObjectStore>| {
        let db = slatedb::Db::open("", Arc::clone(service));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let db = db.await.unwrap();
            let version = db.get(b"\0\0\0\0version").await.unwrap().unwrap();
            db.close().await.unwrap();
            version
        })
    };
    drop(made(&cloud, &machine.options(true)));
    let service = cloud.crash();
    assert_eq!(version(&service), "3");
    let store = open_over(&service, &machine.options(false));
    store.sync(store.position()).unwrap();
    assert_eq!(version(&cloud.crash()), "1");
    drop(store);
    let service = cloud.crash();
    let store = open_over(&service, &machine.options(false));
    let f = over(&store);
    f.apply(|b| b.put_blocks(f.blocks, "file", 0, vec![1; 8 * BLOCK_BYTES]));
    store.close().unwrap();
    assert_eq!(version(&service), "2");
    let store = open_over(&service, &machine.options(true));
    store.close().unwrap();
    assert_eq!(version(&service), "2");
}

#[test]
fn store_that_is_closed_in_an_outage_goes_on_from_its_journal() {
    let (cloud, machine) = (Cloud::new(1, 0), Machine::new());
    let store = made(&cloud, &machine.options(true));
    let f = over(&store);
    cloud.set(Outage::Down);
    put(&f, "written");
    store.close().unwrap();
    drop((f, store));
    cloud.set(Outage::None);
    let store = open_over(&cloud.crash(), &machine.options(true));
    assert!(has(&over(&store), "written"));
    store.close().unwrap();
}

#[test]
fn journal_that_can_not_be_written_makes_syncs_wait_for_object_storage() {
    let (cloud, machine) = (Cloud::new(1, 0), Machine::new());
    let store = made(&cloud, &SlateOptions { memory_bytes: 256 << 20, ..machine.options(true) });
    let f = over(&store);
    // Behind so much, which object storage does not get first, another file is begun, which is not possible
    // there.
    std::fs::remove_dir_all(machine.journal()).unwrap();
    cloud.set(Outage::Down);
    put_file_full(&f);
    store.sync(store.position()).unwrap();
    put(&f, "small");
    let error = store.sync(store.position()).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    cloud.set(Outage::None);
    store.sync(store.position()).unwrap();
    let service = cloud.crash();
    let gone = abandon(f, store);
    // The files are gone, and so what they held is given up: nothing, here.
    let claimant = Claimant { takes_over: true, ..options().claimant };
    let store = open_over(&service, &SlateOptions { claimant, ..machine.options(true) });
    let f = over(&store);
    assert!(has(&f, "large 8") && has(&f, "small"));
    store.close().unwrap();
    gone.join().unwrap();
}
