//! Where a call looks for a file: a path from the working directory or from an open one, or an open file
//! itself.
//!
//! Thread safety: plain values.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A descriptor of a [`Process`](crate::Process).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fd(pub i32);

/// A path, and where it begins. What takes one takes a path as it is, too, a pair of an open directory and a
/// path (the calls of POSIX whose names end in `at`), and a descriptor (those whose names begin with `f`).
///
/// ```
/// use kvfs_posix::{Fd, Place};
///
/// let by_path = Place::from("/etc/motd");
/// let link_itself = Place::from("latest").no_follow();
/// let beneath = Place::from((Fd(3), "motd"));
/// let open_file = Place::from(Fd(4));
/// assert!(by_path.follows() && !link_itself.follows() && beneath != open_file);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    pub(crate) base: Option<Fd>,
    /// `None`: what `base` refers to.
    pub(crate) path: Option<&'a [u8]>,
    pub(crate) follows: bool,
    /// Without a path: by a name of the file.
    pub(crate) is_named: bool,
}

impl<'a> Place<'a> {
    /// Where `path` begins at the working directory.
    pub fn path(path: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { base: None, path: Some(path.as_ref()), follows: true, is_named: false }
    }

    /// If the last component is a symbolic link, the link itself is meant (`AT_SYMLINK_NOFOLLOW`).
    #[must_use]
    pub fn no_follow(mut self) -> Self {
        self.follows = false;
        self
    }

    /// The open directory at which a path begins, or the open file itself; `None`: the working directory.
    pub fn base(&self) -> Option<Fd> {
        self.base
    }

    /// The path; `None`: what [`Place::base`] refers to.
    pub fn name(&self) -> Option<&'a [u8]> {
        self.path
    }

    /// What an open file refers to, as if by a name of it: a descriptor of `O_PATH` will do (`AT_EMPTY_PATH`,
    /// `/proc/self/fd/N`).
    #[must_use]
    pub fn named(fd: Fd) -> Self {
        Self { is_named: true, ..fd.into() }
    }

    /// Whether it was made by [`Place::named`].
    pub fn is_named(&self) -> bool {
        self.is_named
    }

    /// Whether a symbolic link in the end is followed.
    pub fn follows(&self) -> bool {
        self.follows
    }
}

impl<'a> From<&'a str> for Place<'a> {
    fn from(path: &'a str) -> Self {
        Self::path(path)
    }
}

impl<'a> From<&'a [u8]> for Place<'a> {
    fn from(path: &'a [u8]) -> Self {
        Self::path(path)
    }
}

impl<'a> From<&'a OsStr> for Place<'a> {
    fn from(path: &'a OsStr) -> Self {
        Self::path(path.as_bytes())
    }
}

impl<'a> From<&'a Path> for Place<'a> {
    fn from(path: &'a Path) -> Self {
        path.as_os_str().into()
    }
}

impl<'a, P: Into<Place<'a>>> From<(Fd, P)> for Place<'a> {
    fn from((base, path): (Fd, P)) -> Self {
        Self { base: Some(base), ..path.into() }
    }
}

impl From<Fd> for Place<'_> {
    fn from(base: Fd) -> Self {
        Self { base: Some(base), path: None, follows: true, is_named: false }
    }
}
