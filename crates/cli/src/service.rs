//! Answers the commands' requests from an open store: in the daemon, and in a command that opened
//! the store itself.
//!
//! Thread safety: shared by all control connections; closing waits for the requests in progress.

mod branches;
mod quota;
mod send;
mod snapshots;
mod undo;

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use kvfs_fs::transfer::SendStream;
use kvfs_fs::{DiffKind, Difference, FileType};
use kvfs_store::{Compression, Durability, Store, UnknownCompression};
use parking_lot::{Mutex, RwLock};

use crate::control::{ChangeLine, Handler, Peer, Request, Response, ZoneLines};
use crate::daemon::{Branches, Transactions};
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;
use crate::report::zones;

/// The store behind the requests.
pub(crate) struct Service {
    /// `None`: closed.
    store: RwLock<Option<OpenStore>>,
    /// Where it is mounted; nowhere for a command that opened the store itself.
    dir: Option<PathBuf>,
    /// Streams under way, by the connection that asks for them.
    sends: Mutex<BTreeMap<u64, SendStream>>,
    /// From when it is mounted.
    transactions: OnceLock<Arc<Transactions>>,
    branches: OnceLock<Arc<Branches>>,
}

impl Service {
    pub(crate) fn new(store: OpenStore, dir: Option<PathBuf>) -> Self {
        Self {
            store: RwLock::new(Some(store)),
            dir,
            sends: Mutex::default(),
            transactions: OnceLock::new(),
            branches: OnceLock::new(),
        }
    }

    /// From now on transactions are served, too, and branches mounted.
    pub(crate) fn serve_transactions(&self, transactions: &Arc<Transactions>, branches: &Arc<Branches>) {
        // A store is mounted once.
        let _ = self.transactions.set(Arc::clone(transactions));
        let _ = self.branches.set(Arc::clone(branches));
    }

    fn transactions(&self) -> Result<&Transactions> {
        self.transactions.get().map(|transactions| &**transactions).ok_or_else(|| {
            CliError::new(Code::NotMounted, "transactions need a mounted store; run `kvfs mount` first")
        })
    }

    /// The transactions, while it is mounted.
    pub(crate) fn open_transactions(&self) -> Option<Arc<Transactions>> {
        self.transactions.get().cloned()
    }

    /// The counters of now; none of a closed store.
    pub(crate) fn stats(&self) -> Vec<(String, u64)> {
        self.store.read().as_ref().map(OpenStore::stats).unwrap_or_default()
    }

    /// Writes everything out and gives the device back. Does nothing the second time.
    pub(crate) fn close(&self) -> Result<()> {
        let store = self.store.write().take();
        self.sends.lock().clear();
        store.map_or(Ok(()), OpenStore::close)
    }

    fn answer(&self, peer: &Peer, request: Request) -> Result<Response> {
        // Not held while a transaction is served: closing waits for those itself.
        let request = match self.answer_transaction(peer, request)? {
            Ok(response) => return Ok(response),
            Err(request) => request,
        };
        let guard = self.store.read();
        let Some(store) = guard.as_ref() else { return Ok(Response::Closing) };
        match request {
            Request::Hello { .. } => {
                let dir = self.dir.as_ref().map(|dir| dir.as_os_str().as_bytes().to_vec());
                Ok(Response::Serving { dir: dir.unwrap_or_default() })
            }
            Request::Stats => Ok(Response::Stats(store.stats())),
            Request::Check => store.check(),
            Request::Zones => Ok(Response::Zones(store.zones())),
            Request::Snapshot(request) => self.answer_snapshot(store, peer, request),
            Request::Undo(request) => self.answer_undo(store, peer, request),
            Request::Quota(request) => Self::answer_quota(store, peer, &request),
            Request::Branch(request) => self.answer_branch(store, peer, request),
            Request::Sync => self.sync(store),
            Request::Compression { keyspace, compression } => {
                store.compression(&keyspace, compression.as_deref()).map(Response::Compression)
            }
            Request::AwaitClosed => Err(CliError::new(Code::Failed, "only a daemon can be waited for")),
            _ => Err(CliError::new(Code::Failed, "this is no request for a store")),
        }
    }

    /// Answers what is about transactions as such; gives anything else back.
    fn answer_transaction(&self, peer: &Peer, request: Request) -> Result<Result<Response, Request>> {
        let path = |path: PathBuf| path.into_os_string().into_encoded_bytes();
        let response = match request {
            Request::Begin(begin) => {
                let (id, view) = self.transactions()?.begin(peer, begin)?;
                Response::Begun { id, view: path(view) }
            }
            Request::Attach { id } => {
                let device = peer.receive_descriptor();
                let device = device.map_err(|error| CliError::new(Code::Failed, error.to_string()))?;
                self.transactions()?.attach(peer, id, device)?;
                Response::Done
            }
            Request::View { id } => Response::Begun { id, view: path(self.transactions()?.path(peer, id)?) },
            Request::Commit { id, durable } => {
                let durability = if durable { Durability::Synced } else { Durability::Buffered };
                self.transactions()?.commit(peer, id, durability)?;
                Response::Done
            }
            Request::Abort { id } => Response::Aborted { doomed: self.transactions()?.abort(peer, id)? },
            Request::Transactions => Response::Transactions(self.transactions()?.list(peer)),
            Request::Diff { id, from, limit } => {
                page_of(&self.transactions()?.view(peer, id)?.diff()?, from, limit)
            }
            Request::Locks { after } => Response::Locks(self.transactions()?.locks(peer.uid, after)?),
            Request::Leave { abort_open, checkpoint_open } => self.leave(abort_open, checkpoint_open)?,
            request => return Ok(Err(request)),
        };
        Ok(Ok(response))
    }

