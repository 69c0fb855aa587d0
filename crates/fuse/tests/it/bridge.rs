//! The bridge to the file system, over a store that waits when the test wants it to.

use std::collections::{BTreeMap, HashMap};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{
    Attr, BeginOptions, Caller, DetachedTrees, Durability, FileSystem, FsError, Limits, MkfsOptions,
    MountOptions, NodeId, QuotaKind, SetAttr, TreeRights, WriteFlags, remove_tree,
};
use kvfs_fuse::abi::flags::READ_LOCKOWNER;
use kvfs_fuse::abi::notify::{INVAL_ENTRY, INVAL_INODE, InvalInodeOut};
use kvfs_fuse::abi::{self, Opcode, UNIQUE_INTERRUPT_BIT};
use kvfs_fuse::bridge::{Bridge, BridgeConfig, init_config};
use kvfs_fuse::session::SessionConfig;
use kvfs_fuse::transport::{Delivery, Received, Transport};
use kvfs_fuse::{Errno, Session};
use kvfs_store::Store;
use kvfs_store::clock::{ManualClock, SystemClock};
use kvfs_store::model::ModelStore;
use zerocopy::{FromBytes, IntoBytes};

use crate::held::{Holding, O_DIRECT};
use crate::kernel::Kernel;
use crate::mounted::mount_or_skip;
use crate::slow::{Barrier, SlowStore};

struct Rig {
    kernel: Kernel,
    session: Session,
    syncs: Arc<Barrier>,
    batches: Arc<Barrier>,
    fs: Arc<FileSystem>,
}

/// A file system in the model, and a bridge to it.
pub(crate) fn over_the_model(options: MountOptions) -> (Arc<FileSystem>, Arc<Bridge>) {
    over_the_model_with(options, BridgeConfig::default())
}

pub(crate) fn over_the_model_with(
    options: MountOptions,
    config: BridgeConfig,
) -> (Arc<FileSystem>, Arc<Bridge>) {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = Arc::new(FileSystem::open(store, clock, options).unwrap());
    let bridge = Bridge::new(Arc::clone(&fs), config).unwrap();
    (fs, Arc::new(bridge))
}

#[test]
fn the_node_table_stays_bounded_while_the_kernel_looks_at_many_files() {
    const FILES: u32 = 6000;
    const NODES_MAX: u64 = 2500;
    let test = "the_node_table_stays_bounded_while_the_kernel_looks_at_many_files";
    let (fs, bridge) = over_the_model(MountOptions { node_bytes_max: 200 << 10, ..MountOptions::default() });
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let Some(mounted) = mount_or_skip(test, bridge.clone(), &config) else { return };
    bridge.attach(mounted.session().notifier());
    for number in 0..FILES {
        std::fs::write(mounted.path(&format!("file{number}")), number.to_string()).unwrap();
    }
    // The kernel forgets in its own time: every look at a file gives it some.
    let mut looks = 0;
    while fs.nodes().stats().nodes > NODES_MAX {
        looks += 1;
        assert!(looks < 100 * FILES, "{:?}", fs.nodes().stats());
        let number = looks % FILES;
        assert!(mounted.path(&format!("file{number}")).exists());
    }
    for number in 0..FILES {
        let text = std::fs::read_to_string(mounted.path(&format!("file{number}"))).unwrap();
        assert_eq!(text, number.to_string());
    }
    mounted.unmount();
}

#[test]
fn unmounting_makes_everything_durable() {
    let rig = rig(1);
    rig.mkdir(4, b"dir");
    assert_eq!(rig.kernel.answer().error, 0);
    let syncs = Arc::clone(&rig.syncs);
    let before = syncs.arrived_total();
    rig.end();
    assert!(syncs.arrived_total() > before);
}

fn rig(workers: usize) -> Rig {
    rig_with(workers, BridgeConfig::default())
}

