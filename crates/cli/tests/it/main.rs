//! The command as a user runs it: real processes, real mounts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crash;
mod help;
mod kv;
mod life;
mod mount_errors;
mod repair;
mod stores;
mod transactions;
mod user;
mod world;
