//! A mount that is attached nowhere yet: root makes it, and another process attaches it where it may mount.
//!
//! The file system belongs to the namespaces of the process that made it, so the kernel checks permissions,
//! and tells ids, as on any mount of root's: the process that attaches it has no say in that.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};
use rustix::process::{getegid, geteuid};

use super::{AtimeMode, MountError, MountOptions};
use crate::transport::DEVICE_PATH;

/// Returns the mount, and the descriptor that the session works on.
pub(super) fn mount(options: &MountOptions) -> Result<(OwnedFd, OwnedFd), MountError> {
    let device = open(DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| MountError::Device { source: errno.into() })?;
    let mount = configured(options, &device)
        .map_err(|errno| MountError::Mount { point: Path::new("(not attached)").to_owned(), errno })?;
    Ok((mount, device))
}

fn configured(options: &MountOptions, device: &OwnedFd) -> Result<OwnedFd, Errno> {
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let device = device.as_raw_fd().to_string();
    let (uid, gid) = (geteuid().as_raw().to_string(), getegid().as_raw().to_string());
    fsconfig_set_string(&fs, "source", options.source.as_path())?;
    for (key, value) in [
        ("subtype", &*options.subtype),
        ("fd", &*device),
        ("rootmode", "40000"),
        ("user_id", &*uid),
        ("group_id", &*gid),
    ] {
        fsconfig_set_string(&fs, key, value)?;
    }
    for (key, is_set) in [
        ("allow_other", options.allow_other),
        ("default_permissions", options.default_permissions),
        ("ro", options.read_only),
        ("sync", options.sync),
        ("dirsync", options.dirsync),
    ] {
        if is_set {
            fsconfig_set_flag(&fs, key)?;
        }
    }
    fsconfig_create(&fs)?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes(options))
}

fn attributes(options: &MountOptions) -> MountAttrFlags {
    let mut attributes = match options.atime {
        AtimeMode::Relatime => MountAttrFlags::MOUNT_ATTR_RELATIME,
        AtimeMode::Noatime => MountAttrFlags::MOUNT_ATTR_NOATIME,
    };
    for (is_set, attribute) in [
        (options.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (options.nosuid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (options.nodev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (options.noexec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (options.nodiratime, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    ] {
        if is_set {
            attributes |= attribute;
        }
    }
    attributes
}
