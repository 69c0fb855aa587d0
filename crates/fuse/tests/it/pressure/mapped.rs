//! Writing through a shared mapping.
#![expect(unsafe_code, reason = "a mapping is raw memory")]

use std::fs::File;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// Fills each page with its `pattern` and makes it durable.
pub(super) fn fill(file: &File, bytes: usize, pattern: fn(usize) -> u8) {
    // SAFETY: a fresh mapping of a file that has `bytes` bytes and that nothing truncates; it is used
    // through this one slice only, and unmapped after its last use.
    unsafe {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let start = mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, file, 0).unwrap();
        let data = std::slice::from_raw_parts_mut(start.cast::<u8>(), bytes);
        for (index, page) in data.chunks_mut(4096).enumerate() {
            page.fill(pattern(index));
        }
        msync(start, bytes, MsyncFlags::SYNC).unwrap();
        munmap(start, bytes).unwrap();
    }
}