fn rig_with(workers: usize, config: BridgeConfig) -> Rig {
    let slow = SlowStore::default();
    let (syncs, batches) = (Arc::clone(&slow.syncs), Arc::clone(&slow.batches));
    let store: Arc<dyn Store> = Arc::new(slow);
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = FileSystem::open(store, clock, MountOptions::default()).unwrap();
    // No background work in between: the tests count batches and syncs.
    let config = BridgeConfig { housekeep_period: Duration::from_hours(1), ..config };
    let fs = Arc::new(fs);
    let bridge = Arc::new(Bridge::new(Arc::clone(&fs), config).unwrap());
    let config = SessionConfig { init: init_config(), workers, ..SessionConfig::default() };
    let (kernel, session) = Kernel::start(bridge.clone(), &config);
    bridge.attach(session.notifier());
    Rig { kernel, session, syncs, batches, fs }
}

impl Rig {
    fn mkdir(&self, unique: u64, name: &[u8]) {
        let head = abi::MkdirIn { mode: 0o755, umask: 0 };
        self.kernel.send(Opcode::Mkdir, unique, 1, &[head.as_bytes(), name, &[0]]);
    }

    fn fsync(&self, unique: u64) {
        self.kernel.send(Opcode::Fsync, unique, 1, &[abi::FsyncIn::default().as_bytes()]);
    }

    fn getattr(&self, unique: u64) {
        self.kernel.send(Opcode::Getattr, unique, 1, &[abi::GetattrIn::default().as_bytes()]);
    }

    /// Errors by request number, of the next `count` answers.
    fn answers(&self, count: usize) -> HashMap<u64, i32> {
        (0..count).map(|_| self.kernel.answer()).map(|answer| (answer.unique, answer.error)).collect()
    }

    fn end(self) {
        self.kernel.unmount();
        self.session.wait().unwrap();
    }
}

#[test]
fn an_fsync_that_waits_for_the_disk_leaves_the_only_worker_free() {
    let rig = rig(1);
    rig.syncs.close();
    rig.mkdir(4, b"dir");
    assert_eq!(rig.kernel.answer().error, 0);
    rig.fsync(6);
    rig.syncs.wait_for_waiter();
    rig.getattr(8);
    let answer = rig.kernel.answer();
    assert_eq!((answer.unique, answer.error), (8, 0));
    rig.syncs.open();
    let answer = rig.kernel.answer();
    assert_eq!((answer.unique, answer.error), (6, 0));
    rig.end();
}

#[test]
fn space_that_is_made_for_a_request_leaves_the_only_worker_free() {
    let rig = rig(1);
    let quotas = rig.fs.quotas();
    quotas.turn_on(&|_| {}).unwrap();
    quotas.change(QuotaKind::User, 1000, |limits| Limits { inodes_hard: 1, ..limits }).unwrap();
    let make = |unique, name: &[u8]| {
        let head = abi::MknodIn { mode: 0o100_666, ..abi::MknodIn::default() };
        rig.kernel.send_as(1000, Opcode::Mknod as u32, unique, 1, &[head.as_bytes(), name]);
    };
    make(4, b"first\0");
    let node = abi::EntryOut::read_from_bytes(&rig.kernel.answer().body[..]).unwrap().nodeid;
    rig.kernel.send(Opcode::Unlink, 6, 1, &[b"first\0"]);
    assert_eq!(rig.kernel.answer().error, 0);
    // It counts until it is removed, which nothing has begun yet.
    rig.kernel.send(Opcode::Forget, 8, node, &[abi::ForgetIn { nlookup: 1 }.as_bytes()]);
    rig.batches.close();
    make(10, b"second\0");
    rig.batches.wait_for_waiter();
    rig.getattr(12);
    assert_eq!(rig.kernel.answer().unique, 12);
    rig.batches.open();
    assert_eq!(rig.answers(1), HashMap::from([(10, 0)]));
    rig.end();
}

