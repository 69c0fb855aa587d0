//! Lock names and latches of kvfs.
//!
//! Purpose: operations of the file system (and, later, transactions) name what they read and change by
//! *logical* names, never by physical keys; [`Latches`] makes operations with conflicting names take turns.
//!
//! Thread safety: everything is `&self`; any number of threads.
//!
//! Invariants: a holder never waits (all names of an operation are taken, or none); so there is no
//! deadlock. Waiters are served in the order of their age; so nobody starves.

mod latch;
mod name;

pub use latch::{Guard, Latches, Ticket};
pub use name::{Fields, LockName, Mode, Want};
