//! The server: accepts connections, and waits for their end.
//!
//! Thread safety: everything is `&self`.
//!
//! Invariants: no connection, and nothing of it, is left when [`Server::stop`] returns. A server that stops
//! answers no call of any connection once it ends the first one: what that one had locked is granted to no
//! client.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::operations::Recorder;
use kvfs_lane::greeting::{self, Greeting, IDS_MAX, PLACEHOLDERS_MAX, Request, VERSION};
use kvfs_lane::{LANE_DATA_BYTES, ServerLane};
use kvfs_locks::{Condvar, Mutex, class};
use kvfs_posix::{Bounds, Identity, PosixError, Process};
use kvfs_socket::{peer_credentials, peer_groups};
use rustix::io::Errno;

use crate::begun::Begun;
use crate::calls;
use crate::images::Images;
use crate::lanes::{END_TIME_MAX, Lanes};
use crate::placeholders::Placeholders;
use crate::report;
use crate::session::Session;
use crate::shares::{Share, Shares, shares};

/// Most connections.
const CONNECTIONS_MAX: usize = 4096;

/// Most lanes, unless told otherwise.
const LANES_MAX: usize = 1024;

/// Most open files of clients: the kernel reports an opening and a closing of each, and keeps 16,384 reports
/// that were not taken.
const PLACEHOLDERS_OPEN_MAX: usize = 8192;

/// Most descriptors of all connections, those of placeholders among them: each keeps an open file, in a table
/// of its connection.
const DESCRIPTORS_MAX: usize = 1 << 18;

/// Most locks of ranges and of whole files: each is looked at when another one of the same file is taken.
const LOCKS_MAX: usize = 1 << 15;

/// Memory of a lane that was filled: the lane, the message and the answer (bytes).
pub const LANE_BYTES_MAX: u64 = 3 * LANE_DATA_BYTES as u64;

/// How long the server waits for something to end when it can't accept a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// How long a client that is not greeted yet may send nothing.
const GREETING_PAUSE_MAX: Duration = Duration::from_secs(10);

/// A process that connects.
#[derive(Debug, Clone)]
pub struct Visitor {
    /// For whom it acts.
    pub identity: Identity,
    /// Its user.
    pub uid: u32,
    /// Its number; 0: it is not visible from here.
    pub pid: u32,
    /// The transaction that it wants to be in; 0: none.
    pub txn: u64,
}

/// What is served: a volume, and transactions.
pub trait World: Send + Sync {
    /// A process that acts for a visitor.
    ///
    /// # Errors
    /// There is no such transaction, or not for this user.
    fn process(&self, visitor: &Visitor) -> Result<Process, Errno>;

    /// Is told of each call that is answered.
    fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        None
    }

    /// Begins a transaction of a visitor; returns its number.
    ///
    /// # Errors
    /// EOPNOTSUPP: there are none here; those of the file system.
    fn begin(&self, _: &Visitor, _is_serializable: bool, _label: &str) -> kvfs_posix::Result<u64> {
        Err(UNSUPPORTED)
    }

    /// Commits one, durably.
    ///
    /// # Errors
    /// ECANCELED: a conflict; those of the file system. It may be open still.
    fn commit(&self, _: &Visitor, _txn: u64) -> kvfs_posix::Result<()> {
        Err(UNSUPPORTED)
    }

    /// Aborts one.
    ///
    /// # Errors
    /// It has ended already.
    fn abort(&self, _: &Visitor, _txn: u64) -> kvfs_posix::Result<()> {
        Err(UNSUPPORTED)
    }
}

const UNSUPPORTED: PosixError =
    PosixError::Refused { errno: Errno::OPNOTSUPP, reason: "no transactions are begun here" };

/// Without transactions.
impl<F: Fn(&Identity) -> Process + Send + Sync> World for F {
    fn process(&self, visitor: &Visitor) -> Result<Process, Errno> {
        if visitor.txn == 0 { Ok(self(&visitor.identity)) } else { Err(Errno::NOENT) }
    }
}

struct OpenConnection {
    socket: UnixStream,
    /// None: it has not been greeted yet.
    session: Weak<Session>,
}

