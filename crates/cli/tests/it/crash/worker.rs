//! Threads that work on the mount until it fails: each in a directory of its own, each in its own manner.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use kvfs_device::Rng;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};

use super::history::{History, Moments};
use super::tree::{Name, Step, bytes_of, parent_of};

/// How a thread works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Names of all kinds come, move and go.
    Names,
    /// Files around the size at which content leaves the row.
    SmallFiles,
    /// Long sequential writes.
    Streams,
    /// Small writes anywhere in a large file, with fdatasync.
    Database,
    /// Appends with `O_SYNC` or `O_DSYNC`, and rotation.
    Log,
    /// Numbered files in order, never synced.
    Markers,
}

impl Manner {
    pub(super) const EACH: [Self; 6] =
        [Self::Names, Self::SmallFiles, Self::Streams, Self::Database, Self::Log, Self::Markers];
}

/// Largest write: one request, if it begins at a page.
const WRITE_BYTES_MAX: usize = 1 << 20;
const STREAM_BYTES_MAX: usize = 3 << 20;
const PAGE_BYTES: u64 = 4096;
const DATABASE_BYTES: u64 = 1 << 20;

/// One thread at work.
pub(super) struct Worker<'a> {
    pub(super) history: History,
    pub(super) manner: Manner,
    /// Whether it makes anything durable.
    syncing: bool,
    root: PathBuf,
    rng: Rng,
    moments: &'a Moments,
    /// Files that lost their name while they were open.
    unlinked: Vec<File>,
    counter: u64,
}

impl<'a> Worker<'a> {
    /// Works in `directory`, which exists below `mount`.
    pub(super) fn new(
        mount: &Path,
        directory: String,
        (manner, syncing): (Manner, bool),
        moments: &'a Moments,
        rng: Rng,
    ) -> Self {
        let root = mount.join(&directory);
        let history = History::new(directory);
        Self { history, manner, syncing, root, rng, moments, unlinked: Vec::new(), counter: 0 }
    }

