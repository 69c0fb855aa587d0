//! Group commit: appending, and the leader that writes and flushes for all that wait.
//!
//! Two roles, each held by one thread at a time and neither with the lock held during I/O. The *writer* takes
//! the open group and writes it. The *leader* of a sync writes the open group and then flushes; threads that
//! come meanwhile gather for the next flush, which one of them leads. A writer may work while a flush is
//! under way: the flush then counts only for what had been written before it began. Whether the clients that
//! have gathered wait for more says [`GroupCommitDelay`]; then the last one leads, or the first one when the
//! time is over.
//!
//! A panic of a thread with a role is a failure of the journal, as a failed write is: no other thread waits
//! for the end of that role.

use std::sync::{Arc, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use kvfs_device::Device;
use kvfs_locks::class;
use kvfs_store::clock::Clock;
use kvfs_store::{Result, Seqno, StoreError};

use super::allocation::Allocation;
use super::codec::{Entry, encoded_len_max};
use super::end::{END_BYTES, write_end};
use super::gate::{Gate, Wake};
use super::gather::Binder;
use super::group::Group;
use super::group_commit_delay::GroupCommitDelay;
use super::monitor::Monitor;
use super::{AppendError, Appended, JournalArea, JournalStats, Lsn, Room};
use crate::cache::Accountant;
use crate::format::{FRAME_HEADER_BYTES as HEADER_BYTES, group_len};

/// An open group of this length is due to be written, unless a write is under way.
const WRITE_LEN: usize = 1 << 20;
/// An open group of this length makes appending wait for the write that is under way.
const WAIT_LEN: usize = 4 << 20;

/// Clients that wait for the end of the same flush.
#[derive(Default)]
struct Clients {
    /// Clients that have come; some may be on their way to the gate.
    count: u32,
    /// A client waits at the gate whose time is limited.
    is_timed: bool,
    /// Only where a client has to wait.
    gate: Option<Arc<dyn Gate>>,
}

impl Clients {
    fn open(&self, wake: Wake) {
        if let Some(gate) = &self.gate {
            gate.open(wake);
        }
    }
}

/// A flush that is led.
struct Flight {
    /// Everything up to here is durable when it ends well.
    seqno: Seqno,
    clients: Clients,
}

/// What a client does next.
enum Turn {
    Lead,
    /// For so long at most.
    Wait(Option<Duration>),
}

/// What the lock protects.
pub(super) struct State {
    open: Group,
    tail: u64,
    appended: Seqno,
    /// Everything up to here has been written: seqno, and end in the stream.
    written: (Seqno, u64),
    /// Everything up to here has been flushed.
    durable: (Seqno, u64),
    writer: Option<ThreadId>,
    /// Where the group begins that was last said to be due: said once.
    said_due: Option<u64>,
    /// Threads that wait until no thread writes.
    writers_waiting: u32,
    /// There is a leader; it may still be waiting for the write of another one.
    leader: Option<ThreadId>,
    flight: Option<Flight>,
    /// For the flush after that: what they want to be durable is behind its end.
    gathering: Clients,
    pub(super) delay: GroupCommitDelay,
    failed: Option<Arc<str>>,
    /// The store was closed.
    has_ended: bool,
    allocation: Allocation,
    stats: JournalStats,
}

impl State {
    /// The log in `area` is empty from `head` on; everything before it, up to `seqno`, is durable.
    pub(super) fn new(area: &JournalArea, tail: Lsn, head: Lsn, seqno: Seqno) -> Self {
        Self {
            open: Group::new(head.0),
            tail: tail.0,
            appended: seqno,
            written: (seqno, head.0),
            durable: (seqno, head.0),
            writer: None,
            said_due: None,
            writers_waiting: 0,
            leader: None,
            flight: None,
            gathering: Clients::default(),
            delay: GroupCommitDelay::default(),
            failed: None,
            has_ended: false,
            allocation: Allocation::new(area, head.0),
            stats: JournalStats::default(),
        }
    }

    /// See [`Group::charge_to`].
    pub(super) fn charge_to(&mut self, accountant: Arc<Accountant>) {
        self.open.charge_to(accountant);
    }

    pub(super) fn durable_seqno(&self) -> Seqno {
        self.durable.0
    }

    #[cfg(test)]
    pub(super) fn appended_seqno(&self) -> Seqno {
        self.appended
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    pub(super) fn head(&self) -> u64 {
        self.open.lsn
    }

    pub(super) fn room(&self) -> Room {
        Room { head: Lsn(self.open.lsn), tail: Lsn(self.tail), end: Lsn(self.allocation.end()) }
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
            None if self.has_ended => Err(StoreError::Failed { reason: "the store was closed".into() }),
            None => Ok(()),
        }
    }

    /// The clients that wait with one that wants `seqno` to be durable, which it is not.
    fn clients_of(&mut self, seqno: Seqno) -> &mut Clients {
        match &mut self.flight {
            Some(flight) if seqno <= flight.seqno => &mut flight.clients,
            _ => &mut self.gathering,
        }
    }

    fn turn(&mut self, now: impl FnOnce() -> Duration) -> Turn {
        if self.leader.is_some() {
            return Turn::Wait(None);
        }
        match self.delay.wait(self.gathering.count, now()) {
            None => Turn::Lead,
            Some(_) if self.gathering.is_timed => Turn::Wait(None),
            Some(time) => {
                self.gathering.is_timed = true;
                Turn::Wait(Some(time))
            }
        }
    }

    /// A client looks again that had waited for others.
    fn note_waited(&mut self, wake: Wake) {
        // Else the others have come, and it waits with them.
        if self.leader.is_none() {
            self.gathering.is_timed = false;
            if wake == Wake::TimeOver {
                self.delay.note_time_over(self.gathering.count);
            }
        }
    }

    /// Whether the open group has become due just now, or the next part of the area.
    fn becomes_due(&mut self) -> bool {
        let is_due = self.open.bytes() >= WRITE_LEN && self.writer.is_none();
        let is_short = self.allocation.becomes_short(self.open.end(), self.tail);
        (is_due && self.said_due.replace(self.open.lsn) != Some(self.open.lsn)) || is_short
    }

    fn fail(&mut self, what: &str, error: &dyn std::fmt::Display) {
        tracing::error!(%error, "{what} failed; the journal takes nothing more");
        self.failed.get_or_insert_with(|| format!("{what} failed: {error}").into());
    }
}

/// Fails the journal when its thread panics during the call that has it.
struct PanicGuard<'a, M: Monitor<State>> {
    log: &'a Log<M>,
    was_panicking: bool,
}

