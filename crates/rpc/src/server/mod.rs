//! The daemon's end of the socket.
//!
//! Purpose: the service of `store.proto` over a [`FileSystem`]. One thread (`kv-socket`) does all talking, by
//! an event loop that never blocks; what may block runs on a few threads (`kv-worker`), of which no user gets
//! all; a commit that may wait for other requests has a thread of its own (`kv-commit`); one thread
//! (`kv-sync`) syncs for all waiting requests. Operations that must wait for a lock wait as tickets, not as
//! threads.
//!
//! Thread safety: a [`Server`] is started and stopped by its owner; everything inside is shared.
//!
//! Invariants: what a client may take (connections, bytes of requests and answers, threads, time of a scan's
//! snapshot) is bounded per user and for all ([`Limits`]); a transaction that is tied to a connection is
//! reported gone when the connection is.

mod access;
mod apart;
mod body;
mod call;
mod connection;
mod failure;
mod keys;
mod locks;
mod peer;
mod report;
mod scan;
mod service;
mod syncer;
mod timeout;
mod transactions;
mod unread;
mod users;

pub use failure::TxnError;
pub use kvfs_socket::BoundSocket;
pub use peer::Peer;
pub use transactions::{Begin, NoTransactions, Transactions, TxnLine};

use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::FileSystem;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;

use apart::Apart;
use syncer::Syncer;
use users::Users;

/// Work in progress may take this long at the end.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// An idle worker goes after this time.
const WORKER_IDLE_MAX: Duration = Duration::from_secs(10);

/// What clients may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once, of all users.
    pub connections_max: usize,
    /// Connections at once of one user.
    pub connections_per_user_max: usize,
    /// Requests at once on one connection.
    pub streams_max: u32,
    /// Requests in work and answers that were not taken (bytes), of all users.
    pub bytes_max: usize,
    /// The same of one user.
    pub bytes_per_user_max: usize,
    /// Scans at once, of all users: each pins the moment that it shows, and its pages count as answers do.
    pub scans_max: usize,
    /// The same of one user.
    pub scans_per_user_max: usize,
    /// Threads that may block.
    pub threads: usize,
    /// Longest time from a connection's begin to its first valid bytes.
    pub greeting_time_max: Duration,
    /// Longest time for a request to come in.
    pub request_time_max: Duration,
    /// Longest time that a scan waits for its reader, and that an answer waits to be taken.
    pub stall_time_max: Duration,
    /// Longest time of a scan: it pins the moment that it shows.
    pub scan_time_max: Duration,
    /// Keyspaces that a user may make.
    pub keyspaces_per_user_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 256,
            connections_per_user_max: 128,
            streams_max: 64,
            bytes_max: 64 << 20,
            bytes_per_user_max: 32 << 20,
            scans_max: 256,
            scans_per_user_max: 64,
            threads: 8,
            greeting_time_max: Duration::from_secs(10),
            request_time_max: Duration::from_secs(30),
            stall_time_max: Duration::from_secs(30),
            scan_time_max: Duration::from_mins(5),
            keyspaces_per_user_max: kvfs_kv::KEYSPACES_PER_USER_MAX,
        }
    }
}

/// What to serve, and for which users.
#[derive(Debug, Clone)]
pub struct Options {
    /// Users that may do everything: root, the store's owner.
    pub masters: Vec<u32>,
    /// Where the store is mounted, for clients that ask.
    pub mount: PathBuf,
    /// Another socket that is listened on.
    pub also: Option<Arc<UnixListener>>,
    /// Bounds.
    pub limits: Limits,
}

/// What requests share.
pub(crate) struct Shared {
    fs: Arc<FileSystem>,
    transactions: Arc<dyn Transactions>,
    syncer: Syncer,
    users: Users,
    options: Options,
    /// Threads for what may wait for other requests.
    apart: Apart,
}

/// A listening socket. Stopped and removed by [`Server::stop`] or on drop.
pub struct Server {
    socket: BoundSocket,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves on `socket`.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn start(
        fs: Arc<FileSystem>,
        transactions: Arc<dyn Transactions>,
        socket: BoundSocket,
        options: Options,
    ) -> io::Result<Self> {
        let listener = socket.listener().try_clone()?;
        listener.set_nonblocking(true)?;
        let also = options.also.as_ref().map(|also| also.try_clone()).transpose()?;
        also.as_ref().map_or(Ok(()), |also| also.set_nonblocking(true))?;
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(options.limits.threads)
            .thread_name("kv-worker")
            .thread_keep_alive(WORKER_IDLE_MAX)
            .build()?;
        let store = Arc::clone(fs.store());
        let syncer = Syncer::start(move |position| store.sync(position))?;
        let users = Users::new(&options.limits);
        let (apart, ended) = Apart::new();
        let shared = Arc::new(Shared { fs, transactions, syncer, users, options, apart });
        let (stop, stopped) = watch::channel(false);
        let listeners = std::iter::once(listener).chain(also).collect();
        let body = move || serve(runtime, listeners, shared, &stopped, &ended);
        let thread = std::thread::Builder::new().name("kv-socket".into()).spawn(body)?;
        Ok(Self { socket, stop, thread: Some(thread) })
    }

    /// Removes the socket, so that a client that finds the store closing finds none. Those that are connected
    /// go on.
    pub fn remove_socket(&mut self) {
        if let Err(error) = self.socket.remove() {
            tracing::warn!(%error, "cannot remove the key-value socket");
        }
    }

    /// Refuses new connections, ends the others, and waits for what is being worked on. What that may wait
    /// for must have ended before: a commit whose pages wait, for the transaction that they wait for.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.remove_socket();
        let _ = self.stop.send(true);
        if thread.join().is_err() {
            tracing::error!("the key-value thread panicked");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn serve(
    runtime: Runtime,
    listeners: Vec<UnixListener>,
    shared: Arc<Shared>,
    stopped: &watch::Receiver<bool>,
    ended: &Receiver<Infallible>,
) {
    let accepted = runtime.block_on(async {
        let numbers = Arc::new(AtomicU64::new(1));
        let mut accepting = JoinSet::new();
        for listener in listeners {
            let listener = tokio::net::UnixListener::from_std(listener)?;
            let (shared, stopped, numbers) = (Arc::clone(&shared), stopped.clone(), Arc::clone(&numbers));
            accepting.spawn(async move { connection::accept(&listener, &shared, &numbers, stopped).await });
        }
        while accepting.join_next().await.is_some() {}
        Ok::<_, io::Error>(())
    });
    if let Err(error) = accepted {
        tracing::error!(%error, "the key-value socket is not served");
    }
    // Connections end with their tasks; what they began on other threads is waited for.
    runtime.shutdown_timeout(END_TIME_MAX);
    drop(shared);
    if ended.recv_timeout(END_TIME_MAX) == Err(RecvTimeoutError::Timeout) {
        tracing::warn!("key-value requests are being worked on still");
    }
}
