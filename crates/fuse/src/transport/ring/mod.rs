//! Requests and replies by `io_uring` instead of the device (`-o io_uring`; Linux 6.14, module parameter
//! `enable_uring`).
//!
//! Purpose: the kernel has a queue for each CPU, and gives a request to an entry of the queue of the CPU that
//! it was made on. Here each worker has a ring of its own with one entry, and stays on the CPU of its queue:
//! request and reply are two switches of context there, and programs on different CPUs have nothing in
//! common. FORGET, INTERRUPT and notifications still use the device. docs/decisions/io-uring.md has the
//! figures.
//!
//! An entry is bound to its request until it is answered, and to the thread that gave it back to the kernel
//! last. So a reply that is given by another thread goes to a worker whose entry waits for an answer, or to
//! the *overflow ring*. That thread also adds entries where too many wait for answers, and hands requests
//! that come to it to a worker that waits ([`exchange`]). No request waits for an entry while one is idle:
//! [`primer`].
//!
//! Thread safety: [`RingTransport`] as every transport: one thread receives, any number sends. Invariants: a
//! reply with content has been taken by the kernel when `send` returns, as on the device: what follows it,
//! such as a notification, comes after it. The overflow ring never waits for anything but its ring, so a
//! reply never needs a worker. The memory of entries is freed after the rings.

mod entry;
mod exchange;
mod primer;
mod queue;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};

use kvfs_locks::{Mutex, RwLock, class};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zerocopy::{FromBytes, IntoBytes};

use super::{Delivery, Received, Transport};
use crate::abi::OutHeader;
use entry::Entry;
use exchange::{Exchange, Wake};
use primer::Primer;
use queue::{Completion, Queue};

/// What all rings of a session share.
struct Shared {
    device: OwnedFd,
    /// Never shorter than it was.
    entries: RwLock<Vec<Arc<Entry>>, class::FuseTransportRingEntries>,
    exchange: Exchange,
    /// One for each worker, and the last one for the overflow ring.
    events: Vec<OwnedFd>,
    payload_bytes_max: usize,
    has_ended: AtomicBool,
}

/// A ring at work.
struct Ring {
    queue: Queue,
    /// Entries that wait for requests here.
    waiting: usize,
    /// Entries with requests, not looked at yet.
    arrived: VecDeque<usize>,
    /// The entry whose request this thread serves, and the request.
    serves: Option<(usize, u64)>,
}

/// One worker's channel.
pub(crate) struct RingTransport {
    /// Away while the thread that receives waits. Dropped first: the kernel may know entries by it.
    ring: Mutex<Option<Ring>, class::FuseTransportRing>,
    shared: Arc<Shared>,
    worker: usize,
    /// The CPU whose requests it takes.
    cpu: u16,
    /// The thread that receives, from when it first does.
    thread: OnceLock<ThreadId>,
}

/// The ring for what the workers can't do; a thread of its own runs it.
pub(crate) struct OverflowRing {
    shared: Arc<Shared>,
    queue: Queue,
    /// Queues without a worker, each of which has an entry here.
    queues: Vec<u16>,
    primer: Primer,
}

/// Rings that the kernel does not know of yet.
pub(crate) struct Rings {
    pub(crate) workers: Vec<RingTransport>,
    pub(crate) overflow: OverflowRing,
}

