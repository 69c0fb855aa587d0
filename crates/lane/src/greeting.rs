//! What passes over the socket of a connection: the greeting, lanes, placeholders.
//!
//! Purpose: a connection is a process to the file system, with the user that the kernel names. The client
//! asks, the server answers, one message at a time; everything else goes through lanes.
//!
//! A *placeholder* is a descriptor that stands for an open file in the tables of the client, its children,
//! and the programs that it sends it to. The client opens it, an empty file that the server has named to it,
//! and takes a shared lock on it (`flock`), which all copies have. The kernel counts them: when the last one
//! is closed, it tells the server and ends the lock, and the open file ends.
//! Its number is its inode's, so every process that has a copy can tell. The file is as long as can be, and
//! open for appending: a write that reaches it fails.
//!
//! Thread safety: functions; none allocates.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use kvfs_socket::{DESCRIPTORS_MAX, receive_descriptors, send_descriptors};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

/// Both ends have the same.
pub const VERSION: u32 = 12;

/// Most placeholders of one answer.
pub const PLACEHOLDERS_MAX: usize = 64;

/// `st_mode` of a placeholder: no other file has such rights.
pub const PLACEHOLDER_MODE: u32 = 0o10_1222;

/// Longest place of a [`Greeting`] (bytes).
pub const PLACE_LEN_MAX: usize = 4095;

/// Most numbers of [`Greeting::acts_as`]: a user, a group, and the most further groups of Linux.
pub const IDS_MAX: usize = 2 + (1 << 16);

const REQUEST_BYTES: usize = 24;
const ANSWER_BYTES: usize = 8 + 8 * PLACEHOLDERS_MAX;

/// What a process is to the file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Greeting {
    /// The open transaction that it is in, of its user's; 0: none.
    pub txn: u64,
    /// Where it sees the file system within another one: absolute targets of symbolic links are meant there,
    /// and a path that leads out of it is answered with [`Reply::Outside`](crate::Reply::Outside). Empty: the
    /// file system is all that it sees.
    pub place: Vec<u8>,
    /// The user that it acts for: its number, its group, further groups. For root and for the server's own
    /// user, which may do so without a server, too. Empty: the user of the connection.
    pub acts_as: Vec<u32>,
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
    /// Placeholders: the directory in which a file for each is to be opened for appending alone,
    /// once, and locked.
    Placeholders {
        /// At most [`PLACEHOLDERS_MAX`].
        count: u32,
    },
    /// Memory of a file that is open for reading and writing, for a mapping that is shared: all processes
    /// that ask have the same. It is the file's for as long as a copy of this placeholder is there.
    Memory {
        /// Of a placeholder.
        handle: u64,
    },
    /// The connection of a child of this process, as fork(2) makes it: a socket that is greeted already.
    Fork,
}

/// What a client gets.
#[derive(Debug, Default)]
pub struct Answer {
    /// The memory of a lane or of a file, the directory of placeholders, or the socket of a connection.
    pub descriptors: ArrayVec<OwnedFd, DESCRIPTORS_MAX>,
    /// Handles of the placeholders.
    pub handles: ArrayVec<u64, PLACEHOLDERS_MAX>,
}

impl Request {
    /// Its head, and behind it the place and the numbers of the user.
    fn to_bytes(&self) -> ([u8; REQUEST_BYTES], &[u8], &[u32]) {
        let (what, number, word, greeting) = match self {
            Self::Hello { version, greeting } => (0, *version, greeting.txn, Some(greeting)),
            Self::Lane => (1, 0, 0, None),
            Self::Placeholders { count } => (2, *count, 0, None),
            Self::Fork => (3, 0, 0, None),
            Self::Memory { handle } => (4, 0, *handle, None),
        };
        let (place, ids) =
            greeting.map_or((&[][..], &[][..]), |greeting| (&greeting.place[..], &greeting.acts_as[..]));
        let mut head = [0; REQUEST_BYTES];
        let lengths = place.len() as u64 | (ids.len() as u64) << 32;
        let words = [what | u64::from(number) << 32, word, lengths];
        for (space, word) in head.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *space = word.to_le_bytes();
        }
        (head, place, ids)
    }
}

