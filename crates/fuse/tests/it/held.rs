//! A process that keeps a lock of the kernel for as long as it likes: that of a directory, which it lists
//! into memory that never comes, or those of a file's pages.

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use kvfs_fs::{
    BeginOptions, Caller, ChangedNames, Durability, FileSystem, FsError, Invalidations, MountOptions, NodeId,
    WriteFlags,
};
use kvfs_fuse::abi::notify::{INC_EPOCH, INVAL_ENTRY, INVAL_INODE, InvalEntryOut, InvalInodeOut};
use kvfs_fuse::abi::{self, Opcode};
use kvfs_fuse::bridge::{Answer, Bridge, BridgeConfig, ControlCaller, ControlHandler, init_config};
use kvfs_fuse::dispatch::Ioctl;
use kvfs_fuse::notify::{Notification, NotifyError};
use kvfs_fuse::session::SessionConfig;
use kvfs_fuse::transport::memory::MemoryTransport;
use kvfs_fuse::transport::{Delivery, Received, Transport};
use kvfs_fuse::{Errno, Session};
use zerocopy::{FromBytes, IntoBytes};

use crate::bridge::{over_the_model, over_the_model_with};
use crate::kernel::Kernel;
use crate::slow::Barrier;

pub(crate) const O_DIRECT: u32 = 0o40000;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
const CALL: &[u8] = b"system.test";

/// A kernel in which notifications of one kind, where they are of one node, wait until the test opens the
/// barrier, or meet with something else.
pub(crate) struct Holding {
    inner: Box<dyn Transport>,
    held: (i32, u64),
    meet: Arc<dyn Fn() + Send + Sync>,
    /// A kind that this kernel does not know, though it says so.
    refused: Option<i32>,
}

impl Holding {
    pub(crate) fn wrap(
        inner: MemoryTransport,
        held: (i32, u64),
        barrier: &Arc<Barrier>,
    ) -> Box<dyn Transport> {
        let barrier = Arc::clone(barrier);
        let meet = Arc::new(move || barrier.pass());
        Box::new(Self { inner: Box::new(inner), held, meet, refused: None })
    }
}

impl Transport for Holding {
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        self.inner.receive(buffer)
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> Result<Delivery, Errno> {
        let (head, _) = abi::OutHeader::read_from_prefix(&parts[0]).unwrap();
        if head.unique == 0 && self.refused == Some(head.error) {
            return Err(Errno::INVAL);
        }
        // All of these kinds begin with the node.
        if head.unique == 0
            && head.error == self.held.0
            && u64::read_from_prefix(&parts[1]).unwrap().0 == self.held.1
        {
            (self.meet)();
        }
        self.inner.send(parts)
    }

    fn interrupt(&self) -> bool {
        self.inner.interrupt()
    }

    fn another(&self) -> Result<Box<dyn Transport>, Errno> {
        let (inner, meet) = (self.inner.another()?, Arc::clone(&self.meet));
        Ok(Box::new(Self { inner, meet, ..*self }))
    }
}

/// A call by a setxattr waits at the barrier.
struct WaitingCall(Arc<Barrier>);

impl ControlHandler for WaitingCall {
    fn is_ours(&self, name: &[u8]) -> bool {
        name == CALL
    }

    fn ioctl(&self, _: ControlCaller, _: u32, _: &[u8]) -> Option<Answer<Ioctl>> {
        None
    }

    fn set(&self, _: ControlCaller, _: &[u8], _: &[u8]) -> Answer<()> {
        let barrier = Arc::clone(&self.0);
        Answer::Later(Box::new(move || {
            barrier.pass();
            Ok(())
        }))
    }

    fn get(&self, _: ControlCaller, _: &[u8]) -> Result<bytes::Bytes, Errno> {
        Err(Errno::NODATA)
    }
}

struct Rig {
    fs: Arc<FileSystem>,
    bridge: Arc<Bridge>,
    kernel: Kernel,
    session: Session,
    barrier: Arc<Barrier>,
    /// The same for the second one. Open, until a test closes it.
    other_barrier: Arc<Barrier>,
    /// Of calls. Open, too.
    call_barrier: Arc<Barrier>,
    /// Runs in each notification that has passed the first one.
    passed: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
    /// `held` and `free`, in the root.
    nodes: [NodeId; 2],
}

