//! Group commit: appending, and the leader that writes and flushes for all who wait.
//!
//! Two roles, each held by one thread at a time and neither with the lock held during I/O. The
//! *writer* takes the open group and writes it. The *leader* of a sync writes the open group and
//! then flushes; threads that come meanwhile collect in the next group and find their work done, or
//! one of them leads next. A writer may work while a flush is under way: the flush then counts only
//! for what had been written before it began.

use std::sync::Arc;

use kvfs_device::Device;
use kvfs_store::{Result, Seqno, StoreError};

use super::codec::{Entry, encode, encoded_len_max};
use super::group::Group;
use super::header::{HEADER_BYTES, group_len};
use super::monitor::{Monitor, Signal, Wake};
use super::{AppendError, Appended, JournalArea, JournalStats, Lsn};

/// An open group of this length is due to be written, unless a write is under way.
const WRITE_LEN: usize = 1 << 20;
/// An open group of this length makes appending wait for the write that is under way.
const WAIT_LEN: usize = 4 << 20;

/// What the lock protects.
pub(super) struct State {
    open: Group,
    tail: u64,
    appended: Seqno,
    /// Everything up to here has been written: seqno, and end in the stream.
    written: (Seqno, u64),
    /// Everything up to here has been flushed.
    durable: (Seqno, u64),
    is_writing: bool,
    is_flushing: bool,
    /// Where the group begins that was last said to be due: said once.
    said_due: Option<u64>,
    /// Who waits for the end of a flush, and what each wants to be durable.
    waiters: Vec<(Seqno, Arc<dyn Signal>)>,
    failed: Option<Arc<str>>,
    stats: JournalStats,
}

impl State {
    /// The log is empty from `head` on; everything before it, up to `seqno`, is durable.
    pub(super) fn new(tail: Lsn, head: Lsn, seqno: Seqno) -> Self {
        Self {
            open: Group::new(head.0),
            tail: tail.0,
            appended: seqno,
            written: (seqno, head.0),
            durable: (seqno, head.0),
            is_writing: false,
            is_flushing: false,
            said_due: None,
            waiters: Vec::new(),
            failed: None,
            stats: JournalStats::default(),
        }
    }

    pub(super) fn durable_seqno(&self) -> Seqno {
        self.durable.0
    }