/// The name of a placeholder in its directory, with a zero behind it.
pub fn placeholder_name(handle: u64) -> [u8; 17] {
    let mut name = [0; 17];
    for (at, digit) in name[..16].iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(handle >> (60 - 4 * at) & 15) as usize];
    }
    name
}

/// Asks the server, and waits for its answer.
///
/// # Errors
/// What the server says; the connection fails.
pub fn ask(socket: impl AsFd, request: &Request) -> io::Result<Answer> {
    let (head, place, ids) = request.to_bytes();
    send_descriptors(&socket, &head, &[])?;
    send_descriptors(&socket, place, &[])?;
    let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    send_descriptors(&socket, &ids, &[])?;
    let mut bytes = [0; ANSWER_BYTES];
    let descriptors = receive_descriptors(&socket, &mut bytes)?;
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let head = words.next().unwrap_or_default();
    let (errno, count) = (head as u32, (head >> 32) as usize);
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno as i32));
    }
    if count > PLACEHOLDERS_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(Answer { descriptors, handles: words.take(count).collect() })
}

/// Whether the other end is still there.
pub fn is_connected(socket: impl AsFd) -> bool {
    let mut sockets = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let asked = poll(&mut sockets, Some(&now));
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    let is_gone = sockets[0].revents().intersects(gone);
    asked.is_err() || !is_gone
}

/// The next request of a client, with at most `ids_max` numbers in [`Greeting::acts_as`].
///
/// # Errors
/// `UnexpectedEof`: it is gone; `InvalidData`: it speaks something else; `PermissionDenied`: more numbers, of
/// which none is kept.
pub fn next_request(socket: impl AsFd, ids_max: usize) -> io::Result<Request> {
    let mut bytes = [0; REQUEST_BYTES];
    // What comes along is closed.
    receive_descriptors(&socket, &mut bytes)?;
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let [head, word, lengths] = [(); 3].map(|()| words.next().unwrap_or_default());
    let (place_len, id_count) = (lengths as u32 as usize, (lengths >> 32) as usize);
    let number = (head >> 32) as u32;
    match head as u32 {
        0 if number != VERSION => Ok(Request::Hello { version: number, greeting: Greeting::default() }),
        0 if place_len <= PLACE_LEN_MAX && id_count <= IDS_MAX && id_count != 1 => {
            let mut place = vec![0; place_len];
            receive_descriptors(&socket, &mut place)?;
            if id_count > ids_max {
                // A client that is refused has sent all of it.
                drop_numbers(&socket, id_count)?;
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            let mut ids = vec![0; 4 * id_count];
            receive_descriptors(&socket, &mut ids)?;
            let acts_as = ids.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
            Ok(Request::Hello { version: number, greeting: Greeting { txn: word, place, acts_as } })
        }
        1 => Ok(Request::Lane),
        2 => Ok(Request::Placeholders { count: number }),
        3 => Ok(Request::Fork),
        4 => Ok(Request::Memory { handle: word }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn drop_numbers(socket: impl AsFd, count: usize) -> io::Result<()> {
    let (mut space, mut left) = ([0; 1024], 4 * count);
    while left > 0 {
        let len = left.min(space.len());
        receive_descriptors(&socket, &mut space[..len])?;
        left -= len;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn numbers_of_a_client_that_acts_for_no_other_user_are_refused_unread() {
        let (client, server) = UnixStream::pair().expect("sockets");
        let acts_as: Vec<u32> = (0..IDS_MAX as u32).collect();
        let greeting = Greeting { txn: 7, place: b"/kvfs".to_vec(), acts_as };
        let hello = Request::Hello { version: VERSION, greeting };
        for ids_max in [0, IDS_MAX - 1, IDS_MAX] {
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| ask(&client, &hello));
                let found = next_request(&server, ids_max);
                if ids_max < IDS_MAX {
                    assert_eq!(found.expect_err("is refused").kind(), io::ErrorKind::PermissionDenied);
                    refuse(&server, 1).expect("answers");
                } else {
                    assert_eq!(found.expect("is taken"), hello);
                    grant(&server, &[], &[]).expect("answers");
                }
                assert_eq!(asked.join().expect("ends").is_ok(), ids_max == IDS_MAX);
            });
        }
    }
}
