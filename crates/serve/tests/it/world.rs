//! A server in this process, and connections to it.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use kvfs_fs::{FileSystem, MkfsOptions, MountOptions};
use kvfs_kvdb::Db;
use kvfs_lane::greeting::{self, Answer, Request, VERSION, placeholder_name};
use kvfs_lane::{At, Bytes, Call, Connection, Greeting, Reply};
use kvfs_posix::{Process, Transaction, Volume};
use kvfs_serve::{Server, Visitor};
use kvfs_store::{Store, clock::SystemClock};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use tempfile::TempDir;

/// Where the clients see the file system.
pub(crate) const PLACE: &str = "/kvfs";

pub(crate) struct World {
    pub(crate) server: Option<Server>,
    pub(crate) volume: Volume,
    /// The one that clients may be in.
    pub(crate) txn: Arc<Mutex<Option<Transaction>>>,
    directory: TempDir,
    _db: Arc<Db>,
}

struct Served {
    volume: Volume,
    txn: Arc<Mutex<Option<Transaction>>>,
}

impl kvfs_serve::World for Served {
    fn process(&self, visitor: &Visitor) -> Result<Process, Errno> {
        if visitor.txn == 0 {
            return Ok(self.volume.process(&visitor.identity));
        }
        let txn = self.txn.lock().expect("is whole");
        txn.as_ref().map(|txn| txn.process(&visitor.identity)).ok_or(Errno::NOENT)
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_lanes(usize::MAX)
    }

    /// With at most so many lanes.
    pub(crate) fn with_lanes(lanes_max: usize) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let db = Db::builder().capacity_bytes(1 << 28).open(directory.path().join("store")).expect("opens");
        let (store, clock) = (Arc::clone(&db) as Arc<dyn Store>, Arc::new(SystemClock::new()));
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes");
        let fs = FileSystem::open(store, clock, MountOptions::default()).expect("opens");
        let volume = Volume::over(Arc::new(fs)).expect("starts");
        let listener = UnixListener::bind(directory.path().join("socket")).expect("binds");
        let served = volume.clone();
        let txn = Arc::default();
        let served = Served { volume: served, txn: Arc::clone(&txn) };
        let server = Some(Server::start_with(listener, served, lanes_max).expect("starts"));
        Self { server, volume, txn, directory, _db: db }
    }

    pub(crate) fn socket(&self) -> UnixStream {
        UnixStream::connect(self.directory.path().join("socket")).expect("connects")
    }

    pub(crate) fn connect(&self) -> Client {
        self.connect_in(0)
    }

    /// In a transaction.
    pub(crate) fn connect_in(&self, txn: u64) -> Client {
        greet(self.socket(), txn)
    }

    /// Operations that wait for locks of transactions.
    pub(crate) fn waiters(&self) -> usize {
        let locks = self.volume.file_system().admission().page(None, usize::MAX).locks;
        locks.iter().map(|lock| lock.waiters_count).sum()
    }

    /// The memory of an open file, for another process of its user.
    pub(crate) fn memory(&self, handle: u64) -> io::Result<OwnedFd> {
        self.memory_in(0, handle)
    }

    /// In a transaction.
    pub(crate) fn memory_in(&self, txn: u64, handle: u64) -> io::Result<OwnedFd> {
        let socket = self.socket();
        let greeting = Greeting { txn, ..Greeting::default() };
        greeting::ask(&socket, &Request::Hello { version: VERSION, greeting })?;
        let mut answer = greeting::ask(&socket, &Request::Memory { handle })?;
        Ok(answer.descriptors.pop().expect("one"))
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().expect("runs")
    }

    /// Until the threads of the server have done what they do by themselves.
    pub(crate) fn until(&self, is_so: impl Fn(&Server) -> bool) {
        while !is_so(self.server()) {
            std::thread::yield_now();
        }
    }
}

/// A connection in a transaction.
pub(crate) fn greet(socket: UnixStream, txn: u64) -> Client {
    let greeting = Greeting { txn, place: PLACE.as_bytes().to_vec(), ..Greeting::default() };
    Client(Connection::greet(socket, greeting).expect("is greeted"))
}

/// A placeholder that is open, and its handle.
pub(crate) fn placeholder(client: &Client) -> (u64, OwnedFd) {
    let (handle, directory) = given(client);
    (handle, open(&directory, handle))
}

/// The placeholder of `/file`, which is open for reading and writing and has `content`.
pub(crate) fn written(client: &Client, content: &[u8]) -> (u64, OwnedFd) {
    let (handle, descriptor) = placeholder(client);
    client.open("/file", OFlags::CREATE | OFlags::RDWR, Some(handle)).expect("opens");
    client.write(handle, content).expect("writes");
    (handle, descriptor)
}

/// One that is not open yet, and its directory.
pub(crate) fn given(client: &Client) -> (u64, OwnedFd) {
    let Answer { mut descriptors, mut handles } = client.0.placeholders(1).expect("are given");
    (handles.pop().expect("one"), descriptors.pop().expect("their directory"))
}

pub(crate) fn open(directory: &OwnedFd, handle: u64) -> OwnedFd {
    let name = placeholder_name(handle);
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
    let opened = openat(directory, &name[..16], flags, Mode::empty()).expect("opens");
    flock(&opened, FlockOperation::LockShared).expect("locks");
    opened
}

pub(crate) struct Client(pub(crate) Connection);

pub(crate) type Outcome<T> = Result<T, Errno>;

pub(crate) fn at(path: &str) -> At<'_> {
    At { base: None, path: Some(Bytes(path.as_bytes())), follows: true, is_named: false }
}

pub(crate) fn of(handle: u64) -> At<'static> {
    At { base: Some(handle), path: None, follows: true, is_named: false }
}

impl Client {
    /// The reply, or its errno, and the payload.
    pub(crate) fn call(&self, call: &Call<'_>, payload: &[u8]) -> Outcome<(Reply, Vec<u8>)> {
        let answered = self.0.call(call, payload, |reply, payload| (reply, payload.to_vec()));
        match answered.expect("the server answers") {
            (Reply::Unknown, _) => Err(Errno::BADF),
            (Reply::Failed { errno }, _) => Err(Errno::from_raw_os_error(errno)),
            answered => Ok(answered),
        }
    }

    pub(crate) fn open(&self, path: &str, flags: OFlags, handle: Option<u64>) -> Outcome<u64> {
        let call = Call::Open { at: at(path), flags: flags.bits(), mode: 0o666, umask: 0o022, handle };
        match self.call(&call, &[])?.0 {
            Reply::Opened { handle } => Ok(handle),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn number(&self, call: &Call<'_>, payload: &[u8]) -> Outcome<u64> {
        match self.call(call, payload)?.0 {
            Reply::Number(number) => Ok(number),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&self, handle: u64, data: &[u8]) -> Outcome<u64> {
        self.number(&Call::Write { handle, offset: None }, data)
    }

    pub(crate) fn read(&self, handle: u64, len: u32, offset: Option<u64>) -> Outcome<Vec<u8>> {
        Ok(self.call(&Call::Read { handle, len, offset }, &[])?.1)
    }
}
