//! A store in memory, without a kernel side, for tests.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use kvfs_fs::{
    Durability, FileSystem, FsError, KnownNode, MkfsOptions, MountOptions, NodeId, Position, settled,
};
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;
use kvfs_store::{Store, StoreError, progress};
use parking_lot::Mutex;

use crate::branches::Branches;
use crate::caller::{Caller, Connection};
use crate::defrag::DefragGate;
use crate::engine::{DefragOrder, DefragStep, Engine, EngineCheck, SpaceControl};
use crate::error::{ErrorKind, Result};
use crate::lines::{
    ChargeLines, DefragPlanLine, DefragmentedLine, DeviceLine, DrainLine, HealthLine, HeatLines,
    NewDeviceLine, PlacementLine, ZoneLines,
};
use crate::mounts::{MainLine, Mounts, ViewMount};
use crate::no_mounts::NoMounts;
use crate::operations::Operations;
use crate::served::ServedStore;
use crate::transactions::Transactions;
use crate::undo::UndoLimits;

/// An engine that does as the test says, and notes what it was asked for.
#[derive(Default)]
pub(crate) struct TestEngine {
    pub(crate) room: u64,
    pub(crate) is_block_device: bool,
    pub(crate) findings: Vec<String>,
    /// A check reads on until it is given up, and says here that it has begun.
    pub(crate) endless_check: Option<Arc<AtomicBool>>,
    pub(crate) failure: Option<String>,
    /// Pieces that a defragmentation has copied.
    pub(crate) pieces: AtomicU64,
    /// Called behind each piece.
    pub(crate) on_piece: Option<Box<dyn Fn() + Send + Sync>>,
    pub(crate) is_closed: Arc<AtomicBool>,
    /// Beside the first one.
    pub(crate) devices: Mutex<Vec<DeviceLine>>,
    pub(crate) policy: Mutex<String>,
    pub(crate) commit_interval: Mutex<Duration>,
    /// It divides no devices itself.
    pub(crate) has_no_space_control: bool,
}

/// Pieces of a whole defragmentation.
pub(crate) const PIECES: u64 = 4;

