//! Calls of POSIX against what POSIX and Linux say; the file system runs on a store in memory, or on the
//! engine.

mod attributes;
mod beside_linux;
mod directories;
mod files;
mod keys;
mod names;
mod observers;
mod snapshots;
mod transactions;
mod trees;
mod world;
