//! Keys of a store, for the command `kvfs kv`: through the socket of a mounted one, else from the store itself.
//!
//! Invariant: what is done to a mounted store is done by its daemon, in the transaction that the environment
//! names, if it names one of this store.

mod local;

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use kvfs_rpc::client::blocking::Store;
use kvfs_rpc::client::{ClientError, Code as GrpcCode, Range};
use kvfs_rpc::proto::{KeyValue, KeyspaceInfo};
use kvfs_store::clock::{Clock, SystemClock};

use crate::commands::txn::{STORE_VARIABLE, TXN_VARIABLE};
use crate::control::{Client, Daemon};
use crate::endpoint;
use crate::error::{CliError, Code, Result};
use crate::open::{self, OpenOptions};
use crate::store_dir::StoreDir;
use local::Local;

/// A daemon that has no socket for keys is coming up or going down; longest time for that.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(10);
const CHANGE_POLL_PERIOD: Duration = Duration::from_millis(10);

/// The keys of a store.
pub(crate) struct Keys {
    dir: StoreDir,
    read_only: bool,
    txn: u64,
    via: Via,
}

enum Via {
    Daemon(Box<Store>),
    Local(Box<Local>),
}

impl Keys {
    /// Those of the store at `target` (a store, or any path on a mount; default: the current directory). Close
    /// it.
    pub(crate) fn open(target: Option<&Path>, read_only: bool) -> Result<Self> {
        let (dir, mounted) = endpoint::find_store(target)?;
        let txn = joined_txn(&dir)?;
        let via = reach(&dir, read_only, txn)?;
        if matches!(via, Via::Local(_)) {
            endpoint::tell_of_death(mounted.as_ref());
        }
        Ok(Self { dir, read_only, txn, via })
    }

    /// Does something; when the store is unmounted meanwhile, once more on the store itself. Once more does no
    /// harm; only a delete may no longer tell what was there.
    fn ask<T>(
        &mut self,
        mut daemon: impl FnMut(&mut Store) -> Result<T, ClientError>,
        local: impl FnOnce(&mut Local) -> Result<T>,
    ) -> Result<T> {
        if let Via::Daemon(store) = &mut self.via {
            match daemon(store) {
                Err(error) if is_unreached(&error) && !self.dir.keys_socket_path().exists() => {
                    self.via = reach(&self.dir, self.read_only, self.txn)?;
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

    /// Entries of one moment; ask again from behind the last one while there are more.
    pub(crate) fn page(&mut self, keyspace: &str, range: &Range) -> Result<Vec<KeyValue>> {
        self.ask(|store| store.scan(keyspace, range.clone())?.collect(), |local| local.page(keyspace, range))
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

/// The transaction that the environment names, if it is one of this store; else 0.
fn joined_txn(dir: &StoreDir) -> Result<u64> {
    let Some(id) = std::env::var_os(TXN_VARIABLE) else { return Ok(0) };
    if std::env::var_os(STORE_VARIABLE).is_some_and(|store| Path::new(&store) != dir.path()) {
        return Ok(0);
    }
    id.to_str().and_then(|id| id.parse().ok()).ok_or_else(|| {
        let message = format!("{TXN_VARIABLE}={}: not the number of a transaction", id.to_string_lossy());
        CliError::new(Code::Usage, message)
    })
}

/// The daemon; if there is none, the store itself. One that is coming up or going down is waited for.
fn reach(dir: &StoreDir, read_only: bool, txn: u64) -> Result<Via> {
    let clock = SystemClock::new();
    loop {
        match Store::connect_to(&dir.keys_socket_path()) {
            Ok(store) => return Ok(Via::Daemon(Box::new(store.map(|client| client.in_txn(txn))))),
            Err(ClientError::Io(error)) if is_absent(&error) => {}
            Err(error) => return Err(explain(&error)),
        }
        let is_late = clock.monotonic() > CHANGE_TIME_MAX;
        match Client::connect(&dir.socket_path())? {
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
        match open::open_behind_exit(dir, &OpenOptions { read_only, ..OpenOptions::default() }) {
            // A daemon came up between our asking for it and our opening.
            Err(error) if error.code == Code::InUse && !is_late => {}
            opened => return Ok(Via::Local(Box::new(Local::new(opened?)))),
        }
    }
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
