//! A file system that this process works on: what a mount is to a kernel.
//!
//! Purpose: [`Volume`] keeps house while it lives, hands out processes, and begins transactions. The program
//! opens the store below it and closes it afterwards.
//!
//! Thread safety: everything is `&self`; cheap to clone.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::{
    BeginOptions, Caller, ContentObserver, Durability, FileSystem, FsError, Invalidations, NodeId, Telling,
    TxnId,
};
use kvfs_locks::{Condvar, Mutex, class};
use kvfs_service::Transactions;
use rustix::io::Errno;

use crate::error::{Result, refuse};
use crate::held::Held;
use crate::identity::Identity;
use crate::locks::LockTable;
use crate::process::Process;

/// How often locks that are waited for, and transactions that do nothing, are looked at while there are any.
const TICK: Duration = Duration::from_millis(100);

/// How often orphans are reaped and lazy access times looked at.
const TICKS_OF_HOUSEKEEPING: u32 = 10;

/// What all processes of a file system share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) locks: Arc<LockTable>,
    /// Held once, for every path that begins there.
    pub(crate) root: Arc<Held>,
    /// Processes that are there, and snapshots that are open.
    pub(crate) processes: AtomicUsize,
    next_process: AtomicU64,
    /// What a snapshot is one of.
    _of: Option<Use>,
    /// Who else shows the file system.
    observer: Option<Arc<dyn Observer>>,
}

/// Another front end of the same file system, with caches of its own. It is told of content at once, too, as
/// it changes.
pub trait Observer: ContentObserver {
    /// Processes have changed this; the call returns to them when this does. `telling`: the names among it,
    /// and those of a call that has failed, which are untold until this was ended.
    fn changed(&self, changes: Invalidations, telling: Option<Telling>);

    /// The open transactions of the store, by which a call is committed that is one of its own.
    fn transactions(&self) -> Option<&Transactions> {
        None
    }
}

/// A call that changes names. When it has ended the observer is told of those that it may have changed,
/// whatever has come of it.
pub(crate) struct NameCall<'s> {
    shared: &'s Shared,
    /// In whose name its operations are done.
    pub(crate) caller: Caller,
}

impl NameCall<'_> {
    /// The call has succeeded: the observer, if there is one, is told of attributes and names.
    pub(crate) fn tell(self, nodes: &[(NodeId, bool)], entries: &[(NodeId, &[u8])]) {
        let (Some(observer), Some(names)) = (&self.shared.observer, &self.caller.changed_names) else {
            return;
        };
        let entries = entries.iter().map(|(directory, name)| (*directory, Box::from(*name))).collect();
        let changes = Invalidations { nodes: nodes.to_vec(), entries, ..Invalidations::default() };
        observer.changed(changes, names.take());
    }
}

impl Drop for NameCall<'_> {
    fn drop(&mut self) {
        let telling = self.caller.changed_names.as_ref().and_then(|names| names.take());
        if let (Some(observer), Some(_)) = (&self.shared.observer, &telling) {
            observer.changed(Invalidations::default(), telling);
        }
    }
}

/// A use of a volume that is none of its processes.
#[derive(Debug)]
struct Use(Arc<Shared>);

impl Use {
    fn of(shared: &Arc<Shared>) -> Self {
        shared.processes.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(shared))
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.processes.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    fn new(fs: Arc<FileSystem>) -> Arc<Self> {
        Self::with(fs, None, None)
    }

    fn with(fs: Arc<FileSystem>, of: Option<Use>, observer: Option<Arc<dyn Observer>>) -> Arc<Self> {
        let (processes, next_process) = (AtomicUsize::new(0), AtomicU64::new(1));
        // No kernel remembers them.
        fs.nodes().keep_names();
        let root = Held::root(&fs);
        Arc::new(Self { fs, locks: Arc::default(), root, processes, next_process, _of: of, observer })
    }

    /// Tells the observer, if there is one, of attributes that have changed, with the content where it says
    /// so.
    pub(crate) fn tell(&self, nodes: &[(NodeId, bool)]) {
        if self.observer.is_none() {
            return;
        }
        self.tell_all(Invalidations { nodes: nodes.to_vec(), ..Invalidations::default() });
    }

    /// Tells the observer, if there is one, of changes that have no names on the main line.
    pub(crate) fn tell_all(&self, changes: Invalidations) {
        if let Some(observer) = &self.observer {
            observer.changed(changes, None);
        }
    }

