//! A call on a mount of the kernel's whose name one commit after the other changes.

use std::fs;
use std::thread;
use std::time::Duration;

use kvfs_fs::{
    BeginOptions, Caller, Durability, FileSystem, FsError, MountOptions, NodeId, RenameMode, Ticket,
    WriteFlags,
};
use kvfs_fuse::bridge::init_config;
use kvfs_fuse::session::SessionConfig;
use kvfs_store::Isolation;
use kvfs_store::clock::{Clock, SystemClock};

use crate::bridge::over_the_model;
use crate::mounted::mount_or_skip;

const PATIENCE: Duration = Duration::from_secs(20);

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let begun = clock.monotonic();
    while !is_so() {
        assert!(clock.monotonic().saturating_sub(begun) < PATIENCE, "for too long");
        thread::yield_now();
    }
}

/// A view makes a file of that name and content, and it replaces `name`.
fn replace(view: &FileSystem, made: &'static str, ticket: Option<Ticket>) -> Result<(), FsError> {
    let caller = Caller { ticket, ..Caller::default() };
    if caller.ticket.is_none() {
        let file = view.create(&caller, NodeId::ROOT, made.as_bytes(), 0o644, true)?.0.node;
        view.write(&caller, file, 0, made.as_bytes().into(), WriteFlags::default())?;
    }
    view.rename(&caller, NodeId::ROOT, made.as_bytes(), NodeId::ROOT, b"name", RenameMode::Replace)
}

#[test]
fn rename_on_a_mount_that_a_commit_overtakes_goes_before_the_next_transaction() {
    let test = "rename_on_a_mount_that_a_commit_overtakes_goes_before_the_next_transaction";
    let (main, bridge) = over_the_model(MountOptions::default());
    let config = SessionConfig { init: init_config(), workers: 2, ..SessionConfig::default() };
    let Some(mounted) = mount_or_skip(test, bridge.clone(), &config) else { return };
    bridge.attach(mounted.session().notifier());
    let serializable = BeginOptions { isolation: Isolation::Serializable, ..BeginOptions::default() };
    for _ in 0..20 {
        fs::write(mounted.path("name"), "old").unwrap();
        let [view, next] = [(); 2].map(|()| main.begin(&serializable).unwrap());
        replace(&view, "first", None).unwrap();
        thread::scope(|scope| {
            let renamed = scope.spawn(|| fs::rename(mounted.path("name"), mounted.path("moved")));
            wait_until(|| mounted.session().parked_count() == 1);
            let waiting = match replace(&next, "next", None) {
                Err(FsError::Parked(ticket)) => ticket,
                done => panic!("{done:?}"),
            };
            bridge.commit(&view, None, Durability::Buffered, None).unwrap();
            // It takes the name as soon as it may.
            wait_until(|| waiting.is_ready());
            replace(&next, "next", Some(waiting)).unwrap();
            bridge.commit(&next, None, Durability::Buffered, None).unwrap();
            renamed.join().unwrap().unwrap();
        });
        for (name, expected) in [("moved", "first"), ("name", "next")] {
            assert_eq!(fs::read_to_string(mounted.path(name)).unwrap(), expected);
        }
    }
    mounted.unmount();
}
