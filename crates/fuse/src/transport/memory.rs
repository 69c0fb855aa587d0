//! A connection to a kernel that a test plays.
//!
//! Thread safety: both ends may be used from any thread. Closing the kernel's end ends the session, as an
//! unmount does.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use super::{Delivery, Received, Transport};

#[derive(Default)]
struct Queue {
    state: Mutex<(VecDeque<Vec<u8>>, bool)>,
    changed: Condvar,
}

impl Queue {
    fn push(&self, message: Vec<u8>) -> bool {
        let mut state = self.state.lock();
        if state.1 {
            return false;
        }
        state.0.push_back(message);
        self.changed.notify_one();
        true
    }

    fn pop(&self, timeout: Option<Duration>) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        loop {
            if let Some(message) = state.0.pop_front() {
                return Some(message);
            }
            if state.1 {
                return None;
            }
            match timeout {
                None => self.changed.wait(&mut state),
                Some(timeout) => {
                    if self.changed.wait_for(&mut state, timeout).timed_out() {
                        return state.0.pop_front();
                    }
                }
            }
        }
    }

    fn close(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }
}

#[derive(Default)]
struct Connection {
    requests: Queue,
    replies: Queue,
}

/// The daemon's end.
pub struct MemoryTransport {
    connection: Arc<Connection>,
}

/// The kernel's end. Dropping it ends the connection.
pub struct FakeKernel {
    connection: Arc<Connection>,
}

/// A connected pair.
pub fn pair() -> (MemoryTransport, FakeKernel) {
    let connection = Arc::new(Connection::default());
    (MemoryTransport { connection: Arc::clone(&connection) }, FakeKernel { connection })
}

impl FakeKernel {
    /// Sends a request. False: the connection has ended.
    pub fn send(&self, request: Vec<u8>) -> bool {
        self.connection.requests.push(request)
    }

    /// The next reply or notification, if one comes within `timeout`.
    pub fn receive(&self, timeout: Duration) -> Option<Vec<u8>> {
        self.connection.replies.pop(Some(timeout))
    }

    /// Ends the connection, as an unmount does.
    pub fn unmount(&self) {
        self.connection.requests.close();
        self.connection.replies.close();
    }
}

impl Drop for FakeKernel {
    fn drop(&mut self) {
        self.unmount();
    }
}

impl Transport for MemoryTransport {
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        let Some(message) = self.connection.requests.pop(None) else { return Ok(Received::Ended) };
        let space = buffer.get_mut(..message.len()).ok_or(Errno::INVAL)?;
        space.copy_from_slice(&message);
        Ok(Received::Request(message.len()))
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> Result<Delivery, Errno> {
        let message = parts.iter().flat_map(|part| part.iter().copied()).collect();
        Ok(if self.connection.replies.push(message) { Delivery::Delivered } else { Delivery::Gone })
    }

    fn interrupt(&self) -> bool {
        self.connection.requests.close();
        true
    }

    fn another(&self) -> Result<Box<dyn Transport>, Errno> {
        Ok(Box::new(Self { connection: Arc::clone(&self.connection) }))
    }
}
