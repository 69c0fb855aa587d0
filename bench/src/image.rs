//! Disk images, and loop devices over them.
//!
//! Thread safety: each value belongs to one thread.
//!
//! Invariants: an image was written in full before it is used, so that no measurement pays for the
//! allocation of its blocks; it is locked while in use; a loop device is detached on drop.

use crate::{host, interrupt};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rustix::fs::{FlockOperation, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const STEP_BYTES: usize = 1 << 20;

/// A fully written file.
pub struct Image {
    path: PathBuf,
    _locked: File,
    keep: bool,
}

impl Image {
    /// Finds a complete image of this size at `path`, or writes one. `keep` leaves it for later runs.
    pub fn prepare(path: &Path, size_bytes: u64, keep: bool) -> Result<Self> {
        let open = OpenOptions::new().create(true).truncate(false).write(true).open(path);
        let file = open.with_context(|| format!("cannot open {}", path.display()))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .with_context(|| format!("{} is in use by another run", path.display()))?;
        let image = Self { path: path.to_owned(), _locked: file, keep };
        // The marker is written last, so an image without one was left half done.
        let marker = path.with_extension("written");
        let is_complete = fs::read_to_string(&marker).is_ok_and(|text| text == size_bytes.to_string())
            && fs::metadata(path)?.len() == size_bytes;
        if !is_complete {
            eprintln!("writing {} ({} MiB), once", path.display(), size_bytes >> 20);
            image.write(size_bytes)?;
            fs::write(&marker, size_bytes.to_string())?;
        }
        Ok(image)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&self, size_bytes: u64) -> Result<()> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        file.set_len(0)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size_bytes)
            .with_context(|| format!("no space for {} of {size_bytes} bytes", self.path.display()))?;
        let mut file = buffered_if_direct_fails(&self.path)?;
        // Not zeros: a thin disk beneath might not store those.
        let mut step = Aligned::new(STEP_BYTES);
        step.bytes().fill(0xa5);
        let mut left = size_bytes;
        while left > 0 {
            interrupt::check()?;
            let len = left.min(STEP_BYTES as u64) as usize;
            file.write_all(&step.bytes()[..len])?;
            left -= len as u64;
        }
        Ok(file.sync_all()?)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if !self.keep {
            // What cannot be removed is told by the next run, which finds it.
            let _ = fs::remove_file(self.path.with_extension("written"));
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens for direct writing where the file system can: filling the page cache with the image would
/// only slow down the writing.
fn buffered_if_direct_fails(path: &Path) -> Result<File> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let opened = OpenOptions::new().write(true).custom_flags(direct).open(path);
    Ok(opened.or_else(|_| OpenOptions::new().write(true).open(path))?)
}

/// A buffer that suits direct I/O: an aligned window of a larger one.
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Of zeros.
    pub fn new(len: usize) -> Self {
        let memory = vec![0; len + 4096];
        let start = memory.as_ptr().align_offset(4096);
        Self { memory, start, len }
    }

    /// The window.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    /// The bytes as they are by now.
    pub fn freeze(self) -> Bytes {
        let window = self.start..self.start + self.len;
        Bytes::from(self.memory).slice(window)
    }
}

/// A loop device with direct I/O.
pub struct Loop {
    device: String,
}

impl Loop {
    /// Attaches the file to a free loop device.
    pub fn attach(path: &Path) -> Result<Self> {
        let path = path.as_os_str();
        let options = ["--find", "--show", "--direct-io=on"].map(std::ffi::OsStr::new);
        let output = host::run("losetup", &[options.as_slice(), &[path]].concat())?;
        let attached = Self { device: output.trim().to_owned() };
        let direct = host::run("losetup", &["--noheadings", "--output", "DIO", attached.device()])?;
        ensure!(direct.trim() == "1", "{} does not do direct I/O", attached.device());
        Ok(attached)
    }

    /// Its path.
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = host::run("losetup", &["--detach", &self.device]) {
            eprintln!("{} stays attached: {error:#}", self.device);
        }
    }
}
