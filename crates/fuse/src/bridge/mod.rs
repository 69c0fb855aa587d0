//! The file system of `kvfs-fs` behind the kernel's requests: a translation without policy of its own.
//!
//! A [`Bridge`] passes each request on by its node id (`ids`): to the `Files` of what is mounted, to those of
//! a snapshot that is shown below the hidden directory, or to that directory (`hidden`).
//!
//! Requests that meet another operation's names are parked (see [`crate::Reply::park`]) and tried again by a
//! thread of their own when their ticket is ready; an interrupt gives the ticket up. Syncs are waited for by
//! one thread, which makes groups of them. So a worker never waits for anything but the store's reads and
//! buffered writes.
//!
//! Thread safety: shared by all workers. Invariants: every lookup that the kernel did not take (a reply to
//! an aborted request) is forgotten at once, so lookup counts agree with the kernel's.

mod background;
mod blocking_pool;
mod cached;
mod commit;
mod control;
mod convert;
mod credentials;
mod errno;
mod files;
mod flags;
mod forget;
mod hidden;
mod ids;
mod old_content;
mod pending;
mod read_buffers;
mod route;
mod stale;
mod timeouts;
mod view;
mod view_calls;
mod writers;

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{AsFsError, Caller, FileSystem, FsError, NodeId, Position, untold_names};
use kvfs_locks::{Mutex, class};
use rustix::io::Errno;

use crate::abi::Opcode;
use crate::dispatch::{
    Attributes, Copied, Created, Data, Entry, ExtendedAttributes, Ioctl, Offset, Payload, Reply,
    RequestContext, Xattr,
};
use crate::notify::{Notification, Notifier};
use crate::session::{InitConfig, Readdirplus};
use crate::transport::Delivery;
use background::{Background, Tick};
use cached::Cached;
use commit::{Late, WriteOut};
use control::RootNames;
pub use control::{Answer, ControlCaller, ControlHandler};
use credentials::caller;
use files::Listing;
use forget::NamesGone;
pub use hidden::{Folder, HiddenDirectory, Item, Name, Prepare, SnapshotItem};
use hidden::{Hidden, Known};
use pending::{Pending, is_pending};
use read_buffers::ReadBuffers;
use timeouts::Attempt;
pub use view::{View, ViewError, ViewOptions};
use view_calls::Announced;
pub use view_calls::{ViewCall, ViewCallHandler};
use writers::{Place, Writers};

/// How the bridge answers.
#[derive(Clone)]
pub struct BridgeConfig {
    /// How long the kernel may use a name without asking. Long: whatever changes a name behind the kernel's
    /// back also notifies.
    pub entry_timeout: Duration,
    /// How long the kernel may use attributes without asking.
    pub attr_timeout: Duration,
    /// The same for directories.
    pub directory_attr_timeout: Duration,
    /// How long the kernel may remember that a name does not exist.
    pub negative_timeout: Duration,
    /// How often the file system does its background work.
    pub housekeep_period: Duration,
    /// Whether there are extended attributes. Without them the kernel doesn't ask for one before the first
    /// write to a file, which saves a message per file.
    pub xattrs: bool,
    /// Whether the kernel may ask for birth times. It keeps all attributes but that one, so each statx that
    /// wants it is a message; without it, it answers them all by itself.
    pub btimes: bool,
    /// Size of the recycled READ buffers (bytes); larger READs allocate.
    pub read_buffer_bytes: usize,
    /// What requests that wait may hold to be written (bytes), the views' among them. A user has half of it,
    /// root what the others leave. Dirty pages are not bounded: the kernel bounds them.
    pub waiting_bytes_max: usize,
    /// The kernel keeps dirty pages, and owns size and times of files: [`InitConfig::writeback_cache`].
    pub writeback: bool,
    /// A directory in the root that no listing shows.
    pub hidden: Option<HiddenDirectory>,
    /// The only user and group that the kernel side knows, in namespaces of an ordinary user.
    pub only_ids: Option<(u32, u32)>,
    /// What calls on the mount itself mean; without it they are refused.
    pub control: Option<Arc<dyn ControlHandler>>,
    /// What calls on a view mean, the main line's and any other; without it they are refused.
    pub view_calls: Option<Arc<dyn ViewCallHandler>>,
}

