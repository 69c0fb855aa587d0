//! A user of a file system: identity, working directory, umask, descriptors.
//!
//! Purpose: the calls of POSIX. Names are made and removed in `names`, files opened in `open`, read and
//! written in `io`, described in `attributes`, extended attributes in `xattrs`, directories listed in
//! `directory`, locks taken in `lock`.
//!
//! Thread safety: everything is `&self`.
//!
//! Invariants: a descriptor keeps its file, unlinked or not; the locks of a process on a file end with its
//! first `close` of it.

mod attributes;
mod directory;
mod io;
mod lock;
mod names;
mod open;
mod trees;
mod xattrs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kvfs_fs::{Caller, FileSystem, FileType, FsError, NodeId, Waits};
use kvfs_locks::{Mutex, class};
use rustix::io::Errno;

pub use attributes::{Access, Truncation};
pub use directory::{Directory, DirectoryEntry};
pub use io::{Whence, write_memory};
pub use lock::{close_hidden, end_range_locks, interrupt};
pub use trees::ProcessTrees;

use crate::bounds::Bounds;
use crate::descriptors::Descriptors;
use crate::error::{Result, refuse};
use crate::held::{Held, settled, with_space};
use crate::identity::{Actor, EXECUTE, Identity};
use crate::open_file::OpenFile;
use crate::volume::Shared;
use crate::walk::{End, Found, PATH_LEN_MAX, Walked, Walker};
use crate::{Fd, Place};

/// Bits that new files don't get unless told otherwise.
const UMASK: u32 = 0o022;

/// See the module.
#[derive(Debug)]
pub struct Process {
    /// By which its locks are known.
    number: u64,
    scope: Scope,
}

/// The permission bits of what a call makes. Those that are in the umask it does not get: in that of its
/// process, where a call says no more than a number, or in one of the call's own, which no other thread of
/// the process changes meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewMode {
    bits: u32,
    umask: Option<u32>,
}

impl NewMode {
    /// With a umask of the call's own.
    pub fn masked(bits: u32, umask: u32) -> Self {
        Self { bits, umask: Some(umask & 0o777) }
    }
}

impl From<u32> for NewMode {
    fn from(bits: u32) -> Self {
        Self { bits, umask: None }
    }
}

/// What the calls of a process see, and the steps that they share.
#[derive(Debug)]
struct Scope {
    shared: Arc<Shared>,
    actor: Actor,
    /// Where the file system lies, for those who see another one around it.
    place: Option<Arc<[u8]>>,
    umask: AtomicU32,
    cwd: Mutex<Arc<Held>, class::PosixProcessCwd>,
    descriptors: Descriptors,
    /// None: there are none but those of each process.
    bounds: Option<Bounds>,
}

impl Process {
    pub(crate) fn new(shared: Arc<Shared>, identity: &Identity) -> Self {
        let root = Arc::clone(&shared.root);
        Self::with(shared, Actor::new(identity, Arc::default()), UMASK, root, Descriptors::default())
    }

    fn with(shared: Arc<Shared>, actor: Actor, umask: u32, cwd: Arc<Held>, descriptors: Descriptors) -> Self {
        shared.processes.fetch_add(1, Ordering::AcqRel);
        let number = shared.number_of_process();
        shared.fs.nodes().share_ends();
        let (umask, cwd) = (AtomicU32::new(umask), Mutex::new(cwd));
        Self { number, scope: Scope { shared, actor, place: None, umask, cwd, descriptors, bounds: None } }
    }

    /// The same process, which sees the file system at `path`, absolute, within another one: absolute targets
    /// of symbolic links are meant there, and `..` of the root is the directory above `path`. A path that
    /// leads there fails with [`PosixError::Outside`](crate::PosixError::Outside).
    #[must_use]
    pub fn placed(mut self, path: &[u8]) -> Self {
        let len = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
        self.scope.place = Some(path[..len].into());
        self
    }

