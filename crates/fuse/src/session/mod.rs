//! A connection at work: negotiation, workers, notifications, end.
//!
//! Thread safety: [`Session`] is a handle; workers and senders of notifications run until the kernel ends the
//! connection (unmount or abort). Invariants: requests are answered on the channel that brought them;
//! `Operations::destroy` is called once, when no worker runs any more.

mod init;
mod steering;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvfs_locks::{Condvar, Mutex, class};
use rustix::io::Errno;

pub use init::{InitConfig, Negotiated, Readdirplus};

use crate::abi::{READ_BUFFER_BYTES_MIN, UNIQUE_INTERRUPT_BIT, flags::init as bit};
use crate::dispatch::{Channel, Operations, ROOT_NODEID, Registry, Router, ZeroMessage, send_parts};
use crate::notify::{Notifier, NotifierConfig};
use crate::transport::{BufferPool, Delivery, OverflowRing, Received, RequestBuffer, Rings, Transport};
use init::Handshake;
use steering::{Helm, Steering};

/// How a session runs.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// What is asked of the kernel.
    pub init: InitConfig,
    /// Threads that take requests; at least 1.
    pub workers: usize,
    /// Whether each worker gets a descriptor of its own (better for several clients at once).
    pub clone_device: bool,
    /// Whether a worker goes to the CPU of the program that asks, where that is possible
    /// (docs/decisions/steering.md).
    pub steers: bool,
    /// Requests that may wait at once; beyond, they fail with EAGAIN.
    pub parked_max: usize,
    /// Notifications that may wait to be sent; beyond, [`Notifier::submit`] refuses.
    pub notifications_max: usize,
    /// How long a caller waits for its notifications, at about, while the kernel waits for the lock of a
    /// directory, or of a file's pages, that a process does not give back. The end of the session, too.
    pub notification_wait_max: Duration,
    /// Idle request buffers that are kept for reuse (bytes). The store holds on to the buffers of large
    /// writes until it has flushed them; fresh memory costs more than the copy that this saves.
    pub idle_buffer_bytes_max: usize,
    /// Prefix of thread names.
    pub name: String,
    /// What the operations call the root.
    pub root: u64,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            init: InitConfig::default(),
            // A worker that reads from the disk waits for it: there are more of them than CPUs.
            workers: thread::available_parallelism().map_or(8, |cpus| 2 * cpus.get()).clamp(8, 16),
            clone_device: true,
            steers: true,
            parked_max: 1 << 16,
            notifications_max: 1 << 16,
            notification_wait_max: Duration::from_secs(3),
            idle_buffer_bytes_max: 32 << 20,
            name: "fuse".to_owned(),
            root: ROOT_NODEID,
        }
    }
}

