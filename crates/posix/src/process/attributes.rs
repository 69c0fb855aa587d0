//! What files are, and who may use them how.

use std::sync::Arc;

use kvfs_fs::{Attr, Caller, FileType, FsError, SetAttr, SetTime, StatFs};
use rustix::io::Errno;

use super::{Process, Scope};
use crate::Place;
use crate::error::{Result, refuse};
use crate::held::with_space;
use crate::identity::{EXECUTE, READ, WRITE, lends_ids};
use crate::walk::Found;

/// What `access` asks for; all `false`: whether it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// It can be read.
    pub reads: bool,
    /// It can be written.
    pub writes: bool,
    /// It can be run, or searched.
    pub executes: bool,
}

impl Process {
    /// What a file is. Its size is, of a directory, the number of entries; the device number is the program's
    /// to say.
    ///
    /// # Errors
    /// Those of the walk.
    pub fn stat<'a>(&self, place: impl Into<Place<'a>>) -> Result<Attr> {
        Ok(self.scope.find(place.into())?.attr)
    }

    /// Whether the user of this process may do that.
    ///
    /// # Errors
    /// EACCES; EROFS: to be written on a read-only file system; those of the walk.
    pub fn access<'a>(&self, place: impl Into<Place<'a>>, access: Access) -> Result<()> {
        let found = self.scope.find(place.into())?;
        let bit = |is_asked: bool, bit: u32| if is_asked { bit } else { 0 };
        let wanted = bit(access.reads, READ) | bit(access.writes, WRITE) | bit(access.executes, EXECUTE);
        self.scope.check(&found, wanted)
    }

    /// Sets the permission bits (`07777`).
    ///
    /// # Errors
    /// EPERM: another user's; EOPNOTSUPP: a symbolic link; those of the walk.
    pub fn chmod<'a>(&self, place: impl Into<Place<'a>>, mode: u32) -> Result<()> {
        let found = self.scope.find_open(place.into())?;
        if found.attr.kind == FileType::Symlink {
            return refuse(Errno::OPNOTSUPP, "symbolic links have no permission bits");
        }
        self.scope.actor.check_owner(&found.attr)?;
        let mode = self.scope.actor.mode_to_set(&found.attr, mode & 0o7777);
        self.scope.set(&found, &SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    /// Sets owner and group; `None` leaves one. Set-id bits go.
    ///
    /// # Errors
    /// EPERM: a user other than root gives away a file, or to a group without being in it, or leaves both of
    /// another user's program with set-id bits; those of the walk.
    pub fn chown<'a>(&self, place: impl Into<Place<'a>>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let found = self.scope.find_open(place.into())?;
        let attr = &found.attr;
        let gives_away = uid.is_some_and(|uid| uid != attr.uid || uid != self.scope.caller().uid);
        let changes_group = gid.is_some_and(|gid| {
            self.scope.caller().uid != attr.uid || (gid != attr.gid && !self.scope.actor.is_member(gid))
        });
        if !self.scope.actor.is_root() && (gives_away || changes_group) {
            return refuse(Errno::PERM, "only root gives files away");
        }
        let loses = attr.kind != FileType::Directory && lends_ids(attr.mode);
        if loses {
            // Also where neither owner nor group is given.
            self.scope.actor.check_owner(attr)?;
        }
        self.scope.set(&found, &SetAttr { uid, gid, kill_suidgid: loses, ..SetAttr::default() })
    }

    /// Sets the times of the last access and change; `None` leaves one.
    ///
    /// # Errors
    /// EPERM: other times than now, and another user's; EACCES: now, and neither owned nor writable; those of
    /// the walk.
    pub fn utimens<'a>(
        &self,
        place: impl Into<Place<'a>>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<()> {
        let found = self.scope.find_open(place.into())?;
        if atime.is_none() && mtime.is_none() {
            return Ok(());
        }
        let is_now = (atime, mtime) == (Some(SetTime::Now), Some(SetTime::Now));
        if self.scope.actor.check_owner(&found.attr).is_err() {
            if !is_now {
                return refuse(Errno::PERM, "only its owner sets times other than now");
            }
            self.scope.check(&found, WRITE)?;
        }
        self.scope.set(&found, &SetAttr { atime, mtime, ..SetAttr::default() })
    }

    /// Sets the size; a descriptor as place is `ftruncate`.
    ///
    /// # Errors
    /// EACCES; EISDIR; EINVAL: not a file, or not open for writing; EFBIG, ENOSPC; those of the walk.
    pub fn truncate<'a>(&self, place: impl Into<Place<'a>>, size: u64) -> Result<()> {
        Truncation::of(self, place)?.set(size)
    }

    /// How much there is, and how much of it is free; in the tree of a project, of its limit.
    ///
    /// # Errors
    /// Those of the walk.
    pub fn statvfs<'a>(&self, place: impl Into<Place<'a>>) -> Result<StatFs> {
        let found = self.scope.find(place.into())?;
        Ok(self.scope.fs().statfs_at(found.held.node()))
    }
}

/// A file whose size is to be set, by a process that may.
#[derive(Debug)]
pub struct Truncation<'p> {
    scope: &'p Scope,
    found: Found,
}

impl<'p> Truncation<'p> {
    /// Of the file that [`Process::truncate`] finds at `place`.
    ///
    /// # Errors
    /// As [`Process::truncate`].
    pub fn of<'a>(process: &'p Process, place: impl Into<Place<'a>>) -> Result<Self> {
        let scope = &process.scope;
        let found = scope.find_open(place.into())?;
        if found.file.as_ref().is_some_and(|file| !file.is_writable() || file.kind != FileType::Regular) {
            return refuse(Errno::INVAL, "not a file that is open for writing");
        }
        match found.attr.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(FsError::IsDirectory.into()),
            _ => return refuse(Errno::INVAL, "not a regular file"),
        }
        if found.file.is_none() {
            scope.check(&found, WRITE)?;
        }
        Ok(Self { scope, found })
    }

    /// Sets its size.
    ///
    /// # Errors
    /// EFBIG, ENOSPC; I/O errors.
    pub fn set(&self, size: u64) -> Result<()> {
        let kill_suidgid = !self.scope.actor.is_root();
        self.scope.set(&self.found, &SetAttr { size: Some(size), kill_suidgid, ..SetAttr::default() })
    }
}

impl Scope {
    /// What is at `place`. A descriptor must be open for more than its place (`O_PATH`), as the calls demand
    /// that take one alone.
    pub(super) fn find_open(&self, place: Place<'_>) -> Result<Found> {
        let found = self.find(place)?;
        found.file.as_ref().map_or(Ok(()), |file| file.check_open())?;
        Ok(found)
    }

    fn set(&self, found: &Found, changes: &SetAttr) -> Result<()> {
        let (fs, node) = (Arc::clone(self.fs()), found.held.node());
        let set = |caller: &Caller| fs.setattr(caller, node, changes);
        if changes.size.is_some() {
            return self.change_content(node, set).map(drop);
        }
        with_space(&fs, self.caller(), set)?;
        self.shared.tell(&[(node, false)]);
        Ok(())
    }
}
