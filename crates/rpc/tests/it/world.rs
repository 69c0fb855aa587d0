//! A server on a model store, with the plainest registry of transactions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use kvfs_fs::{BeginOptions, Durability, FileSystem, Isolation, MkfsOptions, MountOptions, Owner, Position};
use kvfs_rpc::client::blocking::Store;
use kvfs_rpc::server::{Begin, BoundSocket, Limits, Options, Peer, Server, Transactions, TxnError, TxnLine};
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Its view, the connection that it is tied to, and how it was begun.
type Open = (Arc<FileSystem>, Option<u64>, Begin);

#[derive(Default)]
struct Registry {
    main: Mutex<Option<Arc<FileSystem>>>,
    open: Mutex<BTreeMap<u64, Open>>,
    /// Those whose pages wait, and whether their commit was begun.
    waiting: Mutex<BTreeMap<u64, bool>>,
    goes_on: Condvar,
}

impl Transactions for Registry {
    fn begin(&self, peer: &Peer, begin: Begin) -> Result<u64, TxnError> {
        let main = self.main.lock().unwrap().clone().ok_or(TxnError::Closing)?;
        let options = BeginOptions {
            isolation: if begin.serializable { Isolation::Serializable } else { Isolation::Snapshot },
            priority: begin.nice,
            timeout: begin.timeout,
            idle_max: begin.idle_max,
            owner: Owner { uid: peer.uid, pid: peer.pid, name: begin.label.clone() },
            ..BeginOptions::default()
        };
        let view = main.begin(&options).map_err(|error| TxnError::of(&main, &error))?;
        let id = view.txn().unwrap().id().0;
        let line = begin.tied.then_some(peer.connection);
        self.open.lock().unwrap().insert(id, (view, line, begin));
        Ok(id)
    }

    fn view(&self, _: &Peer, txn: u64) -> Result<Arc<FileSystem>, TxnError> {
        let open = self.open.lock().unwrap();
        open.get(&txn).map(|(view, ..)| Arc::clone(view)).ok_or(TxnError::Unknown(txn))
    }

    fn path(&self, peer: &Peer, txn: u64) -> Result<PathBuf, TxnError> {
        self.view(peer, txn)?;
        Ok(format!("/views/{txn}").into())
    }

    fn commit(&self, _: &Peer, txn: u64) -> Result<Position, TxnError> {
        let mut waiting = self.waiting.lock().unwrap();
        while let Some(is_begun) = waiting.get_mut(&txn) {
            *is_begun = true;
            waiting = self.goes_on.wait(waiting).unwrap();
        }
        drop(waiting);
        let (view, ..) = self.open.lock().unwrap().remove(&txn).ok_or(TxnError::Unknown(txn))?;
        let commit = || view.expect_txn()?.freeze()?.plan()?.commit(|| ())?.harden(Durability::Buffered);
        commit().map_err(|error| TxnError::of(&view, &error))
    }

    fn commit_without_wait(&self, peer: &Peer, txn: u64) -> Result<Option<Position>, TxnError> {
        let waits = self.waiting.lock().unwrap().contains_key(&txn);
        if waits { Ok(None) } else { self.commit(peer, txn).map(Some) }
    }

    fn abort(&self, _: &Peer, txn: u64) -> Result<Option<String>, TxnError> {
        let (view, ..) = self.open.lock().unwrap().remove(&txn).ok_or(TxnError::Unknown(txn))?;
        let doomed = view.txn().unwrap().doom().map(|doom| view.lock_words().explain(&doom));
        view.txn().unwrap().abort();
        Ok(doomed)
    }

    fn list(&self, peer: &Peer) -> Vec<TxnLine> {
        let open = self.open.lock().unwrap();
        let line = |(&txn, (_, _, begin)): (&u64, &Open)| TxnLine {
            txn,
            serializable: begin.serializable,
            uid: peer.uid,
            pid: peer.pid,
            label: begin.label.clone(),
            age: Duration::ZERO,
            state: "open".to_owned(),
        };
        open.iter().map(line).collect()
    }

    fn gone(&self, connection: u64) {
        self.open.lock().unwrap().retain(|_, (view, line, _)| {
            let stays = *line != Some(connection);
            if !stays {
                view.txn().unwrap().abort();
            }
            stays
        });
    }
}

/// See the module. Ends on drop.
pub(crate) struct World {
    root: PathBuf,
    pub(crate) fs: Arc<FileSystem>,
    registry: Arc<Registry>,
    server: Option<Server>,
}

/// The user of this process.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(Limits::default())
    }

    pub(crate) fn with(limits: Limits) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("kvfs-rpc-it-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let store: Arc<dyn kvfs_store::Store> = Arc::new(ModelStore::new());
        let clock = Arc::new(SystemClock::new());
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).unwrap();
        let fs = Arc::new(FileSystem::open(store, clock, MountOptions::default()).unwrap());
        let registry = Arc::new(Registry::default());
        *registry.main.lock().unwrap() = Some(Arc::clone(&fs));
        let mut world = Self { root, fs, registry, server: None };
        let options = Options { masters: vec![0, own_uid()], mount: "/mnt".into(), also: None, limits };
        let directory = Arc::new(std::fs::File::open(&world.root).unwrap().into());
        let socket = BoundSocket::bind(directory, "kv.sock", 0o666).unwrap();
        let transactions = Arc::clone(&world.registry) as Arc<_>;
        world.server = Some(Server::start(Arc::clone(&world.fs), transactions, socket, options).unwrap());
        world
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join("kv.sock")
    }

    pub(crate) fn connect(&self) -> Store {
        Store::connect_to(&self.socket()).unwrap()
    }

    pub(crate) fn open_transactions(&self) -> usize {
        self.registry.open.lock().unwrap().len()
    }

    /// From now on the pages of these transactions wait, of no others.
    pub(crate) fn let_wait(&self, txns: impl IntoIterator<Item = u64>) {
        *self.registry.waiting.lock().unwrap() = txns.into_iter().map(|txn| (txn, false)).collect();
        self.registry.goes_on.notify_all();
    }

    /// Of how many of those the commit was begun.
    pub(crate) fn begun_count(&self) -> usize {
        self.registry.waiting.lock().unwrap().values().filter(|is_begun| **is_begun).count()
    }

    pub(crate) fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop();
        std::fs::remove_dir_all(&self.root).unwrap();
    }
}
