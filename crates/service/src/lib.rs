//! What an open store is, without a front end: its open transactions, branches, snapshots, and the users that
//! may ask for what.
//!
//! Purpose: one entrance for each operation. The control socket, the key-value socket, ioctl(2) and
//! setxattr(2) on the mount call the same functions, and labels, priorities, limits and rights are checked
//! there and nowhere else. Nothing here prints, reads a command line, or knows a protocol; what needs the
//! kernel side of a view is asked of [`Mounts`].
//!
//! Thread safety: see the modules; everything is shared by all front ends.
//!
//! Invariants: failures are [`ServiceError`]s until a front end makes an errno, a status of gRPC or an exit
//! code of them; this crate uses no front end (docs/decisions/service.md).

mod authority;
mod branches;
mod caller;
mod check;
mod comparisons;
mod counters;
mod defrag;
mod engine;
mod error;
pub mod follow;
mod grow;
mod inline;
pub mod lines;
mod lock_log;
mod mounts;
mod no_mounts;
pub mod operations;
mod quota;
mod remount;
mod selection;
mod served;
mod service;
mod snapshots;
mod sync;
#[cfg(test)]
mod testing;
mod tiers;
mod transactions;
mod trees;
mod undo;
pub mod units;

pub use authority::{is_master, masters};
pub use branches::Branches;
pub use caller::{Caller, Connection, may_act_for};
pub use check::Checked;
pub use comparisons::{Compared, Comparison, Comparisons};
pub use counters::READ_ONLY_STAT;
pub use defrag::DefragGate;
pub use engine::{DefragOrder, DefragStep, Engine, EngineCheck, SpaceControl};
pub use error::{ErrorKind, Result, ServiceError};
pub use grow::Grown;
pub use inline::inline_threshold;
pub use lock_log::{LockLog, LockWatch};
pub use mounts::{MainLine, Mounts, ViewMount};
pub use no_mounts::NoMounts;
pub use remount::Remount;
pub use served::ServedStore;
pub use service::{CommitOutcome, Leave, Opened, Service};
pub use snapshots::{Frames, StreamOffer, Streams, shown_snapshots};
pub use tiers::Tiers;
pub use transactions::{Begin, Committed, Transactions, TxnState};
pub use trees::{
    ClonedTree, RemovedTrees, TreeCaller, TreeOperation, TreePath, Trees, Waiter, change_view, clone_tree,
    remove_trees,
};
pub use undo::{UndoLimits, UndoObstacle, Undone};
