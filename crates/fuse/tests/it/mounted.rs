//! Against the real kernel, with one worker: nothing may wait for itself.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fuse::mount::{MountOptions, MountPoint, PointState, Unmount, mount, state};
use kvfs_fuse::notify::{Notification, Outcome};
use kvfs_fuse::session::SessionConfig;
use kvfs_fuse::transport::DeviceTransport;
use kvfs_fuse::{Operations, Session};
use parking_lot::Mutex;

use crate::floor::Floor;
use crate::gate::Gate;

const PATIENCE: Duration = Duration::from_secs(20);
const DAEMON_DIR: &str = "KVFS_TEST_DAEMON_DIR";
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Held while a process is started: until it runs its own program it has copies of all descriptors of this
/// one, and any of them keeps its mount busy.
static STARTING: Mutex<()> = Mutex::new(());

/// Starts a process. It has no descriptor of a mount that another test unmounts.
pub(crate) fn start(command: &mut Command) -> Child {
    let _starting = STARTING.lock();
    command.spawn().unwrap()
}

/// A mount of `operations` in a directory of its own.
pub(crate) struct Mounted {
    pub(crate) point: MountPoint,
    pub(crate) session: Option<Session>,
    dir: PathBuf,
}

/// Mounts, or says why it can't and gives `None`.
pub(crate) fn mount_or_skip(
    test: &str,
    operations: Arc<dyn Operations>,
    config: &SessionConfig,
) -> Option<Mounted> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {test}: needs root");
        return None;
    }
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED {test}: needs /dev/fuse");
        return None;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("kvfs-fuse-it-{}-{number}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let (point, device) = mount(&dir, &MountOptions::default()).unwrap();
    let session = Session::start(Box::new(DeviceTransport::new(device)), config, operations).unwrap();
    Some(Mounted { point, session: Some(session), dir })
}

impl Mounted {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    /// Unmounts and waits for the session's end.
    pub(crate) fn unmount(mut self) {
        {
            let _no_process_starts = STARTING.lock();
            self.point.unmount(Unmount::Clean).unwrap();
        }
        self.session.take().unwrap().wait().unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.session.is_none() {
            // The connection has ended, and another one may have its number by now.
            self.point.forget();
        }
        // Only after a failed test: nothing may be left behind.
        let _ = self.point.unmount(Unmount::Abort);
        let _ = fs::remove_dir(&self.dir);
    }
}

fn one_worker() -> SessionConfig {
    SessionConfig { workers: 1, ..SessionConfig::default() }
}

fn gate(test: &str) -> Option<(Gate, Mounted)> {
    let gate = Gate::default();
    let mounted = mount_or_skip(test, Arc::new(gate.clone()), &one_worker())?;
    Some((gate, mounted))
}

#[test]
fn notification_behind_a_blocked_lookup_blocks_no_other_request() {
    let Some((gate, mounted)) = gate("notification_behind_a_blocked_lookup_blocks_no_other_request") else {
        return;
    };
    let mut open = File::open(mounted.path("plain")).unwrap();
    let blocked = mounted.path("blocked");
    let looker = thread::spawn(move || fs::symlink_metadata(blocked).map(|meta| meta.is_file()));
    gate.wait_until("the lookup is parked", |state| state.waiting.len() == 1);

    // The kernel holds the root directory's lock for the lookup; the notification wants it, too.
    let (done, outcome) = mpsc::channel();
    let name = Bytes::from_static(b"plain");
    let notification = Notification::InvalEntry { parent: 1, name, expire_only: false };
    mounted
        .session()
        .notifier()
        .submit_then(notification, move |outcome| {
            done.send(outcome).unwrap();
        })
        .unwrap();

    // The only worker goes on serving.
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(open.metadata().unwrap().len(), 0);

    assert_eq!(gate.open_gate(), 1);
    assert!(looker.join().unwrap().unwrap());
    let outcome = outcome.recv_timeout(PATIENCE).unwrap();
    assert!(matches!(outcome, Outcome::Done | Outcome::NotCached), "{outcome:?}");
    drop(open);
    mounted.unmount();
}

