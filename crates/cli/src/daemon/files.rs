//! The store for processes without a mount of it: the socket `files.sock` (docs/decisions/serving.md).
//!
//! Where the store is mounted as well, the kernel is told of what these processes change before they are answered.
//!
//! Thread safety: shared by the threads of the socket, which may wait for the kernel. Invariants: a process is in no transaction
//! but those of its user; no process is left when [`Files::stop`] returns.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock, Weak};

use kvfs_fs::{FileSystem, Invalidations};
use kvfs_fuse::bridge::Bridge;
use kvfs_open::Memory;
use kvfs_posix::{Observer, Process, View, WeakView};
use kvfs_serve::{LANE_BYTES_MAX, Server, Visitor, World};
use kvfs_service::{Caller, ServiceError, Transactions};
use kvfs_socket::BoundSocket;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::views::MountedViews;

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
    pub(super) main: Weak<Bridge>,
    pub(super) views: Arc<MountedViews>,
}

impl Files {
    /// Serves `fs` and the transactions of its users. `main`: the main line, made when the first process comes if it is not there.
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

    /// Ends all processes that have come. The transactions must have ended before, so that no call waits for them.
    pub(super) fn stop(self) {
        self.server.stop();
    }
}

struct Served {
    fs: Arc<FileSystem>,
    main: OnceLock<View>,
    transactions: Arc<Transactions>,
    /// Those that processes are in: all of a transaction share its locks.
    views: Mutex<BTreeMap<u64, WeakView>>,
    kernel: Option<KernelSides>,
}

impl World for Served {
    fn process(&self, visitor: &Visitor) -> Result<Process, Errno> {
        let view = match visitor.txn {
            0 => self.main(),
            txn => self.in_txn(visitor, txn)?,
        };
        Ok(view.process(&visitor.identity))
    }
}

impl Served {
    fn main(&self) -> View {
        let make = || View::of(Arc::clone(&self.fs), self.observer(0));
        self.main.get_or_init(make).clone()
    }

    fn in_txn(&self, visitor: &Visitor, txn: u64) -> Result<View, Errno> {
        let caller = Caller::of_mount(visitor.uid, visitor.pid);
        let fs = self.transactions.view_or_branch(&caller, txn).map_err(|error| errno(&error))?;
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
        Some(Arc::new(Told { kernel, txn }))
    }
}

fn errno(error: &ServiceError) -> Errno {
    match error {
        ServiceError::Unknown(_) => Errno::NOENT,
        ServiceError::Ended { .. } => Errno::STALE,
        ServiceError::NotYours { .. } => Errno::PERM,
        ServiceError::Busy { .. } => Errno::BUSY,
        _ => Errno::IO,
    }
}

/// Tells the kernel sides of the main line, or of a transaction.
struct Told {
    kernel: KernelSides,
    txn: u64,
}

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Told").field("txn", &self.txn).finish_non_exhaustive()
    }
}

impl Observer for Told {
    fn changed(&self, changes: Invalidations) {
        if self.txn == 0 {
            // Without a kernel side there is nothing old.
            if let Some(main) = self.kernel.main.upgrade() {
                main.forget_beside(changes);
            }
            return;
        }
        for view in self.kernel.views.of(self.txn) {
            view.forget_beside(changes.clone());
        }
    }
}
