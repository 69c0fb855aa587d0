//! The daemon's end of the control socket: a thread accepts, a thread serves each connection.
//!
//! Thread safety: the handler is shared. Slow and half-closed clients meet time-outs and a bound on
//! connections, and can't hold anything of the file system.

use std::cell::Cell;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_service::{ErrorKind, Result, ServiceError};
use kvfs_socket::BoundSocket;
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::progress::{self, Step};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::answer::RequestHandler;
use crate::peer::{Peer, is_there};
use crate::protocol::{Request, Response, frame, read_request, write_frame};
use crate::shares::Shares;

/// A client that neither sends nor takes anything for this long is dropped.
const IDLE_MAX: Duration = Duration::from_mins(1);
/// A client that has not taken an answer as a whole after this is dropped.
const ANSWER_TIME_MAX: Duration = Duration::from_mins(1);
/// Bytes of an answer between two looks at the clock.
const ANSWER_STEP: usize = 64 << 10;
/// After a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Between two news of how far a request is.
const NEWS_PERIOD: Duration = Duration::from_millis(400);
/// The last word to clients that wait for the end must not keep the daemon.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);

/// What the threads share.
struct Shared {
    handler: Arc<RequestHandler>,
    stopping: AtomicBool,
    shares: Arc<Shares>,
    /// Number of the next connection.
    next: AtomicU64,
    ending: Mutex<Ending, class::ControlServerEnding>,
}

/// The clients that wait for the store to be closed, and how that went.
#[derive(Default)]
struct Ending {
    awaiting: Vec<UnixStream>,
    outcome: Option<Response>,
}

/// A listening socket; closed and removed on drop.
pub struct Server {
    socket: BoundSocket,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
    /// Other sockets, with the threads that accept there.
    also: Vec<(UnixListener, JoinHandle<()>)>,
}

impl Server {
    /// Serves on `socket`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(socket: BoundSocket, handler: Arc<RequestHandler>) -> io::Result<Self> {
        let listener = socket.listener().try_clone()?;
        let shared = Arc::new(Shared {
            handler,
            stopping: AtomicBool::new(false),
            shares: Arc::default(),
            next: AtomicU64::new(1),
            ending: Mutex::default(),
        });
        let accept = Arc::clone(&shared);
        let accepting = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept_loop(&listener, &accept))?;
        Ok(Self { socket, shared, accepting: Some(accepting), also: Vec::new() })
    }

    /// Listens on another socket, too.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn also_listen(&mut self, listener: UnixListener) -> io::Result<()> {
        let (accepts, shared) = (listener.try_clone()?, Arc::clone(&self.shared));
        let accepting = std::thread::Builder::new()
            .name("control-public".into())
            .spawn(move || accept_loop(&accepts, &shared))?;
        self.also.push((listener, accepting));
        Ok(())
    }

    /// Stops listening and gives `outcome` to the clients that wait for the end. Their connections stay
    /// until the process has exited, so that they see that, too.
    pub fn finish(mut self, outcome: &Result<()>) {
        self.stop();
        let outcome = outcome.as_ref().map_or_else(Response::failed, |()| Response::Done);
        let mut ending = self.shared.ending.lock();
        ending.outcome = Some(outcome.clone());
        for stream in std::mem::take(&mut ending.awaiting) {
            last_word(stream, &outcome);
        }
    }

    /// Tells the clients that wait for the end how far it is.
    pub fn news(&self) -> impl Fn(Step) + 'static {
        let (shared, clock, due) = (Arc::clone(&self.shared), SystemClock::new(), Cell::new(Duration::ZERO));
        move |step| {
            let now = clock.monotonic();
            if now >= due.get() {
                due.set(now + NEWS_PERIOD);
                let news = Response::from(step);
                shared.ending.lock().awaiting.retain_mut(|stream| write_frame(stream, &news).is_ok());
            }
        }
    }

    fn stop(&mut self) {
        let Some(thread) = self.accepting.take() else { return };
        self.shared.stopping.store(true, Ordering::Release);
        for (listener, thread) in self.also.drain(..) {
            // Wakes the accept call.
            let woken = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
            if woken.is_ok() && thread.join().is_err() {
                tracing::error!("a control thread panicked");
            }
        }
        match self.socket.shut_down() {
            Ok(()) if thread.join().is_err() => tracing::error!("the control thread panicked"),
            Ok(()) => {}
            // The thread is left to the end of the process.
            Err(error) => tracing::warn!(%error, "the control socket still accepts"),
        }
        if let Err(error) = self.socket.remove() {
            tracing::warn!(%error, "cannot remove the control socket");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The connection then stays until the process has exited.
fn last_word(mut stream: UnixStream, outcome: &Response) {
    let told = stream.set_write_timeout(Some(LAST_WORD_MAX)).and_then(|()| write_frame(&mut stream, outcome));
    if let Err(error) = told {
        tracing::debug!(%error, "a client did not wait for the end");
    }
    std::mem::forget(stream);
}

/// Says to a client that there are too many connections.
fn turn_away(mut stream: UnixStream) {
    let message = "you have too many connections to the daemon; end some commands and transactions";
    // It fits the empty buffer of a new connection, so this does not wait.
    let told = write_frame(&mut stream, &Response::failed(&ServiceError::new(ErrorKind::InUse, message)));
    if let Err(error) = told {
        tracing::debug!(%error, "a client that was turned away has gone");
    }
}

fn accept_loop(listener: &UnixListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::Acquire) {
            return;
        }
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "control connection failed");
                // For instance no descriptor is left: that does not change at once.
                std::thread::park_timeout(ACCEPT_PAUSE);
                continue;
            }
        };
        let peer = match Peer::of(shared.next.fetch_add(1, Ordering::Relaxed), &stream) {
            Ok(peer) => peer,
            Err(error) => {
                tracing::debug!(%error, "a client has gone at once");
                continue;
            }
        };
        // Closed at once: this user has too many.
        let Some(share) = shared.shares.connect(peer.caller.uid) else {
            turn_away(stream);
            continue;
        };
        let serving = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name("control-client".into()).spawn(move || {
            if let Err(error) = serve(stream, &peer, &serving) {
                tracing::debug!(%error, "control connection ended");
            }
            drop(share);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for a control connection");
        }
    }
}

