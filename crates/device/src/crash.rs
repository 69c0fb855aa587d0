//! A device that loses power: it produces every image that a crash may legally leave behind.
//!
//! Writes stay in memory until a flush brings them to the device beneath, which therefore holds
//! durable content alone. A crash keeps *any subset* of the unflushed writes, at
//! [`ATOMIC_BYTES`](crate::ATOMIC_BYTES). Where kept writes overlap the later one wins, which loses
//! nothing in generality: "the earlier one arrived last" equals "the later one was lost".
//!
//! Three ways to use it. *After the fact*: [`CrashDevice::crash_image`]. *At each point*: with
//! [`CrashDevice::with_log`], run a workload once and rebuild the image as of every event with
//! [`CrashDevice::image_at`]. *Live*, under a real mount: [`CrashDevice::fail_power`] or
//! [`CrashDevice::cut_power_at`] leave a legal image on the device beneath and make every later
//! call fail; then open that device again.
//!
//! Thread safety: calls run in parallel; events are numbered in the order in which they take effect.
//!
//! Invariants: a flush covers exactly the events that took effect before it started. An image is a
//! pure function of base image, events, seed and mode. Growing is durable by a flush only, like
//! data; a device beneath that has grown stays grown when power fails live.

mod event;
mod select;

pub use event::{CrashEvent, CrashEventKind};
pub use select::CrashMode;

use crate::{Device, MemoryDevice, Rng, SECTOR_BYTES, request};
use bytes::Bytes;
use event::{Event, Held, Payload};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// What [`CrashDevice::on_event`] calls, with the number of events so far.
type Observer = Arc<dyn Fn(&CrashEvent) + Send + Sync>;

/// Orders a power cut: the call that would be event `event_index` fails, and so do all later ones.
#[derive(Clone, Copy, Debug)]
pub struct PowerCut {
    /// The first event that no longer happens.
    pub event_index: usize,
    /// What the selection of surviving writes follows from.
    pub seed: u64,
    /// Which unflushed writes survive.
    pub mode: CrashMode,
}

/// A device over `inner` that can lose power at any point.
pub struct CrashDevice {
    inner: Arc<dyn Device>,
    /// Held while `inner` changes; taken before `state`.
    flush_lock: Mutex<()>,
    state: RwLock<State>,
    observer: RwLock<Option<Observer>>,
    log: Option<Log>,
    /// How far an image may grow (bytes).
    image_len_bytes_max: u64,
}

#[derive(Default)]
struct State {
    /// The events from `first_index` on; with a log, all of them.
    events: Vec<Event>,
    first_index: usize,
    /// Events before this index are durable.
    durable: usize,
    /// What unflushed writes put into each sector, by sector number.
    overlay: HashMap<u64, Held>,
    /// Length that survives a crash for certain (bytes).
    len_bytes_durable: u64,
    is_dead: bool,
    cut: Option<PowerCut>,
}

/// What it takes to rebuild earlier images.
struct Log {
    base: MemoryDevice,
    /// The durable image of the last reconstruction, so that walking through all events in order
    /// applies each only once.
    cursor: Mutex<Option<Durable>>,
}

/// The image after the first `events` events were made durable.
struct Durable {
    events: usize,
    image: MemoryDevice,
}

impl State {
    fn next_index(&self) -> usize {
        self.first_index + self.events.len()
    }

    fn range(&self, from: usize, to: usize) -> &[Event] {
        &self.events[from - self.first_index..to - self.first_index]
    }

    /// Refuses when there is no power any more, or runs out with the call that asks.
    fn check_power(&mut self) -> Result<(), Refusal> {
        if self.is_dead {
            return Err(Refusal::Dead);
        }
        match self.cut {
            Some(cut) if self.next_index() >= cut.event_index => {
                self.is_dead = true;
                Err(Refusal::CutNow(cut))
            }
            _ => Ok(()),
        }
    }
}

/// Why a call does not happen.
enum Refusal {
    Dead,
    /// This call is the one at which power fails.
    CutNow(PowerCut),
}

impl CrashDevice {
    /// A device whose durable content goes to `inner`, which must not be written elsewhere meanwhile.
    pub fn over(inner: Arc<dyn Device>) -> Self {
        let state = State { len_bytes_durable: inner.len_bytes(), ..State::default() };
        Self {
            inner,
            flush_lock: Mutex::new(()),
            state: RwLock::new(state),
            observer: RwLock::new(None),
            log: None,
            image_len_bytes_max: u64::MAX,
        }
    }

    /// A zeroed device of `len_bytes` in memory that grows up to `len_bytes_max`.
    pub fn in_memory(len_bytes: u64, len_bytes_max: u64) -> Self {
        let inner = Arc::new(MemoryDevice::growable(len_bytes, len_bytes_max));
        Self { image_len_bytes_max: len_bytes_max, ..Self::over(inner) }
    }

