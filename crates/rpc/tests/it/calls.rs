//! What the calls do.

use std::io;
use std::time::Duration;

use kvfs_rpc::ENDED_TRAILER;
use kvfs_rpc::client::blocking::{Store, Transaction};
use kvfs_rpc::client::{BeginOptions, ClientError, Code, ImportedPart, LockOn, Range};
use kvfs_rpc::proto::operation::Change;
use kvfs_rpc::proto::{KeyRange, KeyValue, Operation};

use kvfs_store::KEY_LEN_MAX;

use crate::world::World;

fn code(error: &ClientError) -> Code {
    error.code().unwrap()
}

/// Whether it says that the transaction is not open.
fn is_of_ended(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(status) if status.metadata().contains_key(ENDED_TRAILER))
}

fn keys(entries: impl IntoIterator<Item = Result<KeyValue, ClientError>>) -> Vec<String> {
    entries.into_iter().map(|entry| String::from_utf8(entry.unwrap().key.to_vec()).unwrap()).collect()
}

fn operation(keyspace: &str, change: Change) -> Operation {
    Operation { keyspace: keyspace.to_owned(), change: Some(change) }
}

fn put(keyspace: &str, key: &'static str, value: &'static str) -> Operation {
    let (key, value) = (key.as_bytes().into(), value.as_bytes().into());
    operation(keyspace, Change::Put(KeyValue { key, value }))
}

#[test]
fn keys_are_put_got_and_deleted() {
    let world = World::new();
    let mut store = world.connect();
    assert_eq!(store.get("tags", b"a").unwrap(), None, "there is no such keyspace");
    store.put("tags", b"a", b"1").unwrap();
    store.put("tags", b"a", b"one").unwrap();
    store.put("tags", b"empty", b"").unwrap();
    assert_eq!(store.get("tags", b"a").unwrap().unwrap(), "one");
    assert_eq!(store.get("tags", b"empty").unwrap().unwrap(), "", "an empty value is a value");
    let wanted = vec!["b".into(), "a".into(), "empty".into()];
    let got = store.call(async |client| client.multi_get("tags", wanted).await).unwrap();
    assert_eq!(got, [None, Some("one".into()), Some("".into())]);
    assert!(store.delete("tags", b"a").unwrap() && !store.delete("tags", b"a").unwrap());
    assert!(!store.delete("nothing", b"a").unwrap());
    let info = store.call(async |client| client.info().await).unwrap();
    assert_eq!(info, (env!("CARGO_PKG_VERSION").to_owned(), "/mnt".into()));
}

#[test]
fn a_batch_is_all_or_nothing_and_its_order_counts() {
    let world = World::new();
    let mut store = world.connect();
    store
        .apply(vec![put("a", "k", "1"), put("b", "k", "2"), put("a", "k", "3"), put("a", "l", "4")])
        .unwrap();
    assert_eq!(store.get("a", b"k").unwrap().unwrap(), "3");
    let all = KeyRange { start: "".into(), end: None };
    store
        .apply(vec![
            put("a", "m", "5"),
            operation("a", Change::DeleteRange(all)),
            put("a", "n", "6"),
            operation("b", Change::Delete("k".into())),
            operation("none", Change::Delete("k".into())),
        ])
        .unwrap();
    assert_eq!(keys(store.scan("a", Range::default()).unwrap()), ["n"]);
    assert_eq!(store.get("b", b"k").unwrap(), None);
    let refused = store.apply(vec![put("a", "o", "7"), put("a", "", "8")]).unwrap_err();
    assert_eq!(code(&refused), Code::InvalidArgument);
    assert_eq!(store.get("a", b"o").unwrap(), None);
    store.call(async |client| client.delete_range("a", b"m", Some(b"z")).await).unwrap();
    assert_eq!(keys(store.scan("a", Range::default()).unwrap()), [""; 0]);
}

