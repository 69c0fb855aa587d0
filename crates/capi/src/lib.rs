//! The C library of kvfs: a store inside a program, by calls that are named as those of POSIX are.
//!
//! Purpose: what `include/kvfs.h` declares. Each function turns arguments of C into those of [`kvfs_posix`],
//! [`kvfs_kv`] and [`kvfs_open`], calls one function of them, and turns what comes back into a result and
//! `errno`. No rule of the product is here.
//!
//! Thread safety: stores, processes and transactions may be used by any number of threads at once; a
//! directory stream, a cursor and options by one at a time.
//!
//! Invariants: a function that fails returns -1 or a null pointer, sets `errno` and leaves a message for
//! [`kvfs_last_error`](failure::kvfs_last_error); no panic leaves a function; memory of the caller is reached
//! in [`foreign`] alone, whose types only C can make; the allocator of the program stays what it is.
//!
//! The header is made of these files (`tests/it/header.rs`).

pub mod attributes;
pub mod directory;
pub mod failure;
pub mod files;
pub mod foreign;
pub mod io;
pub mod keys;
mod layout;
pub mod locks;
pub mod mapping;
pub mod names;
mod places;
pub mod process;
pub mod snapshots;
pub mod store;
pub mod transactions;
pub mod xattrs;
