//! File descriptors over the control socket: one byte that carries one descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// The byte.
const CARRIER: u8 = 0xfd;

pub(super) fn send(socket: impl AsFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    loop {
        let sent = sendmsg(&socket, &[IoSlice::new(&[CARRIER])], &mut control, SendFlags::NOSIGNAL);
        match sent {
            Ok(1) => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

pub(super) fn receive(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(_) => break,
        }
    }
    let found = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match found {
        Some(descriptor) if byte == [CARRIER] => Ok(descriptor),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no descriptor came")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_arrives_between_the_bytes_around_it() {
        let (mut here, mut there) = UnixStream::pair().expect("sockets");
        let (reading, writing) = rustix::pipe::pipe().expect("pipe");
        here.write_all(b"before").expect("writes");
        send(&here, writing.as_fd()).expect("sends");
        here.write_all(b"after").expect("writes");
        drop(writing);
        let mut before = [0; 6];
        there.read_exact(&mut before).expect("reads");
        let mut arrived = File::from(receive(&there).expect("receives"));
        let mut after = [0; 5];
        there.read_exact(&mut after).expect("reads");
        assert_eq!((&before, &after), (b"before", b"after"));
        arrived.write_all(b"through").expect("writes");
        drop(arrived);
        let mut text = String::new();
        File::from(reading).read_to_string(&mut text).expect("reads");
        assert_eq!(text, "through");
    }

    #[test]
    fn a_byte_without_a_descriptor_is_refused() {
        let (mut here, there) = UnixStream::pair().expect("sockets");
        here.write_all(&[CARRIER]).expect("writes");
        assert!(receive(&there).is_err());
    }
}