impl Default for BridgeConfig {
    fn default() -> Self {
        let day = Duration::from_hours(24);
        Self {
            entry_timeout: day,
            attr_timeout: day,
            directory_attr_timeout: day,
            negative_timeout: day,
            housekeep_period: Duration::from_secs(1),
            xattrs: true,
            btimes: true,
            read_buffer_bytes: 1 << 20,
            waiting_bytes_max: 64 << 20,
            writeback: false,
            hidden: None,
            only_ids: None,
            control: None,
            view_calls: None,
        }
    }
}

/// What to negotiate for a [`Bridge`] on the main line: write-through; files and directories open without a
/// message, so that what is open is known by lookup counts alone; locks stay in the kernel.
pub fn init_config() -> InitConfig {
    InitConfig {
        no_open: true,
        no_opendir: true,
        no_create: true,
        no_flush: true,
        // The kernel asks for lists and decides by them; the umask is not for where one is inherited.
        posix_acl: true,
        dont_mask: true,
        // Rows hold names and attributes together, so attributes cost nothing here; and the kernel's own
        // guess lists only the first part of a large directory with them.
        readdirplus: Readdirplus::Always,
        ..InitConfig::default()
    }
}

/// Entries answered between two looks at the size of the node table.
const PRUNE_PERIOD: u32 = 256;

/// [`crate::Operations`] over a [`FileSystem`], and what is hidden beside it.
pub struct Bridge {
    files: Files,
    hidden: Option<Arc<Hidden>>,
    /// Of a view: keeps its housekeeping.
    _tick: Option<Tick>,
}

/// The files of one view, at their place among the node ids.
#[derive(Clone)]
struct Files {
    shared: Arc<Shared>,
    background: Arc<Background>,
}

struct Shared {
    fs: Arc<FileSystem>,
    /// Added to inode numbers, as node ids and as what users see; see [`ids`].
    base: u64,
    /// Counts what the kernel knows of a view that ends when it knows nothing.
    known: Option<Arc<Known>>,
    config: BridgeConfig,
    buffers: Arc<ReadBuffers>,
    notifier: OnceLock<Notifier>,
    entries: AtomicU32,
    pruning: Arc<AtomicBool>,
    names_gone: NamesGone,
    announced: Announced,
    /// WRITEs that wait for a transaction.
    writers: Arc<Writers>,
    /// Files that may be in the page cache.
    cached: Arc<Cached>,
    /// Directories of which the kernel may know names, or a listing.
    names_cached: Cached,
    /// Commits of transactions take turns.
    commits: Mutex<(), class::FuseBridgeCommits>,
    root_names: RootNames,
    /// Why the kernel could not write out a dirty page of this view; reported nowhere else.
    lost_write: Mutex<Option<FsError>, class::FuseBridgeLostWrite>,
    write_out: WriteOut,
    late: Late,
}

