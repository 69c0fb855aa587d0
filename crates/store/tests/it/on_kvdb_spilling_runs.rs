//! The contract of transactions, judged on the engine when transactions spill with every batch and nearly
//! everything lies in runs.
#![expect(clippy::duplicate_mod, reason = "the same tests for every engine")]

type Fixture = crate::Fixture<crate::kvdb::KvdbSpillingInRuns>;

#[path = "contract/checkpoints.rs"]
mod checkpoints;
#[path = "contract/clones.rs"]
mod clones;
#[path = "contract/patches.rs"]
mod patches;
#[path = "contract/transaction_patches.rs"]
mod transaction_patches;
#[path = "contract/transactions.rs"]
mod transactions;
#[path = "contract/undo.rs"]
mod undo;