fn serve(stream: UnixStream, peer: &Peer, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_MAX))?;
    stream.set_write_timeout(Some(IDLE_MAX))?;
    let served = converse(stream, peer, shared);
    shared.handler.gone(peer);
    served
}

/// Tells a client that waits how far its request is: for the first time after a while, then now and then.
/// The request may hold what others wait for, so this waits for no client: what finds no room is left out.
struct News {
    stream: UnixStream,
    clock: SystemClock,
    due: Cell<Duration>,
}

impl News {
    fn new(stream: UnixStream) -> Self {
        Self { stream, clock: SystemClock::new(), due: Cell::new(NEWS_PERIOD * 2) }
    }

    fn tell(&self, step: Step) {
        let now = self.clock.monotonic();
        if now < self.due.get() {
            return;
        }
        self.due.set(now + NEWS_PERIOD);
        if self.send(step).is_err() {
            // Half a frame may have gone out: nothing may follow it. The request is carried out all the same.
            let _ = self.stream.shutdown(Shutdown::Both);
            self.due.set(Duration::MAX);
        }
    }

    fn send(&self, step: Step) -> io::Result<()> {
        let frame = frame(&Response::from(step))?;
        match send(&self.stream, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == frame.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn converse(mut stream: UnixStream, peer: &Peer, shared: &Shared) -> io::Result<()> {
    while let Some(request) = read_request(&mut stream)? {
        match request {
            Request::AwaitClosed => {
                let admitted = shared.handler.handle(peer, Request::AwaitClosed);
                if !matches!(admitted, Response::Done) {
                    answer(&mut stream, peer, shared, &admitted)?;
                    continue;
                }
                stream.set_write_timeout(Some(LAST_WORD_MAX))?;
                // From the answer on the client may unmount: the process must not end before it knows of the
                // client.
                let mut ending = shared.ending.lock();
                write_frame(&mut stream, &Response::Done)?;
                if let Some(outcome) = ending.outcome.clone() {
                    last_word(stream, &outcome);
                } else {
                    // Those that have given up meanwhile hold no descriptor of this process.
                    ending.awaiting.retain(is_there);
                    ending.awaiting.push(stream);
                }
                return Ok(());
            }
            Request::Hello { version } if version != env!("CARGO_PKG_VERSION") => {
                let message = format!(
                    "the store is mounted by kvfs {}, this is kvfs {version}; use that one, or mount again",
                    env!("CARGO_PKG_VERSION")
                );
                let refused = ServiceError::new(ErrorKind::Failed, message);
                return write_frame(&mut stream, &Response::failed(&refused));
            }
            request => {
                let news = News::new(stream.try_clone()?);
                let response =
                    progress::watched(move |step| news.tell(step), || shared.handler.handle(peer, request));
                answer(&mut stream, peer, shared, &response)?;
                peer.send_descriptor()?;
            }
        }
    }
    Ok(())
}

/// Sends an answer. It counts against its user until it is taken, for which there is a bounded time.
fn answer(stream: &mut UnixStream, peer: &Peer, shared: &Shared, response: &Response) -> io::Result<()> {
    let bytes = frame(response).or_else(|error| {
        let message = format!("the daemon has done it, and can't tell what came of it: {error}");
        frame(&Response::failed(&ServiceError::new(ErrorKind::Failed, message)))
    })?;
    let Some(_share) = shared.shares.answer(peer.caller.uid, bytes.len()) else {
        let message = format!("user {} has not taken earlier answers; try again later", peer.caller.uid);
        return write_frame(stream, &Response::failed(&ServiceError::new(ErrorKind::InUse, message)));
    };
    let clock = SystemClock::new();
    for part in bytes.chunks(ANSWER_STEP) {
        if clock.monotonic() > ANSWER_TIME_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.write_all(part)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
