//! One `io_uring`: commands about entries go out, their requests come in.
#![expect(unsafe_code, reason = "what is submitted names memory, which must stay until it completes")]
//!
//! Thread safety: one thread at a time; from [`Queue::enable`] on, the thread that called it. Invariant: an
//! entry that a command names outlives the queue: [`super::Shared`] has both.

use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::entry::Entry;
use crate::abi::{RING_CMD_COMMIT_AND_FETCH, RING_CMD_REGISTER, RingCmdReq};

/// Commands that go out at once, at most.
const COMMANDS: u32 = 64;
/// Completions that wait to be looked at, at most, before the kernel keeps them for itself.
const COMPLETIONS: u32 = 1024;
/// Places that a register command names.
const PLACES: u32 = 2;
/// What a completion carries that is about no entry.
const EVENT: u64 = u64::MAX;

/// What a completion tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Completion {
    /// The entry of this number has a request, or the kernel let go of it.
    Entry(usize, Result<(), Errno>),
    /// The watched event.
    Event,
}

/// A ring of one thread.
pub(super) struct Queue {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Queue {
    /// A ring that does nothing yet.
    ///
    /// # Errors
    /// The system has none for us: it is too old, or forbids it.
    pub(super) fn new() -> Result<Self, Errno> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
        builder.setup_r_disabled().setup_single_issuer().setup_defer_taskrun().setup_cqsize(COMPLETIONS);
        Ok(Self { ring: builder.build(COMMANDS).map_err(|error| errno(&error))? })
    }

    /// Binds it to the calling thread.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn enable(&self) -> Result<(), Errno> {
        self.ring.submitter().register_enable_rings().map_err(|error| errno(&error))
    }

    /// Makes an entry known to the kernel.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub(super) fn register(
        &mut self,
        device: BorrowedFd<'_>,
        (index, entry): (usize, &Entry),
    ) -> Result<(), Errno> {
        self.command(device, RING_CMD_REGISTER, index, entry, Some(entry.places()))
    }

    /// Gives an answered entry back to the kernel.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub(super) fn commit(
        &mut self,
        device: BorrowedFd<'_>,
        (index, entry): (usize, &Entry),
    ) -> Result<(), Errno> {
        self.command(device, RING_CMD_COMMIT_AND_FETCH, index, entry, None)
    }

    fn command(
        &mut self,
        device: BorrowedFd<'_>,
        operation: u32,
        index: usize,
        entry: &Entry,
        places: Option<u64>,
    ) -> Result<(), Errno> {
        let commit_id = if places.is_some() { 0 } else { entry.commit_id() };
        let request = RingCmdReq { commit_id, qid: entry.queue, ..RingCmdReq::default() };
        let mut bytes = [0; 80];
        bytes[..size_of::<RingCmdReq>()].copy_from_slice(request.as_bytes());
        let command =
            opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), operation).cmd(bytes).addr(places);
        let command = command.build().user_data(index as u64);
        self.push(&if places.is_some() { with_len(command, PLACES) } else { command })
    }

    /// Has the next write to an event told, once.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub(super) fn watch(&mut self, event: BorrowedFd<'_>) -> Result<(), Errno> {
        let poll = opcode::PollAdd::new(types::Fd(event.as_raw_fd()), libc::POLLIN as u32);
        self.push(&squeue::Entry128::from(poll.build().user_data(EVENT)))
    }

    fn push(&mut self, command: &squeue::Entry128) -> Result<(), Errno> {
        loop {
            // SAFETY: descriptors and entries that commands name live as long as the ring; the module header
            // says who sees to it.
            if unsafe { self.ring.submission().push(command) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
    }

    /// Has the kernel carry out what was asked for. When this returns, it has taken the answers.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn submit(&self) -> Result<(), Errno> {
        self.enter(0)
    }

    /// The same, and waits for a completion.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn wait(&self) -> Result<(), Errno> {
        self.enter(1)
    }

    fn enter(&self, completions: usize) -> Result<(), Errno> {
        loop {
            match self.ring.submit_and_wait(completions).map_err(|error| errno(&error)) {
                Ok(_) => return Ok(()),
                // Completions wait to be looked at.
                Err(Errno::BUSY) if completions > 0 => return Ok(()),
                Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The next completion, if there is one.
    pub(super) fn next(&mut self) -> Option<Completion> {
        let completion = self.ring.completion().next()?;
        if completion.user_data() == EVENT {
            return Some(Completion::Event);
        }
        let result = match completion.result() {
            negative @ ..0 => Err(Errno::from_raw_os_error(-negative)),
            _ => Ok(()),
        };
        Some(Completion::Entry(completion.user_data() as usize, result))
    }
}

/// The builder of commands has no length; a register command gives the number of its places there.
fn with_len(command: squeue::Entry128, len: u32) -> squeue::Entry128 {
    const LEN_AT: usize = 24;
    // SAFETY: a submission entry is 128 bytes of plain integers, of which any are valid.
    let mut bytes: [u8; 128] = unsafe { std::mem::transmute(command) };
    bytes[LEN_AT..LEN_AT + 4].copy_from_slice(&len.to_ne_bytes());
    // SAFETY: as above.
    unsafe { std::mem::transmute(bytes) }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
