//! The kernel's device, `/dev/fuse`.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fcntl_setfl, fstat, open};
use rustix::io::{Errno, read, write, writev};

use super::{Delivery, Received, Transport, clone};

/// Path of the device.
pub const DEVICE_PATH: &str = "/dev/fuse";

/// Its number.
const DEVICE_NUMBER: (u32, u32) = (10, 229);

/// So long a worker keeps its buffer while nothing is asked.
const LINGER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A descriptor of `/dev/fuse` that belongs to a connection.
#[derive(Debug)]
pub struct DeviceTransport {
    fd: OwnedFd,
    /// Where the daemon itself may end the receiving.
    event: Option<Arc<Event>>,
}

/// Wakes the workers that wait for a request, for good.
#[derive(Debug)]
struct Event {
    fd: OwnedFd,
    is_notified: AtomicBool,
}

impl DeviceTransport {
    /// Takes a descriptor that a mount belongs to. Only the kernel ends it.
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd, event: None }
    }

    /// As [`Self::new`], for a connection that the daemon ends, too ([`Transport::interrupt`]). Costs one
    /// more system call for a request that was waited for. The descriptor may come from another process.
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
        let event = Event { fd: eventfd(0, EventfdFlags::CLOEXEC)?, is_notified: AtomicBool::new(false) };
        Ok(Self { fd, event: Some(Arc::new(event)) })
    }

    /// Waits for a request or the event, at most for so long. False: that time is over.
    fn wait(&self, time_max: Option<&Timespec>) -> Result<bool, Errno> {
        let request = PollFd::new(&self.fd, PollFlags::IN);
        let polled = match &self.event {
            Some(event) => poll(&mut [request, PollFd::new(&event.fd, PollFlags::IN)], time_max),
            None => poll(&mut [request], time_max),
        };
        match polled {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    fn was_interrupted(&self) -> bool {
        self.event.as_ref().is_some_and(|event| event.is_notified.load(Ordering::Acquire))
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
                Err(Errno::AGAIN) if self.wait(Some(&LINGER))? => {}
                Err(Errno::AGAIN) => return Ok(Received::Idle),
                Ok(_) | Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::Ended),
                Err(errno) => return Err(errno),
            }
        }
        Ok(Received::Ended)
    }

    fn wait_for_request(&self) -> Result<(), Errno> {
        if self.was_interrupted() { Ok(()) } else { self.wait(None).map(drop) }
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
        let Some(event) = &self.event else { return false };
        event.is_notified.store(true, Ordering::Release);
        // Never read, so it stays so. A counter that is full is as good as one more.
        matches!(write(&event.fd, &1u64.to_ne_bytes()), Ok(_) | Err(Errno::AGAIN))
    }

    fn device(&self) -> Option<OwnedFd> {
        self.fd.try_clone().ok()
    }

    fn another(&self) -> Result<Box<dyn Transport>, Errno> {
        let fresh = open(DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        clone::attach(fresh.as_fd(), self.fd.as_fd())?;
        if self.event.is_some() {
            stop_blocking(fresh.as_fd())?;
        }
        Ok(Box::new(Self { fd: fresh, event: self.event.clone() }))
    }
}
