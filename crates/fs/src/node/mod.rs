//! Nodes: what the kernel (or another front end) knows, and what operations work on.
//!
//! Purpose: a node joins an inode's number, its place (parent node and name, or its own row, or the
//! orphans), and its attributes as last committed, so that attributes cost no store access. The table is
//! bounded from outside: [`NodeTable::prune_candidates`] names what the kernel should forget.
//!
//! Thread safety: sharded; a shard's lock comes before a node's state lock, and neither is held across a
//! store access or another node's lock.
//!
//! Invariants:
//! * An operation that changes an inode's row must hold its node in the table from before reading until after
//!   applying, and update the node before it releases the latch. So a node's attributes are never stale.
//! * A row that was read from the store becomes a node only if, since before the read, no node that had
//!   been changed left the table ([`NodeTable::epoch`]): else the row might be older than such a change.
//!   So looking up and listing take no latch.
//! * A node's count of references (lookups, operations, children) is above 0 while it is needed; a child
//!   keeps its parent, so paths can always be computed. A front end that remembers no names of its own has
//!   the table keep them, each with a reference (`names`).

mod contents;
mod dead;
mod known;
mod names;
mod settling;
mod state;
mod table;

#[cfg(test)]
mod tests;

pub(crate) use dead::Dead;
pub use known::{HeldNode, KnownNode};
pub(crate) use settling::{Behind, Touched};
pub(crate) use state::{DirectoryPart, Location, Node, NodeState, Pin, Verified};
pub use table::NodeTable;
pub(crate) use table::{Intern, NameChange};
