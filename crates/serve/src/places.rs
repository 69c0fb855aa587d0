//! Files that clients open as placeholders, in memory where the machine has a file system there.
//!
//! Thread safety: plain values. Invariants: the directory is this server's alone, and is gone with it, or, if
//! it was killed, with the next one of its user; a user's clients reach the files by an open directory that
//! they are given, whose name is never used again. Each file is as long as its file system lets one be,
//! without a block: a program that knows nothing of placeholders and writes into one that it inherits gets
//! EFBIG.
//!
//! Each file has a second name in a directory that is not watched, by which the server looks whether a client
//! still has its lock.

use std::ffi::CStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_lane::NUMBERED;
use kvfs_lane::greeting::{PLACEHOLDER_MODE, placeholder_name};
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, fchmod, flock, fstat, ftruncate, inotify, linkat, mkdirat, openat,
    renameat,
};
use rustix::io::Errno;

/// Where it lies, if it is there.
const IN_MEMORY: &str = "/dev/shm";

/// What its name begins with.
const PREFIX: &str = "kvfs-open-";

/// Names that are tried.
const TRIES: usize = 100;

/// What a file is called until its number is known.
const NEW: &CStr = c"new";

/// In the directory of a user: the second names.
const LINKS: &CStr = c"links";

/// See the module.
pub(crate) struct Directory {
    path: PathBuf,
    /// Directories of users that were made.
    made: AtomicU64,
    /// The longest file there (bytes).
    len_max: u64,
    /// A lock on it says that its server lives.
    _lock: OwnedFd,
}

