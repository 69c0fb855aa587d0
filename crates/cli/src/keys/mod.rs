//! Keys of a store, for the command `kvfs kv`: through the socket of a mounted one, else from the store
//! itself.
//!
//! Invariant: what is done to a mounted store is done by its daemon, in the transaction that the environment
//! names, if it names one of this store.

mod local;

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use kvfs_open::OpenOptions;
use kvfs_rpc::client::blocking::Store;
use kvfs_rpc::client::{ClientError, Code as GrpcCode, Range};
use kvfs_rpc::proto::{KeyValue, KeyspaceInfo};
use kvfs_socket::public;
use kvfs_store::clock::{Clock, SystemClock};

use crate::commands::txn::{STORE_VARIABLE, TXN_VARIABLE};
use crate::control::{self, Daemon};
use crate::endpoint;
use crate::error::{CliError, Code, Result};
use crate::mounts::MountedStore;
use crate::open;
use crate::store_dir::StoreDir;
use local::Local;

/// What has become of an import that failed.
const NOTHING_IMPORTED: &str = "nothing was imported";
/// A daemon that has no socket for keys is coming up or going down; longest time for that.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(10);
const CHANGE_POLL_PERIOD: Duration = Duration::from_millis(10);
/// Bytes of keys and values after which a page is cut.
const PAGE_BYTES_MAX: usize = 2 << 20;

/// The keys of a store.
pub(crate) struct Keys {
    /// `None`: only the daemon can be reached.
    dir: Option<StoreDir>,
    read_only: bool,
    txn: u64,
    /// The named snapshot that is read.
    snapshot: Option<String>,
    via: Via,
}

enum Via {
    Daemon(Box<Store>),
    Local(Box<Local>),
}

impl Keys {
    /// Those of the store at `target` (a store, or any path on a mount; default: the current directory).
    /// Close it.
    pub(crate) fn open(target: Option<&Path>, snapshot: Option<&str>, read_only: bool) -> Result<Self> {
        match Self::open_by_store(target, snapshot, read_only) {
            Err(error) => Self::open_public(target, snapshot, read_only, error),
            opened => opened,
        }
    }

    /// By the socket for the users of a mount, where the store's directory is closed.
    fn open_public(
        target: Option<&Path>,
        snapshot: Option<&str>,
        read_only: bool,
        error: CliError,
    ) -> Result<Self> {
        let (mut client, _, mounted) = endpoint::reach_public(target, error)?;
        let txn = match (snapshot, joined_txn(&mounted.store)?) {
            (Some(_), _) => 0,
            (None, 0) if mounted.is_view => endpoint::txn_of_view(&mut client, &mounted)?,
            (None, txn) => txn,
        };
        let store = connect_public(&mounted.store).map_err(|error| explain(&error))?;
        let via = Via::Daemon(Box::new(in_place(&store, txn, snapshot)));
        Ok(Self { dir: None, read_only, txn, snapshot: snapshot.map(str::to_owned), via })
    }

    /// By the socket in the store's directory, or the store itself.
    fn open_by_store(target: Option<&Path>, snapshot: Option<&str>, read_only: bool) -> Result<Self> {
        let (dir, mounted) = endpoint::find_store(target)?;
        // What a snapshot shows is the same inside of a transaction.
        let txn = match (snapshot, &mounted) {
            (Some(_), _) => 0,
            (None, Some(view)) if view.is_view => match joined_txn(dir.path())? {
                0 => txn_of_view(&dir, view)?,
                txn => txn,
            },
            (None, _) => joined_txn(dir.path())?,
        };
        let via = reach(&dir, read_only, txn, snapshot)?;
        if matches!(via, Via::Local(_)) {
            endpoint::tell_of_death(mounted.as_ref());
        }
        Ok(Self { dir: Some(dir), read_only, txn, snapshot: snapshot.map(str::to_owned), via })
    }

    /// Does something; when the store is unmounted meanwhile, once more on the store itself. Once more does
    /// no harm; only a delete may no longer tell what was there.
    fn ask<T>(
        &mut self,
        mut daemon: impl FnMut(&mut Store) -> Result<T, ClientError>,
        local: impl FnOnce(&mut Local) -> Result<T>,
    ) -> Result<T> {
        if let (Via::Daemon(store), Some(dir)) = (&mut self.via, &self.dir) {
            match daemon(store) {
                Err(error) if is_unreached(&error) && !dir.has_keys_socket() => {
                    self.via = reach(dir, self.read_only, self.txn, self.snapshot.as_deref())?;
                }
                done => return done.map_err(|error| explain(&error)),
            }
        }
        match &mut self.via {
            Via::Daemon(store) => daemon(store).map_err(|error| explain(&error)),
            Via::Local(open) => local(open),
        }
    }

