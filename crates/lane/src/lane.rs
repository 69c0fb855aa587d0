//! A lane: memory that a thread of a client and a thread of the server share.
//!
//! Purpose: a call costs two changes of a word in memory while both ends look at it. An end that waits looks
//! for a while and sleeps then; how long it looks follows how often that was worth it, so a lane that is idle
//! costs nothing.
//!
//! Thread safety: one thread at each end.
//!
//! A lane on which no call is under way may be ended by the server, which has only so many.
//!
//! Invariants: the end whose turn it is has the data to itself. The server copies out before it looks, and in
//! with a length of its own, so what a hostile client changes meanwhile changes only what that client reads.
#![expect(unsafe_code, reason = "memory shared with another process")]

use std::borrow::Borrow;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::thread::futex;
use rustix::time::Timespec;

/// Longest message with its payload (bytes).
pub const LANE_DATA_BYTES: usize = (1 << 20) + (16 << 10);

/// Where the data begins.
const HEAD_BYTES: usize = 4096;

/// Length of the mapping.
const LANE_BYTES: usize = HEAD_BYTES + LANE_DATA_BYTES;

/// Whose turn it is. No end's: no call is under way.
const IDLE: u32 = 0;
const SERVER: u32 = 1;
/// No end's: the server has ended it.
const OVER: u32 = 2;
/// The client's, in a call that is not sent yet or whose answer it has.
const CLIENT: u32 = 3;

/// Looks before an end sleeps: as long as that is worth it, and when it is not.
const LOOKS_LONG: u32 = 4096;
const LOOKS_SHORT: u32 = 16;

/// So many long looks in vain, one after the other, and it is not worth it; of those behind, one in so many
/// is long, to find out.
const IN_VAIN_MAX: u32 = 8;
const PROBE_EACH: u32 = 64;

/// How long a client sleeps before it asks whether the server lives.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Why no answer came.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// More than [`LANE_DATA_BYTES`].
    #[error("the message is longer than a lane")]
    TooLong,
    /// No message of this version.
    #[error("a malformed message")]
    Malformed,
    /// The server ended the lane, or is gone.
    #[error("the server of the store is gone")]
    Over,
    /// The kernel refused something.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The words in front of the data.
#[repr(C)]
struct Head {
    turn: AtomicU32,
    /// Bytes of the message.
    len: AtomicU32,
    client_sleeps: AtomicU32,
    server_sleeps: AtomicU32,
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
}

