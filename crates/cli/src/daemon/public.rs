//! The sockets for the users of a store that root has mounted, or serves, to whom its directory is closed
//! (docs/decisions/public-sockets.md).
//!
//! Their directory belongs to root and can be neither listed nor written to by others. Which request is
//! allowed for which user is decided for each one (`service/authority.rs`), for keys and transactions by
//! their owners.
//!
//! Thread safety: immutable. Invariants: only a daemon of root's whose mount lets other users in has them. A
//! daemon holds the lock (flock) of its directory for as long as it has sockets there, so a directory whose
//! lock is free is that of a daemon that was killed; the lock counts only while the directory still has its
//! name.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use kvfs_socket::public;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::Plan;
use crate::control::SOCKET_NAME as CONTROL;

const NAMES: [&str; 3] = [CONTROL, kvfs_rpc::SOCKET_NAME, kvfs_lane::SOCKET_NAME];

/// A directory that is removed each time between its making and its locking: others have this often started.
const LOCK_TRIES: usize = 100;

/// The directory; removed on drop.
pub(crate) struct PublicSockets {
    directory: PathBuf,
    _lock: OwnedFd,
}

impl PublicSockets {
    /// Makes the directory for the mounts that show `source`, and removes those of daemons that were killed.
    /// `None`: this mount has none.
    pub(super) fn new(plan: &Plan, source: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let base = Path::new(public::BASE);
        remove_dead(base);
        if !plan.mount.allow_other {
            return None;
        }
        let directory = public::directory(source);
        match make(base, 0o755).and_then(|()| claim(&directory)) {
            Ok(lock) => Some(Self { directory, _lock: lock }),
            Err(error) => {
                let directory = directory.display();
                tracing::warn!(%directory, %error, "no sockets for ordinary users: they have files only");
                None
            }
        }
    }

    /// Listens for `kvfs` commands.
    pub(super) fn listen_for_commands(&self) -> Option<UnixListener> {
        self.listen(CONTROL)
    }

    /// Listens for clients that want keys.
    pub(super) fn listen_for_keys(&self) -> Option<UnixListener> {
        self.listen(kvfs_rpc::SOCKET_NAME)
    }

    /// Where clients that want keys are led to.
    pub(super) fn keys_name(&self) -> PathBuf {
        self.directory.join(kvfs_rpc::SOCKET_NAME)
    }

    /// Listens for processes without a mount.
    pub(super) fn listen_for_files(&self) -> Option<UnixListener> {
        self.listen(kvfs_lane::SOCKET_NAME)
    }

    /// The directory is locked, so no living daemon is behind a socket that is there.
    fn listen(&self, name: &str) -> Option<UnixListener> {
        let path = self.directory.join(name);
        let bind = || {
            remove(&path)?;
            let listener = UnixListener::bind(&path)?;
            fs::set_permissions(&path, Permissions::from_mode(0o666))?;
            Ok(listener)
        };
        bind()
            .inspect_err(|error: &io::Error| tracing::warn!(path = %path.display(), %error, "not listening"))
            .ok()
    }
}

impl Drop for PublicSockets {
    fn drop(&mut self) {
        // Nothing more is to be done about what stays: the next start of a daemon removes it.
        let _ = empty(&self.directory);
    }
}

/// A directory of root's that others can't write to, made if it is missing.
fn make(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        // Whatever the umask is.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(mode))?,
        Err(_) => {}
    }
    let found = fs::symlink_metadata(path)?;
    if found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other("it is not root's alone; remove it"))
}

/// Makes the directory if it is missing, and takes its lock.
fn claim(directory: &Path) -> io::Result<OwnedFd> {
    for _ in 0..LOCK_TRIES {
        match make(directory, 0o711).and_then(|()| lock(directory)) {
            // Another daemon has just taken it for that of a dead one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done,
        }
    }
    Err(io::Error::other("it is removed again and again"))
}

