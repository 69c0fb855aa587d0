//! Answers the commands' requests from an open store: in the daemon, and in a command that opened
//! the store itself.
//!
//! Thread safety: shared by all control connections; closing waits for the requests in progress.

pub(crate) mod branches;
mod defrag;
mod grow;
mod quota;
mod snapshots;
mod undo;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use kvfs_fs::repair::DamagedKeys;
use kvfs_fs::{DiffKind, Difference, Facts, FileType, Restored, TxnId};
use kvfs_kv::Access;
use kvfs_kvdb::Unreadable;
use kvfs_service::{Branches, Caller, Comparisons, ServedStore, Streams, Transactions};
use kvfs_store::{Compress, Compression, Durability, Store, StoreError, UnknownCompression};
use parking_lot::RwLock;

use crate::control::{
    ChangeLine, FactsLine, FindingLine, Handler, Peer, Request, Response, ZoneLines, authorize,
};
use crate::daemon::log::messages_lost;
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;
use crate::report::zones;
use defrag::DefragGate;

/// 1: the store was opened for reading only.
pub(crate) const READ_ONLY_STAT: &str = "store.read_only";

/// 1: it accepts no more writes, or nothing at all, until it is mounted again.
const FAILED_STAT: &str = "store.failed";

/// Where a store is mounted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mounted {
    pub(crate) dir: PathBuf,
    /// What its mounts show as their source.
    pub(crate) source: String,
}

/// The store behind the requests.
pub(crate) struct Service {
    /// `None`: closed.
    store: RwLock<Option<OpenStore>>,
    /// Where it is mounted; nowhere for a command that opened the store itself.
    mounted: Option<Mounted>,
    streams: Streams,
    comparisons: Comparisons,
    defrag: DefragGate,
    /// From when it is mounted.
    transactions: OnceLock<Arc<Transactions>>,
    branches: OnceLock<Arc<Branches>>,
}