#[test]
fn scans_go_both_ways_over_many_pages() {
    let world = World::new();
    let mut store = world.connect();
    let count = 2500;
    let name = |number: usize| format!("{number:05}");
    for chunk in (0..count).collect::<Vec<_>>().chunks(500) {
        let entry = |number: &usize| {
            let value = "v".repeat(number % 300).into();
            operation("big", Change::Put(KeyValue { key: name(*number).into(), value }))
        };
        store.apply(chunk.iter().map(entry).collect()).unwrap();
    }
    let all: Vec<String> = (0..count).map(name).collect();
    assert_eq!(keys(store.scan("big", Range::default()).unwrap()), all);
    let mut back = keys(store.scan("big", Range { reverse: true, ..Range::default() }).unwrap());
    back.reverse();
    assert_eq!(back, all);
    let some = Range { prefix: "001".into(), start: "00150".into(), limit: 3, ..Range::default() };
    assert_eq!(keys(store.scan("big", some).unwrap()), ["00150", "00151", "00152"]);
    let some = Range { end: Some("00002".into()), reverse: true, limit: 1, ..Range::default() };
    assert_eq!(keys(store.scan("big", some).unwrap()), ["00001"]);
    let none = Range { prefix: "x".into(), ..Range::default() };
    assert_eq!(keys(store.scan("big", none).unwrap()), [""; 0]);
    let none = Range { start: "5".into(), end: Some("4".into()), ..Range::default() };
    assert_eq!(keys(store.scan("big", none).unwrap()), [""; 0]);
    assert_eq!(keys(store.scan("nothing", Range::default()).unwrap()), [""; 0]);
}

#[test]
fn a_scan_shows_one_moment() {
    let world = World::new();
    let (mut store, mut other) = (world.connect(), world.connect());
    for number in 0..3000 {
        store.put("k", format!("{number:05}").as_bytes(), b"old").unwrap();
    }
    let mut scan = store.scan("k", Range::default()).unwrap();
    assert_eq!(scan.next().unwrap().unwrap().key, "00000");
    other.put("k", b"02999", b"new").unwrap();
    other.put("k", b"03000", b"new").unwrap();
    let rest: Vec<KeyValue> = scan.map(|entry| entry.unwrap()).collect();
    assert_eq!(rest.len(), 2999);
    assert!(rest.iter().all(|entry| entry.value == "old"));
}

#[test]
fn limits_have_clear_errors() {
    let world = World::new();
    let mut store = world.connect();
    for (keyspace, key, value) in [
        ("k", &b""[..], vec![]),
        ("k", &[b'k'; 4097][..], vec![]),
        ("k", b"k", vec![0; (1 << 20) + 1]),
        ("", b"k", vec![]),
        ("a\nb", b"k", vec![]),
        ("meta", b"k", vec![]),
        (&"n".repeat(256), b"k", vec![]),
    ] {
        let refused = store.put(keyspace, key, &value).unwrap_err();
        assert_eq!(code(&refused), Code::InvalidArgument, "{keyspace} {} {refused}", key.len());
    }
    store.put("k", &[b'k'; 4096], &vec![7; 1 << 20]).unwrap();
    assert_eq!(store.get("k", &[b'k'; 4096]).unwrap().unwrap().len(), 1 << 20);
    let many = vec!["k".into(); 10_001];
    let refused = store.call(async |client| client.multi_get("k", many).await).unwrap_err();
    assert_eq!(code(&refused), Code::InvalidArgument);
    let large = vec![vec![b'k'; 4096].into(); 9];
    let refused = store.call(async |client| client.multi_get("k", large).await).unwrap_err();
    assert!(
        code(&refused) == Code::InvalidArgument && refused.to_string().contains("fewer keys"),
        "{refused}"
    );
}

