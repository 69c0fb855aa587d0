//! Tests of group commit: which clients share a flush, and what a sync promises, under a scheduler that
//! explores interleavings.

use std::io;
use std::sync::PoisonError;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::*;
use crate::journal::gate::{Gate, Pass};
use crate::journal::log::{Log, State};
use crate::journal::monitor::Monitor;
use crate::journal::{Binder, Wanted};
use crate::space::{BoundOp, HoldsBound};
use kvfs_store::BLOCK_BYTES;

/// A device whose flushes wait until the gate is open, and which panics when a thread of this name calls it.
struct GateDevice {
    inner: Arc<MemoryDevice>,
    panics_in: Option<&'static str>,
    /// (flushes begun, gate is open).
    gate: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl GateDevice {
    /// Its gate is open.
    fn new(panics_in: Option<&'static str>) -> Arc<Self> {
        let (inner, gate, changed) = (new_device(), Mutex::new((0, true)), Condvar::new());
        Arc::new(Self { inner, panics_in, gate, changed })
    }

    fn panic_in_its_thread(&self) {
        let name = thread::current().name().map(str::to_owned);
        assert!(name.is_none() || name.as_deref() != self.panics_in, "the device panics");
    }

    fn wait_until(&self, ready: impl Fn(&(u64, bool)) -> bool) {
        let mut gate = self.gate.lock();
        self.changed.wait_while(&mut gate, |gate| !ready(gate));
    }

    fn change(&self, change: impl FnOnce(&mut (u64, bool))) {
        change(&mut self.gate.lock());
        self.changed.notify_all();
    }
}

impl Device for GateDevice {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.panic_in_its_thread();
        self.inner.write_at(buf, offset)
    }
    fn flush(&self) -> io::Result<()> {
        self.change(|gate| gate.0 += 1);
        self.wait_until(|gate| gate.1);
        self.panic_in_its_thread();
        self.inner.flush()
    }
    fn grow(&self, len: u64) -> io::Result<()> {
        self.inner.grow(len)
    }
}

#[test]
fn syncs_that_come_during_a_flush_share_the_next_one() {
    let device = GateDevice::new(None);
    let journal = Journal::open(device.clone(), AREA, 1, (Lsn(0), 0), still(), &mut |_| Ok(())).unwrap();
    device.change(|gate| *gate = (0, false));
    journal.append(1, plain(&put(b"first"))).unwrap();
    thread::scope(|scope| {
        let journal = &journal;
        scope.spawn(|| journal.sync(1).unwrap());
        device.wait_until(|gate| gate.0 == 1);
        for seqno in 2..=9 {
            journal.append(seqno, plain(&put(b"more"))).unwrap();
        }
        for seqno in 2..=9 {
            scope.spawn(move || journal.sync(seqno).unwrap());
        }
        device.change(|gate| gate.1 = true);
    });
    assert_eq!(device.gate.lock().0, 2);
    assert_eq!((journal.stats().groups, journal.stats().flushes), (2, 2));
    assert_eq!(journal.durable_seqno(), 9);
}

#[test]
fn panic_of_a_thread_that_writes_fails_the_journal_and_holds_no_other() {
    let device = GateDevice::new(Some("panics"));
    let journal = Journal::open(device.clone(), AREA, 1, (Lsn(0), 0), still(), &mut |_| Ok(())).unwrap();
    journal.append(1, plain(&put(b"first"))).unwrap();
    thread::scope(|scope| {
        let body = || drop(journal.write_out());
        let writer = thread::Builder::new().name("panics".to_owned()).spawn_scoped(scope, body).unwrap();
        assert!(writer.join().is_err(), "the device has panicked");
    });
    let refused = |result: Result<()>| result.unwrap_err().to_string().contains("panics");
    assert!(refused(journal.write_out()));
    assert!(refused(journal.sync(1)));
    let appended = journal.append(2, plain(&put(b"second")));
    assert!(appended.unwrap_err().to_string().contains("panics"));
    assert!(refused(journal.end()));
}

