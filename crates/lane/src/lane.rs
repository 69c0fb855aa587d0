//! A lane: memory that a thread of a client and a thread of the server share.
//!
//! Purpose: a call costs two changes of a word in memory while both ends look at it. An end that waits looks
//! for a while and sleeps then; how long it looks follows how often that was worth it, so a lane that is idle
//! costs nothing but a wakeup every two seconds.
//!
//! Thread safety: one thread at each end.
//!
//! A lane on which no call is under way may be ended by the server, which has only so many.
//!
//! Invariants: the end whose turn it is has the data to itself. The server copies out before it looks, and in
//! with a length of its own, so what a hostile client changes meanwhile changes only what that client reads.
//! That the server has ended a lane lies in memory of its own, too: the word that says so to the client can
//! be overwritten, and of a futex that is shared the client can take the wakeups and move the waiters.
#![expect(unsafe_code, reason = "memory shared with another process")]

use std::borrow::Borrow;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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
const CLIENT_NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// How long the server sleeps before it looks whether the lane is over, whatever its client does to the word.
const SERVER_NAP: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

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
    /// This process has ended the lane.
    is_over: AtomicBool,
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
        let mapping = Self { start, is_over: AtomicBool::new(false) };
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

    /// Whose turn it is.
    fn turn(&self) -> u32 {
        // The client may have written over the word since.
        if self.is_over.load(Ordering::Acquire) { OVER } else { self.head().turn.load(Ordering::SeqCst) }
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.head().turn.store(OVER, Ordering::SeqCst);
        // Both may sleep, and other threads of a client that is to be woken before them.
        wake(&self.head().turn, i32::MAX as u32);
    }

    /// Gives the turn to the other end, unless the lane is over.
    fn give(&self, from: u32, to: u32, other_sleeps: &AtomicU32) -> Result<(), LaneError> {
        self.head()
            .turn
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .map_err(|_| LaneError::Over)?;
        if other_sleeps.swap(0, Ordering::SeqCst) != 0 {
            wake(&self.head().turn, 1);
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

fn wake(word: &AtomicU32, count: u32) {
    // The other end is woken, or is awake already.
    let _ = futex::wake(word, futex::Flags::empty(), count);
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

    /// Looks for a while whether it is the turn of `mine`.
    fn look(&mut self, mine: u32) {
        let mut turn = self.mapping().turn();
        let is_long = self.in_vain < IN_VAIN_MAX || self.in_vain.is_multiple_of(PROBE_EACH);
        for _ in 0..if is_long { LOOKS_LONG } else { LOOKS_SHORT } {
            if turn == mine || turn == OVER {
                break;
            }
            std::hint::spin_loop();
            turn = self.mapping().turn();
        }
        self.in_vain = if turn == mine { 0 } else { self.in_vain.wrapping_add(1) };
    }

    /// Sleeps until it is the turn of `mine`. `false`: the nap has ended before.
    fn sleep(&self, mine: u32, sleeps: &AtomicU32, nap: &Timespec) -> Result<bool, LaneError> {
        loop {
            match self.mapping().turn() {
                OVER => return Err(LaneError::Over),
                turn if turn == mine => return Ok(true),
                _ => {}
            }
            sleeps.store(1, Ordering::SeqCst);
            let turn = self.mapping().turn();
            if turn == mine || turn == OVER {
                continue;
            }
            match futex::wait(&self.mapping().head().turn, futex::Flags::empty(), turn, Some(nap)) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::TIMEDOUT) => return Ok(false),
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
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
        self.0.look(CLIENT);
        let head = self.0.mapping().head();
        while !self.0.sleep(CLIENT, &head.client_sleeps, &CLIENT_NAP)? {
            if !server_lives() {
                return Err(LaneError::Over);
            }
        }
        let len = head.len.load(Ordering::Relaxed) as usize;
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
        self.0.look(SERVER);
        let mapping = self.0.mapping();
        while !self.0.sleep(SERVER, &mapping.head().server_sleeps, &SERVER_NAP)? {}
        mapping.take(message)
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
            Err(_) => mapping.turn() == OVER,
        }
    }

    /// Whether the server's end is gone.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_reaches_a_server_whose_client_moves_its_sleep_elsewhere_and_writes_over_the_word() {
        let (mut server, end, memory) = ServerLane::create().expect("makes");
        let client = Mapping::new(memory).expect("attaches");
        let Head { turn, len, .. } = client.head();
        std::thread::scope(|scope| {
            let served = scope.spawn(move || server.next(&mut Vec::new()));
            // Once it sleeps, it sleeps on a word at which no thread wakes it.
            while futex::requeue(turn, futex::Flags::empty(), 0, 1, len) != Ok(1) {
                std::thread::yield_now();
            }
            end.end();
            turn.store(IDLE, Ordering::SeqCst);
            assert!(matches!(served.join().expect("returns"), Err(LaneError::Over)));
        });
        assert!(end.is_gone());
    }
}
