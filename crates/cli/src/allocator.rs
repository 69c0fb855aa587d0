//! The allocator, and how soon it gives freed memory back to the system.
//!
//! Rows are allocated by the workers and freed by the flush thread, in bursts as large as a memtable; this
//! allocator gives such memory back, where the C library's keeps it in the arena of each thread. But what is
//! given back costs a page fault for each 4 KiB when it is needed again, a quarter of the time of a daemon
//! that unpacks small files. So a daemon with much memory keeps it for a moment, and gives it back at once
//! when it comes near its ceiling.
//!
//! It is built not to ask for huge pages: one that is used in part is resident as a whole, which made the
//! resident set of a busy daemon a quarter larger.
//!
//! Thread safety: [`give_back_soon`] and [`keep_for_reuse`] are called before there are other threads,
//! [`give_back_now`] by any.

use std::ffi::{c_int, c_long};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay`, which the binding does not name.
const OPTION_PURGE_DELAY: c_int = 15;

/// How long freed memory waits to be used again (milliseconds), if it is scarce. The default of a second
/// means, for a writer, a memtable or two on top of what is in use.
const PURGE_DELAY: c_long = 10;

/// As [`PURGE_DELAY`], where there is enough: longer than a writer takes to fill a memtable.
const PURGE_DELAY_ROOMY: c_long = 1000;

/// With a ceiling from here on there is enough (bytes).
const ROOMY_BYTES: u64 = 1 << 30;

/// Makes the allocator return what is free sooner than by default.
pub(crate) fn give_back_soon() {
    set_purge_delay(PURGE_DELAY);
}

/// Has a daemon whose ceiling is `memory_bytes` keep what is free for a moment, if that is much.
pub(crate) fn keep_for_reuse(memory_bytes: u64) {
    if memory_bytes >= ROOMY_BYTES {
        set_purge_delay(PURGE_DELAY_ROOMY);
    }
}

/// Gives back what is free now.
pub(crate) fn give_back_now() {
    // SAFETY: takes nothing and may be called by any thread at any time.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

fn set_purge_delay(milliseconds: c_long) {
    // SAFETY: stores a number in the allocator's table of options, at an index that it has; no other thread
    // runs yet.
    unsafe { libmimalloc_sys::mi_option_set(OPTION_PURGE_DELAY, milliseconds) }
}
