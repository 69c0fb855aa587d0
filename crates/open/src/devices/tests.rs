use std::os::unix::fs::symlink;

use kvfs_device::{Call, FaultDevice, FaultError, FaultRule};
use kvfs_kvdb::Options;
use kvfs_store::clock::{Clock, SystemClock};

use super::*;
use crate::make::{CAPACITY_BYTES_MIN, NewStore, linked_device, make_store, own_device};
use crate::memory::MEMORY_BYTES_MIN;
use crate::open::{OpenOptions, OpenedEngine, OpenedStore};

fn open(first: Arc<dyn Device>, others: &[Arc<dyn Device>]) -> Result<Arc<Db>, StoreError> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    Db::open_joined(first, others, Options::with_memory(MEMORY_BYTES_MIN), clock)
}

#[test]
fn failed_flush_while_a_device_is_added_takes_no_name_away_that_the_store_needs() {
    let base = tempfile::tempdir().expect("a directory");
    let (mut fails, mut is_member) = (0, false);
    for nth in 0.. {
        let (path, slow) = (base.path().join(nth.to_string()), base.path().join(format!("slow-{nth}")));
        let size = Some(CAPACITY_BYTES_MIN);
        make_store(&path, NewStore::of_size(size), |dir| own_device(dir, size)).expect("makes");
        File::create(&slow).expect("makes");
        let dir = StoreDir::open(&path).expect("opens");
        let devices = StoreDevices::open(&dir, false).expect("opens");
        let (first, others) = devices.for_engine();
        let first = Arc::new(FaultDevice::new(first));
        let db = open(Arc::clone(&first) as _, &others).expect("opens");
        first.add(FaultRule::once(Call::Flush, nth, FaultError::EIO));
        let new = NewDevice { path: slow, tier: Tier::Slow, size_bytes: Some(32 << 20), force: false };
        let added = devices.add(&db, &new);
        let has_failed = db.failure().is_some();
        assert_eq!(added.is_err(), has_failed, "flush {nth}: {added:?}");
        drop((db, first, others, devices));

        let devices = StoreDevices::open(&dir, false).expect("opens");
        let (first, others) = devices.for_engine();
        let db = open(first, &others).unwrap_or_else(|error| panic!("flush {nth}: {error}"));
        is_member |= has_failed && db.devices().len() == 2;
        if !has_failed {
            break;
        }
        fails += 1;
    }
    assert!(fails >= 2 && is_member, "{fails} flushes fail, and the manifest may be written nevertheless");
}

/// A store on a device elsewhere, which `name` leads to, and the directory.
fn make_linked(base: &Path, store: &str, name: &Path) -> PathBuf {
    let path = base.join(store);
    let size_bytes = Some(CAPACITY_BYTES_MIN);
    let first = NewDevice { path: name.to_owned(), tier: Tier::Fast, size_bytes, force: false };
    make_store(&path, NewStore::of_size(size_bytes), |dir| linked_device(dir, &first)).expect("makes");
    path
}

fn open_store(path: &Path) -> Result<OpenedStore> {
    OpenedStore::open(&StoreDir::open(path)?, &OpenOptions::default())
}

#[test]
fn device_is_found_by_the_name_that_was_given_after_disks_were_numbered_anew() {
    let base = tempfile::tempdir().expect("a directory");
    let [disk, other, slow] = ["sda", "sdb", "sdc"].map(|name| base.path().join(name));
    let [by_id, slow_by_id] = ["by-id", "slow-by-id"].map(|name| base.path().join(name));
    for (disk, by_id) in [(&disk, &by_id), (&slow, &slow_by_id)] {
        File::create(disk).expect("makes");
        symlink(disk, by_id).expect("links");
    }
    let path = make_linked(base.path(), "store", &by_id);
    let store = open_store(&path).expect("opens");
    let OpenedEngine::Kvdb { db, devices } = &store.engine else { panic!("it is kvdb") };
    let new = NewDevice { path: slow_by_id, tier: Tier::Slow, size_bytes: Some(32 << 20), force: false };
    devices.add(db, &new).expect("adds");
    assert_eq!(devices.target(db, 1), Some(slow.canonicalize().expect("is there")));
    store.close().expect("closes");

    std::fs::rename(&disk, &other).expect("renames");
    std::fs::rename(&slow, &disk).expect("renames");
    std::fs::remove_file(&by_id).expect("removes");
    std::fs::remove_file(&new.path).expect("removes");
    symlink(&other, &by_id).expect("links");
    symlink(&disk, &new.path).expect("links");
    let store = open_store(&path).expect("opens");
    assert_eq!(store.engine.missing(), None);
    store.close().expect("closes");
}