    pub(crate) fn get(&mut self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>> {
        self.ask(|store| store.get(keyspace, key), |local| local.get(keyspace, key))
    }

    pub(crate) fn put(&mut self, keyspace: &str, key: &[u8], value: &[u8]) -> Result<()> {
        self.ask(|store| store.put(keyspace, key, value), |local| local.put(keyspace, key, value))
    }

    /// Whether it was there.
    pub(crate) fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<bool> {
        self.ask(|store| store.delete(keyspace, key), |local| local.delete(keyspace, key))
    }

    /// Removes the keys from `start` up to `end`.
    pub(crate) fn delete_range(&mut self, keyspace: &str, start: &[u8], end: Option<&[u8]>) -> Result<()> {
        self.ask(
            |store| store.delete_range(keyspace, start, end),
            |local| local.delete_range(keyspace, start, end),
        )
    }

    /// Removes a keyspace with all its keys.
    pub(crate) fn drop_keyspace(&mut self, name: &str) -> Result<()> {
        if self.txn != 0 {
            let message = format!(
                "a keyspace is dropped outside of transactions, and this is in transaction {}",
                self.txn
            );
            return Err(CliError::new(Code::Usage, message));
        }
        self.ask(|store| store.drop_keyspace(name), |local| local.drop_keyspace(name))
    }

    /// Sets all keys that `entries` give, or none. Returns how many.
    pub(crate) fn import(
        &mut self,
        keyspace: &str,
        entries: &mut dyn Iterator<Item = Result<KeyValue>>,
    ) -> Result<u64> {
        match &mut self.via {
            Via::Daemon(store) => {
                let mut bad = None;
                let broken = || ClientError::Io(io::ErrorKind::InvalidInput.into());
                let entries = entries.map(|entry| {
                    entry.map_err(|error| {
                        bad = Some(error);
                        broken()
                    })
                });
                let imported = store.import(keyspace, entries);
                imported.map_err(|error| {
                    let what = match &error {
                        ClientError::ImportedPart { part, .. } => part.to_string(),
                        _ => NOTHING_IMPORTED.to_owned(),
                    };
                    bad.map_or_else(|| explain(&error), |bad| bad.and(&what))
                })
            }
            Via::Local(local) => local.import(keyspace, entries).map_err(|error| error.and(NOTHING_IMPORTED)),
        }
    }

    /// Calls `take` with every entry of a range as of one moment, in order.
    pub(crate) fn export(
        &mut self,
        keyspace: &str,
        range: Range,
        take: &mut dyn FnMut(KeyValue) -> Result<()>,
    ) -> Result<()> {
        match &mut self.via {
            Via::Daemon(store) => {
                let mut bad = None;
                let exported = store.export(keyspace, range, |entry| {
                    take(entry).map_err(|error| {
                        bad = Some(error);
                        ClientError::Io(io::ErrorKind::BrokenPipe.into())
                    })
                });
                exported.map_err(|error| bad.unwrap_or_else(|| explain(&error)))
            }
            // Nothing else changes it meanwhile.
            Via::Local(local) => {
                let mut range = Range { limit: u64::MAX, ..range };
                loop {
                    let page = local.page(keyspace, &range)?;
                    let Some(last) = page.last().map(|entry| entry.key.clone()) else { return Ok(()) };
                    page.into_iter().try_for_each(&mut *take)?;
                    range.start = [&last[..], b"\0"].concat().into();
                }
            }
        }
    }

    /// Entries of one moment, about [`PAGE_BYTES_MAX`] at most; ask again from behind the last one while
    /// there are more.
    pub(crate) fn page(&mut self, keyspace: &str, range: &Range) -> Result<Vec<KeyValue>> {
        self.ask(|store| take_page(store.scan(keyspace, range.clone())?), |local| local.page(keyspace, range))
    }

    pub(crate) fn keyspaces(&mut self) -> Result<Vec<KeyspaceInfo>> {
        self.ask(Store::keyspaces, Local::keyspaces)
    }

    /// Another mode, owner, group; `None`: as it was.
    pub(crate) fn change_keyspace(
        &mut self,
        name: &str,
        [mode, uid, gid]: [Option<u32>; 3],
    ) -> Result<KeyspaceInfo> {
        self.ask(
            |store| store.call(async |client| client.change_keyspace(name, mode, uid, gid).await),
            |local| local.change_keyspace(name, [mode, uid, gid]),
        )
    }

    /// Closes the store, if this process opened it.
    pub(crate) fn close(self) -> Result<()> {
        match self.via {
            Via::Daemon(_) => Ok(()),
            Via::Local(local) => local.close(),
        }
    }
}

/// The first of `all`, about [`PAGE_BYTES_MAX`] at most.
fn take_page<E>(
    all: impl Iterator<Item = std::result::Result<KeyValue, E>>,
) -> std::result::Result<Vec<KeyValue>, E> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for entry in all {
        let entry = entry?;
        bytes += entry.key.len() + entry.value.len();
        entries.push(entry);
        if bytes >= PAGE_BYTES_MAX {
            break;
        }
    }
    Ok(entries)
}