#[test]
fn fsyncs_that_wait_share_one_sync() {
    let rig = rig(1);
    rig.syncs.close();
    let before = rig.syncs.arrived_total();
    rig.fsync(4);
    rig.syncs.wait_for_waiter();
    for unique in 3..13 {
        rig.fsync(unique * 2);
    }
    // The only worker answers in order, so all ten wait by now.
    rig.getattr(100);
    assert_eq!(rig.kernel.answer().unique, 100);
    rig.syncs.open();
    assert!(rig.answers(11).values().all(|&error| error == 0));
    assert_eq!(rig.syncs.arrived_total() - before, 2);
    rig.end();
}

#[test]
fn an_operation_on_a_taken_name_parks_and_goes_on() {
    let rig = rig(2);
    rig.batches.close();
    rig.mkdir(4, b"dir");
    rig.batches.wait_for_waiter();
    // The second worker meets the name that the first holds, and is free again.
    rig.mkdir(6, b"dir");
    rig.getattr(8);
    assert_eq!(rig.kernel.answer().unique, 8);
    assert_eq!(rig.session.parked_count(), 1);
    rig.batches.open();
    assert_eq!(rig.answers(2), HashMap::from([(4, 0), (6, -Errno::EXIST.raw_os_error())]));
    assert_eq!(rig.session.parked_count(), 0);
    rig.end();
}

#[test]
fn what_waits_to_be_written_is_bounded_for_each_user() {
    let rig = rig_with(2, BridgeConfig { waiting_bytes_max: 8192, ..BridgeConfig::default() });
    let head = abi::MknodIn { mode: 0o100_666, ..abi::MknodIn::default() };
    rig.kernel.send(Opcode::Mknod, 4, 1, &[head.as_bytes(), b"file\0"]);
    let node = abi::EntryOut::read_from_bytes(&rig.kernel.answer().body[..]).unwrap().nodeid;
    let write = |uid, unique, bytes: usize, write_flags| {
        let head = abi::WriteIn { size: bytes as u32, write_flags, ..abi::WriteIn::default() };
        rig.kernel.send_as(uid, Opcode::Write as u32, unique, node, &[head.as_bytes(), &vec![1; bytes]]);
    };
    rig.batches.close();
    write(1000, 6, 1, 0);
    rig.batches.wait_for_waiter();
    write(1000, 8, 4096, 0);
    write(1000, 10, 1, 0);
    let answer = rig.kernel.answer();
    assert_eq!((answer.unique, answer.error), (10, -Errno::NOLCK.raw_os_error()));
    // Another user has a half, too; root what is left, which is nothing.
    write(1001, 12, 4096, 0);
    write(0, 14, 1, 0);
    let answer = rig.kernel.answer();
    assert_eq!((answer.unique, answer.error), (14, -Errno::NOLCK.raw_os_error()));
    // A dirty page is never refused.
    write(1000, 16, 4096, abi::flags::WRITE_CACHE);
    rig.getattr(18);
    assert_eq!(rig.kernel.answer().unique, 18);
    assert_eq!(rig.session.parked_count(), 3);
    rig.batches.open();
    assert_eq!(rig.answers(4), HashMap::from([(6, 0), (8, 0), (12, 0), (16, 0)]));
    rig.batches.close();
    write(1000, 20, 1, 0);
    rig.batches.wait_for_waiter();
    write(1000, 22, 4096, 0);
    rig.getattr(24);
    assert_eq!(rig.kernel.answer().unique, 24, "the share has come back");
    rig.batches.open();
    assert_eq!(rig.answers(2), HashMap::from([(20, 0), (22, 0)]));
    rig.end();
}

#[test]
fn an_interrupt_gives_the_place_in_the_queue_up() {
    let rig = rig(2);
    rig.batches.close();
    rig.mkdir(4, b"dir");
    rig.batches.wait_for_waiter();
    rig.mkdir(6, b"dir");
    let body = abi::InterruptIn { unique: 6 };
    rig.kernel.send(Opcode::Interrupt, 6 | UNIQUE_INTERRUPT_BIT, 0, &[body.as_bytes()]);
    let answer = rig.kernel.answer();
    assert_eq!((answer.unique, answer.error), (6, -Errno::INTR.raw_os_error()));
    assert_eq!(rig.session.parked_count(), 0);
    rig.mkdir(8, b"dir");
    rig.getattr(10);
    assert_eq!(rig.kernel.answer().unique, 10);
    rig.batches.open();
    assert_eq!(rig.answers(2), HashMap::from([(4, 0), (8, -Errno::EXIST.raw_os_error())]));
    rig.end();
}

