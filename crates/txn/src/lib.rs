//! Lock names, latches and locks of kvfs.
//!
//! Purpose: operations of the file system name what they read and change by *logical* names, never by
//! physical keys. [`Latches`] make operations with conflicting names take turns; locks keep the names of a
//! transaction until it ends; [`Admission`] is the one door to both.
//!
//! Thread safety: everything is `&self`; any number of threads.
//!
//! Invariants: a holder of latches never waits (all names of an operation are taken, or none), so there is
//! no deadlock among operations; transactions do wait for each other's locks, and deadlocks among them are
//! found and broken. Waiters are served by importance and age, so none starves among equals.

mod admission;
mod latch;
mod lock;
mod name;
mod object;
mod owned;
mod sync;
mod ticket;

pub use admission::{Admission, Guard, Party, Refused};
pub use latch::Latches;
pub use lock::{
    Doom, DoomReason, LockInfo, LockOptions, LockOwner, LockPage, LockPlace, LockShare, LockStats, Owner,
    Phase, Rival, TxnInfo, TxnTraits, WAITERS_LISTED_MAX, WaiterInfo,
};
pub use name::{Fields, LockName, Mode, Want};
pub use owned::LockNameBuf;
pub use ticket::Ticket;