/// Whether `held` and `free` are files; notifications of kind `code` wait for the first one.
fn rig(is_file: bool, code: i32) -> Rig {
    rig_of(is_file, code, Duration::from_millis(400), None)
}

/// Callers wait for the kernel for `wait_max`. It does not know messages of kind `refused`.
fn rig_of(is_file: bool, code: i32, wait_max: Duration, refused: Option<i32>) -> Rig {
    let [barrier, other_barrier, call_barrier] = [(); 3].map(|()| Arc::new(Barrier::default()));
    let passed: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>> = Arc::default();
    let control: Option<Arc<dyn ControlHandler>> = Some(Arc::new(WaitingCall(Arc::clone(&call_barrier))));
    let config = BridgeConfig { control, ..BridgeConfig::default() };
    let (fs, bridge) = over_the_model_with(MountOptions::default(), config);
    let caller = Caller::default();
    let nodes = [&b"held"[..], b"free"].map(|name| {
        let made = if is_file {
            fs.create(&caller, NodeId::ROOT, name, 0o644, true).unwrap().0
        } else {
            fs.mkdir(&caller, NodeId::ROOT, name, 0o755).unwrap()
        };
        made.node
    });
    let config = SessionConfig {
        init: init_config(),
        workers: 1,
        notifications_max: 4,
        notification_wait_max: wait_max,
        ..SessionConfig::default()
    };
    let (kernel, session) = Kernel::start_with(bridge.clone(), &config, |transport| {
        let inner = Holding::wrap(transport, (code, nodes[1].0), &other_barrier);
        let (held, barrier, passed) = ((code, nodes[0].0), Arc::clone(&barrier), Arc::clone(&passed));
        let meet = Arc::new(move || {
            barrier.pass();
            passed.get().into_iter().for_each(|passed| passed());
        });
        Box::new(Holding { inner, held, meet, refused })
    });
    bridge.attach(session.notifier());
    let rig = Rig { fs, bridge, kernel, session, barrier, other_barrier, call_barrier, passed, nodes };
    for name in [&b"held\0"[..], b"free\0"] {
        rig.asks(Opcode::Lookup, NodeId::ROOT, &[name]);
    }
    // It is told of names in directories that it has looked into.
    for directory in nodes.into_iter().filter(|_| !is_file) {
        rig.asks(Opcode::Lookup, directory, &[b"absent\0"]);
    }
    rig.barrier.close();
    rig
}

impl Rig {
    fn begin(&self) -> Arc<FileSystem> {
        let view = self.fs.begin(&BeginOptions::default()).unwrap();
        for name in [&b"held"[..], b"free"] {
            view.lookup(&Caller::default(), NodeId::ROOT, name).unwrap();
        }
        view
    }

    /// A transaction that makes `name` in both directories.
    fn commit_names(&self, name: &[u8]) {
        let view = self.begin();
        for node in self.nodes {
            view.create(&Caller::default(), node, name, 0o644, true).unwrap();
        }
        self.bridge.commit(&view, None, Durability::Buffered, None).unwrap();
    }

    /// A request for `node`, and its answer.
    fn asks(&self, opcode: Opcode, node: NodeId, parts: &[&[u8]]) {
        self.kernel.send(opcode, 8, node.0, parts);
        assert_eq!(self.kernel.answer().unique, 8);
    }

    /// The kernel has a page of the file.
    fn reads(&self, file: NodeId) {
        let read = abi::ReadIn { size: 4096, ..abi::ReadIn::default() };
        self.asks(Opcode::Read, file, &[read.as_bytes()]);
    }

    /// Waits until the kernel is told of `name`, and returns the directory.
    fn told_of(&self, name: &[u8]) -> NodeId {
        loop {
            let told = self.kernel.answer();
            if told.error != INVAL_ENTRY {
                continue;
            }
            let (head, told) = InvalEntryOut::read_from_prefix(&told.body).unwrap();
            if told.strip_suffix(b"\0") == Some(name) {
                return NodeId(head.parent);
            }
        }
    }

    fn end(self) {
        self.barrier.open();
        self.other_barrier.open();
        self.call_barrier.open();
        self.kernel.unmount();
        self.session.wait().unwrap();
    }
}

fn name_in(parent: NodeId, name: String) -> Notification {
    Notification::InvalEntry { parent: parent.0, name: name.into(), expire_only: false }
}