    /// Makes durable what was acknowledged.
    fn sync(&self, store: &OpenStore) -> Result<Response> {
        if let Ok(transactions) = self.transactions()
            && transactions.is_writeback()
        {
            transactions.flush_main_line()?;
        }
        let branches = self.branches.get().map_or_else(|| Ok(Vec::new()), |branches| branches.save_all())?;
        let position = store.fs.sync_target_all()?;
        store.fs.sync(position)?;
        let raw = |dir: PathBuf| dir.into_os_string().into_encoded_bytes();
        Ok(Response::Synced { branches: branches.into_iter().map(raw).collect() })
    }

    fn leave(&self, abort_open: bool, checkpoint_open: bool) -> Result<Response> {
        let Ok(transactions) = self.transactions() else { return Ok(Response::Done) };
        if checkpoint_open {
            return Ok(Response::Kept(transactions.keep_all()?));
        }
        let open = transactions.names();
        if open.is_empty() {
            return Ok(Response::Done);
        }
        if abort_open {
            transactions.abort_all("the store is being unmounted with --abort-open");
            return Ok(Response::Done);
        }
        let (what, are) = if open.len() == 1 { ("transaction", "is") } else { ("transactions", "are") };
        Err(CliError::new(
            Code::InUse,
            format!(
                "{what} {} {are} open; commit or abort first, or use --abort-open or --checkpoint-open",
                open.join(", ")
            ),
        ))
    }
}

/// One page of a comparison.
fn page_of(all: &[Difference], from: u64, limit: u64) -> Response {
    let page = all.iter().skip(from as usize).take(limit as usize);
    let lines: Vec<ChangeLine> = page.map(change_line).collect();
    let more = from + (lines.len() as u64) < all.len() as u64;
    Response::Diff { lines, more }
}

fn change_line(difference: &Difference) -> ChangeLine {
    ChangeLine {
        sign: match difference.kind {
            DiffKind::Added => '+',
            DiffKind::Removed => '-',
            DiffKind::Changed => '~',
            DiffKind::Renamed => '>',
        },
        kind: difference.file.map_or("key", file_kind).to_owned(),
        place: difference.place.clone(),
        from: difference.from.clone(),
        bytes: difference.bytes,
    }
}

fn file_kind(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::CharDevice | FileType::BlockDevice => "device",
    }
}

impl OpenStore {
    fn stats(&self) -> Vec<(String, u64)> {
        let mut stats = self.db.stats();
        let (nodes, locks) = (self.fs.node_stats(), self.fs.lock_stats());
        for (name, value) in [
            ("fs.nodes", nodes.nodes),
            ("fs.nodes_bytes", nodes.bytes),
            ("fs.nodes_content_bytes", nodes.content_bytes),
            ("fs.orphans_queued", nodes.orphans_queued),
            ("locks.owners", locks.owners),
            ("locks.bytes", locks.bytes),
            ("txn.dooms", locks.dooms),
        ] {
            stats.push((name.to_owned(), value));
        }
        stats.sort();
        stats
    }

    /// How a keyspace is stored, after it was changed if there is something to change.
    fn compression(&self, keyspace: &str, compression: Option<&str>) -> Result<String> {
        let entry = self.fs.keyspace(keyspace)?;
        let entry = entry
            .ok_or_else(|| CliError::new(Code::Failed, format!("there is no keyspace \"{keyspace}\"")))?;
        if let Some(words) = compression {
            let compression: Compression = words
                .parse()
                .map_err(|error: UnknownCompression| CliError::new(Code::Usage, error.to_string()))?;
            self.db.set_compression(entry.keyspace, compression)?;
        }
        Ok(self.db.compression(entry.keyspace).to_string())
    }

    fn zones(&self) -> ZoneLines {
        let map = self.db.zone_map();
        ZoneLines {
            zone_bytes: map.zone_bytes,
            codes: map.zones.iter().map(|zone| zones::code(zone, map.zone_bytes)).collect(),
            reserved: map.zones_reserved,
            figures: map.figures(),
        }
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
    fn handle(&self, peer: &Peer, request: Request) -> Response {
        self.answer(peer, request)
            .unwrap_or_else(|error| Response::Failed { code: error.code as u8, message: error.message })
    }

    fn gone(&self, peer: &Peer) {
        self.sends.lock().remove(&peer.number);
        if let Ok(transactions) = self.transactions() {
            transactions.gone(peer);
        }
    }
}
