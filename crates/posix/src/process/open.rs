//! Opening and closing, and what descriptors are.

use std::sync::Arc;

use kvfs_fs::{ContentWatch, ContentWatcher, FileType, FsError, SetAttr};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{NewMode, Process, Scope};
use crate::descriptors::Descriptors;
use crate::error::{Result, refuse};
use crate::held::{Held, with_space};
use crate::identity::{EXECUTE, READ, WRITE};
use crate::locks::{LockOwner, LockSpace};
use crate::open_file::{FileIdentity, OpenFile, SharedFile};
use crate::walk::{End, Found, LINKS_MAX};
use crate::{Fd, Place};

/// Those that an open file keeps.
const KEPT: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::TRUNC)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC)
    .complement();

impl Process {
    /// Opens a file, or makes it (`CREATE`, `TMPFILE`) with `mode`. Further flags: `EXCL`, `TRUNC`, `APPEND`,
    /// `DIRECTORY`, `NOFOLLOW`, `PATH`, `SYNC`, `DSYNC`, `NOATIME`, `CLOEXEC`; `NONBLOCK`, `DIRECT`, `NOCTTY`
    /// and `LARGEFILE` change nothing.
    ///
    /// # Errors
    /// ENOENT, EEXIST, EISDIR, ENOTDIR, ELOOP, EACCES, EPERM, EMFILE; ENXIO: a fifo, socket or device.
    pub fn open<'a>(
        &self,
        place: impl Into<Place<'a>>,
        flags: OFlags,
        mode: impl Into<NewMode>,
    ) -> Result<Fd> {
        let file = SharedFile::open(self, place, flags, mode)?;
        self.scope.descriptors.insert(file.0, 0, flags.contains(OFlags::CLOEXEC))
    }

    /// Closes a descriptor. Locks that the process has on ranges of the file end; those of the open file with
    /// its last descriptor.
    ///
    /// # Errors
    /// EBADF.
    pub fn close(&self, fd: Fd) -> Result<()> {
        let file = self.scope.descriptors.remove(fd)?;
        self.end_locks(&file);
        Ok(())
    }

    /// Another descriptor of the same open file, the lowest from `min` on (`dup`, `F_DUPFD`,
    /// `F_DUPFD_CLOEXEC`).
    ///
    /// # Errors
    /// EBADF, EMFILE, EINVAL.
    pub fn dup(&self, fd: Fd, min: i32, closes_on_exec: bool) -> Result<Fd> {
        self.scope.descriptors.insert(self.scope.file(fd)?, min, closes_on_exec)
    }

    /// The same open file under the number `new`, in place of what is there (`dup3`). A number onto itself is
    /// left as it is.
    ///
    /// # Errors
    /// EBADF, EMFILE.
    pub fn dup_to(&self, fd: Fd, new: Fd, closes_on_exec: bool) -> Result<Fd> {
        let file = self.scope.file(fd)?;
        if fd != new
            && let Some(old) = self.scope.descriptors.replace(file, new, closes_on_exec)?
        {
            self.end_locks(&old);
        }
        Ok(new)
    }

    /// The flags of an open file, its access mode among them (`F_GETFL`).
    ///
    /// # Errors
    /// EBADF.
    pub fn flags(&self, fd: Fd) -> Result<OFlags> {
        Ok(self.scope.file(fd)?.flags())
    }

    /// Sets `APPEND`, `NONBLOCK`, `DIRECT` and `NOATIME` (`F_SETFL`).
    ///
    /// # Errors
    /// EBADF; EPERM: `NOATIME`, and another user's file.
    pub fn set_flags(&self, fd: Fd, flags: OFlags) -> Result<()> {
        let file = self.scope.file(fd)?;
        file.check_open()?;
        if flags.contains(OFlags::NOATIME) && !file.flags().contains(OFlags::NOATIME) {
            self.scope.actor.check_owner(&file.held.attr(self.scope.caller())?)?;
        }
        file.set_flags(flags);
        Ok(())
    }

    /// Whether the descriptor is closed in a program that is begun (`F_GETFD`).
    ///
    /// # Errors
    /// EBADF.
    pub fn closes_on_exec(&self, fd: Fd) -> Result<bool> {
        self.scope.descriptors.closes_on_exec(fd)
    }

    /// Sets it (`F_SETFD`).
    ///
    /// # Errors
    /// EBADF.
    pub fn set_closes_on_exec(&self, fd: Fd, closes_on_exec: bool) -> Result<()> {
        self.scope.descriptors.set_closes_on_exec(fd, closes_on_exec)
    }

    /// Closes what is not to be open in a program that is begun (`execve`).
    pub fn exec(&self) {
        for fd in self.scope.descriptors.numbers() {
            if self.scope.descriptors.closes_on_exec(fd).unwrap_or(false) {
                // Another thread may have been faster.
                let _ = self.close(fd);
            }
        }
    }

    pub(super) fn end_locks(&self, file: &OpenFile) {
        let place = (file.held.node().0, LockSpace::Ranges);
        self.scope.shared.locks.unlock_all(LockOwner::Process(self.number), place);
    }
}