    /// Keeps all events, with their data, for [`CrashDevice::image_at`]. Copies the device beneath
    /// into memory first; empty stretches take none.
    ///
    /// # Errors
    /// `InvalidInput` when there were events already; any error of reading the device beneath.
    pub fn with_log(mut self) -> io::Result<Self> {
        if self.events_len() > 0 {
            let message = "the log of a crash device has to begin before its first event";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let base = MemoryDevice::copy_of(&self.inner, self.inner.len_bytes(), self.image_len_bytes_max)?;
        self.log = Some(Log { base, cursor: Mutex::new(None) });
        Ok(self)
    }

    /// Calls `observer` after every event, on the thread that caused it and outside all locks of
    /// this device, so that it may take images. Replaces an earlier observer.
    pub fn on_event(&self, observer: impl Fn(&CrashEvent) + Send + Sync + 'static) {
        *self.observer.write() = Some(Arc::new(observer));
    }

    /// How many events there were: writes, growths and completed flushes.
    pub fn events_len(&self) -> usize {
        self.state.read().next_index()
    }

    /// What the events were, without data: all of them with a log, else those since the last flush.
    pub fn events(&self) -> Vec<CrashEvent> {
        let state = self.state.read();
        let describe = |(index, event): (usize, &Event)| event.describe(state.first_index + index);
        state.events.iter().enumerate().map(describe).collect()
    }

    /// Bytes of writes that no flush has covered.
    pub fn bytes_unflushed(&self) -> u64 {
        let state = self.state.read();
        state.range(state.durable, state.next_index()).iter().map(Event::bytes_held).sum()
    }

    /// A legal image of a crash at this moment.
    ///
    /// # Errors
    /// Any error of reading the device beneath (never, with a log or in memory).
    pub fn crash_image(&self, seed: u64, mode: CrashMode) -> io::Result<MemoryDevice> {
        // No flush may complete between the copy and the choice.
        let _no_flush = self.flush_lock.lock();
        let (durable, len_bytes_durable, pending) = self.pending();
        let image = match &self.log {
            Some(log) => self.durable_image(log, durable),
            None => MemoryDevice::copy_of(&self.inner, len_bytes_durable, self.image_len_bytes_max)?,
        };
        Ok(apply_selected(&image, &pending, seed, mode))
    }

    /// A legal image of a crash after the first `event_index` events. Walking through the indices
    /// in rising order is cheap: O(events since the flush before) each.
    ///
    /// # Errors
    /// `Unsupported` without a log, `InvalidInput` when there were not so many events.
    pub fn image_at(&self, event_index: usize, seed: u64, mode: CrashMode) -> io::Result<MemoryDevice> {
        let Some(log) = &self.log else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the crash device keeps no log"));
        };
        let (durable, pending) = {
            let state = self.state.read();
            if event_index > state.next_index() {
                let message = format!("image after {event_index} events of {}", state.next_index());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            let before = &state.events[..event_index];
            let durable = before.iter().rev().find_map(Event::covered_by_flush).unwrap_or(0);
            (durable, before[durable..].to_vec())
        };
        let image = self.durable_image(log, durable);
        Ok(apply_selected(&image, &pending, seed, mode))
    }

    /// Power fails now: a selection of the unflushed writes goes to the device beneath, and every
    /// call after this one fails. Waits for a flush that is under way. A second call does nothing.
    ///
    /// # Errors
    /// Any error of writing to the device beneath; power has failed all the same.
    pub fn fail_power(&self, seed: u64, mode: CrashMode) -> io::Result<()> {
        let flush = self.flush_lock.lock();
        {
            let mut state = self.state.write();
            if state.is_dead {
                return Ok(());
            }
            state.is_dead = true;
        }
        let (_, _, pending) = self.pending();
        let result = self.leave_behind(&pending, seed, mode);
        drop(flush);
        result
    }

    /// Arms a power cut at a coming event; replaces an earlier one.
    pub fn cut_power_at(&self, cut: PowerCut) {
        self.state.write().cut = Some(cut);
    }

    /// Whether power has not failed yet.
    pub fn is_powered(&self) -> bool {
        !self.state.read().is_dead
    }

    fn pending(&self) -> (usize, u64, Vec<Event>) {
        let state = self.state.read();
        let pending = state.range(state.durable, state.next_index()).to_vec();
        (state.durable, state.len_bytes_durable, pending)
    }

    /// The image after the first `durable` events, all of them kept. Shares memory with the log.
    fn durable_image(&self, log: &Log, durable: usize) -> MemoryDevice {
        let mut cursor = log.cursor.lock();
        let at = match cursor.take() {
            Some(at) if at.events <= durable => at,
            _ => Durable { events: 0, image: log.base.fork() },
        };
        for event in &self.state.read().events[at.events..durable] {
            event.apply(&at.image);
        }
        let fork = at.image.fork();
        *cursor = Some(Durable { events: durable, image: at.image });
        fork
    }

    /// Writes what survives of `pending` to the device beneath, sector by sector.
    fn leave_behind(&self, pending: &[Event], seed: u64, mode: CrashMode) -> io::Result<()> {
        let mut sectors: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut failure = Ok(());
        select::select(pending, &mut Rng::new(seed), mode, |kept| {
            let Some((offset, payload)) = kept.bytes() else { return };
            for (sector, in_sector, part) in payload.by_sector(offset) {
                let target = sectors.entry(sector).or_insert_with(|| {
                    let mut old = vec![0; SECTOR_BYTES];
                    if let Err(error) = self.inner.read_at(&mut old, sector * SECTOR) {
                        failure = Err(error);
                    }
                    old
                });
                part.copy_to(&mut target[in_sector..in_sector + part.len() as usize]);
            }
        });
        failure?;
        for (sector, bytes) in sectors {
            self.inner.write_at(&bytes, sector * SECTOR)?;
        }
        self.inner.flush()
    }

    /// Carries out an armed cut, and gives the error that a call without power gets.
    fn refuse(&self, refusal: &Refusal) -> io::Error {
        if let Refusal::CutNow(cut) = refusal {
            let _no_flush = self.flush_lock.lock();
            let (_, _, pending) = self.pending();
            if let Err(error) = self.leave_behind(&pending, cut.seed, cut.mode) {
                return error;
            }
        }
        io::Error::other("the simulated machine has lost power")
    }

    /// Adds an event unless there is no power, and tells the observer.
    fn record(&self, event: Event) -> io::Result<()> {
        let described = {
            let mut state = self.state.write();
            if let Err(refusal) = state.check_power() {
                drop(state);
                return Err(self.refuse(&refusal));
            }
            let index = state.next_index();
            if let Some((offset, payload)) = event.bytes() {
                for (sector, _, part) in payload.by_sector(offset) {
                    state.overlay.insert(sector, Held { event_index: index, content: part });
                }
            }
            let described = event.describe(index);
            state.events.push(event);
            described
        };
        self.tell(&described);
        Ok(())
    }

    fn tell(&self, event: &CrashEvent) {
        let observer = self.observer.read().clone();
        if let Some(observer) = observer {
            observer(event);
        }
    }

    /// Marks the events before `covered` durable.
    fn finish_flush(&self, covered: usize) -> io::Result<CrashEvent> {
        let mut state = self.state.write();
        if state.is_dead {
            // Power failed while the flush ran, so it never returned.
            return Err(io::Error::other("the simulated machine has lost power"));
        }
        let grown = state.range(state.durable, covered).iter().filter_map(Event::grown_to).max();
        state.len_bytes_durable = state.len_bytes_durable.max(grown.unwrap_or(0));
        state.durable = covered;
        state.overlay.retain(|_, held| held.event_index >= covered);
        let flush = Event::Flush { covered };
        let described = flush.describe(state.next_index());
        if self.log.is_none() {
            let forgotten = covered - state.first_index;
            state.events.drain(..forgotten);
            state.first_index = covered;
        }
        state.events.push(flush);
        Ok(described)
    }
}

/// `image` with a selection of `pending` applied.
fn apply_selected(image: &MemoryDevice, pending: &[Event], seed: u64, mode: CrashMode) -> MemoryDevice {
    let image = image.fork();
    select::select(pending, &mut Rng::new(seed), mode, |kept| kept.apply(&image));
    image
}

impl Device for CrashDevice {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        request::check_read(self.len_bytes(), offset, buf.len())?;
        // Held over both steps: a flush must not take a sector out of the overlay in between.
        let state = self.state.read();
        if state.is_dead {
            return Err(self.refuse(&Refusal::Dead));
        }
        self.inner.read_at(buf, offset)?;
        if !state.overlay.is_empty() {
            for (index, target) in buf.chunks_mut(SECTOR_BYTES).enumerate() {
                if let Some(held) = state.overlay.get(&(offset / SECTOR + index as u64)) {
                    held.content.copy_to(target);
                }
            }
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        request::check_write("write", self.len_bytes(), offset, buf.len() as u64)?;
        self.record(Event::Write { offset, payload: Payload(Bytes::copy_from_slice(buf)) })
    }

