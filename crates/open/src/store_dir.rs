//! A store as people see it: a directory that holds or names the device, and what a daemon puts beside it.
//!
//! ```text
//! STORE/device         sparse file that grows, or a symbolic link to a file or block device
//! STORE/engine         of a store that is not kvdb's, instead of a device: which engine it has
//! STORE/device.1       a symbolic link to another device of the store, if it has several; device.2 and so on
//! STORE/uuid           if the device is a link: which store it leads to
//! STORE/control.sock   while mounted: the daemon's socket for the `kvfs` command
//! STORE/kv.sock        while mounted: its socket for keys and transactions
//! STORE/views/ID       while mounted: the view of an open transaction
//! STORE/receiving      what has arrived of a stream that `kvfs snapshot receive` takes
//! STORE/kvfs.log       what the daemon had to say in the background
//! ```
//!
//! Purpose: [`StoreDir`] is the only way to the files of a store. The directory may belong to another user
//! than the process that works on it, root as a rule: nothing that this user puts there may lead the process
//! elsewhere. So the directory is opened once, and everything in it through that descriptor.
//!
//! Thread safety: immutable, cheap to clone. Invariants: no symbolic link in the directory is followed but
//! that of the devices; a device that is reached in another user's directory belongs to that user; a file is
//! used only if it is a regular one with one name, of the directory's owner or of this process's user.

mod device;
mod identity;
mod text;

pub use device::DevicePlace;
pub(crate) use device::open_target;

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use kvfs_service::ErrorKind;

use crate::engines::mark;
use crate::error::{Error, Result};

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Inode number of the root, where a file system is mounted.
const ROOT_INODE: u64 = 1;

/// See the module.
#[derive(Debug, Clone)]
pub struct StoreDir {
    /// For messages and the mount table.
    path: PathBuf,
    dir: Arc<OwnedFd>,
    owner: Owner,
    /// Of one in which a store is being made.
    claim: Option<Arc<Claim>>,
}

/// A directory in which this process makes a store, and no other.
#[derive(Debug)]
struct Claim {
    /// Whether the directory was made for it.
    is_new: bool,
    /// Held under a lock.
    _dir: OwnedFd,
}

/// Owner of the directory, when it was opened.
#[derive(Debug, Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
    /// Permission bits.
    mode: u32,
}

impl Owner {
    fn of(dir: &OwnedFd) -> Result<Self, Errno> {
        let found = rustix::fs::fstat(dir)?;
        Ok(Self { uid: found.st_uid, gid: found.st_gid, mode: found.st_mode & 0o7777 })
    }

    /// Whether another user than this process's, and than root, decides what is in the directory.
    fn is_foreign(self) -> bool {
        self.uid != effective_uid() && self.uid != 0
    }

    /// Whether others than the owner decide what is in the directory. An ordinary user chooses how to share
    /// it.
    fn is_shared(self) -> bool {
        self.mode & 0o002 != 0 || (self.mode & 0o020 != 0 && self.gid != 0 && effective_uid() == 0)
    }
}