#[test]
fn commits_go_on_beside_a_held_directory_and_its_names_are_told_later() {
    let rig = rig(false, INVAL_ENTRY);
    let [held, free] = rig.nodes;
    rig.commit_names(b"first");
    assert_eq!(rig.told_of(b"first"), free);
    rig.commit_names(b"second");
    assert_eq!(rig.told_of(b"second"), free);
    rig.barrier.open();
    assert_eq!(rig.told_of(b"first"), held);
    assert_eq!(rig.told_of(b"second"), held);
    rig.end();
}

#[test]
fn another_front_end_goes_on_beside_a_held_directory_and_its_names_are_told_later() {
    let rig = rig(false, INVAL_ENTRY);
    let [held, free] = rig.nodes;
    let entries = rig.nodes.map(|node| (node, Box::from(&b"new"[..]))).to_vec();
    let changed = Arc::new(ChangedNames::default());
    let beside = Caller { changed_names: Some(Arc::clone(&changed)), ..Caller::default() };
    for node in rig.nodes {
        rig.fs.create(&beside, node, b"new", 0o644, true).unwrap();
    }
    let kernel = Caller { goes_by_names: true, ..Caller::default() };
    let create = || rig.fs.create(&kernel, held, b"new", 0o644, true).map(drop);
    assert!(matches!(create(), Err(FsError::NameChanged)), "the kernel knows it as it was");
    rig.bridge.forget_beside(Invalidations { entries, ..Invalidations::default() }, changed.take());
    assert_eq!(rig.told_of(b"new"), free);
    assert!(matches!(create(), Err(FsError::NameChanged)), "it has not been told");
    rig.barrier.open();
    assert_eq!(rig.told_of(b"new"), held);
    // The sender says so when it is told.
    while matches!(create(), Err(FsError::NameChanged)) {
        thread::yield_now();
    }
    rig.end();
}

#[test]
fn kernel_is_told_of_names_and_listings_only_where_it_has_looked_for_one() {
    let rig = rig_of(false, INVAL_ENTRY, Duration::from_mins(10), None);
    rig.barrier.open();
    let seen = rig.nodes[0];
    let unseen = rig.fs.mkdir(&Caller::default(), seen, b"unseen", 0o755).unwrap().node;
    let told = || {
        let entries = [seen, unseen].map(|directory| (directory, Box::from(&b"new"[..]))).to_vec();
        rig.bridge.forget_beside(Invalidations { entries, ..Invalidations::default() }, None);
        // What was told before has come.
        let last = Notification::InvalInode { node: NodeId::ROOT.0, offset: -1, len: 0 };
        rig.session.notifier().submit(last).unwrap();
        let answers = std::iter::repeat_with(|| rig.kernel.answer());
        let told = answers.map(|told| (told.error, NodeId(u64::read_from_prefix(&told.body).unwrap().0)));
        let mut told: Vec<_> = told.take_while(|(_, node)| *node != NodeId::ROOT).collect();
        told.sort_unstable();
        told
    };
    let attributes = |node| (INVAL_INODE, node);
    // Its listing is content.
    let all = |node| [(INVAL_ENTRY, node), (INVAL_INODE, node), attributes(node)];
    let mut expected = [&all(seen)[..], &[attributes(unseen)]].concat();
    expected.sort_unstable();
    assert_eq!(told(), expected);
    rig.asks(Opcode::Lookup, unseen, &[b"absent\0"]);
    let mut expected = [all(seen), all(unseen)].concat();
    expected.sort_unstable();
    assert_eq!(told(), expected);
    rig.end();
}

#[test]
fn kernel_is_told_of_content_only_where_it_may_have_pages_and_late_of_what_is_held() {
    let rig = rig(true, INVAL_INODE);
    let [held, free] = rig.nodes;
    let told_offset = || {
        let told = rig.kernel.answer();
        assert_eq!(told.error, INVAL_INODE);
        InvalInodeOut::read_from_bytes(&told.body[..]).unwrap().off
    };
    let change = |node| {
        let nodes = vec![(node, true)];
        rig.bridge.forget_beside(Invalidations { nodes, ..Invalidations::default() }, None);
    };
    change(free);
    assert_eq!(told_offset(), -1, "attributes alone");
    rig.reads(free);
    change(free);
    assert_eq!(told_offset(), 0);
    let pages = |node: NodeId| Notification::InvalInode { node: node.0, offset: 0, len: 0 };
    let told = rig.session.notifier().carry_out_soon([pages(held), pages(free)]).unwrap();
    assert_eq!(told.late, [held.0]);
    let told = rig.session.notifier().carry_out_soon([pages(held), pages(free)]).unwrap();
    assert_eq!(told.late, [held.0], "behind the one that is held");
    rig.barrier.open();
    rig.end();
}

