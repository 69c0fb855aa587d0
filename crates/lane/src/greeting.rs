//! What passes over the socket of a connection: the greeting, lanes, placeholders.
//!
//! Purpose: a connection is a process to the file system, with the user that the kernel names. The client asks, the server
//! answers, one message at a time; everything else goes through lanes.
//!
//! A *placeholder* is a descriptor that stands for an open file in the tables of the client, its children, and the programs that it
//! sends it to. The kernel counts its copies: when the last one is closed, the server sees the hang-up of its other end, and the
//! open file ends. Its number is its inode's, so every process that has a copy can tell.
//!
//! Thread safety: functions; none allocates.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use kvfs_socket::{DESCRIPTORS_MAX, receive_descriptors, send_descriptors};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// Both ends have the same.
pub const VERSION: u32 = 1;

/// Most placeholders of one answer.
pub const PLACEHOLDERS_MAX: usize = DESCRIPTORS_MAX;

const REQUEST_BYTES: usize = 8;
const ANSWER_BYTES: usize = 8 + 8 * PLACEHOLDERS_MAX;

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// First of all: whether the server speaks this version.
    Hello {
        /// [`VERSION`] of the client.
        version: u32,
    },
    /// A lane.
    Lane,
    /// Placeholders.
    Placeholders {
        /// At most [`PLACEHOLDERS_MAX`].
        count: u32,
    },
}

/// What a client gets.
#[derive(Debug, Default)]
pub struct Answer {
    /// The memory of a lane, or placeholders.
    pub descriptors: ArrayVec<OwnedFd, DESCRIPTORS_MAX>,
    /// Handles of the placeholders, in their order.
    pub handles: ArrayVec<u64, PLACEHOLDERS_MAX>,
}

impl Request {
    fn to_bytes(self) -> [u8; REQUEST_BYTES] {
        let (what, number) = match self {
            Self::Hello { version } => (0_u32, version),
            Self::Lane => (1, 0),
            Self::Placeholders { count } => (2, count),
        };
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&what.to_le_bytes());
        bytes[4..].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; REQUEST_BYTES]) -> Option<Self> {
        let word = u64::from_le_bytes(bytes);
        let number = (word >> 32) as u32;
        match word as u32 {
            0 => Some(Self::Hello { version: number }),
            1 => Some(Self::Lane),
            2 => Some(Self::Placeholders { count: number }),
            _ => None,
        }
    }
}

/// Asks the server, and waits for its answer.
///
/// # Errors
/// What the server says; the connection fails.
pub fn ask(socket: impl AsFd, request: Request) -> io::Result<Answer> {
    send_descriptors(&socket, &request.to_bytes(), &[])?;
    let mut bytes = [0; ANSWER_BYTES];
    let descriptors = receive_descriptors(&socket, &mut bytes)?;
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let head = words.next().unwrap_or_default();
    let (errno, count) = (head as u32, (head >> 32) as usize);
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno as i32));
    }
    if count > PLACEHOLDERS_MAX || (count > 0 && count != descriptors.len()) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Answer { descriptors, handles: words.take(count).collect() })
}

/// Whether the other end is still there.
pub fn is_connected(socket: impl AsFd) -> bool {
    let mut sockets = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let asked = poll(&mut sockets, Some(&now));
    let is_gone = sockets[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
    asked.is_err() || !is_gone
}

/// The next request of a client.
///
/// # Errors
/// `UnexpectedEof`: it is gone; `InvalidData`: it speaks something else.
pub fn next_request(socket: impl AsFd) -> io::Result<Request> {
    let mut bytes = [0; REQUEST_BYTES];
    // What comes along is closed.
    receive_descriptors(socket, &mut bytes)?;
    Request::from_bytes(bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Grants a request.
///
/// # Errors
/// The connection fails.
pub fn grant(socket: impl AsFd, descriptors: &[BorrowedFd<'_>], handles: &[u64]) -> io::Result<()> {
    reply(socket, 0, descriptors, handles)
}

/// Refuses a request.
///
/// # Errors
/// The connection fails.
pub fn refuse(socket: impl AsFd, errno: i32) -> io::Result<()> {
    reply(socket, errno, &[], &[])
}

fn reply(socket: impl AsFd, errno: i32, descriptors: &[BorrowedFd<'_>], handles: &[u64]) -> io::Result<()> {
    let mut bytes = [0; ANSWER_BYTES];
    let head = u64::from(errno as u32) | (handles.len() as u64) << 32;
    let words = [head].into_iter().chain(handles.iter().copied());
    for (space, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *space = word.to_le_bytes();
    }
    send_descriptors(socket, &bytes, descriptors)
}
