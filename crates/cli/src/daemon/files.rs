//! The store for processes without a mount of it: the socket `files.sock` (docs/decisions/serving.md).
//!
//! Where the store is mounted as well, the kernel is told of what these processes change before they are
//! answered.
//!
//! Thread safety: shared by the threads of the socket, which may wait for the kernel. Invariants: a process
//! is in no transaction but those of its user; no process is left when [`Files::stop`] returns.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock};

use kvfs_fs::operations::Recorder;
use kvfs_fs::{ContentObserver, Durability, FileSystem, Invalidations, NodeId, Telling};
use kvfs_locks::{Mutex, class};
use kvfs_open::Memory;
use kvfs_posix::{Observer, PosixError, Process, View, WeakView};
use kvfs_serve::{LANE_BYTES_MAX, Server, Visitor, World};
use kvfs_service::{Begin, Caller, ErrorKind, ServiceError, Transactions};
use kvfs_socket::BoundSocket;
use rustix::io::Errno;

use super::views::{KernelSide, MountedViews};

/// Of the ceiling, what lanes may take when all are filled: as much as the engine leaves at first.
const MEMORY_SHARE: u64 = 4;

/// Lanes that there may be in any case.
const LANES_MIN: u64 = 32;

/// The socket, and who has come by it.
pub(super) struct Files {
    server: Server,
    /// Its name goes with it.
    _socket: BoundSocket,
}

/// The kernel sides of a store that is mounted.
#[derive(Clone)]
pub(super) struct KernelSides {
    pub(super) main: KernelSide,
    pub(super) views: Arc<MountedViews>,
}

impl Files {
    /// Serves `fs` and the transactions of its users. `main`: the main line, made when the first process
    /// comes if it is not there.
    pub(super) fn start(
        socket: BoundSocket,
        also: Option<UnixListener>,
        fs: &Arc<FileSystem>,
        main: OnceLock<View>,
        transactions: &Arc<Transactions>,
        kernel: Option<KernelSides>,
        memory: Memory,
    ) -> io::Result<Self> {
        let (fs, transactions) = (Arc::clone(fs), Arc::clone(transactions));
        let served = Served { fs, main, transactions, views: Mutex::default(), kernel };
        let lanes_max = (memory.bytes() / MEMORY_SHARE / LANE_BYTES_MAX).max(LANES_MIN) as usize;
        let mut server = Server::start_with(socket.listener().try_clone()?, served, lanes_max)?;
        if let Some(also) = also {
            server.also_listen(also)?;
        }
        Ok(Self { server, _socket: socket })
    }

    /// Calls `told` when the last process has gone; none comes after it.
    pub(super) fn stop_when_unused(&self, told: impl Fn() + Send + Sync + 'static) {
        self.server.stop_when_unused(told);
    }

    /// Ends all processes that have come. The transactions must have ended before, so that no call waits for
    /// them.
    pub(super) fn stop(self) {
        self.server.stop();
    }
}

struct Served {
    fs: Arc<FileSystem>,
    main: OnceLock<View>,
    transactions: Arc<Transactions>,
    /// Those that processes are in: all of a transaction share its locks.
    views: Mutex<BTreeMap<u64, WeakView>, class::CliDaemonFilesViews>,
    kernel: Option<KernelSides>,
}

impl World for Served {
    fn recorder(&self) -> Option<Arc<dyn Recorder>> {
        kvfs_fs::operations::recorder(&self.fs).cloned()
    }

    fn process(&self, visitor: &Visitor) -> Result<Process, Errno> {
        let view = match visitor.txn {
            0 => self.main(),
            txn => self.in_txn(visitor, txn)?,
        };
        Ok(view.process(&visitor.identity))
    }

    fn begin(&self, visitor: &Visitor, is_serializable: bool, label: &str) -> kvfs_posix::Result<u64> {
        let begin = Begin {
            serializable: is_serializable,
            label: label.to_owned(),
            needs_files: true,
            ..Begin::default()
        };
        self.transactions.begin(&caller(visitor), begin).map_err(|error| explained(&error))
    }

