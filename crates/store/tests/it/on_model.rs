//! The contract of the traits, judged on the reference model.

type Fixture = crate::Fixture<crate::Model>;

#[path = "contract/atomicity.rs"]
mod atomicity;
#[path = "contract/blocks.rs"]
mod blocks;
#[path = "contract/checkpoints.rs"]
mod checkpoints;
#[path = "contract/clones.rs"]
mod clones;
#[path = "contract/cursors.rs"]
mod cursors;
#[path = "contract/differences.rs"]
mod differences;
#[path = "contract/limits.rs"]
mod limits;
#[path = "contract/patches.rs"]
mod patches;
#[path = "contract/snapshots.rs"]
mod snapshots;
#[path = "contract/transaction_patches.rs"]
mod transaction_patches;
#[path = "contract/transactions.rs"]
mod transactions;
#[path = "contract/tuples.rs"]
mod tuples;
#[path = "contract/undo.rs"]
mod undo;
