//! The kernel's device, `/dev/fuse`.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, open};
use rustix::io::{Errno, read, write, writev};

use super::{Delivery, Received, Transport, clone};

/// Path of the device.
pub(crate) const DEVICE_PATH: &str = "/dev/fuse";

/// Its number.
const DEVICE_NUMBER: (u32, u32) = (10, 229);

/// A descriptor of `/dev/fuse` that belongs to a connection.
#[derive(Debug)]
pub struct DeviceTransport {
    fd: OwnedFd,
    /// Where the daemon itself may end the receiving.
    bell: Option<Arc<Bell>>,
}

/// Wakes whoever waits for a request, for good.
#[derive(Debug)]
struct Bell {
    fd: OwnedFd,
    rung: AtomicBool,
}

impl DeviceTransport {
    /// Takes a descriptor that a mount belongs to. Only the kernel ends it.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd, bell: None }
    }

    /// As [`Self::new`], for a connection that the daemon ends, too ([`Transport::interrupt`]). Costs one more
    /// system call for a request that was waited for. The descriptor may come from another process.
    ///
    /// # Errors
    /// It is not one of `/dev/fuse`, or no descriptor is left.
    pub fn interruptible(fd: OwnedFd) -> Result<Self, Errno> {
        let found = fstat(&fd)?;
        let number = (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev));
        if FileType::from_raw_mode(found.st_mode) != FileType::CharacterDevice || number != DEVICE_NUMBER {
            return Err(Errno::NODEV);
        }
        stop_blocking(fd.as_fd())?;
        let bell = Bell { fd: eventfd(0, EventfdFlags::CLOEXEC)?, rung: AtomicBool::new(false) };
        Ok(Self { fd, bell: Some(Arc::new(bell)) })
    }

    /// Waits for a request or the bell.
    fn wait(&self) -> Result<(), Errno> {
        let request = PollFd::new(&self.fd, PollFlags::IN);
        let polled = match &self.bell {
            Some(bell) => poll(&mut [request, PollFd::new(&bell.fd, PollFlags::IN)], None),
            None => poll(&mut [request], None),
        };
        match polled {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn was_interrupted(&self) -> bool {
        self.bell.as_ref().is_some_and(|bell| bell.rung.load(Ordering::Acquire))
    }
}

fn stop_blocking(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)
}

impl Transport for DeviceTransport {
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        while !self.was_interrupted() {
            match read(&self.fd, &mut *buffer) {
                Ok(len) if len > 0 => return Ok(Received::Request(len)),
                // ENOENT: the request was taken back while it was being handed over.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => self.wait()?,
                Ok(_) | Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::Ended),
                Err(errno) => return Err(errno),
            }
        }
        Ok(Received::Ended)
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

    fn interrupt(&self) -> bool {
        let Some(bell) = &self.bell else { return false };
        bell.rung.store(true, Ordering::Release);
        // Never read, so it stays so. A counter that is full is as good as one more.
        matches!(write(&bell.fd, &1u64.to_ne_bytes()), Ok(_) | Err(Errno::AGAIN))
    }

    fn another(&self) -> Result<Box<dyn Transport>, Errno> {
        let fresh = open(DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        clone::attach(fresh.as_fd(), self.fd.as_fd())?;
        if self.bell.is_some() {
            stop_blocking(fresh.as_fd())?;
        }
        Ok(Box::new(Self { fd: fresh, bell: self.bell.clone() }))
    }
}
