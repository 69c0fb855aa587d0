//! What readers are about to come to: one thread reads it meanwhile.
//!
//! Purpose: a reader that goes through rows or small files spends as long on checksums and copies as the
//! device spends on the bytes; one behind the other the two take twice as long as they need to. Half-way
//! through a window the next one is put here; so is advice from above, which says what is read after that
//! ([`super::advice`]).
//!
//! Thread safety: all methods take `&self`. One lock, held for a few instructions, never during a read. No
//! reader depends on the thread: one that comes to a window before it was read reads it itself
//! ([`Window::fill`]).
//!
//! Invariant: a window in the queue has a reference on the zone that it is read from, so that a piece may be
//! dropped and its space used again without regard to what is still being read ahead.

use std::collections::VecDeque;
use std::sync::Arc;

use kvfs_device::Device;
use kvfs_locks::{Condvar, Mutex, class};

use super::windows::Window;
use crate::format::ZoneUse;
use crate::space::Zones;

/// Windows that wait at the same time: more mean that the device is behind, and each holds memory.
const WAITING_MAX: usize = 8;

/// Something to be done before a reader needs it.
pub(super) enum Request {
    /// A window to be read, and what keeps its bytes where they are.
    Window { window: Arc<Window>, hold: ZoneHold },
    /// Advice to be followed.
    Advice(Box<dyn FnOnce() + Send>),
}

/// A reference on what a piece has in one zone.
pub(super) struct ZoneHold {
    device: Arc<dyn Device>,
    zones: Arc<Zones>,
    zone_use: ZoneUse,
}

impl ZoneHold {
    pub(super) fn new(device: Arc<dyn Device>, zones: Arc<Zones>, zone_use: ZoneUse) -> Self {
        zones.retain_use(&zone_use);
        Self { device, zones, zone_use }
    }
}

impl Drop for ZoneHold {
    fn drop(&mut self) {
        self.zones.release_use(&self.zone_use);
    }
}

/// Closes the queue at the end of a block, however that ends.
pub(super) struct Closes<'a>(&'a Upcoming);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Request>,
    /// Whether there is a thread that takes them out.
    is_served: bool,
    is_closed: bool,
}

/// The queue of the windows that are to be read.
#[derive(Default)]
pub(super) struct Upcoming {
    queue: Mutex<Queue, class::KvdbTableUpcomingQueue>,
    wake: Condvar,
}

impl Upcoming {
    /// Whether it makes sense to plan ahead.
    pub(super) fn has_room(&self) -> bool {
        let queue = self.queue.lock();
        queue.is_served && queue.requests.len() < WAITING_MAX
    }

    /// Puts a request behind the others.
    pub(super) fn push(&self, request: Request) {
        let mut queue = self.queue.lock();
        if !queue.is_closed {
            queue.requests.push_back(request);
            self.wake.notify_one();
        }
    }

    /// Whether windows are read before a reader needs them.
    pub(super) fn is_served(&self) -> bool {
        self.queue.lock().is_served
    }

    /// Reads what is asked for, until [`Self::close`].
    pub(super) fn serve(&self) {
        // Nothing waits for a thread that is gone.
        let _closes = self.closes();
        while let Some(request) = self.next() {
            match request {
                // Its piece is gone, or its place was needed.
                Request::Window { window, .. } if Arc::strong_count(&window) == 1 => {}
                // What can't be read says so to the reader that needs it: it tries again, part by part.
                Request::Window { window, hold } => {
                    window.fill(|buf, addr| hold.device.read_at(buf, addr));
                }
                Request::Advice(follow) => follow(),
            }
        }
    }

    fn next(&self) -> Option<Request> {
        let mut queue = self.queue.lock();
        queue.is_served = !queue.is_closed;
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(request) = queue.requests.pop_front() {
                return Some(request);
            }
            self.wake.wait(&mut queue);
        }
    }

    pub(super) fn closes(&self) -> Closes<'_> {
        Closes(self)
    }

    /// Ends [`Self::serve`], now or when it begins.
    pub(super) fn close(&self) {
        let waiting = {
            let mut queue = self.queue.lock();
            (queue.is_served, queue.is_closed) = (false, true);
            std::mem::take(&mut queue.requests)
        };
        self.wake.notify_all();
        // Their zones are given back without the lock.
        drop(waiting);
    }
}