impl Directory {
    pub(crate) fn make() -> io::Result<Self> {
        let mut refused = io::Error::from(Errno::EXIST);
        for base in [PathBuf::from(IN_MEMORY), std::env::temp_dir()] {
            match Self::make_in(&base) {
                Ok(made) => return Ok(made),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn make_in(base: &Path) -> io::Result<Self> {
        remove_left_behind(base);
        for _ in 0..TRIES {
            // Each state is seeded anew.
            let path = base.join(format!("{PREFIX}{:016x}", RandomState::new().hash_one(0)));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            let lock = open(&path)?;
            flock(&lock, FlockOperation::LockExclusive)?;
            // Another server may have taken it for one that was left behind.
            if path.exists() {
                let len_max = longest(&path)?;
                return Ok(Self { path, made: AtomicU64::new(0), len_max, _lock: lock });
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Files for a user.
    pub(crate) fn places(&self) -> io::Result<Places> {
        let path = self.path.join(self.made.fetch_add(1, Ordering::Relaxed).to_string());
        DirBuilder::new().create(&path)?;
        // From here on it goes with what fails.
        let path = Removed(path);
        fs::set_permissions(&path.0, Permissions::from_mode(0o711))?;
        let (kind, new) = (OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, inotify::CreateFlags::CLOEXEC);
        let directory = Arc::new(rustix::fs::open(&path.0, kind, Mode::empty())?);
        mkdirat(&*directory, LINKS, Mode::RWXU)?;
        let links =
            Links { directory: openat(&*directory, LINKS, kind, Mode::empty())?, len_max: self.len_max };
        let reports = inotify::init(new | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&reports, &path.0, inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE_WRITE)?;
        let links = Arc::new(links);
        Ok(Places { directory, links, reports, free: Vec::new(), in_use: 0, _path: path })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// A directory that goes with this.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!(%error, path = %path.display(), "cannot remove a directory of open files");
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}

/// The length of the longest file in a directory.
fn longest(directory: &Path) -> io::Result<u64> {
    let path = directory.join("longest");
    let file = File::create(&path)?;
    fs::remove_file(&path)?;
    // Each bit that the file system takes, from the highest one of an off_t.
    Ok((0..63)
        .rev()
        .map(|bit| 1_u64 << bit)
        .fold(0, |len, more| if ftruncate(&file, len | more).is_ok() { len | more } else { len }))
}

/// Removes directories of this user's servers that were killed.
fn remove_left_behind(base: &Path) {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let is_one = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own);
        if is_one
            && let Ok(lock) = open(&entry.path())
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            // The next server tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The second names of a user's files.
pub(crate) struct Links {
    directory: OwnedFd,
    len_max: u64,
}

impl Links {
    /// Whether no client has a file by the name that it was given. What another program has done to its
    /// length is undone.
    pub(crate) fn is_closed(&self, handle: u64) -> bool {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let Ok(file) = openat(&self.directory, &placeholder_name(handle)[..16], flags, Mode::empty()) else {
            // Without descriptors it can't be said.
            return false;
        };
        if let Err(errno) = ftruncate(&file, self.len_max) {
            tracing::warn!(%errno, "what programs write to an open file of a client may be lost unnoticed");
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::WOULDBLOCK)
    }
}

/// The files of a user. They go with this.
pub(crate) struct Places {
    directory: Arc<OwnedFd>,
    links: Arc<Links>,
    reports: OwnedFd,
    free: Vec<u64>,
    in_use: usize,
    _path: Removed,
}

impl Places {
    /// In which they are opened.
    pub(crate) fn directory(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.directory)
    }

    /// By which they are looked at.
    pub(crate) fn links(&self) -> Arc<Links> {
        Arc::clone(&self.links)
    }

    /// Which of them are opened and closed.
    pub(crate) fn reports(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }

    /// One that is not in use.
    pub(crate) fn take(&mut self) -> io::Result<u64> {
        let handle = if let Some(handle) = self.free.pop() { handle } else { self.make()? };
        self.in_use += 1;
        Ok(handle)
    }

    fn make(&self) -> io::Result<u64> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&*self.directory, NEW, flags, Mode::RUSR)?;
        fchmod(&file, Mode::from_raw_mode(PLACEHOLDER_MODE & 0o7777))?;
        ftruncate(&file, self.links.len_max)?;
        let handle = fstat(&file)?.st_ino;
        if handle & NUMBERED != 0 {
            return Err(Errno::OVERFLOW.into());
        }
        let name = placeholder_name(handle);
        renameat(&*self.directory, NEW, &*self.directory, &name[..16])?;
        linkat(&*self.directory, &name[..16], &self.links.directory, &name[..16], AtFlags::empty())?;
        Ok(handle)
    }

    /// It is not in use any more.
    pub(crate) fn put(&mut self, handle: u64) {
        self.free.push(handle);
        self.in_use -= 1;
    }

    pub(crate) fn is_used(&self) -> bool {
        self.in_use > 0
    }

    /// The handle of a file's name.
    pub(crate) fn handle_of(name: &CStr) -> Option<u64> {
        u64::from_str_radix(name.to_str().ok()?, 16).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_a_killed_server_is_removed_by_the_next_one() {
        let base = std::env::temp_dir().join(format!("kvfs-places-{}", std::process::id()));
        fs::create_dir(&base).expect("makes");
        let left = base.join(format!("{PREFIX}left"));
        fs::create_dir(&left).expect("makes");
        let one = Directory::make_in(&base).expect("makes");
        let other = Directory::make_in(&base).expect("makes");
        assert!(!left.exists() && one.path.exists() && other.path.exists());
        drop((one, other));
        fs::remove_dir(&base).expect("nothing is left");
    }

    #[test]
    fn places_are_used_again() {
        let directory = Directory::make().expect("makes");
        let mut places = directory.places().expect("makes");
        let (one, other) = (places.take().expect("makes"), places.take().expect("makes"));
        assert_ne!(one, other);
        places.put(one);
        assert_eq!(places.take().expect("is there"), one);
        assert!(places.is_used());
        for handle in [one, other] {
            places.put(handle);
        }
        assert!(!places.is_used());
    }

    #[test]
    fn files_of_a_user_go_when_they_are_not_used_and_what_is_left_is_in_no_ones_way() {
        let directory = Directory::make().expect("makes");
        let there = || fs::read_dir(&directory.path).expect("lists").count();
        let mut places = directory.places().expect("makes");
        places.take().expect("makes");
        assert_eq!(there(), 1);
        drop(places);
        assert_eq!(there(), 0);
        fs::create_dir(directory.path.join("1")).expect("makes");
        assert!(directory.places().is_err(), "the next one's name is taken");
        let places = directory.places().expect("makes");
        assert_eq!(there(), 2);
        drop(places);
    }
}