impl SharedFile {
    /// Which file it is.
    pub fn identity(&self) -> FileIdentity {
        self.0.held.identity()
    }

    /// The number of its inode. Reads nothing.
    pub fn inode(&self) -> u64 {
        self.0.held.node().0
    }

    /// As [`Process::open`], without a descriptor: what is opened is reached by no number of the process.
    ///
    /// # Errors
    /// As [`Process::open`].
    pub fn open<'a>(
        process: &Process,
        place: impl Into<Place<'a>>,
        flags: OFlags,
        mode: impl Into<NewMode>,
    ) -> Result<Self> {
        let (scope, place, mode) = (&process.scope, place.into(), mode.into());
        scope.descriptors.check_room()?;
        let is_path = flags.contains(OFlags::PATH);
        let found = if !is_path && flags.contains(OFlags::TMPFILE) {
            scope.open_unnamed(place, flags, mode)?
        } else if !is_path && flags.contains(OFlags::CREATE) {
            match scope.open_or_make(place, flags, mode)? {
                Opened::Made(found) => return Ok(scope.opened(found, flags)),
                Opened::There(found) => found,
            }
        } else {
            let follows = place.follows && !flags.contains(OFlags::NOFOLLOW);
            scope.find(if follows { place } else { place.no_follow() })?
        };
        if flags.contains(OFlags::DIRECTORY)
            && found.attr.kind != FileType::Directory
            && !flags.contains(OFlags::TMPFILE)
        {
            return Err(FsError::NotDirectory.into());
        }
        if is_path || flags.contains(OFlags::TMPFILE) {
            return Ok(scope.opened(found, flags));
        }
        scope.check_open(&found, flags)?;
        if flags.contains(OFlags::TRUNC) && found.attr.kind == FileType::Regular {
            let changes =
                SetAttr { size: Some(0), kill_suidgid: !scope.actor.is_root(), ..SetAttr::default() };
            let node = found.held.node();
            scope.change_content(node, |caller| scope.fs().setattr(caller, node, &changes))?;
        }
        Ok(scope.opened(found, flags))
    }

    /// The open file of a descriptor, for other processes (`SCM_RIGHTS`).
    ///
    /// # Errors
    /// EBADF.
    pub fn of(process: &Process, fd: Fd) -> Result<Self> {
        Ok(Self(process.scope.file(fd)?))
    }

    /// Its flags, its access mode among them.
    pub fn flags(&self) -> OFlags {
        self.0.flags()
    }

    /// Whether it is of the file system, and in the transaction, of `process`.
    ///
    /// # Errors
    /// EXDEV.
    pub fn check_view(&self, process: &Process) -> Result<()> {
        if self.0.held.is_of(process.scope.fs()) {
            Ok(())
        } else {
            refuse(Errno::XDEV, "an open file of another file system or transaction")
        }
    }

    /// A descriptor of it for `process`: with its flags and the offset that both move.
    ///
    /// # Errors
    /// EMFILE; EXDEV: of another file system, or of another transaction.
    pub fn adopt(&self, process: &Process, closes_on_exec: bool) -> Result<Fd> {
        self.check_view(process)?;
        process.scope.descriptors.insert(Arc::clone(&self.0), 0, closes_on_exec)
    }

    /// As [`SharedFile::adopt`], for a part of the program that stands between the process and those who give
    /// numbers: of [`DESCRIPTORS_MAX`](crate::DESCRIPTORS_MAX) or more, which no call gives out, replaces or
    /// closes at an exec, and which no child has.
    ///
    /// # Errors
    /// As [`SharedFile::adopt`].
    pub fn adopt_hidden(&self, process: &Process) -> Result<Fd> {
        self.check_view(process)?;
        process.scope.descriptors.insert_hidden(Arc::clone(&self.0))
    }

    /// Locks of ranges that a process has on the file end, as when it closes a descriptor of it.
    pub fn end_range_locks(&self, process: &Process) {
        process.end_locks(&self.0);
    }

    /// Tells `watcher` of changes of the file in its view.
    pub fn watch(&self, process: &Process, watcher: Arc<dyn ContentWatcher>) -> ContentWatch {
        kvfs_fs::watch_content(&process.scope.shared.fs, self.0.held.node(), watcher)
    }

    /// A process for the user of `process` that has this file alone, opened anew: with flags, an offset and
    /// locks of its own.
    ///
    /// # Errors
    /// EXDEV: of another file system, or of another transaction.
    pub fn alone(&self, process: &Process) -> Result<(Process, Fd)> {
        let (shared, actor) =
            (Arc::clone(&process.scope.shared), process.scope.actor.waiting(Arc::default()));
        let root = Arc::clone(&shared.root);
        let file = OpenFile::new(Arc::clone(&self.0.held), self.0.kind, self.0.flags(), &shared.locks);
        let alone = Process::with(shared, actor, 0, root, Descriptors::default());
        let fd = Self(Arc::new(file)).adopt(&alone, true)?;
        Ok((alone, fd))
    }
}

