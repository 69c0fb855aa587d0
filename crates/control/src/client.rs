//! The command's end of the control socket.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvfs_service::lines::HealthLine;
use kvfs_service::{ErrorKind, Result, ServiceError};
use kvfs_socket::{peer_credentials, public};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::progress::Unit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use crate::SOCKET_NAME;
use crate::protocol::{Request, Response, read_frame, read_frame_within, write_request};

/// A daemon that is asked how it is, is given this time to answer, and may say so much (bytes).
const HEALTH_TIME_MAX: Duration = Duration::from_secs(2);
const HEALTH_LEN_MAX: usize = 64 << 10;

/// A process that has closed its connection is given this time to be gone.
const EXIT_TIME_MAX: Duration = Duration::from_secs(10);

/// A connection that is read until a moment, however slowly bytes come.
struct Until<'s> {
    stream: &'s UnixStream,
    clock: SystemClock,
    end: Duration,
}

impl Read for Until<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_sub(self.clock.monotonic());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buf)
    }
}

/// A daemon that turns a client away answers before it is asked, and hangs up.
fn answer_to(written: io::Result<()>, read: io::Result<Option<Response>>) -> io::Result<Option<Response>> {
    match (read, written) {
        (Ok(Some(answer)), _) => Ok(Some(answer)),
        (_, Err(error)) => Err(error),
        (read, Ok(())) => read,
    }
}