impl Service {
    pub(crate) fn new(store: OpenStore, mounted: Option<Mounted>) -> Self {
        Self {
            store: RwLock::new(Some(store)),
            mounted,
            streams: Streams::default(),
            comparisons: Comparisons::default(),
            defrag: DefragGate::default(),
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

    /// As the operations of the service take it.
    fn served<'s>(&'s self, store: &'s OpenStore) -> ServedStore<'s> {
        ServedStore {
            fs: &store.fs,
            undo: store.undo,
            transactions: self.transactions.get().map(|transactions| &**transactions),
            branches: self.branches.get().map(|branches| &**branches),
        }
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

    /// The counters of now, as far as `caller` may know of them; none of a closed store.
    pub(crate) fn stats(&self, caller: &Caller) -> Vec<(String, u64)> {
        self.store.read().as_ref().map(|store| store.stats(caller)).unwrap_or_default()
    }

    /// Writes everything out and gives the device back. Does nothing the second time.
    pub(crate) fn close(&self) -> Result<()> {
        // It is waited for.
        self.defrag.shut();
        let store = self.store.write().take();
        self.streams.clear();
        self.comparisons.clear();
        store.map_or(Ok(()), OpenStore::close)
    }

    fn answer(&self, peer: &Peer, request: Request) -> Result<Response> {
        let caller = &peer.caller;
        authorize(caller, &request)?;
        // Not held while a transaction is served: closing waits for those itself.
        let request = match self.answer_transaction(peer, request)? {
            Ok(response) => return Ok(response),
            Err(request) => request,
        };
        if matches!(request, Request::Health) {
            // Without a wait for the one that closes it.
            let open = self.store.try_read();
            let health = open.as_ref().and_then(|store| store.as_ref()).map(OpenStore::health);
            return Ok(health.map_or(Response::Closing, Response::Health));
        }
        let guard = self.store.read();
        let Some(store) = guard.as_ref() else { return Ok(Response::Closing) };
        match request {
            Request::Hello { .. } => {
                let Mounted { dir, source } = self.mounted.clone().unwrap_or_default();
                Ok(Response::Serving { dir: dir.into_os_string().into_encoded_bytes(), source })
            }
            Request::Stats => Ok(Response::Stats(store.stats(caller))),
            Request::Check => store.check(),
            Request::Zones => Ok(Response::Zones(store.zones())),
            Request::Snapshot(request) => self.answer_snapshot(&self.served(store), caller, request),
            Request::Undo(request) => Self::answer_undo(&self.served(store), caller, request),
            Request::Quota(request) => Self::answer_quota(&self.served(store), caller, &request),
            Request::Branch(request) => Self::answer_branch(&self.served(store), caller, request),
            Request::Sync => self.sync(store),
            Request::Grow { bytes } => Self::answer_grow(&self.served(store), store, caller, bytes),
            Request::Defrag(request) => self.answer_defrag(store, peer, request),
            Request::Compression { keyspace, compression } => {
                store.compression(&keyspace, compression.as_deref()).map(Response::Compression)
            }
            Request::AwaitClosed => Err(CliError::new(Code::Failed, "only a daemon can be waited for")),
            _ => Err(CliError::new(Code::Failed, "this is no request for a store")),
        }
    }

    /// Answers what is about transactions as such; gives anything else back.
    fn answer_transaction(&self, peer: &Peer, request: Request) -> Result<Result<Response, Request>> {
        let caller = &peer.caller;
        let path = |path: PathBuf| path.into_os_string().into_encoded_bytes();
        let response = match request {
            Request::Begin(begin) => {
                let (id, view) = self.transactions()?.begin_mounted(caller, begin.into())?;
                Response::Begun { id, view: path(view) }
            }
            Request::Attach { id } => {
                let device = peer.receive_descriptor();
                let device = device.map_err(|error| CliError::new(Code::Failed, error.to_string()))?;
                self.transactions()?.attach(caller, id, device)?;
                Response::Done
            }
            Request::Mount { id } => {
                peer.give_descriptor(self.transactions()?.mount_detached(caller, id)?);
                Response::Done
            }
            Request::View { id } => {
                Response::Begun { id, view: path(self.transactions()?.path(caller, id)?) }
            }
            Request::Commit { id, durable } => {
                let durability = if durable { Durability::Synced } else { Durability::Buffered };
                let committed = self.transactions()?.commit(caller, id, durability, None)?;
                let (is_kept, keeps) = self.is_kept(id);
                // Dirty pages that came with the commit are not among the operations; where nothing is kept they may
                // be all that there was.
                Response::TxnCommitted { has_changes: committed.operations > 0 || is_kept || !keeps, is_kept }
            }
            Request::Abort { id } => Response::Aborted { doomed: self.transactions()?.abort(caller, id)? },
            Request::Transactions => Response::Transactions(self.transactions()?.list(caller)),
            Request::Diff { id, from, limit } => {
                page_of(&self.transactions()?.diff(caller, id)?, from, limit)
            }
            Request::Locks { after } => Response::Locks(self.transactions()?.locks(caller.uid, after)?),
            Request::Leave { abort_open, checkpoint_open } => self.leave(abort_open, checkpoint_open)?,
            request => return Ok(Err(request)),
        };
        Ok(Ok(response))
    }

    /// Whether a committed transaction can be taken back, and whether any can.
    fn is_kept(&self, id: u64) -> (bool, bool) {
        let guard = self.store.read();
        let Some(store) = guard.as_ref() else { return (false, false) };
        let store = self.served(store);
        (store.is_kept(TxnId(id)), store.undo.keeps_any())
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
        // What was durable before the failure still is, as far as the medium is there; it can't be vouched for.
        if let Some(reason) = store.db.failure() {
            return Err(StoreError::Failed { reason }.into());
        }
        let raw = |dir: PathBuf| dir.into_os_string().into_encoded_bytes();
        Ok(Response::Synced { branches: branches.into_iter().map(raw).collect() })
    }

    fn leave(&self, abort_open: bool, checkpoint_open: bool) -> Result<Response> {
        let Ok(transactions) = self.transactions() else { return Ok(Response::Done) };
        if checkpoint_open {
            return Ok(Response::Kept(transactions.keep_all()?));
        }
        if abort_open {
            transactions.abort_all("the store is being unmounted with --abort-open");
        } else {
            transactions.check_none_open("--abort-open or --checkpoint-open")?;
        }
        Ok(Response::Done)
    }
}

/// A page of a comparison fits a frame.
const PAGE_BYTES_MAX: usize = 4 << 20;

/// What a line takes beside its texts, at most.
const LINE_BYTES: usize = 128;

fn facts_bytes(facts: &FactsLine) -> usize {
    match facts {
        FactsLine::File { target, .. } => target.as_ref().map_or(0, Vec::len),
        FactsLine::Key { value, .. } => value.len(),
    }
}

fn facts_line(facts: &Facts) -> FactsLine {
    match facts {
        Facts::File { mode, uid, gid, bytes, target } => FactsLine::File {
            mode: *mode,
            uid: *uid,
            gid: *gid,
            bytes: *bytes,
            target: target.as_ref().map(|target| target.to_vec()),
        },
        Facts::Key { value, bytes } => FactsLine::Key { value: value.to_vec(), bytes: *bytes },
    }
}

/// How much was brought back, and by which transaction.
fn restored(txn: TxnId, done: Restored) -> Response {
    let Restored { names, inodes, keys } = done;
    Response::Restored { txn: txn.0, names, inodes, keys }
}

/// One page of a comparison.
fn page_of(all: &[Difference], from: u64, limit: u64) -> Response {
    let mut bytes = 0;
    let mut fits = |line: &ChangeLine| {
        let is_first = bytes == 0;
        bytes += LINE_BYTES + line.place.len() + line.from.as_ref().map_or(0, Vec::len);
        bytes += [&line.before, &line.after].into_iter().flatten().map(facts_bytes).sum::<usize>();
        is_first || bytes <= PAGE_BYTES_MAX
    };
    let page = all.iter().skip(from as usize).take(limit as usize);
    let lines: Vec<ChangeLine> = page.map(change_line).take_while(|line| fits(line)).collect();
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
        before: difference.before.as_ref().map(facts_line),
        after: difference.after.as_ref().map(facts_line),
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

fn damaged_keys(unreadable: Unreadable) -> DamagedKeys {
    let Unreadable { keyspace, first, last, keys_max: gone_max, blocks } = unreadable;
    DamagedKeys { keyspace, first, last, gone_max, blocks, ..DamagedKeys::default() }
}

/// Whether a counter is one of these keyspaces.
fn is_of_keyspace(counter: &str, keyspaces: &[String]) -> bool {
    let Some((name, _)) = counter.strip_prefix("keyspace.").and_then(|rest| rest.rsplit_once('.')) else {
        return false;
    };
    keyspaces.iter().any(|keyspace| keyspace == name)
}

impl OpenStore {
    /// Names of keyspaces are told to those that may read them, as the socket for keys does; the file system's own to all.
    fn stats(&self, caller: &Caller) -> Vec<(String, u64)> {
        let mut stats = self.db.stats();
        let hidden = self.keyspaces_hidden_from(caller);
        stats.retain(|(name, _)| !is_of_keyspace(name, &hidden));
        let (nodes, locks) = (self.fs.nodes().stats(), self.fs.admission().stats());
        for (name, value) in [
            (READ_ONLY_STAT, u64::from(self.read_only())),
            (FAILED_STAT, u64::from(self.health().failure.is_some())),
            ("device.failures", self.watched.failed()),
            ("fs.nodes", nodes.nodes),
            ("fs.nodes_bytes", nodes.bytes),
            ("fs.nodes_content_bytes", nodes.content_bytes),
            ("fs.orphans_queued", nodes.orphans_queued),
            ("locks.owners", locks.owners),
            ("locks.bytes", locks.bytes),
            ("txn.dooms", locks.dooms),
            ("log.messages_lost", messages_lost()),
        ] {
            stats.push((name.to_owned(), value));
        }
        stats.sort();
        stats
    }

    /// The users' keyspaces that `caller` may not read.
    fn keyspaces_hidden_from(&self, caller: &Caller) -> Vec<String> {
        if caller.uid == 0 || caller.uid == self.owner {
            return Vec::new();
        }
        // Where they can't be read nothing is told of them.
        let known = self.fs.keys().keyspaces().unwrap_or_default();
        known
            .into_iter()
            .filter(|(_, entry)| !caller.may_use_keys(&entry.owner, Access::Read))
            .map(|(name, _)| name)
            .collect()
    }

    /// How a keyspace is stored, after it was changed if there is something to change.
    fn compression(&self, keyspace: &str, compression: Option<&str>) -> Result<String> {
        let entry = self.fs.keys().keyspace(keyspace)?;
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
        let mut findings: Vec<FindingLine> = engine.findings.into_iter().map(FindingLine::from).collect();
        let mut counts = engine.counts;
        let store: Arc<dyn Store> = Arc::clone(&self.db) as Arc<dyn Store>;
        let damaged: Vec<DamagedKeys> = engine.unreadable.into_iter().map(damaged_keys).collect();
        let files = match kvfs_fs::check::check_around(&store, &damaged) {
            Ok(files) => files,
            // What the file system can't be read behind is a finding, too.
            Err(error) => {
                let detail = format!("it can't be read any further: {error}");
                findings.push(FindingLine { place: "file system".to_owned(), detail });
                return Ok(Response::Checked { findings, counts });
            }
        };
        findings.extend(
            files
                .problems
                .iter()
                .map(|problem| FindingLine { place: problem.place.clone(), detail: problem.detail.clone() }),
        );
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
        self.streams.forget(peer.caller.number);
        self.comparisons.forget(peer.caller.number);
        if let Ok(transactions) = self.transactions() {
            transactions.line_gone(peer.caller.number);
        }
    }
}
