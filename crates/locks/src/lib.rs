//! The locks of the daemon: each belongs to a class, and the classes have one order.
//!
//! Purpose: a thread that holds a lock takes only locks of later classes ([`class`]), so no two threads can
//! wait for each other. Debug builds check that at each acquisition. In every build each thread notes what it
//! holds and waits for, and where in the code ([`held`]), so a daemon that hangs can say why (as nDiskFS,
//! 2020).
//!
//! Thread safety: [`Mutex`], [`RwLock`] and [`Condvar`] are those of `parking_lot`; a guard stays on its
//! thread.
//!
//! Invariants: a class costs a lock no memory. An acquisition without contention reads no clock and writes
//! four words of its own thread's.

pub mod class;
mod condvar;
mod held;
mod mutex;
mod rwlock;
mod threads;
mod watch;

#[cfg(test)]
mod tests;

pub use class::Class;
pub use condvar::Condvar;
pub use held::{Access, Held, cycle, held};
pub use mutex::{Mutex, MutexGuard};
pub use parking_lot::WaitTimeoutResult;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use watch::{HOLD_TIME_MAX, Report, Watch};
