//! A file system whose store is written to elsewhere: it shows each state as it is, whatever it knew before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvfs_device::Rng;
use kvfs_fs::{
    Attr, Caller, FileSystem, FileType, FsError, MountOptions, NodeId, QuotaKind, RenameMode, hold_state,
    renew_cached, show_newer, take_renewed,
};
use kvfs_kv::{KeyChange, KeyspaceOwner};
use kvfs_store::clock::ManualClock;
use kvfs_store::model::ModelStore;
use kvfs_store::{
    Batch, Cursor, Durability, Follow, KeyRange, Keyspace, NamedSnapshots, Position, Read, Result, Snapshot,
    SnapshotInfo, Store, StoreError,
};

use crate::driver::Driver;
use crate::prefix::Recorder;
use crate::setup::Setup;

/// Shows snapshots of a store that is written to elsewhere, or to which batches are added at each look.
struct Following {
    written: Arc<dyn Store>,
    coming: Mutex<(VecDeque<Batch>, Rng)>,
    shown: Mutex<Arc<dyn Snapshot>>,
    found: Mutex<Option<Arc<dyn Snapshot>>>,
    is_unreadable: AtomicBool,
}

impl Following {
    fn new(written: &Arc<dyn Store>, coming: VecDeque<Batch>, seed: u64) -> Arc<Self> {
        let shown = Mutex::new(written.snapshot().unwrap());
        let (coming, found) = (Mutex::new((coming, Rng::new(seed))), Mutex::default());
        let (written, is_unreadable) = (Arc::clone(written), AtomicBool::new(false));
        Arc::new(Self { written, coming, shown, found, is_unreadable })
    }

    fn shown(&self) -> Arc<dyn Snapshot> {
        Arc::clone(&self.shown.lock().unwrap())
    }
}

impl Read for Following {
    kvfs_store::pass_on!(shown(): get, multi_get, read_blocks, next_extent);

    fn cursor(&self, keyspace: Keyspace, range: KeyRange) -> Result<Box<dyn Cursor>> {
        if self.is_unreadable.load(Ordering::Relaxed) {
            return Err(StoreError::io("reading", io::Error::other("there is no answer")));
        }
        self.shown().cursor(keyspace, range)
    }
}

impl Store for Following {
    kvfs_store::pass_on!(written: open_keyspace, keyspaces, sync, capabilities, space, stats);

    fn apply(&self, _: Batch, _: Durability) -> Result<Position> {
        Err(StoreError::ReadOnly)
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(self.shown())
    }

    fn position(&self) -> Position {
        Position(self.shown().seqno())
    }

    fn follow(&self) -> Option<&dyn Follow> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn NamedSnapshots> {
        Some(self)
    }
}

impl NamedSnapshots for Following {
    fn create_snapshot(&self, _: &str) -> Result<SnapshotInfo> {
        Err(StoreError::ReadOnly)
    }

    fn adopt_snapshot(&self, _: &str, _: Duration) -> Result<SnapshotInfo> {
        Err(StoreError::ReadOnly)
    }

    /// Those of the state that is shown.
    fn named_snapshots(&self) -> Vec<SnapshotInfo> {
        let mut named = self.written.named_snapshots();
        named.retain(|info| info.position.0 <= self.shown().seqno());
        named
    }

    fn open_snapshot(&self, name: &str) -> Result<Arc<dyn Snapshot>> {
        self.written.open_snapshot(name)
    }

    fn delete_snapshot(&self, _: &str) -> Result<()> {
        Err(StoreError::ReadOnly)
    }
}

impl Follow for Following {
    fn find_newer(&self) -> Result<bool> {
        let (coming, rng) = &mut *self.coming.lock().unwrap();
        let count = (1 + rng.below(8) as usize).min(coming.len());
        for batch in coming.drain(..count) {
            self.written.apply(batch, Durability::Buffered)?;
        }
        let newest = self.written.snapshot()?;
        let is_newer = newest.seqno() > self.shown().seqno();
        *self.found.lock().unwrap() = is_newer.then_some(newest);
        Ok(is_newer)
    }

    fn show_newer(&self) {
        if let Some(found) = self.found.lock().unwrap().take() {
            *self.shown.lock().unwrap() = found;
        }
    }

    fn stop_following(&self) {}
}

fn open(store: Arc<dyn Store>) -> Arc<FileSystem> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    Arc::new(FileSystem::open(store, Arc::new(ManualClock::default()), options).unwrap())
}