impl Rings {
    /// For the connection of `device`: `workers` at least, one or more for each CPU that is there.
    ///
    /// # Errors
    /// The system gives no rings: it is too old, or forbids them to this user.
    pub(crate) fn prepare(device: OwnedFd, workers: usize, payload_bytes_max: usize) -> Result<Self, Errno> {
        let queues = cpus("possible")?.last().map_or(1, |last| last + 1);
        let online = cpus("online")?;
        let allowed = sched_getaffinity(None)?;
        let is_allowed = |&cpu: &u16| usize::from(cpu) < CpuSet::MAX_CPU && allowed.is_set(usize::from(cpu));
        if !online.iter().all(is_allowed) {
            tracing::warn!("this process may not use all CPUs, which rings need");
            return Err(Errno::PERM);
        }
        let count = workers.next_multiple_of(online.len());
        let of_workers: Vec<u16> = online.iter().copied().cycle().take(count).collect();
        let primer = Primer::new(&device)?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let shared = Arc::new(Shared {
            device,
            entries: RwLock::default(),
            exchange: Exchange::new(&of_workers, queues),
            events: (0..=of_workers.len()).map(|_| event()).collect::<Result<_, _>>()?,
            payload_bytes_max,
            has_ended: AtomicBool::new(false),
        });
        let worker = |(worker, &cpu): (usize, &u16)| {
            let shared = Arc::clone(&shared);
            let ring = Mutex::new(Some(Ring::new(Queue::new()?)));
            Ok(RingTransport { shared, worker, cpu, thread: OnceLock::new(), ring })
        };
        let workers = of_workers.iter().enumerate().map(worker).collect::<Result<_, Errno>>()?;
        let queues = (0..queues).filter(|queue| !of_workers.contains(queue)).collect();
        Ok(Self { workers, overflow: OverflowRing { shared, queue: Queue::new()?, queues, primer } })
    }
}

/// The CPUs of that kind; one at least.
fn cpus(kind: &str) -> Result<Vec<u16>, Errno> {
    let list =
        std::fs::read_to_string(format!("/sys/devices/system/cpu/{kind}")).map_err(|_| Errno::NOSYS)?;
    parse_list(list.trim()).filter(|cpus| !cpus.is_empty()).ok_or(Errno::NOSYS)
}

/// The numbers of a list such as `0-3,8`.
fn parse_list(list: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        numbers.extend(first.parse::<u16>().ok()?..=last.parse().ok().filter(|&last| last < u16::MAX)?);
    }
    Some(numbers)
}

impl Shared {
    fn entry(&self, index: usize) -> Option<Arc<Entry>> {
        self.entries.read().get(index).cloned()
    }

    /// Adds an entry to a queue.
    fn add(&self, queue: u16) -> (usize, Arc<Entry>) {
        let entry = Arc::new(Entry::new(queue, self.payload_bytes_max));
        let mut entries = self.entries.write();
        entries.push(Arc::clone(&entry));
        (entries.len() - 1, entry)
    }

    /// The entry with this request. O(entries).
    fn find(&self, unique: u64) -> Option<(usize, Arc<Entry>)> {
        let entries = self.entries.read();
        let index = entries.iter().position(|entry| entry.unique() == unique)?;
        Some((index, Arc::clone(&entries[index])))
    }

    fn wake(&self, wake: Wake) {
        let event = match wake {
            Wake::None => return,
            Wake::Worker(worker) => &self.events[worker],
            Wake::Overflow => &self.events[self.events.len() - 1],
        };
        // A counter that is full is as good as one more.
        let _ = write(event, &1u64.to_ne_bytes());
    }

    /// Has a worker that waits serve the request of an entry.
    fn offer(&self, index: usize) {
        if let Some(entry) = self.entry(index) {
            self.wake(self.exchange.offer((index, entry.queue)));
        }
    }

    /// Has a thread that can do so give the answered entry back. Returns when the kernel has it, if `waits`.
    fn give(&self, index: usize, entry: &Entry, waits: bool) {
        let commits = entry.commits();
        let was_parked = || entry.is_parked.swap(false, Ordering::AcqRel);
        self.wake(self.exchange.give((index, entry.queue), was_parked));
        if waits {
            self.exchange.wait_until(|| entry.commits() != commits || self.has_ended());
        }
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// There will be no more requests.
    fn end(&self) {
        if self.has_ended.swap(true, Ordering::SeqCst) {
            return;
        }
        for event in &self.events {
            let _ = write(event, &1u64.to_ne_bytes());
        }
        self.exchange.end();
    }
}

impl Ring {
    fn new(queue: Queue) -> Self {
        Self { queue, waiting: 0, arrived: VecDeque::new(), serves: None }
    }

