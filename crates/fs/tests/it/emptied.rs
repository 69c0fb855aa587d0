//! Large directories that are emptied and removed, on an engine that drops ranges unread.

use kvfs_fs::NodeId;
use kvfs_store::Isolation;

use crate::engine;
use crate::setup::Setup;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;
const FILES: usize = 150;

fn fill(main: &Setup, directory: NodeId, content: &[u8]) {
    for number in 0..FILES {
        let file = main.file(directory, &format!("{number}"));
        main.write_at(file, 0, content).unwrap();
        main.forget(file, 1);
    }
}

fn remove(main: &Setup, name: &str) {
    let directory = main.lookup(&main.caller, ROOT, name.as_bytes()).unwrap().node;
    for number in 0..FILES {
        main.unlink(&main.caller, directory, format!("{number}").as_bytes()).unwrap();
    }
    main.rmdir(&main.caller, ROOT, name.as_bytes()).unwrap();
    main.forget(directory, 1);
}

/// How many files are in it, all of that content.
fn count(view: &Setup, name: &str, content: &[u8]) -> usize {
    let Ok(directory) = view.lookup(&view.caller, ROOT, name.as_bytes()) else { return 0 };
    let listed = view.list(directory.node, 1000, true);
    let names = listed.iter().filter(|entry| !entry.name.starts_with(b"."));
    let mut found = 0;
    for entry in names {
        let file = view.lookup(&view.caller, directory.node, &entry.name).unwrap().node;
        assert_eq!(view.read_all(file), content);
        found += 1;
    }
    found
}

#[test]
fn a_large_directory_that_goes_takes_nothing_from_others_and_its_name_is_free() {
    let mut main = engine::setup([9; 16], 64 << 10, 4096);
    let directory = main.dir(ROOT, "large");
    fill(&main, directory, b"before");
    let beside = main.dir(ROOT, "beside");
    fill(&main, beside, b"beside");
    let snapshot = main.store.snapshot().unwrap();
    let view = begin(&main, Isolation::Snapshot);
    main.forget(directory, 1);
    remove(&main, "large");
    assert_eq!(count(&main, "large", b""), 0);
    // What began before sees all of it, and may change what is beside it.
    assert_eq!(count(&view, "large", b"before"), FILES);
    let beside = view.lookup(&view.caller, ROOT, b"beside").unwrap().node;
    let file = view.file(beside, "new");
    view.write_at(file, 0, b"beside").unwrap();
    commit(&view).unwrap();
    drop(view);
    drop(snapshot);
    assert_eq!(count(&main, "beside", b"beside"), FILES + 1);
    // The name is free, and what comes there stays.
    let directory = main.dir(ROOT, "large");
    fill(&main, directory, b"again");
    main.reopen();
    assert_eq!([count(&main, "large", b"again"), count(&main, "beside", b"beside")], [FILES, FILES + 1]);
    main.assert_sound("at the end");
}

#[test]
fn a_transaction_that_made_something_in_a_large_directory_that_went_is_a_conflict() {
    let main = engine::setup([9; 16], 64 << 10, 4096);
    let directory = main.dir(ROOT, "large");
    fill(&main, directory, b"before");
    let view = begin(&main, Isolation::Snapshot);
    let read = begin(&main, Isolation::Snapshot);
    assert_eq!(count(&read, "large", b"before"), FILES);
    main.forget(directory, 1);
    remove(&main, "large");
    let inside = view.lookup(&view.caller, ROOT, b"large").unwrap().node;
    let made = view.mknod(&view.caller, inside, b"new", 0o100_644, 0).map(drop);
    assert!(made.is_err() || commit(&view).is_err(), "its directory is gone");
    commit(&read).unwrap();
}