impl<M: Monitor<State>> Drop for PanicGuard<'_, M> {
    fn drop(&mut self) {
        if !self.was_panicking && thread::panicking() {
            self.log.end_roles();
        }
    }
}

/// The journal without recovery, over any monitor.
pub(super) struct Log<M> {
    device: Arc<dyn Device>,
    area: JournalArea,
    epoch: u64,
    clock: Arc<dyn Clock>,
    state: M,
    /// Finds places for small writes.
    binder: OnceLock<Arc<dyn Binder>>,
    /// Held while a part of the area is allocated; taken before `state`.
    allocating: kvfs_locks::Mutex<(), class::KvdbJournalLogAllocating>,
}

impl<M: Monitor<State>> Log<M> {
    pub(super) fn new(
        device: Arc<dyn Device>,
        area: JournalArea,
        epoch: u64,
        clock: Arc<dyn Clock>,
        state: State,
    ) -> Self {
        let (state, allocating) = (M::new(state), kvfs_locks::Mutex::new(()));
        Self { device, area, epoch, clock, state, binder: OnceLock::new(), allocating }
    }

    /// Small writes that follow each other get their places there from now on.
    pub(super) fn bind_by(&self, binder: Arc<dyn Binder>) {
        if self.binder.set(binder).is_err() {
            tracing::debug!("the journal has been told before who finds places");
        }
    }

