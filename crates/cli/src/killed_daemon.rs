//! Daemons that were killed and can't end, since one of their threads waits in the kernel for an answer of
//! their own.
//!
//! A thread that has the kernel drop pages of a mount waits inside the kernel until these were written, and
//! SIGKILL does not end that. The descriptors of a process are closed when its last thread ends: until then
//! its connections stay, the store is in use, and its sockets take connections that no thread answers.
//! Aborting the connections of its mounts ends the wait: those that its remaining threads have open.
//!
//! Thread safety: plain functions. Invariants: of such a process only `stat` and descriptors are read, since
//! other files in `/proc` may wait as it does; no mount is asked anything; no connection is aborted of which
//! the dead process has no descriptor.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use kvfs_fuse::mount::abort_connection_of;
use kvfs_fuse::transport::DEVICE_PATH;
use kvfs_socket::{PeerCredentials, peer_credentials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::control;
use crate::error::{CliError, Code, Result};
use crate::mounts::MountedStore;
use crate::procs;

/// A process that waits for nothing has ended by then.
const EXIT_TIME: Duration = Duration::from_millis(500);

/// How long one may take whose connections were aborted, or that has much to give back, on a machine with
/// other work.
const ABORTED_EXIT_TIME_MAX: Duration = Duration::from_secs(5);

/// Has `pidfd_open` take any thread (Linux 6.9).
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// What root can do where nothing else helps.
const BY_HAND: &str = "as root, `umount -f` of each of its mounts ends such a wait, or \
                       `echo 1 > /sys/fs/fuse/connections/N/abort` for the number N of each";

/// Whether the daemon behind `stream` was killed, and may not have ended.
pub(crate) fn is_behind(stream: &UnixStream) -> bool {
    killed(stream).is_some()
}

/// Has the daemon behind `stream`, of the store `source`, end if it was killed and can't.
pub(crate) fn end(stream: &UnixStream, source: &Path) -> Result<()> {
    let Some(daemon) = killed(stream) else { return Ok(()) };
    if is_closed_within(stream, EXIT_TIME) {
        return Ok(());
    }
    let aborted = abort_connections(stream, daemon.pid);
    let (source, pid) = (source.display(), daemon.pid);
    // What could not be aborted need not be what it waits for.
    if !is_closed_within(stream, ABORTED_EXIT_TIME_MAX) {
        let (code, why) = match aborted {
            Err(error) => {
                let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
                let why = format!(
                    "it may wait for its own mounts, and their connections could not be aborted ({error}); {BY_HAND}"
                );
                (if is_denied { Code::Denied } else { Code::InUse }, why)
            }
            Ok(0) => (Code::InUse, format!("the kernel keeps it; {BY_HAND}")),
            Ok(_) => (
                Code::InUse,
                "the kernel keeps it, though the connections of its mounts were aborted".to_owned(),
            ),
        };
        let message = format!("the daemon of {source} (pid {pid}) was killed, and has not ended: {why}");
        return Err(CliError::new(code, message));
    }
    if aborted.is_ok_and(|count| count > 0) {
        eprintln!(
            "kvfs: the daemon of {source} (pid {pid}) was killed and waited for its own mounts: ended their connections"
        );
    }
    Ok(())
}

/// The same for the daemon of a mount.
pub(crate) fn end_of(mount: &MountedStore) -> Result<()> {
    // The directory that another user's mount names as its store may be anything.
    if !mount.is_trusted() {
        return Ok(());
    }
    match control::reach(mount) {
        Ok(stream) => end(&stream, &mount.store),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(unreached(&mount.store, &error)),
        Err(_) => Ok(()),
    }
}

/// The daemon of `source` lets no connection in, with `error`: which process it is can't be told.
pub(crate) fn unreached(source: &Path, error: &io::Error) -> CliError {
    let message = format!(
        "the daemon of {} does not answer ({error}); if it was killed, it may wait for its own mounts: {BY_HAND}",
        source.display()
    );
    CliError::new(Code::Failed, message)
}

/// The process that listens at the other end, if it is dead: its number is its own until it has closed that.
fn killed(stream: &UnixStream) -> Option<PeerCredentials> {
    peer_credentials(stream)
        .ok()
        .filter(|daemon| procs::are_of_this_namespace() && procs::is_dead(daemon.pid))
}

/// Whether the other end is closed, now or until `time_max` has passed.
fn is_closed_within(stream: &UnixStream, time_max: Duration) -> bool {
    let mut polled = [PollFd::new(stream, PollFlags::empty())];
    let time_max = Timespec::try_from(time_max).ok();
    matches!(retry_on_intr(|| poll(&mut polled, time_max.as_ref())), Ok(1..))
}

/// Aborts the connections of which the dead process `pid`, behind `stream`, has descriptors, and returns how
/// many; that it has ended meanwhile is no failure.
fn abort_connections(stream: &UnixStream, pid: u32) -> io::Result<usize> {
    let (devices, mut done) = devices_of(pid);
    let mut count = 0;
    for device in devices {
        // Only then the descriptor is of the process that was looked at.
        if is_closed_within(stream, Duration::ZERO) || !procs::is_dead(pid) {
            return Ok(count);
        }
        match abort_connection_of(device.as_fd()) {
            Ok(is_new) => count += usize::from(is_new),
            Err(error) => done = done.and(Err(error)),
        }
    }
    done.map(|()| count)
}

/// Descriptors of `/dev/fuse` that threads of a dead process have, and whether that is all of them. Each
/// keeps its connection as the process itself does.
fn devices_of(pid: u32) -> (Vec<OwnedFd>, io::Result<()>) {
    let mut devices = Vec::new();
    let mut done = Ok(());
    // The one of the process's number is dead, and has none.
    for thread in procs::numbers_in(&format!("/proc/{pid}/task")).filter(|&thread| thread != pid) {
        match devices_of_thread(pid, thread, &mut devices) {
            Err(error) if !has_ended(&error) => done = done.and(Err(error)),
            _ => {}
        }
    }
    (devices, done)
}

fn devices_of_thread(pid: u32, thread: u32, devices: &mut Vec<OwnedFd>) -> io::Result<()> {
    let directory = format!("/proc/{pid}/task/{thread}/fd");
    let entries = fs::read_dir(directory)?;
    let handle = thread.try_into().ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let handle = pidfd_open(handle, PIDFD_THREAD)?;
    for entry in entries {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse().ok()).ok_or(Errno::BADF)?;
        if fs::read_link(&path)? == Path::new(DEVICE_PATH) {
            devices.push(pidfd_getfd(&handle, number, PidfdGetfdFlags::empty())?);
        }
    }
    Ok(())
}

/// Whether the thread has ended that was asked for.
fn has_ended(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::SRCH, Errno::BADF]
        .map(|errno| Some(errno.raw_os_error()))
        .contains(&error.raw_os_error())
}
