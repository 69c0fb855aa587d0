//! The command as a user runs it: real processes, real mounts.

mod help;
mod kv;
mod life;
mod mount_errors;
mod stores;
mod user;
mod world;
