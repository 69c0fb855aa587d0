//! Locks: what transactions hold on logical names until they end.
//!
//! Purpose: a table of objects (the entries of a directory, the blocks of a file, the keys of a keyspace,
//! ...), for each of them the holders of its parts with their modes, and the waiters; transactions as owners;
//! deadlocks and time-outs; lists for people.
//!
//! Thread safety: all shared; the order of mutexes is waits → shard → owner, ticket.
//!
//! Invariants:
//! * no two transactions hold overlapping parts in modes that conflict;
//! * locks are only added until the owner ends or is doomed, and then all go at once (strict two-phase);
//! * every cycle of waiting has a member that is made to give way; a waiter is woken when the way is
//!   free.

mod charge;
mod collapse;
mod doom;
mod held;
mod kept;
mod list;
mod options;
mod owner;
mod queue;
mod ranges;
mod span;
mod table;
mod waits;

#[cfg(test)]
mod tests;

pub use doom::{Doom, DoomReason, Owner, Rival};
pub use list::{LockInfo, LockPage, LockPlace, TxnInfo, WAITERS_LISTED_MAX, WaiterInfo};
pub use options::LockOptions;
pub use owner::{LockOwner, Phase, TxnTraits};
pub(crate) use queue::Asker;
pub use table::{LockShare, LockStats};
pub(crate) use table::{LockTable, Stopped};
