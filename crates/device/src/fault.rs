//! A device that fails on order: I/O errors at chosen calls, and flipped bits in reads.
//!
//! A test first runs its workload without rules and reads [`FaultDevice::counts`], then runs it
//! again once for each call with a rule that fails just that one ("EIO at every device call").
//!
//! Thread safety: calls may run at the same time; they are numbered in the order in which they
//! pass the rules.
//!
//! Invariants: a failed call other than a torn write leaves the device beneath untouched.

use crate::{Device, SECTOR_BYTES};
use parking_lot::Mutex;
use std::fmt;
use std::io;
use std::ops::Range;

/// One method of [`Device`] that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// [`Device::read_at`]
    Read,
    /// [`Device::write_at`]
    Write,
    /// [`Device::flush`]
    Flush,
    /// [`Device::grow`] and [`Device::extend`]
    Grow,
    /// [`Device::allocate`]
    Allocate,
}

impl Call {
    /// Every call, for tests that enumerate them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Grow, Self::Allocate];
}

/// How often each call was made, failed ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// By position in [`Call::ALL`].
    counts: [u64; Call::ALL.len()],
}

impl CallCounts {
    /// How often `call` was made.
    pub fn of(&self, call: Call) -> u64 {
        self.counts[call as usize]
    }

    /// How many calls were made in all.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// The error that a rule produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// An error of this kind, without an errno.
    Kind(io::ErrorKind),
    /// The operating system's error of this number.
    Errno(i32),
}

impl FaultError {
    /// `EIO`: the medium failed.
    pub const EIO: Self = Self::Errno(rustix::io::Errno::IO.raw_os_error());
    /// `ENOSPC`: no space is left.
    pub const ENOSPC: Self = Self::Errno(rustix::io::Errno::NOSPC.raw_os_error());

    fn to_io(self) -> io::Error {
        match self {
            Self::Kind(kind) => io::Error::new(kind, "injected fault"),
            Self::Errno(errno) => io::Error::from_raw_os_error(errno),
        }
    }
}

/// Which calls fail, and how.
#[derive(Clone, Debug)]
pub struct FaultRule {
    /// `None` matches every call.
    call: Option<Call>,
    /// How many more matching calls pass first.
    pass: u64,
    once: bool,
    error: FaultError,
    torn_bytes: usize,
}

impl FaultRule {
    /// Fails the `nth` (from 0) call of this kind after the rule is added, and only that one.
    pub fn once(call: Call, nth: u64, error: FaultError) -> Self {
        Self { call: Some(call), pass: nth, once: true, error, torn_bytes: 0 }
    }

    /// Fails the `nth` (from 0) call of this kind after the rule is added, and all later ones.
    pub fn from(call: Call, nth: u64, error: FaultError) -> Self {
        Self { once: false, ..Self::once(call, nth, error) }
    }

    /// As [`FaultRule::once`], counting calls of every kind.
    pub fn once_any(nth: u64, error: FaultError) -> Self {
        Self { call: None, pass: nth, once: true, error, torn_bytes: 0 }
    }

    /// As [`FaultRule::from`], counting calls of every kind.
    pub fn from_any(nth: u64, error: FaultError) -> Self {
        Self { once: false, ..Self::once_any(nth, error) }
    }

    /// A failing write first writes this much of its start (bytes, rounded down to sectors).
    #[must_use]
    pub fn torn(mut self, bytes: usize) -> Self {
        self.torn_bytes = bytes / SECTOR_BYTES * SECTOR_BYTES;
        self
    }
}

/// Passes everything on to `D`, except what its rules fail or falsify.
pub struct FaultDevice<D> {
    inner: D,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counts: CallCounts,
    faults: u64,
    rules: Vec<FaultRule>,
    flips: Vec<Flip>,
    unreadable: Vec<Range<u64>>,
}

/// The bits of `mask` are inverted in every read of the byte at `offset`.
struct Flip {
    offset: u64,
    mask: u8,
}

