//! Where a call looks for a file, from the arguments that C has for it.
//!
//! Thread safety: plain values.

use std::ffi::c_int;

use kvfs_posix::{Fd, Place};

use crate::failure::{Result, refuse};
use crate::foreign::Text;

/// A place whose arguments make sense.
pub(crate) struct CheckedPlace<'t>(pub(crate) Place<'t>);

impl<'t> CheckedPlace<'t> {
    /// From the working directory.
    pub(crate) fn path(path: &'t Text) -> Result<Self> {
        Ok(Self(Place::path(path.bytes()?)))
    }

    /// A symbolic link itself.
    pub(crate) fn link(path: &'t Text) -> Result<Self> {
        Ok(Self(Place::path(path.bytes()?).no_follow()))
    }

    /// From a directory (the calls whose names end in `at`).
    pub(crate) fn at(directory: c_int, path: &'t Text) -> Result<Self> {
        let path = Place::path(path.bytes()?);
        Ok(Self(if directory == libc::AT_FDCWD { path } else { (Fd(directory), path).into() }))
    }

    /// The same, with flags of which `known` are allowed; `AT_SYMLINK_NOFOLLOW` and `AT_EMPTY_PATH` mean what
    /// they do on Linux.
    pub(crate) fn flagged(directory: c_int, path: &'t Text, flags: c_int, known: c_int) -> Result<Self> {
        if flags & !known != 0 {
            return refuse(libc::EINVAL, "flags that mean nothing here");
        }
        if flags & libc::AT_EMPTY_PATH != 0 && path.optional()?.is_none_or(<[u8]>::is_empty) {
            return Ok(Self(if directory == libc::AT_FDCWD {
                Place::from(".")
            } else {
                Place::named(Fd(directory))
            }));
        }
        let place = Self::at(directory, path)?.0;
        Ok(Self(if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { place.no_follow() } else { place }))
    }
}