    /// Gives answered entries back to the kernel, which has them when this returns.
    fn give_back(&mut self, shared: &Shared, indices: &[usize]) -> Result<(), Errno> {
        for &index in indices {
            if let Some(entry) = shared.entry(index) {
                self.queue.commit(shared.device.as_fd(), (index, &entry))?;
                entry.note_commit();
                self.waiting += 1;
            }
        }
        self.queue.submit()
    }

    /// Takes what has completed, and watches the event again if it was among it.
    fn collect(&mut self, shared: &Shared, event: &OwnedFd) -> Result<(), Errno> {
        let mut is_event = false;
        while let Some(completion) = self.queue.next() {
            match completion {
                Completion::Event => is_event = true,
                Completion::Entry(index, Ok(())) => {
                    self.waiting -= 1;
                    let Some(entry) = shared.entry(index) else { continue };
                    entry.arrive();
                    self.arrived.push_back(index);
                }
                Completion::Entry(_, Err(errno)) => {
                    if !matches!(errno, Errno::NOTCONN | Errno::CANCELED) {
                        tracing::warn!(%errno, "the kernel refused an entry: requests come by the device");
                    }
                    self.waiting -= 1;
                    shared.end();
                }
            }
        }
        if is_event {
            let mut counter = [0; 8];
            let _ = read(event, &mut counter);
            self.queue.watch(event.as_fd())?;
        }
        Ok(())
    }
}

impl RingTransport {
    fn event(&self) -> &OwnedFd {
        &self.shared.events[self.worker]
    }

    /// Makes the ring known to the kernel; called by the thread that receives.
    fn enable(&self, ring: &mut Ring) -> Result<(), Errno> {
        self.thread.get_or_init(|| thread::current().id());
        let mut cpus = CpuSet::new();
        if usize::from(self.cpu) < CpuSet::MAX_CPU {
            cpus.set(usize::from(self.cpu));
            // Refused where this process may not use that CPU: then it serves from another one.
            if let Err(errno) = sched_setaffinity(None, &cpus) {
                tracing::debug!(%errno, cpu = self.cpu, "a worker could not be placed");
            }
        }
        ring.queue.enable()?;
        let (index, entry) = self.shared.add(self.cpu);
        entry.warm();
        ring.queue.watch(self.event().as_fd())?;
        ring.queue.register(self.shared.device.as_fd(), (index, &entry))?;
        ring.waiting += 1;
        Ok(())
    }

    /// What was served last and is not answered waits for another thread.
    fn put_aside(&self, ring: &mut Ring) {
        let Some((index, unique)) = ring.serves.take() else { return };
        let Some(entry) = self.shared.entry(index).filter(|entry| entry.unique() == unique) else { return };
        let wake = self.shared.exchange.park(entry.queue, || {
            let is_unanswered = entry.unique() == unique;
            entry.is_parked.store(is_unanswered, Ordering::Release);
            is_unanswered
        });
        self.shared.wake(wake);
    }

    fn next(&self, ring: &mut Ring, buffer: &mut [u8]) -> Result<Received, Errno> {
        let Self { shared, worker, .. } = self;
        if self.thread.get().is_none() {
            self.enable(ring)?;
        }
        self.put_aside(ring);
        loop {
            if shared.has_ended() {
                return Ok(Received::Ended);
            }
            while let Some(index) = ring.arrived.pop_front().or_else(|| shared.exchange.take_request()) {
                if let Some(len) = self.take(ring, index, buffer) {
                    return Ok(Received::Request(len));
                }
            }
            let waits = shared.exchange.rest(*worker, ring.waiting == 0);
            let waited = if waits { ring.queue.wait() } else { Ok(()) };
            let adopted = shared.exchange.rouse(*worker);
            if !adopted.is_empty() {
                ring.give_back(shared, &adopted)?;
                shared.exchange.announce();
            }
            waited?;
            ring.collect(shared, self.event())?;
            // One is served here; others would wait for it.
            while ring.arrived.len() > 1 {
                if let Some(index) = ring.arrived.pop_back() {
                    shared.offer(index);
                }
            }
        }
    }