    /// The same process, before it has opened anything: what it and its children have is bounded.
    #[must_use]
    pub fn bounded(mut self, bounds: Bounds) -> Self {
        self.scope.descriptors = Descriptors::bounded(&bounds);
        self.scope.bounds = Some(bounds);
        self
    }

    /// A child: the same open files with the same offsets, working directory and umask; no locks of ranges.
    /// What it waits for does not end with this one's waits.
    ///
    /// # Errors
    /// EMFILE: too many descriptors, if there are [`Bounds`].
    pub fn fork(&self) -> Result<Self> {
        forked(self, Arc::default())
    }

    /// Sets the bits that new files don't get; returns those of before.
    pub fn umask(&self, mask: u32) -> u32 {
        self.scope.umask.swap(mask & 0o777, Ordering::Relaxed)
    }

    /// Sets the working directory; a descriptor as place is `fchdir`.
    ///
    /// # Errors
    /// ENOTDIR, EACCES, and those of the walk.
    pub fn chdir<'a>(&self, place: impl Into<Place<'a>>) -> Result<()> {
        let found = self.scope.find(place.into())?;
        if found.attr.kind != FileType::Directory {
            return Err(FsError::NotDirectory.into());
        }
        self.scope.check(&found, EXECUTE)?;
        *self.scope.cwd.lock() = found.held;
        Ok(())
    }

    /// The working directory as it is called now. Reads the directories above it.
    ///
    /// # Errors
    /// ENOENT: it was removed; ENAMETOOLONG.
    pub fn getcwd(&self) -> Result<Vec<u8>> {
        let cwd = Arc::clone(&self.scope.cwd.lock());
        self.scope.path_of(cwd)
    }

    /// The path of an open directory, as it is called now. Reads the directories above it.
    ///
    /// # Errors
    /// EBADF, ENOTDIR; ENOENT: it was removed; ENAMETOOLONG.
    pub fn path_of(&self, fd: Fd) -> Result<Vec<u8>> {
        self.scope.path_of(Arc::clone(&self.scope.directory(fd)?.held))
    }
}

impl Scope {
    fn path_of(&self, mut at: Arc<Held>) -> Result<Vec<u8>> {
        let mut path = Vec::new();
        loop {
            let attr = at.attr(self.caller())?;
            if attr.nlink == 0 {
                return Err(FsError::NotFound.into());
            }
            let fs = self.fs();
            let above = settled(self.caller(), |caller| fs.lookup(caller, at.node(), b".."))?;
            let above = Held::of(fs, &above);
            if above.node() == at.node() {
                break;
            }
            let mut name = None;
            settled(self.caller(), |caller| {
                fs.readdir(caller, above.node(), 0, &mut |entry| {
                    if entry.inode == attr.inode && ![&b"."[..], b".."].contains(&entry.name) {
                        name = Some(entry.name.to_vec());
                        return kvfs_fs::Fill::Full;
                    }
                    kvfs_fs::Fill::Taken
                })
            })?;
            let name = name.ok_or(FsError::NotFound)?;
            path.splice(..0, [&b"/"[..], &name].concat());
            if path.len() >= PATH_LEN_MAX {
                return refuse(Errno::NAMETOOLONG, "the path of the working directory is too long");
            }
            at = above;
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }

    fn fs(&self) -> &Arc<FileSystem> {
        &self.shared.fs
    }

    fn caller(&self) -> &Caller {
        &self.actor.caller
    }

    /// In whose name content is changed, which an observer is told of as it happens.
    fn writer(&self) -> Caller {
        Caller { content_observer: self.shared.content_observer(), ..self.caller().clone() }
    }

    /// Carries out what changes the content of `node`, and tells the observer.
    fn change_content<T>(
        &self,
        node: NodeId,
        operation: impl Fn(&Caller) -> kvfs_fs::Result<T>,
    ) -> Result<T> {
        let changed = with_space(self.fs(), &self.writer(), operation)?;
        self.shared.tell(&[(node, true)]);
        Ok(changed)
    }

    fn waits(&self) -> &Arc<Waits> {
        &self.actor.waits
    }

    /// For what makes a file: with a umask.
    fn maker(&self, umask: Option<u32>) -> Caller {
        let umask = umask.unwrap_or_else(|| self.umask.load(Ordering::Relaxed));
        Caller { umask, ..self.actor.caller.clone() }
    }

    /// What a call finds at a descriptor, once: another thread may put another open file there meanwhile, so
    /// what was checked of one look-up says nothing of the next one.
    fn file(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        self.descriptors.get(fd)
    }

    /// An open directory.
    fn directory(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        let file = self.file(fd)?;
        file.check_directory()?;
        Ok(file)
    }

    fn walker(&self) -> Walker<'_> {
        Walker { fs: self.fs(), actor: &self.actor, root: &self.shared.root, place: self.place.as_deref() }
    }

