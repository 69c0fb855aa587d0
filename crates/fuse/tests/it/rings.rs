//! Requests by `io_uring`, against the real kernel.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use kvfs_fuse::abi::Opcode;
use kvfs_fuse::session::{InitConfig, SessionConfig};
use kvfs_fuse::{Operations, Session};

use crate::floor::Floor;
use crate::gate::Gate;
use crate::kernel::Kernel;
use crate::mounted::{Mounted, expect_abort_to_release, expect_killed_waiter_to_go, mount_or_skip};

/// Lets all of a machine's mounts ask for rings. None is asked for where it is not wished, so it stays set.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

fn with_rings() -> SessionConfig {
    let init = InitConfig { io_uring: true, ..InitConfig::default() };
    SessionConfig { init, workers: 2, ..SessionConfig::default() }
}

/// A mount whose requests come by rings, or says why there is none and gives `None`.
fn ring_mount(test: &str, operations: Arc<dyn Operations>) -> Option<Mounted> {
    if fs::write(PARAMETER, "Y").is_err() {
        eprintln!("SKIPPED {test}: needs root, and a kernel with FUSE over io_uring");
        return None;
    }
    let mounted = mount_or_skip(test, operations, &with_rings())?;
    if !mounted.session().negotiated().uses_io_uring() {
        eprintln!("SKIPPED {test}: the system gives no io_uring");
        mounted.unmount();
        return None;
    }
    Some(mounted)
}

fn gate(test: &str) -> Option<(Gate, Mounted)> {
    let gate = Gate::default();
    let mounted = ring_mount(test, Arc::new(gate.clone()))?;
    Some((gate, mounted))
}

#[test]
fn rings_serve_many_programs_and_lose_no_byte() {
    let test = "rings_serve_many_programs_and_lose_no_byte";
    let Some(mounted) = ring_mount(test, Arc::new(Floor::new())) else { return };
    thread::scope(|scope| {
        for number in 0..6u8 {
            let mounted = &mounted;
            scope.spawn(move || fill_and_compare(&mounted.path(&format!("d{number}")), number));
        }
    });
    mounted.unmount();
}

/// Content of several requests, and more names than a listing holds.
fn fill_and_compare(dir: &Path, seed: u8) {
    fs::create_dir(dir).unwrap();
    let content: Vec<u8> =
        (0..(3 << 20) + 4321u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8 ^ seed).collect();
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join("content"))
        .unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut found = Vec::new();
    file.read_to_end(&mut found).unwrap();
    assert!(found == content, "{}", dir.display());
    for number in 0..300 {
        fs::write(dir.join(format!("name-{number}")), number.to_string()).unwrap();
    }
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.count(), 301);
    for number in 0..300 {
        let path = dir.join(format!("name-{number}"));
        assert_eq!(fs::read_to_string(&path).unwrap(), number.to_string());
        fs::remove_file(path).unwrap();
    }
    assert!(fs::symlink_metadata(dir.join("name-0")).is_err());
}

#[test]
fn requests_that_wait_in_rings_keep_no_other_waiting() {
    let Some((gate, mounted)) = gate("requests_that_wait_in_rings_keep_no_other_waiting") else { return };
    for round in 1..=2 {
        // More than there are workers: each keeps an entry.
        let lookers: Vec<_> = (0..24)
            .map(|number| {
                let blocked = mounted.path(&format!("blocked-{round}-{number}"));
                thread::spawn(move || fs::symlink_metadata(blocked).map(|meta| meta.is_file()))
            })
            .collect();
        gate.wait_until("all lookups are parked", |state| state.waiting.len() == 24);
        let mut text = String::new();
        File::open(mounted.path("plain")).unwrap().read_to_string(&mut text).unwrap();
        // By a thread that has no ring.
        assert_eq!(gate.open_gate(), 24);
        for looker in lookers {
            assert!(looker.join().unwrap().unwrap());
        }
    }
    mounted.unmount();
}

#[test]
fn killed_waiter_of_a_ring_goes_away_at_once() {
    let Some((gate, mounted)) = gate("killed_waiter_of_a_ring_goes_away_at_once") else { return };
    expect_killed_waiter_to_go(&gate, mounted);
}

#[test]
fn aborted_rings_release_waiting_callers() {
    let Some((gate, mounted)) = gate("aborted_rings_release_waiting_callers") else { return };
    expect_abort_to_release(&gate, mounted);
}

#[test]
fn rings_are_not_agreed_on_where_there_is_no_device() {
    let (kernel, session): (Kernel, Session) = Kernel::start(Arc::new(Floor::new()), &with_rings());
    assert!(!session.negotiated().uses_io_uring());
    kernel.send(Opcode::Statfs, 4, 1, &[]);
    assert_eq!(kernel.answer().unique, 4, "the device serves");
    kernel.unmount();
    session.wait().unwrap();
}
