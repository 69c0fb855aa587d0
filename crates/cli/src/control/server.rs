//! The daemon's end of the control socket: a thread accepts, a thread serves each connection.
//!
//! Thread safety: the handler is shared. Slow and half-closed clients meet time-outs and a bound on
//! connections, and can't hold anything of the file system.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::protocol::{Request, Response, read_frame, write_frame};

/// Connections served at once; more are closed at once.
const CONNECTIONS_MAX: usize = 64;
/// A client that neither sends nor takes anything for this long is dropped.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Answers requests.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(&self, request: Request) -> Response;
}

/// A listening socket; closed and removed on drop.
pub(crate) struct Server {
    path: PathBuf,
    stopping: Arc<AtomicBool>,
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
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let accepting = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || accept_loop(&listener, &stop, &handler))?;
        Ok(Self { path: path.to_owned(), stopping, accepting: Some(accepting) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // A connection of our own wakes the accept call; it may fail only if the listener is gone.
        drop(UnixStream::connect(&self.path));
        if let Some(thread) = self.accepting.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread panicked");
        }
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(%error, "cannot remove the control socket");
        }
    }
}

fn accept_loop(listener: &UnixListener, stopping: &AtomicBool, handler: &Arc<dyn Handler>) {
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if stopping.load(Ordering::Acquire) {
            return;
        }
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "control connection failed");
                continue;
            }
        };
        if connections.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            connections.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (handler, count) = (Arc::clone(handler), Arc::clone(&connections));
        let spawned = std::thread::Builder::new().name("control-client".into()).spawn(move || {
            if let Err(error) = serve(stream, handler.as_ref()) {
                tracing::debug!(%error, "control connection ended");
            }
            count.fetch_sub(1, Ordering::AcqRel);
        });
        if let Err(error) = spawned {
            connections.fetch_sub(1, Ordering::AcqRel);
            tracing::warn!(%error, "no thread for a control connection");
        }
    }
}

fn serve(mut stream: UnixStream, handler: &dyn Handler) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_MAX))?;
    stream.set_write_timeout(Some(IDLE_MAX))?;
    while let Some(request) = read_frame::<Request>(&mut stream)? {
        write_frame(&mut stream, &handler.handle(request))?;
    }
    Ok(())
}