/// The first words of a connection.
fn hello() -> Request {
    Request::Hello { version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// Shows how far the daemon is: stage, unit, done, and all there is to do (0: not known).
type Show = dyn Fn(&str, Unit, u64, u64);

/// Makes what shows how far the daemon is, until it is dropped, for something that begins, such as
/// "mounting".
pub type Bars = fn(&str) -> Box<Show>;

/// What is behind the control socket of a store.
#[derive(Debug)]
pub enum Daemon {
    /// No daemon.
    Absent,
    /// The store is mounted.
    Serving {
        /// The connection.
        client: Client,
        /// Where.
        dir: PathBuf,
    },
    /// It was mounted, and is being closed.
    Closing(Client),
}

/// A connection to a mounted store's daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    /// By the socket for the users of the mount.
    is_public: bool,
    bars: Bars,
}

impl Client {
    /// The daemon at the other end of `stream`, if that was connected to `socket`.
    ///
    /// # Errors
    /// The daemon can't be reached, or turns this process away.
    pub fn greet(stream: io::Result<UnixStream>, socket: &Path, bars: Bars) -> Result<Daemon> {
        Self::greet_as(stream, socket, None, bars)
    }

    /// The daemon of the mounts that show `source`, if there is one, by the socket for their users.
    ///
    /// # Errors
    /// As [`Self::greet`]; the daemon there serves another store.
    pub fn connect_public(source: &Path, bars: Bars) -> Result<Daemon> {
        let socket = public::directory(source).join(SOCKET_NAME);
        Self::greet_as(Self::reach_public(source), &socket, Some(source), bars)
    }

    /// A connection to the daemon of the mounts that show `source`, by the socket for their users.
    ///
    /// # Errors
    /// There is none, or none that may serve the store; `TimedOut`: it accepts nothing.
    pub fn reach_public(source: &Path) -> io::Result<UnixStream> {
        let (socket, owner) = public::socket(source, SOCKET_NAME)?;
        let stream = kvfs_socket::connect(&socket)?;
        public::expect_daemon_of(&stream, Some(owner))?;
        Ok(stream)
    }

    /// The first words on a connection to `socket`; `public`: the source of the store that is to be served
    /// there.
    fn greet_as(
        stream: io::Result<UnixStream>,
        socket: &Path,
        public: Option<&Path>,
        bars: Bars,
    ) -> Result<Daemon> {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                return Ok(Daemon::Absent);
            }
            Err(error) => return Err(ServiceError::io("reach the daemon at", socket, &error)),
        };
        let mut client = Self { stream, is_public: public.is_some(), bars };
        match client.exchange(&hello()) {
            Ok(Some(Response::Serving { source, .. }))
                if public.is_some_and(|expected| expected.as_os_str().as_encoded_bytes() != source) =>
            {
                let source = String::from_utf8_lossy(&source);
                let message = format!("the daemon at {} serves another store, {source}", socket.display());
                Err(ServiceError::new(ErrorKind::Failed, message))
            }
            Ok(Some(Response::Serving { dir, .. })) => {
                Ok(Daemon::Serving { client, dir: OsString::from_vec(dir).into() })
            }
            Ok(Some(Response::Closing)) => Ok(Daemon::Closing(client)),
            Ok(Some(answer @ Response::Failed { .. })) => {
                Err(answer.or_failure().err().unwrap_or_else(Self::confused))
            }
            // It exited between our connecting and its answer.
            Ok(None) => Ok(Daemon::Absent),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) =>
            {
                Ok(Daemon::Absent)
            }
            Ok(Some(_)) => Err(Self::confused()),
            Err(error) => Err(Self::lost(&error)),
        }
    }

    /// At the other end of `stream`, whatever is there.
    #[cfg(test)]
    pub(crate) fn on(stream: UnixStream) -> Self {
        Self { stream, is_public: false, bars: |_| Box::new(|_, _, _, _| ()) }
    }

    /// Whether the store of the daemon behind `stream` works; `None`: it is closing it.
    ///
    /// # Errors
    /// `WouldBlock`, `TimedOut`: the daemon does not answer within a moment. It is gone.
    pub fn health(stream: &UnixStream) -> io::Result<Option<HealthLine>> {
        Self::health_within(stream, HEALTH_TIME_MAX)
    }

    fn health_within(stream: &UnixStream, time_max: Duration) -> io::Result<Option<HealthLine>> {
        stream.set_write_timeout(Some(time_max))?;
        let clock = SystemClock::new();
        let mut answers = Until { stream, end: clock.monotonic() + time_max, clock };
        let mut ask = |request: &Request| {
            let written = write_request(&mut &*stream, request);
            answer_to(written, read_frame_within(&mut answers, HEALTH_LEN_MAX))
        };
        let Some(Response::Serving { .. }) = ask(&hello())? else { return Ok(None) };
        match ask(&Request::Health)? {
            Some(Response::Health(health)) => Ok(Some(health)),
            _ => Ok(None),
        }
    }

    /// Whether the daemon makes the mounts of views itself, for [`Self::take_view`].
    pub fn is_public(&self) -> bool {
        self.is_public
    }

    /// The mount of a transaction's view, to be attached here.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn take_view(&mut self, id: u64) -> Result<OwnedFd> {
        match self.call(&Request::Mount { id })? {
            Response::Done => crate::descriptor::receive(&self.stream).map_err(|error| Self::lost(&error)),
            _ => Err(Self::confused()),
        }
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Option<Response>> {
        let written = write_request(&mut self.stream, request);
        answer_to(written, read_frame(&mut self.stream))
    }

    /// As [`Self::ask`]; that the daemon is gone is an error as any other.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn call(&mut self, request: &Request) -> Result<Response> {
        self.ask(request).map_err(|error| Self::lost(&error))?
    }

    /// Sends one request and waits for its answer; a failure that the daemon reports becomes an error.
    /// [`Response::Closing`]: nothing was done.
    ///
    /// # Errors
    /// The daemon is gone: it has not answered, and what became of the request is not known.
    pub fn ask(&mut self, request: &Request) -> io::Result<Result<Response>> {
        let show = (self.bars)("waiting for the daemon");
        match write_request(&mut self.stream, request) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Ok(Err(ServiceError::new(ErrorKind::Usage, error.to_string())));
            }
            written => written?,
        }
        self.answered(&*show)
    }

    /// The answer to what was asked.
    fn answered(&mut self, show: &Show) -> io::Result<Result<Response>> {
        let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before it answered");
        match read_answer(&mut self.stream, show) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Err(Self::confused())),
            answer => Ok(answer?.ok_or_else(ended)?.or_failure()),
        }
    }

    /// Hands over the connection of the transaction's view, which was mounted here.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn attach(&mut self, id: u64, device: BorrowedFd<'_>) -> Result<()> {
        write_request(&mut self.stream, &Request::Attach { id })
            .and_then(|()| crate::descriptor::send(&self.stream, device))
            .map_err(|error| Self::lost(&error))?;
        let show = (self.bars)("waiting for the daemon");
        match self.answered(&*show).map_err(|error| Self::lost(&error))?? {
            Response::Done => Ok(()),
            _ => Err(Self::confused()),
        }
    }

    /// The connection, to be watched: nothing comes unasked, save its end.
    pub fn line(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Asks to be told when the store is closed; [`Closing::wait`] then waits for it.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn await_closed(mut self) -> Result<Closing> {
        let Response::Done = self.call(&Request::AwaitClosed)? else { return Err(Self::confused()) };
        // It has just answered, so the number is still its own.
        let process = process_of(&self.stream);
        Ok(Closing { stream: self.stream, process, bars: self.bars })
    }

    /// What [`Self::ask`] has failed with, as an error of the service.
    pub fn lost(error: &io::Error) -> ServiceError {
        ServiceError::new(ErrorKind::NotMounted, format!("lost the daemon: {error}"))
    }

    /// The daemon answered something else than was asked.
    pub fn confused() -> ServiceError {
        ServiceError::new(
            ErrorKind::Failed,
            "the daemon gave an answer of another kind; is it of another version?",
        )
    }
}