    /// Works until something fails, at most `steps_max` times.
    pub(super) fn run(mut self, steps_max: usize) -> (History, io::Result<()>) {
        let mut result = Ok(());
        for _ in 0..steps_max {
            result = match self.manner {
                Manner::Names => self.change_names(),
                Manner::SmallFiles => self.change_small_files(),
                Manner::Streams => self.stream(),
                Manner::Database => self.update(),
                Manner::Log => self.log(),
                Manner::Markers => self.mark(),
            };
            if result.is_err() {
                break;
            }
        }
        (self.history, result)
    }

    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }

    #[expect(clippy::needless_pass_by_value, reason = "every caller makes the step for this")]
    fn step(&mut self, step: Step) -> io::Result<()> {
        let at = |path: &str| if path.is_empty() { self.root.clone() } else { self.root.join(path) };
        let kept = match &step {
            // Some of the files that lose their name are still open when the power fails.
            Step::Unlink { path } if self.rng.chance(1, 4) => File::open(at(path)).ok(),
            _ => None,
        };
        self.unlinked.extend(kept);
        let steps = requests(&step);
        let heads = heads(&steps);
        self.history.steps(self.moments, steps, || perform(&step, &heads, at))
    }

    fn fresh(&mut self, directory: &str) -> String {
        self.counter += 1;
        let separator = if directory.is_empty() { "" } else { "/" };
        format!("{directory}{separator}n{}", self.counter)
    }

    fn pick(&mut self, wanted: impl Fn(&str, &Name) -> bool) -> Option<String> {
        let names: Vec<&String> = self
            .history
            .tree
            .names
            .iter()
            .filter(|(path, name)| wanted(path, name))
            .map(|(path, _)| path)
            .collect();
        let count = names.len();
        (count > 0).then(|| names[self.rng.index(count)].clone())
    }

    fn pick_file(&mut self) -> Option<String> {
        self.pick(|_, name| matches!(name, Name::File(_)))
    }

    fn pick_directory(&mut self) -> String {
        self.pick(|path, name| matches!(name, Name::Directory { .. }) && path.matches('/').count() < 3)
            .unwrap_or_default()
    }

    fn open(&self, path: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(self.path(path))
    }

    fn fsync(&mut self, path: &str) -> io::Result<()> {
        if !self.syncing {
            return Ok(());
        }
        let is_directory = matches!(self.history.tree.names[path], Name::Directory { .. });
        let file = if is_directory { File::open(self.path(path))? } else { self.open(path)? };
        if self.rng.chance(1, 2) { file.sync_all() } else { file.sync_data() }?;
        self.history.synced(path);
        Ok(())
    }

    /// Syncs something now and then.
    fn maybe_sync(&mut self, one_in: u64) -> io::Result<()> {
        if self.rng.chance(1, one_in) {
            let path = self.pick(|_, name| !matches!(name, Name::Symlink { .. })).unwrap_or_default();
            self.fsync(&path)?;
        }
        Ok(())
    }

    fn write(&mut self, path: String, offset: u64, len: usize) -> io::Result<()> {
        let content = self.rng.next_u64();
        self.step(Step::Write { path, offset, skip: 0, len, content })
    }

    fn change_names(&mut self) -> io::Result<()> {
        let directory = self.pick_directory();
        let path = self.fresh(&directory);
        match self.rng.below(16) {
            0..4 => {
                self.step(Step::Create { path: path.clone() })?;
                let len = self.rng.range(1, 300) as usize;
                self.write(path, 0, len)?;
            }
            4 | 5 => self.step(Step::Mkdir { path })?,
            6 => self.step(Step::Symlink { path, target: "somewhere/else".to_owned() })?,
            7 | 8 => {
                if let Some(from) = self.pick_file() {
                    self.step(Step::Link { from, to: path })?;
                }
            }
            9..12 => self.rename(path)?,
            12 => self.exchange()?,
            13 | 14 => {
                if let Some(path) = self.pick(|_, name| !matches!(name, Name::Directory { .. })) {
                    self.step(Step::Unlink { path })?;
                }
            }
            _ => self.rmdir()?,
        }
        self.maybe_sync(6)
    }

    /// To a fresh name, or over another file.
    fn rename(&mut self, fresh: String) -> io::Result<()> {
        let Some(from) = self.pick(|path, _| !path.is_empty()) else { return Ok(()) };
        let is_file = matches!(self.history.tree.names[&from], Name::File(_));
        let over = self.pick_file().filter(|_| is_file && self.rng.chance(1, 2));
        let to = over.unwrap_or(fresh);
        let same = match (&self.history.tree.names[&from], self.history.tree.names.get(&to)) {
            (Name::File(one), Some(Name::File(other))) => one == other,
            _ => false,
        };
        // Two names of one file: rename does nothing.
        if same || parent_of(&to) == from || to.starts_with(&format!("{from}/")) {
            return Ok(());
        }
        self.step(Step::Rename { from, to })
    }

    fn exchange(&mut self) -> io::Result<()> {
        let one = self.pick(|path, _| !path.is_empty());
        let other = self.pick(|path, _| !path.is_empty());
        let (Some(one), Some(other)) = (one, other) else { return Ok(()) };
        let names = &self.history.tree.names;
        let same = match (&names[&one], &names[&other]) {
            (Name::File(one), Name::File(other)) => one == other,
            _ => one == other,
        };
        if same || one.starts_with(&format!("{other}/")) || other.starts_with(&format!("{one}/")) {
            return Ok(());
        }
        self.step(Step::Exchange { one, other })
    }

    fn rmdir(&mut self) -> io::Result<()> {
        let names = self.history.tree.names.clone();
        let is_empty = |path: &str| {
            let start = format!("{path}/");
            names.range(start.clone()..).next().is_none_or(|(next, _)| !next.starts_with(&start))
        };
        let empty = self
            .pick(|path, name| !path.is_empty() && matches!(name, Name::Directory { .. }) && is_empty(path));
        empty.map_or(Ok(()), |path| self.step(Step::Rmdir { path }))
    }

    fn change_small_files(&mut self) -> io::Result<()> {
        if self.history.tree.inodes.len() < 4 || self.rng.chance(1, 6) {
            let path = self.fresh("");
            self.step(Step::Create { path })?;
        }
        let Some(path) = self.pick_file() else { return Ok(()) };
        let len = self.history.tree.inode(&path).content.len() as u64;
        match self.rng.below(10) {
            0..4 => {
                let offset = self.rng.below(len.min(9000) + 100);
                let bytes = self.rng.range(1, 5000) as usize;
                self.write(path.clone(), offset, bytes)?;
            }
            4 | 5 => {
                let bytes = self.rng.range(1, 1500) as usize;
                self.write(path.clone(), len, bytes)?;
            }
            6 | 7 => {
                let len = self.rng.below(9000);
                self.step(Step::Truncate { path: path.clone(), len })?;
            }
            8 => {
                let mode = 0o600 | self.rng.below(0o100) as u32;
                self.step(Step::Chmod { path: path.clone(), mode })?;
            }
            _ => {
                let (offset, bytes) = (self.rng.below(6000), self.rng.range(1, 6000));
                self.step(Step::Punch { path: path.clone(), offset, len: bytes })?;
            }
        }
        if self.rng.chance(1, 5) {
            return self.fsync(&path);
        }
        self.maybe_sync(16)
    }

    fn stream(&mut self) -> io::Result<()> {
        let path = match self.pick_file() {
            Some(path) if !self.rng.chance(1, 12) => path,
            _ => {
                let path = self.fresh("");
                self.step(Step::Create { path: path.clone() })?;
                path
            }
        };
        let len = self.history.tree.inode(&path).content.len();
        if len >= STREAM_BYTES_MAX {
            return match self.rng.below(4) {
                0 => self.step(Step::Truncate { path, len: (len / 2) as u64 }),
                1 => self.step(Step::Punch { path, offset: 1 << 17, len: 1 << 20 }),
                _ => self.step(Step::Unlink { path }),
            };
        }
        // Some go on where the last ended, in pages; some lie anywhere.
        let bytes = match self.rng.below(3) {
            0 => WRITE_BYTES_MAX,
            1 => 128 << 10,
            _ => self.rng.range(1, 64) as usize * 4096,
        };
        let offset = if self.rng.chance(1, 8) { self.rng.index(len + 1) } else { len };
        self.write(path.clone(), (offset / 4096 * 4096) as u64, bytes)?;
        if self.rng.chance(1, 8) {
            return self.fsync(&path);
        }
        Ok(())
    }

    fn update(&mut self) -> io::Result<()> {
        let path = "database".to_owned();
        if !self.history.tree.names.contains_key(&path) {
            self.step(Step::Create { path: path.clone() })?;
            self.step(Step::Truncate { path: path.clone(), len: DATABASE_BYTES })?;
        }
        let pages = self.rng.range(1, 5) as usize;
        let offset = self.rng.below(DATABASE_BYTES / 4096 - 4) * 4096;
        if self.rng.chance(1, 3) {
            let shift = self.rng.below(4096);
            self.write(path.clone(), offset + shift, pages * 700)?;
        } else {
            self.write(path.clone(), offset, pages * 4096)?;
        }
        if self.rng.chance(1, 5) {
            return self.fsync(&path);
        }
        Ok(())
    }

    fn log(&mut self) -> io::Result<()> {
        let path = "log".to_owned();
        if !self.history.tree.names.contains_key(&path) {
            self.step(Step::Create { path: path.clone() })?;
        }
        let offset = self.history.tree.inode(&path).content.len() as u64;
        if offset > 60_000 {
            let to = self.fresh("");
            self.step(Step::Rename { from: path, to })?;
            return self.fsync("");
        }
        let (len, content) = (self.rng.range(1, 9000) as usize, self.rng.next_u64());
        let mut options = OpenOptions::new();
        if self.syncing {
            options.custom_flags(if self.rng.chance(1, 2) { flags::SYNC } else { flags::DSYNC });
        }
        let file = options.append(true).open(self.path(&path))?;
        let step = Step::Write { path: path.clone(), offset, skip: 0, len, content };
        let steps = requests(&step);
        let heads = heads(&steps);
        let work = || Ok(count(io::Write::write(&mut &file, &bytes_of(content, len))?, &heads));
        self.history.steps(self.moments, steps, work)?;
        if self.syncing {
            self.history.synced(&path);
        }
        Ok(())
    }

    fn mark(&mut self) -> io::Result<()> {
        let path = self.fresh("");
        self.step(Step::Create { path: path.clone() })?;
        self.write(path, 0, 20)
    }
}