    fn check(&self, found: &Found, access: u32) -> Result<()> {
        self.actor.check(self.fs(), found.held.node(), &found.attr, access)
    }

    /// Where `place` leads.
    fn walk(&self, place: Place<'_>, end: End) -> Result<Walked> {
        let Some(path) = place.path else {
            let directory = self.find(place)?;
            return Ok(Walked { directory, name: None, found: None, is_slashed: false });
        };
        let start = match place.base {
            Some(fd) if path.first() != Some(&b'/') => Arc::clone(&self.directory(fd)?.held),
            _ => Arc::clone(&self.cwd.lock()),
        };
        self.walker().walk(start, path, end)
    }

    /// What is at `place`.
    fn find(&self, place: Place<'_>) -> Result<Found> {
        match (place.base, place.path) {
            (Some(fd), None) => {
                let file = self.file(fd)?;
                let found = self.walker().described(Arc::clone(&file.held))?;
                Ok(Found { file: (!place.is_named).then_some(file), ..found })
            }
            _ => self.walk(place, end_of(place))?.existing(),
        }
    }
}

/// The view that a process sees, as identities of files name it.
pub(crate) fn view_of(process: &Process) -> usize {
    process.scope.shared.root.identity().view
}

/// What a process sees, and for whom it acts: with all groups.
pub(crate) fn user_of(process: &Process) -> (&Arc<FileSystem>, &Caller, &[u32]) {
    (process.scope.fs(), process.scope.caller(), process.scope.actor.groups())
}

/// Closes all descriptors that the program of a process names, which ends its locks, too (`_exit`).
pub fn close_all(process: &Process) {
    close_each(process, process.scope.descriptors.numbers());
}

fn close_each(process: &Process, descriptors: Vec<Fd>) {
    for fd in descriptors {
        // Another thread may have been faster.
        let _ = process.close(fd);
    }
}

/// A child, as by [`Process::fork`], whose waits are over when those of `waiter` are.
///
/// # Errors
/// As [`Process::fork`].
pub fn fork_for(process: &Process, waiter: &Process) -> Result<Process> {
    forked(process, Arc::clone(waiter.scope.waits()))
}

fn forked(process: &Process, waits: Arc<Waits>) -> Result<Process> {
    let scope = &process.scope;
    let (shared, cwd) = (Arc::clone(&scope.shared), Arc::clone(&scope.cwd.lock()));
    let umask = scope.umask.load(Ordering::Relaxed);
    let bounds = scope.bounds.clone();
    let descriptors = scope.descriptors.forked(bounds.as_ref())?;
    let mut child = Process::with(shared, scope.actor.waiting(waits), umask, cwd, descriptors);
    child.scope.place.clone_from(&scope.place);
    child.scope.bounds = bounds;
    Ok(child)
}

/// As the caller of a call that takes what is there says.
fn end_of(place: Place<'_>) -> End {
    if place.follows { End::Target } else { End::Itself }
}

impl Drop for Process {
    fn drop(&mut self) {
        close_all(self);
        close_each(self, self.scope.descriptors.hidden_numbers());
        self.scope.shared.processes.fetch_sub(1, Ordering::AcqRel);
    }
}