#[test]
fn a_transaction_is_private_until_its_commit() {
    let world = World::new();
    let (mut store, mut other) = (world.connect(), world.connect());
    store.put("k", b"a", b"0").unwrap();
    let mut txn = store.begin(BeginOptions::default()).unwrap();
    txn.put("k", b"a", b"1").unwrap();
    txn.put("k", b"b", b"1").unwrap();
    assert_eq!(txn.get("k", b"a").unwrap().unwrap(), "1");
    assert_eq!(keys(txn.scan("k", Range::default()).unwrap()), ["a", "b"]);
    assert_eq!(other.get("k", b"a").unwrap().unwrap(), "0");
    let id = txn.id();
    let mut joined = other.map(|client| client.in_txn(id));
    assert_eq!(joined.get("k", b"b").unwrap().unwrap(), "1", "joined by its number");
    let open = other.call(async |client| client.transactions().await).unwrap();
    assert!(open.len() == 1 && open[0].txn == id && open[0].state == "open");
    assert!(txn.path("/music/song").unwrap().ends_with(format!("{id}/music/song")));
    txn.commit().unwrap();
    drop(txn);
    assert_eq!(keys(other.scan("k", Range::default()).unwrap()), ["a", "b"]);
    let refused = joined.get("k", b"b").unwrap_err();
    assert_eq!((code(&refused), is_of_ended(&refused)), (Code::NotFound, true), "it has ended");
    let mut dropped = store.begin(BeginOptions::default()).unwrap();
    dropped.delete("k", b"a").unwrap();
    drop(dropped);
    assert_eq!(other.get("k", b"a").unwrap().unwrap(), "1");
    assert_eq!(world.open_transactions(), 0);
}

#[test]
fn import_that_fails_half_way_leaves_nothing_in_a_joined_transaction() {
    let world = World::new();
    let (mut store, mut other) = (world.connect(), world.connect());
    let entries = |count: u64| {
        let good =
            (0..count).map(|n| Ok(KeyValue { key: n.to_be_bytes().to_vec().into(), value: "v".into() }));
        good.chain([Err(ClientError::Io(io::ErrorKind::InvalidInput.into()))])
    };
    let mut txn = store.begin(BeginOptions::default()).unwrap();
    let small = txn.import("k", entries(10)).unwrap_err();
    assert!(matches!(small, ClientError::Io(_)), "{small}");
    txn.put("k", b"after", b"1").unwrap();
    txn.commit().unwrap();
    assert_eq!(other.scan("k", Range::default()).unwrap().count(), 1, "none of ten");

    let mut txn = store.begin(BeginOptions::default()).unwrap();
    let large = txn.import("k", entries(2500)).unwrap_err();
    assert!(
        matches!(
            large,
            ClientError::ImportedPart { part: ImportedPart { keys: 2000, is_aborted: true }, .. }
        ),
        "{large}"
    );
    assert_eq!(code(&txn.put("k", b"later", b"1").unwrap_err()), Code::NotFound, "it has ended");
    assert_eq!(other.scan("k", Range::default()).unwrap().count(), 1, "none of 2,500");
}

#[test]
fn conflict_over_the_longest_key_reaches_the_client() {
    let world = World::new();
    let (mut store, mut other) = (world.connect(), world.connect());
    for byte in [b'k', 0xff] {
        let key = vec![byte; KEY_LEN_MAX];
        let mut txn = store.begin(BeginOptions::default()).unwrap();
        other.put("k", &key, b"theirs").unwrap();
        let lost = txn.put("k", &key, b"mine").unwrap_err();
        let ClientError::Conflict(conflict) = &lost else { panic!("{lost}") };
        assert!(conflict.key[..] == key && conflict.message.len() < 500, "{conflict:?}");
    }
}

#[test]
fn a_conflict_names_the_other_party_and_the_key() {
    let world = World::new();
    let (mut store, mut other) = (world.connect(), world.connect());
    store.put("k", b"fought", b"0").unwrap();
    let mut txn = store.begin(BeginOptions::default()).unwrap();
    other.put("k", b"fought", b"theirs").unwrap();
    let lost = txn.put("k", b"fought", b"mine").unwrap_err();
    let ClientError::Conflict(conflict) = &lost else { panic!("{lost}") };
    assert_eq!((conflict.keyspace.as_str(), &conflict.key[..]), ("k", &b"fought"[..]));
    assert!(
        conflict.txn == txn.id()
            && conflict.place.contains("fought")
            && lost.to_string().contains("conflict")
    );
    let lost = txn.commit().unwrap_err();
    assert!(matches!(lost, ClientError::Conflict(_)), "{lost}");

    // Two transactions: the one that comes second waits, and the other is named when it is doomed.
    let mut first = store.begin(BeginOptions { label: "first".into(), ..BeginOptions::default() }).unwrap();
    let mut second = other.begin(BeginOptions { nice: 5, ..BeginOptions::default() }).unwrap();
    first.put("k", b"one", b"1").unwrap();
    second.put("k", b"two", b"2").unwrap();
    let (id, socket) = (second.id(), world.socket());
    let waiter = std::thread::spawn(move || {
        let mut store = Store::connect_to(&socket).unwrap();
        store = store.map(|client| client.in_txn(id));
        store.put("k", b"one", b"2")
    });
    // Either order makes a circle, and the second one, being nicer, gives way.
    first.put("k", b"two", b"1").unwrap();
    let lost = waiter.join().unwrap().unwrap_err();
    let ClientError::Conflict(conflict) = &lost else { panic!("{lost}") };
    assert!(conflict.other.contains("first") && !conflict.place.is_empty(), "{conflict:?}");
    first.commit().unwrap();
}

