//! Small files of text in the directory of a store.
//!
//! Thread safety: functions of an immutable value. Invariant: a file that decides something is used only if
//! it is a regular one with one name, of the directory's owner or of this process's user.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use kvfs_service::ErrorKind;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{StoreDir, effective_uid};
use crate::error::{Error, Result};

/// None is longer (bytes).
const LEN_MAX: u64 = 4096;

impl StoreDir {
    /// The file `name`; `None`: there is none.
    ///
    /// # Errors
    /// It is not used; I/O errors.
    pub(crate) fn open_text(&self, name: &str) -> Result<Option<OwnedFd>> {
        self.open_regular(name, |uid, names| names == 1 && [self.owner.uid, effective_uid()].contains(&uid))
    }

    /// The file `name`, whose owner and number of names `is_used` agrees to.
    fn open_regular(&self, name: &str, is_used: impl FnOnce(u32, u64) -> bool) -> Result<Option<OwnedFd>> {
        let failed = |errno: Errno| Error::io("open", &self.path.join(name), &errno.into());
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let found = rustix::fs::fstat(file.as_fd()).map_err(failed)?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        if !is_file || !is_used(found.st_uid, found.st_nlink) {
            let path = self.path.join(name);
            let message = format!("{} is not a file of the store's owner, with one name", path.display());
            return Err(Error::new(ErrorKind::Denied, message));
        }
        Ok(Some(file))
    }

    /// What the file `name` says; `None`: there is none.
    ///
    /// # Errors
    /// As [`StoreDir::open_text`].
    pub(crate) fn read_text(&self, name: &str) -> Result<Option<String>> {
        self.open_text(name)?.map(|file| self.text_of(name, file)).transpose()
    }

    /// The same of a file that can do no harm, whichever user has made it.
    ///
    /// # Errors
    /// It is no regular file; I/O errors.
    pub(crate) fn read_any_text(&self, name: &str) -> Result<Option<String>> {
        self.open_regular(name, |_, _| true)?.map(|file| self.text_of(name, file)).transpose()
    }

    fn text_of(&self, name: &str, file: OwnedFd) -> Result<String> {
        let mut text = Vec::new();
        let read = File::from(file).take(LEN_MAX).read_to_end(&mut text);
        read.map_err(|error| Error::io("read", &self.path.join(name), &error))?;
        // What is no text is damage, and is found where its form is looked at.
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Makes the file `name`. Durable when this returns.
    ///
    /// # Errors
    /// There is something; I/O errors.
    pub(crate) fn write_text(&self, name: &str, text: &str) -> io::Result<()> {
        self.write_unnamed(name, text)?;
        self.sync()
    }

    /// Makes the file `name`, or replaces it, by way of `next`: whatever happens, it is whole. Durable when
    /// this returns.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn replace_text(&self, name: &str, next: &str, text: &str) -> io::Result<()> {
        self.remove_text(next)?;
        self.write_unnamed(next, text)?;
        rustix::fs::renameat(&self.dir, next, &self.dir, name)?;
        self.sync()
    }

    /// Removes the file `name`, if there is one.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn remove_text(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Names in the directory are durable when this returns.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let within = rustix::fs::openat(&self.dir, ".", flags, Mode::empty())?;
        Ok(rustix::fs::fsync(within)?)
    }

    /// Its content is durable when this returns, its name is not.
    fn write_unnamed(&self, name: &str, text: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, name, flags, Mode::from_raw_mode(0o600))?;
        if self.owner.is_foreign() {
            let (uid, gid) = (Uid::from_raw(self.owner.uid), Gid::from_raw(self.owner.gid));
            rustix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
        let mut file = File::from(file);
        file.write_all(text.as_bytes())?;
        file.sync_all()
    }
}
