//! The allocator, and how soon it gives freed memory back to the system.
//!
//! Rows are allocated by the workers and freed by the flush thread, in bursts as large as a memtable; this
//! allocator gives such memory back, where the C library's keeps it in the arena of each thread.
//!
//! It is built not to ask for huge pages: one that is used in part is resident as a whole, which made the
//! resident set of a busy daemon a quarter larger.
//!
//! Thread safety: [`give_back_soon`] is called once, before there are other threads.

use std::ffi::{c_int, c_long};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay`, which the binding does not name.
const OPTION_PURGE_DELAY: c_int = 15;

/// How long freed memory waits to be used again (milliseconds). The default of a second means, for a writer,
/// all that was written in a second on top of what is in use.
const PURGE_DELAY: c_long = 10;

/// Makes the allocator return what is free sooner than by default.
pub(crate) fn give_back_soon() {
    // SAFETY: stores a number in the allocator's table of options, at an index that it has; no other thread
    // runs yet.
    unsafe { libmimalloc_sys::mi_option_set(OPTION_PURGE_DELAY, PURGE_DELAY) }
}