    /// Takes the request of an entry. `None`: it is none, and was answered with an error.
    fn take(&self, ring: &mut Ring, index: usize, buffer: &mut [u8]) -> Option<usize> {
        let entry = self.shared.entry(index)?;
        let unique = entry.unique();
        match entry.copy_request(buffer) {
            Ok(len) => {
                ring.serves = Some((index, unique));
                Some(len)
            }
            Err(error) => {
                tracing::error!(unique, ?error, "refused a request");
                let len = size_of::<OutHeader>() as u32;
                let header = OutHeader { len, error: -Errno::IO.raw_os_error(), unique };
                if entry.answer(unique, &[IoSlice::new(header.as_bytes())]) == Ok(true) {
                    self.shared.give(index, &entry, false);
                }
                None
            }
        }
    }

    /// The ring, if the calling thread is the one that receives, and the ring has no other entry to take
    /// requests by.
    fn own_commit(&self, index: usize) -> Option<Result<(), Errno>> {
        if self.thread.get() != Some(&thread::current().id()) {
            return None;
        }
        let mut ring = self.ring.lock();
        let ring = ring.as_mut().filter(|ring| ring.waiting == 0)?;
        Some(ring.give_back(&self.shared, &[index]))
    }
}

impl Transport for RingTransport {
    fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        let Some(mut ring) = self.ring.lock().take() else { return Ok(Received::Ended) };
        let received = self.next(&mut ring, buffer);
        if matches!(received, Ok(Received::Ended) | Err(_)) {
            self.shared.end();
        }
        *self.ring.lock() = Some(ring);
        received
    }

    fn send(&self, parts: &[IoSlice<'_>]) -> Result<Delivery, Errno> {
        let Some(Ok((header, _))) = parts.first().map(|head| OutHeader::read_from_prefix(head)) else {
            return Err(Errno::INVAL);
        };
        let Some((index, entry)) = self.shared.find(header.unique).filter(|_| header.unique != 0) else {
            return Ok(Delivery::Gone);
        };
        match entry.answer(header.unique, parts) {
            Ok(true) => {}
            Ok(false) => return Ok(Delivery::Gone),
            Err(_) => return Err(Errno::INVAL),
        }
        match self.own_commit(index) {
            Some(Ok(())) => Ok(Delivery::Delivered),
            Some(Err(errno)) => Err(errno),
            None => {
                self.shared.give(index, &entry, parts.len() > 1);
                Ok(if self.shared.has_ended() { Delivery::Gone } else { Delivery::Delivered })
            }
        }
    }

    fn interrupt(&self) -> bool {
        self.shared.end();
        true
    }

    fn another(&self) -> Result<Box<dyn Transport>, Errno> {
        Err(Errno::NOSYS)
    }
}

impl OverflowRing {
    /// Serves until the connection ends.
    ///
    /// # Errors
    /// The ring fails; the connection has ended then.
    pub(crate) fn run(self) -> Result<(), Errno> {
        let shared = Arc::clone(&self.shared);
        let ended = self.serve();
        shared.end();
        ended
    }

    fn serve(self) -> Result<(), Errno> {
        let Self { shared, queue, queues, primer } = self;
        let mut ring = Ring::new(queue);
        ring.queue.enable()?;
        let event = &shared.events[shared.events.len() - 1];
        ring.queue.watch(event.as_fd())?;
        let add = |ring: &mut Ring, queue| {
            let (index, entry) = shared.add(queue);
            ring.waiting += 1;
            ring.queue.register(shared.device.as_fd(), (index, &entry))
        };
        queues.into_iter().try_for_each(|queue| add(&mut ring, queue))?;
        while !shared.has_ended() {
            ring.queue.wait()?;
            ring.collect(&shared, event)?;
            ring.arrived.drain(..).for_each(|index| shared.offer(index));
            let duties = shared.exchange.duties();
            if !duties.answers.is_empty() {
                ring.give_back(&shared, &duties.answers)?;
                shared.exchange.announce();
            }
            for queue in duties.short {
                add(&mut ring, queue)?;
                ring.queue.submit()?;
                primer.prime(&shared, queue);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("0-70000"), None);
    }
}