// SAFETY: any thread may use and unmap what another one has mapped.
unsafe impl Send for Mapping {}
// SAFETY: shared it gives out its head, which is atomic, and an address: only the end whose turn it is
// reaches the data.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(memory: impl AsFd) -> io::Result<Self> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses an address where nothing is.
        let mapped = unsafe { mmap(null_mut(), LANE_BYTES, protection, flags, memory, 0) }?;
        let start = NonNull::new(mapped.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Self { start };
        // A child would be a second thread at this end.
        // SAFETY: the stretch is this mapping's, and stays as it is in this process.
        unsafe { madvise(mapped, LANE_BYTES, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping begins with it, aligned to a page, and lives as long as `self`; atomics may be
        // shared.
        unsafe { self.start.cast().as_ref() }
    }

    fn data(&self) -> *mut u8 {
        // SAFETY: the mapping is longer than its head.
        unsafe { self.start.add(HEAD_BYTES) }.as_ptr()
    }

    /// Copies `message` into the lane.
    fn put(&self, message: &[u8]) -> Result<(), LaneError> {
        if message.len() > LANE_DATA_BYTES {
            return Err(LaneError::TooLong);
        }
        // SAFETY: it fits; it is this end's turn, so an honest other end does not touch the data, and a
        // dishonest one garbles what it reads itself: nothing here reads it back.
        unsafe { self.data().copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        self.head().len.store(message.len() as u32, Ordering::Relaxed);
        Ok(())
    }

    /// Copies the message of the other end.
    fn take(&self, into: &mut Vec<u8>) -> Result<(), LaneError> {
        let len = self.head().len.load(Ordering::Relaxed) as usize;
        if len > LANE_DATA_BYTES {
            return Err(LaneError::TooLong);
        }
        into.clear();
        into.reserve(len);
        // SAFETY: `len` bytes lie in the lane, and in the vector there is room for them. It is this end's
        // turn; of a dishonest other end, which writes meanwhile, any bytes are bytes.
        unsafe {
            into.as_mut_ptr().copy_from_nonoverlapping(self.data(), len);
            into.set_len(len);
        }
        Ok(())
    }

    fn end(&self) {
        self.head().turn.store(OVER, Ordering::SeqCst);
        // Both may sleep.
        let _ = futex::wake(&self.head().turn, futex::Flags::empty(), 2);
    }

    /// Gives the turn to the other end, unless the lane is over.
    fn give(&self, from: u32, to: u32, other_sleeps: &AtomicU32) -> Result<(), LaneError> {
        self.head()
            .turn
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .map_err(|_| LaneError::Over)?;
        if other_sleeps.swap(0, Ordering::SeqCst) != 0 {
            wake(&self.head().turn);
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is what was mapped, whole, and no reference into it is left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), LANE_BYTES) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

fn wake(word: &AtomicU32) {
    // The other end is woken, or is awake already.
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

/// What waits for its turn; `M` keeps the memory.
#[derive(Debug)]
struct End<M> {
    memory: M,
    /// Waits since the last one that looking has ended.
    in_vain: u32,
}

impl<M: Borrow<Mapping>> End<M> {
    fn of(memory: M) -> Self {
        Self { memory, in_vain: 0 }
    }

    fn mapping(&self) -> &Mapping {
        self.memory.borrow()
    }

    /// Waits until it is the turn of `mine`. `false`: a nap has ended before.
    fn wait(
        &mut self,
        mine: u32,
        sleeps: impl Fn(&Head) -> &AtomicU32,
        nap: Option<&Timespec>,
    ) -> Result<bool, LaneError> {
        let mut turn = self.mapping().head().turn.load(Ordering::Acquire);
        let is_long = self.in_vain < IN_VAIN_MAX || self.in_vain.is_multiple_of(PROBE_EACH);
        for _ in 0..if is_long { LOOKS_LONG } else { LOOKS_SHORT } {
            if turn == mine || turn == OVER {
                break;
            }
            std::hint::spin_loop();
            turn = self.mapping().head().turn.load(Ordering::Acquire);
        }
        self.in_vain = if turn == mine { 0 } else { self.in_vain.wrapping_add(1) };
        loop {
            match turn {
                OVER => return Err(LaneError::Over),
                turn if turn == mine => return Ok(true),
                _ => {}
            }
            sleeps(self.mapping().head()).store(1, Ordering::SeqCst);
            turn = self.mapping().head().turn.load(Ordering::SeqCst);
            if turn == mine || turn == OVER {
                continue;
            }
            match futex::wait(&self.mapping().head().turn, futex::Flags::empty(), turn, nap) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::TIMEDOUT) => return Ok(false),
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
            turn = self.mapping().head().turn.load(Ordering::Acquire);
        }
    }
}

/// The end that calls. Nothing here allocates, so a call may be made in a signal handler.
///
/// A client trusts the server, as a program trusts its kernel: between calls the data is its own.
#[derive(Debug)]
pub struct ClientLane(End<Mapping>);

impl ClientLane {
    /// Of the memory that the server gave.
    ///
    /// # Errors
    /// It is no lane; the kernel refuses.
    pub fn attach(memory: impl AsFd) -> Result<Self, LaneError> {
        if fstat(&memory).map_err(io::Error::from)?.st_size != LANE_BYTES as i64 {
            return Err(LaneError::Malformed);
        }
        Ok(Self(End::of(Mapping::new(memory)?)))
    }

    /// Begins a call: until it is [over](Self::finish) the server does not end the lane, unless the
    /// connection ends. False: it has ended it before.
    #[must_use]
    pub fn begin(&mut self) -> bool {
        let turn = &self.0.mapping().head().turn;
        let begun = turn.compare_exchange(IDLE, CLIENT, Ordering::SeqCst, Ordering::SeqCst);
        // The one before may not be over yet.
        matches!(begun, Ok(_) | Err(CLIENT))
    }

    /// The call is over: its answer was read, or it was not sent.
    pub fn finish(&mut self) {
        let turn = &self.0.mapping().head().turn;
        // Where the lane is over, it stays so.
        let _ = turn.compare_exchange(CLIENT, IDLE, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Room for a message, [`LANE_DATA_BYTES`].
    pub fn space(&mut self) -> &mut [u8] {
        // SAFETY: the mapping holds them and lives as long as `self`, which is borrowed; it is this end's
        // turn.
        unsafe { std::slice::from_raw_parts_mut(self.0.mapping().data(), LANE_DATA_BYTES) }
    }

    /// Sends the first `len` bytes of [`space`](Self::space), of a call that was [begun](Self::begin), and
    /// waits for the answer, which takes their place. `server_lives` is asked from time to time.
    ///
    /// # Errors
    /// [`LaneError::Over`]: there is no server any more, and what was asked may have happened; no call was
    /// begun.
    pub fn call(&mut self, len: usize, server_lives: impl Fn() -> bool) -> Result<&[u8], LaneError> {
        let head = self.0.mapping().head();
        head.len.store(u32::try_from(len).map_err(|_| LaneError::TooLong)?, Ordering::Relaxed);
        self.0.mapping().give(CLIENT, SERVER, &head.server_sleeps)?;
        while !self.0.wait(CLIENT, |head| &head.client_sleeps, Some(&NAP))? {
            if !server_lives() {
                return Err(LaneError::Over);
            }
        }
        let len = self.0.mapping().head().len.load(Ordering::Relaxed) as usize;
        self.space().get(..len).ok_or(LaneError::TooLong)
    }

    /// Gives the lane up: the server does not wait for another call.
    pub fn end(self) {
        self.0.mapping().end();
    }
}

/// The end that answers.
#[derive(Debug)]
pub struct ServerLane(End<Arc<Mapping>>);

/// Ends a lane from another thread. Doesn't keep its memory.
#[derive(Debug, Clone)]
pub struct LaneEnd(Weak<Mapping>);

impl ServerLane {
    /// A new lane, what ends it, and its memory for the client.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn create() -> io::Result<(Self, LaneEnd, OwnedFd)> {
        let memory = memfd_create("kvfs-lane", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&memory, LANE_BYTES as u64)?;
        fcntl_add_seals(&memory, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        let mapping = Arc::new(Mapping::new(&memory)?);
        let ending = LaneEnd(Arc::downgrade(&mapping));
        Ok((Self(End::of(mapping)), ending, memory))
    }

    /// Waits for the next message, which replaces `message`.
    ///
    /// # Errors
    /// [`LaneError::Over`]; the client has broken the rules.
    pub fn next(&mut self, message: &mut Vec<u8>) -> Result<(), LaneError> {
        self.0.wait(SERVER, |head| &head.server_sleeps, None)?;
        self.0.mapping().take(message)
    }

    /// Answers the last message.
    ///
    /// # Errors
    /// As [`ServerLane::next`].
    pub fn answer(&mut self, answer: &[u8]) -> Result<(), LaneError> {
        self.0.mapping().put(answer)?;
        self.0.mapping().give(SERVER, CLIENT, &self.0.mapping().head().client_sleeps)
    }
}

impl Drop for ServerLane {
    fn drop(&mut self) {
        // However the thread ends: its client must not wait for it.
        self.0.mapping().end();
    }
}

impl LaneEnd {
    /// Both ends find it over from now on.
    pub fn end(&self) {
        if let Some(mapping) = self.0.upgrade() {
            mapping.end();
        }
    }

    /// Ends it if no call is under way; returns whether it is over.
    pub fn end_idle(&self) -> bool {
        let Some(mapping) = self.0.upgrade() else { return true };
        let turn = &mapping.head().turn;
        match turn.compare_exchange(IDLE, OVER, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {
                mapping.end();
                true
            }
            Err(found) => found == OVER,
        }
    }

    /// Whether the server's end is gone.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}
