//! A server in this process, and connections to it.

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use kvfs_fs::{FileSystem, MkfsOptions, MountOptions};
use kvfs_kvdb::Db;
use kvfs_lane::{At, Bytes, Call, Connection, Greeting, Reply};
use kvfs_posix::{Identity, Volume};
use kvfs_serve::Server;
use kvfs_store::{Store, clock::SystemClock};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tempfile::TempDir;

/// Where the clients see the file system.
pub(crate) const PLACE: &str = "/kvfs";

pub(crate) struct World {
    pub(crate) server: Option<Server>,
    pub(crate) volume: Volume,
    directory: TempDir,
    _db: Arc<Db>,
}

impl World {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let db = Db::builder().capacity_bytes(1 << 28).open(directory.path().join("store")).expect("opens");
        let (store, clock) = (Arc::clone(&db) as Arc<dyn Store>, Arc::new(SystemClock::new()));
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes");
        let fs = FileSystem::open(store, clock, MountOptions::default()).expect("opens");
        let volume = Volume::over(Arc::new(fs)).expect("starts");
        let listener = UnixListener::bind(directory.path().join("socket")).expect("binds");
        let served = volume.clone();
        let world = move |identity: &Identity| served.process(identity);
        let server = Some(Server::start(listener, world).expect("starts"));
        Self { server, volume, directory, _db: db }
    }

    pub(crate) fn socket(&self) -> UnixStream {
        UnixStream::connect(self.directory.path().join("socket")).expect("connects")
    }

    pub(crate) fn connect(&self) -> Client {
        let place = PLACE.as_bytes().to_vec();
        Client(
            Connection::greet(self.socket(), Greeting { place, ..Greeting::default() }).expect("is greeted"),
        )
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