/// Takes the lock of a directory. `NotFound`: it has lost its name meanwhile.
fn lock(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "another daemon listens there"));
        }
        locked => locked?,
    }
    let (held, named) = (fstat(&opened)?, fs::symlink_metadata(directory)?);
    if (held.st_dev, held.st_ino) != (named.dev(), named.ino()) {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(opened)
}

/// Removes the directories in `base` of daemons that were killed.
fn remove_dead(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten().filter(|entry| is_id(&entry.file_name())) {
        let path = entry.path();
        let is_own = fs::symlink_metadata(&path)
            .is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw());
        if !is_own {
            continue;
        }
        // Held until it is gone. A daemon of an earlier version has no lock, but accepts.
        let Ok(_lock) = lock(&path) else { continue };
        if NAMES.iter().any(|name| accepts(&path.join(name))) {
            continue;
        }
        match empty(&path) {
            Ok(()) => {
                tracing::info!(path = %path.display(), "removed the sockets of a daemon that was killed");
            }
            Err(error) => tracing::debug!(path = %path.display(), %error, "sockets of a dead daemon stay"),
        }
    }
}

/// Whether a name in the base directory is that of a store: a hash.
fn is_id(name: &OsStr) -> bool {
    // 16: of earlier versions.
    matches!(name.len(), 16 | 64) && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit)
}

/// Whether a process listens on the socket. Does not wait for it to accept.
fn accepts(path: &Path) -> bool {
    let connect = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
    };
    !matches!(connect(), Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// Removes the sockets of a directory, and the directory.
fn empty(directory: &Path) -> io::Result<()> {
    for name in NAMES {
        remove(&directory.join(name))?;
    }
    fs::remove_dir(directory)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn base(test: &str) -> PathBuf {
        // The path of a socket must be short.
        let base = Path::new("/tmp").join(format!("kvfs-public-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        make(&base, 0o755).expect("makes the base");
        base
    }

    #[test]
    fn sockets_of_killed_daemons_are_removed_and_those_of_living_ones_kept() {
        let base = base("dead");
        let of = |digit: &str, len: usize| base.join(digit.repeat(len));
        let [dead, held, earlier, foreign] = [of("a", 64), of("b", 64), of("c", 16), base.join("other")];
        for path in [&dead, &held, &earlier, &foreign] {
            make(path, 0o711).expect("makes a directory");
        }
        // A killed daemon leaves the names of its sockets.
        drop(UnixListener::bind(dead.join(CONTROL)).expect("binds"));
        drop(UnixListener::bind(held.join(CONTROL)).expect("binds"));
        let lock = claim(&held).expect("takes the lock");
        let living = UnixListener::bind(earlier.join(CONTROL)).expect("binds");
        assert!(claim(&held).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
        remove_dead(&base);
        assert!(!dead.exists() && held.join(CONTROL).exists());
        assert!(earlier.join(CONTROL).exists() && foreign.exists());
        drop((lock, living));
        remove_dead(&base);
        assert!(!held.exists() && !earlier.exists() && foreign.exists());
        fs::remove_dir_all(&base).expect("cleans up");
    }

    #[test]
    fn a_directory_is_claimed_once_while_others_remove_dead_ones() {
        let base = base("race");
        let path = base.join("d".repeat(64));
        let (start, claimed) = (Barrier::new(8), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for at in 0..8 {
                let (base, path, start, claimed) = (&base, &path, &start, &claimed);
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..200 {
                        if at < 4 {
                            remove_dead(base);
                            continue;
                        }
                        let Ok(lock) = claim(path) else { continue };
                        assert_eq!(claimed.fetch_add(1, Ordering::SeqCst), 0, "two have it");
                        let named = fs::symlink_metadata(path).expect("has its name");
                        assert_eq!(named.ino(), fstat(&lock).expect("is open").st_ino);
                        claimed.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        fs::remove_dir_all(&base).expect("cleans up");
    }
}
