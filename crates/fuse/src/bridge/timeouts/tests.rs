use std::sync::Arc;

use kvfs_fs::{
    BeginOptions, Caller, CommitPlan, Durability, FileSystem, FsError, Invalidations, MkfsOptions,
    MountOptions, SetAttr,
};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;
use zerocopy::FromBytes;

use super::*;
use crate::abi::{Direntplus, Opcode};
use crate::bridge::{Bridge, BridgeConfig};
use crate::dispatch::{Payload, ReaddirArgs};

const KEPT: Duration = Duration::from_hours(24);

/// A bridge, and the nodes of the file `changed` and of `directory`, in its root beside a file `other`.
struct Rig {
    bridge: Bridge,
    fs: Arc<FileSystem>,
    changed: NodeId,
    directory: NodeId,
}

impl Rig {
    fn new() -> Self {
        let store: Arc<dyn Store> = Arc::new(ModelStore::new());
        let clock = Arc::new(SystemClock::new());
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes a file system");
        let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default()).expect("opens it"));
        let bridge = Bridge::new(Arc::clone(&fs), BridgeConfig::default()).expect("starts");
        let caller = Caller::default();
        let file =
            |name: &[u8]| fs.create(&caller, NodeId::ROOT, name, 0o644, true).expect("makes it").0.node;
        let changed = file(b"changed");
        file(b"other");
        let directory = fs.mkdir(&caller, NodeId::ROOT, b"directory", 0o755).expect("makes it").node;
        Self { bridge, fs, changed, directory }
    }

    fn begin(&self) -> Attempt<'_> {
        Attempt::begin(&self.bridge.files.shared)
    }

    /// A transaction that does `change` commits.
    fn commit(&self, change: impl FnOnce(&FileSystem)) {
        let view = self.fs.begin(&BeginOptions::default()).expect("begins");
        change(&view);
        self.bridge.commit(&view, None, Durability::Buffered, None).expect("commits");
    }

    fn commit_mode(&self) {
        self.commit(|view| {
            view.lookup(&Caller::default(), NodeId::ROOT, b"changed").expect("finds it");
            let private = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            view.setattr(&Caller::default(), self.changed, &private).expect("changes it");
        });
    }

    fn look(&self, parent: NodeId, name: &[u8]) -> Result<kvfs_fs::Entry, FsError> {
        self.fs.lookup(&Caller::default(), parent, name)
    }
}

/// For how long the kernel may keep a name, and attributes in all forms, of what `on` answers.
fn timeouts(on: &Attempt<'_>, entry: &kvfs_fs::Entry) -> (Duration, Duration) {
    let (attributes, extended) = (on.attributes(&entry.attr), on.extended(&entry.attr));
    let answer = on.entry(NodeId::ROOT, entry);
    assert_eq!([attributes.timeout, extended.timeout], [answer.attr_timeout; 2]);
    (answer.entry_timeout, answer.attr_timeout)
}

#[test]
fn attributes_read_before_a_commit_and_answered_after_it_are_not_kept() {
    let rig = Rig::new();
    let on = rig.begin();
    let [changed, other] = [&b"changed"[..], b"other"].map(|name| rig.look(NodeId::ROOT, name).unwrap());
    assert_eq!(timeouts(&on, &changed), (KEPT, KEPT), "nothing has changed");
    rig.commit_mode();
    assert_eq!(changed.attr.mode, 0o644, "of before");
    assert_eq!(timeouts(&on, &changed), (KEPT, Duration::ZERO));
    assert_eq!(timeouts(&on, &other), (KEPT, KEPT));
    let later = rig.begin();
    let changed = rig.look(NodeId::ROOT, b"changed").unwrap();
    assert_eq!((changed.attr.mode, timeouts(&later, &changed)), (0o600, (KEPT, KEPT)));
}

#[test]
fn attributes_read_while_a_commit_drops_pages_are_not_kept_after_it() {
    for has_appeared in [true, false] {
        let rig = Rig::new();
        let view = rig.fs.begin(&BeginOptions::default()).unwrap();
        let writers = &rig.bridge.files.shared.writers;
        writers.begin_invalidation(&CommitPlan { contents: vec![rig.changed] }, &view);
        let on = rig.begin();
        let [changed, other] = [&b"changed"[..], b"other"].map(|name| rig.look(NodeId::ROOT, name).unwrap());
        assert_eq!(timeouts(&on, &changed), (KEPT, Duration::ZERO), "it changes just now");
        assert_eq!(timeouts(&on, &other), (KEPT, KEPT));
        writers.next_round();
        // The kernel is not told of it once more.
        assert!(writers.rest(has_appeared).forgotten.contains(&rig.changed.0));
        let expected = if has_appeared { Duration::ZERO } else { KEPT };
        assert_eq!(timeouts(&on, &changed), (KEPT, expected));
        assert_eq!(timeouts(&rig.begin(), &changed), (KEPT, KEPT));
    }
}