#[test]
fn what_a_panic_may_have_left_half_done_is_never_written() {
    let device = GateDevice::new(None);
    let journal = Journal::open(device.clone(), AREA, 1, (Lsn(0), 0), still(), &mut |_| Ok(())).unwrap();
    journal.append(2, plain(&put(b"second"))).unwrap();
    thread::scope(|scope| {
        let out_of_order = scope.spawn(|| journal.append(1, plain(&put(b"first"))).map(drop));
        assert!(out_of_order.join().is_err(), "batches are appended in order");
    });
    assert!(matches!(journal.sync(2), Err(StoreError::Failed { .. })));
    assert!(matches!(journal.write_out(), Err(StoreError::Failed { .. })));
    assert_eq!((journal.durable_seqno(), journal.stats().groups), (0, 0));
}

#[test]
fn panic_of_a_thread_that_flushes_fails_those_who_wait_for_it() {
    let device = GateDevice::new(Some("panics"));
    let journal = Journal::open(device.clone(), AREA, 1, (Lsn(0), 0), still(), &mut |_| Ok(())).unwrap();
    journal.append(1, plain(&put(b"first"))).unwrap();
    journal.append(2, plain(&put(b"second"))).unwrap();
    journal.write_out().unwrap();
    device.change(|gate| *gate = (0, false));
    thread::scope(|scope| {
        let body = || drop(journal.sync(1));
        let leader = thread::Builder::new().name("panics".to_owned()).spawn_scoped(scope, body).unwrap();
        device.wait_until(|gate| gate.0 == 1);
        let waiting = scope.spawn(|| journal.sync(2));
        journal.append(3, plain(&put(b"third"))).unwrap();
        let gathering = scope.spawn(|| journal.sync(3));
        device.change(|gate| gate.1 = true);
        assert!(leader.join().is_err(), "the device has panicked");
        for client in [waiting, gathering] {
            let synced = client.join().unwrap();
            assert!(matches!(synced, Err(StoreError::Failed { reason }) if reason.contains("panics")));
        }
    });
    assert_eq!(journal.durable_seqno(), 0);
}

/// The monitor that lets shuttle choose which thread runs, and, where `TIME_PASSES`, whose time is over.
struct Explored<T, const TIME_PASSES: bool> {
    value: shuttle::sync::Mutex<T>,
    changed: shuttle::sync::Condvar,
}

impl<T: Send, const TIME_PASSES: bool> Monitor<T> for Explored<T, TIME_PASSES> {
    type Guard<'a>
        = shuttle::sync::MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self { value: shuttle::sync::Mutex::new(value), changed: shuttle::sync::Condvar::new() }
    }
    fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn is_poisoned(&self) -> bool {
        // A panic ends the exploration.
        false
    }
    fn wait<'a>(&'a self, guard: shuttle::sync::MutexGuard<'a, T>) -> shuttle::sync::MutexGuard<'a, T> {
        self.changed.wait(guard).unwrap()
    }
    fn wait_at_most<'a>(&'a self, guard: Self::Guard<'a>, _: Duration) -> (Self::Guard<'a>, bool) {
        if !TIME_PASSES {
            return (Monitor::wait(self, guard), false);
        }
        drop(guard);
        shuttle::thread::yield_now();
        let is_over = shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng());
        (self.lock(), is_over)
    }
    fn notify_one(&self) {
        self.changed.notify_one();
    }
    fn notify_all(&self) {
        self.changed.notify_all();
    }
    fn gate() -> Arc<dyn Gate> {
        Arc::new(Explored::<Pass, TIME_PASSES>::new(Pass::default()))
    }
}

