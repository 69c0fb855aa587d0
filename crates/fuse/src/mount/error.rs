//! Why mounting fails.

use std::{io, path::PathBuf};

use rustix::io::Errno;

/// Why a mount or unmount failed.
#[expect(missing_docs, reason = "the messages name the fields")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The mount point can't be looked at.
    #[error("mount point {point}: {source}")]
    Point { point: PathBuf, source: io::Error },
    /// The mount point is something else.
    #[error("mount point {point} is not a directory")]
    NotDirectory { point: PathBuf },
    /// The mount point is another user's.
    #[error("{point} belongs to user {found}, not to user {owner}; choose a directory of user {owner}")]
    ForeignPoint { point: PathBuf, found: u32, owner: u32 },
    /// The mount point belongs to a file system whose daemon has died.
    #[error("{point} is a mount whose daemon has died; run `kvfs umount {point}` first")]
    Stale { point: PathBuf },
    /// No device.
    #[error("cannot open /dev/fuse: {source}; is the fuse module loaded and may you use the device?")]
    Device { source: io::Error },
    /// The kernel refused.
    #[error("cannot mount on {point}: {errno}")]
    Mount { point: PathBuf, errno: Errno },
    /// `fusermount3` is missing.
    #[error("cannot run fusermount3: {source}; install the package fuse3, or mount as root")]
    NoFusermount { source: io::Error },
    /// `fusermount3` refused.
    #[error("fusermount3 cannot mount on {point}: {message}")]
    Fusermount { point: PathBuf, message: String },
    /// `fusermount3` gave no descriptor.
    #[error("fusermount3 gave no descriptor for {point}: {errno}")]
    Descriptor { point: PathBuf, errno: Errno },
    /// An option contradicts itself or isn't a number.
    #[error("mount option \"{option}\": {reason}")]
    Option { option: String, reason: &'static str },
    /// In use.
    #[error("{point} is in use: a file is open or a working directory lies below it")]
    Busy { point: PathBuf },
    /// Nothing to unmount.
    #[error("nothing is mounted on {point}")]
    NotMounted { point: PathBuf },
    /// Not the caller's.
    #[error("you may not unmount {point}; only its owner and root may")]
    NotPermitted { point: PathBuf },
    /// Another failure.
    #[error("cannot unmount {point}: {errno}")]
    Unmount { point: PathBuf, errno: Errno },
    /// The connection goes on.
    #[error("cannot end the connection of {point}: {source}; SIGKILL of its daemon does")]
    Abort { point: PathBuf, source: io::Error },
}

impl MountError {
    /// Whether `fusermount3` says that a right is missing.
    pub fn is_denied(&self) -> bool {
        let Self::Fusermount { point, message } = self else { return false };
        let reason = super::fusermount::reason(message, point);
        ["access", "ermission", "permitted"].iter().any(|word| reason.contains(word))
    }
}
