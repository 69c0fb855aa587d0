//! The power fails while transactions come and go under a mount: each is there wholly or not at all, in files
//! and keys, those that were acknowledged as durable are there, and all together are a prefix of what was
//! done.
//!
//! Each thread makes one transaction after the other, through a mount of its own for each view; one thread
//! works on the main line. What was done is noted with the moments of its begin and end: what is there needs
//! everything that had ended before it began.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use bytes::Bytes;
use kvfs_device::{CrashMode, PowerCut, Rng};
use kvfs_fs::{BeginOptions, Caller, FileSystem, FsError, Owner};
use kvfs_fuse::bridge::{View, ViewOptions};
use kvfs_fuse::mount::{MountOptions, Unmount, mount};
use kvfs_kv::KeyspaceOwner;
use kvfs_store::{Durability, Isolation, Keyspace};

use super::power::{Machine, Running};
use super::{pause, seeds};
use crate::world::{World, can_mount};

const ROUNDS_OF_A_LIFE: u64 = 3;
const THREADS: u64 = 3;
const TRANSACTIONS_MAX: u64 = 60;
/// Power fails at the latest after so many writes and flushes.
const EVENTS_MAX: u64 = 700;
const KEYSPACE: &str = "numbers";

type Failed = Box<dyn Error + Send + Sync>;

/// One thing that was tried: a transaction, or a file made on the main line.
struct Act {
    name: String,
    is_transaction: bool,
    begun: u64,
    /// `None`: the power failed first, so no outcome was told.
    ended: Option<u64>,
    fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It may be there or not.
    Unknown,
    /// Done, and as durable as the order of the history makes it.
    Done,
    /// Done and durable.
    Synced,
    /// Aborted, or refused: no trace of it may be left.
    Never,
}

/// What all threads share.
struct Scene<'w> {
    running: &'w Running,
    world: &'w World,
    dir: &'w Path,
    keyspace: Keyspace,
    moments: AtomicU64,
    round: u64,
}