/// A writer, and a file system that follows it.
fn pair() -> (Setup, Arc<FileSystem>) {
    let writer = Setup::new(100);
    let following = Following::new(&writer.store, VecDeque::new(), 1);
    (writer, open(following))
}

fn root() -> Caller {
    Caller::default()
}

fn content(fs: &FileSystem, node: NodeId, size: u64) -> Vec<u8> {
    let mut buffer = vec![0; size as usize + 1];
    let len = fs.read(&root(), node, 0, &mut buffer).unwrap();
    buffer.truncate(len);
    buffer
}

/// What there is of a tree, by path: looked up, or listed with entries. What was looked up stays known.
fn walk(fs: &FileSystem, lists: bool) -> BTreeMap<Vec<u8>, (Attr, Vec<u8>)> {
    let _held = hold_state(fs);
    let mut found = BTreeMap::new();
    let mut directories = vec![(Vec::new(), fs.nodes().root())];
    while let Some((path, node)) = directories.pop() {
        let mut names = Vec::new();
        let mut sink = |entry: &kvfs_fs::DirEntry<'_>| {
            names.push((entry.name.to_vec(), entry.entry));
            kvfs_fs::Fill::Taken
        };
        if lists {
            fs.readdirplus(&root(), node, 0, &mut sink).unwrap();
        } else {
            fs.readdir(&root(), node, 0, &mut sink).unwrap();
        }
        for (name, entry) in names.into_iter().filter(|(name, _)| name != b"." && name != b"..") {
            let entry = entry.unwrap_or_else(|| fs.lookup(&root(), node, &name).unwrap());
            let path = [&path[..], b"/", &name].concat();
            assert_eq!(entry.attr, fs.getattr(&root(), entry.node).unwrap());
            let content = match entry.attr.kind {
                FileType::Regular => content(fs, entry.node, entry.attr.size),
                FileType::Symlink => fs.readlink(&root(), entry.node).unwrap().to_vec(),
                _ => Vec::new(),
            };
            if entry.attr.kind == FileType::Directory {
                directories.push((path.clone(), entry.node));
            }
            found.insert(path, (entry.attr, content));
        }
    }
    found
}

#[test]
fn follower_shows_keyspaces_and_whose_they_are_as_their_writer_has_them() {
    let (writer, fs) = pair();
    let owned = |uid, mode| KeyspaceOwner { uid, gid: uid, mode };
    let names = |fs: &FileSystem| {
        let all = fs.keys().keyspaces().unwrap();
        all.into_iter().map(|(name, entry)| (name, entry.owner)).collect::<Vec<_>>()
    };
    let keys = writer.fs.keys();
    let set = |name: &str| {
        let keyspace = keys.keyspace(name).unwrap().unwrap().keyspace;
        let change = KeyChange::Put { key: "k".into(), value: "v".into() };
        keys.apply(&root(), vec![(keyspace, change)]).unwrap();
    };
    keys.make_keyspace("tags", owned(1, 0o644)).unwrap();
    assert!(show_newer(&fs).unwrap());
    assert_eq!(names(&fs), [("tags".to_owned(), owned(1, 0o644))]);

    keys.change_keyspace("tags", |owner| Ok(KeyspaceOwner { mode: 0o600, ..owner })).unwrap();
    keys.make_keyspace("users", owned(2, 0o600)).unwrap();
    set("users");
    assert_eq!(names(&fs), [("tags".to_owned(), owned(1, 0o644))]);
    assert!(show_newer(&fs).unwrap());
    assert_eq!(names(&fs), [("tags".to_owned(), owned(1, 0o600)), ("users".to_owned(), owned(2, 0o600))]);

    keys.drop_keyspace(&root(), "users", |_| Ok(())).unwrap();
    keys.make_keyspace("users", owned(3, 0o640)).unwrap();
    assert!(show_newer(&fs).unwrap());
    assert_eq!(names(&fs)[1], ("users".to_owned(), owned(3, 0o640)));
}