/// Flags that the standard library has no names for.
mod flags {
    use rustix::fs::OFlags;

    pub(super) const SYNC: i32 = OFlags::SYNC.bits() as i32;
    pub(super) const DSYNC: i32 = OFlags::DSYNC.bits() as i32;
}

/// The requests that the kernel may make of a step; each happens wholly or not.
fn requests(step: &Step) -> Vec<Step> {
    let Step::Write { path, offset, skip, len, content } = step else { return vec![step.clone()] };
    let head = (offset.next_multiple_of(PAGE_BYTES) - offset) as usize;
    if head == 0 || head >= *len {
        return vec![step.clone()];
    }
    let part = |from: usize, len: usize| Step::Write {
        path: path.clone(),
        offset: offset + from as u64,
        skip: skip + from,
        len,
        content: *content,
    };
    vec![part(0, head), part(head, len - head)]
}

/// For each request of a write, the bytes up to its end.
fn heads(requests: &[Step]) -> Vec<usize> {
    let mut sum = 0;
    let lens = requests.iter().map(|step| if let Step::Write { len, .. } = step { *len } else { 0 });
    lens.map(|len| {
        sum += len;
        sum
    })
    .collect()
}

/// How many requests of a write were done.
fn count(written: usize, heads: &[usize]) -> usize {
    let index = heads.iter().position(|&head| head == written);
    index.unwrap_or_else(|| {
        panic!("a write ended after {written} bytes, in the middle of a request: {heads:?}")
    }) + 1
}