#[test]
fn a_read_larger_than_the_recycled_buffers_is_not_cut_short() {
    let rig = rig(1);
    let head = abi::MknodIn { mode: 0o100_644, ..abi::MknodIn::default() };
    rig.kernel.send(Opcode::Mknod, 4, 1, &[head.as_bytes(), b"file\0"]);
    let node = abi::EntryOut::read_from_bytes(&rig.kernel.answer().body[..]).unwrap().nodeid;
    let data: Vec<u8> = (0..1_000_000_u32).map(|index| (index / 7) as u8).collect();
    for part in 0..3 {
        let offset = part * data.len() as u64;
        let head = abi::WriteIn { offset, size: data.len() as u32, ..abi::WriteIn::default() };
        rig.kernel.send(Opcode::Write, 6 + part * 2, node, &[head.as_bytes(), &data]);
        assert_eq!(rig.kernel.answer().error, 0);
    }
    let head = abi::ReadIn { size: 4 << 20, ..abi::ReadIn::default() };
    rig.kernel.send(Opcode::Read, 100, node, &[head.as_bytes()]);
    let answer = rig.kernel.answer();
    assert_eq!(answer.body.len(), 3 * data.len());
    assert!(answer.body.chunks(data.len()).all(|part| part == data));
    rig.end();
}

#[test]
fn a_missing_name_is_answered_so_that_the_kernel_remembers_it() {
    let rig = rig(1);
    rig.kernel.send(Opcode::Lookup, 4, 1, &[b"missing\0"]);
    let answer = rig.kernel.answer();
    assert_eq!(answer.error, 0);
    let entry = abi::EntryOut::read_from_bytes(&answer.body[..]).unwrap();
    assert_eq!(entry.nodeid, 0);
    assert!(entry.entry_valid > 0);
    rig.end();
}

#[test]
fn direct_write_of_a_file_in_the_page_cache_drops_its_range_before_it_is_answered() {
    let rig = rig(1);
    let mut unique = 2;
    let mut send = |opcode, node, parts: &[&[u8]]| {
        unique += 2;
        rig.kernel.send(opcode, unique, node, parts);
        rig.kernel.answer()
    };
    let page = [7; 4096];
    for (number, is_cached) in [(0_u8, false), (1, true)] {
        let head = abi::MknodIn { mode: 0o100_644, ..abi::MknodIn::default() };
        let answer = send(Opcode::Mknod, 1, &[head.as_bytes(), &[b'a' + number, 0]]);
        let node = abi::EntryOut::read_from_bytes(&answer.body[..]).unwrap().nodeid;
        let head = abi::WriteIn { size: 4096, flags: O_DIRECT, ..abi::WriteIn::default() };
        assert_ne!(send(Opcode::Write, node, &[head.as_bytes(), &page]).unique, 0, "nothing is in the cache");
        // Through a mapping of the file that is open for direct I/O, or past the cache.
        let read_flags = if is_cached { 0 } else { READ_LOCKOWNER };
        let read = abi::ReadIn { size: 4096, flags: O_DIRECT, read_flags, ..abi::ReadIn::default() };
        assert_eq!(send(Opcode::Read, node, &[read.as_bytes()]).body, page);
        let answer = send(Opcode::Write, node, &[head.as_bytes(), &page]);
        assert_eq!(answer.unique == 0, is_cached, "a notification comes first");
        if is_cached {
            assert_eq!(answer.error, INVAL_INODE);
            assert_ne!(rig.kernel.answer().unique, 0);
        }
    }
    rig.end();
}