#[test]
fn follower_shows_every_state_as_a_mount_of_it_does_whatever_it_knew_before() {
    for seed in 1..=6 {
        let recorder = Arc::new(Recorder { inner: ModelStore::new(), history: Mutex::default() });
        let setup = Setup::with(Arc::clone(&recorder) as Arc<dyn Store>, 100, MountOptions::default());
        Driver::new(setup, seed, 20_000).run(600);
        let mut history: VecDeque<_> = recorder.history.lock().unwrap().clone().into();

        let written: Arc<dyn Store> = Arc::new(ModelStore::new());
        // The same keyspaces in the same order have the same handles.
        kvfs_fs::check::check(&written).unwrap();
        written.apply(history.pop_front().unwrap(), Durability::Buffered).unwrap();
        let fs = open(Following::new(&written, history, seed));
        let mut known: BTreeSet<NodeId> = BTreeSet::new();
        let mut states = 0;
        while show_newer(&fs).unwrap() {
            states += 1;
            let fresh = walk(&open(Arc::clone(&written)), true);
            let by_inode: BTreeMap<_, _> = fresh.values().map(|(attr, _)| (attr.inode, *attr)).collect();
            // By number first, as a kernel asks for what it has open.
            for node in &known {
                match fs.getattr(&root(), *node) {
                    Ok(attr) => {
                        let now = by_inode.get(&node.0);
                        assert!(
                            now.is_none_or(|now| *now == attr),
                            "seed {seed}, state {states}: {attr:?} {now:?}"
                        );
                    }
                    Err(FsError::Stale(_)) => {}
                    Err(error) => panic!("seed {seed}, state {states}: {error}"),
                }
            }
            let shown = walk(&fs, states % 2 == 0);
            assert!(shown == fresh, "seed {seed}, state {states}:\n{shown:?}\n{fresh:?}");
            known.extend(shown.values().map(|(attr, _)| NodeId(attr.inode)));
        }
        assert!(states > 20, "seed {seed}: {states} states");
    }
}

#[test]
fn file_that_is_known_is_found_again_after_a_rename_and_stale_when_it_is_gone() {
    let (writer, fs) = pair();
    let caller = &writer.caller;
    let top = NodeId::ROOT;
    let file = writer.file(top, "log");
    writer.write_at(file, 0, b"one").unwrap();
    let away = writer.dir(top, "away");
    assert!(show_newer(&fs).unwrap());
    let node = fs.lookup(caller, top, b"log").unwrap().node;
    assert_eq!(content(&fs, node, 3), b"one");

    // In its directory it is found by its number.
    writer.rename(caller, top, b"log", top, b"log.1", RenameMode::Replace).unwrap();
    writer.write_at(file, 3, &[7; 5000]).unwrap();
    assert_eq!(content(&fs, node, 3), b"one", "the state stays until a newer one is shown");
    assert!(show_newer(&fs).unwrap());
    assert_eq!(fs.getattr(caller, node).unwrap().size, 5003);
    assert_eq!(content(&fs, node, 5003)[..4], *b"one\x07");
    assert!(matches!(fs.lookup(caller, top, b"log"), Err(FsError::NotFound)));

    // In another one by its new name alone, or by an other one's.
    writer.rename(caller, top, b"log.1", away, b"log", RenameMode::Replace).unwrap();
    assert!(show_newer(&fs).unwrap());
    assert!(matches!(fs.getattr(caller, node), Err(FsError::Stale(_))));
    let moved_to = fs.lookup(caller, top, b"away").unwrap().node;
    assert_eq!(fs.lookup(caller, moved_to, b"log").unwrap().node, node);
    assert_eq!(fs.getattr(caller, node).unwrap().size, 5003);
    writer.link(caller, file, top, b"second").unwrap();
    assert!(show_newer(&fs).unwrap());
    assert_eq!(fs.getattr(caller, node).unwrap().nlink, 2);

    // As long as the writer has it open there is something to be read.
    writer.unlink(caller, top, b"second").unwrap();
    writer.unlink(caller, away, b"log").unwrap();
    assert!(show_newer(&fs).unwrap());
    assert_eq!(fs.getattr(caller, node).unwrap().nlink, 0);
    assert_eq!(content(&fs, node, 5003).len(), 5003);
    writer.forget(file, 2);
    writer.housekeep().unwrap();
    assert!(show_newer(&fs).unwrap());
    assert!(matches!(fs.getattr(caller, node), Err(FsError::Stale(_))));
    let directory = fs.lookup(caller, top, b"away").unwrap().node;
    writer.rename(caller, top, b"away", top, b"here", RenameMode::Replace).unwrap();
    assert!(show_newer(&fs).unwrap());
    assert_eq!(fs.getattr(caller, directory).unwrap().kind, FileType::Directory);
    writer.rmdir(caller, top, b"here").unwrap();
    writer.forget(away, 1);
    writer.housekeep().unwrap();
    assert!(show_newer(&fs).unwrap());
    assert!(matches!(fs.getattr(caller, directory), Err(FsError::Stale(_))));
}

