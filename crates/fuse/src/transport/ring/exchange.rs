//! What the threads of the rings hand to one another: requests that came to a thread that can't serve them,
//! and answers that were given by a thread that can't send them.
//!
//! Thread safety: shared. A worker's state is an atomic; everything else is under one short lock. Invariants:
//! only a worker that waits is woken, and is woken once ([`State::Woken`]), so that it looks here before
//! anything else; what no worker that waits is there for stays with the overflow ring, whose thread never
//! waits for anything but its ring.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use kvfs_locks::{Condvar, Mutex, class};

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// It serves a request.
    Busy,
    /// It waits, and one of its entries does.
    Idle,
    /// It waits, and none of its entries does: they wait for answers.
    Empty,
    /// It was waiting, and is to look here.
    Woken,
}

/// One worker, as others see it.
struct Worker {
    /// The queue whose requests it takes.
    queue: u16,
    state: AtomicU8,
}

/// The entries of one queue, counted.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    all: u32,
    /// Those whose request waits with no thread at it.
    parked: u32,
}

#[derive(Default)]
struct Inner {
    /// Entries whose requests no thread serves yet.
    requests: VecDeque<usize>,
    /// Answered entries that the overflow ring is to give back.
    answers: Vec<usize>,
    /// The same, for each worker.
    adopted: Vec<Vec<usize>>,
    counts: Vec<Count>,
    /// Queues that need one more entry.
    short: Vec<u16>,
    /// Queues that need one more request.
    unprimed: VecDeque<u16>,
    /// Primers that wait for one.
    idle_primers: usize,
    has_ended: bool,
}

/// Who is to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    Worker(usize),
    Overflow,
    None,
}

/// What the overflow ring is to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Duties {
    /// Entries to be given back.
    pub(super) answers: Vec<usize>,
    /// Queues that get one more entry each.
    pub(super) short: Vec<u16>,
}

/// An entry, and its queue.
pub(super) type Place = (usize, u16);

pub(super) struct Exchange {
    workers: Vec<Worker>,
    /// Whether there are requests that no thread serves yet.
    has_requests: AtomicBool,
    inner: Mutex<Inner, class::FuseTransportRingExchange>,
    committed: Condvar,
    is_unprimed: Condvar,
}

/// Entries of a queue that are not parked, at least: one may be with a worker that waits for the disk.
const FREE_MIN: u32 = 2;

impl Exchange {
    /// For workers of these queues, each with an entry; every other of the `queues` has one with the overflow
    /// ring.
    pub(super) fn new(workers: &[u16], queues: u16) -> Self {
        let mut counts = vec![Count::default(); usize::from(queues)];
        for &queue in workers {
            counts[usize::from(queue)].all += 1;
        }
        for count in &mut counts {
            count.all = count.all.max(1);
        }
        let adopted = vec![Vec::new(); workers.len()];
        let worker = |&queue| Worker { queue, state: AtomicU8::new(State::Busy as u8) };
        Self {
            workers: workers.iter().map(worker).collect(),
            has_requests: AtomicBool::new(false),
            inner: Mutex::new(Inner { adopted, counts, ..Inner::default() }),
            committed: Condvar::new(),
            is_unprimed: Condvar::new(),
        }
    }

    /// A worker is about to wait. False: there is something for it here.
    pub(super) fn rest(&self, worker: usize, is_empty: bool) -> bool {
        let state = if is_empty { State::Empty } else { State::Idle };
        self.workers[worker].state.store(state as u8, Ordering::SeqCst);
        !self.has_requests.load(Ordering::SeqCst)
    }

    /// A worker does not wait any more: the entries that it is to give back.
    pub(super) fn rouse(&self, worker: usize) -> Vec<usize> {
        let before = self.workers[worker].state.swap(State::Busy as u8, Ordering::SeqCst);
        if before != State::Woken as u8 {
            return Vec::new();
        }
        std::mem::take(&mut self.inner.lock().adopted[worker])
    }

    /// A request that no thread serves yet.
    pub(super) fn take_request(&self) -> Option<usize> {
        if !self.has_requests.load(Ordering::SeqCst) {
            return None;
        }
        let mut inner = self.inner.lock();
        let request = inner.requests.pop_front();
        self.has_requests.store(!inner.requests.is_empty(), Ordering::SeqCst);
        request
    }

    /// A request has come to a thread that can't serve it.
    pub(super) fn offer(&self, (entry, queue): Place) -> Wake {
        let mut inner = self.inner.lock();
        inner.requests.push_back(entry);
        // Before a worker is looked for: one that is about to wait sees this, or is seen.
        self.has_requests.store(true, Ordering::SeqCst);
        let near = |worker: &Worker| worker.queue == queue;
        let wakes = [(State::Empty, true), (State::Idle, true), (State::Empty, false), (State::Idle, false)];
        let woken =
            wakes.into_iter().find_map(|(state, is_near)| self.wake(state, |worker| near(worker) == is_near));
        woken.map_or(Wake::None, Wake::Worker)
    }