#[test]
fn session_ends_beside_a_held_directory_that_another_front_end_has_changed() {
    let Rig { bridge, kernel, session, barrier, nodes, .. } = rig(false, INVAL_ENTRY);
    thread::scope(|scope| {
        let entries = vec![(nodes[0], Box::from(&b"new"[..]))];
        let changes = Invalidations { entries, ..Invalidations::default() };
        let changed = scope.spawn(|| bridge.forget_beside(changes, None));
        barrier.wait_for_waiter();
        kernel.unmount();
        session.wait().unwrap();
        bridge.end();
        // Its caller, too, is waited for by what ends a daemon.
        changed.join().unwrap();
    });
    barrier.open();
}

fn everything_of(file: NodeId) -> Notification {
    Notification::InvalInode { node: file.0, offset: 0, len: 0 }
}

/// A rig in which the kernel has old pages of the first file, which a commit has changed, and the messages
/// that say so are held.
fn rig_with_old_pages() -> Rig {
    let rig = rig(true, INVAL_INODE);
    let [held, _] = rig.nodes;
    rig.reads(held);
    let view = rig.begin();
    let data = bytes::Bytes::from_static(b"new");
    view.write(&Caller::default(), held, 0, data, WriteFlags::default()).unwrap();
    rig.bridge.commit(&view, None, Durability::Buffered, None).unwrap();
    rig.barrier.wait_for_waiter();
    assert_eq!(rig.writes_back(held), -Errno::IO.raw_os_error());
    rig
}

impl Rig {
    /// The kernel writes a page of a mapping.
    fn writes_back(&self, file: NodeId) -> i32 {
        let head = abi::WriteIn { size: 3, write_flags: abi::flags::WRITE_CACHE, ..abi::WriteIn::default() };
        self.kernel.send(Opcode::Write, 10, file.0, &[head.as_bytes(), b"old"]);
        std::iter::repeat_with(|| self.kernel.answer()).find(|answer| answer.unique == 10).unwrap().error
    }
}

#[test]
fn commit_of_held_pages_goes_on_and_a_mapping_of_old_pages_is_refused_until_they_are_dropped() {
    let rig = rig_with_old_pages();
    rig.barrier.open();
    while rig.writes_back(rig.nodes[0]) != 0 {
        thread::yield_now();
    }
    rig.end();
}

#[test]
fn mapping_is_refused_no_longer_than_for_its_commit_while_a_process_without_a_mount_writes_on() {
    let rig = rig_with_old_pages();
    let [held, _] = rig.nodes;
    // It has always written once more before the kernel has been told of the last time.
    let notifier = rig.session.notifier();
    let writes_on = move || notifier.carry_out_then(everything_of(held), |_| {});
    assert!(rig.passed.set(Box::new(writes_on)).is_ok());
    rig.barrier.open();
    // The message that was held, the commit's, and the next one, which begins when that is over.
    for _ in 0..3 {
        while rig.kernel.answer().error != INVAL_INODE {}
    }
    assert_eq!(rig.writes_back(held), 0);
    rig.end();
}