    /// Whether anything that was appended may be bound yet.
    pub(super) fn may_bind(&self) -> bool {
        self.read(|state| state.writer.is_some() || !state.open.small().is_empty())
    }

    pub(super) fn area(&self) -> JournalArea {
        self.area
    }

    pub(super) fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.lock())
    }

    pub(super) fn charge_to(&self, accountant: Arc<Accountant>) {
        self.lock().charge_to(accountant);
    }

    pub(super) fn append(&self, base: Seqno, entry: Entry<'_>) -> Result<Appended, AppendError> {
        let len_max = encoded_len_max(entry);
        let alone = group_len((HEADER_BYTES + len_max) as u64);
        if alone > self.area.len {
            let bytes = entry.payload_bytes();
            let bytes_max = (self.area.len as usize).saturating_sub(len_max - bytes + HEADER_BYTES);
            return Err(StoreError::BatchTooLarge { bytes, bytes_max }.into());
        }
        let bytes = len_max + entry.bytes_bound();
        let _fails_on_panic = self.panic_guard();
        let mut state = self.lock();
        loop {
            state.check()?;
            let end = state.open.lsn + group_len((state.open.len() + len_max) as u64);
            let fits = end - state.tail <= self.area.len && end <= state.allocation.end();
            if fits && (state.open.is_empty() || state.open.bytes() + bytes <= WAIT_LEN) {
                break;
            }
            if state.open.is_empty() {
                return Err(AppendError::AreaFull(state.room()));
            }
            // Also when the area is full: what the caller can retire ends where the open group
            // begins, so an open group must not stand in the way of a batch that fits alone.
            // The caller may hold locks.
            state = self.write_open(state, false);
        }
        assert!(base > state.appended, "batches are appended in seqno order");
        let lsn = Lsn(state.open.lsn);
        state.open.append(base, entry);
        state.stats.batches += 1;
        state.appended = base + entry.operations().max(1) - 1;
        Ok(Appended { lsn, is_due: state.becomes_due() })
    }

    pub(super) fn write_out(&self) -> Result<()> {
        let _fails_on_panic = self.panic_guard();
        self.write_open(self.lock(), true).check()
    }

    pub(super) fn sync(&self, seqno: Seqno) -> Result<()> {
        let _fails_on_panic = self.panic_guard();
        let mut state = self.lock();
        let seqno = seqno.min(state.appended);
        if state.durable.0 < seqno {
            state.check()?;
            state.clients_of(seqno).count += 1;
        }
        loop {
            if state.durable.0 >= seqno {
                return Ok(());
            }
            state.check()?;
            let Turn::Wait(at_most) = state.turn(|| self.clock.monotonic()) else {
                state = self.lead(state);
                continue;
            };
            let gate = Arc::clone(state.clients_of(seqno).gate.get_or_insert_with(M::gate));
            drop(state);
            let wake = gate.wait(at_most);
            if wake == Wake::Done {
                return Ok(());
            }
            state = self.lock();
            // A flush that ended just now has served it: then nothing is to be learned from its time.
            if at_most.is_some() && state.durable.0 < seqno {
                state.note_waited(wake);
            }
        }
    }

    pub(super) fn end(&self) -> Result<()> {
        let mut state = self.wait_for_writer(self.lock());
        if state.has_ended || !state.open.is_empty() {
            return Ok(());
        }
        state.check()?;
        state.has_ended = true;
        let (lsn, next_seqno) = (state.open.lsn, state.appended + 1);
        let end = lsn + END_BYTES;
        let has_room = end - state.tail <= self.area.len && end <= state.allocation.end();
        // What was written, and not flushed, would be told of as flushed.
        let is_durable = state.written == state.durable;
        drop(state);
        if !has_room || !is_durable {
            return Ok(());
        }
        write_end(self.device.as_ref(), self.area, self.epoch, Lsn(lsn), next_seqno)
            .map_err(|error| StoreError::io(format!("ending the journal at position {lsn}"), error))
    }

    /// Writes the open group and flushes, for every writer that appended before the write began.
    fn lead<'a>(&'a self, mut state: M::Guard<'a>) -> M::Guard<'a> {
        let begun = self.clock.monotonic();
        state.leader = Some(thread::current().id());
        let (opened, is_begun) = self.begin_write(state, true);
        state = opened;
        // In one breath with the taking of the group: who comes behind that is not served by this flush.
        let clients = std::mem::take(&mut state.gathering);
        state.flight = Some(Flight { seqno: state.appended, clients });
        if is_begun {
            state = self.write_begun(state);
        }
        if state.failed.is_none() {
            let target = state.written;
            drop(state);
            let result = self.device.flush();
            state = self.lock();
            match result {
                Ok(()) => {
                    state.durable = state.durable.max(target);
                    state.stats.flushes += 1;
                }
                Err(error) => state.fail("flushing the journal", &error),
            }
        }
        self.land(state, begun);
        self.lock()
    }

    /// Ends the flight that began then.
    fn land<'a>(&'a self, mut state: M::Guard<'a>, begun: Duration) {
        state.leader = None;
        let Some(Flight { seqno, clients }) = state.flight.take() else { return };
        let (now, waiting) = (self.clock.monotonic(), state.gathering.count);
        state.delay.note_flush(now, now.saturating_sub(begun), clients.count, waiting);
        let wake = if state.durable.0 >= seqno { Wake::Done } else { Wake::Look };
        let (next, has_failed) = (state.gathering.gate.clone(), state.failed.is_some());
        drop(state);
        if let Some(gate) = next {
            if has_failed { gate.open(Wake::Look) } else { gate.call_one() }
        }
        clients.open(wake);
    }

    fn panic_guard(&self) -> PanicGuard<'_, M> {
        PanicGuard { log: self, was_panicking: thread::panicking() }
    }

    /// The lock. A thread that has panicked with it may have left half a record.
    fn lock(&self) -> M::Guard<'_> {
        self.looked_at(self.state.lock())
    }

    fn looked_at<'a>(&'a self, mut state: M::Guard<'a>) -> M::Guard<'a> {
        if self.state.is_poisoned() && state.failed.is_none() {
            state.fail("the journal", &"a thread panicked while it changed it");
        }
        state
    }

    /// The journal fails by the panic of this thread, which has no role any more.
    fn end_roles(&self) {
        let mut state = self.lock();
        let thread = thread::current();
        state.fail("the journal", &format_args!("thread {} panicked", thread.name().unwrap_or("(no name)")));
        state.writer.take_if(|writer| *writer == thread.id());
        let mut over = vec![std::mem::take(&mut state.gathering)];
        if state.leader.take_if(|leader| *leader == thread.id()).is_some() {
            over.extend(state.flight.take().map(|flight| flight.clients));
        }
        self.state.notify_all();
        drop(state);
        for clients in over {
            clients.open(Wake::Look);
        }
    }

    fn wait_for_writer<'a>(&'a self, mut state: M::Guard<'a>) -> M::Guard<'a> {
        while state.writer.is_some() {
            state.writers_waiting += 1;
            state = self.looked_at(self.state.wait(state));
            state.writers_waiting -= 1;
        }
        state
    }

    /// Waits until no other thread writes, then writes the open group, if it holds anything.
    fn write_open<'a>(&'a self, state: M::Guard<'a>, may_read: bool) -> M::Guard<'a> {
        let (state, is_begun) = self.begin_write(state, may_read);
        if is_begun { self.write_begun(state) } else { state }
    }

    /// Waits until no other thread writes. Then the open group is this thread's to write, with places for its
    /// small writes, if it holds anything; says whether.
    fn begin_write<'a>(&'a self, state: M::Guard<'a>, may_read: bool) -> (M::Guard<'a>, bool) {
        let mut state = self.wait_for_writer(state);
        if state.open.is_empty() || state.failed.is_some() {
            return (state, false);
        }
        state.writer = Some(thread::current().id());
        state = self.place_sequences(state, may_read);
        let is_begun = state.failed.is_none();
        if !is_begun {
            state.writer = None;
            self.state.notify_all();
        }
        (state, is_begun)
    }

    /// Takes and writes the open group.
    fn write_begun<'a>(&'a self, mut state: M::Guard<'a>) -> M::Guard<'a> {
        let mut group = state.open.take();
        let (appended, flushed_before) = (state.appended, state.durable.1);
        drop(state);
        let device = self.device.as_ref();
        group.gather();
        // First what the group refers to: a flush that covers the group then covers that, too.
        let result = group
            .write_bound(device)
            .and_then(|()| group.write(device, self.area, self.epoch, flushed_before));
        if result.is_ok() {
            group.tell_holders();
        }
        state = self.lock();
        state.writer = None;
        match result {
            Ok(()) => {
                state.written = (appended, state.open.lsn);
                state.stats.groups += 1;
                state.stats.bytes_written += state.open.lsn - group.lsn;
                state.stats.bytes_bound += group.bytes_bound() as u64;
                state.open.recycle(group);
            }
            Err(error) => {
                state.fail(&format!("writing the journal at position {}", group.lsn), &error);
                // The client that was to lead next may not come to it now.
                state.gathering.open(Wake::Look);
            }
        }
        if state.writers_waiting > 0 {
            self.state.notify_all();
        }
        state
    }

    /// Finds places for the small writes of the open group that come to enough. No other thread writes
    /// meanwhile; what is appended meanwhile stays as it is.
    fn place_sequences<'a>(&'a self, state: M::Guard<'a>, may_read: bool) -> M::Guard<'a> {
        let Some(binder) = self.binder.get() else { return state };
        let wanted = state.open.small().sequences(binder.bytes_min(), may_read);
        if wanted.is_empty() {
            return state;
        }
        drop(state);
        let place = |(sequence, wanted)| Some((sequence, binder.place(wanted)?));
        let found = wanted.into_iter().filter_map(place).collect();
        let mut state = self.lock();
        state.open.bind(found);
        state
    }

    /// Allocates the next part of the area; false: it is allocated as far as its oldest group allows.
    pub(super) fn allocate_part(&self) -> std::io::Result<bool> {
        let _one_at_a_time = self.allocating.lock();
        let part = self.read(|state| state.allocation.next_part(state.tail));
        let Some(part) = part else { return Ok(false) };
        let len = (part.end - part.start) as usize;
        self.area.for_each_stretch(part.start, len, |addr, range| {
            self.device.allocate(addr, range.len() as u64)
        })?;
        self.lock().allocation.extend_to(part.end);
        Ok(true)
    }

    /// Whether the log is close to the end of what is allocated.
    pub(super) fn is_short(&self) -> bool {
        self.read(|state| state.allocation.is_short(state.open.end(), state.tail))
    }

    /// Where the log can begin anew, at the start of the area, when it holds nothing.
    pub(super) fn next_start(&self) -> Option<Lsn> {
        let state = self.wait_for_writer(self.lock());
        let head = state.open.lsn;
        let is_empty = state.open.is_empty() && state.tail == head;
        (is_empty && !head.is_multiple_of(self.area.len)).then(|| Lsn(head.next_multiple_of(self.area.len)))
    }

    pub(super) fn restart(&self, start: Lsn) {
        let _one_at_a_time = self.allocating.lock();
        let mut state = self.lock();
        assert!(
            state.open.is_empty()
                && state.tail == state.open.lsn
                && start.0 > state.tail
                && state.writer.is_none(),
            "only an empty log begins anew"
        );
        state.open.lsn = start.0;
        state.tail = start.0;
        state.written.1 = start.0;
        state.durable = (state.appended, start.0);
        state.allocation.restart(start.0);
    }

    pub(super) fn retire(&self, tail: Lsn) {
        let mut state = self.lock();
        assert!(tail.0 <= state.open.lsn, "the tail can't pass the open group");
        state.tail = state.tail.max(tail.0);
    }
}
