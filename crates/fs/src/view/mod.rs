//! Views: the main line and transactions, each a [`FileSystem`] of its own over one store.
//!
//! Purpose: every operation is called on the view that its caller sees. A view knows where its reads come
//! from and where its batches go ([`Origin`]), has a node table of its own, and takes names for its party:
//! latches for the length of an operation, and inside a transaction locks until the end.
//!
//! The life of a transaction: [`FileSystem::begin`] → operations on the view → [`TxnView::freeze`] →
//! [`FrozenView::plan`] → [`PlannedCommit::commit`], or [`TxnView::abort`]: the states of `commit`. A commit
//! publishes the private writes in one step of the store's order, then brings the main line's nodes up to
//! date and tells what the kernel must forget.
//!
//! Thread safety: as [`FileSystem`]. Lock order: phase of the view → publishing of the main line's node table
//! → shards and nodes.
//!
//! Invariants:
//! * a transaction that changes a row must hold its locks until the main line's nodes are up to date, so that
//!   no operation on the main line changes it meanwhile; what commutes (counters) is brought in as a change;
//! * a view never writes access times, and reaps only orphans that it made itself: a file that the main line
//!   has open stays whole, whatever a commit does to its names;
//! * a view that locks what it reads trusts no attribute that it learned before it had the lock (`verify`);
//! * an ended view answers `Stale`, a doomed one `Canceled`;
//! * the view of a branch ([`FileSystem::open_branch`]) takes latches and no locks; a merge takes the locks
//!   of all that the branch changed, and then looks whether the tree stays one.

mod authors;
mod branch;
mod commit;
mod compare;
mod created;
mod diff;
mod follow;
mod fork;
mod front;
mod idle;
mod keys;
mod locker;
mod merge;
mod merge_trees;
mod origin;
mod paths;
mod prefer;
mod processes;
mod publish;
mod restore;
mod stream;
mod times;
mod txn;
mod undo;
mod untold;
mod user_locks;
mod verify;
mod writer;

pub(crate) use authors::Authors;
pub use branch::{BRANCHES_MAX, BranchInfo, Branches, open_branch};
pub use commit::{
    CommitPlan, Committed, FrozenView, Invalidations, ManyNames, PlannedCommit, PreparedCommit,
};
pub(crate) use compare::Sides;
use created::Created;
pub use diff::{DiffKind, Difference, FACTS_VALUE_LEN_MAX, Facts, diff, hide_unreadable};
pub(crate) use follow::Renewal;
pub use follow::{follows, hold_state, renew_cached, show_newer, take_renewed};
pub use fork::merge_into_parent;
pub use front::{LockWords, command_of, path_in, record_operations, recorder};
pub use idle::AsFsError;
pub(crate) use idle::OpenViews;
pub(crate) use keys::{RESERVED, keyspace_table};
pub(crate) use locker::{Locker, Names};
pub use merge::begin_merge;
pub(crate) use origin::{Origin, Shared};
pub(crate) use paths::Paths;
pub use prefer::begin_merge_preferring;
pub(crate) use processes::Processes;
pub use processes::name_processes;
pub(crate) use publish::each_change;
pub use restore::{Restored, restore, restore_paths};
pub use stream::DiffStream;
pub use txn::{BeginOptions, Owner, TxnView, is_read_only, show_snapshot};
pub use undo::{Area, Effects, Obstacle, Planned, Selection, TakenBack, Undo, owner_of_note, undo_points};
pub use untold::{ChangedNames, Telling, UntoldNames, untold_names};
pub use user_locks::UserLocks;
pub(crate) use writer::NodeWriter;