    /// An entry is answered by a thread that can't give it back. `was_parked` says, under the lock, what
    /// [`Self::park`] had said.
    pub(super) fn give(&self, (entry, queue): Place, was_parked: impl FnOnce() -> bool) -> Wake {
        let mut inner = self.inner.lock();
        if was_parked() {
            inner.counts[usize::from(queue)].parked -= 1;
        }
        if let Some(worker) = self.wake(State::Empty, |worker| worker.queue == queue) {
            inner.adopted[worker].push(entry);
            return Wake::Worker(worker);
        }
        inner.answers.push(entry);
        Wake::Overflow
    }

    /// The thread that had the request of an entry is through with it. `is_unanswered` is asked under the
    /// lock: then it counts as parked.
    pub(super) fn park(&self, queue: u16, is_unanswered: impl FnOnce() -> bool) -> Wake {
        let mut inner = self.inner.lock();
        if !is_unanswered() {
            return Wake::None;
        }
        let count = &mut inner.counts[usize::from(queue)];
        count.parked += 1;
        if count.all - count.parked >= FREE_MIN {
            return Wake::None;
        }
        count.all += 1;
        inner.short.push(queue);
        Wake::Overflow
    }

    /// What the overflow ring is to do now.
    pub(super) fn duties(&self) -> Duties {
        let mut inner = self.inner.lock();
        Duties { answers: std::mem::take(&mut inner.answers), short: std::mem::take(&mut inner.short) }
    }

    /// An entry was added to this queue. True: no primer waits that could make a request, so one more is
    /// needed.
    pub(super) fn ask_for_priming(&self, queue: u16) -> bool {
        let mut inner = self.inner.lock();
        if !inner.unprimed.contains(&queue) {
            inner.unprimed.push_back(queue);
        }
        self.is_unprimed.notify_one();
        inner.unprimed.len() > inner.idle_primers
    }

    /// Waits for a queue that needs a request. `None`: the connection has ended, or others wait already.
    pub(super) fn next_to_prime(&self) -> Option<u16> {
        let mut inner = self.inner.lock();
        loop {
            if inner.has_ended {
                return None;
            }
            if let Some(queue) = inner.unprimed.pop_front() {
                return Some(queue);
            }
            if inner.idle_primers > 0 {
                return None;
            }
            inner.idle_primers += 1;
            self.is_unprimed.wait(&mut inner);
            inner.idle_primers -= 1;
        }
    }

    /// The connection has ended: no thread waits any more.
    pub(super) fn end(&self) {
        self.inner.lock().has_ended = true;
        self.is_unprimed.notify_all();
        self.committed.notify_all();
    }

    /// Entries have been given back.
    pub(super) fn announce(&self) {
        // Under the lock: a thread that has looked before is waiting by now.
        let _inner = self.inner.lock();
        self.committed.notify_all();
    }

    /// Waits until `is_done`, which becomes true before an [`Self::announce`].
    pub(super) fn wait_until(&self, is_done: impl Fn() -> bool) {
        let mut inner = self.inner.lock();
        while !is_done() {
            self.committed.wait(&mut inner);
        }
    }

    fn wake(&self, state: State, is_wanted: impl Fn(&Worker) -> bool) -> Option<usize> {
        self.workers.iter().position(|worker| {
            let (from, to) = (state as u8, State::Woken as u8);
            is_wanted(worker)
                && worker.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_goes_to_a_worker_that_waits_the_nearest_first() {
        let exchange = Exchange::new(&[0, 1], 2);
        assert_eq!(exchange.offer((7, 1)), Wake::None, "both are busy");
        assert!(!exchange.rest(0, false), "there is a request");
        assert_eq!((exchange.rouse(0), exchange.take_request()), (vec![], Some(7)));
        assert!(exchange.rest(0, false) && exchange.rest(1, false));
        assert_eq!(exchange.offer((8, 1)), Wake::Worker(1));
        assert_eq!(exchange.offer((9, 1)), Wake::Worker(0), "the other one is on its way");
        assert_eq!(exchange.offer((10, 1)), Wake::None);
        assert!(exchange.rouse(0).is_empty());
        assert_eq!([(); 4].map(|()| exchange.take_request()), [Some(8), Some(9), Some(10), None]);
    }

    #[test]
    fn an_answer_goes_to_a_worker_without_an_entry_or_the_overflow_ring() {
        let exchange = Exchange::new(&[0, 0], 1);
        assert!(exchange.rest(0, false) && exchange.rest(1, true));
        assert_eq!(exchange.give((3, 0), || false), Wake::Worker(1));
        assert_eq!(exchange.give((4, 0), || false), Wake::Overflow);
        assert_eq!((exchange.rouse(1), exchange.rouse(0)), (vec![3], vec![]));
        assert_eq!(exchange.duties(), Duties { answers: vec![4], short: vec![] });
        assert_eq!(exchange.duties(), Duties::default());
    }

    #[test]
    fn a_queue_gets_entries_before_all_of_them_are_parked() {
        let exchange = Exchange::new(&[0, 0, 0], 1);
        assert_eq!(exchange.park(0, || false), Wake::None, "it was answered meanwhile");
        assert_eq!(exchange.park(0, || true), Wake::None);
        assert_eq!(exchange.park(0, || true), Wake::Overflow, "one would be left");
        assert_eq!(exchange.duties().short, [0]);
        exchange.give((0, 0), || true);
        assert_eq!(exchange.park(0, || true), Wake::None, "there is the new one");
    }
}
