//! Readers of operations as they end.
//!
//! Thread safety: the list of readers is locked for moments while there is a reader; where there is none,
//! nothing here is called. A reader's thread waits for operations with no lock held that a writer needs for
//! longer. Invariants: a reader that is too slow loses operations, and is told how many; what waits for it is
//! bounded by [`RING_LEN`].

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvfs_fs::operations::{OperationKind, command_of};
use kvfs_locks::{Condvar, Mutex, class};

use super::Operations;
use super::finished::Finished;
use crate::authority::authorize;
use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::{TraceLine, TraceRequest};
use crate::served::ServedStore;

/// Operations that wait for a reader.
const RING_LEN: usize = 8192;

/// Operations in one answer: with the longest paths it still fits a frame.
const PAGE_LEN_MAX: usize = 1000;

/// Readers at once.
const READERS_MAX: usize = 8;

/// An answer without operations goes after this time.
const WAIT_MAX: Duration = Duration::from_millis(400);

/// Which operations a reader wants.
#[derive(Debug)]
struct Filter {
    slower: Duration,
    /// A bit for each kind.
    kinds: u64,
    pid: Option<u32>,
    /// The reader itself: what it prints may go to the store.
    own_pid: u32,
}

const _: () = assert!(OperationKind::ALL.len() <= 64, "a bit for each kind");

impl Filter {
    fn new(request: &TraceRequest, own_pid: u32) -> Result<Self> {
        let mut kinds = if request.kinds.is_empty() { u64::MAX } else { 0 };
        for name in &request.kinds {
            let kind = OperationKind::from_name(name).ok_or_else(|| {
                let known: Vec<_> = OperationKind::ALL.iter().map(|kind| kind.name()).collect();
                let message =
                    format!("there is no kind of operation \"{name}\"; there are {}", known.join(", "));
                ServiceError::new(ErrorKind::Usage, message)
            })?;
            kinds |= 1 << kind as u64;
        }
        Ok(Self { slower: request.slower, kinds, pid: request.pid, own_pid })
    }

    fn takes(&self, finished: &Finished) -> bool {
        let is_of_pid = || match self.pid {
            Some(pid) => pid == finished.pid || is_thread_of(pid, finished.pid),
            None => finished.pid != self.own_pid || finished.pid == 0,
        };
        self.kinds & (1 << finished.kind as u64) != 0 && finished.duration >= self.slower && is_of_pid()
    }
}