/// A kernel that has no node when it is told to drop pages: it has not come to the answer that tells of the
/// node.
struct Forgetful(Box<dyn Transport>);

impl Transport for Forgetful {
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        self.0.receive(buffer)
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> Result<Delivery, Errno> {
        let (head, _) = abi::OutHeader::read_from_prefix(&parts[0]).unwrap();
        if head.unique == 0 && head.error == INVAL_INODE {
            let told = InvalInodeOut::read_from_bytes(&parts[1]).unwrap();
            if told.off >= 0 {
                return Ok(Delivery::Gone);
            }
        }
        self.0.send(parts)
    }

    fn interrupt(&self) -> bool {
        self.0.interrupt()
    }

    fn another(&self) -> Result<Box<dyn Transport>, Errno> {
        Ok(Box::new(Self(self.0.another()?)))
    }
}

/// A transaction that makes a file longer.
fn commit_change_of(name: &[u8], fs: &Arc<FileSystem>, bridge: &Bridge) {
    let view = fs.begin(&BeginOptions::default()).unwrap();
    let node = view.lookup(&Caller::default(), NodeId::ROOT, name).unwrap().node;
    let data = bytes::Bytes::from_static(b"longer than before");
    view.write(&Caller::default(), node, 0, data, WriteFlags::default()).unwrap();
    bridge.commit(&view, None, Durability::Buffered, None).unwrap();
}

#[test]
fn direct_write_beside_held_pages_keeps_no_commit_of_other_files_waiting() {
    let (fs, bridge) = over_the_model(MountOptions::default());
    let create =
        |name: &[u8]| fs.create(&Caller::default(), NodeId::ROOT, name, 0o644, true).unwrap().0.node.0;
    let (node, _) = (create(b"held"), create(b"other"));
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let barrier = Arc::new(Barrier::default());
    let (kernel, session) = Kernel::start_with(bridge.clone(), &config, |transport| {
        Holding::wrap(transport, (INVAL_INODE, node), &barrier)
    });
    bridge.attach(session.notifier());
    for (unique, name) in [(4, &b"held\0"[..]), (6, b"other\0")] {
        kernel.send(Opcode::Lookup, unique, 1, &[name]);
        assert_eq!(kernel.answer().unique, unique);
    }
    let read = abi::ReadIn { size: 4096, ..abi::ReadIn::default() };
    kernel.send(Opcode::Read, 8, node, &[read.as_bytes()]);
    assert_eq!(kernel.answer().unique, 8);

    barrier.close();
    let write = abi::WriteIn { size: 4096, flags: O_DIRECT, ..abi::WriteIn::default() };
    kernel.send(Opcode::Write, 10, node, &[write.as_bytes(), &[7; 4096]]);
    barrier.wait_for_waiter();
    commit_change_of(b"other", &fs, &bridge);
    barrier.open();
    while kernel.answer().unique != 10 {}
    kernel.unmount();
    session.wait().unwrap();
}

#[test]
fn change_of_a_project_drops_the_attributes_that_the_kernel_keeps() {
    const SET_EXTENDED: u32 = 0x401c_5820;
    let (fs, bridge) = over_the_model(MountOptions::default());
    let node = fs.create(&Caller::default(), NodeId::ROOT, b"file", 0o644, true).unwrap().0.node.0;
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let (kernel, session) = Kernel::start(bridge.clone(), &config);
    bridge.attach(session.notifier());
    let mut project = [0; 28];
    project[12] = 42;
    let head = abi::IoctlIn { cmd: SET_EXTENDED, in_size: 28, ..abi::IoctlIn::default() };
    kernel.send_as(0, Opcode::Ioctl as u32, 4, node, &[head.as_bytes(), &project]);
    let told = kernel.answer();
    assert_eq!((told.unique, told.error), (0, INVAL_INODE));
    let told = InvalInodeOut::read_from_bytes(&told.body[..]).unwrap();
    assert_eq!((told.ino, told.off), (node, -1));
    let answer = kernel.answer();
    assert_eq!((answer.unique, answer.error), (4, 0));
    kernel.unmount();
    session.wait().unwrap();
}

