//! Requests of the kernel: an untrusted one, such as a fuzzer or a virtual machine's guest would be.

use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::FileSystem;
use kvfs_fuse::Session;
use kvfs_fuse::abi::{GetattrIn, InHeader, InitIn, InitInExt, MkdirIn, Opcode, OutHeader};
use kvfs_fuse::bridge::{Bridge, BridgeConfig, init_config};
use kvfs_fuse::session::SessionConfig;
use kvfs_fuse::transport::memory::{FakeKernel, pair};
use kvfs_kv::KeyspaceOwner;
use zerocopy::{FromBytes, IntoBytes};

use crate::input::Parts;
use crate::streams::file_system;

/// How long an answer may take: a worker that hangs is a finding.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);

fn send(kernel: &FakeKernel, opcode: u32, unique: u64, node: u64, body: &[u8]) -> bool {
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let header = InHeader { len, opcode, unique, nodeid: node, uid: 1000, ..InHeader::default() };
    kernel.send([header.as_bytes(), body].concat())
}

/// Waits for the answer to request `unique`.
fn await_answer(kernel: &FakeKernel, unique: u64) {
    loop {
        let bytes = kernel.receive(ANSWER_TIME_MAX).expect("the worker answers");
        let (header, _) = OutHeader::read_from_prefix(&bytes).expect("an answer has a header");
        if header.unique == unique {
            return;
        }
    }
}

fn with_session(fs: &Arc<FileSystem>, talk: impl FnOnce(&FakeKernel)) {
    let bridge = Arc::new(Bridge::new(Arc::clone(fs), BridgeConfig::default()).expect("a bridge starts"));
    let (transport, kernel) = pair();
    let init = InitIn { major: 7, minor: 45, max_readahead: 131_072, flags: u32::MAX };
    let ext = InitInExt { flags2: u32::MAX, unused: [0; 11] };
    send(&kernel, Opcode::Init as u32, 2, 0, &[init.as_bytes(), ext.as_bytes()].concat());
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let session = Session::start(Box::new(transport), &config, bridge.clone()).expect("a session starts");
    bridge.attach(session.notifier());
    await_answer(&kernel, 2);
    talk(&kernel);
    kernel.unmount();
    session.wait().expect("the session ends");
}

/// Something to work on: directories, and a user's keyspace.
pub fn fill(fs: &Arc<FileSystem>) {
    with_session(fs, |kernel| {
        for (index, name) in [&b"a\0"[..], b"b\0", b"c\0"].into_iter().enumerate() {
            let unique = 4 + 2 * index as u64;
            let head = MkdirIn { mode: 0o755, umask: 0 };
            send(kernel, Opcode::Mkdir as u32, unique, 1, &[head.as_bytes(), name].concat());
            await_answer(kernel, unique);
        }
    });
    let owner = KeyspaceOwner { uid: 1000, gid: 1000, mode: 0o666 };
    fs.keys().make_keyspace("keys", owner).expect("a keyspace can be created");
}

/// Each part is a request: its kind the operation, its first byte the node, the rest the body. The worker
/// must live.
pub fn run(data: &[u8]) {
    let fs = file_system(3);
    with_session(&fs, |kernel| {
        for (index, (kind, body)) in Parts(data).take(64).enumerate() {
            let Some((&node, body)) = body.split_first() else { continue };
            let opcode = u32::from(kind);
            if opcode == Opcode::Destroy as u32 || opcode == Opcode::Init as u32 {
                continue;
            }
            send(kernel, opcode, 1000 + 2 * index as u64, (node % 8).into(), body);
        }
        let unique = 8;
        send(kernel, Opcode::Getattr as u32, unique, 1, GetattrIn::default().as_bytes());
        await_answer(kernel, unique);
    });
}
