//! The preloaded library of `kvfs exec`: it serves the system calls of a program on paths below a prefix,
//! without a mount.
//!
//! At start the `syscall` instructions of libc, ld.so and every other mapped object are replaced by jumps to
//! [`entry`], which passes on whatever cannot concern the store within nanoseconds; the rest is sorted by
//! [`slow`] and given to the [`client`] of the server that owns the store. Only x86-64 Linux with glibc is
//! served; elsewhere the library does nothing.
//!
//! Thread safety: every call may arrive on any thread, in a signal handler and in a vfork child. Nothing
//! behind [`entry`] allocates, locks, uses thread-local storage or calls libc (other than `memcpy` and its
//! kin). Invariant: the descriptor bitmap and the flag of the working directory are hints, supersets of the
//! truth.
#![cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod buffer;
mod call;
mod client;
mod elf;
mod entry;
mod exec;
mod interpose;
mod kinds;
mod patch;
mod place;
mod script;
mod slow;
mod start;
mod state;
mod sys;
