//! Processes without a mount: calls over lanes, beside a mount and without one.

use std::fs;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;

use kvfs_lane::{At, Bytes, Call, Connection, Greeting, LaneError, Reply};
use kvfs_rpc::client::{BeginOptions, blocking::Store};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Signal, kill_process};

use crate::crash::mapped::{Mapping, PAGE_BYTES};
use crate::user::{as_nobody, can_be_nobody, give};
use crate::world::{World, can_mount, daemon_of, daemons_of, is_mounted, kvfs, wait_until};

const NOT_MOUNTED: i32 = 9;

/// A process without a mount.
pub(crate) struct Client(Connection);

fn at(path: &str) -> At<'_> {
    At { base: None, path: Some(Bytes(path.as_bytes())), follows: true, is_named: false }
}

impl Client {
    /// Of the store that `path` means, in a transaction (0: in none).
    pub(crate) fn connect(path: &str, txn: u64) -> Self {
        Self::try_connect(path, txn).unwrap()
    }

    pub(crate) fn try_connect(path: &str, txn: u64) -> std::io::Result<Self> {
        let greeting = Greeting { txn, ..Greeting::default() };
        Ok(Self(Connection::greet(kvfs_lane::connect(Path::new(path))?, greeting)?))
    }

    fn call(&self, call: &Call<'_>, payload: &[u8]) -> Result<(Reply, Vec<u8>), Errno> {
        match self.0.call(call, payload, |reply, payload| (reply, payload.to_vec())).unwrap() {
            (Reply::Failed { errno }, _) => Err(Errno::from_raw_os_error(errno)),
            answered => Ok(answered),
        }
    }