/// A connection whose daemon was asked to tell when it has closed the store.
#[derive(Debug)]
pub struct Closing {
    stream: UnixStream,
    /// The daemon; `None`: it has no number here, as in another PID namespace.
    process: Option<OwnedFd>,
    bars: Bars,
}

impl Closing {
    /// Waits until the daemon has closed the store and exited. False: it did not get on for `time_max`, and
    /// can be waited for again.
    ///
    /// # Errors
    /// The daemon has failed to close it, or ended without that.
    pub fn wait(&mut self, time_max: Duration) -> Result<bool> {
        let lost = |error: io::Error| Client::lost(&error);
        self.stream.set_read_timeout(Some(time_max)).map_err(lost)?;
        let show = (self.bars)("waiting for the daemon to write everything out");
        match read_answer(&mut self.stream, &*show) {
            Ok(Some(answer)) => {
                answer.or_failure()?;
                // The connection ends as the process does.
                match self.stream.read(&mut [0]) {
                    Err(error) if is_timeout(&error) => Ok(false),
                    _ => {
                        self.wait_for_exit();
                        Ok(true)
                    }
                }
            }
            Err(error) if is_timeout(&error) => Ok(false),
            Ok(None) | Err(_) => Err(ServiceError::new(
                ErrorKind::Failed,
                "the daemon ended without closing the store; the next mount replays its journal",
            )),
        }
    }
}

impl Closing {
    /// Waits until the process is gone, which has closed its descriptors already. Only a kernel that is stuck
    /// takes longer than [`EXIT_TIME_MAX`]; the store is closed all the same.
    fn wait_for_exit(&self) {
        let Some(process) = &self.process else { return };
        let left = Timespec { tv_sec: EXIT_TIME_MAX.as_secs().cast_signed(), tv_nsec: 0 };
        let waited = retry_on_intr(|| poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)));
        if !matches!(waited, Ok(1..)) {
            tracing::debug!(?waited, "the daemon has closed the store, and its process is still there");
        }
    }
}

/// A handle of the process at the other end, if it is not this one.
fn process_of(stream: &UnixStream) -> Option<OwnedFd> {
    let pid = peer_credentials(stream).ok()?.pid.try_into().ok().and_then(Pid::from_raw)?;
    if pid == getpid() {
        return None;
    }
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// The next frame that is no news of progress, which `show` is told of.
fn read_answer(stream: &mut UnixStream, show: &Show) -> io::Result<Option<Response>> {
    loop {
        match read_frame(stream)? {
            Some(Response::Progress { stage, is_bytes, done, total }) => {
                show(&stage, if is_bytes { Unit::Bytes } else { Unit::Items }, done, total);
            }
            answer => return Ok(answer),
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TIME_MAX: Duration = Duration::from_millis(200);

    #[test]
    fn peer_that_answers_byte_by_byte_is_given_up_in_time() {
        let (own, mut peer) = UnixStream::pair().unwrap();
        let drips = std::thread::spawn(move || {
            let mut bytes = (HEALTH_LEN_MAX as u32).to_le_bytes().into_iter().chain(std::iter::repeat(0));
            while bytes.next().is_some_and(|byte| peer.write_all(&[byte]).is_ok()) {
                std::thread::park_timeout(TIME_MAX / 20);
            }
        });
        let error = Client::health_within(&own, TIME_MAX).map(drop).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock), "{error}");
        drop(own);
        drips.join().unwrap();
    }

    #[test]
    fn long_answer_about_health_is_refused_unread() {
        let (own, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(&(HEALTH_LEN_MAX as u32 + 1).to_le_bytes()).unwrap();
        let error = Client::health_within(&own, TIME_MAX).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
}
