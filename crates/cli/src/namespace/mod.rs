//! Mount and PID namespaces of their own for commands in transactions.
//!
//! As root directly; as anybody else inside a user namespace that keeps the user's ids. Only for processes
//! with one thread, as long as they have one.

mod unshare;

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

use crate::error::{CliError, Code, Result};

/// Moves this process into a mount namespace of its own, from which nothing is seen outside. With `own_pids`
/// its next child is the first process of a PID namespace.
pub(crate) fn enter(own_pids: bool) -> Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    let mut flags = UnshareFlags::NEWNS;
    if own_pids {
        flags |= UnshareFlags::NEWPID;
    }
    if !uid.is_root() {
        flags |= UnshareFlags::NEWUSER;
    }
    unshare::unshare(flags).map_err(|errno| explain(errno, uid.is_root()))?;
    if !uid.is_root() {
        // The order is the kernel's: without a "deny" nobody may map groups.
        map("setgroups", "deny")?;
        map("uid_map", &format!("{0} {0} 1", uid.as_raw()))?;
        map("gid_map", &format!("{0} {0} 1", gid.as_raw()))?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|errno| failed("keep mounts to itself", errno))
}

fn explain(errno: Errno, is_root: bool) -> CliError {
    match errno {
        Errno::PERM | Errno::NOSPC | Errno::USERS if !is_root => CliError::new(
            Code::Denied,
            "this system lets ordinary users make no namespaces (see user.max_user_namespaces and \
             kernel.unprivileged_userns_clone); run it as root, or use `kvfs txn begin`",
        ),
        Errno::PERM => CliError::new(Code::Denied, "namespaces need CAP_SYS_ADMIN; use `kvfs txn begin`"),
        errno => failed("make namespaces", errno),
    }
}

fn failed(what: &str, errno: Errno) -> CliError {
    CliError::new(Code::Failed, format!("cannot {what}: {errno}"))
}

fn map(file: &str, text: &str) -> Result<()> {
    let path = Path::new("/proc/self").join(file);
    fs::write(&path, text).map_err(|error| CliError::io("write", &path, &error))
}

/// Takes away the main line's mount in this namespace, so that nobody in it keeps it in use or sees it. Where
/// it can't be taken (it came with a more privileged namespace), it is only covered.
pub(crate) fn uncover(dir: &Path) {
    let _ = unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
}

/// Shows `from` also at `dir`.
pub(crate) fn bind(from: &Path, dir: &Path) -> Result<()> {
    mount_bind(from, dir).map_err(|errno| {
        CliError::new(Code::Failed, format!("cannot show {} on {}: {errno}", from.display(), dir.display()))
    })
}
