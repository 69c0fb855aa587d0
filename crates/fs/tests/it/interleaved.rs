//! Random transactions, interleaved with each other and with the main line, beside a second file system in
//! which the same committed work is done one after the other.
//!
//! Whatever a transaction did is kept as a list, with results. When it commits, the list is done again on the
//! second file system, and each step must end as it did before: at the snapshot level what was written, at
//! the serializable level also what was read. After each commit both trees must be the same, what the main
//! line's nodes say must be what a fresh mount of the store says, and the store must be sound.
//!
//! Some of the transactions are branches: they are suspended and opened again now and then, and merged in the
//! end, which may be refused and must otherwise be as if their work had been done then. Some are branches of
//! these, and merged into them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_engine_transactions::Transacted;
use kvfs_fs::{
    Append, FileSystem, FileType, FsError, MountOptions, NodeId, RenameMode, Result, SetAttr, WriteFlags,
    XattrMode,
};
use kvfs_kvdb::Background;
use kvfs_store::Isolation;

use crate::bare::Bare;
use crate::engine;
use crate::setup::{Random, Setup};
use crate::views::{begin, commit};

const ROOT: u64 = 1;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const TRANSACTIONS_MAX: usize = 4;
/// More than the transactions come to.
const MEMORY_BYTES: u64 = 64 << 20;