#[test]
fn what_changed_of_cached_files_is_told_once_and_nothing_of_others() {
    let (writer, fs) = pair();
    let caller = &root();
    let files: Vec<_> = ["a", "b", "c"].map(|name| writer.file(NodeId::ROOT, name)).into();
    for file in &files {
        writer.write_at(*file, 0, b"old").unwrap();
    }
    assert!(show_newer(&fs).unwrap());
    let nodes: Vec<_> =
        ["a", "b", "c"].map(|name| fs.lookup(caller, NodeId::ROOT, name.as_bytes()).unwrap().node).into();
    take_renewed(&fs);
    writer.clock.advance(Duration::from_secs(1));
    writer.write_at(files[0], 0, b"new").unwrap();
    writer.write_at(files[2], 0, b"new").unwrap();
    assert!(show_newer(&fs).unwrap());
    renew_cached(&fs, |node| node != nodes[2]);
    assert_eq!(take_renewed(&fs).nodes, [(nodes[0], true)]);
    renew_cached(&fs, |node| node != nodes[2]);
    assert!(take_renewed(&fs).nodes.is_empty());
    assert_eq!(content(&fs, nodes[2], 3), b"new");
    assert_eq!(take_renewed(&fs).nodes, [(nodes[2], true)]);
    assert!(!show_newer(&fs).unwrap(), "nothing is newer");
}

#[test]
fn follower_writes_nothing_and_shows_quotas_that_another_process_keeps() {
    let (writer, fs) = pair();
    let refused = fs.mkdir(&root(), NodeId::ROOT, b"x", 0o755);
    assert!(matches!(refused, Err(FsError::ReadOnly)), "{refused:?}");
    assert!(fs.quotas().get(QuotaKind::User, 1000).is_none());
    writer.quotas().turn_on(&|_| {}).unwrap();
    writer.file(NodeId::ROOT, "a");
    assert!(show_newer(&fs).unwrap());
    let ours = |fs: &FileSystem| fs.quotas().get(QuotaKind::User, 1000).unwrap().usage.inodes;
    assert_eq!(ours(&fs), ours(&writer.fs));
    writer.file(NodeId::ROOT, "b");
    assert!(show_newer(&fs).unwrap());
    assert_eq!(ours(&fs), ours(&writer.fs));
}

#[test]
fn snapshot_that_became_private_elsewhere_is_hidden_by_a_follower_from_its_first_state_on() {
    let (writer, follower) = pair();
    let touch = |name: &[u8]| _ = writer.create(&root(), NodeId::ROOT, name, 0o644, false).unwrap();
    let shown = |uid| {
        assert!(show_newer(&follower).unwrap());
        follower.snapshots().shown_to(uid).into_iter().map(|info| info.name).collect::<Vec<_>>()
    };
    writer.snapshots().create("public", false).unwrap();
    writer.snapshots().create("secret", true).unwrap();
    touch(b"a");
    assert_eq!(shown(1000), ["public"]);
    assert_eq!(follower.snapshots().shown_to(0).len(), 2);
    writer.snapshots().set_private("public", true).unwrap();
    assert_eq!(shown(1000), [""; 0]);
    // The list may be older than the record: it stays hidden for as long as it is listed.
    writer.snapshots().set_private("secret", false).unwrap();
    assert_eq!(shown(1000), [""; 0]);
    writer.snapshots().delete("secret").unwrap();
    touch(b"b");
    assert_eq!(shown(0), ["public"]);
    writer.snapshots().create("secret", false).unwrap();
    touch(b"c");
    assert_eq!(shown(1000), ["secret"]);
}

#[test]
fn what_a_follower_could_not_read_of_a_state_is_read_at_its_next_look() {
    let writer = Setup::new(100);
    let following = Following::new(&writer.store, VecDeque::new(), 1);
    let follower = open(Arc::clone(&following) as Arc<dyn Store>);
    let shown = || follower.snapshots().shown_to(1000).len();
    writer.snapshots().create("public", false).unwrap();
    writer.file(NodeId::ROOT, "a");
    following.is_unreadable.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert!(show_newer(&follower).is_err());
        assert_eq!(shown(), 0, "it is not known whether it is private");
    }
    following.is_unreadable.store(false, Ordering::Relaxed);
    assert!(show_newer(&follower).unwrap(), "its writer has written nothing since");
    assert_eq!(shown(), 1);
    assert!(!show_newer(&follower).unwrap());
}
