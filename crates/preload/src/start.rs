//! What happens before the program begins: read the environment, set the hints, patch, and look whether calls
//! of libc arrive.
//!
//! Thread safety: runs once, on the first thread. Invariant: a program that was given a prefix and does not
//! see the store is treated as an executable that does not load the library.

use crate::{client, entry, exec, patch, slow, state, sys};
use std::os::unix::ffi::OsStrExt;

/// Where the store appears: `KVFS_EXEC_PREFIX`.
const PREFIX: &str = "KVFS_EXEC_PREFIX";

/// A number that no descriptor has. The library answers a read of it with EBADFD, the kernel with EBADF.
pub(crate) const PROBE: i32 = i32::MAX - 1;

// SAFETY: ld.so calls it once, after it has initialized libc.
#[unsafe(link_section = ".init_array")]
#[used]
static START: extern "C" fn() = start;

extern "C" fn start() {
    let Some(prefix) = std::env::var_os(PREFIX) else { return };
    exec::set_up();
    let name = std::env::args_os().next().unwrap_or_default();
    let outcome = if state::set_prefix(prefix.as_bytes()) && client::set_up() {
        set_up()
    } else {
        Err("its environment is not that of `kvfs exec`, or the kernel refuses memory")
    };
    if let Err(reason) = outcome
        && exec::refuses(name.as_bytes(), reason.as_bytes())
    {
        sys::call(libc::SYS_exit_group as u64, &[CANNOT_RUN, 0, 0, 0, 0, 0]);
    }
}

/// The status of shells for what was found and cannot be executed.
const CANNOT_RUN: u64 = 126;

fn set_up() -> Result<(), &'static str> {
    entry::set_up();
    mark_descriptors();
    slow::note_directory();
    let log = std::env::var_os("KVFS_EXEC_LOG").is_some();
    for segment in patch::segments() {
        match patch::patch(segment) {
            Ok(count) if log && count > 0 => report(&format!("kvfs: {count} sites at {:x}\n", segment.start)),
            Err(reason) if log => {
                report(&format!("kvfs: cannot patch the code at {:x}: {reason}\n", segment.start));
            }
            Ok(_) | Err(_) => {}
        }
    }
    if sys::error_of_read(PROBE) == libc::EBADFD {
        Ok(())
    } else {
        Err("calls of its C library cannot be intercepted")
    }
}

/// Tells of patching on standard error, as `KVFS_EXEC_LOG` demands; a failed write has no other place to go.
fn report(message: &str) {
    sys::call(libc::SYS_write as u64, &[2, message.as_ptr() as u64, message.len() as u64, 0, 0, 0]);
}

/// Marks the descriptors that the process was started with.
fn mark_descriptors() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    for name in entries.flatten().map(|entry| entry.file_name()) {
        if let Some(fd) = name.to_str().and_then(|name| name.parse().ok())
            && client::may_own_descriptor(fd)
        {
            state::mark(fd);
        }
    }
}
