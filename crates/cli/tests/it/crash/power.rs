//! The power fails under a mount: the engine works on a device that loses what was not flushed.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use kvfs_device::{CrashDevice, CrashMode, Device, MemoryDevice, PowerCut, Rng};
use kvfs_fs::{FileSystem, MkfsOptions, MountOptions as FsOptions};
use kvfs_fuse::bridge::{Bridge, BridgeConfig, init_config};
use kvfs_fuse::mount::{MountOptions, MountPoint, Unmount, mount};
use kvfs_fuse::transport::DeviceTransport;
use kvfs_fuse::{Session, SessionConfig};
use kvfs_kvdb::{CreateOptions, Db, Options};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;

use super::{Round, pause, seeds};
use crate::world::{PATIENCE, World, can_mount};

const CAPACITY_BYTES: u64 = 512 << 20;
const ROUNDS_OF_A_LIFE: u64 = 3;
/// Power fails at the latest after so many writes and flushes.
const EVENTS_MAX: u64 = 1500;

/// Claims to flush and does not.
struct Liar(Arc<CrashDevice>);

impl Device for Liar {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> std::io::Result<()> {
        self.0.write_at(buf, offset)
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn grow(&self, len: u64) -> std::io::Result<()> {
        self.0.grow(len)
    }
}

/// What is special about the life of a store.
#[derive(Debug, Clone, Copy)]
struct Life {
    /// Whether the programs sync.
    syncing: bool,
    /// Whether the device only claims to flush.
    lying: bool,
}

/// A store on a simulated disk.
pub(super) struct Machine {
    disk: Arc<MemoryDevice>,
    options: Options,
    workers: usize,
}

/// A machine with power: the store is open and mounted.
pub(super) struct Running {
    pub(super) crash: Arc<CrashDevice>,
    db: Arc<Db>,
    pub(super) fs: Arc<FileSystem>,
    pub(super) bridge: Arc<Bridge>,
    point: Arc<MountPoint>,
    pub(super) session: Session,
}

fn clock() -> Arc<SystemClock> {
    Arc::new(SystemClock::new())
}

impl Machine {
    /// An empty file system; its sizes follow from the seed, small enough that all the engine's background
    /// work happens all the time.
    pub(super) fn new(rng: &mut Rng) -> Self {
        let disk = Arc::new(MemoryDevice::growable(0, CAPACITY_BYTES));
        let mut create = CreateOptions::new(CAPACITY_BYTES, [7; 16]);
        create.zone_bytes = 1 << rng.range(19, 23);
        create.journal_bytes = Some(8 << rng.range(20, 22));
        Db::create(Arc::clone(&disk) as Arc<dyn Device>, &create).unwrap();
        let mut options = Options::with_memory(64 << 20);
        options.memtable_bytes = 1 << rng.range(16, 22);
        options.commit_interval = Duration::from_millis([5, 50, 1000][rng.index(3)]);
        options.merge.class_runs = rng.range(2, 5) as usize;
        options.merge.class_bytes_min = 128 << 10;
        options.merge.stitch_bytes_min = [0, 32 << 10, u64::MAX][rng.index(3)];
        options.bind_bytes_min = [8 << 10, 64 << 10, usize::MAX][rng.index(3)];
        let machine = Self { disk, options, workers: rng.range(1, 4) as usize };
        let db = machine.open(Arc::clone(&machine.disk) as Arc<dyn Device>).unwrap();
        let store: Arc<dyn Store> = Arc::clone(&db) as Arc<dyn Store>;
        let inline_len_max = [0, 100, 4096][rng.index(3)];
        FileSystem::mkfs(&store, &*clock(), &MkfsOptions { inline_len_max, ..MkfsOptions::default() })
            .unwrap();
        db.close().unwrap();
        machine
    }

    fn open(&self, device: Arc<dyn Device>) -> kvfs_store::Result<Arc<Db>> {
        Db::open(device, self.options.clone(), clock())
    }

    fn crash_device(&self) -> Arc<CrashDevice> {
        Arc::new(CrashDevice::over(Arc::clone(&self.disk) as Arc<dyn Device>))
    }

    /// The power fails while the store recovers.
    pub(super) fn fail_while_opening(&self, cut: PowerCut) {
        let crash = self.crash_device();
        crash.cut_power_at(cut);
        if let Ok(db) = self.open(Arc::clone(&crash) as Arc<dyn Device>) {
            // It may fail anywhere, or nowhere.
            drop(FileSystem::open(db as Arc<dyn Store>, clock(), FsOptions::default()));
        }
        crash.fail_power(cut.seed, cut.mode).unwrap();
    }