/// Why a session can't start or ended badly.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The kernel's protocol is too old.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) or newer is needed")]
    KernelTooOld {
        /// The kernel's version.
        major: u32,
        /// The kernel's version.
        minor: u32,
    },
    /// The file system was unmounted before it was ready.
    #[error("the file system was unmounted before it was ready")]
    EndedEarly,
    /// The device failed.
    #[error("FUSE connection failed while {what}: {errno}")]
    Connection {
        /// What was being done.
        what: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// A thread could not be started.
    #[error("cannot start thread {name}: {source}")]
    Thread {
        /// Its name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
}

/// Workers that take from the device what does not come by rings: FORGET and INTERRUPT.
const DEVICE_WORKERS: usize = 2;
/// Requests that may wait at once where each keeps an entry of a ring.
const RING_PARKED_MAX: usize = 1 << 13;

struct Shared {
    router: Router,
    registry: Arc<Registry>,
    channels: Vec<Arc<Channel>>,
    pool: Arc<BufferPool>,
    steering: Option<Steering>,
    running: AtomicUsize,
    failure: Mutex<Option<SessionError>, class::FuseSessionFailure>,
    ended: Mutex<bool, class::FuseSessionEnded>,
    ended_changed: Condvar,
    notifier: Notifier,
}

/// A running connection.
pub struct Session {
    shared: Arc<Shared>,
    negotiated: Negotiated,
    threads: Vec<JoinHandle<()>>,
}

impl Session {
    /// Negotiates with the kernel, which has just mounted, and starts the workers. When this returns, the
    /// file system answers.
    ///
    /// # Errors
    /// The kernel is too old, unmounted already, or threads can't be started.
    pub fn start(
        transport: Box<dyn Transport>,
        config: &SessionConfig,
        operations: Arc<dyn Operations>,
    ) -> Result<Self, SessionError> {
        let workers = config.workers.max(1);
        let pool = BufferPool::new(
            config.init.write_bytes_max as usize,
            (config.idle_buffer_bytes_max / config.init.write_bytes_max.max(1) as usize).max(workers + 6),
        );
        // One request in the making for each CPU, and a few for the store.
        pool.warm(workers / 2 + 2);
        Self::start_with(transport, config, operations, pool)
    }

    /// As [`Self::start`], with the request buffers of another session, for the same largest WRITE.
    ///
    /// # Errors
    /// As there.
    pub fn start_with(
        transport: Box<dyn Transport>,
        config: &SessionConfig,
        operations: Arc<dyn Operations>,
        pool: Arc<BufferPool>,
    ) -> Result<Self, SessionError> {
        Self::start_by(start_thread, transport, config, operations, pool)
    }

    fn start_by(
        start: Start,
        transport: Box<dyn Transport>,
        config: &SessionConfig,
        operations: Arc<dyn Operations>,
        pool: Arc<BufferPool>,
    ) -> Result<Self, SessionError> {
        let workers = config.workers.max(1);
        let rings = config.init.io_uring.then(|| prepare_rings(&*transport, config)).flatten();
        let init = InitConfig { io_uring: rings.is_some(), ..config.init.clone() };
        let negotiated = handshake(&*transport, &init, &pool)?;
        tracing::debug!(?negotiated, workers, "FUSE connection negotiated");
        let rings = rings.filter(|_| negotiated.uses_io_uring());
        if config.init.io_uring && rings.is_none() {
            tracing::warn!("requests come by the device: {}", why_no_rings(&init));
        }

        let parked_max =
            if rings.is_some() { config.parked_max.min(RING_PARKED_MAX) } else { config.parked_max };
        let registry = Arc::new(Registry::new(parked_max));
        let at_device = if rings.is_some() { DEVICE_WORKERS.min(workers) } else { workers };
        let count = if config.clone_device { at_device } else { 1 };
        let mut transports = open_transports(transport, count);
        let mut seats: Vec<usize> = (0..at_device).map(|worker| worker % transports.len()).collect();
        let mut overflow = None;
        if let Some(rings) = rings {
            seats.extend((0..rings.workers.len()).map(|worker| transports.len() + worker));
            transports.extend(rings.workers.into_iter().map(|ring| Box::new(ring) as _));
            overflow = Some(rings.overflow);
        }
        let threads_wanted = seats.len() + usize::from(overflow.is_some());
        let recorder = operations.recorder();
        let channel = |transport| {
            let (registry, recorder) = (Arc::clone(&registry), recorder.clone());
            Arc::new(Channel { transport, registry, recorder })
        };
        let channels: Vec<_> = transports.into_iter().map(channel).collect();
        let steers = config.steers && overflow.is_none();
        let notifier_config = NotifierConfig {
            root: config.root,
            len_max: config.notifications_max,
            wait_max: config.notification_wait_max,
            name: config.name.clone(),
        };
        let notifier = Notifier::new(Arc::clone(&channels[0]), &negotiated, notifier_config);
        operations.init(&negotiated);
        let shared = Arc::new(Shared {
            router: Router {
                operations,
                root: config.root,
                zero_message: zero_message(&config.init, &negotiated),
                setxattr_ext: negotiated.has(bit::SETXATTR_EXT),
                read_bytes_max: negotiated.read_bytes_max(),
            },
            registry,
            channels,
            pool,
            steering: steers.then(|| Steering::for_workers(workers)).flatten(),
            running: AtomicUsize::new(threads_wanted),
            failure: Mutex::new(None),
            ended: Mutex::new(false),
            ended_changed: Condvar::new(),
            notifier,
        });
        let mut session = Self { shared, negotiated, threads: Vec::with_capacity(workers) };
        match session.start_threads(start, &config.name, overflow, seats) {
            Ok(()) => Ok(session),
            Err(error) => {
                session.give_up(threads_wanted);
                Err(error)
            }
        }
    }

    fn start_threads(
        &mut self,
        start: Start,
        name: &str,
        overflow: Option<OverflowRing>,
        seats: Vec<usize>,
    ) -> Result<(), SessionError> {
        let notifying = self.shared.notifier.start();
        notifying.map_err(|source| SessionError::Thread { name: format!("{name}-notify"), source })?;
        if let Some(overflow) = overflow {
            self.spawn(start, format!("{name}-rings"), move |shared| shared.run_overflow(overflow))?;
        }
        for (index, seat) in seats.into_iter().enumerate() {
            self.spawn(start, format!("{name}-worker-{index}"), move |shared| shared.work(index, seat))?;
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        start: Start,
        name: String,
        body: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> Result<(), SessionError> {
        let shared = Arc::clone(&self.shared);
        let started = start(name.clone(), Box::new(move || body(&shared)));
        self.threads.push(started.map_err(|source| SessionError::Thread { name, source })?);
        Ok(())
    }

    /// Ends a session of which only some threads could be started. Where the transport can't be ended from
    /// this side, its threads end with the mount.
    fn give_up(self, threads_wanted: usize) {
        for _ in self.threads.len()..threads_wanted {
            self.shared.leave();
        }
        if let Err(error) = self.abort() {
            tracing::warn!(%error, "the threads of a session that could not be started end with its mount");
        }
    }

    /// What was agreed with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// A handle to tell the kernel about changes.
    pub fn notifier(&self) -> Notifier {
        self.shared.notifier.clone()
    }

    /// The request buffers, for another session.
    pub fn buffers(&self) -> Arc<BufferPool> {
        Arc::clone(&self.shared.pool)
    }

    /// Whether the file system was unmounted, or the connection has ended otherwise.
    pub fn has_ended(&self) -> bool {
        *self.shared.ended.lock()
    }

    /// Whether a worker may follow the program that asks; see [`SessionConfig::steers`].
    pub fn can_steer(&self) -> bool {
        self.shared.steering.is_some()
    }

    /// The CPU on which one worker serves a program alone just now.
    pub fn companion_cpu(&self) -> Option<u32> {
        self.shared.steering.as_ref()?.companion_cpu()
    }

    /// Number of requests that wait for something.
    pub fn parked_count(&self) -> usize {
        self.shared.registry.parked_count()
    }

    /// Ends the connection from this side; the mount may stay, and every later request on it fails.
    /// Everything that was asked must be answered without further help by now (the view has ended), because
    /// the last notification may wait inside the kernel for a caller that waits for an answer. Where one
    /// waits for something else, the connection stays until that has come, and later requests wait, too.
    ///
    /// # Errors
    /// The transport can't be ended from this side; or as [`Self::wait`].
    pub fn abort(self) -> Result<(), SessionError> {
        self.shared.notifier.end();
        self.wait_for_senders();
        for channel in &self.shared.channels {
            if !channel.transport.interrupt() {
                return Err(SessionError::Connection { what: "ending it", errno: Errno::OPNOTSUPP });
            }
        }
        self.wait()
    }

    fn wait_for_senders(&self) {
        if !self.shared.notifier.wait_for_senders() {
            tracing::warn!("a notification waits in the kernel for a process that holds a directory or file");
        }
    }

    /// Waits until the file system is unmounted or the connection aborted, and all threads have ended, but
    /// for those that tell the kernel something and are held up there.
    ///
    /// # Errors
    /// The connection ended by a failure rather than by an unmount.
    pub fn wait(mut self) -> Result<(), SessionError> {
        {
            let mut ended = self.shared.ended.lock();
            while !*ended {
                self.shared.ended_changed.wait(&mut ended);
            }
        }
        self.threads.drain(..).for_each(join);
        self.wait_for_senders();
        match self.shared.failure.lock().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Starts a thread of this name.
type Start = fn(String, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>;

fn start_thread(name: String, body: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(body)
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("a thread of the FUSE session panicked");
    }
}

fn zero_message(config: &InitConfig, negotiated: &Negotiated) -> ZeroMessage {
    let open = config.no_open && negotiated.has(bit::NO_OPEN_SUPPORT);
    ZeroMessage {
        open,
        opendir: config.no_opendir && negotiated.has(bit::NO_OPENDIR_SUPPORT),
        create: open && config.no_create,
        flush: config.no_flush,
    }
}

/// One per worker; fewer when the system gives no more.
fn open_transports(first: Box<dyn Transport>, count: usize) -> Vec<Box<dyn Transport>> {
    let mut transports = vec![first];
    while transports.len() < count {
        match transports[0].another() {
            Ok(transport) => transports.push(transport),
            Err(errno) => {
                tracing::warn!(%errno, "cannot open another FUSE channel; workers share one");
                break;
            }
        }
    }
    transports
}

/// Rings for the connection, which the kernel does not know of yet. `None`: the system gives none.
fn prepare_rings(transport: &dyn Transport, config: &SessionConfig) -> Option<Rings> {
    let device = transport.device()?;
    let payload_bytes_max = (config.init.write_bytes_max as usize).max(READ_BUFFER_BYTES_MIN);
    Rings::prepare(device, config.workers.max(1), payload_bytes_max)
        .inspect_err(|errno| tracing::warn!(%errno, "the system gives no rings"))
        .ok()
}

/// Why requests don't come by rings, for a user that wants them to.
fn why_no_rings(init: &InitConfig) -> &'static str {
    if init.io_uring {
        "this kernel offers no others (Linux 6.14, and Y in /sys/module/fuse/parameters/enable_uring)"
    } else {
        "the system gives this process no io_uring (see /proc/sys/kernel/io_uring_disabled)"
    }
}

fn handshake(
    transport: &dyn Transport,
    config: &InitConfig,
    pool: &Arc<BufferPool>,
) -> Result<Negotiated, SessionError> {
    let failed = |what| move |errno| SessionError::Connection { what, errno };
    loop {
        let mut buffer = pool.take();
        let len = match transport.receive(buffer.space()).map_err(failed("waiting for INIT"))? {
            Received::Request(len) => len,
            Received::Idle => continue,
            Received::Ended => return Err(SessionError::EndedEarly),
        };
        let message = buffer.into_message(len);
        let (unique, outcome) = init::negotiate(message.bytes(), config).map_err(failed("reading INIT"))?;
        let (out, negotiated) = match outcome {
            Handshake::Agreed(negotiated, out) => (out, Some(negotiated)),
            Handshake::OfferMajor(out) => (out, None),
            Handshake::TooOld { major, minor } => {
                let _ = send_parts(transport, unique, -Errno::PROTO.raw_os_error(), &[]);
                return Err(SessionError::KernelTooOld { major, minor });
            }
        };
        let parts = [io::IoSlice::new(init::wire(&out))];
        match send_parts(transport, unique, 0, &parts).map_err(failed("answering INIT"))? {
            Delivery::Delivered => {}
            Delivery::Gone => return Err(SessionError::EndedEarly),
        }
        if let Some(negotiated) = negotiated {
            return Ok(negotiated);
        }
    }
}

impl Shared {
    /// The worker of this number, which takes requests from the channel `seat`.
    fn work(self: &Arc<Self>, index: usize, seat: usize) {
        let channel = &self.channels[seat];
        let mut helm = self.steering.as_ref().and_then(|steering| Helm::new(steering, index));
        let mut idle: Option<RequestBuffer> = None;
        loop {
            let mut buffer = idle.take().unwrap_or_else(|| self.pool.take());
            if let Some(helm) = &mut helm {
                helm.stand_by();
            }
            let len = match channel.transport.receive(buffer.space()) {
                Ok(Received::Request(len)) => len,
                Ok(Received::Idle) => {
                    // Many views may wait at once, each with two workers: none keeps a buffer for it.
                    drop(buffer);
                    match channel.transport.wait_for_request() {
                        Ok(()) => continue,
                        Err(errno) => {
                            self.fail(errno);
                            break;
                        }
                    }
                }
                Ok(Received::Ended) => break,
                Err(errno) => {
                    self.fail(errno);
                    break;
                }
            };
            let message = buffer.into_message(len);
            if let Some(helm) = &mut helm {
                helm.took(message.bytes());
            }
            let (buffer, special) = self.router.route(channel, message);
            idle = buffer;
            if let Some(crate::dispatch::Special::Interrupt(unique)) = special {
                self.interrupt(unique);
            }
        }
        drop(helm);
        self.leave();
    }

    fn run_overflow(&self, ring: OverflowRing) {
        if let Err(errno) = ring.run() {
            self.fail(errno);
        }
        self.leave();
    }

    /// A thread of the session ends.
    fn leave(&self) {
        if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end();
        }
    }

    fn fail(&self, errno: Errno) {
        tracing::error!(%errno, "cannot take requests from the kernel any more");
        let error = SessionError::Connection { what: "waiting for requests", errno };
        self.failure.lock().get_or_insert(error);
    }

    fn interrupt(&self, unique: u64) {
        let Some(overflow) = self.registry.interrupt(unique) else { return };
        // The request may have come in on any channel; where it did not, the kernel finds nothing.
        let again = -Errno::AGAIN.raw_os_error();
        for channel in &self.channels {
            let _ = send_parts(&*channel.transport, overflow | UNIQUE_INTERRUPT_BIT, again, &[]);
        }
    }

    /// The last worker has ended.
    fn end(&self) {
        self.notifier.end();
        self.registry.end();
        self.router.operations.destroy();
        *self.ended.lock() = true;
        self.ended_changed.notify_all();
    }
}
