//! A client: a process to the file system of the server.
//!
//! Thread safety: everything is `&self`; as many calls are under way as threads call, each on a lane of its own.
//!
//! Invariant: a lane whose call failed is not used again.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::greeting::{self, Answer, Request, VERSION};
use crate::lane::{ClientLane, LANE_DATA_BYTES, LaneError};
use crate::{Call, Reply, decode, encode};

/// A lane, and room for a message and its answer.
#[derive(Debug)]
struct Line {
    lane: ClientLane,
    message: Box<[u8]>,
    answer: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    /// One request at a time is under way on the socket.
    asking: Mutex<()>,
    idle: Mutex<Vec<Line>>,
}

impl Connection {
    /// Greets the server at the other end.
    ///
    /// # Errors
    /// EPROTO: it speaks another version; the connection fails.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        let connection = Self { socket, asking: Mutex::default(), idle: Mutex::default() };
        connection.ask(Request::Hello { version: VERSION })?;
        Ok(connection)
    }

    /// Placeholders with their handles, for [`Call::Open`].
    ///
    /// # Errors
    /// EMFILE: the server has no more; the connection fails.
    pub fn placeholders(&self, count: u32) -> io::Result<Answer> {
        self.ask(Request::Placeholders { count })
    }

    /// Calls, and gives `read` the answer with its payload.
    ///
    /// # Errors
    /// [`LaneError::Over`]: the server is gone, and the call may have happened or not; too long.
    pub fn call<T>(
        &self,
        call: &Call<'_>,
        payload: &[u8],
        read: impl FnOnce(Reply, &[u8]) -> T,
    ) -> Result<T, LaneError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut line = match idle {
            Some(line) => line,
            None => self.new_line()?,
        };
        let len = encode(call, payload, &mut line.message)?;
        line.lane.call(&line.message[..len], &mut line.answer, || self.server_lives())?;
        let (reply, rest) = decode(&line.answer)?;
        let read = read(reply, rest);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        Ok(read)
    }

    fn new_line(&self) -> Result<Line, LaneError> {
        let memory = self.ask(Request::Lane)?.descriptors.pop().ok_or(LaneError::Malformed)?;
        let message = vec![0; LANE_DATA_BYTES].into_boxed_slice();
        Ok(Line { lane: ClientLane::attach(memory)?, message, answer: Vec::new() })
    }

    fn ask(&self, request: Request) -> io::Result<Answer> {
        let _one = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        greeting::ask(&self.socket, request)
    }

    fn server_lives(&self) -> bool {
        let mut sockets = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let asked = poll(&mut sockets, Some(&now));
        let is_gone = sockets[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
        asked.is_err() || !is_gone
    }
}