impl Scope {
    fn opened(&self, found: Found, flags: OFlags) -> SharedFile {
        let file = OpenFile::new(found.held, found.attr.kind, flags.intersection(KEPT), &self.shared.locks);
        SharedFile(Arc::new(file))
    }

    /// Whether what is there may be opened so.
    fn check_open(&self, found: &Found, flags: OFlags) -> Result<()> {
        match found.attr.kind {
            FileType::Symlink => return refuse(Errno::LOOP, "a symbolic link"),
            FileType::Regular | FileType::Directory => {}
            _ => {
                return refuse(
                    Errno::NXIO,
                    "nothing answers at a fifo, socket or device inside of a process",
                );
            }
        }
        let mode = flags.intersection(OFlags::RWMODE);
        let writes = mode != OFlags::RDONLY || flags.contains(OFlags::TRUNC);
        if writes && found.attr.kind == FileType::Directory {
            return Err(FsError::IsDirectory.into());
        }
        let access = if mode == OFlags::WRONLY { 0 } else { READ } | if writes { WRITE } else { 0 };
        self.check(found, access)?;
        if flags.contains(OFlags::NOATIME) { self.actor.check_owner(&found.attr) } else { Ok(()) }
    }

    /// A file without a name, in the directory `place`.
    fn open_unnamed(&self, place: Place<'_>, flags: OFlags, mode: NewMode) -> Result<Found> {
        if flags.intersection(OFlags::RWMODE) == OFlags::RDONLY {
            return refuse(Errno::INVAL, "a file without a name is opened to be written");
        }
        let directory = self.find(place)?;
        if directory.attr.kind != FileType::Directory {
            return Err(FsError::NotDirectory.into());
        }
        self.check(&directory, WRITE | EXECUTE)?;
        let (caller, parent) = (self.maker(mode.umask), directory.held.node());
        let mode = self.actor.mode_of_new(&directory.attr, mode.bits & 0o7777);
        let linkable = !flags.contains(OFlags::EXCL);
        let entry =
            with_space(self.fs(), &caller, |caller| self.fs().tmpfile(caller, parent, mode, linkable))?;
        Ok(Found { held: Held::of(self.fs(), &entry), attr: entry.attr, file: None })
    }

    fn open_or_make(&self, place: Place<'_>, flags: OFlags, mode: NewMode) -> Result<Opened> {
        let is_exclusive = flags.contains(OFlags::EXCL);
        let follows = place.follows && !is_exclusive && !flags.contains(OFlags::NOFOLLOW);
        if place.path.is_none() && !is_exclusive {
            let found = self.find(place)?;
            // What is open is opened anew: there is no name to be made.
            if found.attr.kind != FileType::Directory {
                return Ok(Opened::There(found));
            }
        }
        // A name may be gone that was there, and the other way round.
        for _ in 0..LINKS_MAX {
            let walked = self.walk(place, if follows { End::Made } else { End::Name })?;
            if walked.name.is_none() {
                return if is_exclusive {
                    Err(FsError::Exists.into())
                } else {
                    Err(FsError::IsDirectory.into())
                };
            }
            if walked.is_slashed {
                return Err(FsError::IsDirectory.into());
            }
            if let Some(found) = walked.found {
                if is_exclusive {
                    return Err(FsError::Exists.into());
                }
                if found.attr.kind == FileType::Directory {
                    return Err(FsError::IsDirectory.into());
                }
                self.actor.check_found(&walked.directory.attr, &found.attr)?;
                return Ok(Opened::There(found));
            }
            let (directory, name, ..) = walked.named(Errno::ISDIR)?;
            self.check(&directory, WRITE | EXECUTE)?;
            if flags.contains(OFlags::DIRECTORY) {
                return refuse(Errno::INVAL, "a directory is not made by open");
            }
            let (call, parent) = (self.begin_making(mode.umask), directory.held.node());
            let mode = self.actor.mode_of_new(&directory.attr, mode.bits & 0o7777);
            let made = with_space(self.fs(), &call.caller, |caller| {
                self.fs().create(caller, parent, &name, mode, is_exclusive)
            });
            let (entry, is_new) = made?;
            let found = Found { held: Held::of(self.fs(), &entry), attr: entry.attr, file: None };
            if is_new {
                call.tell(&[], &[(parent, &name)]);
                return Ok(Opened::Made(found));
            }
        }
        refuse(Errno::LOOP, "the name comes and goes")
    }
}

/// What there was to open.
enum Opened {
    /// Its mode does not concern the one who made it.
    Made(Found),
    There(Found),
}