/// The transaction that the environment names, if it is one of this store; else 0.
fn joined_txn(store: &Path) -> Result<u64> {
    let Some(id) = std::env::var_os(TXN_VARIABLE) else { return Ok(0) };
    if std::env::var_os(STORE_VARIABLE).is_some_and(|joined| Path::new(&joined) != store) {
        return Ok(0);
    }
    id.to_str().and_then(|id| id.parse().ok()).ok_or_else(|| {
        let message = format!("{TXN_VARIABLE}={}: not the number of a transaction", id.to_string_lossy());
        CliError::new(Code::Usage, message)
    })
}

/// The branch or transaction whose keys a path on `view` means.
fn txn_of_view(dir: &StoreDir, view: &MountedStore) -> Result<u64> {
    match control::connect(dir)? {
        Daemon::Serving { mut client, .. } => endpoint::txn_of_view(&mut client, view),
        Daemon::Closing(_) | Daemon::Absent => {
            let message = format!("the branch or transaction on {} is no more", view.dir.display());
            Err(CliError::new(Code::NotMounted, view.obituary().unwrap_or(message)))
        }
    }
}

/// The daemon; if there is none, the store itself. One that is coming up or going down is waited for.
fn reach(dir: &StoreDir, read_only: bool, txn: u64, snapshot: Option<&str>) -> Result<Via> {
    let clock = SystemClock::new();
    loop {
        match connect(dir) {
            Ok(store) => return Ok(Via::Daemon(Box::new(in_place(&store, txn, snapshot)))),
            Err(ClientError::Io(error)) if is_absent(&error) => {}
            Err(error) => return Err(explain(&error)),
        }
        let is_late = clock.monotonic() > CHANGE_TIME_MAX;
        match control::connect(dir)? {
            Daemon::Serving { .. } if is_late => {
                let message = format!("the daemon of {} serves no keys", dir.path().display());
                return Err(CliError::new(Code::InUse, message));
            }
            Daemon::Serving { .. } => {
                std::thread::park_timeout(CHANGE_POLL_PERIOD);
                continue;
            }
            Daemon::Closing(client) => open::wait_closed(dir, client)?,
            Daemon::Absent => {}
        }
        if txn != 0 {
            let message = format!("{} is not mounted, so transaction {txn} is no more", dir.path().display());
            return Err(CliError::new(Code::NotMounted, message));
        }
        match open::open_for_command(dir, &OpenOptions { read_only, ..OpenOptions::default() }) {
            // A daemon came up between our asking for it and our opening.
            Err(error) if error.code == Code::InUse && !is_late => {}
            opened => return Ok(Via::Local(Box::new(Local::new(opened?, snapshot)?))),
        }
    }
}

/// A connection to the daemon of a mounted store, by its directory, or, where that is closed, as a user of
/// the mount.
pub(crate) fn connect_to(store: &Path) -> Result<Store> {
    let connected = match StoreDir::open(store) {
        Ok(dir) => connect(&dir),
        Err(_) => connect_public(store),
    };
    connected.map_err(|error| explain(&error))
}

/// The connection, for calls on the named snapshot, in the transaction, or on the main line.
fn in_place(store: &Store, txn: u64, snapshot: Option<&str>) -> Store {
    store.map(|client| match snapshot {
        Some(name) => client.in_snapshot(name),
        None => client.in_txn(txn),
    })
}

fn connect(dir: &StoreDir) -> Result<Store, ClientError> {
    Store::connect_to_daemon_of(dir.keys_address()?.path(), Some(dir.uid()))
}

/// By the socket for the users of the mounts that show `source`.
fn connect_public(source: &Path) -> Result<Store, ClientError> {
    let (socket, owner) = public::socket(source, kvfs_rpc::SOCKET_NAME)?;
    Store::connect_to_daemon_of(&socket, Some(owner))
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Whether the daemon may not have heard of the request at all.
fn is_unreached(error: &ClientError) -> bool {
    let code = error.code();
    code.is_none_or(|code| matches!(code, GrpcCode::Unavailable | GrpcCode::Unknown | GrpcCode::Cancelled))
}

/// What an answer of the daemon means to the user.
pub(crate) fn explain(error: &ClientError) -> CliError {
    let code = match error {
        ClientError::NotMounted(_) => Code::NotMounted,
        ClientError::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => Code::Denied,
        ClientError::Conflict(_) => Code::Conflict,
        error => match error.code() {
            Some(GrpcCode::InvalidArgument) => Code::Usage,
            Some(GrpcCode::PermissionDenied) => Code::Denied,
            Some(GrpcCode::ResourceExhausted) => Code::NoSpace,
            Some(GrpcCode::DataLoss) => Code::Damaged,
            Some(GrpcCode::Unavailable) => Code::NotMounted,
            _ => Code::Failed,
        },
    };
    CliError::new(code, error.to_string())
}
