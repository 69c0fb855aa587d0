//! How requests come in and replies go out.
//!
//! Purpose: [`Transport`] is the seam between the protocol and the kernel: [`DeviceTransport`] speaks to
//! `/dev/fuse`, `ring` by `io_uring`, [`memory`] to a kernel that a test plays.
//! Thread safety: transports are shared between a worker, which alone receives, and any number of threads
//! that send. Requests must be answered on the transport that received them: the kernel keeps the list of
//! running requests per device descriptor.

mod buffer;
mod clone;
mod device;
pub mod memory;
mod ring;

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

pub use buffer::{BufferPool, Message, RequestBuffer};
pub use device::{DEVICE_PATH, DeviceTransport};
pub(crate) use ring::{OverflowRing, Rings};

/// What a receive brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// One request of so many bytes.
    Request(usize),
    /// Nothing for a while, from a transport that the daemon may end: give the buffer back, and go on after
    /// [`Transport::wait_for_request`].
    Idle,
    /// The file system is unmounted or the connection aborted: there will be no more requests.
    Ended,
}

/// What became of a message to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// The kernel took it.
    Delivered,
    /// No request waits for it any more: it was aborted or the connection ended. What the reply would
    /// have given to the kernel (a lookup count, a handle) was not taken.
    Gone,
}

/// One channel to the kernel.
pub trait Transport: Send + Sync + 'static {
    /// Waits for the next request and puts it into `buffer`, which must have room for the largest one
    /// (`max_write` + 80 bytes, at least 8192).
    ///
    /// # Errors
    /// Only what can't be cured by trying again.
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno>;

    /// Waits for the next request and takes nothing: after [`Received::Idle`], without a buffer. Returns
    /// early at will.
    ///
    /// # Errors
    /// As [`Self::receive`].
    fn wait_for_request(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Sends one message, made of `parts`, at once.
    ///
    /// # Errors
    /// The kernel refused the message: it is malformed, or a notification it can't carry out.
    fn send(&self, parts: &[IoSlice<'_>]) -> Result<Delivery, Errno>;

    /// Ends the receiving, now and later, on this channel and on every other one that was made from it.
    /// False: this transport can't; only the kernel ends it.
    fn interrupt(&self) -> bool {
        false
    }

    /// The device, for rings; `None`: there is none.
    fn device(&self) -> Option<OwnedFd> {
        None
    }

    /// Another channel to the same connection, for another worker.
    ///
    /// # Errors
    /// The system can't give one; workers may then share this one.
    fn another(&self) -> Result<Box<dyn Transport>, Errno>;
}
