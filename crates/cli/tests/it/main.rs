//! The command as a user runs it: real processes, real mounts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod branches;
mod changes;
mod copy;
mod crash;
mod defrag;
mod engines;
mod exec;
#[cfg(feature = "slatedb")]
mod followers;
mod foreign;
mod help;
mod killed;
mod kv;
mod lanes;
mod life;
mod mount_errors;
mod observed;
mod output;
mod repair;
mod revoked;
mod sockets;
mod space;
mod stores;
mod tiers;
mod transactions;
mod trees;
mod user;
mod world;