impl StoreDir {
    /// An existing store.
    ///
    /// # Errors
    /// There is none; users that this process does not trust may write to the directory.
    pub fn open(path: &Path) -> Result<Self> {
        let absolute = path.canonicalize().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::Missing(path.to_owned()),
            _ => Error::io("open the store", path, &error),
        })?;
        let not_a_store = || {
            let message = format!(
                "{} is not a kvfs store (it has no device inside, and names no engine)",
                path.display()
            );
            Error::new(ErrorKind::NotAStore, message)
        };
        let store = match Self::reach(absolute) {
            Err(Errno::NOTDIR) => return Err(not_a_store()),
            reached => reached.map_err(|errno| Error::io("open the store", path, &errno.into()))?,
        };
        match store.holds_store() {
            Ok(true) => store.check_private().map(|()| store),
            Ok(false) => Err(not_a_store()),
            Err(errno) => Err(Error::io("look into", path, &errno.into())),
        }
    }

    /// A directory for a new store: made when missing, refused when it holds anything or lies on the mount of
    /// a store. No other process makes one there for as long as this lives.
    ///
    /// # Errors
    /// It holds something, or soon will; it can't be made; it is on a mount of a store; users that this
    /// process does not trust may write to it.
    pub fn prepare(path: &Path) -> Result<Self> {
        let is_new = match fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(Error::io("make", path, &error)),
        };
        let failed = |errno: Errno| Error::io("make a store in", path, &errno.into());
        let absolute = path.canonicalize().map_err(|error| Error::io("open", path, &error))?;
        let mut store = Self::reach(absolute).map_err(failed)?;
        let Some(dir) = store.lock().map_err(failed)? else {
            let message = format!("another process is making a store in {}", path.display());
            return Err(Error::new(ErrorKind::InUse, message));
        };
        store.claim = Some(Arc::new(Claim { is_new, _dir: dir }));
        store.check_apart().inspect_err(|_| {
            if is_new {
                // What is left of a failure is an empty directory.
                let _ = store.remove();
            }
        })?;
        if store.holds_store().map_err(failed)? {
            return Err(Error::new(
                ErrorKind::InUse,
                format!("{} already holds a store; remove it first if you mean to lose it", path.display()),
            ));
        }
        if store.holds_anything().map_err(failed)? {
            return Err(Error::new(
                ErrorKind::InUse,
                format!("{} is not empty; a store needs a directory of its own", path.display()),
            ));
        }
        store.check_private()?;
        Ok(store)
    }

    fn reach(path: PathBuf) -> Result<Self, Errno> {
        let dir = rustix::fs::open(&path, DIRECTORY, Mode::empty())?;
        let owner = Owner::of(&dir)?;
        Ok(Self { path, dir: Arc::new(dir), owner, claim: None })
    }

    /// The directory under a lock, before anything is looked for in it. `None`: another process has it, or
    /// had it and has removed it.
    fn lock(&self) -> Result<Option<OwnedFd>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&*self.dir, c".", flags, Mode::empty())?;
        match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            // A file system without such locks, as NFS for directories.
            Err(Errno::BADF | Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) | Ok(()) => {}
            Err(errno) => return Err(errno),
        }
        let (locked, named) = (rustix::fs::fstat(&dir)?, rustix::fs::stat(&self.path));
        let is_there =
            named.is_ok_and(|named| (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino));
        Ok(is_there.then_some(dir))
    }

    /// Whether the directory was made for the store that is being made.
    pub(crate) fn is_new(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.is_new)
    }

    /// Whether there is something at `path` other than an empty directory.
    pub fn is_occupied(path: &Path) -> bool {
        match fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }

    /// Refuses to mount a store that is another user's, unless `owner` says that it is this user's.
    ///
    /// # Errors
    /// It is another user's.
    pub fn check_owner(&self, owner: Option<u32>) -> Result<()> {
        let uid = self.owner.uid;
        if self.owner.is_foreign() && owner != Some(uid) {
            let message = format!(
                "{} belongs to user {uid}, not to user {}: its owner may have put anything there; mount it as user \
                 {uid}, or with -o store_owner={uid} if you trust what user {uid} stores",
                self.path.display(),
                effective_uid()
            );
            return Err(Error::new(ErrorKind::Denied, message));
        }
        Ok(())
    }

    /// Refuses a directory in which others than this process's user may put things. Another user's directory
    /// is not trusted anyway.
    fn check_private(&self) -> Result<()> {
        if self.owner.is_foreign() || !self.owner.is_shared() {
            return Ok(());
        }
        let path = self.path.display();
        let message =
            format!("others may write to {path}, so it can't hold a store; `chmod go-w {path}` first");
        Err(Error::new(ErrorKind::Denied, message))
    }

    /// Refuses a directory on the mount of a store: its programs would have two stores by one path.
    fn check_apart(&self) -> Result<()> {
        let mount = rustix::fs::fstat(&self.dir)
            .map_err(Into::into)
            .and_then(|found| kvfs_socket::locate::mount_of_device(found.st_dev));
        let Some(mount) = mount.map_err(|error| Error::io("make a store in", &self.path, &error))? else {
            return Ok(());
        };
        let message = format!(
            "cannot make a store in {}: the store {} is mounted on {}; choose a directory elsewhere",
            self.path.display(),
            mount.store.display(),
            mount.point.display()
        );
        Err(Error::new(ErrorKind::MountPoint, message))
    }

    /// Whether the root of a mounted store is at `path`.
    pub fn is_mounted_at(path: &Path) -> bool {
        let is_of_store = |found: fs::Metadata| {
            found.ino() == ROOT_INODE
                && kvfs_socket::locate::mount_of_device(found.dev()).is_ok_and(|mount| mount.is_some())
        };
        fs::metadata(path).is_ok_and(is_of_store)
    }

    /// Its absolute path, for messages, the mount table, and programs that come by it. Nothing in it is
    /// opened by it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The owner of the directory, and so of the store.
    pub fn uid(&self) -> u32 {
        self.owner.uid
    }

    /// User and group that a store made here belongs to: another user's directory's owner, else this
    /// process's.
    pub fn beneficiary(&self) -> (u32, u32) {
        if self.owner.is_foreign() {
            return (self.owner.uid, self.owner.gid);
        }
        (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
    }

    /// Bytes that the file system around it can still give.
    ///
    /// # Errors
    /// The file system does not say.
    pub fn free_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.dir);
        let stat = stat.map_err(|errno| Error::io("ask for free space at", &self.path, &errno.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Takes the empty directory away.
    ///
    /// # Errors
    /// I/O errors.
    pub fn remove(&self) -> std::io::Result<()> {
        fs::remove_dir(&self.path)
    }

    /// A path that leads through the descriptor.
    fn by_descriptor(&self, name: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(self.dir.as_raw_fd().to_string()).join(name)
    }

    /// The directory. Files in it are opened by this.
    pub fn directory(&self) -> &Arc<OwnedFd> {
        &self.dir
    }

    /// The group of the directory.
    pub fn gid(&self) -> u32 {
        self.owner.gid
    }

    /// Whether another user than this process's, and than root, decides what is in the directory.
    pub fn is_foreign(&self) -> bool {
        self.owner.is_foreign()
    }

    /// What `name` is; symbolic links are not followed.
    ///
    /// # Errors
    /// ENOENT; I/O errors.
    pub fn look(&self, name: &str) -> Result<rustix::fs::Stat, Errno> {
        rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Whether there is a first device, or the mark of an engine.
    fn holds_store(&self) -> Result<bool, Errno> {
        for name in [device::FIRST, mark::NAME] {
            match self.look(name) {
                Ok(_) => return Ok(true),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(false)
    }

    fn holds_anything(&self) -> Result<bool, Errno> {
        let entries = rustix::fs::openat(&self.dir, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for entry in rustix::fs::Dir::new(entries)? {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