/// A process that waits can be killed, which cancels its request.
pub(crate) fn expect_killed_waiter_to_go(gate: &Gate, mounted: Mounted) {
    let mut cat = Command::new("cat");
    let mut waiter = start(cat.arg(mounted.path("blocked")).stdout(Stdio::null()).stderr(Stdio::null()));
    gate.wait_until("the lookup is parked", |state| state.waiting.len() == 1);
    waiter.kill().unwrap();
    // Without the interrupt being answered, the process could not die and this would hang.
    waiter.wait().unwrap();
    gate.wait_until("the cancellation", |state| state.cancelled == 1);
    assert_eq!(mounted.session().parked_count(), 0);
    assert_eq!(gate.open_gate(), 0);
    mounted.unmount();
}

/// An abort of the connection answers what waits, and ends the session.
pub(crate) fn expect_abort_to_release(gate: &Gate, mut mounted: Mounted) {
    let blocked = mounted.path("blocked");
    let looker = thread::spawn(move || fs::symlink_metadata(blocked));
    gate.wait_until("the lookup is parked", |state| state.waiting.len() == 1);
    mounted.point.unmount(Unmount::Abort).unwrap();
    looker.join().unwrap().unwrap_err();
    mounted.session.take().unwrap().wait().unwrap();
    assert_eq!(gate.state().cancelled, 1);
}

#[test]
fn a_killed_waiter_goes_away_at_once() {
    let Some((gate, mounted)) = gate("a_killed_waiter_goes_away_at_once") else { return };
    expect_killed_waiter_to_go(&gate, mounted);
}

#[test]
fn aborted_connection_releases_waiting_callers() {
    let Some((gate, mounted)) = gate("aborted_connection_releases_waiting_callers") else { return };
    expect_abort_to_release(&gate, mounted);
}

#[test]
fn a_busy_mount_is_not_unmounted_cleanly() {
    let Some((_gate, mut mounted)) = gate("a_busy_mount_is_not_unmounted_cleanly") else { return };
    let open = File::open(mounted.path("plain")).unwrap();
    let error = mounted.point.unmount(Unmount::Clean).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    assert!(matches!(state(&mounted.dir), PointState::Mounted(mount) if mount.fs_type == "fuse.kvfs"));
    mounted.point.unmount(Unmount::CleanOrLazy).unwrap();
    assert_eq!(state(&mounted.dir), PointState::Free);
    assert_eq!(open.metadata().unwrap().len(), 0, "an open file goes on working");
    drop(open);
    mounted.session.take().unwrap().wait().unwrap();
}

/// Not a test of its own: a daemon, in a process of its own, started by the test below.
#[test]
fn daemon_process() {
    let Some(dir) = std::env::var_os(DAEMON_DIR) else { return };
    let (_point, device) = mount(Path::new(&dir), &MountOptions::default()).unwrap();
    let transport = Box::new(DeviceTransport::new(device));
    let session = Session::start(transport, &one_worker(), Arc::new(Floor::new())).unwrap();
    println!("mounted");
    session.wait().unwrap();
}

#[test]
fn a_mount_that_lost_its_daemon_is_recognised() {
    let test = "a_mount_that_lost_its_daemon_is_recognised";
    let Some((_gate, mounted)) = gate(test) else { return };
    let dir =
        mounted.dir.join("..").canonicalize().unwrap().join(format!("kvfs-stale-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    // A daemon of its own, killed when the kernel has the root's attributes in its cache.
    let mut daemon = Command::new(std::env::current_exe().unwrap());
    daemon.args(["daemon_process", "--nocapture"]).env(DAEMON_DIR, &dir).stdout(Stdio::piped());
    let mut daemon = start(&mut daemon);
    let lines = BufReader::new(daemon.stdout.take().unwrap()).lines();
    assert!(lines.map(Result::unwrap).any(|line| line.ends_with("mounted")));
    fs::metadata(&dir).unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert_eq!(state(&dir), PointState::Stale);
    let error = mount(&dir, &MountOptions::default()).unwrap_err();
    assert!(error.to_string().contains("daemon has died"), "{error}");
    kvfs_fuse::mount::unmount(&dir, Unmount::CleanOrLazy).unwrap();
    assert_eq!(state(&dir), PointState::Free);
    fs::remove_dir(&dir).unwrap();
    mounted.unmount();
}
