//! What keeps a file-system daemon alive when memory is gone.
//!
//! A dirty page of a mapped file can only be freed by this process writing it. So the kernel must neither
//! make this process wait for such pages, nor choose it as the victim.

use std::{fs, io};

/// Tells the kernel that this thread, and those it starts, serve the writing of dirty pages: their
/// allocations then don't wait for it. Call it before threads are started.
///
/// # Errors
/// Needs `CAP_SYS_RESOURCE`; without it, EPERM.
pub fn become_io_flusher() -> io::Result<()> {
    Ok(rustix::process::configure_io_flusher_behavior(true)?)
}

/// Keeps the kernel from giving this process huge pages: one that was freed in part stays resident as a whole.
///
/// # Errors
/// The kernel may be built without them.
pub fn refuse_huge_pages() -> io::Result<()> {
    Ok(rustix::thread::disable_transparent_huge_pages(true)?)
}

/// Makes the out-of-memory killer prefer others: `adjustment` is in −1000 (never) to 1000.
///
/// # Errors
/// Lowering the value needs `CAP_SYS_RESOURCE`.
pub fn adjust_oom_score(adjustment: i16) -> io::Result<()> {
    fs::write("/proc/self/oom_score_adj", adjustment.to_string())
}