    fn commit(&self, visitor: &Visitor, txn: u64) -> kvfs_posix::Result<()> {
        let committed = self.transactions.commit(&caller(visitor), txn, Durability::Synced, None);
        committed.map(drop).map_err(|error| explained(&error))
    }

    fn abort(&self, visitor: &Visitor, txn: u64) -> kvfs_posix::Result<()> {
        self.transactions.abort(&caller(visitor), txn).map(drop).map_err(|error| explained(&error))
    }
}

fn caller(visitor: &Visitor) -> Caller {
    Caller::of_mount(visitor.uid, visitor.pid)
}

fn explained(error: &ServiceError) -> PosixError {
    PosixError::Explained { errno: errno(error), message: error.to_string().into() }
}

impl Served {
    fn main(&self) -> View {
        let make = || View::of(Arc::clone(&self.fs), self.observer(0));
        self.main.get_or_init(make).clone()
    }

    fn in_txn(&self, visitor: &Visitor, txn: u64) -> Result<View, Errno> {
        let fs = self.transactions.view_or_branch(&caller(visitor), txn).map_err(|error| errno(&error))?;
        let mut views = self.views.lock();
        views.retain(|_, view| view.upgrade().is_some());
        // A branch that is mounted again has another view.
        if let Some(view) = views.get(&txn).and_then(WeakView::upgrade)
            && view.is_of(&fs)
        {
            return Ok(view);
        }
        let view = View::of(fs, self.observer(txn));
        views.insert(txn, view.downgrade());
        Ok(view)
    }

    fn observer(&self, txn: u64) -> Option<Arc<dyn Observer>> {
        let kernel = self.kernel.clone()?;
        Some(Arc::new(Told { kernel, transactions: Arc::clone(&self.transactions), txn }))
    }
}

fn errno(error: &ServiceError) -> Errno {
    match error {
        ServiceError::Unknown(_) => Errno::NOENT,
        ServiceError::Ended { .. } => Errno::STALE,
        ServiceError::NotYours { .. } => Errno::PERM,
        ServiceError::Busy { .. } | ServiceError::Refused { kind: ErrorKind::InUse, .. } => Errno::BUSY,
        ServiceError::NoFiles => Errno::OPNOTSUPP,
        ServiceError::NotCommitted { error, .. } | ServiceError::Fs(error) => {
            Errno::from_raw_os_error(error.errno())
        }
        ServiceError::Refused { kind: ErrorKind::Denied, .. } => Errno::ACCESS,
        ServiceError::Refused { kind: ErrorKind::NoSpace, .. } => Errno::NOSPC,
        _ => Errno::IO,
    }
}

/// Tells the kernel sides of the main line, or of a transaction.
struct Told {
    kernel: KernelSides,
    transactions: Arc<Transactions>,
    txn: u64,
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("txn", &self.txn).finish_non_exhaustive()
    }
}

impl ContentObserver for Told {
    fn content_changed(&self, node: NodeId, bytes: Range<u64>) {
        if self.txn == 0 {
            return self.kernel.main.content_changed(node, bytes);
        }
        for view in self.kernel.views.of(self.txn) {
            view.content_changed(node, bytes.clone());
        }
    }
}

impl Observer for Told {
    fn transactions(&self) -> Option<&Transactions> {
        Some(&self.transactions)
    }

    fn changed(&self, changes: Invalidations, telling: Option<Telling>) {
        if self.txn == 0 {
            // Without a kernel side there is nothing old.
            if let Some(main) = self.kernel.main.bridge() {
                main.forget_beside(changes, telling);
            }
            return;
        }
        for view in self.kernel.views.of(self.txn).iter().filter_map(KernelSide::bridge) {
            view.forget_beside(changes.held(), None);
        }
    }
}
