//! What is known of transactions beside their writes: which are open, which were committed, which can be
//! resumed or undone.

pub(crate) mod checkpoints;
pub(crate) mod transactions;
pub(crate) mod undo;

pub(crate) use checkpoints::Checkpoints;
pub(crate) use transactions::Transactions;
pub(crate) use undo::Undo;