#[test]
fn attributes_that_the_kernel_learns_during_a_commit_are_forgotten_soon_after() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default()).unwrap());
    // The answer to the lookup counts as on its way for two periods: on a busy machine, too, until the
    // commit.
    let bridge = Arc::new(Bridge::new(Arc::clone(&fs), BridgeConfig::default()).unwrap());
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let (kernel, session) =
        Kernel::start_with(bridge.clone(), &config, |transport| Box::new(Forgetful(Box::new(transport))));
    bridge.attach(session.notifier());
    let (entry, _) = fs.create(&Caller::default(), NodeId::ROOT, b"file", 0o644, true).unwrap();

    kernel.send(Opcode::Lookup, 4, 1, &[b"file\0"]);
    assert_eq!(kernel.answer().unique, 4);
    commit_change_of(b"file", &fs, &bridge);

    let told = loop {
        let answer = kernel.answer();
        if answer.unique == 0 && answer.error == INVAL_INODE {
            break InvalInodeOut::read_from_bytes(&answer.body[..]).unwrap();
        }
    };
    assert_eq!((told.ino, told.off), (entry.node.0, -1));
    kernel.unmount();
    session.wait().unwrap();
}

/// Else others come to new names by permissions that the directory had before.
#[test]
fn the_kernel_hears_of_changed_permissions_before_new_names() {
    let (fs, bridge) = over_the_model(MountOptions::default());
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let (kernel, session) = Kernel::start(bridge.clone(), &config);
    bridge.attach(session.notifier());
    let caller = Caller::default();
    let private = fs.mkdir(&caller, NodeId::ROOT, b"private", 0o755).unwrap().node;
    for (unique, directory, name) in [(4, 1, &b"private\0"[..]), (6, private.0, b"secret\0")] {
        kernel.send(Opcode::Lookup, unique, directory, &[name]);
        assert_eq!(kernel.answer().unique, unique);
    }

    let view = fs.begin(&BeginOptions::default()).unwrap();
    let closed = SetAttr { mode: Some(0o700), ..SetAttr::default() };
    assert_eq!(view.lookup(&caller, NodeId::ROOT, b"private").unwrap().node, private);
    view.setattr(&caller, private, &closed).unwrap();
    view.create(&caller, private, b"secret", 0o644, true).unwrap();
    bridge.commit(&view, None, Durability::Buffered, None).unwrap();

    let mut nodes = Vec::new();
    loop {
        let told = kernel.answer();
        match told.error {
            INVAL_INODE => nodes.push(InvalInodeOut::read_from_bytes(&told.body[..]).unwrap().ino),
            INVAL_ENTRY => break,
            _ => {}
        }
    }
    assert!(nodes.contains(&private.0), "{nodes:?}");
    kernel.unmount();
    session.wait().unwrap();
}

/// Root's.
struct All;

impl TreeRights for All {
    fn is_everything(&self) -> bool {
        true
    }

    fn check_directory(&self, _: NodeId, _: &Attr) -> Result<(), FsError> {
        Ok(())
    }

    fn depends_on_entries(&self, _: &Attr) -> bool {
        false
    }

    fn check_entry(&self, _: &Attr, _: &Attr) -> Result<(), FsError> {
        Ok(())
    }
}

