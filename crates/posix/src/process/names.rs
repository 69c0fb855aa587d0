//! Names: made, removed, changed.

use std::sync::Arc;

use kvfs_fs::{Attr, Entry, FileType, FoundByNames, FsError, NodeId, RenameMode};
use rustix::io::Errno;

use super::{NewMode, Process, Scope};
use crate::Place;
use crate::error::{PosixError, Result, refuse};
use crate::held::{Held, settled, with_space};
use crate::identity::{EXECUTE, READ, WRITE, lends_ids};
use crate::volume::NameCall;
use crate::walk::{End, Found, LINKS_MAX};

fn is_directory(attr: &Attr) -> bool {
    attr.kind == FileType::Directory
}

impl Process {
    /// Makes a directory. O(depth of the path), one batch.
    ///
    /// # Errors
    /// EEXIST, ENOENT, EACCES, and those of the walk.
    pub fn mkdir<'a>(&self, place: impl Into<Place<'a>>, mode: impl Into<NewMode>) -> Result<()> {
        let NewMode { bits: mode, umask } = mode.into();
        let (directory, name) = self.scope.place_of_new(place.into(), true)?;
        let (call, node) = (self.scope.begin_making(umask), directory.held.node());
        let made = with_space(self.scope.fs(), &call.caller, |caller| {
            // Only the sticky bit is kept of the upper ones, as by mkdir(2).
            self.scope.fs().mkdir(caller, node, &name, mode & 0o1777)
        });
        self.scope.made(call, &made?, node, &name);
        Ok(())
    }

    /// Makes a file, fifo, socket or device node; `mode` has its type (none: a file).
    ///
    /// # Errors
    /// As [`Process::mkdir`]; EPERM: a device, and not by root; EINVAL: another type.
    pub fn mknod<'a>(&self, place: impl Into<Place<'a>>, mode: impl Into<NewMode>, rdev: u32) -> Result<()> {
        let NewMode { bits: mode, umask } = mode.into();
        let is_device =
            matches!(FileType::from_mode(mode), Some(FileType::CharDevice | FileType::BlockDevice));
        if is_device && !self.scope.actor.is_root() {
            return refuse(Errno::PERM, "only root makes devices");
        }
        if FileType::from_mode(mode) == Some(FileType::Directory) {
            return refuse(Errno::PERM, "a directory is made by mkdir");
        }
        let (directory, name) = self.scope.place_of_new(place.into(), false)?;
        let (call, node) = (self.scope.begin_making(umask), directory.held.node());
        let mode = self.scope.actor.mode_of_new(&directory.attr, mode);
        let made = with_space(self.scope.fs(), &call.caller, |caller| {
            self.scope.fs().mknod(caller, node, &name, mode, rdev)
        });
        self.scope.made(call, &made?, node, &name);
        Ok(())
    }

    /// Makes a symbolic link with this content.
    ///
    /// # Errors
    /// As [`Process::mkdir`]; ENOENT: the content is empty; ENAMETOOLONG.
    pub fn symlink<'a>(&self, target: &[u8], place: impl Into<Place<'a>>) -> Result<()> {
        let (directory, name) = self.scope.place_of_new(place.into(), false)?;
        let (call, node) = (self.scope.begin_making(None), directory.held.node());
        let made = with_space(self.scope.fs(), &call.caller, |caller| {
            self.scope.fs().symlink(caller, node, &name, target)
        });
        self.scope.made(call, &made?, node, &name);
        Ok(())
    }

    /// Gives a file another name. A symbolic link gets one itself, unless `old` says that it is followed.
    ///
    /// # Errors
    /// As [`Process::mkdir`]; EPERM: a directory, or another user's file that lends its ids, is no regular
    /// one, or can't be both read and written; EMLINK.
    pub fn link<'a, 'b>(&self, old: impl Into<Place<'a>>, new: impl Into<Place<'b>>) -> Result<()> {
        let file = self.scope.find(old.into())?;
        let (directory, name) = self.scope.place_of_new(new.into(), false)?;
        if is_directory(&file.attr) {
            return refuse(Errno::PERM, "a directory has one name");
        }
        self.scope.check_link(&file)?;
        let (node, parent) = (file.held.node(), directory.held.node());
        let call = self.scope.shared.begin_names(self.scope.caller());
        let made = with_space(self.scope.fs(), &call.caller, |caller| {
            self.scope.fs().link(caller, node, parent, &name)
        });
        self.scope.made(call, &made?, parent, &name);
        self.scope.shared.tell(&[(node, false)]);
        Ok(())
    }

    /// Removes a name; an open file lives on without one.
    ///
    /// # Errors
    /// EISDIR, ENOENT, EACCES; EPERM: in a sticky directory, another user's.
    pub fn unlink<'a>(&self, place: impl Into<Place<'a>>) -> Result<()> {
        let place = place.into();
        as_found(|| {
            let (directory, name, found, is_slashed) =
                self.scope.walk(place, End::Name)?.named(Errno::ISDIR)?;
            match &found {
                Some(found) if is_slashed && is_directory(&found.attr) => Err(FsError::IsDirectory.into()),
                Some(_) if is_slashed => Err(FsError::NotDirectory.into()),
                _ => self.scope.remove(&directory, &name, found, false),
            }
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOTDIR, ENOTEMPTY, ENOENT, EACCES; EINVAL: it ends in `.`; EBUSY: the root; EPERM: in a sticky
    /// directory, another user's.
    pub fn rmdir<'a>(&self, place: impl Into<Place<'a>>) -> Result<()> {
        let place = place.into();
        as_found(|| {
            let (directory, name, found, _) = self.scope.removable(place)?;
            self.scope.remove(&directory, &name, found, true)
        })
    }

    /// Removes a name or an empty directory (`remove(3)`).
    ///
    /// # Errors
    /// As [`Process::unlink`] and [`Process::rmdir`].
    pub fn remove<'a>(&self, place: impl Into<Place<'a>>) -> Result<()> {
        let place = place.into();
        match self.unlink(place) {
            Err(PosixError::Fs(FsError::IsDirectory)) => self.rmdir(place),
            done => done,
        }
    }

    /// Changes a name, in one step; `mode` says what becomes of what has the new one.
    ///
    /// # Errors
    /// EXDEV: to another project; ENOTEMPTY, EISDIR, ENOTDIR, EINVAL: into itself; EBUSY: `.` or `..`;
    /// EACCES, EPERM.
    pub fn rename<'a, 'b>(
        &self,
        old: impl Into<Place<'a>>,
        new: impl Into<Place<'b>>,
        mode: RenameMode,
    ) -> Result<()> {
        let (old, new) = (old.into(), new.into());
        as_found(|| self.scope.rename(old, new, mode))
    }

    /// The content of a symbolic link.
    ///
    /// # Errors
    /// EINVAL: it is none.
    pub fn readlink<'a>(&self, place: impl Into<Place<'a>>) -> Result<Vec<u8>> {
        let found = self.scope.find(place.into().no_follow())?;
        if found.attr.kind != FileType::Symlink {
            return refuse(Errno::INVAL, "not a symbolic link");
        }
        let node = found.held.node();
        Ok(settled(self.scope.caller(), |caller| self.scope.fs().readlink(caller, node))?.to_vec())
    }
}

