//! Serves a file system to other processes, without a mount and without FUSE.
//!
//! Purpose: a [`Server`] accepts connections on a Unix socket; each is a process to the file system, with the
//! user whom the kernel names. Its calls come over lanes ([`kvfs_lane`]), a thread for each, and are done by
//! [`kvfs_posix::Process`]. An open file is kept by the copies of its placeholder, and ends with the last
//! one.
//!
//! Thread safety: everything is `&self`.
//!
//! Invariants: a connection does what its user may do, and uses open files of this user alone; when it ends,
//! its locks and numbered files end; no wait outlives it. No user takes all that the server has.

mod begun;
mod calls;
mod images;
mod keys;
mod lanes;
mod placeholders;
mod places;
mod records;
mod report;
mod server;
mod session;
mod shares;

pub use server::{LANE_BYTES_MAX, Server, Visitor, World};
