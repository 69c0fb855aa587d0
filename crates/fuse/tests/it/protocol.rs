//! Dispatch against a kernel that the test plays, with one worker.

use std::sync::Arc;

use kvfs_fs::operations::OperationKind;
use kvfs_fuse::abi::{self, Opcode, UNIQUE_INTERRUPT_BIT};
use kvfs_fuse::notify::{Notification, NotifyError};
use kvfs_fuse::session::{InitConfig, SessionConfig};
use kvfs_fuse::{Errno, Session};
use zerocopy::{FromBytes, IntoBytes};

use crate::floor::Floor;
use crate::gate::Gate;
use crate::kernel::Kernel;

fn start_with(config: &SessionConfig) -> (Kernel, Session, Gate) {
    let gate = Gate::default();
    let (kernel, session) = Kernel::start(Arc::new(gate.clone()), config);
    (kernel, session, gate)
}

fn start() -> (Kernel, Session, Gate) {
    start_with(&SessionConfig { workers: 1, ..SessionConfig::default() })
}

fn minus(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

fn interrupt(kernel: &Kernel, unique: u64) {
    let body = abi::InterruptIn { unique };
    kernel.send(Opcode::Interrupt, unique | UNIQUE_INTERRUPT_BIT, 0, &[body.as_bytes()]);
}

#[test]
fn a_parked_request_leaves_the_only_worker_free() {
    let (kernel, session, gate) = start();
    kernel.send(Opcode::Lookup, 4, 1, &[b"blocked\0"]);
    kernel.send(Opcode::Lookup, 6, 1, &[b"plain\0"]);
    let answer = kernel.answer();
    assert_eq!((answer.unique, answer.error), (6, 0));
    assert_eq!(abi::EntryOut::read_from_bytes(&answer.body[..]).unwrap().nodeid, 2);
    assert_eq!(session.parked_count(), 1);
    assert_eq!(gate.open_gate(), 1);
    let answer = kernel.answer();
    assert_eq!((answer.unique, answer.error), (4, 0));
    assert_eq!(session.parked_count(), 0);
}

#[test]
fn an_interrupt_answers_a_parked_request_and_calls_its_cancellation() {
    let (kernel, session, gate) = start();
    kernel.send(Opcode::Lookup, 4, 1, &[b"blocked\0"]);
    interrupt(&kernel, 4);
    let answer = kernel.answer();
    assert_eq!((answer.unique, answer.error), (4, minus(Errno::INTR)));
    assert_eq!(gate.state().cancelled, 1);
    assert_eq!(session.parked_count(), 0);
    assert_eq!(gate.open_gate(), 0, "the interrupt was faster");
}

#[test]
fn an_interrupt_that_comes_before_its_request_parks_is_not_lost() {
    let (kernel, _session, gate) = start();
    interrupt(&kernel, 4);
    kernel.send(Opcode::Lookup, 4, 1, &[b"blocked\0"]);
    let answer = kernel.answer();
    assert_eq!((answer.unique, answer.error), (4, minus(Errno::INTR)));
    let state = gate.state();
    assert_eq!((state.waiting.len(), state.cancelled), (0, 0), "park refuses, so there is nothing to cancel");
}

#[test]
fn each_request_is_reported_once_when_it_is_answered() {
    let init = InitConfig { no_open: true, ..InitConfig::default() };
    let (kernel, session, gate) = start_with(&SessionConfig { workers: 1, init, ..SessionConfig::default() });
    let reports = || {
        let reports = gate.reports().take().into_iter();
        reports.map(|r| (r.kind, r.inode, r.name, r.errno, r.has_waited)).collect::<Vec<_>>()
    };
    let lookup = |name: &[u8], errno: i32, waits| (OperationKind::Lookup, 1, name.to_vec(), errno, waits);
    kernel.send(Opcode::Lookup, 4, 1, &[b"blocked\0"]);
    kernel.send(Opcode::Lookup, 6, 1, &[b"blocked\0"]);
    kernel.send(Opcode::Lookup, 8, 1, &[b"plain\0"]);
    assert_eq!(kernel.answer().unique, 8);
    assert_eq!(reports(), [lookup(b"plain", 0, false)], "those that wait are not answered");
    interrupt(&kernel, 4);
    assert_eq!(kernel.answer().unique, 4);
    assert_eq!(gate.open_gate(), 1);
    assert_eq!(kernel.answer().unique, 6);
    let interrupted = Errno::INTR.raw_os_error();
    assert_eq!(reports(), [lookup(b"blocked", interrupted, true), lookup(b"blocked", 0, true)]);
    kernel.send(Opcode::Open, 10, 2, &[abi::OpenIn::default().as_bytes()]);
    assert_eq!(kernel.answer().unique, 10);
    let refused = Errno::NOSYS.raw_os_error();
    assert_eq!(reports(), [(OperationKind::Open, 2, Vec::new(), refused, false)]);
    let write = abi::WriteIn { size: 5, ..abi::WriteIn::default() };
    kernel.send(Opcode::Write, 12, 2, &[write.as_bytes(), b"hello"]);
    assert_eq!(kernel.answer().unique, 12);
    assert_eq!(
        gate.reports().take().iter().map(|r| (r.kind, r.bytes)).collect::<Vec<_>>(),
        [(OperationKind::Write, 5)]
    );
    assert_eq!(session.parked_count(), 0);
}

#[test]
fn forgotten_interrupts_go_back_to_the_kernel() {
    let (kernel, _session, _gate) = start();
    for unique in 0..257 {
        interrupt(&kernel, 1000 + unique * 2);
    }
    let answer = kernel.answer();
    assert_eq!((answer.unique, answer.error), (0x3e8 | UNIQUE_INTERRUPT_BIT, minus(Errno::AGAIN)));
}

#[test]
fn a_reply_may_be_given_from_another_thread() {
    let (kernel, _session, gate) = start();
    kernel.send(Opcode::Fsync, 4, 2, &[abi::FsyncIn::default().as_bytes()]);
    gate.wait_until("fsync arrived", |state| state.kept.is_some());
    let reply = gate.state().kept.take().unwrap();
    std::thread::spawn(move || reply.ok(())).join().unwrap();
    assert_eq!(kernel.answer().unique, 4);
}

#[test]
fn panics_and_dropped_replies_answer_eio_and_the_worker_lives() {
    let (kernel, _session, _gate) = start();
    for (unique, name) in [(4, &b"panic\0"[..]), (6, b"dropped\0")] {
        kernel.send(Opcode::Lookup, unique, 1, &[name]);
        let answer = kernel.answer();
        assert_eq!((answer.unique, answer.error), (unique, minus(Errno::IO)));
    }
    kernel.send(Opcode::Lookup, 8, 1, &[b"plain\0"]);
    assert_eq!(kernel.answer().error, 0);
}

#[test]
fn malformed_requests_are_refused() {
    let (kernel, _session, _gate) = start();
    let short = [0; 4];
    for (number, opcode) in (1..=53).filter_map(|number| Some((number, Opcode::from_number(number)?))) {
        use Opcode as O;
        if matches!(
            opcode,
            O::Forget
                | O::BatchForget
                | O::Interrupt
                | O::NotifyReply
                | O::Init
                | O::Destroy
                | O::Readlink
                | O::Statfs
                | O::Syncfs
                | O::Setupmapping
                | O::Removemapping
        ) {
            continue;
        }
        let unique = u64::from(number) * 2;
        // Neither a struct nor a terminated string.
        kernel.send(opcode, unique, 2, &[&short.map(|_| b'x')[..3]]);
        let answer = kernel.answer();
        assert_eq!((answer.unique, answer.error), (unique, minus(Errno::INVAL)), "{opcode:?}");
    }
    kernel.send_raw(9999, 400, 1, &[]);
    assert_eq!(kernel.answer().error, minus(Errno::NOSYS));
    // A frame whose length lies.
    let header = abi::InHeader { len: 99, opcode: 1, unique: 402, ..abi::InHeader::default() };
    kernel.send_bytes(header.as_bytes().to_vec());
    let answer = kernel.answer();
    assert_eq!((answer.unique, answer.error), (402, minus(Errno::IO)));
    kernel.send_bytes(vec![1, 2, 3]);
    kernel.send(Opcode::Lookup, 404, 1, &[b"plain\0"]);
    assert_eq!(kernel.answer().unique, 404);
}

#[test]
fn read_of_more_than_was_agreed_on_is_refused_and_takes_no_memory() {
    let config = SessionConfig { workers: 1, ..SessionConfig::default() };
    let (kernel, _session) = Kernel::start(Arc::new(Floor::new()), &config);
    let agreed = config.init.write_bytes_max / 4096 * (64 << 10);
    for (unique, opcode) in [(4, Opcode::Read), (6, Opcode::Readdir), (8, Opcode::Readdirplus)] {
        for size in [agreed + 1, u32::MAX] {
            kernel.send(opcode, unique, 2, &[abi::ReadIn { size, ..abi::ReadIn::default() }.as_bytes()]);
            let answer = kernel.answer();
            assert_eq!((answer.unique, answer.error), (unique, minus(Errno::INVAL)), "{opcode:?} of {size}");
        }
    }
}

/// Random numbers that a seed repeats (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn no_request_whatever_it_holds_stops_the_worker() {
    let seed = u64::from(std::process::id()) << 20 | 0x5eed;
    eprintln!("seed {seed:#x}");
    let mut random = Random(seed);
    let config = SessionConfig { workers: 1, ..SessionConfig::default() };
    let (kernel, session) = Kernel::start(Arc::new(Floor::new()), &config);
    for round in 0..20_000 {
        let opcode = (random.next() % 56) as u32;
        if opcode == Opcode::Destroy as u32 {
            continue;
        }
        let mut body: Vec<u8> = (0..random.next() % 160).map(|_| random.next() as u8).collect();
        if random.next().is_multiple_of(2) {
            body.extend_from_slice(b"name\0other\0");
        }
        if random.next().is_multiple_of(4) {
            body.fill(0);
        }
        let mut header = abi::InHeader {
            len: (size_of::<abi::InHeader>() + body.len()) as u32,
            opcode,
            unique: 1000 + round * 2,
            nodeid: random.next() % 8,
            ..abi::InHeader::default()
        };
        if random.next().is_multiple_of(8) {
            header.total_extlen = (random.next() % 30) as u16;
        }
        kernel.send_bytes([header.as_bytes(), &body].concat());
    }
    kernel.send(Opcode::Getattr, 8, 1, &[abi::GetattrIn::default().as_bytes()]);
    let alive = std::iter::repeat_with(|| kernel.answer()).find(|answer| answer.unique == 8);
    assert!(alive.is_some_and(|answer| answer.error == 0));
    kernel.unmount();
    session.wait().unwrap();
}