/// Does `call`, which finds files by their names and changes the names of these alone: from the walk on once
/// more if a name has become another file's meanwhile, to which what was checked does not apply.
fn as_found(call: impl Fn() -> Result<()>) -> Result<()> {
    let is_over = |done: &Result<()>| !matches!(done, Err(PosixError::Fs(FsError::NameChanged)));
    (0..LINKS_MAX).map(|_| call()).find(is_over).unwrap_or_else(call)
}

impl Scope {
    /// See [`Process::rename`].
    fn rename(&self, old: Place<'_>, new: Place<'_>, mode: RenameMode) -> Result<()> {
        let keeps = matches!(mode, RenameMode::NoReplace | RenameMode::WhiteoutNoReplace);
        let swaps = mode == RenameMode::Exchange;
        let (old, new) = (self.walk(old, End::Name)?, self.walk(new, End::Name)?);
        let (from, old_name, file, old_slashed) = old.named(Errno::BUSY)?;
        let (to, new_name, victim, new_slashed) =
            new.named(if keeps { Errno::EXIST } else { Errno::BUSY })?;
        let file = file.ok_or(FsError::NotFound)?;
        match &victim {
            Some(_) if keeps => return Err(FsError::Exists.into()),
            None if swaps => return Err(FsError::NotFound.into()),
            Some(victim) if swaps && new_slashed && !is_directory(&victim.attr) => {
                return Err(FsError::NotDirectory.into());
            }
            _ => {}
        }
        if !is_directory(&file.attr) && (old_slashed || (new_slashed && !swaps)) {
            return Err(FsError::NotDirectory.into());
        }
        if is_directory(&file.attr) && self.is_beneath(&to, &file)? {
            return refuse(Errno::INVAL, "into itself");
        }
        let replaced = victim.as_ref().filter(|victim| is_directory(&victim.attr));
        if let Some(replaced) = replaced
            && self.is_beneath(&from, replaced)?
        {
            return if swaps { refuse(Errno::INVAL, "into itself") } else { Err(FsError::NotEmpty.into()) };
        }
        self.check_removal(&from, &file)?;
        match &victim {
            Some(victim) => self.check_removal(&to, victim)?,
            None => self.check(&to, WRITE | EXECUTE)?,
        }
        if from.held.node() != to.held.node() {
            // Its `..` changes.
            let moved = [Some(&file), victim.as_ref().filter(|_| swaps)];
            for moved in moved.into_iter().flatten().filter(|moved| is_directory(&moved.attr)) {
                self.check(moved, WRITE)?;
            }
        }
        let node = |found: &Found| found.held.node();
        let (from, to) = (node(&from), node(&to));
        let found = FoundByNames { moved: node(&file), replaced: victim.as_ref().map(node) };
        let call = self.shared.begin_names(self.caller());
        with_space(self.fs(), &call.caller, |caller| {
            kvfs_fs::rename_found(self.fs(), caller, (from, &old_name), (to, &new_name), mode, found)
        })?;
        // What has no other node is told of twice.
        let moved = [&file, victim.as_ref().unwrap_or(&file)].map(|found| (found.held.node(), false));
        call.tell(&moved, &[(from, &old_name), (to, &new_name)]);
        Ok(())
    }

