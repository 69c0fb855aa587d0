//! The kernel's device, `/dev/fuse`.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, writev};

use super::{Delivery, Received, Transport, clone};

/// Path of the device.
pub(crate) const DEVICE_PATH: &str = "/dev/fuse";

/// A descriptor of `/dev/fuse` that belongs to a connection.
#[derive(Debug)]
pub struct DeviceTransport {
    fd: OwnedFd,
}

impl DeviceTransport {
    /// Takes a descriptor that a mount belongs to.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl Transport for DeviceTransport {
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        loop {
            match read(&self.fd, &mut *buffer) {
                Ok(len) if len > 0 => return Ok(Received::Request(len)),
                // ENOENT: the request was taken back while it was being handed over.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                },
                Ok(_) | Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::Ended),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> Result<Delivery, Errno> {
        loop {
            match writev(&self.fd, parts) {
                Ok(_) => return Ok(Delivery::Delivered),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => return Ok(Delivery::Gone),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn another(&self) -> Result<Box<dyn Transport>, Errno> {
        let fresh = open(DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        clone::attach(fresh.as_fd(), self.fd.as_fd())?;
        Ok(Box::new(Self { fd: fresh }))
    }
}