/// One call, by inode numbers.
#[derive(Debug, Clone)]
enum Step {
    Create { dir: u64, name: &'static str, kind: FileType },
    Write { file: u64, offset: u64, len: usize, byte: u8, append: bool },
    Truncate { file: u64, size: u64 },
    Chmod { node: u64, mode: u32 },
    SetXattr { node: u64, name: &'static str, value: u8 },
    RemoveXattr { node: u64, name: &'static str },
    Remove { dir: u64, name: &'static str, directory: bool },
    Rename { from: u64, name: &'static str, to: u64, new: &'static str, mode: RenameMode },
    Link { node: u64, dir: u64, name: &'static str },
    Read { file: u64 },
    List { dir: u64 },
    Lookup { dir: u64, name: &'static str },
}

/// What a step showed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shown {
    Nothing,
    /// Of a new or found inode: its number and kind.
    Inode(u64, FileType),
    Content(Vec<u8>),
    Names(Vec<(Vec<u8>, u64)>),
    Failed(i32),
}

fn node(inode: u64) -> NodeId {
    NodeId(inode)
}

fn run(on: &Setup, step: &Step) -> Result<Shown> {
    let caller = &on.caller;
    let entry = |entry: kvfs_fs::Entry| Shown::Inode(entry.attr.inode, entry.attr.kind);
    Ok(match *step {
        Step::Create { dir, name, kind } => match kind {
            FileType::Directory => entry(on.mkdir(caller, node(dir), name.as_bytes(), 0o755)?),
            FileType::Symlink => entry(on.symlink(caller, node(dir), name.as_bytes(), b"target")?),
            _ => entry(on.create(caller, node(dir), name.as_bytes(), 0o644, true)?.0),
        },
        Step::Write { file, offset, len, byte, append } => {
            let append = if append { Append::End } else { Append::No };
            let flags = WriteFlags { append, ..WriteFlags::default() };
            on.write(caller, node(file), offset, Bytes::from(vec![byte; len]), flags)?;
            Shown::Nothing
        }
        Step::Truncate { file, size } => {
            on.setattr(caller, node(file), &SetAttr { size: Some(size), ..SetAttr::default() })?;
            Shown::Nothing
        }
        Step::Chmod { node: inode, mode } => {
            on.setattr(caller, node(inode), &SetAttr { mode: Some(mode), ..SetAttr::default() })?;
            Shown::Nothing
        }
        Step::SetXattr { node: inode, name, value } => {
            on.setxattr(caller, node(inode), name.as_bytes(), &[value], XattrMode::Set)?;
            Shown::Nothing
        }
        Step::RemoveXattr { node: inode, name } => {
            on.removexattr(caller, node(inode), name.as_bytes())?;
            Shown::Nothing
        }
        Step::Remove { dir, name, directory } => {
            if directory {
                on.rmdir(caller, node(dir), name.as_bytes())?;
            } else {
                on.unlink(caller, node(dir), name.as_bytes())?;
            }
            Shown::Nothing
        }
        Step::Rename { from, name, to, new, mode } => {
            on.rename(caller, node(from), name.as_bytes(), node(to), new.as_bytes(), mode)?;
            Shown::Nothing
        }
        Step::Link { node: inode, dir, name } => {
            entry(on.link(caller, node(inode), node(dir), name.as_bytes())?)
        }
        Step::Read { file } => {
            let size = on.getattr(caller, node(file))?.size as usize;
            let mut content = vec![0; size];
            let len = on.read(caller, node(file), 0, &mut content)?;
            content.truncate(len);
            Shown::Content(content)
        }
        Step::List { dir } => {
            let listed = on.list_once(node(dir), 0, usize::MAX, false)?;
            let names = listed.into_iter().map(|entry| (entry.name, entry.inode));
            Shown::Names(names.filter(|(name, _)| !name.starts_with(b".")).collect())
        }
        Step::Lookup { dir, name } => entry(on.lookup(caller, node(dir), name.as_bytes())?),
    })
}

/// As [`run`], but an error of the file system is a result; `Err` when nothing happened at all.
fn try_run(on: &Setup, step: &Step) -> std::result::Result<Shown, FsError> {
    match run(on, step) {
        Err(error @ (FsError::Parked(_) | FsError::Canceled(_) | FsError::ViewEnded(_))) => Err(error),
        Err(error) => Ok(Shown::Failed(error.errno())),
        Ok(shown) => Ok(shown),
    }
}

/// The file system in which committed work is done one after the other.
struct Second {
    setup: Setup,
    /// Inode numbers of the first one to those here.
    inodes: BTreeMap<u64, u64>,
}

impl Second {
    fn translate(&self, step: &Step) -> Step {
        let to = |inode: u64| *self.inodes.get(&inode).unwrap_or(&u64::MAX);
        let mut step = step.clone();
        match &mut step {
            Step::Create { dir, .. }
            | Step::Remove { dir, .. }
            | Step::List { dir }
            | Step::Lookup { dir, .. } => {
                *dir = to(*dir);
            }
            Step::Write { file, .. } | Step::Truncate { file, .. } | Step::Read { file } => *file = to(*file),
            Step::Chmod { node, .. } | Step::SetXattr { node, .. } | Step::RemoveXattr { node, .. } => {
                *node = to(*node);
            }
            Step::Rename { from, to: target, .. } => (*from, *target) = (to(*from), to(*target)),
            Step::Link { node, dir, .. } => (*node, *dir) = (to(*node), to(*dir)),
        }
        step
    }

    /// Does a step again; what it shows is in terms of the first one.
    fn repeat(&mut self, step: &Step, shown: &Shown, context: &str) {
        let again = try_run(&self.setup, &self.translate(step)).unwrap();
        let again = match (again, shown) {
            (Shown::Inode(inode, kind), Shown::Inode(first, _)) => {
                let known = *self.inodes.entry(*first).or_insert(inode);
                assert_eq!(known, inode, "{context}: {step:?} leads to another inode");
                Shown::Inode(*first, kind)
            }
            (Shown::Names(names), _) => {
                let back: BTreeMap<u64, u64> = self.inodes.iter().map(|(&a, &b)| (b, a)).collect();
                Shown::Names(names.into_iter().map(|(name, inode)| (name, back[&inode])).collect())
            }
            (other, _) => other,
        };
        assert_eq!(&again, shown, "{context}: {step:?} done one after the other");
    }
}

struct Open {
    view: Setup,
    isolation: Isolation,
    /// It is a branch of this name: no locks, and all that others did is looked at when it is merged.
    branch: Option<String>,
    /// The branch that it is a branch of.
    parent: Option<String>,
    /// So much is in its last checkpoint.
    checkpointed: usize,
    /// Inodes that the view was told of.
    known: BTreeMap<u64, FileType>,
    done: Vec<(Step, Shown)>,
}

struct World {
    main: Setup,
    known: BTreeMap<u64, FileType>,
    second: Second,
    open: Vec<Open>,
    random: Random,
    seed: u64,
    committed: u32,
    conflicts: u32,
    merged: u32,
    refused: u32,
    /// Into a branch, and refused there.
    nested: [u32; 2],
    branches: u32,
}

fn note(known: &mut BTreeMap<u64, FileType>, shown: &Shown) {
    if let Shown::Inode(inode, kind) = shown {
        known.insert(*inode, *kind);
    }
}

impl World {
    fn new(main: Setup, seed: u64) -> Self {
        let second = Second { setup: Setup::new(300), inodes: BTreeMap::from([(ROOT, ROOT)]) };
        let known = BTreeMap::from([(ROOT, FileType::Directory)]);
        let random = Random::new(seed);
        let (committed, conflicts, merged, refused, branches) = (0, 0, 0, 0, 0);
        Self {
            main,
            known,
            second,
            open: Vec::new(),
            random,
            seed,
            committed,
            conflicts,
            merged,
            refused,
            nested: [0; 2],
            branches,
        }
    }

    fn context(&self) -> String {
        format!("seed {}", self.seed)
    }

    fn pick(&mut self, known: &BTreeMap<u64, FileType>, wanted: impl Fn(FileType) -> bool) -> u64 {
        let of_kind: Vec<u64> =
            known.iter().filter(|(_, kind)| wanted(**kind)).map(|(inode, _)| *inode).collect();
        if of_kind.is_empty() { ROOT } else { of_kind[self.random.below(of_kind.len() as u64) as usize] }
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.random.below(NAMES.len() as u64) as usize]
    }

    fn step(&mut self, known: &BTreeMap<u64, FileType>) -> Step {
        let dir = self.pick(known, |kind| kind == FileType::Directory);
        let file = self.pick(known, |kind| kind == FileType::Regular);
        let any = self.pick(known, |_| true);
        let name = self.name();
        match self.random.below(17) {
            0..=1 => Step::Create { dir, name, kind: FileType::Regular },
            2 => Step::Create { dir, name, kind: FileType::Directory },
            3 => Step::Create { dir, name, kind: FileType::Symlink },
            4..=5 => {
                let (offset, len) = (self.random.below(3) * 200, 1 + self.random.below(3) as usize * 3000);
                let (byte, append) = (self.random.below(256) as u8, self.random.one_in(4));
                Step::Write { file, offset, len, byte, append }
            }
            6 => Step::Truncate { file, size: self.random.below(4) * 2500 },
            7 => Step::Chmod { node: any, mode: 0o600 + self.random.below(8) as u32 },
            8 => Step::SetXattr { node: any, name: "user.x", value: self.random.below(256) as u8 },
            9 => Step::RemoveXattr { node: any, name: "user.x" },
            10 => Step::Remove { dir, name, directory: self.random.one_in(2) },
            11..=12 => {
                let to = self.pick(known, |kind| kind == FileType::Directory);
                let modes =
                    [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let mode = modes[self.random.below(4) as usize];
                Step::Rename { from: dir, name, to, new: self.name(), mode }
            }
            13 => Step::Link { node: file, dir, name },
            14 => Step::Read { file },
            15 => Step::List { dir },
            _ => Step::Lookup { dir, name },
        }
    }

    fn on_main(&mut self) {
        let known = self.known.clone();
        let step = self.step(&known);
        let Ok(shown) = try_run(&self.main, &step) else { return };
        note(&mut self.known, &shown);
        let context = self.context();
        self.second.repeat(&step, &shown, &format!("{context}, main line"));
    }

    fn in_transaction(&mut self, index: usize) {
        let known = self.open[index].known.clone();
        let step = self.step(&known);
        let open = &mut self.open[index];
        let batches = |view: &Setup| view.txn().unwrap().stats().batches;
        let before = batches(&open.view);
        match try_run(&open.view, &step) {
            Ok(shown) => {
                note(&mut open.known, &shown);
                // What wrote nothing was a read, as is a refusal.
                let wrote = batches(&open.view) > before;
                if wrote || open.isolation == Isolation::Serializable {
                    open.done.push((step, shown));
                }
            }
            Err(FsError::Parked(_)) => {}
            Err(_) => {
                self.conflicts += 1;
                self.open.swap_remove(index);
            }
        }
    }

    fn begin(&mut self) {
        let known = BTreeMap::from([(ROOT, FileType::Directory)]);
        let isolation = if self.random.one_in(2) { Isolation::Snapshot } else { Isolation::Serializable };
        let mut open = if self.random.one_in(3) && self.main.store.checkpoints().is_some() {
            self.branches += 1;
            let name = format!("branch {}", self.branches);
            self.main.fs.branches().create(&name, 1000).unwrap();
            let view = self.main.through(self.main.fs.open_branch(&name).unwrap(), self.main.options);
            let (branch, isolation) = (Some(name), Isolation::Snapshot);
            Open { view, isolation, branch, parent: None, checkpointed: 0, known, done: Vec::new() }
        } else {
            let view = begin(&self.main, isolation);
            Open { view, isolation, branch: None, parent: None, checkpointed: 0, known, done: Vec::new() }
        };
        open.known.insert(ROOT, FileType::Directory);
        self.open.push(open);
    }

    /// Makes a branch of a branch.
    fn fork(&mut self, index: usize) {
        let parent = &mut self.open[index];
        let Some(name) = parent.branch.clone() else { return };
        self.branches += 1;
        let child = format!("branch {}", self.branches);
        parent.view.fs.branches().fork(&child, 1000).unwrap();
        parent.checkpointed = parent.done.len();
        let view = self.main.through(self.main.fs.open_branch(&child).unwrap(), self.main.options);
        let known = BTreeMap::from([(ROOT, FileType::Directory)]);
        let (branch, parent, isolation) = (Some(child), Some(name), Isolation::Snapshot);
        self.open.push(Open { view, isolation, branch, parent, checkpointed: 0, known, done: Vec::new() });
    }

    /// Checkpoints a branch, or suspends it and opens it again, as after a crash.
    fn suspend(&mut self, index: usize) {
        let (saves, suspends) = (self.random.one_in(2), self.random.one_in(2));
        let open = &mut self.open[index];
        let Some(name) = &open.branch else { return };
        if saves {
            open.view.branches().checkpoint().unwrap();
            open.checkpointed = open.done.len();
        }
        if suspends {
            open.done.truncate(open.checkpointed);
            open.known = BTreeMap::from([(ROOT, FileType::Directory)]);
            // The former view first.
            open.view.fs = Arc::clone(&self.main.fs);
            open.view.fs = self.main.fs.open_branch(name).unwrap();
        }
    }

    /// Merges a branch: whether it was, and then by which view.
    fn merge(&mut self, open: &mut Open, name: &str) -> bool {
        open.view.branches().checkpoint().unwrap();
        open.view.fs = Arc::clone(&self.main.fs);
        let merging = in_time(&self.main, || kvfs_fs::begin_merge(&self.main.fs, &self.main.branch(name), 1));
        let outcome = merging.and_then(|merging| commit(&merging));
        match outcome {
            Ok(_) => {
                self.merged += 1;
                assert!(matches!(self.main.branches().get(name), Err(FsError::NotFound)));
                true
            }
            Err(FsError::Canceled(_) | FsError::MergeRefused { .. }) => {
                self.refused += 1;
                self.main.assert_sound("after a refused merge");
                self.main.branches().delete(&self.main.branch(name)).unwrap();
                false
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// Merges a branch of a branch into that one, which is as if it had done the same now.
    fn merge_into_parent(&mut self, mut open: Open, name: &str) {
        let of = |other: &&mut Open| other.branch == open.parent;
        let parent = self.open.iter_mut().find(of).unwrap();
        for view in [&mut open.view, &mut parent.view] {
            view.branches().checkpoint().unwrap();
            view.fs = Arc::clone(&self.main.fs);
        }
        let merged = kvfs_fs::merge_into_parent(&self.main.fs, &self.main.branch(name), None);
        parent.view.fs = self.main.fs.open_branch(parent.branch.as_deref().unwrap()).unwrap();
        parent.known = BTreeMap::from([(ROOT, FileType::Directory)]);
        parent.view.assert_sound(&format!("seed {}, after a merge into a branch", self.seed));
        match merged {
            Ok(()) => {
                parent.done.extend(open.done);
                self.nested[0] += 1;
                assert!(matches!(self.main.branches().get(name), Err(FsError::NotFound)));
            }
            Err(FsError::MergeRefused { .. }) => {
                self.nested[1] += 1;
                self.main.branches().delete(&self.main.branch(name)).unwrap();
            }
            Err(other) => panic!("{other}"),
        }
        parent.checkpointed = parent.done.len();
    }

    fn end(&mut self, index: usize) {
        let ended = &self.open[index].branch;
        if ended.is_some() && self.open.iter().any(|other| other.parent == *ended) {
            return;
        }
        let mut open = self.open.swap_remove(index);
        if let (Some(name), Some(_)) = (open.branch.clone(), &open.parent) {
            return self.merge_into_parent(open, &name);
        }
        if let Some(name) = open.branch.clone() {
            if self.merge(&mut open, &name) {
                let context = format!("{}, {name}", self.context());
                for (step, shown) in &open.done {
                    self.second.repeat(step, shown, &context);
                }
                self.compare(&context);
            }
            return;
        }
        if self.random.one_in(4) {
            return open.view.txn().unwrap().abort();
        }
        match commit(&open.view) {
            Err(FsError::Canceled(_)) => return self.conflicts += 1,
            ended => drop(ended.unwrap()),
        }
        self.committed += 1;
        let context = format!(
            "{}, transaction {:?} {:?}",
            self.context(),
            open.view.txn().map(kvfs_fs::TxnView::id),
            open.isolation
        );
        for (step, shown) in &open.done {
            self.second.repeat(step, shown, &context);
        }
        drop(open);
        self.compare(&context);
    }

    fn compare(&mut self, context: &str) {
        let (tree, again) = (tree(&self.main), tree(&self.second.setup));
        assert_eq!(tree, again, "{context}: the trees differ");
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        let fresh = FileSystem::open(Arc::clone(&self.main.store), self.main.clock.clone(), options).unwrap();
        let fresh = self.main.through(Arc::new(fresh), options);
        each_node(&fresh, &mut |_, entry| {
            if let Ok(known) = self.main.getattr(&self.main.caller, entry.node) {
                // Access times are written late.
                let known = kvfs_fs::Attr { atime: entry.attr.atime, ..known };
                assert_eq!(known, entry.attr, "{context}: a node is behind the store");
            }
        });
        self.main.assert_sound(context);
    }

    fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            match self.random.below(20) {
                0 if self.open.len() < TRANSACTIONS_MAX => self.begin(),
                1 if !self.open.is_empty() => {
                    let index = self.random.below(self.open.len() as u64) as usize;
                    self.end(index);
                }
                2 => self.forget_some(),
                3 if !self.open.is_empty() => {
                    let index = self.random.below(self.open.len() as u64) as usize;
                    let forks = self.open.len() < TRANSACTIONS_MAX && self.random.one_in(3);
                    if forks { self.fork(index) } else { self.suspend(index) }
                }
                3..=6 => self.on_main(),
                _ if !self.open.is_empty() => {
                    let index = self.random.below(self.open.len() as u64) as usize;
                    self.in_transaction(index);
                }
                _ => self.on_main(),
            }
        }
        let is_childless = |open: &Open, all: &[Open]| {
            open.branch.is_none() || all.iter().all(|other| other.parent != open.branch)
        };
        while let Some(index) = self.open.iter().position(|open| is_childless(open, &self.open)) {
            self.end(index);
        }
        let context = self.context();
        self.compare(&context);
    }

    /// The kernel of the main line forgets, so that commits meet nodes that are known and nodes that aren't.
    fn forget_some(&mut self) {
        let known: Vec<u64> = self.known.keys().copied().filter(|&inode| inode != ROOT).collect();
        for inode in known {
            if self.random.one_in(3) {
                self.known.remove(&inode);
                self.main.forget(node(inode), u64::MAX);
            }
        }
        self.main.housekeep().unwrap();
    }
}

/// Runs what may wait for locks while time goes by.
pub(crate) fn in_time<T>(main: &Setup, work: impl FnOnce() -> T) -> T {
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let (clock, fs) = (&main.clock, &main.fs);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(std::sync::atomic::Ordering::Acquire) {
                clock.advance(std::time::Duration::from_millis(100));
                fs.admission().tick();
                std::thread::yield_now();
            }
        });
        let done = work();
        is_done.store(true, std::sync::atomic::Ordering::Release);
        done
    })
}

/// Calls `each` with every entry below the root, depth first, by path.
fn each_node(on: &Setup, each: &mut dyn FnMut(&str, &kvfs_fs::Entry)) {
    let mut stack = vec![(String::new(), node(ROOT))];
    while let Some((path, dir)) = stack.pop() {
        for listed in on.list(dir, 3, false) {
            if listed.name.starts_with(b".") {
                continue;
            }
            let path = format!("{path}/{}", String::from_utf8(listed.name.clone()).unwrap());
            let entry = on.lookup(&on.caller, dir, &listed.name).unwrap();
            each(&path, &entry);
            if entry.attr.kind == FileType::Directory {
                // Not forgotten before its entries were seen.
                stack.push((path, entry.node));
            }
        }
    }
}

/// Everything that can be seen, by path.
fn tree(on: &Setup) -> BTreeMap<String, String> {
    let mut tree = BTreeMap::new();
    let mut counted = Vec::new();
    each_node(on, &mut |path, entry| {
        counted.push(entry.node);
        let attr = entry.attr;
        let content = match attr.kind {
            FileType::Regular => on.read_all(entry.node),
            FileType::Symlink => on.readlink(&on.caller, entry.node).unwrap().to_vec(),
            _ => Vec::new(),
        };
        let sum = content.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        let xattr = on.getxattr(&on.caller, entry.node, b"user.x").ok();
        tree.insert(
            path.to_owned(),
            format!("{:?} {:o} {} {} {sum:x} {xattr:?}", attr.kind, attr.mode, attr.nlink, attr.size),
        );
    });
    for node in counted {
        on.forget(node, 1);
    }
    tree
}

fn run_seeds(seeds: std::ops::Range<u64>, main: impl Fn() -> Setup) {
    let (mut committed, mut conflicts, mut merged, mut refused, mut nested) = (0, 0, 0, 0, [0; 2]);
    let is_replay = seeds.end - seeds.start < 10;
    let has_branches = main().store.checkpoints().is_some();
    for seed in seeds {
        let mut world = World::new(main(), seed);
        world.run(600);
        committed += world.committed;
        conflicts += world.conflicts;
        merged += world.merged;
        refused += world.refused;
        nested = [nested[0] + world.nested[0], nested[1] + world.nested[1]];
    }
    let has_met_branches = merged > 20 && refused > 5 && nested[0] > 5 && nested[1] > 2;
    assert!(
        is_replay || committed > 20 && conflicts > 5 && (!has_branches || has_met_branches),
        "{committed} commits, {conflicts} conflicts, {merged} merges, {refused} refused, {nested:?} into branches: \
         too tame"
    );
}

/// First seed and number of seeds; the environment replays one or runs many.
fn seeds(rounds: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let first = number("KVFS_SIM_SEED").unwrap_or(1);
    first..first + number("KVFS_SIM_ROUNDS").unwrap_or(rounds)
}

#[test]
fn interleaved_transactions_are_as_if_done_one_after_the_other() {
    run_seeds(seeds(200), || Setup::new(300));
}

#[test]
fn interleaved_transactions_added_to_an_engine_are_as_if_done_one_after_the_other() {
    run_seeds(seeds(40), || {
        let store = Transacted::new(Bare::default(), MEMORY_BYTES);
        Setup::with(Arc::new(store), 300, MountOptions::default())
    });
}

#[test]
fn interleaved_transactions_over_the_engine_are_as_if_done_one_after_the_other() {
    run_seeds(seeds(20), || {
        let store = engine::open(&engine::create(), 16 << 10, Background::Manual);
        Setup::with(store, 300, MountOptions::default())
    });
}
