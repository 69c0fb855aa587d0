//! Mounting as an ordinary user, by the setuid program `fusermount3`.
//!
//! It opens `/dev/fuse`, mounts, and passes the descriptor back through a socket whose number stands in
//! `_FUSE_COMMFD`. The socket is given to it as its standard input, so that no descriptor without
//! close-on-exec ever exists in this process.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use super::{MountError, MountOptions};

const PROGRAM: &str = "fusermount3";

/// Mounts and returns the connection's descriptor.
pub(super) fn mount(point: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| MountError::Descriptor { point: point.to_owned(), errno })?;
    let output = Command::new(PROGRAM)
        .arg("-o")
        .arg(options.fusermount_list())
        .arg("--")
        .arg(point)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|source| MountError::NoFusermount { source })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(MountError::Fusermount { point: point.to_owned(), message });
    }
    receive_descriptor(&ours).map_err(|errno| MountError::Descriptor { point: point.to_owned(), errno })
}

fn receive_descriptor(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => break,
        }
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message
            && let Some(fd) = fds.next()
        {
            return Ok(fd);
        }
    }
    Err(Errno::NOENT)
}

/// What a message of the program says beside the mount point, in whose path the same words may stand.
pub(super) fn reason(message: &str, point: &Path) -> String {
    message.replace(&*point.to_string_lossy(), "")
}

/// Unmounts.
pub(super) fn unmount(point: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(point);
    let output = command
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| MountError::NoFusermount { source })?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let point = point.to_owned();
    let reason = reason(&message, &point);
    Err(if reason.contains("busy") {
        MountError::Busy { point }
    } else if reason.contains("not found") || reason.contains("not mounted") || reason.contains("Invalid") {
        // It looks among the mounts of its caller alone.
        match super::table() {
            Ok(mounts) if mounts.iter().any(|mount| mount.point == point) => {
                MountError::NotPermitted { point }
            }
            _ => MountError::NotMounted { point },
        }
    } else {
        MountError::Fusermount { point, message }
    })
}
