//! A worker that serves one program alone, and what happens when it is held up.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::thread;

use kvfs_fs::{FileSystem, MkfsOptions, MountOptions};
use kvfs_fuse::bridge::{Bridge, BridgeConfig, init_config};
use kvfs_fuse::session::SessionConfig;
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;

use crate::mounted::mount_or_skip;
use crate::slow::SlowStore;

/// Changes after which a single program is certainly followed.
const CHANGES_MAX: u32 = 20_000;

#[test]
fn a_companion_that_is_held_up_leaves_others_to_the_rest() {
    let test = "a_companion_that_is_held_up_leaves_others_to_the_rest";
    let slow = SlowStore::default();
    let batches = Arc::clone(&slow.batches);
    let store: Arc<dyn Store> = Arc::new(slow);
    let clock = Arc::new(SystemClock::new());
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
    let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default()).unwrap());
    let bridge = Arc::new(Bridge::new(fs, BridgeConfig::default()).unwrap());
    let config = SessionConfig { init: init_config(), workers: 2, ..SessionConfig::default() };
    let Some(mounted) = mount_or_skip(test, bridge.clone(), &config) else { return };
    bridge.attach(mounted.session().notifier());
    let file = mounted.path("file");
    fs::write(&file, "text").unwrap();
    if !mounted.session().can_steer() {
        eprintln!("{test}: skipped: one CPU, or no right to leave the idle class");
        return mounted.unmount();
    }
    let change = |n: u32| fs::set_permissions(&file, Permissions::from_mode(0o600 | (n & 0o77))).unwrap();
    let followed = (0..CHANGES_MAX).find(|&n| {
        change(n);
        mounted.session().companion_cpu().is_some()
    });
    assert!(followed.is_some(), "no worker follows the only program");
    // What a worker that waited in the kernel before takes with it.
    (0..10).for_each(change);

    batches.close();
    let held = file.clone();
    let holder = thread::spawn(move || fs::set_permissions(held, Permissions::from_mode(0o640)));
    batches.wait_for_waiter();
    // The worker that serves alone waits in the store. Names that the kernel doesn't know are asked for all
    // the same.
    for n in 0..10 {
        assert!(!mounted.path(&format!("missing{n}")).exists());
    }
    batches.open();
    holder.join().unwrap().unwrap();
    mounted.unmount();
}