#[test]
fn batches_of_forgets_are_taken_apart() {
    let (kernel, _session, gate) = start();
    let ones = [abi::ForgetOne { nodeid: 2, nlookup: 5 }, abi::ForgetOne { nodeid: 3, nlookup: 1 }];
    let head = abi::BatchForgetIn { count: 2, dummy: 0 };
    kernel.send(Opcode::BatchForget, 4, 0, &[head.as_bytes(), ones[0].as_bytes(), ones[1].as_bytes()]);
    kernel.send(Opcode::Forget, 6, 7, &[abi::ForgetIn { nlookup: 9 }.as_bytes()]);
    gate.wait_until("three forgets", |state| state.forgotten.len() == 3);
    assert_eq!(gate.state().forgotten, [(2, 5), (3, 1), (7, 9)]);
}

#[test]
fn large_write_data_arrives_whole_and_page_aligned() {
    let (kernel, _session, gate) = start();
    let data: Vec<u8> = (0..1 << 20).map(|index: u32| (index * 7 + index / 4096) as u8).collect();
    let head = abi::WriteIn { offset: 0, size: data.len() as u32, ..abi::WriteIn::default() };
    kernel.send(Opcode::Write, 4, 2, &[head.as_bytes(), &data]);
    let answer = kernel.answer();
    assert_eq!(abi::WriteOut::read_from_bytes(&answer.body[..]).unwrap().size, 1 << 20);
    let written = gate.state().written.clone().unwrap();
    assert!(written == data, "the data differs");
    assert_eq!(written.as_ptr() as usize % 4096, 0);
    // The kept data must not be overwritten by later requests.
    kernel.send(Opcode::Write, 6, 2, &[head.as_bytes(), &vec![0; 1 << 20]]);
    assert_eq!(kernel.answer().unique, 6);
    assert!(written == data, "the buffer was reused while in use");
}

