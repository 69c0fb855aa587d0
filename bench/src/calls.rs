//! The calls of workloads that are done by the kernel and by kvfs as a library alike.
//!
//! Purpose: the same loop makes system calls on a mounted directory, or calls of `kvfs-posix` on a volume in
//! this process, so that nothing but these differs. Paths begin at a directory that is open.
//!
//! Thread safety: a value belongs to one thread.

use crate::host;
use anyhow::{Context, Result, ensure};
use kvfs_fs::SetTime;
use kvfs_posix::{Directory, Fd, Place, Process, Volume};
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, Timespec, Timestamps};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

const NEW: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::WRONLY).union(OFlags::CLOEXEC);
const MODE: u32 = 0o644;
/// What the C library asks for at a time (bytes).
const NAMES_BYTES: usize = 32 << 10;
/// What files are set to.
const SECONDS: i64 = 1_000_000_000;

/// See the module. Each call opens and closes what it needs.
pub trait Calls {
    /// Makes a directory.
    fn mkdir(&self, path: &str) -> Result<()>;
    /// Makes a file with this content.
    fn create(&self, path: &str, content: &[u8]) -> Result<()>;
    /// Writes at the end of a file.
    fn append(&self, path: &str, content: &[u8]) -> Result<()>;
    /// Gives a file other content.
    fn overwrite(&self, path: &str, content: &[u8]) -> Result<()>;
    /// Reads a file as far as `buffer` goes; returns the length.
    fn read(&self, path: &str, buffer: &mut [u8]) -> Result<usize>;
    /// Size of a file.
    fn stat(&self, path: &str) -> Result<u64>;
    /// Names in a directory, but for `.` and `..`; with `with_stat` each file's attributes are asked for,
    /// too.
    fn list(&self, path: &str, with_stat: bool) -> Result<Vec<String>>;
    /// Sets the mode.
    fn chmod(&self, path: &str, mode: u32) -> Result<()>;
    /// Sets the times.
    fn utimens(&self, path: &str) -> Result<()>;
    /// Removes a file.
    fn unlink(&self, path: &str) -> Result<()>;
    /// Removes a directory.
    fn rmdir(&self, path: &str) -> Result<()>;
    /// Everything done so far survives a power cut.
    fn sync(&self) -> Result<()>;
}

/// By system calls.
#[derive(Debug)]
pub struct System(OwnedFd);

impl System {
    /// Beneath `directory`.
    pub fn new(directory: &Path) -> Result<Self> {
        Ok(Self(rustix::fs::open(
            directory,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?))
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        let opened = rustix::fs::openat(&self.0, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(MODE));
        opened.with_context(|| format!("cannot open {path}"))
    }
}

fn write_to(file: &OwnedFd, content: &[u8]) -> Result<()> {
    let written = rustix::io::write(file, content)?;
    ensure!(written == content.len(), "only {written} bytes are written");
    Ok(())
}

impl Calls for System {
    fn mkdir(&self, path: &str) -> Result<()> {
        Ok(rustix::fs::mkdirat(&self.0, path, Mode::from_raw_mode(0o755))?)
    }

    fn create(&self, path: &str, content: &[u8]) -> Result<()> {
        let file = self.open(path, NEW)?;
        if content.is_empty() { Ok(()) } else { write_to(&file, content) }
    }

    fn append(&self, path: &str, content: &[u8]) -> Result<()> {
        write_to(&self.open(path, OFlags::WRONLY | OFlags::APPEND)?, content)
    }

    fn overwrite(&self, path: &str, content: &[u8]) -> Result<()> {
        write_to(&self.open(path, OFlags::WRONLY | OFlags::TRUNC)?, content)
    }

    fn read(&self, path: &str, buffer: &mut [u8]) -> Result<usize> {
        Ok(rustix::io::read(&self.open(path, OFlags::RDONLY)?, buffer)?)
    }

    fn stat(&self, path: &str) -> Result<u64> {
        let found = rustix::fs::statat(&self.0, path, AtFlags::SYMLINK_NOFOLLOW);
        Ok(found.with_context(|| format!("cannot stat {path}"))?.st_size as u64)
    }

    fn list(&self, path: &str, with_stat: bool) -> Result<Vec<String>> {
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut buf = Vec::with_capacity(NAMES_BYTES);
        let mut entries = RawDir::new(&directory, buf.spare_capacity_mut());
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if with_stat {
                rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            names.push(name.to_str()?.to_owned());
        }
        Ok(names)
    }

    fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        Ok(rustix::fs::chmodat(&self.0, path, Mode::from_raw_mode(mode), AtFlags::empty())?)
    }

    fn utimens(&self, path: &str) -> Result<()> {
        let time = Timespec { tv_sec: SECONDS, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(rustix::fs::utimensat(&self.0, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    fn unlink(&self, path: &str) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, path, AtFlags::empty())?)
    }

    fn rmdir(&self, path: &str) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, path, AtFlags::REMOVEDIR)?)
    }

    fn sync(&self) -> Result<()> {
        host::make_durable(&Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string()))
    }
}

/// By the library.
#[derive(Debug)]
pub struct Library {
    process: Process,
    base: Fd,
}

impl Library {
    /// Beneath the directory `path` of `volume`, as root.
    pub fn new(volume: &Volume, path: &str) -> Result<Self> {
        let process = volume.process(&kvfs_posix::Identity::root());
        let base = process.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, 0)?;
        Ok(Self { process, base })
    }

    fn at<'p>(&self, path: &'p str) -> Place<'p> {
        Place::from((self.base, path))
    }

    /// Opens, does that, and closes.
    fn with<T>(&self, path: &str, flags: OFlags, work: impl FnOnce(Fd) -> Result<T>) -> Result<T> {
        let opened = self.process.open(self.at(path), flags, MODE);
        let file = opened.with_context(|| format!("cannot open {path}"))?;
        let done = work(file);
        self.process.close(file)?;
        done
    }

    fn write(&self, file: Fd, content: &[u8]) -> Result<()> {
        let written = self.process.write(file, content)?;
        ensure!(written == content.len(), "only {written} bytes are written");
        Ok(())
    }

    fn names(&self, mut directory: Directory<'_>, with_stat: bool) -> Result<Vec<String>> {
        let mut names = Vec::new();
        while let Some(entry) = directory.read()? {
            if matches!(&entry.name[..], b"." | b"..") {
                continue;
            }
            if with_stat {
                self.process.stat(Place::from((directory.fd(), &entry.name[..])).no_follow())?;
            }
            names.push(String::from_utf8(entry.name)?);
        }
        Ok(names)
    }
}

impl Calls for Library {
    fn mkdir(&self, path: &str) -> Result<()> {
        Ok(self.process.mkdir(self.at(path), 0o755)?)
    }

    fn create(&self, path: &str, content: &[u8]) -> Result<()> {
        self.with(path, NEW, |file| if content.is_empty() { Ok(()) } else { self.write(file, content) })
    }

    fn append(&self, path: &str, content: &[u8]) -> Result<()> {
        self.with(path, OFlags::WRONLY | OFlags::APPEND, |file| self.write(file, content))
    }

    fn overwrite(&self, path: &str, content: &[u8]) -> Result<()> {
        self.with(path, OFlags::WRONLY | OFlags::TRUNC, |file| self.write(file, content))
    }

    fn read(&self, path: &str, buffer: &mut [u8]) -> Result<usize> {
        self.with(path, OFlags::RDONLY, |file| Ok(self.process.read(file, buffer)?))
    }

    fn stat(&self, path: &str) -> Result<u64> {
        let found = self.process.stat(self.at(path).no_follow());
        Ok(found.with_context(|| format!("cannot stat {path}"))?.size)
    }

    fn list(&self, path: &str, with_stat: bool) -> Result<Vec<String>> {
        self.names(self.process.opendir(self.at(path))?, with_stat)
    }

    fn chmod(&self, path: &str, mode: u32) -> Result<()> {
        Ok(self.process.chmod(self.at(path), mode)?)
    }

    fn utimens(&self, path: &str) -> Result<()> {
        let time = SetTime::At(kvfs_fs::Timestamp { seconds: SECONDS, nanos: 0 });
        Ok(self.process.utimens(self.at(path).no_follow(), Some(time), Some(time))?)
    }

    fn unlink(&self, path: &str) -> Result<()> {
        Ok(self.process.unlink(self.at(path))?)
    }

    fn rmdir(&self, path: &str) -> Result<()> {
        Ok(self.process.rmdir(self.at(path))?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.process.sync()?)
    }
}