/// The kernel's requests come from threads.
fn is_thread_of(pid: u32, tid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

#[derive(Debug, Default)]
struct Ring {
    finished: VecDeque<Finished>,
    lost: u64,
    is_over: bool,
}

#[derive(Debug)]
struct Reader {
    filter: Filter,
    ring: Mutex<Ring, class::ServiceOperationsTraceRing>,
    changed: Condvar,
}

impl Reader {
    fn push(&self, finished: Finished) {
        let mut ring = self.ring.lock();
        if ring.finished.len() >= RING_LEN {
            // What is told is one stretch, and the newest is lost: else a reader that never catches up would
            // see but holes.
            ring.lost += 1;
            return;
        }
        ring.finished.push_back(finished);
        let is_first = ring.finished.len() == 1;
        drop(ring);
        if is_first {
            self.changed.notify_one();
        }
    }

    /// Waits for a while; `None`: there will be no more.
    fn next(&self) -> Option<(Vec<Finished>, u64)> {
        let mut ring = self.ring.lock();
        let is_idle = |ring: &mut Ring| ring.finished.is_empty() && !ring.is_over;
        self.changed.wait_while_for(&mut ring, is_idle, WAIT_MAX);
        if ring.finished.is_empty() && ring.is_over {
            return None;
        }
        let len = ring.finished.len().min(PAGE_LEN_MAX);
        let page = ring.finished.drain(..len).collect();
        // They were lost behind all that is there.
        let lost = if ring.finished.is_empty() { std::mem::take(&mut ring.lost) } else { 0 };
        Some((page, lost))
    }

    fn end(&self) {
        self.ring.lock().is_over = true;
        self.changed.notify_all();
    }
}

#[derive(Debug, Default)]
struct List {
    by_connection: BTreeMap<u64, Arc<Reader>>,
    is_over: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Readers {
    count: AtomicUsize,
    list: Mutex<List, class::ServiceOperationsTraceList>,
}

impl Readers {
    pub(super) fn are_there(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Gives an operation to those that want it.
    pub(super) fn offer(&self, finished: &Finished, operations: &Operations) {
        if !self.are_there() {
            return;
        }
        let readers: Vec<_> = {
            let list = self.list.lock();
            list.by_connection.values().filter(|reader| reader.filter.takes(finished)).cloned().collect()
        };
        if readers.is_empty() {
            return;
        }
        // It has not been answered yet, so it is still there.
        let command = operations.fs().and_then(|fs| command_of(&fs, finished.pid));
        for reader in readers {
            reader.push(finished.of_command(command.clone()));
        }
    }

    fn open(&self, connection: u64, filter: Filter) -> Result<()> {
        let mut list = self.list.lock();
        if list.is_over {
            return Err(ServiceError::new(ErrorKind::NotMounted, "the store is being closed"));
        }
        if list.by_connection.len() >= READERS_MAX && !list.by_connection.contains_key(&connection) {
            let message = format!("{READERS_MAX} traces of this store are being read; end one of them");
            return Err(ServiceError::new(ErrorKind::InUse, message));
        }
        let reader = Reader { filter, ring: Mutex::default(), changed: Condvar::new() };
        list.by_connection.insert(connection, Arc::new(reader));
        self.count.store(list.by_connection.len(), Ordering::Relaxed);
        Ok(())
    }

    fn of(&self, connection: u64) -> Option<Arc<Reader>> {
        self.list.lock().by_connection.get(&connection).cloned()
    }

    fn forget(&self, connection: u64) {
        let mut list = self.list.lock();
        list.by_connection.remove(&connection);
        self.count.store(list.by_connection.len(), Ordering::Relaxed);
    }

    fn end(&self) {
        let mut list = self.list.lock();
        list.is_over = true;
        list.by_connection.values().for_each(|reader| reader.end());
    }
}

impl Operations {
    /// The connection has ended, and with it what was kept for it.
    pub(crate) fn forget_reader(&self, connection: u64) {
        self.readers.forget(connection);
        self.look_again();
    }

    /// The next operations for a reader, and how many were lost behind them: waits for some, for a moment.
    /// `None`: the store is being closed, or nothing is traced on this connection.
    pub(crate) fn traced(&self, connection: u64) -> Option<(Vec<TraceLine>, u64)> {
        let (page, lost) = self.readers.of(connection)?.next()?;
        let epoch = self.clock.wall().saturating_sub(self.clock.monotonic());
        let fs = self.fs();
        Some((page.iter().map(|finished| finished.line(fs.as_deref(), epoch)).collect(), lost))
    }

    /// All readers get what there is, and then the end.
    pub(crate) fn end_readers(&self) {
        self.readers.end();
    }
}

impl ServedStore<'_> {
    /// Begins to tell the caller, on its connection, of operations as they end: of files, keys and
    /// transactions of all users.
    ///
    /// # Errors
    /// The caller may not; there is no such kind; there are too many readers; nothing is mounted.
    pub fn trace(&self, caller: &Caller, request: &TraceRequest) -> Result<()> {
        authorize(self.fs, caller, "trace operations")?;
        self.transactions()?;
        // A reader may pause for as long as it likes.
        caller.keep()?;
        self.operations.readers.open(caller.number, Filter::new(request, caller.pid)?)?;
        self.operations.look_again();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kvfs_fs::operations::{Operation, Target};

    use super::*;

    fn finished(kind: OperationKind, pid: u32, took_ms: u64) -> Finished {
        let operation = Operation {
            kind,
            start: Duration::ZERO,
            uid: 0,
            pid,
            txn: 0,
            errno: 0,
            bytes: 0,
            has_waited: false,
            target: Target::None,
        };
        Finished::new(&operation, Duration::ZERO, Duration::from_millis(took_ms))
    }

    #[test]
    fn filter_takes_kinds_processes_and_times_that_were_asked_for() {
        let filter = |slower_ms, kinds: &[&str], pid| {
            let kinds = kinds.iter().map(|&kind| kind.to_owned()).collect();
            let request = TraceRequest { slower: Duration::from_millis(slower_ms), kinds, pid };
            Filter::new(&request, 7).expect("is valid")
        };
        let read = |pid, took_ms| finished(OperationKind::Read, pid, took_ms);
        assert!(filter(0, &[], None).takes(&read(1, 0)));
        assert!(!filter(0, &[], None).takes(&read(7, 0)), "the reader's own");
        assert!(filter(0, &[], Some(7)).takes(&read(7, 0)) && !filter(0, &[], Some(7)).takes(&read(8, 0)));
        let own_thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(filter(0, &[], Some(std::process::id())).takes(&read(own_thread, 0)), "of a thread");
        assert!(filter(0, &["write", "read"], None).takes(&read(1, 0)));
        assert!(!filter(0, &["write"], None).takes(&read(1, 0)));
        assert!(filter(10, &[], None).takes(&read(1, 10)) && !filter(10, &[], None).takes(&read(1, 9)));
        let request = TraceRequest { kinds: vec!["reed".to_owned()], ..TraceRequest::default() };
        let error = Filter::new(&request, 7).expect_err("is refused");
        assert!(error.to_string().contains("\"reed\"; there are lookup,"), "{error}");
    }

    #[test]
    fn slow_reader_loses_operations_and_is_told_how_many() {
        let readers = Readers::default();
        readers.open(1, Filter::new(&TraceRequest::default(), 0).expect("is valid")).expect("opens");
        let operations = Operations::default();
        for _ in 0..RING_LEN + 12 {
            readers.offer(&finished(OperationKind::Read, 1, 0), &operations);
        }
        let reader = readers.of(1).expect("is there");
        let (mut told, mut lost) = (0, 0);
        while told < RING_LEN {
            let (page, lost_here) = reader.next().expect("goes on");
            assert!(lost == 0 && page.len() <= PAGE_LEN_MAX);
            told += page.len();
            lost += lost_here;
        }
        assert_eq!((told, lost), (RING_LEN, 12));
        readers.offer(&finished(OperationKind::Read, 1, 0), &operations);
        assert_eq!(reader.next().map(|(page, lost)| (page.len(), lost)), Some((1, 0)));
        readers.end();
        assert_eq!(reader.next(), None);
        readers.forget(1);
        assert!(
            !readers.are_there()
                && readers.open(2, Filter::new(&TraceRequest::default(), 0).expect("is valid")).is_err()
        );
    }
}