#[test]
fn directory_whose_device_became_another_store_is_refused_and_nothing_is_written() {
    let base = tempfile::tempdir().expect("a directory");
    let disks = ["dm-0", "dm-1", "dm-2"].map(|name| base.path().join(name));
    for disk in &disks {
        File::create(disk).expect("makes");
    }
    let stores = ["a", "b"].map(|name| make_linked(base.path(), name, &disks[usize::from(name == "b")]));
    // As a kvfs from before has made it: the first opening for writing notes which store it is.
    std::fs::remove_file(stores[0].join("uuid")).expect("is there");
    open_store(&stores[0]).expect("opens").close().expect("closes");

    for (from, to) in [(0, 2), (1, 0), (2, 1)] {
        std::fs::rename(&disks[from], &disks[to]).expect("renames");
    }
    let before = disks[..2].iter().map(|disk| std::fs::read(disk).expect("reads")).collect::<Vec<_>>();
    for store in &stores {
        let refused = open_store(store).err().expect("it is another store");
        assert_eq!(refused.kind(), ErrorKind::NotAStore, "{refused}");
        assert!(refused.to_string().contains("holds the store"), "{refused}");
    }
    let after = disks[..2].iter().map(|disk| std::fs::read(disk).expect("reads")).collect::<Vec<_>>();
    assert!(before == after, "another store was written to");

    // What the message says.
    std::fs::remove_file(stores[0].join("device")).expect("removes");
    symlink(&disks[1], stores[0].join("device")).expect("links");
    open_store(&stores[0]).expect("opens").close().expect("closes");
    std::fs::remove_file(stores[1].join("uuid")).expect("removes");
    open_store(&stores[1]).expect("opens").close().expect("closes");
    // No store at all.
    std::fs::write(&disks[1], vec![7; 64 << 20]).expect("writes");
    let refused = open_store(&stores[1]).err().expect("there is none");
    assert!(refused.to_string().contains("disks have other names"), "{refused}");
}

#[test]
fn names_that_the_store_does_not_need_keep_it_from_no_opening_and_go() {
    let base = tempfile::tempdir().expect("a directory");
    let [disk, slow, foreign] = ["first", "slow", "foreign"].map(|name| base.path().join(name));
    for file in [&disk, &slow, &foreign] {
        File::create(file).expect("makes").set_len(32 << 20).expect("becomes longer");
    }
    let path = make_linked(base.path(), "store", &disk);
    let [left_over, again, own] = ["device.1", "device.2", "device.3"].map(|name| path.join(name));
    symlink(&foreign, &left_over).expect("links");
    symlink(&slow, &again).expect("links");
    let open = |is_read_only| {
        let options = OpenOptions { read_only: is_read_only, degraded: true, ..OpenOptions::default() };
        OpenedStore::open(&StoreDir::open(&path).expect("is there"), &options)
    };
    let in_use = FileDevice::open(&foreign, false).expect("opens");
    let slow_in_use = FileDevice::open(&slow, false).expect("opens");
    let store = open(false).expect("needs neither");
    drop(slow_in_use);
    let OpenedEngine::Kvdb { db, devices } = &store.engine else { panic!("it is kvdb") };
    let new = NewDevice { path: slow.clone(), tier: Tier::Slow, size_bytes: None, force: false };
    devices.add(db, &new).expect("adds");
    assert!(own.is_symlink());
    store.close().expect("closes");

    // The device has two names, and is opened once.
    let store = open(false).expect("opens");
    assert_eq!((store.engine.missing(), store.is_read_only), (None, false));
    store.close().expect("closes");
    assert!(left_over.is_symlink(), "what it leads to is not known");
    drop(in_use);
    open(false).expect("opens").close().expect("closes");
    assert!(!left_over.is_symlink() && again.is_symlink());

    // One that is needed and is in use is the reason, whether the store is written to or read.
    let in_use = FileDevice::open(&slow, false).expect("opens");
    for is_read_only in [false, true] {
        let refused = open(is_read_only).err().expect("the slow one is needed");
        assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
    }
    drop(in_use);
    std::fs::remove_file(&slow).expect("removes");
    std::fs::rename(&foreign, &slow).expect("renames");
    let refused = open_store(&path).err().expect("the slow one is missing");
    let said = format!("no device of this store: {}", slow.canonicalize().expect("is there").display());
    assert!(refused.to_string().contains(&said), "{refused}");
}