/// Does a step; gives the number of its requests that were done.
fn perform(step: &Step, heads: &[usize], at: impl Fn(&str) -> PathBuf) -> io::Result<usize> {
    if let Step::Write { path, offset, len, content, .. } = step {
        let file = OpenOptions::new().write(true).open(at(path))?;
        return Ok(count(file.write_at(&bytes_of(*content, *len), *offset)?, heads));
    }
    perform_one(step, at).map(|()| 1)
}

fn perform_one(step: &Step, at: impl Fn(&str) -> PathBuf) -> io::Result<()> {
    let writable = |path: &str| OpenOptions::new().write(true).open(at(path));
    match step {
        Step::Create { path } => {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o644).open(at(path)).map(drop)
        }
        Step::Write { .. } => unreachable!("may be several requests"),
        Step::Truncate { path, len } => writable(path)?.set_len(*len),
        Step::Punch { path, offset, len } => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(fallocate(writable(path)?, flags, *offset, *len)?)
        }
        Step::Chmod { path, mode } => fs::set_permissions(at(path), Permissions::from_mode(*mode)),
        Step::Rename { from, to } => fs::rename(at(from), at(to)),
        Step::Exchange { one, other } => {
            Ok(renameat_with(CWD, at(one), CWD, at(other), RenameFlags::EXCHANGE)?)
        }
        Step::Link { from, to } => fs::hard_link(at(from), at(to)),
        Step::Symlink { path, target } => std::os::unix::fs::symlink(target, at(path)),
        Step::Unlink { path } => fs::remove_file(at(path)),
        Step::Mkdir { path } => fs::create_dir(at(path)),
        Step::Rmdir { path } => fs::remove_dir(at(path)),
    }
}