/// Connections that are there, or end.
#[derive(Default)]
struct Connections {
    open: Mutex<HashMap<u64, OpenConnection>, class::ServeServerOpen>,
    changed: Condvar,
    /// Changed while `open` is held: none comes any more.
    is_stopping: AtomicBool,
    /// Is told that the server stops, with the last of them.
    when_unused: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// Tells the server when the last part of a connection is gone.
pub(crate) struct Leaving {
    number: u64,
    from: Arc<Connections>,
    _share: Share,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let unused = {
            let mut open = self.from.open.lock();
            open.remove(&self.number);
            let unused = self.from.when_unused.get().filter(|_| open.is_empty());
            if unused.is_some() {
                self.from.is_stopping.store(true, Ordering::SeqCst);
            }
            unused
        };
        self.from.changed.notify_all();
        if let Some(told) = unused {
            told();
        }
    }
}

struct Shared {
    world: Arc<dyn World>,
    placeholders: Arc<Placeholders>,
    images: Arc<Images>,
    connections: Arc<Connections>,
    connection_shares: Shares,
    lanes: Arc<Lanes>,
    descriptors: Shares,
    locks: Shares,
    /// Number of the next connection.
    next: AtomicU64,
    own_uid: u32,
}

impl Shared {
    /// What sessions share: open files, and memory of those that are mapped.
    fn files(&self) -> (Arc<Placeholders>, Arc<Images>) {
        (Arc::clone(&self.placeholders), Arc::clone(&self.images))
    }

    /// What processes of a user may have.
    fn bounds(&self, uid: u32) -> Bounds {
        Bounds { uid, descriptors: self.descriptors.clone(), locks: self.locks.clone() }
    }

    /// A connection was greeted, and is cut when the server stops.
    fn greeted(&self, number: u64, session: &Arc<Session>) -> io::Result<()> {
        let mut open = self.connections.open.lock();
        if self.connections.is_stopping.load(Ordering::SeqCst) {
            return Err(Errno::SHUTDOWN.into());
        }
        if let Some(connection) = open.get_mut(&number) {
            connection.session = Arc::downgrade(session);
        }
        Ok(())
    }
}

/// See the module.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<Arc<UnixListener>>,
    threads: Vec<JoinHandle<()>>,
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

impl Server {
    /// Serves the processes that connect to `listener`.
    ///
    /// # Errors
    /// The kernel refuses threads or descriptors.
    pub fn start(listener: UnixListener, world: impl World + 'static) -> io::Result<Self> {
        Self::start_with(listener, world, LANES_MAX)
    }

    /// As [`Self::start`], with at most so many lanes: each has a thread, and takes up to [`LANE_BYTES_MAX`].
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(
        listener: UnixListener,
        world: impl World + 'static,
        lanes_max: usize,
    ) -> io::Result<Self> {
        let own_uid = rustix::process::geteuid().as_raw();
        let of_placeholders = shares(PLACEHOLDERS_OPEN_MAX, own_uid);
        let placeholders = Arc::new(Placeholders::new(of_placeholders, own_uid)?);
        let connections = Arc::default();
        let (watched, images) = (Arc::clone(&placeholders), Arc::new(Images::new(own_uid)));
        let written = Arc::clone(&images);
        let world = Arc::new(world);
        let shared = Arc::new(Shared {
            world,
            placeholders,
            images,
            connections,
            connection_shares: shares(CONNECTIONS_MAX, own_uid),
            lanes: Lanes::new(lanes_max.min(LANES_MAX), own_uid, END_TIME_MAX),
            descriptors: shares(DESCRIPTORS_MAX, own_uid),
            locks: shares(LOCKS_MAX, own_uid),
            next: AtomicU64::new(0),
            own_uid,
        });
        let mut server = Self { shared, listeners: Vec::new(), threads: Vec::new() };
        // A server that is dropped ends those that were begun.
        server.threads.push(spawn("kvfs-closed", move || watched.watch())?);
        server.threads.push(spawn("kvfs-images", move || written.watch())?);
        server.also_listen(listener)?;
        Ok(server)
    }

    /// Serves those that connect to another socket, too.
    ///
    /// # Errors
    /// The kernel refuses a thread.
    pub fn also_listen(&mut self, listener: UnixListener) -> io::Result<()> {
        let (shared, listener) = (Arc::clone(&self.shared), Arc::new(listener));
        let accepting = Arc::clone(&listener);
        self.threads.push(spawn("kvfs-accept", move || accept(&shared, &accepting))?);
        self.listeners.push(listener);
        Ok(())
    }

