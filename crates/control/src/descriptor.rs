//! File descriptors over the control socket: one byte that carries one descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use kvfs_socket::{receive_descriptors, send_descriptors};

/// The byte.
const CARRIER: u8 = 0xfd;

pub(super) fn send(socket: impl AsFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    send_descriptors(socket, &[CARRIER], &[descriptor])
}

pub(super) fn receive(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut found = receive_descriptors(socket, &mut byte)?;
    match found.pop() {
        Some(descriptor) if byte == [CARRIER] => Ok(descriptor),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no descriptor came")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_byte_without_a_descriptor_is_refused() {
        let (mut here, there) = UnixStream::pair().expect("sockets");
        here.write_all(&[CARRIER]).expect("writes");
        assert!(receive(&there).is_err());
    }
}