/// A device that keeps durable content apart, and lets others run in the middle of its calls.
struct ExploredDevice {
    durable: MemoryDevice,
    /// What a flush takes time by.
    clock: Arc<ManualClock>,
    pending: shuttle::sync::Mutex<Vec<(u64, Vec<u8>)>>,
    fails_at: Option<Fault>,
    writes: shuttle::sync::atomic::AtomicUsize,
    flushes: shuttle::sync::atomic::AtomicUsize,
}

/// The call that fails, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Write(usize),
    Flush(usize),
}

impl Device for ExploredDevice {
    fn len_bytes(&self) -> u64 {
        self.durable.len_bytes()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.durable.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let index = self.writes.fetch_add(1, shuttle::sync::atomic::Ordering::SeqCst);
        shuttle::thread::yield_now();
        if self.fails_at == Some(Fault::Write(index)) {
            return Err(io::Error::other("injected"));
        }
        self.pending.lock().unwrap().push((offset, buf.to_vec()));
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        let covered = self.pending.lock().unwrap().len();
        let index = self.flushes.fetch_add(1, shuttle::sync::atomic::Ordering::SeqCst);
        self.clock.advance(Duration::from_micros(100));
        shuttle::thread::yield_now();
        if self.fails_at == Some(Fault::Flush(index)) {
            return Err(io::Error::other("injected"));
        }
        let mut pending = self.pending.lock().unwrap();
        // Of two flushes at a time, the one that ends first may have taken what the other covers.
        for (offset, bytes) in pending.iter().take(covered) {
            self.durable.write_at(bytes, *offset)?;
        }
        drop(pending.drain(..0));
        Ok(())
    }
    fn grow(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl ExploredDevice {
    fn new(fails_at: Option<Fault>) -> Arc<Self> {
        Arc::new(Self {
            durable: MemoryDevice::new(DEVICE_BYTES),
            clock: Arc::new(ManualClock::default()),
            pending: shuttle::sync::Mutex::new(Vec::new()),
            fails_at,
            writes: shuttle::sync::atomic::AtomicUsize::new(0),
            flushes: shuttle::sync::atomic::AtomicUsize::new(0),
        })
    }
}

fn explored_log<const TIME_PASSES: bool>(
    device: &Arc<ExploredDevice>,
    state: State,
) -> Arc<Log<Explored<State, TIME_PASSES>>> {
    let log = Log::new(device.clone(), AREA, 1, device.clock.clone(), state);
    while log.allocate_part().unwrap() {}
    Arc::new(log)
}

/// One that leads, one that is to lead next, one that waits behind it, and one that only writes.
const THREADS: u64 = 4;

/// Lets others run while it looks for places, and finds none.
struct NoPlaces;

impl Binder for NoPlaces {
    fn bytes_min(&self) -> usize {
        BLOCK_BYTES
    }

    fn place(&self, _: Wanted) -> Option<Bound> {
        shuttle::thread::yield_now();
        None
    }
}

struct Unheld;

impl HoldsBound for Unheld {
    fn count(&self, _: u64) {}
    fn hold(&self, _: Vec<(Seqno, BoundOp)>) {}
}

/// Threads append and sync; whenever a sync returns, what it promised is in the durable image.
fn explore(fails_at: Option<Fault>) {
    explore_batches(fails_at, &put(b"value"));
}

fn explore_batches(fails_at: Option<Fault>, batch: &Batch) {
    let device = ExploredDevice::new(fails_at);
    let log = explored_log::<true>(&device, State::new(&AREA, Lsn(0), Lsn(0), 0));
    log.bind_by(Arc::new(NoPlaces));
    let holder: Arc<dyn HoldsBound> = Arc::new(Unheld);
    let order = Arc::new(shuttle::sync::Mutex::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (log, order, device) = (log.clone(), order.clone(), device.clone());
            let (batch, holder) = (batch.clone(), holder.clone());
            shuttle::thread::spawn(move || {
                for _ in 0..2 {
                    let mut last = order.lock().unwrap();
                    let record = Record { holder: Some(&holder), ..plain(&batch) };
                    let Ok(_) = log.append(*last + 1, Entry::Batch(record)) else {
                        assert!(fails_at.is_some());
                        return;
                    };
                    *last += 1;
                    let seqno = *last;
                    drop(last);
                    if thread == 0 && log.write_out().is_err() {
                        assert!(fails_at.is_some());
                        return;
                    }
                    if log.sync(seqno).is_err() {
                        assert!(fails_at.is_some());
                        return;
                    }
                    let image = device.durable.fork();
                    let found = Journal::replay(&image, AREA, 2, (Lsn(0), 0), &mut |_| Ok(())).unwrap();
                    assert!(found.last_seqno >= seqno, "{seqno} was synced, {} is durable", found.last_seqno);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    if fails_at.is_none() {
        assert_eq!(log.read(State::durable_seqno), 2 * THREADS);
    }
}

#[test]
fn a_sync_keeps_its_promise_in_every_interleaving() {
    shuttle::check_random(|| explore(None), 1000);
    shuttle::check_pct(|| explore(None), 500, 3);
}

/// What is appended while places are looked for goes with the group, and is served by its flush.
#[test]
fn a_sync_keeps_its_promise_while_places_are_looked_for_in_every_interleaving() {
    let explore = || {
        let mut batch = Batch::new();
        batch.put_blocks(KEYSPACE, "f", 0, vec![1; BLOCK_BYTES]);
        explore_batches(None, &batch);
    };
    shuttle::check_random(explore, 1000);
    shuttle::check_pct(explore, 500, 3);
}

#[test]
fn failed_flush_in_every_interleaving_wakes_all_waiters() {
    for number in 0..2 {
        shuttle::check_random(move || explore(Some(Fault::Flush(number))), 500);
    }
}

/// Also the client that was to lead next, and those behind it.
#[test]
fn failed_write_in_every_interleaving_wakes_all_waiters() {
    for number in 1..5 {
        shuttle::check_random(move || explore(Some(Fault::Write(number))), 1500);
        shuttle::check_pct(move || explore(Some(Fault::Write(number))), 300, 3);
    }
}

/// The clients that a flush has let go come back in any order: they wait for each other, and share the next
/// one.
#[test]
fn clients_that_come_back_share_a_flush_in_every_interleaving() {
    fn come_back() {
        let device = ExploredDevice::new(None);
        let mut state = State::new(&AREA, Lsn(0), Lsn(0), 0);
        state.delay.note_flush(Duration::ZERO, Duration::from_millis(1), 3, 1);
        let log = explored_log::<false>(&device, state);
        let order = Arc::new(shuttle::sync::Mutex::new(0));
        let threads = [(); 4].map(|()| {
            let (log, order) = (log.clone(), order.clone());
            shuttle::thread::spawn(move || {
                let mut last = order.lock().unwrap();
                *last += 1;
                let seqno = *last;
                log.append(seqno, Entry::Batch(plain(&put(b"value")))).unwrap();
                drop(last);
                log.sync(seqno).unwrap();
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        let stats = log.read(State::stats);
        assert_eq!((stats.groups, stats.flushes), (1, 1));
    }
    shuttle::check_random(come_back, 1000);
    shuttle::check_pct(come_back, 300, 3);
}

/// No other client is there to end its wait, so this hangs if it waits.
#[test]
fn sync_of_a_lone_client_does_not_wait() {
    fn alone() {
        let device = ExploredDevice::new(None);
        let log = explored_log::<false>(&device, State::new(&AREA, Lsn(0), Lsn(0), 0));
        for seqno in 1..4 {
            log.append(seqno, Entry::Batch(plain(&put(b"value")))).unwrap();
            log.sync(seqno).unwrap();
        }
        assert_eq!(log.read(State::stats).flushes, 3);
    }
    shuttle::check_random(alone, 1);
}
