//! The client for programs without a runtime: each call returns when it is done.
//!
//! Thread safety: a [`Store`] belongs to one thread at a time; open one for each thread. While no call is
//! under way nothing is read from the connection; the daemon doesn't mind.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};

use super::{BeginOptions, Client, ClientError, ImportedPart, LockOn, Range, Result};
use crate::proto::{Conflict, KeyValue, KeyspaceInfo, Operation};

/// What an import sends at a time: keys and values (bytes), and their number.
const IMPORT_BYTES: usize = 1 << 20;
const IMPORT_OPERATIONS: usize = 1000;

/// A connection to a mounted store.
#[derive(Debug)]
pub struct Store {
    runtime: Rc<Runtime>,
    client: Client,
}

/// A transaction over keys and files. Dropped without [`Transaction::commit`], it never happened.
#[derive(Debug)]
pub struct Transaction {
    keys: Store,
    root: Option<PathBuf>,
    is_open: bool,
}

impl Store {
    /// Connects to the store that `path` means: its directory, or anything on its mount.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(path: &Path) -> Result<Self> {
        Self::with(|runtime| runtime.block_on(Client::connect(path)))
    }

    /// Connects to a socket.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_to(socket: &Path) -> Result<Self> {
        Self::with(|runtime| runtime.block_on(Client::connect_to(socket)))
    }

    /// As [`Self::connect_to`], with a look at the process behind the socket.
    ///
    /// # Errors
    /// As [`Client::connect_to_daemon_of`].
    pub fn connect_to_daemon_of(socket: &Path, owner: Option<u32>) -> Result<Self> {
        Self::with(|runtime| runtime.block_on(Client::connect_to_daemon_of(socket, owner)))
    }

    fn with(connect: impl FnOnce(&Runtime) -> Result<Client>) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let client = connect(&runtime)?;
        Ok(Self { runtime: Rc::new(runtime), client })
    }

    /// The same connection with other settings: `store.map(|client| client.asynchronous())`.
    #[must_use]
    pub fn map(&self, change: impl FnOnce(&Client) -> Client) -> Self {
        Self { runtime: Rc::clone(&self.runtime), client: change(&self.client) }
    }

    /// The client below, for calls that are not here.
    ///
    /// # Errors
    /// Those of the call.
    pub fn call<T>(&mut self, call: impl AsyncFnOnce(&mut Client) -> Result<T>) -> Result<T> {
        self.runtime.block_on(call(&mut self.client))
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As all calls of [`Client`].
    pub fn get(&mut self, keyspace: &str, key: &[u8]) -> Result<Option<Bytes>> {
        self.runtime.block_on(self.client.get(keyspace, key))
    }

    /// Sets a key; its keyspace is made when it is missing.
    ///
    /// # Errors
    /// As all calls.
    pub fn put(&mut self, keyspace: &str, key: &[u8], value: &[u8]) -> Result<()> {
        self.runtime.block_on(self.client.put(keyspace, key, Bytes::copy_from_slice(value)))
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    /// As all calls.
    pub fn delete(&mut self, keyspace: &str, key: &[u8]) -> Result<bool> {
        self.runtime.block_on(self.client.delete(keyspace, key))
    }

    /// Removes the keys from `start` up to, not including, `end` (`None`: to the last).
    ///
    /// # Errors
    /// As all calls.
    pub fn delete_range(&mut self, keyspace: &str, start: &[u8], end: Option<&[u8]>) -> Result<()> {
        self.runtime.block_on(self.client.delete_range(keyspace, start, end))
    }

    /// Removes a keyspace with all its keys; in no transaction.
    ///
    /// # Errors
    /// As all calls.
    pub fn drop_keyspace(&mut self, name: &str) -> Result<()> {
        self.runtime.block_on(self.client.drop_keyspace(name))
    }

    /// Calls `take` with every key and value of a range as of one moment, in order.
    ///
    /// # Errors
    /// Those of `take`; as [`Client::scan`]: where it takes longer than a scan may, export from a named
    /// snapshot, which goes on from behind the last key by itself.
    pub fn export(
        &mut self,
        keyspace: &str,
        range: Range,
        mut take: impl FnMut(KeyValue) -> Result<()>,
    ) -> Result<()> {
        let mut range = Range { reverse: false, limit: 0, ..range };
        loop {
            let mut last = None;
            let mut scan = self.scan(keyspace, range.clone())?;
            let ended = scan.try_for_each(|entry| {
                let entry = entry?;
                last = Some(entry.key.clone());
                take(entry)
            });
            match (ended, last) {
                (Err(error), Some(last))
                    if self.client.reads_snapshot() && error.code() == Some(super::Code::Aborted) =>
                {
                    range.start = [&last[..], b"\0"].concat().into();
                }
                (ended, _) => return ended,
            }
        }
    }

    /// Sets all keys that `entries` give, or none: in this transaction, or one of its own. Returns how many.
    ///
    /// # Errors
    /// As all calls; the first error of `entries`: nothing happened. In a transaction that has a part of them
    /// by then it is [`ClientError::ImportedPart`].
    pub fn import(
        &mut self,
        keyspace: &str,
        entries: impl IntoIterator<Item = Result<KeyValue>>,
    ) -> Result<u64> {
        if self.client.txn() != 0 {
            let mut keys = 0;
            let imported = self.import_here(keyspace, entries, &mut keys);
            return imported.map_err(|cause| {
                if keys == 0 {
                    return cause;
                }
                let is_aborted = self.runtime.block_on(self.client.abort()).is_ok();
                let part = ImportedPart { keys, is_aborted };
                ClientError::ImportedPart { cause: Box::new(cause), part }
            });
        }
        let options =
            BeginOptions { tied: true, label: format!("import {keyspace}"), ..BeginOptions::default() };
        let mut txn = self.begin(options)?;
        let count = txn.import_here(keyspace, entries, &mut 0)?;
        txn.commit()?;
        Ok(count)
    }

    /// `applied`: so many of them have reached the daemon.
    fn import_here(
        &mut self,
        keyspace: &str,
        entries: impl IntoIterator<Item = Result<KeyValue>>,
        applied: &mut u64,
    ) -> Result<u64> {
        let (mut operations, mut bytes, mut count) = (Vec::new(), 0, 0);
        for entry in entries {
            let put = entry?;
            bytes += put.key.len() + put.value.len();
            count += 1;
            let change = Some(crate::proto::operation::Change::Put(put));
            operations.push(Operation { keyspace: keyspace.to_owned(), change });
            if bytes >= IMPORT_BYTES || operations.len() >= IMPORT_OPERATIONS {
                self.apply(std::mem::take(&mut operations))?;
                (bytes, *applied) = (0, count);
            }
        }
        if !operations.is_empty() {
            self.apply(operations)?;
        }
        Ok(count)
    }

    /// Makes all changes or none.
    ///
    /// # Errors
    /// As all calls.
    pub fn apply(&mut self, operations: Vec<Operation>) -> Result<()> {
        self.runtime.block_on(self.client.apply(operations))
    }

    /// Keys and values of one moment, in order or against it.
    ///
    /// # Errors
    /// As [`Client::scan`].
    pub fn scan(&mut self, keyspace: &str, range: Range) -> Result<Scan> {
        let scan = self.runtime.block_on(self.client.scan(keyspace, range))?;
        Ok(Scan { runtime: Rc::clone(&self.runtime), scan: Some(scan) })
    }

    /// The keyspaces that the caller may use, ordered by name.
    ///
    /// # Errors
    /// As all calls.
    pub fn keyspaces(&mut self) -> Result<Vec<KeyspaceInfo>> {
        self.runtime.block_on(self.client.keyspaces())
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// As all calls.
    pub fn begin(&mut self, options: BeginOptions) -> Result<Transaction> {
        let txn = self.runtime.block_on(self.client.begin(options))?;
        Ok(Transaction { keys: self.map(|client| client.in_txn(txn)), root: None, is_open: true })
    }

    /// Runs `work` in a transaction and commits it; on a conflict again, at most `retries` times. What fails
    /// in a transaction that has met another one, an operation on its files for instance, met a conflict.
    ///
    /// # Errors
    /// Those of `work`: nothing happened. The last conflict.
    pub fn run<T>(&mut self, retries: u32, mut work: impl FnMut(&mut Transaction) -> Result<T>) -> Result<T> {
        let mut left = retries;
        loop {
            let mut txn = self.begin(BeginOptions { tied: true, ..BeginOptions::default() })?;
            let worked = work(&mut txn).map_err(|error| txn.drop_after(error));
            match worked.and_then(|done| txn.commit().map(|()| done)) {
                Err(ClientError::Conflict(_)) if left > 0 => left -= 1,
                done => return done,
            }
        }
    }
}

impl Transaction {
    /// Its number, for `kvfs txn join` and `KVFS_TXN`.
    pub fn id(&self) -> u64 {
        self.keys.client.txn()
    }

    /// Where the file `path` (from the root of the store) is seen in the transaction.
    ///
    /// # Errors
    /// As all calls.
    pub fn path(&mut self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let root = match self.root.take() {
            Some(root) => root,
            None => self.keys.runtime.block_on(self.keys.client.view())?,
        };
        let inside = path.as_ref().strip_prefix("/").unwrap_or(path.as_ref());
        let found = root.join(inside);
        self.root = Some(root);
        Ok(found)
    }

    /// Locks something until the transaction ends; waits for others.
    ///
    /// # Errors
    /// As [`Client::lock`].
    pub fn lock(&mut self, what: LockOn<'_>, is_exclusive: bool) -> Result<()> {
        self.keys.runtime.block_on(self.keys.client.lock(what, is_exclusive))
    }

    /// Makes everything visible, durably. Close its files first.
    ///
    /// # Errors
    /// [`ClientError::Conflict`]: nothing of it happened.
    pub fn commit(&mut self) -> Result<()> {
        let done = self.keys.runtime.block_on(self.keys.client.commit());
        self.is_open = matches!(&done, Err(error) if !matches!(error, ClientError::Conflict(_)));
        done
    }

    /// Drops it.
    ///
    /// # Errors
    /// As all calls.
    pub fn abort(&mut self) -> Result<()> {
        self.is_open = false;
        self.keys.runtime.block_on(self.keys.client.abort()).map(drop)
    }

    /// Drops it because of `error`, which is a conflict if the transaction could not have been committed.
    fn drop_after(&mut self, error: ClientError) -> ClientError {
        if matches!(error, ClientError::Conflict(_)) || !std::mem::take(&mut self.is_open) {
            return error;
        }
        match self.keys.runtime.block_on(self.keys.client.abort()) {
            Ok(Some(message)) => {
                ClientError::Conflict(Box::new(Conflict { message, txn: self.id(), ..Conflict::default() }))
            }
            _ => error,
        }
    }
}

impl std::ops::Deref for Transaction {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.keys
    }
}

impl std::ops::DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut Store {
        &mut self.keys
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.is_open {
            // It may have ended by itself.
            let _ = self.abort();
        }
    }
}

/// A scan under way.
#[derive(Debug)]
pub struct Scan {
    runtime: Rc<Runtime>,
    /// `None`: it has failed.
    scan: Option<super::Scan>,
}

impl Iterator for Scan {
    type Item = Result<KeyValue>;

    fn next(&mut self) -> Option<Self::Item> {
        let scan = self.scan.as_mut()?;
        let next = self.runtime.block_on(scan.next());
        if next.is_err() {
            self.scan = None;
        }
        next.transpose()
    }
}