    /// Begins a call of `caller` that changes names.
    pub(crate) fn begin_names(&self, caller: &Caller) -> NameCall<'_> {
        let changed_names = self.observer.is_some().then(Arc::default);
        NameCall { shared: self, caller: Caller { changed_names, ..caller.clone() } }
    }

    /// For callers that change content.
    pub(crate) fn content_observer(&self) -> Option<Arc<dyn ContentObserver>> {
        self.observer.clone().map(|observer| observer as Arc<dyn ContentObserver>)
    }

    /// Those of a store that is served by others as well.
    pub(crate) fn transactions(&self) -> Option<&Transactions> {
        self.observer.as_ref()?.transactions()
    }

    /// A number that no other process has.
    pub(crate) fn number_of_process(&self) -> u64 {
        self.next_process.fetch_add(1, Ordering::Relaxed)
    }
}

/// What the thread that keeps house is told.
#[derive(Debug, Default)]
struct Orders {
    is_over: bool,
    /// Open ones: their times are looked at.
    transactions: usize,
}

/// A thread that keeps house until it is told to end.
#[derive(Debug)]
struct Keeper {
    orders: Arc<(Mutex<Orders, class::PosixVolumeOrders>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>, class::PosixVolumeThread>,
}

impl Keeper {
    fn start(fs: Weak<FileSystem>) -> std::io::Result<Self> {
        let orders = Arc::default();
        let told = Arc::clone(&orders);
        let thread = std::thread::Builder::new()
            .name("kvfs-housekeep".to_owned())
            .spawn(move || keep_house(&told, &fs))?;
        Ok(Self { orders, thread: Mutex::new(Some(thread)) })
    }

    fn order<T>(&self, change: impl FnOnce(&mut Orders) -> T) -> T {
        let changed = change(&mut self.orders.0.lock());
        self.orders.1.notify_all();
        changed
    }

    fn transactions(&self) -> usize {
        self.orders.0.lock().transactions
    }