    pub(super) fn appended_seqno(&self) -> Seqno {
        self.appended
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    pub(super) fn head(&self) -> u64 {
        self.open.lsn
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.open.end() - self.tail
    }

    pub(super) fn stats(&self) -> JournalStats {
        self.stats
    }

    fn check(&self) -> Result<()> {
        match &self.failed {
            Some(reason) => Err(StoreError::Failed { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// Those who have nothing more to wait for, and one who leads next. After a failure everybody.
    fn take_woken(&mut self) -> Vec<(Arc<dyn Signal>, Wake)> {
        let (durable, mut looks_max) = (self.durable.0, if self.failed.is_some() { usize::MAX } else { 1 });
        let mut woken = Vec::new();
        self.waiters.retain(|(seqno, signal)| {
            let wake = if *seqno <= durable { Wake::Done } else { Wake::Look };
            if wake == Wake::Look {
                if looks_max == 0 {
                    return true;
                }
                looks_max -= 1;
            }
            woken.push((Arc::clone(signal), wake));
            false
        });
        woken
    }

    /// Whether the open group has become due just now.
    fn becomes_due(&mut self) -> bool {
        let is_due = self.open.len() >= WRITE_LEN && !self.is_writing;
        is_due && self.said_due.replace(self.open.lsn) != Some(self.open.lsn)
    }

    fn fail(&mut self, what: &str, error: &std::io::Error) {
        tracing::error!(%error, "{what} failed; the journal takes nothing more");
        self.failed.get_or_insert_with(|| format!("{what} failed: {error}").into());
    }
}

fn give(woken: &[(Arc<dyn Signal>, Wake)]) {
    for (signal, wake) in woken {
        signal.give(*wake);
    }
}

/// The journal without recovery, over any monitor.
pub(super) struct Log<M> {
    device: Arc<dyn Device>,
    area: JournalArea,
    epoch: u64,
    state: M,
}

impl<M: Monitor<State>> Log<M> {
    pub(super) fn new(device: Arc<dyn Device>, area: JournalArea, epoch: u64, state: State) -> Self {
        Self { device, area, epoch, state: M::new(state) }
    }

    pub(super) fn area(&self) -> JournalArea {
        self.area
    }

    pub(super) fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.state.lock())
    }

    pub(super) fn append(&self, base: Seqno, entry: Entry<'_>) -> Result<Appended, AppendError> {
        let len_max = encoded_len_max(entry);
        let alone = group_len((HEADER_BYTES + len_max) as u64);
        if alone > self.area.len {
            let bytes = entry.payload_bytes();
            let bytes_max = (self.area.len as usize).saturating_sub(len_max - bytes + HEADER_BYTES);
            return Err(StoreError::BatchTooLarge { bytes, bytes_max }.into());
        }
        let mut state = self.state.lock();
        loop {
            state.check()?;
            let end = state.open.lsn + group_len((state.open.len() + len_max) as u64);
            let fits = end - state.tail <= self.area.len;
            if fits && (state.open.is_empty() || state.open.len() + len_max <= WAIT_LEN) {
                break;
            }
            if state.open.is_empty() {
                return Err(AppendError::AreaFull);
            }
            // Also when the area is full: what the caller can retire ends where the open group
            // begins, so an open group must not stand in the way of a batch that fits alone.
            state = self.write_open(state);
        }
        assert!(base > state.appended, "batches are appended in seqno order");
        let lsn = Lsn(state.open.lsn);
        if state.open.is_empty() {
            state.open.first_seqno = base;
        }
        encode(base, entry, &mut state.open);
        state.open.batches += 1;
        state.stats.batches += 1;
        state.appended = base + entry.operations().max(1) - 1;
        Ok(Appended { lsn, is_due: state.becomes_due() })
    }

    pub(super) fn write_out(&self) -> Result<()> {
        self.write_open(self.state.lock()).check()
    }

    pub(super) fn sync(&self, seqno: Seqno) -> Result<()> {
        let mut state = self.state.lock();
        let seqno = seqno.min(state.appended);
        loop {
            if state.durable.0 >= seqno {
                return Ok(());
            }
            state.check()?;
            if state.is_flushing {
                let signal = M::signal();
                state.waiters.push((seqno, Arc::clone(&signal)));
                drop(state);
                if signal.wait() == Wake::Done {
                    return Ok(());
                }
                state = self.state.lock();
            } else {
                state = self.lead(state);
            }
        }
    }

    /// Writes the open group and flushes, for everybody who appended before the write began.
    fn lead<'a>(&'a self, mut state: M::Guard<'a>) -> M::Guard<'a> {
        state.is_flushing = true;
        state = self.write_open(state);
        if state.failed.is_none() {
            let target = state.written;
            drop(state);
            let result = self.device.flush();
            state = self.state.lock();
            match result {
                Ok(()) => {
                    state.durable = target;
                    state.stats.flushes += 1;
                }
                Err(error) => state.fail("flushing the journal", &error),
            }
        }
        state.is_flushing = false;
        let woken = state.take_woken();
        drop(state);
        give(&woken);
        self.state.lock()
    }

    /// Waits until no other thread writes, then writes the open group, if it holds anything.
    fn write_open<'a>(&'a self, mut state: M::Guard<'a>) -> M::Guard<'a> {
        while state.is_writing {
            state = self.state.wait(state);
        }
        if state.open.is_empty() || state.failed.is_some() {
            return state;
        }
        let mut group = state.open.take();
        let (appended, flushed_before) = (state.appended, state.durable.1);
        state.is_writing = true;
        drop(state);
        let result = group.write(self.device.as_ref(), self.area, self.epoch, flushed_before);
        state = self.state.lock();
        state.is_writing = false;
        match result {
            Ok(()) => {
                state.written = (appended, state.open.lsn);
                state.stats.groups += 1;
                state.stats.bytes_written += state.open.lsn - group.lsn;
                state.open.recycle(group);
            }
            Err(error) => {
                state.fail(&format!("writing the journal at position {}", group.lsn), &error);
                // Who was to lead next may not come to it now.
                give(&state.take_woken());
            }
        }
        self.state.notify_all();
        state
    }

    pub(super) fn retire(&self, tail: Lsn) {
        let mut state = self.state.lock();
        assert!(tail.0 <= state.open.lsn, "the tail can't pass the open group");
        state.tail = state.tail.max(tail.0);
    }
}