#[test]
fn opens_without_a_message_answer_enosys() {
    let init = InitConfig { no_open: true, no_create: true, ..InitConfig::default() };
    let (kernel, _session, _gate) =
        start_with(&SessionConfig { workers: 1, init, ..SessionConfig::default() });
    kernel.send(Opcode::Open, 4, 2, &[abi::OpenIn::default().as_bytes()]);
    assert_eq!(kernel.answer().error, minus(Errno::NOSYS));
    kernel.send(Opcode::Create, 6, 1, &[abi::CreateIn::default().as_bytes(), b"new\0"]);
    assert_eq!(kernel.answer().error, minus(Errno::NOSYS));
}

#[test]
fn too_many_parked_requests_are_refused() {
    let config = SessionConfig { workers: 1, parked_max: 1, ..SessionConfig::default() };
    let (kernel, session, _gate) = start_with(&config);
    kernel.send(Opcode::Lookup, 4, 1, &[b"blocked\0"]);
    kernel.send(Opcode::Lookup, 6, 1, &[b"blocked\0"]);
    let answer = kernel.answer();
    assert_eq!((answer.unique, answer.error), (6, minus(Errno::AGAIN)));
    assert_eq!(session.parked_count(), 1);
}

#[test]
fn the_end_of_the_connection_cancels_what_waits() {
    let (kernel, session, gate) = start();
    let notifier = session.notifier();
    kernel.send(Opcode::Lookup, 4, 1, &[b"blocked\0"]);
    gate.wait_until("the lookup is parked", |state| state.waiting.len() == 1);
    kernel.unmount();
    session.wait().unwrap();
    assert!(gate.state().ended);
    assert_eq!(gate.state().cancelled, 1);
    assert_eq!(notifier.submit(Notification::IncEpoch), Err(NotifyError::Ended));
}