impl Engine for TestEngine {
    fn name(&self) -> &'static str {
        "test"
    }

    fn space_control(&self) -> Option<&dyn SpaceControl> {
        (!self.has_no_space_control).then_some(self as &dyn SpaceControl)
    }

    fn check(&self) -> Result<EngineCheck, StoreError> {
        while let Some(has_begun) = &self.endless_check {
            progress::check_wanted()?;
            has_begun.store(true, Ordering::Relaxed);
            std::thread::yield_now();
        }
        let counts = vec![("runs".to_owned(), 7)];
        Ok(EngineCheck { findings: self.findings.clone(), counts, damaged: Vec::new() })
    }

    fn health(&self) -> HealthLine {
        HealthLine { failure: self.failure.clone(), ..HealthLine::default() }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        vec![("device.failures".to_owned(), 0), ("keyspace.secret.bytes".to_owned(), 5)]
    }

    fn set_commit_interval(&self, interval: Duration) {
        *self.commit_interval.lock() = interval;
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        self.is_closed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl SpaceControl for TestEngine {
    fn room(&self) -> Result<u64> {
        Ok(self.room)
    }

    fn block_device(&self) -> Option<String> {
        self.is_block_device.then(|| "/dev/x".to_owned())
    }

    fn grow(&self, bytes: u64) -> Result<u64, StoreError> {
        Ok(bytes)
    }

    fn defrag_plan(&self, rewrite: bool) -> DefragPlanLine {
        DefragPlanLine { zones: if rewrite { 9 } else { 3 }, ..DefragPlanLine::default() }
    }

    fn defragment(
        &self,
        order: &DefragOrder,
        goes_on: &mut dyn FnMut(DefragStep) -> bool,
    ) -> Result<DefragmentedLine, StoreError> {
        let mut is_complete = true;
        for piece in 1..=PIECES {
            self.pieces.store(piece, Ordering::Relaxed);
            if let Some(on_piece) = &self.on_piece {
                on_piece();
            }
            is_complete = goes_on(DefragStep { bytes_done: piece, bytes: PIECES });
            if !is_complete {
                break;
            }
        }
        let bytes_moved = self.pieces.load(Ordering::Relaxed) + order.bytes_per_second;
        Ok(DefragmentedLine { bytes_moved, is_complete, ..DefragmentedLine::default() })
    }

    fn placement(&self) -> PlacementLine {
        PlacementLine { policy: self.policy.lock().clone(), ..PlacementLine::default() }
    }

    fn set_placement(&self, policy: &str, _: bool) -> Result<(), StoreError> {
        policy.clone_into(&mut self.policy.lock());
        Ok(())
    }

    fn devices(&self) -> Vec<DeviceLine> {
        self.devices.lock().clone()
    }

    fn limit_migration(&self, _: u64) {}

    fn heat(
        &self,
        cells_max: usize,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<HeatLines>, StoreError> {
        Ok(goes_on().then(|| HeatLines { hot_from: cells_max.ilog2() as u8, ..HeatLines::default() }))
    }

    fn add_device(&self, new: &NewDeviceLine) -> Result<u32> {
        let mut devices = self.devices.lock();
        let id = devices.len() as u32 + 1;
        devices.push(DeviceLine {
            id,
            path: Some(new.path.clone()),
            bytes_total: PIECES,
            bytes_live: PIECES,
            ..DeviceLine::default()
        });
        Ok(id)
    }

    fn begin_drain(&self, ids: &[u32]) -> Result<(), StoreError> {
        ids.iter().try_for_each(|&id| self.drain_device(id, &mut |_| false).map(drop))
    }

    fn drain_device(&self, id: u32, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<bool, StoreError> {
        let no_device = || io::Error::new(io::ErrorKind::InvalidInput, "the store has no such device");
        let mut devices = self.devices.lock();
        let device = devices.iter_mut().find(|device| device.id == id);
        let device = device.ok_or_else(|| StoreError::io("draining", no_device()))?;
        device.drain = Some(DrainLine::default());
        while device.bytes_live > 0 && goes_on(device.bytes_live) {
            device.bytes_live -= 1;
        }
        if device.bytes_live == 0 {
            device.bytes_free = device.bytes_total;
        }
        Ok(device.is_empty())
    }

    fn refill_device(&self, id: u32) -> Result<(), StoreError> {
        self.devices
            .lock()
            .iter_mut()
            .filter(|device| device.id == id)
            .for_each(|device| device.drain = None);
        Ok(())
    }

    fn remove_device(&self, id: u32) -> Result<(), StoreError> {
        self.devices.lock().retain(|device| device.id != id);
        Ok(())
    }

    fn zones(&self) -> ZoneLines {
        ZoneLines { zone_bytes: 8, ..ZoneLines::default() }
    }

    fn charges(&self) -> ChargeLines {
        ChargeLines::default()
    }
}

/// A connection that goes when the test says so, and counts how often it was told to stay.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) kept: AtomicUsize,
    pub(crate) is_gone: AtomicBool,
}

impl Line {
    /// This process, at its other end.
    pub(crate) fn caller(line: &Arc<Self>) -> Caller {
        Caller::on(Arc::clone(line) as Arc<dyn Connection>, 1, Caller::own().uid, 0)
    }
}

impl Connection for Line {
    fn gid(&self) -> Option<u32> {
        None
    }

    fn groups(&self) -> Vec<u32> {
        Vec::new()
    }

    fn keep(&self) -> io::Result<()> {
        self.kept.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn cut(&self) {}

    fn is_there(&self) -> bool {
        !self.is_gone.load(Ordering::Relaxed)
    }
}

/// From where, and what is called.
type OnUnmount = (PathBuf, fn(&FileSystem));

/// What a test has done to the mounts of branches, of which there is no kernel.
#[derive(Debug, Default)]
pub(crate) struct BranchMounts {
    /// Unmounted from outside.
    pub(crate) ended: Mutex<BTreeSet<PathBuf>>,
    /// Called once, with the view of the branch that is unmounted next from this directory.
    pub(crate) on_unmount: Mutex<Option<OnUnmount>>,
}

impl BranchMounts {
    pub(crate) fn mount(all: &Arc<Self>, dir: &Path, view: Arc<FileSystem>) -> Box<dyn ViewMount> {
        all.ended.lock().remove(dir);
        Box::new(TestView(Some((dir.to_owned(), view, Arc::clone(all)))))
    }
}

/// The kernel side of a view, without a kernel; that of a branch has a directory.
#[derive(Default)]
pub(crate) struct TestView(Option<(PathBuf, Arc<FileSystem>, Arc<BranchMounts>)>);

impl ViewMount for TestView {
    fn path(&self) -> PathBuf {
        self.0.as_ref().map_or_else(PathBuf::new, |(dir, ..)| dir.clone())
    }

    fn has_ended(&self) -> bool {
        self.0.as_ref().is_some_and(|(dir, _, mounts)| mounts.ended.lock().contains(dir))
    }

    fn commit(
        &self,
        view: &Arc<FileSystem>,
        durability: Durability,
        pages_max: Option<Duration>,
    ) -> Result<Position, FsError> {
        NoMounts::default().commit(view, durability, pages_max)
    }

    fn write_back(&self, _: Option<Duration>) -> Result<(), FsError> {
        Ok(())
    }

    fn close_deleted_snapshots(&self) {}

    fn unmount(&self) -> Result<()> {
        let Some((dir, view, mounts)) = &self.0 else { return Ok(()) };
        let called = mounts.on_unmount.lock().take_if(|(of, _)| of == dir);
        if let Some((_, call)) = called {
            call(view);
        }
        mounts.ended.lock().insert(dir.clone());
        Ok(())
    }

    fn detach(&self) -> Result<()> {
        Ok(())
    }

    fn forget(&self) {}

    fn end(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

/// A registry over an empty store; closed on drop.
pub(crate) struct World {
    pub(crate) model: Arc<ModelStore>,
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) branches: Arc<Branches>,
    pub(crate) branch_mounts: Arc<BranchMounts>,
    pub(crate) engine: TestEngine,
    pub(crate) operations: Arc<Operations>,
    pub(crate) defrag: DefragGate,
    pub(crate) checks: kvfs_locks::Mutex<(), kvfs_locks::class::ServiceServiceChecks>,
}

impl World {
    pub(crate) fn new(is_writeback: bool) -> Self {
        Self::owned_by(Caller::own().uid, is_writeback)
    }

    /// Where commits fail, by this.
    pub(crate) fn with_commit(instead: fn(&FileSystem) -> FsError) -> Self {
        Self::over(NoMounts::with_commit(instead), Caller::own().uid)
    }

    /// Of a store whose directory belongs to that user.
    pub(crate) fn owned_by(owner_uid: u32, is_writeback: bool) -> Self {
        Self::over(NoMounts::with_writeback(is_writeback), owner_uid)
    }

    /// With a branch "try" that has a file "late", made after its last checkpoint; it was unmounted from
    /// outside on a full store.
    pub(crate) fn with_branch_not_kept() -> Self {
        let world = Self::new(false);
        let (store, own) = (world.mounted(), Caller::own());
        store.create_branch(&own, "try", (b"/", None), false).expect("is made");
        store.mount_branch(&own, "try", Path::new("dir")).expect("is mounted");
        let id = world.fs.branches().get("try").expect("is there").id;
        make_file(&world.branches.view(id).expect("is mounted"), "late", 0);
        world.model.refuse_checkpoints(true);
        world.branch_mounts.ended.lock().insert("dir".into());
        world
    }

    fn over(mounts: NoMounts, owner_uid: u32) -> Self {
        let branch_mounts = Arc::new(BranchMounts::default());
        let mounts = mounts.with_branches(&branch_mounts);
        let model = Arc::new(ModelStore::new());
        model.keep_for_undo(10);
        let store: Arc<dyn Store> = Arc::clone(&model) as _;
        let clock = Arc::new(SystemClock::new());
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes a file system");
        let options = MountOptions { owner_uid, ..MountOptions::default() };
        let fs = Arc::new(FileSystem::open(store, clock, options).expect("opens"));
        let operations = Arc::new(Operations::default());
        operations.watch(&fs);
        let main = MainLine { fs: Arc::clone(&fs), mounts: Arc::new(mounts), views_max: 16 };
        let branches = Branches::new(main.clone()).expect("starts");
        let transactions = Transactions::new(main, &branches).expect("starts");
        Self {
            model,
            fs,
            transactions,
            branches,
            branch_mounts,
            engine: TestEngine::default(),
            operations,
            defrag: DefragGate::default(),
            checks: kvfs_locks::Mutex::default(),
        }
    }

    /// As a mounted store.
    pub(crate) fn mounted(&self) -> ServedStore<'_> {
        ServedStore {
            transactions: Some(&self.transactions),
            branches: Some(&self.branches),
            ..self.unmounted()
        }
    }

    /// As a store that the process which asks has opened.
    pub(crate) fn unmounted(&self) -> ServedStore<'_> {
        let undo = UndoLimits { count_max: 10, age_max: Duration::from_mins(1) };
        ServedStore {
            fs: &self.fs,
            engine: &self.engine,
            operations: &self.operations,
            defrag: &self.defrag,
            checks: &self.checks,
            undo,
            transactions: None,
            branches: None,
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.transactions.close();
        self.branches.close();
    }
}

/// A user that is neither root nor that of this process.
pub(crate) fn stranger() -> Caller {
    Caller::of_mount(rustix::process::geteuid().as_raw() + 1000, 1)
}

/// Makes a file of a user's in the root of a view.
pub(crate) fn make_file(view: &FileSystem, name: &str, uid: u32) {
    let made = settled(|caller| {
        let caller = kvfs_fs::Caller { uid, gid: uid, ..caller.clone() };
        view.create(&caller, NodeId::ROOT, name.as_bytes(), 0o644, true).map(|_| ())
    });
    made.expect("is made");
}

/// Whether there is such a file in the root of a view.
pub(crate) fn has_file(view: &FileSystem, name: &str) -> bool {
    settled(|caller| match KnownNode::root(view).lookup(caller, name.as_bytes()) {
        Ok(_) => Ok(true),
        Err(FsError::NotFound) => Ok(false),
        Err(error) => Err(error),
    })
    .expect("is looked up")
}

/// That it is refused to the caller, in these words.
#[track_caller]
pub(crate) fn assert_denied<T>(result: Result<T>, words: &str) {
    let error = result.err().expect("is refused");
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Denied, words.to_owned()));
}
