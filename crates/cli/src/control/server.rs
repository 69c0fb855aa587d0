//! The daemon's end of the control socket: a thread accepts, a thread serves each connection.
//!
//! Thread safety: the handler is shared. Slow and half-closed clients meet time-outs and a bound on
//! connections, and can't hold anything of the file system.

use std::cell::Cell;
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_rpc::address::Address;
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::progress::{self, Step};
use parking_lot::Mutex;

use super::peer::Peer;
use super::protocol::{Request, Response, read_frame, write_frame};

/// Connections served at once; more are closed at once.
const CONNECTIONS_MAX: usize = 256;
/// A client that neither sends nor takes anything for this long is dropped.
const IDLE_MAX: Duration = Duration::from_mins(1);
/// After a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Between two news of how far a request is.
const NEWS_PERIOD: Duration = Duration::from_millis(400);
/// The last word to those who wait for the end must not keep the daemon.
const LAST_WORD_MAX: Duration = Duration::from_secs(1);

/// Answers requests.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(&self, peer: &Peer, request: Request) -> Response;

    /// The connection has ended.
    fn gone(&self, peer: &Peer) {
        let _ = peer;
    }
}

/// What the threads share.
struct Shared {
    handler: Arc<dyn Handler>,
    stopping: AtomicBool,
    connections: AtomicUsize,
    /// Number of the next connection.
    next: AtomicU64,
    ending: Mutex<Ending>,
}

/// Who waits for the store to be closed, and how that went.
#[derive(Default)]
struct Ending {
    awaiting: Vec<UnixStream>,
    outcome: Option<Response>,
}

/// A listening socket; closed and removed on drop.
pub(crate) struct Server {
    path: PathBuf,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    /// Binds `path`, replacing a socket that a killed daemon left there (the caller owns the store's
    /// lock, so no living daemon can be behind it).
    pub(crate) fn start(path: &Path, handler: Arc<dyn Handler>) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let address = Address::of(path)?;
        let listener = UnixListener::bind(address.path())?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let shared = Arc::new(Shared {
            handler,
            stopping: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            next: AtomicU64::new(1),
            ending: Mutex::default(),
        });
        let accept = Arc::clone(&shared);
        let accepting = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept_loop(&listener, &accept))?;
        Ok(Self { path: path.to_owned(), shared, accepting: Some(accepting) })
    }

    /// Stops listening and gives `outcome` to the clients that wait for the end. Their connections stay
    /// until the process has exited, so that they see that, too.
    pub(crate) fn finish(mut self, outcome: &Response) {
        self.stop();
        let mut ending = self.shared.ending.lock();
        ending.outcome = Some(outcome.clone());
        for stream in std::mem::take(&mut ending.awaiting) {
            last_word(stream, outcome);
        }
    }

    /// Tells the clients that wait for the end how far it is.
    pub(crate) fn news(&self) -> impl Fn(Step) + 'static {
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
        // A connection of our own wakes the accept call. It fails only where somebody has removed the
        // socket: then the thread is left to the end of the process.
        let woken = Address::of(&self.path).and_then(|address| UnixStream::connect(address.path()));
        if woken.is_ok() && thread.join().is_err() {
            tracing::error!("the control thread panicked");
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
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
        if shared.connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let serving = Arc::clone(shared);
        let spawned = std::thread::Builder::new().name("control-client".into()).spawn(move || {
            if let Err(error) = serve(stream, &serving) {
                tracing::debug!(%error, "control connection ended");
            }
            serving.connections.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = spawned {
            shared.connections.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%error, "no thread for a control connection");
        }
    }
}

fn serve(stream: UnixStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_MAX))?;
    stream.set_write_timeout(Some(IDLE_MAX))?;
    let peer = Peer::of(shared.next.fetch_add(1, Ordering::Relaxed), &stream)?;
    let served = converse(stream, &peer, shared);
    shared.handler.gone(&peer);
    served
}

/// Tells a client that waits how far its request is: for the first time after a while, then now and then.
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
        if write_frame(&mut &self.stream, &Response::from(step)).is_err() {
            // Half a frame may have gone out: nothing may follow it. The request is carried out all the same.
            let _ = self.stream.shutdown(Shutdown::Both);
            self.due.set(Duration::MAX);
        }
    }
}

fn converse(mut stream: UnixStream, peer: &Peer, shared: &Shared) -> io::Result<()> {
    while let Some(request) = read_frame::<Request>(&mut stream)? {
        match request {
            Request::AwaitClosed => {
                write_frame(&mut stream, &Response::Done)?;
                let mut ending = shared.ending.lock();
                match ending.outcome.clone() {
                    Some(outcome) => last_word(stream, &outcome),
                    None => ending.awaiting.push(stream),
                }
                return Ok(());
            }
            Request::Hello { version } if version != env!("CARGO_PKG_VERSION") => {
                let message = format!(
                    "the store is mounted by kvfs {}, this is kvfs {version}; use that one, or mount again",
                    env!("CARGO_PKG_VERSION")
                );
                return write_frame(&mut stream, &Response::Failed { code: 1, message });
            }
            request => {
                let news = News::new(stream.try_clone()?);
                let response =
                    progress::watched(move |step| news.tell(step), || shared.handler.handle(peer, request));
                write_frame(&mut stream, &response)?;
            }
        }
    }
    Ok(())
}