#[test]
fn what_a_removed_tree_had_is_forgotten_with_its_attributes_and_listings() {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default()).unwrap());
    let housekeep_period = Duration::from_millis(10);
    let config = BridgeConfig { housekeep_period, ..BridgeConfig::default() };
    let bridge = Arc::new(Bridge::new(Arc::clone(&fs), config).unwrap());
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let (kernel, session) = Kernel::start(bridge.clone(), &config);
    bridge.attach(session.notifier());
    let caller = Caller::default();
    let tree = fs.mkdir(&caller, NodeId::ROOT, b"tree", 0o755).unwrap().node;
    let linked = fs.create(&caller, tree, b"linked", 0o644, true).unwrap().0.node;
    fs.link(&caller, linked, NodeId::ROOT, b"keep").unwrap();
    let open = fs.create(&caller, tree, b"open", 0o644, true).unwrap().0.node;

    DetachedTrees::of(&fs).prepare().unwrap();
    let view = fs.begin(&BeginOptions::default()).unwrap();
    remove_tree(&view, &caller, (NodeId::ROOT, b"tree"), &All).unwrap();
    bridge.commit(&view, None, Durability::Buffered, None).unwrap();

    let mut missing = BTreeMap::from([(tree.0, 0), (linked.0, -1), (open.0, -1)]);
    while !missing.is_empty() {
        let answer = kernel.answer();
        if answer.unique == 0 && answer.error == INVAL_INODE {
            let told = InvalInodeOut::read_from_bytes(&answer.body[..]).unwrap();
            if missing.get(&told.ino) == Some(&told.off) {
                missing.remove(&told.ino);
            }
        }
    }
    kernel.unmount();
    session.wait().unwrap();
}

/// A kernel in which a program has written into all holes of a file by memory that it shares with it: pages
/// that are to be dropped are written first.
struct Mapped {
    inner: Box<dyn Transport>,
    fs: Arc<FileSystem>,
    node: NodeId,
}

impl Transport for Mapped {
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        self.inner.receive(buffer)
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> Result<Delivery, Errno> {
        let (head, _) = abi::OutHeader::read_from_prefix(&parts[0]).unwrap();
        if head.unique == 0 && head.error == INVAL_INODE {
            let told = InvalInodeOut::read_from_bytes(&parts[1]).unwrap();
            assert_eq!(told.ino, self.node.0);
            let pages = bytes::Bytes::from(vec![7; told.len as usize]);
            let (caller, flags) = (Caller::default(), WriteFlags::default());
            self.fs.write(&caller, self.node, told.off as u64, pages, flags).unwrap();
        }
        self.inner.send(parts)
    }

    fn interrupt(&self) -> bool {
        self.inner.interrupt()
    }

    fn another(&self) -> Result<Box<dyn Transport>, Errno> {
        Ok(Box::new(Self { inner: self.inner.another()?, fs: Arc::clone(&self.fs), ..*self }))
    }
}

const SEEK_HOLE: u32 = 4;

#[test]
fn seek_finds_no_hole_of_several_that_a_mapping_has_filled() {
    const DISTANCE: u64 = 1 << 20;
    let (fs, bridge) = over_the_model(MountOptions::default());
    let caller = Caller::default();
    let node = fs.create(&caller, NodeId::ROOT, b"file", 0o644, true).unwrap().0.node;
    for number in 0..4 {
        let page = bytes::Bytes::from_static(&[7; 4096]);
        fs.write(&caller, node, number * DISTANCE, page, WriteFlags::default()).unwrap();
    }
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let (kernel, session) = Kernel::start_with(bridge.clone(), &config, |transport| {
        Box::new(Mapped { inner: Box::new(transport), fs, node })
    });
    bridge.attach(session.notifier());
    let read = abi::ReadIn { size: 4096, ..abi::ReadIn::default() };
    kernel.send(Opcode::Read, 4, node.0, &[read.as_bytes()]);
    assert_eq!(kernel.answer().unique, 4);
    let seek = abi::LseekIn { whence: SEEK_HOLE, ..abi::LseekIn::default() };
    kernel.send(Opcode::Lseek, 6, node.0, &[seek.as_bytes()]);
    let answer = std::iter::repeat_with(|| kernel.answer()).find(|answer| answer.unique != 0).unwrap();
    let found = abi::LseekOut::read_from_bytes(&answer.body[..]).unwrap();
    assert_eq!((answer.unique, found.offset), (6, 3 * DISTANCE + 4096), "the end of the file");
    kernel.unmount();
    session.wait().unwrap();
}