    /// Open files of clients.
    pub fn open_files(&self) -> usize {
        self.shared.placeholders.len()
    }

    /// Connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.open.lock().len()
    }

    /// Once the last connection has ended no other one is taken, and `told` is called. Can be said once.
    pub fn stop_when_unused(&self, told: impl Fn() + Send + Sync + 'static) {
        // The first one stays.
        let _ = self.shared.connections.when_unused.set(Box::new(told));
    }

    /// Ends all connections. Calls under way are done first, waits for locks are not waited for.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        {
            let _open = self.shared.connections.open.lock();
            self.shared.connections.is_stopping.store(true, Ordering::SeqCst);
        }
        for listener in &self.listeners {
            // One that fails was not listening.
            let _ = rustix::net::shutdown(&**listener, rustix::net::Shutdown::Both);
        }
        let sessions: Vec<_> = {
            let open = self.shared.connections.open.lock();
            open.values().filter_map(|connection| connection.session.upgrade()).collect()
        };
        for session in &sessions {
            session.cut();
        }
        drop(sessions);
        {
            let mut open = self.shared.connections.open.lock();
            for connection in open.values() {
                // One that fails has ended.
                let _ = connection.socket.shutdown(Shutdown::Both);
            }
            while !open.is_empty() {
                self.shared.connections.changed.wait(&mut open);
            }
        }
        self.shared.placeholders.stop();
        self.shared.placeholders.clear();
        self.shared.images.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the server panicked");
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Body of the thread that accepts.
fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    loop {
        let socket = match listener.accept() {
            Ok((socket, _)) => socket,
            Err(_) if shared.connections.is_stopping.load(Ordering::SeqCst) => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::warn!(%error, "no connection can be accepted");
                let mut open = shared.connections.open.lock();
                shared.connections.changed.wait_for(&mut open, ACCEPT_AGAIN);
                continue;
            }
        };
        if let Err(error) = begin(shared, socket) {
            tracing::warn!(%error, "a connection was refused");
        }
    }
}

fn begin(shared: &Arc<Shared>, socket: UnixStream) -> io::Result<()> {
    let peer = peer_credentials(&socket)?;
    let identity = Identity { uid: peer.uid, gid: peer.gid, groups: peer_groups(&socket)? };
    let visitor = Visitor { identity, uid: peer.uid, pid: peer.pid, txn: 0 };
    start(shared, socket, peer.uid, |shared, leaving, socket| welcome(shared, visitor, leaving, socket))
}

/// The connection of a child of a process.
fn fork(shared: &Arc<Shared>, session: &Session) -> io::Result<UnixStream> {
    let (uid, process, begun) = (session.uid(), session.process().fork()?, session.begun().forked());
    let (ours, theirs) = UnixStream::pair()?;
    start(shared, ours, uid, move |shared, leaving, _| {
        Ok(Session::new(process, begun, shared.files(), leaving))
    })?;
    Ok(theirs)
}

/// Begins a connection of the user `uid`, in a thread of its own.
fn start(
    shared: &Arc<Shared>,
    socket: UnixStream,
    uid: u32,
    session: impl FnOnce(&Shared, Leaving, &UnixStream) -> io::Result<Arc<Session>> + Send + 'static,
) -> io::Result<()> {
    let share = shared.connection_shares.take(uid, 1).ok_or(Errno::USERS)?;
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    let leaving = {
        let mut open = shared.connections.open.lock();
        if shared.connections.is_stopping.load(Ordering::SeqCst) {
            return Err(Errno::SHUTDOWN.into());
        }
        open.insert(number, OpenConnection { socket: socket.try_clone()?, session: Weak::new() });
        Leaving { number, from: Arc::clone(&shared.connections), _share: share }
    };
    let shared = Arc::clone(shared);
    spawn("kvfs-client", move || {
        let ended = session(&shared, leaving, &socket).and_then(|session| {
            let ended = shared.greeted(number, &session).and_then(|()| converse(&shared, &session, &socket));
            session.end();
            ended
        });
        if let Err(error) = ended
            && error.kind() != io::ErrorKind::UnexpectedEof
        {
            tracing::debug!(%error, "a connection has failed");
        }
    })?;
    Ok(())
}

