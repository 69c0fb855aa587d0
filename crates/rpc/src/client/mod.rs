//! Talking to a mounted store, for programs in Rust: [`Client`] for those with a runtime of their own,
//! [`blocking`] for all others; [`calls`] begin and end transactions without a connection.
//!
//! ```no_run
//! # fn main() -> Result<(), kvfs_rpc::client::ClientError> {
//! let mut store = kvfs_rpc::client::blocking::Store::connect("/home/me/mnt".as_ref())?;
//! store.run(3, |txn| {
//!     txn.put("tags", b"song.mp3", b"artist")?;
//!     std::fs::write(txn.path("music/song.mp3")?, b"...")?;
//!     Ok(())
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! Thread safety: a client is cheap to clone, and clones share one connection; calls of clones go side by
//! side. Invariant: a connection is never made anew behind its user's back, because transactions may be tied
//! to it.

pub mod blocking;
pub mod calls;
mod error;
mod locate;
mod wire;

pub use error::{ClientError, ImportedPart, Result};
pub use locate::{Located, locate};
pub use tonic::{Code, Status};

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use kvfs_socket::public;
use tokio::net::UnixStream;
use tonic::{Request, Streaming};

use crate::proto::store_client::StoreClient;
use crate::proto::{self, Durability, KeyValue, KeyspaceInfo, Operation};
use crate::{MESSAGE_LEN_MAX, ioctl};
use wire::Wire;

/// How to begin a transaction.
#[derive(Debug, Clone, Default)]
pub struct BeginOptions {
    /// As if transactions ran one after the other; else each sees the state at its begin.
    pub serializable: bool,
    /// Of two in each other's way the one with the greater number gives way.
    pub nice: i32,
    /// It is given up when it takes longer.
    pub timeout: Option<Duration>,
    /// It is given up when it goes without an operation for longer; `None`: as the mount says;
    /// [`Duration::MAX`]: never.
    pub idle_max: Option<Duration>,
    /// It is aborted when the connection ends.
    pub tied: bool,
    /// What it is called in lists and messages.
    pub label: String,
}

/// Which keys a scan gives.
#[derive(Debug, Clone, Default)]
pub struct Range {
    /// Only keys that begin with this.
    pub prefix: Bytes,
    /// First key.
    pub start: Bytes,
    /// First key that is not given; `None`: to the last one.
    pub end: Option<Bytes>,
    /// From the last key to the first.
    pub reverse: bool,
    /// At most this many; 0: all.
    pub limit: u64,
}

/// What [`Client::lock`] locks, whether it exists or not.
#[derive(Debug, Clone, Copy)]
pub enum LockOn<'a> {
    /// Keys that begin with a prefix; empty: the whole keyspace.
    Prefix {
        /// Keyspace, which must be there.
        keyspace: &'a str,
        /// First bytes of the keys.
        prefix: &'a [u8],
    },
    /// Keys of a range.
    Range {
        /// Keyspace, which must be there.
        keyspace: &'a str,
        /// First key.
        start: &'a [u8],
        /// First key behind; `None`: to the last one.
        end: Option<&'a [u8]>,
    },
    /// A part of a file in whole blocks of 4 KiB, or all names in a directory.
    File {
        /// From the root of the store.
        path: &'a Path,
        /// First byte.
        offset: u64,
        /// Number of bytes; 0: to the end, and what is appended.
        length: u64,
    },
}

/// A connection to a mounted store, on its main line or in a transaction.
#[derive(Debug, Clone)]
pub struct Client {
    stub: StoreClient<Wire>,
    txn: u64,
    /// What is read; empty: the main line, or the transaction.
    snapshot: String,
    durability: Durability,
    deadline: Option<Duration>,
}

impl Client {
    /// Connects to the store that `path` means: its directory, or anything on its mount.
    ///
    /// # Errors
    /// [`ClientError::NotMounted`]; the connection fails.
    pub async fn connect(path: &Path) -> Result<Self> {
        let (address, owner) = locate(path)?.address()?;
        Self::connect_to_daemon_of(address.path(), owner).await
    }

