//! The server of the store: a daemon that is there, or one that is begun.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kvfs_lane::{Call, Connection, Greeting, Reply, SOCKET_NAME};
use kvfs_socket::locate::{Located, SocketPlace};
use kvfs_store::clock::{Clock, SystemClock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::control::{self, Client, Daemon};
use crate::endpoint::find_store;
use crate::error::{CliError, Code, Result};
use crate::store_dir::StoreDir;

/// How long the store may take to be closed.
const CLOSING: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// How long a server that begins or ends may keep others waiting.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
const ANSWER_POLL_PERIOD: Duration = Duration::from_millis(10);

pub(super) struct Server {
    /// The store.
    located: Located,
    /// The store, or the mount by which it was found.
    place: PathBuf,
    socket: SocketPlace,
    /// The server lives as long as it has clients.
    client: Connection,
    /// To one that was begun here.
    begun: Option<Client>,
}

impl Server {
    /// Of the store that `target` means: itself, or that of the mount that the path is on.
    pub(super) fn reach(target: Option<&Path>, creates: bool) -> Result<Self> {
        let place = target.unwrap_or(Path::new("."));
        if let Some(server) = Self::connect(place)? {
            return Ok(server);
        }
        let store = match target {
            Some(path) if creates && !StoreDir::is_occupied(path) => path.to_owned(),
            _ => find_store(target)?.0.path().to_owned(),
        };
        let clock = SystemClock::new();
        let connected = loop {
            begin(&store, creates)?;
            if let Some(connected) = Self::connect(&store)? {
                break connected;
            }
            // It is another one's, and begins, or has just lost its last client.
            if clock.monotonic() >= ANSWER_TIME_MAX {
                let message =
                    format!("the server of {} does not answer; kvfs.log there may say why", store.display());
                return Err(CliError::new(Code::Failed, message));
            }
            std::thread::park_timeout(ANSWER_POLL_PERIOD);
        };
        let begun = match control::connect(&StoreDir::open(&store)?)? {
            Daemon::Serving { client, .. } => Some(client),
            Daemon::Closing(_) | Daemon::Absent => None,
        };
        Ok(Self { begun, ..connected })
    }

    /// What programs in a transaction have closed and written into mapped memory has reached their files when
    /// this returns. Of one that can't be committed any more its commit says why.
    pub(super) fn settle(&self, txn: u64) -> Result<()> {
        let is_over = |error: &io::Error| {
            let over = [Errno::NOENT, Errno::STALE, Errno::BUSY, Errno::CANCELED];
            Errno::from_io_error(error).is_some_and(|errno| over.contains(&errno))
        };
        let settled = self.located.connect(SOCKET_NAME).and_then(|stream| {
            let client = Connection::greet(stream, Greeting { txn, ..Greeting::default() })?;
            match client.call(&Call::Settle, &[], |reply, _| reply) {
                Ok(Reply::Failed { errno }) => Err(io::Error::from_raw_os_error(errno)),
                Ok(_) => Ok(()),
                Err(error) => Err(io::Error::other(error)),
            }
        });
        match settled {
            Err(error) if !is_over(&error) => Err(CliError::io("settle", self.store(), &error)),
            _ => Ok(()),
        }
    }

    /// What was begun here ends with its last client: the store is free then, unless others use it.
    pub(super) fn leave(self) {
        let Self { client, begun, .. } = self;
        drop(client);
        let Some(begun) = begun else { return };
        // A signal ends the wait, too.
        let _ = poll(&mut [PollFd::from_borrowed_fd(begun.line(), PollFlags::IN)], Some(&CLOSING));
    }

    /// `None`: there is no server.
    fn connect(place: &Path) -> Result<Option<Self>> {
        use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
        let failed = |error: io::Error| CliError::io("reach the server of", place, &error);
        let found = match kvfs_socket::locate::locate(place, SOCKET_NAME) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(error) if error.kind() == NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        match found.connect_placed(SOCKET_NAME) {
            Ok((stream, socket)) => {
                let client = match Connection::new(stream) {
                    Ok(client) => client,
                    // It has lost its last client, and takes no other one.
                    Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) => {
                        return Ok(None);
                    }
                    Err(error) => return Err(failed(error)),
                };
                let place = place.canonicalize().map_err(failed)?;
                Ok(Some(Self { located: found, place, socket, client, begun: None }))
            }
            Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// The store, or the mount by which it was found.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// The directory of the store.
    pub(super) fn store(&self) -> &Path {
        &self.located.store
    }

    /// Where it listens.
    pub(super) fn socket(&self) -> &Path {
        &self.socket.path
    }

    /// What programs are to compare of a server before they talk to it: the user beside root and their own
    /// that it may be of, and file system and inode of the store's directory, which its owner could replace.
    pub(super) fn expected(&self) -> String {
        let owner = self.socket.owner.map_or_else(String::new, |owner| owner.to_string());
        let (device, inode) = self.socket.directory;
        if self.socket.path.parent() != Some(self.store()) {
            // It is root's alone, and another one with each mount.
            return owner;
        }
        format!("{owner}:{device}:{inode}")
    }
}

/// Begins a server that ends with its last client, unless there is one.
fn begin(store: &Path, creates: bool) -> Result<()> {
    let program = "/proc/self/exe";
    let mut command = Command::new(program);
    command.args(["serve", "--while-used"]).args(creates.then_some("--create")).arg("--").arg(store);
    let ended = command
        .status()
        .map_err(|error| CliError::new(Code::Failed, format!("cannot run {program}: {error}")))?;
    if ended.success() {
        return Ok(());
    }
    // It has said why.
    Err(CliError::new(Code::Failed, format!("{} can't be served", store.display())))
}