    /// The directory and the name of what is to be made.
    pub(super) fn place_of_new(&self, place: Place<'_>, is_directory: bool) -> Result<(Found, Vec<u8>)> {
        let (directory, name, found, is_slashed) = self.walk(place, End::Name)?.named(Errno::EXIST)?;
        if found.is_some() {
            return Err(FsError::Exists.into());
        }
        if is_slashed && !is_directory {
            return Err(FsError::NotFound.into());
        }
        self.check(&directory, WRITE | EXECUTE)?;
        Ok((directory, name))
    }

    /// The directory and the name of a directory that is to be removed, and whether slashes follow.
    pub(super) fn removable(&self, place: Place<'_>) -> Result<(Found, Vec<u8>, Option<Found>, bool)> {
        let walked = self.walk(place, End::Name)?;
        if walked.name.is_none() {
            let path = place.path.unwrap_or_default();
            let last = path.split(|byte| *byte == b'/').rfind(|part| !part.is_empty());
            return match last {
                Some(b"..") => Err(FsError::NotEmpty.into()),
                Some(_) => refuse(Errno::INVAL, "a directory is not removed as `.`"),
                None => refuse(Errno::BUSY, "the root is not removed"),
            };
        }
        walked.named(Errno::INVAL)
    }

    /// Whether a file gets a further name: one of another user only if it is a regular one that lends no ids,
    /// and that the user may read and write. As the kernel has it with `fs.protected_hardlinks`.
    fn check_link(&self, file: &Found) -> Result<()> {
        let is_plain = file.attr.kind == FileType::Regular && !lends_ids(file.attr.mode);
        if is_plain && self.check(file, READ | WRITE).is_ok() {
            return Ok(());
        }
        self.actor.check_owner(&file.attr)
    }

    /// Whether `directory` is `above`, or lies beneath it. O(depth).
    fn is_beneath(&self, directory: &Found, above: &Found) -> Result<bool> {
        let mut at = Arc::clone(&directory.held);
        while at.node() != above.held.node() {
            let up = settled(self.caller(), |caller| self.fs().lookup(caller, at.node(), b".."))?;
            let up = Held::of(self.fs(), &up);
            if up.node() == at.node() {
                return Ok(false);
            }
            at = up;
        }
        Ok(true)
    }

    /// Begins a call that makes a name.
    pub(super) fn begin_making(&self, umask: Option<u32>) -> NameCall<'_> {
        self.shared.begin_names(&self.maker(umask))
    }

    /// Gives back the lookup of what was made, and tells of its name.
    fn made(&self, call: NameCall<'_>, entry: &Entry, directory: NodeId, name: &[u8]) {
        let held: Arc<Held> = Held::of(self.fs(), entry);
        drop(held);
        call.tell(&[], &[(directory, name)]);
    }

    /// Removes the name of what was found, a directory or not, and tells of it.
    fn remove(
        &self,
        directory: &Found,
        name: &[u8],
        victim: Option<Found>,
        is_directory: bool,
    ) -> Result<()> {
        let victim = victim.ok_or(FsError::NotFound)?;
        self.check_removal(directory, &victim)?;
        let (parent, node) = (directory.held.node(), victim.held.node());
        let call = self.shared.begin_names(self.caller());
        with_space(self.fs(), &call.caller, |caller| {
            kvfs_fs::remove_found(self.fs(), caller, (parent, name), node, is_directory)
        })?;
        call.tell(&[(node, false)], &[(parent, name)]);
        Ok(())
    }

    /// Whether `victim` may lose its name in `directory`.
    pub(super) fn check_removal(&self, directory: &Found, victim: &Found) -> Result<()> {
        self.check(directory, WRITE | EXECUTE)?;
        self.actor.check_sticky(&directory.attr, &victim.attr)
    }
}
