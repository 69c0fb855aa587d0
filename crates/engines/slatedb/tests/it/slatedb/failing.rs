//! A store that another mount takes over, one whose objects are gone or damaged, and places that are none.

use std::path::PathBuf;

use kvfs_store::{EngineStore, StoreError};
use tempfile::TempDir;

use super::*;

fn refusal<T>(result: Result<T>) -> String {
    match result {
        Err(StoreError::Failed { reason }) => reason.to_string(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it is not refused"),
    }
}

#[test]
fn store_that_another_mount_has_taken_over_takes_no_more_writes_and_says_why() {
    let (dir, old, old_store) = new_store();
    old_store.sync(old.put("before", "1")).unwrap();
    let (new, new_store) = take_over(dir.path());
    assert_eq!(text(new_store.get(new.plain, b"before").unwrap()), Some("1".to_owned()));
    new_store.sync(new.put("after", "1")).unwrap();
    // The old one may take a write, but acknowledges nothing.
    let refused = match old.try_apply(|b| b.put(old.plain, "late", "1")) {
        Ok(position) => refusal(old_store.sync(position)),
        refused => refusal(refused),
    };
    assert!(refused.contains("another mount has taken this store over"), "{refused}");
    for _ in 0..2 {
        assert_eq!(refusal(old.try_apply(|b| b.put(old.plain, "later", "1"))), refused);
        assert_eq!(refusal(old_store.sync(old_store.position())), refused);
    }
    assert_eq!(old_store.failure().as_deref(), Some(&*refused));
    assert_eq!(refusal(old_store.close()), refused);
    drop((old, old_store));
    let names: Vec<_> = listing(&*new_store, new.plain).into_iter().map(|(key, _)| key).collect();
    assert_eq!(names, ["after", "before"]);
    new_store.sync(new.put("and", "1")).unwrap();
    new_store.close().unwrap();
}

#[test]
fn idle_store_notices_that_another_mount_has_taken_it_over() {
    let (dir, _old, old_store) = new_store();
    assert_eq!(old_store.failure(), None);
    let (_new, new_store) = take_over(dir.path());
    wait_until("it is noticed", || old_store.failure().is_some());
    assert!(old_store.failure().unwrap().contains("taken this store over"));
    assert_eq!(new_store.failure(), None);
}

#[test]
fn place_with_objects_is_no_place_for_a_store_and_an_empty_one_has_none() {
    let dir = TempDir::new().unwrap();
    let options = SlateOptions::with_memory(MEMORY_BYTES);
    let Err(missing) = SlateStore::open(&place(dir.path()), &options) else { panic!("there is none") };
    assert!(
        matches!(&missing, StoreError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    );
    create(dir.path());
    let again = SlateStore::claim(&place(dir.path()), [8; 16]).unwrap_err();
    assert!(again.to_string().contains("there are objects already"), "{again}");
    assert_eq!(open(dir.path()).uuid(), [7; 16]);
    SlateStore::remove(&place(dir.path())).unwrap();
    create(dir.path());
}

/// In its middle. Its path, and what was in it.
fn damage_largest_table(path: &Path) -> (PathBuf, Vec<u8>) {
    let tables = std::fs::read_dir(path.join("compacted")).unwrap();
    let largest = tables.map(|table| table.unwrap()).max_by_key(|table| table.metadata().unwrap().len());
    let path = largest.unwrap().path();
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    (path, whole)
}

#[test]
fn damage_within_a_deleted_range_keeps_its_keys_and_no_writer_from_its_work() {
    let (dir, f, store) = new_store();
    let key = |number: u32| number.to_be_bytes().to_vec();
    for number in 0..1000 {
        f.apply(|b| b.put(f.plain, key(number), vec![number as u8; 1000]));
    }
    store.close().unwrap();
    drop((f, store));
    damage_largest_table(dir.path());
    let (f, store) = fixture(dir.path());
    f.apply(|b| b.delete_range(f.plain, key(0), key(1000)));
    let work = |f: &Fixture<Slate>, store: &SlateStore, of: u32| {
        // A later range goes, so the damaged one was met.
        f.apply(|b| (of..of + 200).for_each(|number| b.put(f.plain, key(number), "v")));
        f.apply(|b| b.delete_range(f.plain, key(of), key(of + 200)));
        wait_until("others go", || f.stat("slatedb.deleted_ranges") == 1);
        store.sync(f.apply(|b| b.put(f.plain, key(of + 1000), "v"))).unwrap();
        assert_eq!(store.failure(), None);
        // What can be read is not there any more.
        assert_eq!(f.store.get(f.plain, &key(7)).unwrap(), None);
        assert_eq!(f.store.get(f.plain, &key(of + 7)).unwrap(), None);
        assert!(f.store.get(f.plain, &key(of + 1000)).unwrap().is_some());
        store.close().unwrap();
    };
    work(&f, &store, 2000);
    drop((f, store));
    // The next mount meets it at once.
    let (f, store) = fixture(dir.path());
    work(&f, &store, 4000);
}

#[test]
fn missing_and_damaged_objects_are_found() {
    let (dir, f, store) = new_store();
    for number in 0..1000_u32 {
        f.apply(|b| b.put(f.plain, number.to_be_bytes().to_vec(), vec![number as u8; 1000]));
    }
    store.close().unwrap();
    drop((f, store));
    let (path, whole) = damage_largest_table(dir.path());
    let reader = SlateOptions { read_only: true, ..SlateOptions::with_memory(MEMORY_BYTES) };
    let check = || {
        let store = SlateStore::open(&place(dir.path()), &reader)?;
        store.verify().map(|verified| verified.findings)
    };
    let findings = check().unwrap();
    assert!(matches!(&findings[..], [finding] if finding.contains("\"plain\"")), "{findings:?}");
    std::fs::remove_file(&path).unwrap();
    let missing = check().unwrap_err();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(matches!(missing, StoreError::Corrupt { .. }) && missing.to_string().contains(name), "{missing}");
    std::fs::write(&path, whole).unwrap();
    assert_eq!(check().unwrap(), [] as [String; 0]);
}

fn claimed_by(name: &str, identity: &str) -> SlateOptions {
    let claimant = Claimant { name: name.to_owned(), identity: identity.to_owned(), ..options().claimant };
    SlateOptions { claimant, ..options() }
}

#[test]
fn store_that_is_open_elsewhere_is_refused_with_the_name_of_its_holder_until_that_is_closed() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let holder = SlateStore::open(&place(dir.path()), &claimed_by("host a, /store", "1")).unwrap();
    wait_until("it says so", || dir.path().join("kvfs-holder").exists());
    for identity in ["2", ""] {
        let refused = SlateStore::open(&place(dir.path()), &claimed_by("host b", identity)).err().unwrap();
        let is_busy = |source: &std::io::Error| source.kind() == std::io::ErrorKind::ResourceBusy;
        assert!(matches!(&refused, StoreError::Io { source, .. } if is_busy(source)), "{refused}");
        assert!(refused.to_string().contains("host a, /store"), "{refused}");
    }
    assert_eq!(holder.failure(), None, "it is not disturbed");
    holder.close().unwrap();
    assert!(!dir.path().join("kvfs-holder").exists());
    SlateStore::open(&place(dir.path()), &claimed_by("host b", "2")).unwrap().close().unwrap();
}

#[test]
fn dead_holder_is_taken_over_after_its_lease_and_one_of_the_same_store_directory_at_once() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let record = dir.path().join("kvfs-holder");
    std::fs::write(&record, "host a\n1\n7\n").unwrap();
    SlateStore::open(&place(dir.path()), &claimed_by("host b", "2")).unwrap().close().unwrap();
    std::fs::write(&record, "host a\n1\n7\n").unwrap();
    let mut own = claimed_by("host a", "1");
    own.claimant.lease = Duration::from_hours(1);
    SlateStore::open(&place(dir.path()), &own).unwrap().close().unwrap();
}

#[test]
fn dead_holder_is_taken_over_however_much_longer_its_lease_is_than_the_timeout() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    std::fs::write(dir.path().join("kvfs-holder"), "host a\n1\n7\n13000\n").unwrap();
    let options = SlateOptions { timeout: Some(Duration::from_millis(1500)), ..claimed_by("host b", "2") };
    SlateStore::open(&place(dir.path()), &options).unwrap().close().unwrap();
}