/// Takes the greeting, and makes the process.
fn welcome(
    shared: &Shared,
    mut visitor: Visitor,
    leaving: Leaving,
    socket: &UnixStream,
) -> io::Result<Arc<Session>> {
    let refused = |errno: Errno| {
        greeting::refuse(socket, errno.raw_os_error())?;
        Err(errno.into())
    };
    let may_act_for_others = [0, shared.own_uid].contains(&visitor.uid);
    socket.set_read_timeout(Some(GREETING_PAUSE_MAX))?;
    let greeting = match greeting::next_request(socket, if may_act_for_others { IDS_MAX } else { 0 }) {
        Ok(Request::Hello { version: VERSION, greeting }) => greeting,
        Ok(_) => return refused(Errno::PROTO),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return refused(Errno::PERM),
        Err(error) => return Err(error),
    };
    socket.set_read_timeout(None)?;
    let Greeting { txn, place, acts_as } = greeting;
    if let [uid, gid, groups @ ..] = &acts_as[..] {
        visitor.identity = Identity { uid: *uid, gid: *gid, groups: groups.to_vec() };
    }
    visitor.txn = txn;
    let process = match shared.world.process(&visitor) {
        Ok(process) if place.is_empty() => process,
        Ok(process) => process.placed(&place),
        Err(errno) => return refused(errno),
    };
    let process = process.bounded(shared.bounds(visitor.uid));
    let begun = Begun::new(Arc::clone(&shared.world), visitor);
    let session = Session::new(process, begun, shared.files(), leaving);
    greeting::grant(socket, &[], &[])?;
    Ok(session)
}

/// Body of the thread of a connection's socket.
fn converse(shared: &Arc<Shared>, session: &Arc<Session>, socket: &UnixStream) -> io::Result<()> {
    loop {
        match greeting::next_request(socket, 0)? {
            Request::Hello { .. } => greeting::refuse(socket, Errno::PROTO.raw_os_error())?,
            Request::Lane => match lane(shared, session) {
                Ok(memory) => greeting::grant(socket, &[memory.as_fd()], &[])?,
                Err(error) => refuse(socket, &error)?,
            },
            Request::Fork => match fork(shared, session) {
                Ok(theirs) => greeting::grant(socket, &[theirs.as_fd()], &[])?,
                Err(error) => refuse(socket, &error)?,
            },
            Request::Memory { handle } => match session.map(handle) {
                Ok(image) => greeting::grant(socket, &[image.memory()], &[])?,
                Err(error) => greeting::refuse(socket, error.errno().raw_os_error())?,
            },
            Request::Placeholders { count } => {
                let count = (count as usize).min(PLACEHOLDERS_MAX);
                match shared.placeholders.give(session, count) {
                    Ok((directory, handles)) => {
                        greeting::grant(socket, &[directory.as_fd()], &handles)?;
                    }
                    Err(error) => refuse(socket, &error)?,
                }
            }
        }
    }
}

fn refuse(socket: &UnixStream, error: &io::Error) -> io::Result<()> {
    greeting::refuse(socket, error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}

/// A lane, served by a thread of its own.
fn lane(shared: &Shared, session: &Arc<Session>) -> io::Result<OwnedFd> {
    let room = shared.lanes.room(session.uid()).ok_or(Errno::MFILE)?;
    let (lane, end, memory) = ServerLane::create()?;
    session.add_lane(end.clone())?;
    room.fill(end);
    let session = Arc::clone(session);
    spawn("kvfs-lane", move || {
        // The room is given back when the memory is gone.
        let (room, mut lane) = (room, lane);
        let (mut message, mut space) = (Vec::new(), vec![0; LANE_DATA_BYTES]);
        let recorder = session.begun().recorder();
        // Until it is over.
        while lane.next(&mut message).is_ok() {
            room.was_used();
            let start = recorder.as_ref().map(|recorder| recorder.now());
            let answer = || calls::answer(&session, &message, &mut space);
            let done = catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
                tracing::error!("a call of a client panicked; it gets EIO");
                calls::panicked(&mut space)
            });
            if let (Some(recorder), Some(start)) = (&recorder, start) {
                report::tell(&**recorder, start, &session, &message, &done);
            }
            if lane.answer(&space[..done.len]).is_err() {
                break;
            }
        }
    })?;
    Ok(memory)
}