    fn flush(&self) -> io::Result<()> {
        // Serialised, so that the events of two flushes reach the device beneath in order.
        let one_at_a_time = self.flush_lock.lock();
        let started = {
            let mut state = self.state.write();
            state.check_power().map(|()| {
                let covered = state.next_index();
                (covered, state.range(state.durable, covered).to_vec())
            })
        };
        let (covered, events) = match started {
            Ok(started) => started,
            Err(refusal) => {
                drop(one_at_a_time);
                return Err(self.refuse(&refusal));
            }
        };
        for event in &events {
            event.write_to(&*self.inner)?;
        }
        self.inner.flush()?;
        let described = self.finish_flush(covered)?;
        drop(one_at_a_time);
        self.tell(&described);
        Ok(())
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        request::check_grow(len)?;
        if len <= self.len_bytes() {
            return Ok(());
        }
        if !self.is_powered() {
            return Err(self.refuse(&Refusal::Dead));
        }
        self.inner.grow(len)?;
        self.record(Event::Grow { len })
    }
}

impl fmt::Debug for CrashDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CrashDevice")
            .field("len_bytes", &self.len_bytes())
            .field("events_len", &self.events_len())
            .field("bytes_unflushed", &self.bytes_unflushed())
            .field("is_powered", &self.is_powered())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
