//! Locks that a user takes himself: what they keep away, what they notice, and that they are locks like all
//! others.

use bytes::Bytes;
use kvfs_fs::{FsError, LockNameBuf, NodeId, Result};
use kvfs_kv::KeyspaceOwner;
use kvfs_store::{Isolation, KeyRange, Keyspace};

use crate::setup::Setup;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

fn keyspace(main: &Setup) -> Keyspace {
    let owner = KeyspaceOwner { uid: 1000, gid: 100, mode: 0o600 };
    main.keys().make_keyspace("tags", owner).unwrap().0.keyspace
}

fn put(view: &Setup, keyspace: Keyspace, key: &'static str) -> Result<()> {
    view.keys().set(&view.caller, keyspace, key.as_bytes(), Some(Bytes::from_static(b"1"))).map(drop)
}

fn count(view: &Setup, keyspace: Keyspace) -> usize {
    let keys = ["song/a", "song/b", "song/z"].map(|key| Bytes::from_static(key.as_bytes()));
    let values = view.keys().multi_get(&view.caller, keyspace, &keys, 1000).unwrap();
    values.iter().flatten().count()
}

fn is_parked<T>(result: &Result<T>) -> bool {
    matches!(result, Err(FsError::Parked(_)))
}

#[test]
fn a_users_range_lock_prevents_a_phantom_at_snapshot_level() {
    let main = Setup::new(100);
    let tags = keyspace(&main);
    put(&main, tags, "song/a").unwrap();
    let songs = KeyRange::prefix(b"song/");
    // Without the lock both count one, both add one for it: the phantom.
    let (first, second) = (begin(&main, Isolation::Snapshot), begin(&main, Isolation::Snapshot));
    assert_eq!((count(&first, tags), count(&second, tags)), (1, 1));
    put(&first, tags, "song/b").unwrap();
    put(&second, tags, "song/z").unwrap();
    commit(&first).unwrap();
    commit(&second).unwrap();
    assert_eq!(count(&main, tags), 3, "allowed, and it happens");

    let (first, second) = (begin(&main, Isolation::Snapshot), begin(&main, Isolation::Snapshot));
    first.user_locks().keys(&first.caller, tags, &songs, true).unwrap();
    assert!(is_parked(&second.user_locks().keys(&second.caller, tags, &songs, true)), "it waits");
    assert!(is_parked(&put(&second, tags, "song/new")));
    assert!(is_parked(&put(&main, tags, "song/newer")), "the main line, too");
    put(&main, tags, "talk/a").unwrap();
    put(&first, tags, "song/c").unwrap();
    commit(&first).unwrap();
    // What it has waited for was changed after its snapshot.
    let late = second.user_locks().keys(&second.caller, tags, &songs, true);
    let Err(FsError::Canceled(doom)) = late else { panic!("{late:?}") };
    assert!(second.lock_words().explain(&doom).contains("song/c"), "{}", second.lock_words().explain(&doom));
    put(&main, tags, "song/newer").unwrap();
}

#[test]
fn shared_locks_of_users_go_together_and_keep_writers_away() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let main = Setup::new(100);
        let tags = keyspace(&main);
        let all = KeyRange::all();
        let (first, second) = (begin(&main, isolation), begin(&main, isolation));
        first.user_locks().keys(&first.caller, tags, &all, false).unwrap();
        second.user_locks().keys(&second.caller, tags, &all, false).unwrap();
        assert!(is_parked(&put(&main, tags, "song/a")));
        let page = main.admission().page(None, 100);
        let is_ours =
            |name: &LockNameBuf| matches!(name, LockNameBuf::Keys { keyspace, .. } if *keyspace == tags);
        assert_eq!(page.locks.iter().filter(|lock| is_ours(&lock.name)).count(), 2, "they are listed");
        // Both want more: a circle, which one of them does not survive.
        let waits = put(&first, tags, "song/b");
        assert!(is_parked(&waits));
        let circle = put(&second, tags, "song/z");
        let is_doomed = |view: &Setup| view.txn().unwrap().doom().is_some();
        assert!(is_doomed(&first) != is_doomed(&second), "{circle:?}");
        drop((waits, circle));
        let survivor = if is_doomed(&first) { &second } else { &first };
        put(survivor, tags, "song/b").unwrap();
        commit(survivor).unwrap();
        put(&main, tags, "song/a").unwrap();
    }
}

#[test]
fn a_users_lock_on_a_file_covers_its_bytes_and_what_was_changed_there() {
    for inline_len_max in [0, 4096] {
        let main = Setup::new(inline_len_max);
        let file = main.file(ROOT, "f");
        main.write_at(file, 0, &[1; 5000]).unwrap();
        let view = begin(&main, Isolation::Snapshot);
        let node = view.lookup(&view.caller, ROOT, b"f").unwrap().node;
        view.user_locks().file(&view.caller, node, 0, 4096, true).unwrap();
        assert!(is_parked(&main.write_at(file, 100, b"x")));
        main.write_at(file, 4096, b"behind it").unwrap();
        let late = view.user_locks().file(&view.caller, node, 4096, 0, false);
        assert!(matches!(late, Err(FsError::Canceled(_))), "{late:?}");
        main.write_at(file, 100, b"x").unwrap();

        let small = main.file(ROOT, "small");
        let view = begin(&main, Isolation::Snapshot);
        let node = view.lookup(&view.caller, ROOT, b"small").unwrap().node;
        main.write_at(small, 0, b"later").unwrap();
        let late = view.user_locks().file(&view.caller, node, 0, 0, false);
        assert!(matches!(late, Err(FsError::Canceled(_))), "{late:?}");
    }
}

#[test]
fn a_users_lock_on_a_directory_keeps_names_as_they_are() {
    let main = Setup::new(100);
    let (dir, other) = (main.dir(ROOT, "dir"), main.dir(ROOT, "other"));
    main.file(dir, "a");
    let view = begin(&main, Isolation::Snapshot);
    let node = view.lookup(&view.caller, ROOT, b"dir").unwrap().node;
    view.user_locks().entries(&view.caller, node, false).unwrap();
    assert!(is_parked(&main.create(&main.caller, dir, b"b", 0o644, true)));
    assert!(is_parked(&main.unlink(&main.caller, dir, b"a")));
    main.file(other, "b");
    commit(&view).unwrap();
    main.file(dir, "b");

    let view = begin(&main, Isolation::Snapshot);
    let node = view.lookup(&view.caller, ROOT, b"dir").unwrap().node;
    main.file(dir, "c");
    let late = view.user_locks().entries(&view.caller, node, true);
    assert!(matches!(late, Err(FsError::Canceled(_))), "{late:?}");
    main.assert_sound("after it all");
}

#[test]
fn locks_of_users_are_for_transactions() {
    let main = Setup::new(100);
    let tags = keyspace(&main);
    let outside = main.user_locks().keys(&main.caller, tags, &KeyRange::prefix(b""), false);
    assert!(matches!(outside, Err(FsError::Invalid(_))), "{outside:?}");
    let file = main.file(ROOT, "f");
    assert!(matches!(main.user_locks().file(&main.caller, file, 0, 0, true), Err(FsError::Invalid(_))));
    let view = begin(&main, Isolation::Serializable);
    let node = view.lookup(&view.caller, ROOT, b"f").unwrap().node;
    assert!(matches!(view.user_locks().entries(&view.caller, node, true), Err(FsError::NotDirectory)));
    assert!(matches!(view.user_locks().file(&view.caller, ROOT, 0, 0, true), Err(FsError::Invalid(_))));
    view.txn().unwrap().abort();
}