    /// Opens, checks everything, mounts.
    pub(super) fn start(&self, dir: &Path, lying: bool) -> Result<Running, String> {
        let crash = self.crash_device();
        let device: Arc<dyn Device> =
            if lying { Arc::new(Liar(Arc::clone(&crash))) } else { Arc::clone(&crash) as Arc<dyn Device> };
        let db = self.open(device).map_err(|error| format!("the store does not open: {error}"))?;
        let engine = db.check().map_err(|error| format!("the engine's check failed: {error}"))?;
        if !engine.findings.is_empty() {
            return Err(format!("the engine's check found {:#?}", engine.findings));
        }
        let store: Arc<dyn Store> = Arc::clone(&db) as Arc<dyn Store>;
        let files = kvfs_fs::check::check(&store).map_err(|error| format!("the check failed: {error}"))?;
        if !files.problems.is_empty() {
            return Err(format!("the check found {:#?}", files.problems));
        }
        let fs = FileSystem::open(store, clock(), FsOptions::default());
        let fs = Arc::new(fs.map_err(|error| format!("the file system does not open: {error}"))?);

        let (point, descriptor) = mount(dir, &MountOptions::default()).unwrap();
        let bridge = Arc::new(Bridge::new(Arc::clone(&fs), BridgeConfig::default()).unwrap());
        let config = SessionConfig { init: init_config(), workers: self.workers, ..SessionConfig::default() };
        let transport = Box::new(DeviceTransport::new(descriptor));
        let session = Session::start(transport, &config, Arc::clone(&bridge) as Arc<_>).unwrap();
        bridge.attach(session.notifier());
        Ok(Running { crash, db, fs, bridge, point: Arc::new(point), session })
    }
}

impl Running {
    /// Unmounts and ends everything. It must not hang, with power or without.
    pub(super) fn stop(self) {
        let Self { crash, db, fs, bridge, point, session } = self;
        let unmounted = Arc::clone(&point);
        let (done, ended) = mpsc::channel();
        let stopping = thread::spawn(move || {
            unmounted.unmount(Unmount::CleanOrLazy).unwrap();
            session.wait().unwrap();
            bridge.end();
            drop((bridge, fs));
            let closed = db.close();
            assert!(closed.is_ok() || !crash.is_powered(), "{closed:?}");
            drop(db);
            done.send(()).unwrap();
        });
        if ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            point.unmount(Unmount::Abort).unwrap();
            panic!("the mount did not end after the power had failed");
        }
        stopping.join().unwrap();
    }
}

/// One store from its making through several power cuts.
fn live(dir: &Path, seed: u64, life: Life) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let machine = Machine::new(&mut rng);
    let mut last: Option<Round> = None;
    for number in 0..=ROUNDS_OF_A_LIFE {
        let mut cut = |events: u64, from: usize| PowerCut {
            event_index: from + rng.below(events) as usize,
            seed: rng.next_u64(),
            mode: CrashMode::Any,
        };
        let (opening, working) = (cut(40, 0), cut(EVENTS_MAX, 0));
        if number > 0 && rng.chance(1, 3) {
            machine.fail_while_opening(opening);
        }
        let running = machine.start(dir, life.lying)?;
        let verified = last.as_ref().map_or(Ok(()), |round| round.verify(dir));
        if verified.is_err() || number == ROUNDS_OF_A_LIFE {
            running.stop();
            return verified.map_err(|why| format!("crash {number}: {why}"));
        }
        let crash = Arc::clone(&running.crash);
        let sudden = rng.chance(1, 4);
        let events = rng.below(working.event_index as u64 + 1) as usize;
        let mut round = Round::work(dir, number, life.syncing, rng.fork(), |progress| {
            let from = crash.events_len();
            if sudden {
                // Between two events, in the middle of a flush perhaps.
                while crash.events_len() < from + events && progress().is_some() {
                    pause();
                }
                crash.fail_power(working.seed, working.mode).unwrap();
            } else {
                crash.cut_power_at(PowerCut { event_index: from + working.event_index, ..working });
            }
        });
        crash.fail_power(working.seed, working.mode).unwrap();
        round.check_errors(true);
        round.close();
        running.stop();
        eprintln!("seed {seed} crash {number}: {}", round.summary());
        last = Some(round);
    }
    Ok(())
}

fn lives(test: &str, rounds_default: u64, syncing: bool) {
    if !can_mount(test) {
        return;
    }
    let world = World::new();
    for seed in seeds(rounds_default) {
        let dir = world.dir("mnt");
        if let Err(why) = live(Path::new(&dir), seed, Life { syncing, lying: false }) {
            panic!("KVFS_POWER_SEED={seed}: {why}");
        }
    }
}

#[test]
fn fsync_survives_a_power_cut_under_the_mount() {
    lives("fsync_survives_a_power_cut_under_the_mount", 4, true);
}

#[test]
fn what_remains_after_a_power_cut_under_the_mount_is_a_prefix() {
    lives("what_remains_after_a_power_cut_under_the_mount_is_a_prefix", 4, false);
}

#[test]
fn a_missing_flush_is_caught_under_the_mount() {
    if !can_mount("a_missing_flush_is_caught_under_the_mount") {
        return;
    }
    let world = World::new();
    let dir = world.dir("mnt");
    let caught =
        (1..10).any(|seed| live(Path::new(&dir), seed, Life { syncing: true, lying: true }).is_err());
    assert!(caught, "a device that never flushes kept every promise");
}
