//! Daemons that were killed and can't end, since one of their threads waits in the kernel for an answer of
//! their own.
//!
//! A thread that has the kernel drop pages of a mount waits inside the kernel until these were written, and
//! SIGKILL does not end that. The descriptors of a process are closed when its last thread ends: until then
//! its connections stay, the store is in use, and its sockets take connections that no thread answers.
//! Aborting the connections of its mounts ends the wait.
//!
//! Thread safety: plain functions. Invariants: of such a process only `stat` is read, since other files in
//! `/proc` may wait as it does; no mount is asked anything; connections of other users than the daemon's are
//! left alone.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use kvfs_fuse::mount::abort_connection;
use kvfs_socket::{PeerCredentials, peer_credentials};

use crate::control;
use crate::error::{CliError, Code, Result};
use crate::mounts::{self, MountedStore};
use crate::procs;

/// A process that waits for nothing has ended by then.
const EXIT_TIME: Duration = Duration::from_millis(500);

/// How long one may take whose connections were aborted, on a machine with other work.
const ABORTED_EXIT_TIME_MAX: Duration = Duration::from_secs(5);

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
    let of_daemon = |(mount, _): &(MountedStore, _)| mount.store == source && mount.is_of(daemon.uid);
    let devices: BTreeSet<_> =
        mounts::everywhere()?.into_iter().filter(of_daemon).map(|(mount, _)| mount.device).collect();
    for device in devices {
        match abort_connection(device) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(not_aborted(source, &daemon, &error));
            }
            _ => {}
        }
    }
    let (source, pid) = (source.display(), daemon.pid);
    if !is_closed_within(stream, ABORTED_EXIT_TIME_MAX) {
        let message =
            format!("the daemon of {source} (pid {pid}) was killed, and has not ended: the kernel keeps it");
        return Err(CliError::new(Code::InUse, message));
    }
    eprintln!(
        "kvfs: the daemon of {source} (pid {pid}) was killed and waited for its own mounts: ended their connections"
    );
    Ok(())
}

/// The same for the daemon of a mount.
pub(crate) fn end_of(mount: &MountedStore) -> Result<()> {
    // The directory that another user's mount names as its store may be anything.
    let stream = if mount.is_trusted() { control::reach(mount) } else { None };
    stream.map_or(Ok(()), |stream| end(&stream, &mount.store))
}

/// The process that listens at the other end, if it is dead: its number is its own until it has closed that.
fn killed(stream: &UnixStream) -> Option<PeerCredentials> {
    peer_credentials(stream).ok().filter(|daemon| procs::is_dead(daemon.pid))
}

/// Whether the other end is closed, now or until `time_max` has passed. It must send nothing.
fn is_closed_within(mut stream: &UnixStream, time_max: Duration) -> bool {
    if stream.set_read_timeout(Some(time_max)).is_err() {
        return false;
    }
    let is_closed = match stream.read(&mut [0]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    };
    stream.set_read_timeout(None).is_ok() && is_closed
}

fn not_aborted(source: &Path, daemon: &PeerCredentials, error: &io::Error) -> CliError {
    let (source, pid) = (source.display(), daemon.pid);
    let remedy = if daemon.uid == rustix::process::geteuid().as_raw() {
        "root has to `mount -t fusectl fusectl /sys/fs/fuse/connections`; then it can be tried again"
    } else {
        "as root, `kvfs umount --lazy` of its mount does that"
    };
    let message = format!(
        "the daemon of {source} (pid {pid}) was killed while it waits for its own mounts, and ends only when their \
         connections are aborted, which failed ({error}); {remedy}"
    );
    CliError::new(Code::Denied, message)
}