/// What the rules say about one call.
struct Verdict {
    error: FaultError,
    torn_bytes: usize,
}

impl<D: Device> FaultDevice<D> {
    /// A device without rules over `inner`.
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Adds a rule; it counts calls from now on. The first rule that fires decides the error.
    pub fn add(&self, rule: FaultRule) {
        self.state.lock().rules.push(rule);
    }

    /// From now on every read of the byte at `offset` sees the bits of `mask` inverted. The medium
    /// itself is not changed.
    pub fn flip(&self, offset: u64, mask: u8) {
        self.state.lock().flips.push(Flip { offset, mask });
    }

    /// From now on every read that touches these bytes fails with `EIO`.
    pub fn lose(&self, bytes: Range<u64>) {
        self.state.lock().unreadable.push(bytes);
    }

    /// Removes all rules, flips and losses; the counts stay.
    pub fn clear(&self) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.flips.clear();
        state.unreadable.clear();
    }

    /// Calls made so far, failed ones included.
    pub fn counts(&self) -> CallCounts {
        self.state.lock().counts
    }

    /// How many calls a rule has failed so far; 0 means that the test never reached its fault.
    pub fn faults(&self) -> u64 {
        self.state.lock().faults
    }

    /// The device beneath, to look at what really arrived.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Counts `call` and asks every rule, so that each rule sees each call.
    fn judge(&self, call: Call) -> Option<Verdict> {
        let mut state = self.state.lock();
        state.counts.counts[call as usize] += 1;
        let mut verdict = None;
        state.rules.retain_mut(|rule| {
            if rule.call.is_some_and(|wanted| wanted != call) {
                return true;
            }
            if rule.pass > 0 {
                rule.pass -= 1;
                return true;
            }
            verdict.get_or_insert(Verdict { error: rule.error, torn_bytes: rule.torn_bytes });
            !rule.once
        });
        state.faults += u64::from(verdict.is_some());
        verdict
    }

    fn judge_simple(&self, call: Call) -> io::Result<()> {
        self.judge(call).map_or(Ok(()), |verdict| Err(verdict.error.to_io()))
    }
}

impl<D: Device> Device for FaultDevice<D> {
    fn len_bytes(&self) -> u64 {
        self.inner.len_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.judge_simple(Call::Read)?;
        let end = offset + buf.len() as u64;
        if self.state.lock().unreadable.iter().any(|lost| lost.start < end && offset < lost.end) {
            return Err(FaultError::EIO.to_io());
        }
        self.inner.read_at(buf, offset)?;
        for flip in &self.state.lock().flips {
            let place = flip.offset.checked_sub(offset).and_then(|place| buf.get_mut(place as usize));
            if let Some(byte) = place {
                *byte ^= flip.mask;
            }
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let Some(verdict) = self.judge(Call::Write) else {
            return self.inner.write_at(buf, offset);
        };
        let torn = &buf[..verdict.torn_bytes.min(buf.len())];
        if !torn.is_empty() {
            self.inner.write_at(torn, offset)?;
        }
        Err(verdict.error.to_io())
    }

    fn flush(&self) -> io::Result<()> {
        self.judge_simple(Call::Flush)?;
        self.inner.flush()
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        self.judge_simple(Call::Grow)?;
        self.inner.grow(len)
    }

    fn extend(&self, len: u64) -> io::Result<()> {
        self.judge_simple(Call::Grow)?;
        self.inner.extend(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.judge_simple(Call::Allocate)?;
        self.inner.allocate(offset, len)
    }

    fn refresh_len(&self) -> io::Result<u64> {
        self.inner.refresh_len()
    }

    fn room_bytes(&self) -> Option<u64> {
        self.inner.room_bytes()
    }
}

impl<D: fmt::Debug> fmt::Debug for FaultDevice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("FaultDevice")
            .field("inner", &self.inner)
            .field("counts", &state.counts)
            .field("faults", &state.faults)
            .field("rules", &state.rules)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
