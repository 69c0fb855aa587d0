//! ext4 on a loop device with direct I/O.

use super::{Target, is_mounted, unmount, unmount_lazily};
use crate::image::{Image, Loop};
use crate::memory::MemoryPeak;
use anyhow::Result;
use kvfs_bench::host;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The kernel file system that kvfs is compared with.
pub(crate) struct Ext4 {
    dir: PathBuf,
    device: Loop,
    // After the loop device, which is detached first.
    _image: Rc<Image>,
}

impl Ext4 {
    /// An ext4 that is made on `image` and mounted on a new directory `dir`.
    pub(crate) fn new(dir: PathBuf, image: Rc<Image>) -> Result<Self> {
        fs::create_dir(&dir)?;
        Ok(Self { dir, device: Loop::attach(&image)?, _image: image })
    }

    fn mount(&self) -> Result<()> {
        host::run(
            "mount",
            &["-t".as_ref(), "ext4".as_ref(), OsStr::new(self.device.device()), self.dir.as_os_str()],
        )?;
        Ok(())
    }
}

impl Target for Ext4 {
    fn name(&self) -> &'static str {
        "ext4"
    }

    fn durability(&self) -> &'static str {
        "data=ordered, commit interval 5 s"
    }

    fn mount_fresh(&mut self) -> Result<()> {
        self.unmount()?;
        // Nothing lazily initialised may run into the measurement, and discard would give the
        // image's blocks back.
        let extended = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        host::run("mkfs.ext4", &["-q", "-F", "-E", extended, self.device.device()])?;
        self.mount()
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn make_cold(&mut self) -> Result<()> {
        self.unmount()?;
        host::drop_caches()?;
        self.mount()
    }

    fn unmount(&mut self) -> Result<()> {
        if is_mounted(&self.dir)? { unmount(&self.dir) } else { Ok(()) }
    }

    fn memory_peak(&self) -> Option<MemoryPeak> {
        None
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if self.unmount().is_err() {
            unmount_lazily(&self.dir);
        }
    }
}