    /// Connects to a socket.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_to(socket: &Path) -> Result<Self> {
        Ok(Self::with(Wire::connect(socket, |_| Ok(())).await?))
    }

    /// As [`Self::connect_to`], if the process behind the socket is root's, this process's user's, or
    /// `owner`'s: of the owner of the store. Before that is known nothing is sent.
    ///
    /// # Errors
    /// As [`Self::connect`]; another user's process is behind the socket.
    pub async fn connect_to_daemon_of(socket: &Path, owner: Option<u32>) -> Result<Self> {
        let check = |stream: &UnixStream| public::expect_daemon_of(stream, owner);
        Ok(Self::with(Wire::connect(socket, check).await?))
    }

    fn with(wire: Wire) -> Self {
        let stub = StoreClient::with_origin(wire, http::Uri::from_static("http://kvfs"))
            .max_decoding_message_size(MESSAGE_LEN_MAX + (1 << 20));
        Self { stub, txn: 0, snapshot: String::new(), durability: Durability::Durable, deadline: None }
    }

    /// The same connection, for calls in a transaction (0: on the main line).
    #[must_use]
    pub fn in_txn(&self, txn: u64) -> Self {
        Self { txn, snapshot: String::new(), ..self.clone() }
    }

    /// The same connection, for calls that read the keys of a named snapshot. Changes are refused.
    #[must_use]
    pub fn in_snapshot(&self, name: &str) -> Self {
        Self { txn: 0, snapshot: name.to_owned(), ..self.clone() }
    }

    /// Whether calls read a named snapshot.
    pub fn reads_snapshot(&self) -> bool {
        !self.snapshot.is_empty()
    }

    fn check_writable(&self) -> Result<()> {
        if self.snapshot.is_empty() {
            return Ok(());
        }
        Err(Status::failed_precondition(format!("snapshot \"{}\" is read-only", self.snapshot)).into())
    }

    /// The transaction that calls are in; 0: none.
    pub fn txn(&self) -> u64 {
        self.txn
    }

    /// The same connection, for changes that survive a power cut within the commit interval only, and are
    /// answered sooner.
    #[must_use]
    pub fn asynchronous(&self) -> Self {
        Self { durability: Durability::Asynchronous, ..self.clone() }
    }

    /// The same connection, for calls that fail when they take longer.
    #[must_use]
    pub fn within(&self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self.clone() }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        request
    }

    /// Version of the daemon, and where the store is mounted.
    ///
    /// # Errors
    /// As all calls: [`ClientError::Refused`], and [`ClientError::Conflict`] in a transaction.
    pub async fn info(&mut self) -> Result<(String, PathBuf)> {
        let request = self.request(proto::InfoRequest {});
        let info = self.stub.info(request).await?.into_inner();
        Ok((info.version, info.mount.into()))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As all calls.
    pub async fn get(&mut self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>> {
        let key = Bytes::copy_from_slice(key);
        let snapshot = self.snapshot.clone();
        let request = proto::GetRequest { keyspace: keyspace.to_owned(), key, txn: self.txn, snapshot };
        Ok(self.stub.get(self.request(request)).await?.into_inner().value)
    }

    /// The values of several keys at one moment, in their order.
    ///
    /// # Errors
    /// As all calls.
    pub async fn multi_get(&mut self, keyspace: &str, keys: Vec<Bytes>) -> Result<Vec<Option<Bytes>>> {
        let snapshot = self.snapshot.clone();
        let request = proto::MultiGetRequest { keyspace: keyspace.to_owned(), keys, txn: self.txn, snapshot };
        let values = self.stub.multi_get(self.request(request)).await?.into_inner().values;
        Ok(values.into_iter().map(|value| value.value).collect())
    }

    /// Sets a key; its keyspace is made when it is missing.
    ///
    /// # Errors
    /// As all calls.
    pub async fn put(&mut self, keyspace: &str, key: &[u8], value: impl Into<Bytes>) -> Result<()> {
        self.check_writable()?;
        let request = proto::PutRequest {
            keyspace: keyspace.to_owned(),
            key: Bytes::copy_from_slice(key),
            value: value.into(),
            txn: self.txn,
            durability: self.durability.into(),
        };
        self.stub.put(self.request(request)).await?;
        Ok(())
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    /// As all calls.
    pub async fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<bool> {
        self.check_writable()?;
        let request = proto::DeleteRequest {
            keyspace: keyspace.to_owned(),
            key: Bytes::copy_from_slice(key),
            txn: self.txn,
            durability: self.durability.into(),
        };
        Ok(self.stub.delete(self.request(request)).await?.into_inner().existed)
    }

    /// Removes the keys from `start` up to, not including, `end` (`None`: to the last).
    ///
    /// # Errors
    /// As all calls.
    pub async fn delete_range(&mut self, keyspace: &str, start: &[u8], end: Option<&[u8]>) -> Result<()> {
        self.check_writable()?;
        let range =
            proto::KeyRange { start: Bytes::copy_from_slice(start), end: end.map(Bytes::copy_from_slice) };
        let request = proto::DeleteRangeRequest {
            keyspace: keyspace.to_owned(),
            range: Some(range),
            txn: self.txn,
            durability: self.durability.into(),
        };
        self.stub.delete_range(self.request(request)).await?;
        Ok(())
    }

    /// Makes all changes or none.
    ///
    /// # Errors
    /// As all calls.
    pub async fn apply(&mut self, operations: Vec<Operation>) -> Result<()> {
        self.check_writable()?;
        let durability = self.durability.into();
        let request = proto::ApplyRequest { operations, txn: self.txn, durability };
        self.stub.apply(self.request(request)).await?;
        Ok(())
    }

    /// Keys and values of one moment, in order or against it, as fast as they are taken.
    ///
    /// # Errors
    /// As all calls. ABORTED from the stream: it took too long; scan on from behind the last key.
    pub async fn scan(&mut self, keyspace: &str, range: Range) -> Result<Scan> {
        let request = proto::ScanRequest {
            keyspace: keyspace.to_owned(),
            prefix: range.prefix,
            range: Some(proto::KeyRange { start: range.start, end: range.end }),
            reverse: range.reverse,
            limit: range.limit,
            txn: self.txn,
            snapshot: self.snapshot.clone(),
        };
        let pages = self.stub.scan(self.request(request)).await?.into_inner();
        Ok(Scan { pages, page: Vec::new().into_iter() })
    }

    /// The keyspaces that the caller may use, ordered by name.
    ///
    /// # Errors
    /// As all calls.
    pub async fn keyspaces(&mut self) -> Result<Vec<KeyspaceInfo>> {
        let request = self.request(proto::ListKeyspacesRequest { snapshot: self.snapshot.clone() });
        Ok(self.stub.list_keyspaces(request).await?.into_inner().keyspaces)
    }

    /// Makes a keyspace with this mode (0600 without one). `exclusive`: an error when there is one already.
    ///
    /// # Errors
    /// As all calls.
    pub async fn create_keyspace(
        &mut self,
        name: &str,
        mode: Option<u32>,
        exclusive: bool,
    ) -> Result<KeyspaceInfo> {
        let request = proto::CreateKeyspaceRequest { name: name.to_owned(), mode, exclusive };
        Ok(self.stub.create_keyspace(self.request(request)).await?.into_inner())
    }

    /// Changes mode, owner or group of a keyspace; `None`: as it was.
    ///
    /// # Errors
    /// As all calls.
    pub async fn change_keyspace(
        &mut self,
        name: &str,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<KeyspaceInfo> {
        let request = proto::ChangeKeyspaceRequest { name: name.to_owned(), mode, uid, gid };
        Ok(self.stub.change_keyspace(self.request(request)).await?.into_inner())
    }

    /// Removes a keyspace with all its keys, durably; in no transaction. Named snapshots keep both.
    ///
    /// # Errors
    /// As all calls.
    pub async fn drop_keyspace(&mut self, name: &str) -> Result<()> {
        self.check_writable()?;
        let request = self.request(proto::DropKeyspaceRequest { name: name.to_owned() });
        self.stub.drop_keyspace(request).await?;
        Ok(())
    }

    /// Begins a transaction. Returns its number, for [`Self::in_txn`] and `kvfs txn join`.
    ///
    /// # Errors
    /// As all calls.
    pub async fn begin(&mut self, options: BeginOptions) -> Result<u64> {
        let isolation =
            if options.serializable { proto::Isolation::Serializable } else { proto::Isolation::Snapshot };
        let request = proto::BeginRequest {
            isolation: isolation.into(),
            nice: options.nice,
            timeout_ms: options.timeout.map_or(0, |timeout| timeout.as_millis().max(1) as u64),
            tied: options.tied,
            label: options.label,
            idle_ms_max: ioctl::idle_to_ms(options.idle_max),
        };
        Ok(self.stub.begin(self.request(request)).await?.into_inner().txn)
    }

    /// Commits the transaction that calls are in: keys and files at once.
    ///
    /// # Errors
    /// As all calls.
    pub async fn commit(&mut self) -> Result<()> {
        let request = proto::CommitRequest { txn: self.txn, durability: self.durability.into() };
        self.stub.commit(self.request(request)).await?;
        Ok(())
    }

    /// Drops the transaction that calls are in. Returns why it could not have been committed, if so.
    ///
    /// # Errors
    /// As all calls.
    pub async fn abort(&mut self) -> Result<Option<String>> {
        let request = self.request(proto::AbortRequest { txn: self.txn });
        Ok(self.stub.abort(request).await?.into_inner().doomed)
    }

    /// Root of the files that the transaction sees; they are mounted there at the first call.
    ///
    /// # Errors
    /// As all calls.
    pub async fn view(&mut self) -> Result<PathBuf> {
        let request = self.request(proto::ViewRequest { txn: self.txn });
        let path = self.stub.view(request).await?.into_inner().path;
        Ok(OsString::from_vec(path.into()).into())
    }

    /// Locks something for the transaction that calls are in, until it ends; waits for others.
    ///
    /// # Errors
    /// As all calls. [`ClientError::Conflict`] also when it changed after the transaction began (unless that
    /// is serializable): lock early.
    pub async fn lock(&mut self, what: LockOn<'_>, is_exclusive: bool) -> Result<()> {
        let mode = if is_exclusive { proto::LockMode::LockExclusive } else { proto::LockMode::LockShared };
        let what = match what {
            LockOn::Prefix { keyspace, prefix } => proto::lock_request::What::Keys(proto::KeyLock {
                keyspace: keyspace.to_owned(),
                prefix: Bytes::copy_from_slice(prefix),
                range: None,
            }),
            LockOn::Range { keyspace, start, end } => {
                let range = proto::KeyRange {
                    start: Bytes::copy_from_slice(start),
                    end: end.map(Bytes::copy_from_slice),
                };
                let keyspace = keyspace.to_owned();
                proto::lock_request::What::Keys(proto::KeyLock {
                    keyspace,
                    prefix: Bytes::new(),
                    range: Some(range),
                })
            }
            LockOn::File { path, offset, length } => {
                let path = Bytes::copy_from_slice(path.as_os_str().as_encoded_bytes());
                proto::lock_request::What::File(proto::FileLock { path, offset, length })
            }
        };
        let request = proto::LockRequest { txn: self.txn, mode: mode.into(), what: Some(what) };
        self.stub.lock(self.request(request)).await?;
        Ok(())
    }

    /// The caller's open transactions.
    ///
    /// # Errors
    /// As all calls.
    pub async fn transactions(&mut self) -> Result<Vec<proto::TransactionInfo>> {
        let request = self.request(proto::ListTransactionsRequest {});
        Ok(self.stub.list_transactions(request).await?.into_inner().transactions)
    }
}

/// A scan under way. Dropping it ends it.
#[derive(Debug)]
pub struct Scan {
    pages: Streaming<proto::ScanPage>,
    page: std::vec::IntoIter<KeyValue>,
}

impl Scan {
    /// The next entry.
    ///
    /// # Errors
    /// As [`Client::scan`].
    pub async fn next(&mut self) -> Result<Option<KeyValue>> {
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(entry));
            }
            match self.pages.message().await? {
                Some(page) => self.page = page.entries.into_iter(),
                None => return Ok(None),
            }
        }
    }
}