impl Scene<'_> {
    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }

    /// Transactions until the power fails, or there were enough.
    fn transactions(&self, thread: u64, mut rng: Rng) -> Vec<Act> {
        let mut acts = Vec::new();
        for number in 0..TRANSACTIONS_MAX {
            let name = format!("{}-{thread}-{number}", self.round);
            let mut act =
                Act { name, is_transaction: true, begun: self.moment(), ended: None, fate: Fate::Unknown };
            let fate = self.transaction(&act.name, thread, &mut rng);
            act.ended = Some(self.moment());
            match fate {
                Ok(fate) => act.fate = fate,
                // Nothing that fails before its commit is ever there; with the power gone it is unknown
                // where it failed.
                Err(_) if !self.running.crash.is_powered() => act.ended = None,
                Err(error) => panic!("{}: {error}", act.name),
            }
            let is_over = act.ended.is_none();
            acts.push(act);
            if is_over {
                break;
            }
        }
        acts
    }

    fn transaction(&self, name: &str, thread: u64, rng: &mut Rng) -> Result<Fate, Failed> {
        let isolation = if rng.chance(1, 2) { Isolation::Snapshot } else { Isolation::Serializable };
        let options = BeginOptions {
            isolation,
            owner: Owner { uid: 0, pid: 1, name: name.into() },
            ..BeginOptions::default()
        };
        let view = self.running.fs.begin(&options)?;
        let at = self.world.dir(&format!("view{thread}"));
        let (point, device) = mount(Path::new(&at), &MountOptions::default())?;
        let options = ViewOptions { buffers: self.running.session.buffers(), steers: true, only_ids: None };
        let served = View::serve(&self.running.bridge, Arc::clone(&view), device, options)?;
        let done = self.work_and_commit(name, thread, rng, (&view, &served), Path::new(&at));
        if !matches!(done, Ok(Fate::Done | Fate::Synced)) {
            view.txn().unwrap().abort();
        }
        point.unmount(Unmount::Lazy)?;
        drop(served.end());
        match done {
            Err(error) if is_canceled(&*error) => Ok(Fate::Never),
            other => other,
        }
    }

    fn work_and_commit(
        &self,
        name: &str,
        thread: u64,
        rng: &mut Rng,
        (view, served): (&Arc<FileSystem>, &View),
        at: &Path,
    ) -> Result<Fate, Failed> {
        let dir = at.join(name);
        fs::create_dir(&dir)?;
        fs::write(dir.join("small"), name)?;
        let large = rng.range(1, 120) as usize * 1000;
        fs::write(dir.join("large.tmp"), vec![thread as u8; large])?;
        fs::rename(dir.join("large.tmp"), dir.join("large"))?;
        let mut log = OpenOptions::new().append(true).create(true).open(at.join(format!("log-{thread}")))?;
        writeln!(log, "{name}")?;
        drop(log);
        if rng.chance(1, 4) {
            // All transactions want it: one of two at the same time is refused.
            fs::write(at.join("shared"), name)?;
        }
        let value = Some(Bytes::copy_from_slice(name.as_bytes()));
        patiently(|caller| view.keys().set(caller, self.keyspace, name.as_bytes(), value.clone()))?;
        if rng.chance(1, 6) {
            return Ok(Fate::Never);
        }
        let (durability, fate) = match rng.below(3) {
            0 => (Durability::Buffered, Fate::Done),
            _ => (Durability::Synced, Fate::Synced),
        };
        self.running.bridge.commit(view, Some(served.bridge()), durability, None)?;
        Ok(fate)
    }

    /// Files made on the main line, every third made durable.
    fn main_line(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        for number in 0..TRANSACTIONS_MAX * 10 {
            let name = format!("main-{}-{number}", self.round);
            let begun = self.moment();
            let made = File::create_new(self.dir.join(&name));
            let ended = made.is_ok().then(|| self.moment());
            let synced = number % 3 == 0 && made.and_then(|file| file.sync_all()).is_ok();
            let fate = match ended {
                None => Fate::Unknown,
                Some(_) if synced => Fate::Synced,
                Some(_) => Fate::Done,
            };
            acts.push(Act { name, is_transaction: false, begun, ended, fate });
            if ended.is_none() {
                break;
            }
        }
        acts
    }

    /// Works until the power fails, or all is done.
    fn work(&self, rng: &mut Rng, cut: impl FnOnce(&dyn Fn() -> bool)) -> Vec<Act> {
        thread::scope(|scope| {
            let mut threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let rng = rng.fork();
                    scope.spawn(move || self.transactions(thread, rng))
                })
                .collect();
            threads.push(scope.spawn(|| self.main_line()));
            // As the daemon's clock does it: else a file made on the main line waits for ever for a lock.
            let is_busy = || {
                self.running.fs.admission().tick();
                threads.iter().any(|thread| !thread.is_finished())
            };
            cut(&is_busy);
            while is_busy() {
                pause();
            }
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        })
    }
}

