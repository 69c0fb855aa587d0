//! A store on a file system that is full, and on a device that fails.

use std::process::Command;

use kvfs_store::{EngineStore, StoreError};
use tempfile::TempDir;

use super::*;

const MIB: u64 = 1 << 20;

/// A mount below a directory of its own; it goes in the end.
struct Mounted(TempDir);

impl Mounted {
    /// `None`: nothing can be mounted here, which is said.
    fn new(test: &str, args: &[&str]) -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let mounted = Command::new("mount").args(args).arg(dir.path()).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(dir));
        }
        eprintln!("SKIPPED {test}: needs root, tmpfs and loop devices");
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// A new directory there.
    fn dir(&self) -> std::path::PathBuf {
        let dir = self.path().join("database");
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    /// Takes what is free; returns the file that does.
    fn fill(&self) -> std::path::PathBuf {
        let ballast = self.path().join("ballast");
        let mut file = std::fs::File::create(&ballast).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
        ballast
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

fn fixture(path: &Path) -> (Fixture<Plain>, Arc<TestStore>) {
    let options = DatabaseOptions {
        commit_interval: std::time::Duration::from_hours(1),
        ..DatabaseOptions::with_memory(MEMORY_BYTES)
    };
    let store = Arc::new(TestStore::open(path, options).unwrap());
    (Fixture::over(Arc::clone(&store) as Arc<dyn Store>), store)
}

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

#[test]
fn full_file_system_refuses_writes_and_takes_deletes_and_everything_stays() {
    let test = "full_file_system_refuses_writes_and_takes_deletes_and_everything_stays";
    let Some(mounted) = Mounted::new(test, &["-t", "tmpfs", "-o", "size=128M", "tmpfs"]) else { return };
    let dir = mounted.dir();
    create(&dir);
    let (f, store) = fixture(&dir);
    let value = |number: u32| vec![number as u8; 256 << 10];
    let mut count = 0;
    let refused = loop {
        match f.try_apply(|b| b.put(f.plain, key(count), value(count))) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Full), "{refused}");
    assert!(u64::from(count) * (256 << 10) > 24 * MIB, "only {count} of 128 MiB");
    // It is full, and works: what is there is read, deleted, made durable.
    for number in (0..count).step_by(2) {
        f.apply(|b| b.delete(f.plain, key(number)));
    }
    store.sync(store.position()).unwrap();
    // What was deleted makes room.
    let more = if Tested::COMPACTS_IN_PIECES { count / 4 } else { 0 };
    for number in count..count + more {
        f.apply(|b| b.put(f.plain, key(number), value(number)));
    }
    assert!(store.failure().is_none());
    store.close().unwrap();
    drop((f, store));
    let (f, store) = fixture(&dir);
    for number in 0..count + more {
        let found = store.get(f.plain, &key(number)).unwrap();
        let is_there = number % 2 == 1 || number >= count;
        assert_eq!(found.as_deref(), is_there.then(|| value(number)).as_deref(), "{number}");
    }
    assert!(store.verify().unwrap().findings.is_empty());
    store.close().unwrap();
}

#[test]
fn failed_sync_ends_all_writes_until_the_store_is_opened_again() {
    let test = "failed_sync_ends_all_writes_until_the_store_is_opened_again";
    let Some(below) = Mounted::new(test, &["-t", "tmpfs", "-o", "size=48M", "tmpfs"]) else { return };
    // More than there is below it: what the file system has taken can't be written when it is to be durable.
    let image = below.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(256 * MIB).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal"]).arg(&image).status();
    assert!(made.unwrap().success());
    let Some(mounted) = Mounted::new(test, &["-o", "loop", image.to_str().unwrap()]) else { return };
    let dir = mounted.dir();
    create(&dir);
    let (f, store) = fixture(&dir);
    store.sync(f.apply(|b| b.put(f.plain, "before", "1"))).unwrap();
    let ballast = below.fill();
    // The file system takes it.
    let position = f.apply(|b| (0..16).for_each(|number| b.put(f.plain, key(number), vec![7; 256 << 10])));
    let failed =
        |result: Result<()>| assert!(matches!(&result, Err(StoreError::Failed { .. })), "{result:?}");
    failed(store.sync(position));
    let reason = store.failure().expect("it is kept");
    // That there is space again changes nothing: what the first sync has lost, a second one does not bring
    // back.
    std::fs::remove_file(ballast).unwrap();
    failed(store.sync(position));
    failed(f.try_apply(|b| b.put(f.plain, "after", "1")).map(drop));
    failed(f.try_apply(|b| b.delete(f.plain, "before")).map(drop));
    assert_eq!(store.failure(), Some(reason), "the first failure");
    assert_eq!(text(store.get(f.plain, b"before").unwrap()), Some("1".to_owned()), "it is read");
    failed(store.close());
    drop((f, store));
    let (f, store) = fixture(&dir);
    assert_eq!(text(store.get(f.plain, b"before").unwrap()), Some("1".to_owned()), "it was durable");
    store.sync(f.apply(|b| b.put(f.plain, "after", "1"))).unwrap();
    store.close().unwrap();
}