#[test]
fn failure_in_a_transaction_that_met_another_one_is_a_conflict_and_tried_again() {
    let world = World::new();
    let (mut store, mut other) = (world.connect(), world.connect());
    store.put("k", b"fought", b"0").unwrap();
    let mut tries = 0;
    let mut fails = |txn: &mut Transaction, tries: u32| {
        if tries == 1 {
            other.put("k", b"fought", b"theirs").unwrap();
            txn.put("k", b"fought", b"mine").unwrap_err();
            // As an operation on a file of it fails.
            return Err(ClientError::Io(io::ErrorKind::Other.into()));
        }
        Ok(())
    };
    store
        .run(1, |txn| {
            tries += 1;
            fails(txn, tries)
        })
        .unwrap();
    assert_eq!(tries, 2);
    let failed = store.run(3, |_| Err::<(), _>(ClientError::Io(io::ErrorKind::Other.into()))).unwrap_err();
    assert!(matches!(failed, ClientError::Io(_)), "{failed}");
}

#[test]
fn retries_lose_no_update() {
    let world = World::new();
    let socket = world.socket();
    world.connect().put("k", b"count", b"0").unwrap();
    let count = |socket: std::path::PathBuf| {
        move || {
            let mut store = Store::connect_to(&socket).unwrap();
            for _ in 0..10 {
                store
                    .run(1000, |txn| {
                        let now = txn.get("k", b"count")?.unwrap();
                        let now: u32 = std::str::from_utf8(&now).unwrap().parse().unwrap();
                        txn.put("k", b"count", (now + 1).to_string().as_bytes())
                    })
                    .unwrap();
            }
        }
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(count(socket.clone()))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(world.connect().get("k", b"count").unwrap().unwrap(), "40");
}

#[test]
fn serializable_transactions_lock_what_they_read() {
    let world = World::new();
    let (mut store, mut other) = (world.connect(), world.connect());
    store.put("k", b"a", b"0").unwrap();
    let options = || BeginOptions { serializable: true, ..BeginOptions::default() };
    let mut one = store.begin(options()).unwrap();
    let mut two = other.begin(options()).unwrap();
    assert_eq!(keys(one.scan("k", Range::default()).unwrap()), ["a"]);
    let mut late = two.map(|client| client.within(Duration::from_millis(50)));
    let refused = late.put("k", b"phantom", b"1").unwrap_err();
    assert_eq!(code(&refused), Code::DeadlineExceeded, "the range is locked");
    one.commit().unwrap();
    two.put("k", b"phantom", b"1").unwrap();
    two.commit().unwrap();
}

#[test]
fn client_locks_keys_and_files_and_waiting_blocks_no_thread() {
    let world = World::new();
    let mut store = world.connect();
    store.put("tags", b"song/a", b"1").unwrap();
    let songs = LockOn::Prefix { keyspace: "tags", prefix: b"song/" };
    let mut holder = store.begin(BeginOptions::default()).unwrap();
    holder.lock(songs, true).unwrap();
    let root = LockOn::File { path: "/".as_ref(), offset: 0, length: 0 };
    holder.lock(root, false).unwrap();
    let mut other = world.connect();
    let mut txn = other.begin(BeginOptions::default()).unwrap();
    let id = txn.id();
    let mut impatient = txn.map(|client| client.within(Duration::from_millis(20)));
    // More than there are threads: a waiting call takes none, and a deadline gives the place back.
    for _ in 0..20 {
        let waited = impatient.call(async |client| client.lock(songs, false).await);
        assert_eq!(code(&waited.unwrap_err()), Code::DeadlineExceeded);
    }
    let beside = LockOn::Range { keyspace: "tags", start: b"talk", end: Some(b"talk~") };
    txn.lock(beside, true).unwrap();
    holder.put("tags", b"song/b", b"2").unwrap();
    holder.commit().unwrap();
    let Err(ClientError::Conflict(conflict)) = txn.lock(songs, false) else { panic!("locked too late") };
    assert_eq!((conflict.txn, &conflict.keyspace[..], &conflict.key[..]), (id, "tags", &b"song/b"[..]));

    let mut txn = store.begin(BeginOptions { serializable: true, ..BeginOptions::default() }).unwrap();
    for (wrong, why) in [
        (LockOn::Prefix { keyspace: "nothing", prefix: b"" }, Code::NotFound),
        (LockOn::File { path: "no/such".as_ref(), offset: 0, length: 0 }, Code::NotFound),
        (LockOn::File { path: "../etc".as_ref(), offset: 0, length: 0 }, Code::InvalidArgument),
    ] {
        let refused = txn.lock(wrong, false).unwrap_err();
        assert_eq!((code(&refused), is_of_ended(&refused)), (why, false), "{wrong:?}");
    }
    let outside = store.call(async |client| client.lock(songs, false).await);
    assert_eq!(code(&outside.unwrap_err()), Code::InvalidArgument);
    txn.abort().unwrap();
}

#[test]
fn commits_whose_pages_wait_keep_no_thread_of_other_requests() {
    let world = World::new();
    let begin = || world.connect().begin(BeginOptions::default()).unwrap();
    let mut holder = begin();
    // More than there are threads.
    let waiting: Vec<_> = (0..12).map(|_| begin()).collect();
    world.let_wait(waiting.iter().map(Transaction::id));
    let commit = |txn: u64| {
        let socket = world.socket();
        std::thread::spawn(move || {
            let mut inside = Store::connect_to(&socket)?.map(|client| client.in_txn(txn));
            inside.call(async |client| client.commit().await)
        })
    };
    let commits: Vec<_> = waiting.iter().map(|txn| commit(txn.id())).collect();
    while world.begun_count() < commits.len() {
        std::thread::yield_now();
    }
    holder.put("k", b"a", b"1").unwrap();
    holder.commit().unwrap();
    world.let_wait([]);
    for commit in commits {
        commit.join().unwrap().unwrap();
    }
}

#[test]
fn a_transaction_tied_to_a_connection_ends_with_it() {
    let world = World::new();
    let (mut store, mut other) = (world.connect(), world.connect());
    let begin = |store: &mut Store, tied: bool| {
        let options = BeginOptions { tied, ..BeginOptions::default() };
        store.call(async |client| client.begin(options).await).unwrap()
    };
    let (tied, free) = (begin(&mut store, true), begin(&mut store, false));
    store.map(|client| client.in_txn(tied)).put("k", b"a", b"1").unwrap();
    assert_eq!(world.open_transactions(), 2);
    // As if the program were killed: nothing is said any more.
    drop(store);
    while world.open_transactions() > 1 {
        std::thread::yield_now();
    }
    other.put("k", b"a", b"2").unwrap();
    let refused = other.map(|client| client.in_txn(tied)).get("k", b"a").unwrap_err();
    assert_eq!(code(&refused), Code::NotFound);
    // This one is for others to join.
    other.map(|client| client.in_txn(free)).put("k", b"b", b"3").unwrap();
}

#[test]
fn a_server_that_stops_leaves_no_socket() {
    let mut world = World::new();
    let mut store = world.connect();
    store.put("k", b"a", b"1").unwrap();
    world.stop();
    assert!(!world.socket().exists());
    assert!(store.get("k", b"a").is_err());
}