/// An operation that can be tried again.
type Operation<T> = Box<dyn Fn(&Attempt<'_>, &Caller) -> Result<T, Failure> + Send>;

/// Why an operation failed: in the file system, or in how it was asked.
enum Failure {
    Fs(FsError),
    Plain(Errno),
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

impl Failure {
    fn lacks_space(&self) -> bool {
        self.as_fs_error().is_some_and(FsError::lacks_space)
    }

    fn errno(&self) -> Errno {
        match self {
            Self::Fs(error) => errno::errno(error),
            Self::Plain(errno) => *errno,
        }
    }
}

/// What else there is to know of a request.
#[derive(Clone, Copy, Default)]
struct Nature {
    /// The file whose pages it holds locked inside the kernel.
    writes: Option<u64>,
    /// The kernel itself asks, to get rid of a dirty page.
    is_writeback: bool,
    /// What it holds of the caller's memory while it waits.
    bytes_held: usize,
}

/// Answers that raise lookup counts.
trait Counted {
    /// The node whose count went up.
    fn node(&self) -> Option<u64> {
        None
    }

    /// Taken out: the nodes whose counts went up, where there may be many.
    fn take_listed(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// What the kernel must drop before it is answered.
    fn stale(&self) -> Option<Notification> {
        None
    }
}

/// What was changed, and what the kernel may have of before, though it asked for that itself.
struct Changed<T> {
    answer: T,
    stale: Option<Notification>,
}

impl<T: Payload> Payload for Changed<T> {
    fn with_parts<R>(&self, opcode: Opcode, send: impl FnOnce(&[IoSlice<'_>]) -> R) -> R {
        self.answer.with_parts(opcode, send)
    }
}

impl<T> Counted for Changed<T> {
    fn stale(&self) -> Option<Notification> {
        self.stale.clone()
    }
}

impl Counted for Listing {
    fn take_listed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.counted)
    }
}

impl Counted for Entry {
    fn node(&self) -> Option<u64> {
        (self.node != 0).then_some(self.node)
    }
}

impl Counted for Created {
    fn node(&self) -> Option<u64> {
        self.entry.node()
    }
}

impl Counted for () {}
impl Counted for Attributes {}
impl Counted for ExtendedAttributes {}
impl Counted for Data {}
impl Counted for Bytes {}
impl Counted for Copied {}
impl Counted for Offset {}
impl Counted for Xattr {}
impl Counted for Ioctl {}

impl Bridge {
    /// A bridge to `fs`, with its background threads.
    ///
    /// # Errors
    /// Threads can't be started.
    pub fn new(fs: Arc<FileSystem>, config: BridgeConfig) -> io::Result<Self> {
        let (buffers, period) = (ReadBuffers::new(config.read_buffer_bytes), config.housekeep_period);
        let waiting_bytes_max = config.waiting_bytes_max;
        let (shared, hidden, tick) = Self::parts(Arc::clone(&fs), config, buffers);
        let background = Arc::new(Background::start(fs, period, waiting_bytes_max, move || tick())?);
        Ok(Self { files: Files { shared, background }, hidden, _tick: None })
    }

    /// A bridge to a transaction's view, which shares what can be shared with the main line's, its background
    /// threads included.
    fn of_view(&self, fs: Arc<FileSystem>, config: BridgeConfig) -> Self {
        let buffers = Arc::clone(&self.files.shared.buffers);
        let (shared, hidden, tick) = Self::parts(fs, config, buffers);
        let background = Arc::clone(&self.files.background);
        background.admit(&tick);
        Self { files: Files { shared, background }, hidden, _tick: Some(tick) }
    }

    /// What every bridge has, with its housekeeping.
    fn parts(
        fs: Arc<FileSystem>,
        config: BridgeConfig,
        buffers: Arc<ReadBuffers>,
    ) -> (Arc<Shared>, Option<Arc<Hidden>>, Tick) {
        let hidden = config.hidden.clone().map(|hidden| Arc::new(Hidden::new(hidden)));
        let shared = Arc::new(Shared::new(fs, config, buffers));
        let (kept, swept) = (Arc::clone(&shared), hidden.clone());
        let tick: Tick = Arc::new(move || {
            kept.housekeep();
            if let Some(hidden) = &swept {
                hidden.views().sweep(&kept);
            }
        });
        (shared, hidden, tick)
    }

    /// Whether the kernel keeps dirty pages of ordinary writes: then no transaction may change files behind
    /// its back.
    pub fn is_writeback(&self) -> bool {
        self.files.shared.config.writeback
    }

    /// Gives the bridge the way to make the kernel forget; call it when the session has started.
    pub fn attach(&self, notifier: Notifier) {
        // A second session on the same bridge is a mistake of the caller; the first notifier stays.
        if let Some(untold) = untold_names(&self.files.shared.fs) {
            notifier.attach(untold);
        }
        let _ = self.files.shared.notifier.set(notifier);
    }

    /// Waits for what is under way beside the workers; nothing more is taken. The sessions of the main line
    /// and of all views must have ended: views share its threads, and what they do may wait for another view
    /// until that has ended.
    pub fn end(&self) {
        self.files.background.join();
    }

    /// Closes the views of snapshots that are deleted ([`SnapshotItem::is_kept`]): nothing refers to them any
    /// more when the requests that are under way are answered, and later ones are stale. Housekeeping does
    /// it, too.
    pub fn close_deleted_snapshots(&self) {
        if let Some(hidden) = &self.hidden {
            hidden.views().sweep(&self.files.shared);
        }
    }

    /// What the kernel knows of the hidden directory, views not counted.
    pub fn hidden_nodes(&self) -> usize {
        self.hidden.as_ref().map_or(0, |hidden| hidden.nodes_count())
    }

    /// Snapshots whose views the kernel knows something of.
    pub fn snapshots_open(&self) -> usize {
        self.hidden.as_ref().map_or(0, |hidden| hidden.views().len())
    }
}

impl Files {
    /// The files of a snapshot, numbered from `base` on, for the same kernel side.
    fn of_snapshot(&self, fs: Arc<FileSystem>, base: u64, known: Arc<Known>) -> Self {
        let on = &self.shared;
        let config = BridgeConfig { hidden: None, control: None, view_calls: None, ..on.config.clone() };
        let shared = Shared { base, known: Some(known), ..Shared::new(fs, config, Arc::clone(&on.buffers)) };
        if let Some(notifier) = on.notifier.get() {
            let _ = shared.notifier.set(notifier.clone());
        }
        Self { shared: Arc::new(shared), background: Arc::clone(&self.background) }
    }

    /// Runs `operation` now, or later if it must wait for another one, and answers.
    fn run<T: Payload + Counted + Send + 'static>(
        &self,
        cx: &RequestContext,
        reply: Reply<T>,
        operation: impl Fn(&Attempt<'_>, &Caller) -> Result<T, FsError> + Send + 'static,
    ) {
        self.run_as(Nature::default(), cx, reply, move |on, caller| Ok(operation(on, caller)?));
    }

    /// As [`Self::run`], of a request that there is more to know of.
    fn run_as<T: Payload + Counted + Send + 'static>(
        &self,
        nature: Nature,
        cx: &RequestContext,
        reply: Reply<T>,
        operation: impl Fn(&Attempt<'_>, &Caller) -> Result<T, Failure> + Send + 'static,
    ) {
        let caller = caller(cx);
        let outcome = self.shared.attempt(&operation, &caller);
        if !is_pending(&outcome) {
            return self.shared.answer(reply, outcome, nature);
        }
        match (outcome, self.background.waiting_bytes.take(caller.uid, nature.bytes_held)) {
            (Err(failure), None) => pending::refuse(reply, &failure),
            (outcome, None) => self.shared.answer(reply, outcome, nature),
            (outcome, Some(held)) => {
                let (shared, background) = (Arc::clone(&self.shared), Arc::clone(&self.background));
                let operation = Box::new(operation);
                Pending { shared, background, reply, caller, operation, nature, held }.go_on(outcome);
            }
        }
    }

    /// Answers when everything up to `target` is durable.
    fn sync(&self, target: Result<Position, FsError>, reply: Reply<()>) {
        let position = match target {
            Ok(position) => position,
            Err(error) => return reply.error(errno::errno(&error)),
        };
        let done = Box::new(move |outcome: Result<(), FsError>| {
            reply.result(outcome.map_err(|error| errno::errno(&error)));
        });
        if let Err((_, done)) = self.background.syncs.submit((position, done)) {
            done(self.shared.fs.sync(position));
        }
    }
}

impl Shared {
    fn new(fs: Arc<FileSystem>, config: BridgeConfig, buffers: Arc<ReadBuffers>) -> Self {
        Self {
            fs,
            base: 0,
            known: None,
            buffers,
            notifier: OnceLock::new(),
            entries: AtomicU32::new(0),
            pruning: Arc::default(),
            writers: Arc::default(),
            cached: Arc::default(),
            names_cached: Cached::default(),
            commits: Mutex::default(),
            root_names: RootNames::default(),
            lost_write: Mutex::default(),
            write_out: WriteOut::default(),
            late: Late::default(),
            names_gone: NamesGone::default(),
            announced: Announced::default(),
            config,
        }
    }

    /// Runs `operation`.
    fn attempt<T>(
        &self,
        operation: &dyn Fn(&Attempt<'_>, &Caller) -> Result<T, Failure>,
        caller: &Caller,
    ) -> Result<T, Failure> {
        let _held = kvfs_fs::hold_state(&self.fs);
        operation(&Attempt::begin(self), caller)
    }

    /// Runs `operation`; again while space that it lacks is made ([`FileSystem::with_space`]). May take
    /// seconds.
    fn attempt_with_space<T>(
        &self,
        operation: &dyn Fn(&Attempt<'_>, &Caller) -> Result<T, Failure>,
        caller: &Caller,
    ) -> Result<T, Failure> {
        let _held = kvfs_fs::hold_state(&self.fs);
        let with_space = || self.fs.with_space(caller, || operation(&Attempt::begin(self), caller));
        match with_space() {
            Err(failure) if failure.lacks_space() && self.has_forgotten_detached() => with_space(),
            attempted => attempted,
        }
    }

    fn answer<T: Payload + Counted + Send + 'static>(
        &self,
        reply: Reply<T>,
        outcome: Result<T, Failure>,
        nature: Nature,
    ) {
        match outcome {
            Ok(mut value) => {
                if let Some(stale) = value.stale() {
                    return self.answer_after(stale, reply, value);
                }
                let (node, listed) = (value.node(), value.take_listed());
                if let Some(known) = &self.known {
                    // Before the kernel can forget it again.
                    known.add(node.iter().chain(&listed).count() as u64);
                }
                let delivery = reply.ok(value);
                for node in node.into_iter().chain(listed) {
                    self.count_entry(delivery, node);
                }
            }
            Err(failure) => {
                reply.error(failure.errno());
                if let (Failure::Fs(error), true) = (failure, nature.is_writeback) {
                    self.lost_write.lock().get_or_insert(error);
                }
            }
        }
    }

    /// An entry was answered: undone if the kernel did not take it; now and then the table's size is looked
    /// at.
    fn count_entry(&self, delivery: Delivery, node: u64) {
        if delivery == Delivery::Gone {
            self.forget(ids::inode(node), 1);
        }
        if self.entries.fetch_add(1, Ordering::Relaxed).is_multiple_of(PRUNE_PERIOD) {
            self.prune();
        }
    }

    /// `inode` is known `count` times less: to the kernel, or by replies that it did not take.
    fn forget(&self, inode: u64, count: u64) {
        self.fs.forget(NodeId(inode), count);
        if let Some(known) = &self.known {
            known.take(count);
        }
    }

    fn housekeep(&self) {
        self.forget_late();
        let kept = self.fs.housekeep();
        self.forget_detached();
        self.names_gone.settle(&self.fs);
        match kept {
            Ok(()) => self.prune(),
            // A view may end at any time.
            Err(FsError::ViewEnded(_) | FsError::Canceled(_)) => {}
            Err(error) if error.is_repeated() => self.prune(),
            Err(error) => {
                tracing::error!(%error, "background work of the file system failed; it will be tried again");
                self.prune();
            }
        }
    }

    /// What must happen before the file system is gone.
    fn finish(&self) {
        if self.fs.txn().is_some() || kvfs_fs::is_read_only(&self.fs) {
            return;
        }
        self.housekeep();
        let synced = self.fs.sync_target_all().and_then(|position| self.fs.sync(position));
        if let Err(error) = synced {
            tracing::error!(%error, "the last sync failed");
        }
    }
}
