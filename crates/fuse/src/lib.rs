//! The FUSE protocol layer of kvfs: kernel interface, mounts, transports, dispatch. No policy.
//!
//! Purpose: [`mount`] attaches a directory to a connection, [`transport`] carries its messages, [`Session`]
//! negotiates and runs the workers, [`dispatch`] turns requests into calls of [`Operations`] and answers into
//! replies, [`notify`] tells the kernel what changed behind its back,
//! [`bridge`] joins all that to the file system of `kvfs-fs`.
//!
//! Thread safety: an `Operations` is called by all workers at once. No worker ever waits for a lock: a call
//! that can't go on keeps its [`Reply`] (see [`Reply::park`]) and returns; the thread that ends the wait
//! answers later, from any thread. Notifications take locks inside the kernel, so they go out from
//! threads of their own that hold nothing.
//!
//! Invariants: every request is answered exactly once (a dropped `Reply` answers EIO); every queue is
//! bounded; a malformed request or a panicking handler gives an error to one caller, never a dead daemon.

#![deny(unsafe_code)]

pub mod abi;
pub mod bridge;
pub mod dispatch;
pub mod mount;
pub mod notify;
pub mod process;
pub mod session;
pub mod transport;

pub use dispatch::{Operations, Reply, RequestContext};
pub use notify::{Notification, Notifier};
pub use rustix::io::Errno;
pub use session::{Session, SessionConfig, SessionError};
