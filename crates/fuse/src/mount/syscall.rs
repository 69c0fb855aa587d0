//! Mounting as root.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{getegid, geteuid};

use super::{MountError, MountOptions};
use crate::transport::DEVICE_PATH;

/// Mounts at `reach` and returns the connection's descriptor; errors call the mount point `point`.
pub(super) fn mount(reach: &Path, point: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let fd = open(DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| MountError::Device { source: errno.into() })?;
    let data = options.syscall_data(fd.as_raw_fd(), geteuid().as_raw(), getegid().as_raw());
    let data = CString::new(data)
        .map_err(|_| MountError::Option { option: "data".to_owned(), reason: "contains a NUL byte" })?;
    let fs_type = format!("fuse.{}", options.subtype);
    rustix::mount::mount(options.source.as_path(), reach, fs_type, options.flags(), Some(data.as_c_str()))
        .map_err(|errno| MountError::Mount { point: point.to_owned(), errno })?;
    Ok(fd)
}