    fn stop(&self) {
        self.order(|orders| orders.is_over = true);
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that keeps house panicked");
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Body of the thread.
fn keep_house(told: &(Mutex<Orders, class::PosixVolumeOrders>, Condvar), fs: &Weak<FileSystem>) {
    let mut ticks = 0;
    loop {
        {
            let mut orders = told.0.lock();
            if orders.is_over {
                return;
            }
            let wait = if orders.transactions > 0 { TICK } else { TICK * TICKS_OF_HOUSEKEEPING };
            ticks += if orders.transactions > 0 { 1 } else { TICKS_OF_HOUSEKEEPING };
            told.1.wait_for(&mut orders, wait);
        }
        let Some(fs) = fs.upgrade() else { return };
        fs.admission().tick();
        if ticks < TICKS_OF_HOUSEKEEPING {
            continue;
        }
        ticks = 0;
        match fs.housekeep() {
            Err(error) if !error.is_repeated() => {
                tracing::error!(%error, "background work of the file system failed; it will be tried again");
            }
            _ => {}
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Volume {
    shared: Arc<Shared>,
    keeper: Arc<Keeper>,
}

impl Volume {
    /// Of a file system that was opened.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn over(fs: Arc<FileSystem>) -> std::io::Result<Self> {
        let keeper = Arc::new(Keeper::start(Arc::downgrade(&fs))?);
        Ok(Self { shared: Shared::new(fs), keeper })
    }

    /// The same without its house: as long as it is used, this must be there.
    pub fn view(&self) -> View {
        View { shared: Arc::clone(&self.shared) }
    }

    /// The file system by nodes, for what POSIX has no calls for: users' keys, snapshots, quotas.
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.shared.fs
    }

    /// A process that acts for `identity`: working directory `/`, umask 022, no open files.
    pub fn process(&self, identity: &Identity) -> Process {
        Process::new(Arc::clone(&self.shared), identity)
    }

    /// Begins a transaction over files and keys.
    ///
    /// # Errors
    /// The file system is read-only; store errors.
    pub fn begin(&self, options: &BeginOptions) -> Result<Transaction> {
        let shared = Shared::new(self.shared.fs.begin(options)?);
        self.keeper.order(|orders| orders.transactions += 1);
        Ok(Transaction { shared, keeper: Arc::clone(&self.keeper) })
    }

    /// Opens a named snapshot to be read. What was a privilege then is none in it: set-id bits, devices,
    /// capabilities.
    ///
    /// # Errors
    /// ENOENT: there is none of that name; store errors.
    pub fn open_snapshot(&self, name: &str) -> Result<SnapshotView> {
        let fs = &self.shared.fs;
        let named = fs.snapshots().shown_to(0).into_iter().find(|info| info.name == name);
        let shown = kvfs_fs::show_snapshot(fs, &named.ok_or(FsError::NotFound)?)?;
        Ok(SnapshotView { shared: Shared::with(shown, Some(Use::of(&self.shared)), None) })
    }

    /// Everything done so far survives a power cut when this returns.
    ///
    /// # Errors
    /// I/O errors.
    pub fn sync(&self) -> Result<()> {
        let fs = &self.shared.fs;
        Ok(fs.sync(fs.sync_target_all()?)?)
    }

    /// Reaps what is left and syncs. The store may be closed then.
    ///
    /// # Errors
    /// EBUSY: processes, transactions or views of snapshots are there; I/O errors.
    pub fn unmount(&self) -> Result<()> {
        if self.shared.processes.load(Ordering::Acquire) > 0 || self.keeper.transactions() > 0 {
            return refuse(Errno::BUSY, "processes use the file system");
        }
        self.keeper.stop();
        self.shared.fs.nodes().forget_names();
        if kvfs_fs::is_read_only(&self.shared.fs) {
            return Ok(());
        }
        // What stays queued is found again at the next opening; whether all else is durable, `sync` tells.
        if let Err(error) = self.shared.fs.housekeep() {
            tracing::warn!(%error, "not everything was tidied up");
        }
        self.sync()
    }
}

/// A file system, or the view of a transaction, that another part of the program has begun, keeps house of
/// and ends: its processes, beside other front ends. Their locks exclude each other's.
#[derive(Debug, Clone)]
pub struct View {
    shared: Arc<Shared>,
}

impl View {
    /// The `observer` is told of each change.
    pub fn of(fs: Arc<FileSystem>, observer: Option<Arc<dyn Observer>>) -> Self {
        Self { shared: Shared::with(fs, None, observer) }
    }

    /// As [`Volume::process`]. When a transaction ends, calls of its processes fail with ESTALE.
    pub fn process(&self, identity: &Identity) -> Process {
        Process::new(Arc::clone(&self.shared), identity)
    }

    /// Whether it is a view of that file system.
    pub fn is_of(&self, fs: &Arc<FileSystem>) -> bool {
        Arc::ptr_eq(&self.shared.fs, fs)
    }

    /// Finds it as long as it, or one of its processes, is there.
    pub fn downgrade(&self) -> WeakView {
        WeakView(Arc::downgrade(&self.shared))
    }
}

/// See [`View::downgrade`].
#[derive(Debug, Clone)]
pub struct WeakView(Weak<Shared>);

impl WeakView {
    /// `None`: it is gone.
    pub fn upgrade(&self) -> Option<View> {
        self.0.upgrade().map(|shared| View { shared })
    }
}

/// A named snapshot that is open: its processes see what there was, and change nothing (EROFS).
#[derive(Debug, Clone)]
pub struct SnapshotView {
    shared: Arc<Shared>,
}

impl SnapshotView {
    /// As [`Volume::file_system`], as it was.
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.shared.fs
    }

    /// As [`Volume::process`], in the snapshot. Whether the user may see a private one is the program's to
    /// decide ([`Snapshots::shown_to`](kvfs_fs::Snapshots::shown_to)).
    pub fn process(&self, identity: &Identity) -> Process {
        Process::new(Arc::clone(&self.shared), identity)
    }
}

/// A transaction: its processes see what others had committed when it began, and their own changes; others
/// see these when it is committed. What waits longer than a second for one of its locks outside of
/// transactions cancels it.
#[derive(Debug)]
pub struct Transaction {
    shared: Arc<Shared>,
    keeper: Arc<Keeper>,
}

impl Transaction {
    /// As [`Volume::file_system`], in the transaction.
    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.shared.fs
    }

    /// As [`Volume::process`], in the transaction.
    pub fn process(&self, identity: &Identity) -> Process {
        Process::new(Arc::clone(&self.shared), identity)
    }

    /// Commits everything at once, durably. Processes of the transaction fail with ESTALE from then on.
    ///
    /// # Errors
    /// ECANCELED: others have changed what this transaction has changed or, if it is serializable, read;
    /// nothing was changed, and the transaction has ended. EIO: committed, but it may not survive a power
    /// cut. Others: the transaction was not committed, and has ended.
    pub fn commit(self) -> Result<TxnId> {
        let view = self.shared.fs.expect_txn()?;
        // No kernel has cached anything of the main line here.
        view.freeze()?.plan()?.commit(|| ())?.harden(Durability::Synced)?;
        Ok(view.id())
    }

    /// Nothing of it has happened. Dropping it does the same.
    pub fn abort(self) {
        drop(self);
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(view) = self.shared.fs.txn() {
            // Does nothing after a commit.
            view.abort();
        }
        self.keeper.order(|orders| orders.transactions -= 1);
    }
}