fn is_canceled(error: &(dyn Error + 'static)) -> bool {
    const CANCELED: i32 = rustix::io::Errno::CANCELED.raw_os_error();
    match error.downcast_ref::<FsError>() {
        Some(error) => matches!(error, FsError::Canceled(_)),
        None => {
            error.downcast_ref::<std::io::Error>().is_some_and(|error| error.raw_os_error() == Some(CANCELED))
        }
    }
}

/// Calls again when it has waited for others.
fn patiently<T>(mut call: impl FnMut(&Caller) -> Result<T, FsError>) -> Result<T, FsError> {
    let mut caller = Caller::default();
    loop {
        match call(&caller) {
            Err(FsError::Parked(ticket)) => {
                ticket.wait();
                caller.ticket = Some(ticket);
            }
            other => return other,
        }
    }
}

/// Whether a thing is there; an error if a part of it is.
fn is_there(act: &Act, running: &Running, keyspace: Keyspace, dir: &Path) -> Result<bool, String> {
    if !act.is_transaction {
        return Ok(dir.join(&act.name).exists());
    }
    let own = dir.join(&act.name);
    let thread = act.name.split('-').nth(1).unwrap_or_default();
    let large = fs::read(own.join("large")).unwrap_or_default();
    let is_whole = large.len().is_multiple_of(1000) && large.iter().all(|byte| byte.to_string() == thread);
    let key = patiently(|caller| running.fs.keys().get(caller, keyspace, act.name.as_bytes()));
    let log = fs::read_to_string(dir.join(format!("log-{thread}"))).unwrap_or_default();
    let parts = [
        fs::read_to_string(own.join("small")).is_ok_and(|text| text == act.name),
        !large.is_empty() && is_whole && !own.join("large.tmp").exists(),
        key.map_err(|error| error.to_string())?.is_some_and(|value| value == act.name.as_bytes()),
        log.lines().filter(|line| *line == act.name).count() == 1,
    ];
    if parts.iter().any(|part| *part != own.exists()) {
        return Err(format!("{} is there in part: {parts:?}, directory {}", act.name, own.exists()));
    }
    Ok(own.exists())
}

fn verify(acts: &[Act], running: &Running, keyspace: Keyspace, dir: &Path) -> Result<(), String> {
    let mut newest_begin = 0;
    let mut gone = Vec::new();
    for act in acts {
        match (is_there(act, running, keyspace, dir)?, act.fate) {
            (true, Fate::Never) => return Err(format!("{} was refused, and is there", act.name)),
            (false, Fate::Synced) => return Err(format!("{} was acknowledged, and is lost", act.name)),
            (true, _) => newest_begin = newest_begin.max(act.begun),
            (false, Fate::Done) => gone.push(act),
            (false, _) => {}
        }
    }
    match gone.iter().find(|act| act.ended.is_some_and(|ended| ended < newest_begin)) {
        None => Ok(()),
        Some(act) => Err(format!("{} is missing, and something later is there: no prefix", act.name)),
    }
}

/// One store from its making through several power cuts.
fn live(world: &World, dir: &Path, seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let machine = Machine::new(&mut rng);
    let mut last: Option<Vec<Act>> = None;
    for round in 0..=ROUNDS_OF_A_LIFE {
        let cut = PowerCut {
            event_index: rng.below(EVENTS_MAX) as usize,
            seed: rng.next_u64(),
            mode: CrashMode::Any,
        };
        if round > 0 && rng.chance(1, 3) {
            machine.fail_while_opening(PowerCut { event_index: rng.below(40) as usize, ..cut });
        }
        let running = machine.start(dir, false)?;
        let owner = KeyspaceOwner { uid: 0, gid: 0, mode: 0o600 };
        let keyspace = running.fs.keys().make_keyspace(KEYSPACE, owner).map_err(|error| error.to_string())?.0;
        let keyspace = keyspace.keyspace;
        let verified = last.as_ref().map_or(Ok(()), |acts| verify(acts, &running, keyspace, dir));
        if verified.is_err() || round == ROUNDS_OF_A_LIFE {
            running.stop();
            return verified.map_err(|why| format!("crash {round}: {why}"));
        }
        let moments = AtomicU64::new(1);
        let scene = Scene { running: &running, world, dir, keyspace, moments, round };
        let sudden = rng.chance(1, 3);
        let acts = scene.work(&mut rng, |is_busy| {
            let from = running.crash.events_len();
            if sudden {
                while running.crash.events_len() < from + cut.event_index && is_busy() {
                    pause();
                }
                running.crash.fail_power(cut.seed, cut.mode).unwrap();
            } else {
                running.crash.cut_power_at(PowerCut { event_index: from + cut.event_index, ..cut });
            }
        });
        running.crash.fail_power(cut.seed, cut.mode).unwrap();
        running.stop();
        let count = |fate| acts.iter().filter(|act| act.is_transaction && act.fate == fate).count();
        eprintln!(
            "seed {seed} crash {round}: transactions: {} synced, {} done, {} refused or aborted, {} cut short",
            count(Fate::Synced),
            count(Fate::Done),
            count(Fate::Never),
            count(Fate::Unknown)
        );
        last = Some(acts);
    }
    Ok(())
}

#[test]
fn transactions_are_whole_after_a_power_cut_under_the_mount() {
    if !can_mount("transactions_are_whole_after_a_power_cut_under_the_mount") {
        return;
    }
    let world = World::new();
    let dir = PathBuf::from(world.dir("mnt"));
    for seed in seeds(4) {
        if let Err(why) = live(&world, &dir, seed) {
            panic!("KVFS_POWER_SEED={seed}: {why}");
        }
    }
}