#[test]
fn a_session_is_ended_from_this_side() {
    let gate = Gate::default();
    let (_kernel, session) = Kernel::start(Arc::new(gate.clone()), &SessionConfig::default());
    let notifier = session.notifier();
    notifier.carry_out_all([Notification::IncEpoch, Notification::IncEpoch]).unwrap();
    session.abort().unwrap();
    gate.wait_until("the end", |state| state.ended);
    assert_eq!(notifier.carry_out_all([Notification::IncEpoch]), Err(NotifyError::Ended));
}

#[test]
fn notifications_have_the_kernels_form() {
    let (kernel, session, _gate) = start();
    let notifier = session.notifier();
    notifier.submit(Notification::InvalInode { node: 5, offset: -1, len: 0 }).unwrap();
    let name = bytes::Bytes::from_static(b"gone");
    notifier.submit(Notification::Delete { parent: 1, child: 5, name }).unwrap();
    notifier.submit(Notification::Prune { nodes: vec![7, 8] }).unwrap();
    notifier.submit(Notification::IncEpoch).unwrap();
    let answer = kernel.answer();
    assert_eq!((answer.unique, answer.error), (0, abi::notify::INVAL_INODE));
    let out = abi::notify::InvalInodeOut::read_from_bytes(&answer.body[..]).unwrap();
    assert_eq!((out.ino, out.off, out.len), (5, -1, 0));
    let answer = kernel.answer();
    assert_eq!((answer.error, &answer.body[24..]), (abi::notify::DELETE, &b"gone\0"[..]));
    let answer = kernel.answer();
    assert_eq!((answer.error, answer.body.len()), (abi::notify::PRUNE, 16 + 16));
    assert_eq!(kernel.answer().error, abi::notify::INC_EPOCH);
}