#[test]
fn mapping_over_what_a_process_without_a_mount_has_changed_leaves_that_until_old_pages_are_dropped() {
    let rig = rig(true, INVAL_INODE);
    let [held, _] = rig.nodes;
    let caller = Caller { content_observer: Some(rig.bridge.content_observer()), ..Caller::default() };
    let changes = |offset, data: &'static [u8]| {
        let data = bytes::Bytes::from_static(data);
        rig.fs.write(&caller, held, offset, data, WriteFlags::default()).unwrap();
    };
    let tell = || {
        rig.bridge
            .forget_beside(Invalidations { nodes: vec![(held, true)], ..Invalidations::default() }, None);
    };
    let expect = |expected: &[u8]| {
        let mut found = [0; 8];
        let len = rig.fs.read(&caller, held, 0, &mut found).unwrap();
        assert_eq!(found[..len].escape_ascii().to_string(), expected.escape_ascii().to_string());
    };
    changes(0, b"12345");
    assert_eq!(rig.writes_back(held), 0);
    expect(b"old45");
    rig.reads(held);
    changes(1, b"1");
    assert_eq!(rig.writes_back(held), 0);
    expect(b"o1d45");
    // It is told late.
    tell();
    changes(0, b"2");
    tell();
    changes(2, b"3");
    tell();
    assert_eq!(rig.writes_back(held), 0);
    expect(b"21345");
    rig.barrier.open();
    let mut found = [0; 3];
    while found != *b"old" {
        assert_eq!(rig.writes_back(held), 0);
        rig.fs.read(&caller, held, 0, &mut found).unwrap();
    }
    expect(b"old45");
    rig.end();
}

#[test]
fn direct_write_beside_held_pages_keeps_no_other_direct_write_waiting() {
    let rig = rig(true, INVAL_INODE);
    for node in rig.nodes {
        rig.reads(node);
    }
    let write = abi::WriteIn { size: 4096, flags: O_DIRECT, ..abi::WriteIn::default() };
    rig.kernel.send(Opcode::Write, 12, rig.nodes[0].0, &[write.as_bytes(), &[7; 4096]]);
    rig.barrier.wait_for_waiter();
    rig.kernel.send(Opcode::Write, 14, rig.nodes[1].0, &[write.as_bytes(), &[7; 4096]]);
    let answered = || std::iter::repeat_with(|| rig.kernel.answer()).find(|answer| answer.unique != 0);
    assert_eq!(answered().unwrap().unique, 14);
    rig.barrier.open();
    assert_eq!(answered().unwrap().unique, 12);
    rig.end();
}

#[test]
fn session_ends_though_a_notification_is_held_up_in_the_kernel() {
    let Rig { bridge, kernel, session, barrier, nodes, .. } = rig(false, INVAL_ENTRY);
    let notifier = session.notifier();
    notifier.submit(name_in(nodes[0], "a".to_owned())).unwrap();
    notifier.submit(name_in(nodes[0], "b".to_owned())).unwrap();
    barrier.wait_for_waiter();
    kernel.unmount();
    session.wait().unwrap();
    assert_eq!(notifier.submit(Notification::IncEpoch), Err(NotifyError::Ended));
    bridge.end();
    barrier.open();
}

#[test]
fn more_names_of_a_held_directory_than_may_wait_become_one_message() {
    let rig = rig(false, INVAL_ENTRY);
    let notifier = rig.session.notifier();
    let names = (0..6).map(|number| name_in(rig.nodes[0], number.to_string()));
    notifier.carry_out_soon(names).unwrap();
    assert!(std::iter::repeat_with(|| rig.kernel.answer()).any(|told| told.error == INC_EPOCH));
    // No caller waits for that directory any more, and what may be left out is refused.
    let refused = notifier.submit(name_in(rig.nodes[0], "other".to_owned()));
    assert_eq!(refused, Err(NotifyError::QueueFull { len_max: 4 }));
    rig.end();
}

#[test]
fn one_name_of_a_held_directory_waits_once_however_often_it_changes() {
    let rig = rig(false, INVAL_ENTRY);
    let notifier = rig.session.notifier();
    for _ in 0..7 {
        notifier.carry_out_soon([name_in(rig.nodes[0], "name".to_owned())]).unwrap();
    }
    rig.barrier.open();
    for _ in 0..2 {
        assert_eq!(rig.told_of(b"name"), rig.nodes[0], "what was held up, and once more");
    }
    notifier.carry_out_all([name_in(rig.nodes[0], "last".to_owned())]).unwrap();
    assert_eq!(rig.kernel.answer().error, INVAL_ENTRY);
    rig.end();
}

#[test]
fn sender_that_panics_keeps_nothing_behind_it_waiting() {
    let (_, bridge) = over_the_model(MountOptions::default());
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let is_first = Arc::new(AtomicBool::new(true));
    let meet: Arc<dyn Fn() + Send + Sync> =
        Arc::new(move || assert!(!is_first.swap(false, Ordering::SeqCst), "as a sender may"));
    let (kernel, session) = Kernel::start_with(bridge, &config, |transport| {
        let held = (INVAL_ENTRY, NodeId::ROOT.0);
        Box::new(Holding { inner: Box::new(transport), held, meet, refused: None })
    });
    let names = ["first", "second"].map(|name| name_in(NodeId::ROOT, name.to_owned()));
    session.notifier().carry_out_all(names).unwrap();
    kernel.unmount();
    session.wait().unwrap();
}

