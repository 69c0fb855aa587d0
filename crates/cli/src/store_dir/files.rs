//! Plain files in the directory of a store: the log, and what has arrived of a stream.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{StoreDir, effective_uid};

const LOG: &str = "kvfs.log";
const LOG_OLD: &str = "kvfs.log.old";
const STAGING: &str = "receiving";

impl StoreDir {
    /// The log, to append to. One that is longer than `bytes_max` is laid aside first, or emptied where it
    /// can't be.
    pub(crate) fn open_log(&self, bytes_max: u64) -> io::Result<File> {
        let is_long = self.look(LOG).is_ok_and(|found| found.st_size as u64 > bytes_max);
        let laid_aside = if is_long {
            rustix::fs::renameat(self.directory(), LOG, self.directory(), LOG_OLD)
        } else {
            Ok(())
        };
        let mut log = self.open_file(LOG, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)?;
        if let Err(errno) = laid_aside {
            log.set_len(0)?;
            writeln!(log, "what was here before could not be laid aside as {LOG_OLD}: {errno}")?;
        }
        Ok(log)
    }

    /// What messages call the log.
    pub(crate) fn log_name(&self) -> PathBuf {
        self.path().join(LOG)
    }

    /// What has arrived of a stream, if something has.
    pub(crate) fn open_staging(&self, writes: bool) -> io::Result<Option<File>> {
        match self.open_file(STAGING, if writes { OFlags::RDWR } else { OFlags::RDONLY }) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// A file for what arrives of a stream, empty or not.
    pub(crate) fn make_staging(&self) -> io::Result<File> {
        self.open_file(STAGING, OFlags::RDWR | OFlags::CREATE)
    }

    /// Drops what has arrived of a stream.
    pub(crate) fn remove_staging(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self.directory(), STAGING, AtFlags::empty())?)
    }

    /// What messages call it.
    pub(crate) fn staging_name(&self) -> PathBuf {
        self.path().join(STAGING)
    }

    /// Opens `name` if it is a regular file with no other name, of the directory's owner or this process's
    /// user.
    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        // A pipe would keep the caller waiting.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let unfit =
            |what: &str| io::Error::new(ErrorKind::PermissionDenied, format!("it is {what}; remove it"));
        let open = |flags| rustix::fs::openat(self.directory(), name, flags, Mode::RUSR | Mode::WUSR);
        let mut is_made = false;
        let file = match open(flags - OFlags::CREATE) {
            Err(Errno::LOOP) => return Err(unfit("a symbolic link")),
            Err(Errno::NXIO) => return Err(unfit("not a regular file")),
            Err(Errno::NOENT) if flags.contains(OFlags::CREATE) => {
                is_made = true;
                open(flags | OFlags::EXCL)?
            }
            opened => opened?,
        };
        let found = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(unfit("not a regular file"));
        }
        if found.st_nlink > 1 {
            return Err(unfit("a file with other names"));
        }
        // What is this process's in the directory of another user may have been moved there by that user.
        let may_be_own = is_made || !self.is_foreign();
        if found.st_uid != self.uid() && !(may_be_own && found.st_uid == effective_uid()) {
            return Err(unfit("another user's"));
        }
        if self.is_foreign() && is_made {
            let (uid, gid) = (Uid::from_raw(self.uid()), Gid::from_raw(self.gid()));
            rustix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
        Ok(file.into())
    }
}
