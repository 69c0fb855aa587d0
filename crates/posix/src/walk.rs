//! From a path to a node.
//!
//! Purpose: the walk of POSIX: each directory on the way must be searchable, symbolic links are followed, at
//! most [`LINKS_MAX`] of them, a slash in the end asks for a directory. The last one is followed in a sticky
//! directory as the kernel does where links are protected.
//!
//! Thread safety: stateless; a name may be another file's when the walk has ended.

use std::borrow::Cow;
use std::sync::Arc;

use kvfs_fs::{Attr, FileSystem, FileType, FsError};
use rustix::io::Errno;

use crate::error::{PosixError, Result, refuse};
use crate::held::{Held, settled};
use crate::identity::{Actor, EXECUTE};
use crate::open_file::OpenFile;

/// Longest path (bytes), its end included.
pub const PATH_LEN_MAX: usize = 4096;

/// Most symbolic links on one way.
pub const LINKS_MAX: u32 = 40;

/// A node and its attributes when the walk came to it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) held: Arc<Held>,
    pub(crate) attr: Attr,
    /// The open file whose descriptor led to it; `None`: a name did.
    pub(crate) file: Option<Arc<OpenFile>>,
}

/// Where a path leads.
#[derive(Debug)]
pub(crate) struct Walked {
    /// The directory of the last component; or what the path leads to, if it has no name there: `/`, `.`,
    /// `..`.
    pub(crate) directory: Found,
    /// The last component.
    pub(crate) name: Option<Vec<u8>>,
    /// What has that name.
    pub(crate) found: Option<Found>,
    /// Slashes follow it.
    pub(crate) is_slashed: bool,
}

impl Walked {
    /// What the path leads to.
    pub(crate) fn existing(self) -> Result<Found> {
        match (self.name, self.found) {
            (None, _) => Ok(self.directory),
            (_, Some(found)) => Ok(found),
            (Some(_), None) => Err(FsError::NotFound.into()),
        }
    }

    /// The directory and the name in it. `.` and `..` have none, as `refusal` says.
    pub(crate) fn named(self, refusal: Errno) -> Result<(Found, Vec<u8>, Option<Found>, bool)> {
        match self.name {
            Some(name) => Ok((self.directory, name, self.found, self.is_slashed)),
            None => refuse(refusal, "a path that ends in no name of its own"),
        }
    }
}

/// What is meant by the last component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The name, whatever has it, and whatever slashes follow: it is to be made, removed or changed.
    Name,
    /// What it leads to, or would: a file that may have to be made, whatever slashes follow.
    Made,
    /// What has it; a symbolic link itself, unless slashes follow.
    Itself,
    /// What it leads to.
    Target,
}

/// Walks for one user on one file system.
pub(crate) struct Walker<'w> {
    pub(crate) fs: &'w Arc<FileSystem>,
    pub(crate) actor: &'w Actor,
    pub(crate) root: &'w Arc<Held>,
    /// Where the root lies in a file system around it.
    pub(crate) place: Option<&'w [u8]>,
}

impl Walker<'_> {
    /// `start` is where a path begins that does not begin with a slash.
    pub(crate) fn walk(&self, start: Arc<Held>, path: &[u8], end: End) -> Result<Walked> {
        if path.is_empty() {
            return Err(FsError::NotFound.into());
        }
        if path.len() >= PATH_LEN_MAX {
            return refuse(Errno::NAMETOOLONG, "a path of 4,096 bytes or more");
        }
        if path.contains(&0) {
            return refuse(Errno::INVAL, "a path with a zero byte");
        }
        let mut at = self.described(if path[0] == b'/' { Arc::clone(self.root) } else { start })?;
        let (mut path, mut walked, mut links) = (Cow::Borrowed(path), 0, 0);
        loop {
            let begin = walked + path[walked..].iter().take_while(|byte| **byte == b'/').count();
            let end_of_name = begin + path[begin..].iter().take_while(|byte| **byte != b'/').count();
            let (name, behind) = (&path[begin..end_of_name], &path[end_of_name..]);
            if name.is_empty() {
                return Ok(Walked { directory: at, name: None, found: None, is_slashed: true });
            }
            let is_last = behind.iter().all(|byte| *byte == b'/');
            let is_slashed = is_last && !behind.is_empty();
            self.check_search(&at)?;
            if name == b"." || name == b".." {
                if name == b".." && at.held.node() == self.root.node() {
                    self.check_within(behind)?;
                }
                at = if name == b"." { at } else { self.lookup(&at, name)? };
                if is_last {
                    return Ok(Walked { directory: at, name: None, found: None, is_slashed });
                }
                walked = end_of_name;
                continue;
            }
            let found = match self.lookup(&at, name) {
                Err(PosixError::Fs(FsError::NotFound)) if is_last => {
                    return Ok(Walked { directory: at, name: Some(name.to_vec()), found: None, is_slashed });
                }
                found => found?,
            };
            let is_passed = match end {
                End::Name => !is_last,
                End::Made => !is_slashed,
                End::Itself => !is_last || is_slashed,
                End::Target => true,
            };
            if found.attr.kind == FileType::Symlink && is_passed {
                links += 1;
                if links > LINKS_MAX {
                    return refuse(Errno::LOOP, "more than 40 symbolic links");
                }
                if is_last {
                    self.actor.check_follow(&at.attr, &found.attr)?;
                }
                let (caller, node) = (&self.actor.caller, found.held.node());
                let target = settled(caller, |caller| self.fs.readlink(caller, node))?;
                let target = [&target, behind].concat();
                let target = if target.first() == Some(&b'/') {
                    at = self.described(Arc::clone(self.root))?;
                    self.within(target)?
                } else {
                    target
                };
                (path, walked) = (Cow::Owned(target), 0);
                continue;
            }
            if is_last {
                if is_slashed
                    && matches!(end, End::Itself | End::Target)
                    && found.attr.kind != FileType::Directory
                {
                    return Err(FsError::NotDirectory.into());
                }
                return Ok(Walked {
                    directory: at,
                    name: Some(name.to_vec()),
                    found: Some(found),
                    is_slashed,
                });
            }
            (at, walked) = (found, end_of_name);
        }
    }

    /// An absolute path as seen from the root.
    fn within(&self, mut path: Vec<u8>) -> Result<Vec<u8>> {
        let Some(place) = self.place else { return Ok(path) };
        match path.strip_prefix(place) {
            Some([]) => Ok(b"/".to_vec()),
            Some([b'/', ..]) => Ok(path.split_off(place.len())),
            _ => Err(PosixError::Outside { path }),
        }
    }

    /// Whether the root is above itself, as where nothing is around; `behind` is where the path goes on.
    fn check_within(&self, behind: &[u8]) -> Result<()> {
        let Some(place) = self.place else { return Ok(()) };
        let len = place.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let mut path = place[..len].to_vec();
        path.extend_from_slice(behind);
        if path.is_empty() {
            path.push(b'/');
        }
        Err(PosixError::Outside { path })
    }

    fn check_search(&self, at: &Found) -> Result<()> {
        if at.attr.kind != FileType::Directory {
            return Err(FsError::NotDirectory.into());
        }
        self.actor.check(self.fs, at.held.node(), &at.attr, EXECUTE)
    }

    fn lookup(&self, at: &Found, name: &[u8]) -> Result<Found> {
        let (held, attr) = at.held.lookup(&self.actor.caller, name)?;
        Ok(Found { held, attr, file: None })
    }

    pub(crate) fn described(&self, held: Arc<Held>) -> Result<Found> {
        let attr = held.attr(&self.actor.caller)?;
        Ok(Found { held, attr, file: None })
    }
}
