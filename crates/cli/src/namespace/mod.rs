//! Mount namespaces of their own for commands in transactions.
//!
//! As root directly; as any other user inside a user namespace that keeps the user's ids. Only for processes
//! with one thread, as long as they have one.
//!
//! Invariant: what is mounted, and what it is mounted on, is given by descriptor. A path may lead through
//! directories of a user's, in which a symbolic link would send root elsewhere.

mod unshare;

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_change,
    mount_remount, move_mount, open_tree, unmount,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

use crate::error::{CliError, Code, Result};

/// Moves this process into a mount namespace of its own, from which nothing is seen outside.
pub(crate) fn enter() -> Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    let mut flags = UnshareFlags::NEWNS;
    if !uid.is_root() {
        flags |= UnshareFlags::NEWUSER;
    }
    unshare::unshare(flags).map_err(|errno| explain(errno, uid.is_root()))?;
    if !uid.is_root() {
        // The order is the kernel's: without a "deny" no process may map groups.
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
        Errno::PERM => CliError::new(
            Code::Denied,
            "root has no CAP_SYS_ADMIN here, which a view of the transaction needs: in a container, add it, or run \
             this as an ordinary user; `kvfs kv` needs no view, in what `kvfs txn begin` prints (KVFS_TXN=ID)",
        ),
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

/// Takes away the mount of which `root` is the root in this namespace, so that no process in it keeps it in
/// use or sees it. Where it can't be taken (it came with a more privileged namespace), it is only covered.
pub(crate) fn uncover(root: &OwnedFd) {
    let _ = unmount(through(root), UnmountFlags::DETACH);
}

/// A detached copy of the mount that `shown` is on, with `shown` as its root, for [`attach`]. `deep`: with
/// all that is mounted below. Messages call it `name`.
pub(crate) fn take_copy(shown: &OwnedFd, deep: bool, name: &Path) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags |= OpenTreeFlags::AT_EMPTY_PATH;
    if deep {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    open_tree(shown, "", flags).map_err(|errno| failed(&format!("show {} elsewhere", name.display()), errno))
}

/// Attaches a detached mount on `place`, which messages call `name`. Its descriptor then leads to its root
/// there.
pub(crate) fn attach(mount: &OwnedFd, place: &OwnedFd, name: &Path) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", place, "", flags)
        .map_err(|errno| failed(&format!("show the transaction on {}", name.display()), errno))
}

/// Gives the mount of which `root` is the root the flags that `options` of a mount table show, and makes it
/// read-only where asked to. Messages call it `name`.
pub(crate) fn set_flags(root: &OwnedFd, options: &str, read_only: bool, name: &Path) -> Result<()> {
    let mut flags = MountFlags::BIND;
    for option in options.split(',') {
        flags |= match option {
            "ro" => MountFlags::RDONLY,
            "nosuid" => MountFlags::NOSUID,
            "nodev" => MountFlags::NODEV,
            "noexec" => MountFlags::NOEXEC,
            "noatime" => MountFlags::NOATIME,
            "nodiratime" => MountFlags::NODIRATIME,
            "relatime" => MountFlags::RELATIME,
            _ => MountFlags::empty(),
        };
    }
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    if !geteuid().is_root() {
        // As on the mount of an ordinary user's view.
        flags |= MountFlags::NOSUID | MountFlags::NODEV;
    }
    mount_remount(through(root), flags, "")
        .map_err(|errno| failed(&format!("set the flags of the mount on {}", name.display()), errno))
}

/// A path to what is open.
fn through(opened: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}
