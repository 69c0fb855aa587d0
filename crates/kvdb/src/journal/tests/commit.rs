//! Tests of group commit: who shares a flush, and what a sync promises, under a scheduler that
//! explores interleavings.

use std::io;
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::*;
use crate::journal::log::{Log, State};
use crate::journal::monitor::{Monitor, Signal, Wake};

/// A device whose flushes wait until the gate is open.
struct GateDevice {
    inner: Arc<MemoryDevice>,
    /// (flushes begun, gate is open).
    gate: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl GateDevice {
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
        self.inner.write_at(buf, offset)
    }
    fn flush(&self) -> io::Result<()> {
        self.change(|gate| gate.0 += 1);
        self.wait_until(|gate| gate.1);
        self.inner.flush()
    }
    fn grow(&self, len: u64) -> io::Result<()> {
        self.inner.grow(len)
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
}

#[test]
fn syncs_that_come_during_a_flush_share_the_next_one() {
    let device =
        Arc::new(GateDevice { inner: new_device(), gate: Mutex::new((0, true)), changed: Condvar::new() });
    let journal = Journal::open(device.clone(), AREA, 1, Lsn(0), &mut |_| Ok(())).unwrap();
    device.change(|gate| *gate = (0, false));
    journal.append(1, &put(b"first")).unwrap();
    thread::scope(|scope| {
        let journal = &journal;
        scope.spawn(|| journal.sync(1).unwrap());
        device.wait_until(|gate| gate.0 == 1);
        for seqno in 2..=9 {
            journal.append(seqno, &put(b"more")).unwrap();
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

/// The monitor that lets shuttle choose who runs.
struct Explored<T> {
    value: shuttle::sync::Mutex<T>,
    changed: shuttle::sync::Condvar,
}

impl<T: Send> Monitor<T> for Explored<T> {
    type Guard<'a>
        = shuttle::sync::MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self { value: shuttle::sync::Mutex::new(value), changed: shuttle::sync::Condvar::new() }
    }
    fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.value.lock().unwrap()
    }
    fn wait<'a>(&'a self, guard: shuttle::sync::MutexGuard<'a, T>) -> shuttle::sync::MutexGuard<'a, T> {
        self.changed.wait(guard).unwrap()
    }
    fn notify_all(&self) {
        self.changed.notify_all();
    }
    fn signal() -> Arc<dyn Signal> {
        Arc::new(Explored::<Option<Wake>>::new(None))
    }
}

impl Signal for Explored<Option<Wake>> {
    fn wait(&self) -> Wake {
        let mut wake = self.lock();
        loop {
            if let Some(wake) = *wake {
                return wake;
            }
            wake = Monitor::wait(self, wake);
        }
    }

    fn give(&self, wake: Wake) {
        *self.lock() = Some(wake);
        self.notify_all();
    }
}

/// A device that keeps durable content apart, and lets others run in the middle of its calls.
struct ExploredDevice {
    durable: MemoryDevice,
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
    fn discard(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

/// One that leads, one that is to lead next, one that waits behind it, and one that only writes.
const THREADS: u64 = 4;

/// Threads append and sync; whenever a sync returns, what it promised is in the durable image.
fn explore(fails_at: Option<Fault>) {
    let device = Arc::new(ExploredDevice {
        durable: MemoryDevice::new(DEVICE_BYTES),
        pending: shuttle::sync::Mutex::new(Vec::new()),
        fails_at,
        writes: shuttle::sync::atomic::AtomicUsize::new(0),
        flushes: shuttle::sync::atomic::AtomicUsize::new(0),
    });
    let log: Arc<Log<Explored<State>>> =
        Arc::new(Log::new(device.clone(), AREA, 1, State::new(Lsn(0), Lsn(0), 0)));
    let order = Arc::new(shuttle::sync::Mutex::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (log, order, device) = (log.clone(), order.clone(), device.clone());
            shuttle::thread::spawn(move || {
                for _ in 0..2 {
                    let mut last = order.lock().unwrap();
                    let Ok(_) = log.append(*last + 1, Entry::Batch(&put(b"value"), None)) else {
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
                    let found = Journal::replay(&image, AREA, 2, Lsn(0), &mut |_| Ok(())).unwrap();
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

#[test]
fn a_failed_flush_wakes_everybody_in_every_interleaving() {
    for number in 0..2 {
        shuttle::check_random(move || explore(Some(Fault::Flush(number))), 500);
    }
}

/// Also him who was to lead next, and those behind him.
#[test]
fn a_failed_write_wakes_everybody_in_every_interleaving() {
    for number in 1..5 {
        shuttle::check_random(move || explore(Some(Fault::Write(number))), 1500);
        shuttle::check_pct(move || explore(Some(Fault::Write(number))), 300, 3);
    }
}