#[test]
fn missing_name_read_before_a_commit_makes_it_and_answered_after_it_is_not_kept() {
    let rig = Rig::new();
    let on = rig.begin();
    let missing = |parent| on.missing(parent).entry_timeout;
    assert!(matches!(rig.look(rig.directory, b"new"), Err(FsError::NotFound)));
    assert_eq!(missing(rig.directory), KEPT, "nothing has changed");
    rig.commit(|view| {
        view.lookup(&Caller::default(), NodeId::ROOT, b"directory").unwrap();
        view.create(&Caller::default(), rig.directory, b"new", 0o644, true).unwrap();
    });
    assert_eq!(missing(rig.directory), Duration::ZERO);
    assert_eq!(missing(NodeId::ROOT), KEPT);
    assert_eq!(rig.begin().missing(rig.directory).entry_timeout, KEPT);
}

#[test]
fn answers_that_another_front_end_overtakes_are_not_kept() {
    let rig = Rig::new();
    let on = rig.begin();
    let [changed, other] = [&b"changed"[..], b"other"].map(|name| rig.look(NodeId::ROOT, name).unwrap());
    let beside = |changes| rig.bridge.forget_beside(changes, None);
    beside(Invalidations { nodes: vec![(rig.changed, true)], ..Invalidations::default() });
    assert_eq!([timeouts(&on, &changed), timeouts(&on, &other)], [(KEPT, Duration::ZERO), (KEPT, KEPT)]);
    let moved = vec![(NodeId::ROOT, Box::from(&b"elsewhere"[..]))];
    beside(Invalidations { moved, ..Invalidations::default() });
    assert_eq!(timeouts(&on, &other), (Duration::ZERO, KEPT));
}

/// For how long the kernel may keep names and attributes, by name, of what `on` lists.
fn listed(on: &Attempt<'_>) -> Vec<(String, u64, u64)> {
    let args = ReaddirArgs { fh: 0, offset: 0, size: 4096, plus: true, flags: 0 };
    let listing = on.list(&Caller::default(), NodeId::ROOT, args).unwrap();
    let bytes = listing.with_parts(Opcode::Readdirplus, |parts| parts[0].to_vec());
    let (mut rest, mut lines) = (&bytes[..], Vec::new());
    while let Ok((line, names)) = Direntplus::read_from_prefix(rest) {
        let len = line.dirent.namelen as usize;
        let (name, out) = (String::from_utf8_lossy(&names[..len]).into_owned(), line.entry_out);
        if out.nodeid != 0 {
            lines.push((name, out.entry_valid, out.attr_valid));
        }
        rest = &names[len.next_multiple_of(8)..];
    }
    lines
}

#[test]
fn listing_that_a_commit_overtakes_keeps_nothing_of_what_has_changed() {
    let rig = Rig::new();
    let kept = KEPT.as_secs();
    let line = |name: &str, entry, attr| (name.to_owned(), entry, attr);
    let on = rig.begin();
    let all = [line("changed", kept, kept), line("directory", kept, kept), line("other", kept, kept)];
    assert_eq!(listed(&on), all);
    rig.commit_mode();
    assert_eq!(listed(&on), [line("changed", kept, 0), all[1].clone(), all[2].clone()]);
    assert_eq!(listed(&rig.begin()), all);
    let on = rig.begin();
    rig.commit(|view| {
        view.unlink(&Caller::default(), NodeId::ROOT, b"other").unwrap();
    });
    assert_eq!(listed(&on), [line("changed", 0, kept), line("directory", 0, kept)]);
}

#[test]
fn nodes_are_marked_from_the_first_change_on() {
    let clock = InvalidationClock::default();
    let then = clock.now();
    assert!(!clock.has_moved_since(then) && !clock.is_marked_since(7, then));
    clock.mark([7]);
    assert!(clock.has_moved_since(then) && clock.is_marked_since(7, then));
    let marked = (0..1000).filter(|node| clock.is_marked_since(*node, then)).count();
    assert!(marked < 10, "{marked}");
    let later = clock.now();
    clock.mark([8]);
    assert!(!clock.is_marked_since(7, later) && clock.is_marked_since(8, later));
}
