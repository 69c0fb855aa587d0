//! Answers that a change overtakes on their way to the kernel.

use std::sync::Arc;

use kvfs_fs::{
    BeginOptions, Caller, Durability, FileSystem, Invalidations, MkfsOptions, MountOptions, NodeId,
};
use kvfs_fuse::Session;
use kvfs_fuse::abi::{self, Opcode};
use kvfs_fuse::bridge::{Bridge, BridgeConfig, init_config};
use kvfs_fuse::session::SessionConfig;
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use zerocopy::{FromBytes, IntoBytes};

use crate::kernel::{Answer, Kernel};
use crate::slow::{Barrier, SlowStore};

const KEPT_SECS: u64 = 24 * 60 * 60;

struct Rig {
    fs: Arc<FileSystem>,
    bridge: Arc<Bridge>,
    kernel: Kernel,
    session: Session,
    batches: Arc<Barrier>,
    answers: Arc<Barrier>,
}

impl Rig {
    fn new() -> Self {
        let slow = SlowStore::default();
        let (batches, answers) = (Arc::clone(&slow.batches), Arc::clone(&slow.answers));
        let (store, clock) = (Arc::new(slow) as Arc<dyn Store>, Arc::new(SystemClock::new()));
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
        let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default()).unwrap());
        let bridge = Arc::new(Bridge::new(Arc::clone(&fs), BridgeConfig::default()).unwrap());
        let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
        let (kernel, session) = Kernel::start(bridge.clone(), &config);
        bridge.attach(session.notifier());
        Self { fs, bridge, kernel, session, batches, answers }
    }

    /// What the request is answered with, beside what the kernel is told.
    fn answer(&self) -> Answer {
        std::iter::repeat_with(|| self.kernel.answer()).find(|answer| answer.unique != 0).unwrap()
    }

    /// The node that a request is answered with, and for how many seconds the kernel may keep its name and
    /// its attributes.
    fn entry(&self) -> (u64, u64, u64) {
        let answer = self.answer();
        assert_eq!(answer.error, 0);
        let entry = abi::EntryOut::read_from_bytes(&answer.body[..]).unwrap();
        (entry.nodeid, entry.entry_valid, entry.attr_valid)
    }

    fn look(&self) {
        self.kernel.send(Opcode::Lookup, 4, 1, &[b"name\0"]);
    }

    fn end(self) {
        self.kernel.unmount();
        self.session.wait().unwrap();
    }
}

#[test]
fn lookup_that_found_nothing_before_a_commit_lets_the_kernel_keep_nothing() {
    let rig = Rig::new();
    rig.look();
    assert_eq!(rig.entry(), (0, KEPT_SECS, 0), "nothing has changed");
    let view = rig.fs.begin(&BeginOptions::default()).unwrap();
    view.create(&Caller::default(), NodeId::ROOT, b"name", 0o644, true).unwrap();
    rig.answers.close();
    rig.look();
    rig.answers.wait_for_waiter();
    rig.bridge.commit(&view, None, Durability::Buffered, None).unwrap();
    rig.answers.open();
    assert_eq!(rig.entry(), (0, 0, 0));
    rig.look();
    let (node, entry_secs, attr_secs) = rig.entry();
    assert_ne!(node, 0);
    assert_eq!([entry_secs, attr_secs], [KEPT_SECS; 2]);
    rig.end();
}

/// Bits of `valid` in a SETATTR.
const MODE: u32 = 1;

#[test]
fn answers_to_changes_that_another_front_end_overtakes_let_the_kernel_keep_nothing_old() {
    let rig = Rig::new();
    let caller = Caller::default();
    let file = rig.fs.create(&caller, NodeId::ROOT, b"file", 0o644, true).unwrap().0.node;
    let directory = rig.fs.mkdir(&caller, NodeId::ROOT, b"directory", 0o755).unwrap().node;
    let link = |name| {
        let head = abi::LinkIn { oldnodeid: file.0 };
        rig.kernel.send(Opcode::Link, 4, directory.0, &[head.as_bytes(), name]);
    };
    let make = |name| {
        let head = abi::MkdirIn { mode: 0o755, umask: 0 };
        rig.kernel.send(Opcode::Mkdir, 4, directory.0, &[head.as_bytes(), name]);
    };
    let overtake = |changes| {
        rig.batches.wait_for_waiter();
        rig.bridge.forget_beside(changes, None);
        rig.batches.open();
    };
    let change = || Invalidations { nodes: vec![(file, true)], ..Invalidations::default() };
    let entries = || vec![(directory, Box::from(&b"elsewhere"[..]))];
    let rename = || Invalidations { entries: entries(), ..Invalidations::default() };
    let entry_secs = || {
        let (_, entry_secs, attr_secs) = rig.entry();
        [entry_secs, attr_secs]
    };
    link(b"a\0");
    assert_eq!(entry_secs(), [KEPT_SECS; 2], "nothing has changed beside");
    for (is_link, name, changes, expected) in [
        (true, b"b\0", change(), [KEPT_SECS, 0]),
        (true, b"c\0", rename(), [0, KEPT_SECS]),
        (false, b"d\0", change(), [KEPT_SECS; 2]),
        (false, b"e\0", rename(), [0, KEPT_SECS]),
    ] {
        rig.batches.close();
        if is_link {
            link(name);
        } else {
            make(name);
        }
        overtake(changes);
        assert_eq!(entry_secs(), expected, "{}", name.escape_ascii());
    }
    for (mode, changes, expected) in [(0o600, Invalidations::default(), KEPT_SECS), (0o640, change(), 0)] {
        rig.batches.close();
        let head = abi::SetattrIn { valid: MODE, mode, ..abi::SetattrIn::default() };
        rig.kernel.send(Opcode::Setattr, 4, file.0, &[head.as_bytes()]);
        overtake(changes);
        let answer = rig.answer();
        assert_eq!(abi::AttrOut::read_from_bytes(&answer.body[..]).unwrap().attr_valid, expected);
    }
    rig.end();
}