#[test]
fn names_of_a_large_commit_are_queued_in_parts_each_when_the_one_before_was_told() {
    const PART_LEN: usize = 4096;
    let rig = rig_of(false, INVAL_ENTRY, Duration::from_mins(10), None);
    let notifier = rig.session.notifier();
    let (taken, is_told, is_early) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let names = (0..2 * PART_LEN).map(|number| {
        if number == PART_LEN && !is_told.load(Ordering::SeqCst) {
            is_early.store(true, Ordering::SeqCst);
        }
        taken.store(number + 1, Ordering::SeqCst);
        name_in(rig.nodes[0], number.to_string())
    });
    thread::scope(|scope| {
        scope.spawn(|| notifier.carry_out_soon(names).unwrap());
        rig.barrier.wait_for_waiter();
        while taken.load(Ordering::SeqCst) < PART_LEN {
            thread::yield_now();
        }
        is_told.store(true, Ordering::SeqCst);
        rig.barrier.open();
        for number in 0..2 * PART_LEN {
            assert_eq!(rig.told_of(number.to_string().as_bytes()), rig.nodes[0]);
        }
    });
    assert!(!is_early.load(Ordering::SeqCst));
    rig.end();
}

#[test]
fn directory_that_is_held_for_a_moment_beside_a_held_one_is_not_given_up() {
    const PART_LEN: usize = 4096;
    let rig = rig_of(false, INVAL_ENTRY, Duration::from_secs(1), None);
    let ([held, free], notifier) = (rig.nodes, rig.session.notifier());
    rig.other_barrier.close();
    // What the first part has waited for the held directory is not what the second one has for the other.
    let others = (1..PART_LEN).map(|number| name_in(NodeId::ROOT, number.to_string()));
    let first = std::iter::once(name_in(held, "name".to_owned())).chain(others);
    notifier.carry_out_soon(first.chain([name_in(free, "name".to_owned())])).unwrap();
    let submit = |directory| notifier.submit(name_in(directory, "another".to_owned()));
    assert_eq!(submit(held), Err(NotifyError::QueueFull { len_max: 4 }));
    assert_eq!(submit(free), Ok(()));
    rig.end();
}

#[test]
fn names_that_a_kernel_can_not_be_told_of_are_looked_up_again_before_it_changes_them() {
    let rig = rig_of(false, INVAL_ENTRY, Duration::from_millis(400), Some(INC_EPOCH));
    let [held, free] = rig.nodes;
    let view = rig.begin();
    for number in 0..6 {
        for node in rig.nodes {
            view.create(&Caller::default(), node, number.to_string().as_bytes(), 0o644, true).unwrap();
        }
    }
    rig.bridge.commit(&view, None, Durability::Buffered, None).unwrap();
    rig.barrier.open();
    let ask = |opcode, node: NodeId| {
        rig.kernel.send(opcode, 10, node.0, &[b"5\0"]);
        std::iter::repeat_with(|| rig.kernel.answer()).find(|answer| answer.unique == 10).unwrap().error
    };
    assert_eq!(ask(Opcode::Unlink, held), -Errno::STALE.raw_os_error());
    assert_eq!(ask(Opcode::Lookup, held), 0);
    assert_eq!(ask(Opcode::Unlink, held), 0);
    assert_eq!(ask(Opcode::Unlink, free), 0);
    rig.end();
}

