//! Calls on what a mount shows, which may wait.

use std::sync::Arc;

use kvfs_fs::{FileSystem, Invalidations, MkfsOptions, MountOptions};
use kvfs_fuse::abi::{self, Opcode};
use kvfs_fuse::bridge::{Bridge, BridgeConfig, ViewCall, ViewCallHandler, init_config};
use kvfs_fuse::dispatch::Ioctl;
use kvfs_fuse::session::SessionConfig;
use kvfs_fuse::{Errno, Session};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;
use zerocopy::IntoBytes;

use crate::kernel::Kernel;
use crate::slow::Barrier;

const COMMAND: u32 = 0x6b65;
const ANNOUNCEMENT: &[u8] = b"system.test";
const CALLS_PER_USER_MAX: u64 = 64;

/// Each call waits at a barrier.
struct Waiting(Arc<Barrier>);

impl ViewCallHandler for Waiting {
    fn is_ours(&self, command: u32) -> bool {
        command == COMMAND
    }

    fn announces(&self, name: &[u8]) -> bool {
        name == ANNOUNCEMENT
    }

    fn carry_out(&self, _: &ViewCall<'_>) -> Result<(Ioctl, Invalidations), Errno> {
        self.0.pass();
        Ok((Ioctl::default(), Invalidations::default()))
    }
}

struct Rig {
    kernel: Kernel,
    session: Session,
    bridge: Arc<Bridge>,
    barrier: Arc<Barrier>,
}

fn rig() -> Rig {
    let store: Arc<dyn Store> = Arc::new(ModelStore::new());
    let clock = Arc::new(SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default()).unwrap());
    let barrier = Arc::new(Barrier::default());
    let view_calls: Option<Arc<dyn ViewCallHandler>> = Some(Arc::new(Waiting(Arc::clone(&barrier))));
    let bridge = Arc::new(Bridge::new(fs, BridgeConfig { view_calls, ..BridgeConfig::default() }).unwrap());
    let config = SessionConfig { init: init_config(), workers: 1, ..SessionConfig::default() };
    let (kernel, session) = Kernel::start(bridge.clone(), &config);
    bridge.attach(session.notifier());
    Rig { kernel, session, bridge, barrier }
}

impl Rig {
    fn call(&self, uid: u32, unique: u64) {
        let announcement = (abi::SetxattrInCompat::default(), abi::SetxattrExt::default());
        let parts = [announcement.0.as_bytes(), announcement.1.as_bytes(), ANNOUNCEMENT, &[0]];
        self.kernel.send_as(uid, Opcode::Setxattr as u32, unique + 1_000_000, 1, &parts);
        let answer = self.kernel.answer();
        assert_eq!((answer.unique, answer.error), (unique + 1_000_000, 0));
        let head = abi::IoctlIn { cmd: COMMAND, ..abi::IoctlIn::default() };
        self.kernel.send_as(uid, Opcode::Ioctl as u32, unique, 1, &[head.as_bytes()]);
    }
}

#[test]
fn calls_of_a_user_that_wait_are_bounded_and_those_of_others_are_not_refused() {
    let rig = rig();
    rig.barrier.close();
    let mut uniques = (1..).map(|number: u64| 4 * number);
    let mut call = |uid| {
        let unique = uniques.next().unwrap();
        rig.call(uid, unique);
        unique
    };
    for _ in 0..CALLS_PER_USER_MAX {
        call(1000);
    }
    let refused = call(1000);
    let answer = rig.kernel.answer();
    assert_eq!((answer.unique, answer.error), (refused, -Errno::BUSY.raw_os_error()));
    call(1001);
    for _ in 0..=CALLS_PER_USER_MAX {
        call(0);
    }
    rig.barrier.open();
    for _ in 0..2 * CALLS_PER_USER_MAX + 2 {
        assert_eq!(rig.kernel.answer().error, 0, "all others are carried out");
    }
    let again = call(1000);
    let answer = rig.kernel.answer();
    assert_eq!((answer.unique, answer.error), (again, 0));
    rig.kernel.unmount();
    rig.session.wait().unwrap();
    rig.bridge.end();
}