    pub(crate) fn open(&self, path: &str, flags: OFlags) -> Result<u64, Errno> {
        let call = Call::Open { at: at(path), flags: flags.bits(), mode: 0o644, umask: 0, handle: None };
        match self.call(&call, &[])? {
            (Reply::Opened { handle }, _) => Ok(handle),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let handle = self.open(path, OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY).unwrap();
        self.call(&Call::Write { handle, offset: None }, text.as_bytes()).unwrap();
        self.call(&Call::Sync { handle }, &[]).unwrap();
        self.call(&Call::Close { handle }, &[]).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> Result<String, Errno> {
        let handle = self.open(path, OFlags::RDONLY)?;
        let (_, bytes) = self.call(&Call::Read { handle, len: 4096, offset: Some(0) }, &[])?;
        self.call(&Call::Close { handle }, &[])?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    pub(crate) fn rename(&self, old: &str, new: &str) -> Result<(), Errno> {
        self.call(&Call::Rename { old: at(old), new: at(new), flags: 0 }, &[]).map(drop)
    }

    fn unlink(&self, path: &str) -> Result<(), Errno> {
        self.call(&Call::Unlink { at: at(path), is_directory: false }, &[]).map(drop)
    }

    /// The number of the transaction of its own; 0: in none of its own.
    pub(crate) fn remove_tree(&self, path: &str) -> Result<u64, Errno> {
        match self.call(&Call::RemoveTree { at: at(path) }, &[])? {
            (Reply::Number(txn), _) => Ok(txn),
            other => panic!("{other:?}"),
        }
    }

    fn stat(&self, path: &str) -> Result<(), Errno> {
        self.call(&Call::Stat { at: at(path) }, &[]).map(drop)
    }

    fn flock(&self, handle: u64, waits: bool) -> Result<(), Errno> {
        self.call(&Call::Flock { handle, is_exclusive: Some(true), waits }, &[]).map(drop)
    }
}

fn names(dir: &str) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn lanes_and_the_mount_show_the_same() {
    if !can_mount("lanes_and_the_mount_show_the_same") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let on = |name: &str| format!("{dir}/{name}");
    let exists = |name: &str| fs::exists(on(name)).unwrap();
    let client = Client::connect(&dir, 0);
    assert_eq!(Client::connect(&store, 0).read("/a"), Err(Errno::NOENT));

    // The kernel keeps content, attributes, names, names that are not there, and listings.
    fs::write(on("a"), "old").unwrap();
    fs::hard_link(on("a"), on("link")).unwrap();
    fs::create_dir(on("d")).unwrap();
    let mut open = fs::File::open(on("a")).unwrap();
    let mut seen = |wanted: &str| {
        let mut text = String::new();
        open.rewind().unwrap();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, wanted);
        assert_eq!(open.metadata().unwrap().len(), wanted.len() as u64);
    };
    seen("old");
    assert!(!exists("new") && !exists("d/new"));
    assert_eq!((names(&dir), names(&on("d"))), (vec!["a".into(), "d".into(), "link".into()], vec![]));

    client.write("/a", "much longer than before");
    seen("much longer than before");
    client.write("/a", "short");
    seen("short");
    client.call(&Call::Truncate { at: at("/a"), size: 2 }, &[]).unwrap();
    seen("sh");
    client.call(&Call::Chmod { at: at("/a"), mode: 0o751 }, &[]).unwrap();
    assert_eq!(fs::metadata(on("a")).unwrap().permissions().mode() & 0o7777, 0o751);
    client.write("/new", "new");
    client.write("/d/new", "deep");
    assert_eq!(fs::read_to_string(on("new")).unwrap(), "new");
    assert_eq!(names(&on("d")), ["new"]);
    client.rename("/d/new", "/new").unwrap();
    assert_eq!((fs::read_to_string(on("new")).unwrap(), names(&on("d")).len()), ("deep".to_owned(), 0));
    client.call(&Call::Unlink { at: at("/d"), is_directory: true }, &[]).unwrap();
    client.call(&Call::Mkdir { at: at("/e"), mode: 0o755, umask: 0 }, &[]).unwrap();
    client.unlink("/link").unwrap();
    assert!(!exists("d") && exists("e") && !exists("link"));
    assert_eq!(
        (names(&dir), fs::metadata(on("a")).unwrap().nlink()),
        (vec!["a".into(), "e".into(), "new".into()], 1)
    );

    // Names that lanes have looked up follow the mount.
    for _ in 0..3 {
        assert_eq!((client.read("/a").unwrap(), client.stat("/b")), ("sh".to_owned(), Err(Errno::NOENT)));
        fs::rename(on("a"), on("b")).unwrap();
        assert_eq!((client.read("/b").unwrap(), client.stat("/a")), ("sh".to_owned(), Err(Errno::NOENT)));
        fs::write(on("a"), "another").unwrap();
        assert_eq!(client.read("/a").unwrap(), "another");
        fs::rename(on("b"), on("a")).unwrap();
    }
    let written = fs::File::options().append(true).open(on("a")).unwrap();
    (&written).write_all(b" and more").unwrap();
    assert_eq!(client.read("/a").unwrap(), "sh and more");
    fs::remove_file(on("a")).unwrap();
    assert_eq!(client.stat("/a"), Err(Errno::NOENT));
}

#[test]
fn what_a_mount_and_lanes_append_is_all_there() {
    if !can_mount("what_a_mount_and_lanes_append_is_all_there") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let path = format!("{dir}/log");
    let mut on_mount = fs::File::options().create(true).append(true).open(&path).unwrap();
    let mut on_mount = |line: &str| on_mount.write_all(line.as_bytes()).unwrap();
    on_mount("mount 1\n");
    let client = Client::connect(&dir, 0);
    let handle = client.open("/log", OFlags::APPEND | OFlags::WRONLY).unwrap();
    let by_lane =
        |line: &str| drop(client.call(&Call::Write { handle, offset: None }, line.as_bytes()).unwrap());
    by_lane("a longer line of a lane\n");
    on_mount("mount 2\n");
    by_lane("lane 2\n");
    on_mount("mount 3\n");
    let expected = "mount 1\na longer line of a lane\nmount 2\nlane 2\nmount 3\n";
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    assert_eq!(client.read("/log").unwrap(), expected);
    // A log is begun anew.
    client.write("/log", "");
    on_mount("mount 4\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), "mount 4\n");
}

/// A file of two pages on a mount, or of so few bytes, in which a mapping has changed the first byte.
fn mapped(dir: &str, name: &str, len: usize) -> Mapping {
    let path = format!("{dir}/{name}");
    fs::write(&path, vec![b'.'; len]).unwrap();
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut mapping = Mapping::new(&file, len.next_multiple_of(PAGE_BYTES)).unwrap();
    mapping.write(0, b"m");
    mapping
}

#[test]
fn bytes_that_a_mapping_and_a_lane_write_in_one_page_are_all_there() {
    if !can_mount("bytes_that_a_mapping_and_a_lane_write_in_one_page_are_all_there") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let client = Client::connect(&dir, 0);
    for (name, len) in [("small", 200), ("large", 2 * PAGE_BYTES)] {
        let mut mapping = mapped(&dir, name, len);
        let handle = client.open(&format!("/{name}"), OFlags::WRONLY).unwrap();
        let by_lane = |text: &str, offset| {
            client.call(&Call::Write { handle, offset: Some(offset) }, text.as_bytes()).unwrap();
        };
        let expect = |expected: &str| {
            assert!(client.read(&format!("/{name}")).unwrap().starts_with(expected), "{name}");
            assert!(fs::read_to_string(format!("{dir}/{name}")).unwrap().starts_with(expected), "{name}");
        };
        by_lane("lane", 4);
        expect("m...lane..");
        mapping.write(0, b"M");
        by_lane("LA", 4);
        by_lane("!", 9);
        expect("M...LAne.!.");
        drop(mapping);
        expect("M...LAne.!.");
    }
}

#[test]
fn file_that_a_lane_cuts_is_not_made_longer_by_dirty_pages_of_a_mapping() {
    if !can_mount("file_that_a_lane_cuts_is_not_made_longer_by_dirty_pages_of_a_mapping") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let client = Client::connect(&dir, 0);
    let expect = |name: &str, expected: &str| {
        assert_eq!(client.read(&format!("/{name}")).unwrap(), expected);
        assert_eq!(fs::read_to_string(format!("{dir}/{name}")).unwrap(), expected);
    };
    for len in [200, 2 * PAGE_BYTES] {
        let mut cut = mapped(&dir, "cut", len);
        if len > PAGE_BYTES {
            cut.write(1, b"second page");
        }
        client.call(&Call::Truncate { at: at("/cut"), size: 3 }, &[]).unwrap();
        expect("cut", "m..");
        drop(cut);
        expect("cut", "m..");

        let begun_anew = mapped(&dir, "new", len);
        client.write("/new", "new");
        expect("new", "new");
        drop(begun_anew);
        expect("new", "new");
    }
}

#[test]
fn transactions_and_the_end_of_a_mount_reach_processes_without_one() {
    if !can_mount("transactions_and_the_end_of_a_mount_reach_processes_without_one") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let on = |name: &str| fs::read_to_string(format!("{dir}/{name}")).map_err(|error| error.kind());
    fs::write(format!("{dir}/a"), "before").unwrap();
    let main = Client::connect(&dir, 0);
    assert_eq!((main.read("/a").unwrap(), on("made").is_err()), ("before".to_owned(), true));
    let mut keys = Store::connect(Path::new(&dir)).unwrap();
    let mut txn = keys.begin(BeginOptions::default()).unwrap();
    let inside = Client::connect(&dir, txn.id());
    inside.write("/a", "after");
    inside.write("/made", "inside");
    assert_eq!((inside.read("/a").unwrap(), main.read("/a").unwrap()), ("after".into(), "before".into()));
    assert_eq!((main.read("/made"), on("made").is_err()), (Err(Errno::NOENT), true));
    let unknown = Client::try_connect(&dir, txn.id() + 1000).map(drop).unwrap_err();
    assert_eq!(unknown.raw_os_error(), Some(Errno::NOENT.raw_os_error()));
    let seen = txn.path("/made").unwrap();
    assert_eq!(fs::read_to_string(&seen).unwrap(), "inside");
    inside.write("/made", "changed");
    assert_eq!(fs::read_to_string(&seen).unwrap(), "changed");
    fs::write(&seen, "inside").unwrap();
    assert_eq!(inside.read("/made").unwrap(), "inside");
    txn.commit().unwrap();
    // Begun without a mount, too; what is not committed ends with the connection that has begun it.
    let begun = |owner: &Client| match owner.call(&Call::Begin { is_serializable: false, label: "own" }, &[])
    {
        Ok((Reply::Number(txn), _)) => txn,
        other => panic!("{other:?}"),
    };
    let (owner, gone) = (Client::connect(&dir, 0), Client::connect(&dir, 0));
    let (kept, lost) = (begun(&owner), begun(&gone));
    Client::connect(&dir, kept).write("/kept", "kept");
    let losing = Client::connect(&dir, lost);
    losing.write("/lost", "lost");
    assert!(!fs::exists(format!("{dir}/kept")).unwrap());
    assert_eq!(gone.call(&Call::Commit { txn: kept }, &[]), Err(Errno::NOENT));
    owner.call(&Call::Commit { txn: kept }, &[]).unwrap();
    assert_eq!(fs::read_to_string(format!("{dir}/kept")).unwrap(), "kept");
    drop(gone);
    while losing.read("/lost") != Err(Errno::STALE) {
        thread::yield_now();
    }
    drop(losing);
    assert_eq!((main.read("/a").unwrap(), main.read("/made").unwrap()), ("after".into(), "inside".into()));
    assert_eq!((on("a").unwrap(), on("made").unwrap()), ("after".to_owned(), "inside".to_owned()));
    assert_eq!(inside.read("/a"), Err(Errno::STALE));

    // A process that has a file open, and one that waits for its lock, don't keep the daemon.
    let held = main.open("/a", OFlags::RDWR).unwrap();
    main.flock(held, false).unwrap();
    main.unlink("/a").unwrap();
    main.call(&Call::Write { handle: held, offset: None }, b"unlinked").unwrap();
    main.write("/b", "synced");
    let waiting = Client::connect(&store, 0);
    let (free, wanted) = (main.open("/b", OFlags::RDWR).unwrap(), waiting.open("/b", OFlags::RDWR).unwrap());
    main.flock(free, false).unwrap();
    assert_eq!(waiting.flock(wanted, false), Err(Errno::AGAIN));
    let public = fs::read_link(format!("{dir}/.kvfs/kv.sock")).unwrap().with_file_name("files.sock");
    assert_eq!(fs::metadata(&public).unwrap().permissions().mode() & 0o777, 0o666);
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let call = Call::Flock { handle: wanted, is_exclusive: Some(true), waits: true };
            waiting.0.call(&call, &[], |reply, _| reply)
        });
        kvfs(&["umount", &dir]).ok();
        let ended = waits.join().unwrap();
        assert!(matches!(ended, Err(LaneError::Over)), "{ended:?}");
    });
    assert!(!is_mounted(&dir) && daemons_of(Path::new(&store)).is_empty());
    assert!(!public.exists() && !Path::new(&store).join("files.sock").exists());
    assert!(Client::try_connect(&store, 0).is_err());
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn an_ordinary_user_serves_a_store_without_fuse_and_what_was_synced_stays() {
    let test = "an_ordinary_user_serves_a_store_without_fuse_and_what_was_synced_stays";
    if !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let home = world.dir("home");
    give(&home);
    let store = format!("{home}/store");
    let path = Path::new(&store);
    as_nobody(&["serve", "--create", "--size", "256M", &store]).ok();
    as_nobody(&["serve", &store]).fails(3, &["served without a mount", "kvfs umount"]);
    let client = Client::connect(&store, 0);
    client.call(&Call::Mkdir { at: at("/dir"), mode: 0o777, umask: 0 }, &[]).unwrap();
    client.write("/dir/a", "synced");
    client.rename("/dir/a", "/dir/b").unwrap();
    client.write("/c", "after it");
    assert_eq!((client.read("/dir/b").unwrap(), client.stat("/dir/a")), ("synced".into(), Err(Errno::NOENT)));
    kill_process(daemon_of(&store), Signal::KILL).unwrap();
    wait_until("the end of the daemon", || daemons_of(path).is_empty());
    let over = client.0.call(&Call::SyncAll, &[], |reply, _| reply);
    assert!(matches!(over, Err(LaneError::Over)), "{over:?}");

    as_nobody(&["serve", &store]).ok();
    let client = Client::connect(&store, 0);
    assert_eq!(
        (client.read("/dir/b").unwrap(), client.read("/c").unwrap()),
        ("synced".into(), "after it".into())
    );
    let status = String::from_utf8(as_nobody(&["status"]).stdout).unwrap();
    assert!(status.contains(&format!("{store} without a mount")), "{status}");
    // Keys, snapshots and transactions as on a mount; views of transactions are none.
    as_nobody(&["kv", "put", "-s", &store, "tags", "a", "1"]).ok();
    as_nobody(&["snapshot", "create", "-s", &store, "before"]).ok();
    as_nobody(&["txn", "run", "-s", &store, "--", "true"]).fails(NOT_MOUNTED, &["kvfs serve", "kvfs mount"]);
    as_nobody(&["branch", "create", "-s", &store, "side"]).ok();
    as_nobody(&["branch", "mount", "-s", &store, "side", &home])
        .fails(NOT_MOUNTED, &["the store is served without a mount", "kvfs mount"]);
    as_nobody(&["branch", "delete", "-s", &store, "side"]).ok();
    let id: u64 = as_nobody(&["txn", "begin", "-s", &store]).ok().trim().parse().unwrap();
    let inside = Client::connect(&store, id);
    inside.write("/c", "inside");
    assert_eq!(
        (inside.read("/c").unwrap(), client.read("/c").unwrap()),
        ("inside".into(), "after it".into())
    );
    as_nobody(&["umount", &store]).fails(3, &["transaction"]);
    as_nobody(&["txn", "commit", "-s", &store, &id.to_string()]).ok();
    assert_eq!((inside.read("/c"), client.read("/c").unwrap()), (Err(Errno::STALE), "inside".into()));

    let sockets =
        || ["control.sock", "kv.sock", "files.sock"].iter().filter(|name| path.join(name).exists()).count();
    assert_eq!(sockets(), 3);
    kill_process(daemon_of(&store), Signal::TERM).unwrap();
    wait_until("the end of the daemon", || daemons_of(path).is_empty());
    assert_eq!(sockets(), 0);
    as_nobody(&["serve", "-o", "ro", &store]).ok();
    let client = Client::connect(&store, 0);
    assert_eq!(client.read("/c").unwrap(), "inside");
    assert_eq!(client.open("/c", OFlags::WRONLY), Err(Errno::ROFS));
    as_nobody(&["umount", &store]).ok();
    assert_eq!((sockets(), daemons_of(path).len()), (0, 0));
    assert!(as_nobody(&["check", &store]).ok().starts_with("clean"));
    assert_eq!(as_nobody(&["kv", "get", "-s", &store, "tags", "a"]).ok(), "1");
}