#[test]
fn names_that_a_new_epoch_has_told_of_are_not_looked_up_again() {
    let rig = rig(false, INVAL_INODE);
    rig.call_barrier.close();
    let announcement = (abi::SetxattrInCompat::default(), abi::SetxattrExt::default());
    let parts = [announcement.0.as_bytes(), announcement.1.as_bytes(), CALL, &[0]];
    rig.kernel.send(Opcode::Setxattr, 20, 1, &parts);
    rig.call_barrier.wait_for_waiter();
    // Something else that waits for no lock of the kernel is on its way.
    let attributes = Notification::InvalInode { node: rig.nodes[0].0, offset: -1, len: 0 };
    rig.session.notifier().submit(attributes).unwrap();
    rig.barrier.wait_for_waiter();
    let view = rig.begin();
    view.create(&Caller::default(), NodeId::ROOT, b"new", 0o644, true).unwrap();
    rig.bridge.commit(&view, None, Durability::Buffered, None).unwrap();
    assert!(std::iter::repeat_with(|| rig.kernel.answer()).any(|told| told.error == INC_EPOCH));
    rig.kernel.send(Opcode::Unlink, 10, 1, &[b"new\0"]);
    let answered = std::iter::repeat_with(|| rig.kernel.answer()).find(|answer| answer.unique == 10);
    assert_eq!(answered.unwrap().error, 0);
    rig.end();
}

/// As many locks of a kind as senders may wait for.
const LOCKS_MAX: usize = 31;

#[test]
fn requests_and_flushes_go_on_beside_as_many_held_listings_as_senders_may_wait_for() {
    let config = BridgeConfig { housekeep_period: Duration::from_millis(50), ..BridgeConfig::default() };
    let (fs, bridge) = over_the_model_with(MountOptions::default(), config);
    let caller = Caller::default();
    let make = |number: usize| fs.mkdir(&caller, NodeId::ROOT, number.to_string().as_bytes(), 0o755).unwrap();
    let listings: Vec<NodeId> = (0..LOCKS_MAX).map(|number| make(number).node).collect();
    let file = fs.create(&caller, NodeId::ROOT, b"file", 0o644, true).unwrap().0.node;
    // From its begin to the last block a hole.
    fs.write(&caller, file, 1 << 20, bytes::Bytes::from_static(&[7; 4096]), WriteFlags::default()).unwrap();
    let config = SessionConfig {
        init: init_config(),
        workers: 1,
        notification_wait_max: Duration::from_millis(400),
        ..SessionConfig::default()
    };
    let barrier = Arc::new(Barrier::default());
    barrier.close();
    let (kernel, session) = Kernel::start_with(bridge.clone(), &config, |transport| {
        listings.iter().fold(Box::new(transport) as Box<dyn Transport>, |inner, listing| {
            let barrier = Arc::clone(&barrier);
            let meet = Arc::new(move || barrier.pass());
            Box::new(Holding { inner, held: (INVAL_INODE, listing.0), meet, refused: None })
        })
    });
    bridge.attach(session.notifier());
    let notifier = session.notifier();
    while barrier.arrived_total() < LOCKS_MAX {
        notifier.carry_out_soon(listings.iter().copied().map(everything_of)).unwrap();
    }
    let answer = |unique| std::iter::repeat_with(|| kernel.answer()).find(|answer| answer.unique == unique);
    let asks = |opcode, unique, parts: &[&[u8]]| {
        kernel.send(opcode, unique, file.0, parts);
        answer(unique).unwrap()
    };
    let read = abi::ReadIn { size: 4096, ..abi::ReadIn::default() };
    assert_eq!(asks(Opcode::Read, 8, &[read.as_bytes()]).error, 0);
    let write = abi::WriteIn { size: 4096, flags: O_DIRECT, ..abi::WriteIn::default() };
    assert_eq!(asks(Opcode::Write, 10, &[write.as_bytes(), &[7; 4096]]).error, 0);
    // What a mapping may have written is data.
    for (unique, whence, offset, expected) in
        [(12, SEEK_DATA, 8192, 8192), (14, SEEK_HOLE, 0, (1 << 20) + 4096)]
    {
        let seek = abi::LseekIn { whence, offset, ..abi::LseekIn::default() };
        let found = asks(Opcode::Lseek, unique, &[seek.as_bytes()]);
        assert_eq!(abi::LseekOut::read_from_bytes(&found.body[..]).unwrap().offset, expected);
    }
    assert!(matches!(bridge.write_back(None), Err(FsError::PagesWait)));
    barrier.open();
    let told = std::iter::repeat_with(|| kernel.answer()).filter(|answer| answer.error == INVAL_INODE);
    let mut nodes = told.map(|told| NodeId(u64::read_from_prefix(&told.body).unwrap().0));
    assert!(nodes.any(|node| node == file), "it is told when the kernel has time");
    bridge.write_back(None).unwrap();
    kernel.unmount();
    session.wait().unwrap();
}
