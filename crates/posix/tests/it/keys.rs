//! Keys of processes beside each other.

use bytes::Bytes;
use kvfs_fs::BeginOptions;
use kvfs_kv::{KeyChange, OPERATIONS_MAX};
use kvfs_posix::{Identity, ProcessKeys};
use rustix::io::Errno;

use crate::world;

fn put(key: &'static str) -> Vec<KeyChange> {
    vec![KeyChange::Put { key: key.into(), value: Bytes::from_static(b"value") }]
}

#[test]
fn write_that_waits_while_its_keyspace_is_dropped_comes_before_or_after_the_drop() {
    let volume = world::volume();
    let process = volume.process(&Identity::root());
    let keys = ProcessKeys::of(&process, 8);
    let is_there = |key: &str| keys.get("tags", key.as_bytes()).expect("reads").is_some();
    let mut after = 0;
    for _ in 0..10 {
        keys.write("tags", put("old")).expect("makes it");
        let transaction = volume.begin(&BeginOptions::default()).expect("begins");
        let inside = transaction.process(&Identity::root());
        ProcessKeys::of(&inside, 8).write("tags", put("held")).expect("writes");
        std::thread::scope(|scope| {
            let dropper = scope.spawn(|| keys.drop_keyspace("tags"));
            let writer = scope.spawn(|| keys.write("tags", put("held")));
            let locks = volume.file_system().admission();
            while !locks.page(None, 8).locks.iter().any(|lock| lock.waiters_count == 2) {
                std::thread::yield_now();
            }
            drop(inside);
            transaction.abort();
            dropper.join().expect("no panic").expect("is dropped");
            writer.join().expect("no panic").expect("is written");
        });
        assert!(!is_there("old"));
        let is_after = is_there("held");
        after += u32::from(is_after);
        assert_eq!(keys.list_keyspaces().expect("lists").len(), usize::from(is_after));
        // What went with the drop is not found when the name is used again.
        keys.write("tags", put("next")).expect("makes it, or finds it");
        assert_eq!(is_there("held"), is_after);
        keys.drop_keyspace("tags").expect("is there");
    }
    println!("{after} writes came after the drop");
}

#[test]
fn write_of_more_keys_than_one_call_takes_is_refused_whole() {
    let volume = world::volume();
    let process = volume.process(&Identity::root());
    let keys = ProcessKeys::of(&process, 8);
    let key = |number: usize| Bytes::copy_from_slice(&number.to_be_bytes());
    let many = |count| (0..count).map(|n| KeyChange::Put { key: key(n), value: Bytes::new() }).collect();
    let refused = keys.write("tags", many(OPERATIONS_MAX + 1)).expect_err("are too many");
    assert_eq!(refused.errno(), Errno::TOOBIG, "{refused}");
    assert_eq!(keys.get("tags", &key(0)).expect("reads"), None);
    keys.write("tags", many(OPERATIONS_MAX)).expect("are not");
    assert!(keys.get("tags", &key(OPERATIONS_MAX - 1)).expect("reads").is_some());
}
