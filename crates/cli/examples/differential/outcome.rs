//! What an operation answers, in the form in which it is compared.

use std::fmt;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::op::Bits;

/// Times below this many seconds were set by an operation; later ones are the system's.
const TIME_SET_MAX: i64 = 1_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Unit,
    Number(u64),
    Bytes(Vec<u8>),
    Names(Vec<Vec<u8>>),
    Stat(Summary),
}

/// Attributes that every file system must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    mode: Bits,
    links: u64,
    owner: (u32, u32),
    /// None for directories, whose sizes differ.
    size: Option<i64>,
    device: u64,
    /// None where the system has set it.
    mtime: Option<i64>,
}

impl Summary {
    pub(crate) fn of(stat: &Stat) -> Self {
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        Self {
            mode: Bits(stat.st_mode),
            links: stat.st_nlink,
            owner: (stat.st_uid, stat.st_gid),
            size: (!is_dir).then_some(stat.st_size),
            device: stat.st_rdev,
            mtime: (stat.st_mtime < TIME_SET_MAX).then_some(stat.st_mtime),
        }
    }
}

/// A value, or an errno.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome(pub(crate) Result<Value, Errno>);

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(Value::Bytes(bytes)) if bytes.len() > 64 => {
                let (first, last) = (&bytes[..8], &bytes[bytes.len() - 8..]);
                write!(f, "{} bytes, the first {first:?}, the last {last:?}", bytes.len())
            }
            Ok(value) => write!(f, "{value:?}"),
            Err(errno) => write!(f, "{errno:?}"),
        }
    }
}
