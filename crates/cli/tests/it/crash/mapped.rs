//! A file written through a shared mapping.
#![expect(unsafe_code, reason = "a mapping is raw memory")]

use std::ffi::c_void;
use std::fs::File;
use std::io;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

pub(crate) const PAGE_BYTES: usize = 4096;

/// A shared mapping of a whole file that nothing truncates.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: *mut c_void,
    len: usize,
}

// SAFETY: memory of the process, which no thread owns.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(crate) fn new(file: &File, len: usize) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a fresh mapping, at a place that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, file, 0) }?;
        Ok(Self { start, len })
    }

    /// Copies `bytes` to the beginning of page `page`.
    ///
    /// Touching a page whose file fails would raise a signal, so `new` has read them all.
    pub(crate) fn write(&mut self, page: usize, bytes: &[u8]) {
        assert!(page * PAGE_BYTES + bytes.len() <= self.len);
        // SAFETY: within the mapping, to which no reference is held.
        unsafe {
            let target = self.start.cast::<u8>().add(page * PAGE_BYTES);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    /// Waits until the pages are durable.
    pub(super) fn sync(&self, first: usize, pages: usize) -> io::Result<()> {
        assert!((first + pages) * PAGE_BYTES <= self.len);
        // SAFETY: within the mapping.
        unsafe { msync(self.start.byte_add(first * PAGE_BYTES), pages * PAGE_BYTES, MsyncFlags::SYNC) }?;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Unmapping writes dirty pages under the lock of the address space. Where the daemon lives in this
        // very process it needs that lock to serve them: so they are written first. Without power that fails.
        drop(self.sync(0, self.len / PAGE_BYTES));
        // SAFETY: the mapping of `new`, unused from here on.
        let unmapped = unsafe { munmap(self.start, self.len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
