//! A client: a process to the file system of the server.
//!
//! Thread safety: everything is `&self`; as many calls are under way as threads call, each on a lane of its
//! own.
//!
//! Invariants: a lane whose call failed is not used again; one that the server has ended between two calls is
//! replaced.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use crate::greeting::{self, Answer, Greeting, Request, VERSION};
use crate::lane::{ClientLane, LaneError};
use crate::{Call, Reply, decode, encode};

/// See the module.
#[derive(Debug)]
pub struct Connection {
    socket: UnixStream,
    /// One request at a time is under way on the socket.
    asking: Mutex<()>,
    idle: Mutex<Vec<ClientLane>>,
}

impl Connection {
    /// Greets the server at the other end.
    ///
    /// # Errors
    /// EPROTO: it speaks another version; the connection fails.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        Self::greet(socket, Greeting::default())
    }

    /// As [`Self::new`], for a process in an open transaction, at a place of another file system, or for
    /// another user. When the transaction ends, calls fail with ESTALE.
    ///
    /// # Errors
    /// As [`Self::new`]; ENOENT: there is no such transaction; EPERM: it is another user's, or neither root
    /// nor the server's user acts for another one; EBUSY: it is being committed or aborted.
    pub fn greet(socket: UnixStream, greeting: Greeting) -> io::Result<Self> {
        let connection = Self { socket, asking: Mutex::default(), idle: Mutex::default() };
        connection.ask(&Request::Hello { version: VERSION, greeting })?;
        Ok(connection)
    }

    /// A child of this process, as fork(2) makes it: with the same open files, at the same offsets.
    ///
    /// # Errors
    /// EUSERS: the server has no more connections; the connection fails.
    pub fn fork(&self) -> io::Result<Self> {
        let socket = self.ask(&Request::Fork)?.descriptors.pop().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { socket: socket.into(), asking: Mutex::default(), idle: Mutex::default() })
    }

    /// Placeholders with their handles, for [`Call::Open`].
    ///
    /// # Errors
    /// EMFILE: the server has no more; the connection fails.
    pub fn placeholders(&self, count: u32) -> io::Result<Answer> {
        self.ask(&Request::Placeholders { count })
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
        let mut lane = self.begin()?;
        let len = match encode(call, payload, lane.space()) {
            Ok(len) => len,
            Err(error) => {
                self.give_back(lane);
                return Err(error);
            }
        };
        let (reply, rest) = decode(lane.call(len, || self.server_lives())?)?;
        let read = read(reply, rest);
        self.give_back(lane);
        Ok(read)
    }

    /// A lane on which a call has begun.
    fn begin(&self) -> Result<ClientLane, LaneError> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut lane = idle.map_or_else(|| self.new_lane(), Ok)?;
            if lane.begin() {
                return Ok(lane);
            }
        }
    }

    fn give_back(&self, mut lane: ClientLane) {
        lane.finish();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
    }

    fn new_lane(&self) -> Result<ClientLane, LaneError> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected, UnexpectedEof};
        let mut granted = self.ask(&Request::Lane).map_err(|error| match error.kind() {
            // With the connection all lanes are over.
            BrokenPipe | ConnectionReset | NotConnected | UnexpectedEof => LaneError::Over,
            _ => error.into(),
        })?;
        let memory = granted.descriptors.pop().ok_or(LaneError::Malformed)?;
        ClientLane::attach(memory)
    }

    fn ask(&self, request: &Request) -> io::Result<Answer> {
        let _one = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        greeting::ask(&self.socket, request)
    }

    fn server_lives(&self) -> bool {
        greeting::is_connected(&self.socket)
    }
}
