//! Answers the commands' requests from an open store: in the daemon, and in a command that opened
//! the store itself.
//!
//! Thread safety: shared by all control connections; closing waits for the requests in progress.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use kvfs_store::{Batch, Durability, KeyRange, Keyspace, KeyspaceKind, Read, Store, StoreError};
use parking_lot::RwLock;

use crate::control::{Entry, Handler, Request, Response, ScanRange};
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

/// Bytes of keys and values after which a page of a scan is cut.
const PAGE_BYTES_MAX: usize = 2 << 20;

/// The store behind the requests.
pub(crate) struct Service {
    /// `None`: closed.
    store: RwLock<Option<OpenStore>>,
    /// Where it is mounted; nowhere for a command that opened the store itself.
    dir: Option<PathBuf>,
}

impl Service {
    pub(crate) fn new(store: OpenStore, dir: Option<PathBuf>) -> Self {
        Self { store: RwLock::new(Some(store)), dir }
    }

    /// Writes everything out and gives the device back. Does nothing the second time.
    pub(crate) fn close(&self) -> Result<()> {
        let store = self.store.write().take();
        store.map_or(Ok(()), OpenStore::close)
    }

    fn answer(&self, request: Request) -> Result<Response> {
        let guard = self.store.read();
        let Some(store) = guard.as_ref() else { return Ok(Response::Closing) };
        match request {
            Request::Hello { .. } => {
                let dir = self.dir.as_ref().map(|dir| dir.as_os_str().as_bytes().to_vec());
                Ok(Response::Serving { dir: dir.unwrap_or_default() })
            }
            Request::Get { keyspace, key } => {
                let Some(keyspace) = store.find(&keyspace)? else { return Ok(Response::Value(None)) };
                Ok(Response::Value(store.db.get(keyspace, &key)?.map(Into::into)))
            }
            Request::Put { keyspace, key, value } => {
                refuse_internal(&keyspace)?;
                let keyspace = store.db.open_keyspace(&keyspace, KeyspaceKind::Tuple, None)?;
                let mut batch = Batch::new();
                batch.put(keyspace, key, value);
                store.db.apply(batch, Durability::Synced)?;
                Ok(Response::Done)
            }
            Request::Delete { keyspace, key } => {
                let Some(keyspace) = store.find(&keyspace)? else { return Ok(Response::Deleted(false)) };
                let existed = store.db.get(keyspace, &key)?.is_some();
                let mut batch = Batch::new();
                batch.delete(keyspace, key);
                store.db.apply(batch, Durability::Synced)?;
                Ok(Response::Deleted(existed))
            }
            Request::Scan { keyspace, range } => {
                let Some(keyspace) = store.find(&keyspace)? else {
                    return Ok(Response::Page { entries: Vec::new(), more: false });
                };
                store.scan(keyspace, &range)
            }
            Request::Keyspaces => {
                let names = store.db.keyspaces().into_iter().map(|info| info.name);
                Ok(Response::Keyspaces(names.filter(|name| !is_internal(name)).collect()))
            }
            Request::Stats => Ok(Response::Stats(store.stats())),
            Request::Check => store.check(),
            Request::AwaitClosed => Err(CliError::new(Code::Failed, "only a daemon can be waited for")),
        }
    }
}

impl OpenStore {
    fn find(&self, name: &str) -> Result<Option<Keyspace>> {
        refuse_internal(name)?;
        if !self.db.keyspaces().iter().any(|info| info.name == name) {
            return Ok(None);
        }
        Ok(Some(self.db.open_keyspace(name, KeyspaceKind::Tuple, None)?))
    }

    fn scan(&self, keyspace: Keyspace, range: &ScanRange) -> Result<Response> {
        let mut bounds = KeyRange::prefix(&range.prefix);
        if let Some(start) = range.start.as_ref().filter(|start| start[..] > bounds.start[..]) {
            bounds.start = start.clone().into();
        }
        if let Some(end) = &range.end
            && bounds.end.as_ref().is_none_or(|bound| end[..] < bound[..])
        {
            bounds.end = Some(end.clone().into());
        }
        if bounds.is_empty() {
            return Ok(Response::Page { entries: Vec::new(), more: false });
        }
        let mut cursor = self.db.cursor(keyspace, bounds)?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        loop {
            if range.reverse {
                cursor.prev()?;
            } else {
                cursor.next()?;
            }
            let Some((key, value)) = cursor.entry() else {
                return Ok(Response::Page { entries, more: false });
            };
            if entries.len() as u64 >= range.limit || bytes >= PAGE_BYTES_MAX {
                return Ok(Response::Page { entries, more: true });
            }
            bytes += key.len() + value.len();
            entries.push(Entry { key: key.to_vec(), value: value.to_vec() });
        }
    }

    fn stats(&self) -> Vec<(String, u64)> {
        let mut stats = self.db.stats();
        let nodes = self.fs.node_stats();
        for (name, value) in [
            ("fs.nodes", nodes.nodes),
            ("fs.nodes_bytes", nodes.bytes),
            ("fs.nodes_content_bytes", nodes.content_bytes),
            ("fs.orphans_queued", nodes.orphans_queued),
        ] {
            stats.push((name.to_owned(), value));
        }
        stats.sort();
        stats
    }

    /// The engine's own structures first, then what the file system made of them.
    fn check(&self) -> Result<Response> {
        let engine = self.db.check()?;
        let store: Arc<dyn Store> = Arc::clone(&self.db) as Arc<dyn Store>;
        let files = match kvfs_fs::check::check(&store) {
            Ok(files) => files,
            // Damage that the engine has found already keeps the file system from being read.
            Err(error) if !engine.findings.is_empty() => {
                let mut findings = engine.findings;
                findings.push(format!("the file system can't be read: {error}"));
                return Ok(Response::Checked { findings, counts: engine.counts });
            }
            Err(error) => return Err(CliError::new(Code::Damaged, error.to_string())),
        };
        let mut findings = engine.findings;
        findings.extend(files.problems.iter().map(ToString::to_string));
        let mut counts = engine.counts;
        for (name, count) in [
            ("directories", files.directories),
            ("files", files.files),
            ("names", files.entries),
            ("orphans", files.orphans),
            ("extended attributes", files.xattrs),
        ] {
            counts.push((name.to_owned(), count));
        }
        Ok(Response::Checked { findings, counts })
    }
}

impl Handler for Service {
    fn handle(&self, request: Request) -> Response {
        self.answer(request)
            .unwrap_or_else(|error| Response::Failed { code: error.code as u8, message: error.message })
    }
}

/// Keyspaces of the file system itself: changing them by hand would break files.
fn is_internal(name: &str) -> bool {
    kvfs_fs::KEYSPACES.contains(&name)
}

fn refuse_internal(name: &str) -> Result<()> {
    if is_internal(name) {
        return Err(CliError::new(
            Code::Usage,
            format!("keyspace \"{name}\" belongs to the file system; choose another name"),
        ));
    }
    if name.is_empty() {
        return Err(StoreError::NoKeyspace(String::new()).into());
    }
    Ok(())
}
