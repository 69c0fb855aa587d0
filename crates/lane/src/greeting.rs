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
pub const VERSION: u32 = 2;

/// Most placeholders of one answer.
pub const PLACEHOLDERS_MAX: usize = DESCRIPTORS_MAX;

/// Longest place of a [`Greeting`] (bytes).
pub const PLACE_LEN_MAX: usize = 4095;

const REQUEST_BYTES: usize = 24;
const ANSWER_BYTES: usize = 8 + 8 * PLACEHOLDERS_MAX;

/// What a process is to the file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Greeting {
    /// The open transaction that it is in, of its user's; 0: none.
    pub txn: u64,
    /// Where it sees the file system within another one: absolute targets of symbolic links are meant there, and a path that leads
    /// out of it is answered with [`Reply::Outside`](crate::Reply::Outside). Empty: the file system is all that it sees.
    pub place: Vec<u8>,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// First of all: whether the server speaks this version.
    Hello {
        /// [`VERSION`] of the client.
        version: u32,
        /// Of another version: empty.
        greeting: Greeting,
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
    /// Its head, and the place behind it.
    fn to_bytes(&self) -> ([u8; REQUEST_BYTES], &[u8]) {
        let (what, number, txn, place) = match self {
            Self::Hello { version, greeting } => (0, *version, greeting.txn, &greeting.place[..]),
            Self::Lane => (1, 0, 0, &[][..]),
            Self::Placeholders { count } => (2, *count, 0, &[][..]),
        };
        let mut head = [0; REQUEST_BYTES];
        let words = [what | u64::from(number) << 32, txn, place.len() as u64];
        for (space, word) in head.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *space = word.to_le_bytes();
        }
        (head, place)
    }
}

/// Asks the server, and waits for its answer.
///
/// # Errors
/// What the server says; the connection fails.
pub fn ask(socket: impl AsFd, request: &Request) -> io::Result<Answer> {
    let (head, place) = request.to_bytes();
    send_descriptors(&socket, &head, &[])?;
    send_descriptors(&socket, place, &[])?;
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
    receive_descriptors(&socket, &mut bytes)?;
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let [head, txn, place_len] = [(); 3].map(|()| words.next().unwrap_or_default());
    let number = (head >> 32) as u32;
    match head as u32 {
        0 if number != VERSION => Ok(Request::Hello { version: number, greeting: Greeting::default() }),
        0 if place_len <= PLACE_LEN_MAX as u64 => {
            let mut place = vec![0; place_len as usize];
            receive_descriptors(&socket, &mut place)?;
            Ok(Request::Hello { version: number, greeting: Greeting { txn, place } })
        }
        1 => Ok(Request::Lane),
        2 => Ok(Request::Placeholders { count: number }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
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
