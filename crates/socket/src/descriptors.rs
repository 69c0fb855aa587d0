//! File descriptors over a socket, with the bytes that say what they are.
//!
//! Thread safety: functions; one message at a time on a socket. None allocates, so they may be called in a
//! signal handler.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of one message.
pub const DESCRIPTORS_MAX: usize = 16;

/// Those of a message.
pub type Descriptors = ArrayVec<OwnedFd, DESCRIPTORS_MAX>;

/// Sends `bytes`, and `descriptors` with the first of them.
///
/// # Errors
/// The socket fails; more than [`DESCRIPTORS_MAX`]; no bytes.
pub fn send_descriptors(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL.into());
    }
    let mut sent = 0;
    while sent < bytes.len() {
        match sendmsg(&socket, &[IoSlice::new(&bytes[sent..])], &mut control, SendFlags::NOSIGNAL) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(len) => sent += len,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        control.clear();
    }
    Ok(())
}

/// Receives exactly as many bytes as there is room for, and the descriptors that come with them; these close
/// on exec.
///
/// # Errors
/// The socket fails; `UnexpectedEof`: it ends before.
pub fn receive_descriptors(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Descriptors> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let (mut found, mut received) = (Descriptors::new(), 0);
    while received < bytes.len() {
        let rest = &mut [IoSliceMut::new(&mut bytes[received..])];
        match recvmsg(&socket, rest, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) if message.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(message) => received += message.bytes,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                // What is too much is closed.
                found.extend(descriptors.take(found.remaining_capacity()));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_arrive_between_the_bytes_around_them() {
        let (mut here, mut there) = UnixStream::pair().expect("sockets");
        let (reading, writing) = rustix::pipe::pipe().expect("pipe");
        here.write_all(b"before").expect("writes");
        send_descriptors(&here, b"two", &[writing.as_fd(), writing.as_fd()]).expect("sends");
        here.write_all(b"after").expect("writes");
        drop(writing);
        let mut before = [0; 6];
        there.read_exact(&mut before).expect("reads");
        let mut with = [0; 3];
        let arrived = receive_descriptors(&there, &mut with).expect("receives");
        let mut after = [0; 5];
        there.read_exact(&mut after).expect("reads");
        assert_eq!((&before, &with, &after, arrived.len()), (b"before", b"two", b"after", 2));
        for descriptor in arrived {
            File::from(descriptor).write_all(b"through ").expect("writes");
        }
        let mut text = String::new();
        File::from(reading).read_to_string(&mut text).expect("reads");
        assert_eq!(text, "through through ");
    }

    #[test]
    fn a_socket_that_ends_gives_no_descriptors() {
        let (here, there) = UnixStream::pair().expect("sockets");
        drop(here);
        let outcome = receive_descriptors(&there, &mut [0; 1]);
        assert_eq!(outcome.expect_err("ends").kind(), io::ErrorKind::UnexpectedEof);
    }
}
