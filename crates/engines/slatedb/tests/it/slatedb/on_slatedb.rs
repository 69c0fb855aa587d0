//! What every engine must have, and the extensions that this one has.

type Fixture = crate::Fixture<crate::Slate>;

#[path = "../../../../../store/tests/it/contract/atomicity.rs"]
mod atomicity;
#[path = "../../../../../store/tests/it/contract/blocks.rs"]
mod blocks;
#[path = "../../../../../store/tests/it/contract/clones.rs"]
mod clones;
#[path = "../../../../../store/tests/it/contract/cursors.rs"]
mod cursors;
#[path = "../../../../../store/tests/it/contract/differences.rs"]
mod differences;
#[path = "../../../../../store/tests/it/contract/limits.rs"]
mod limits;
#[path = "../../../../../store/tests/it/contract/patches.rs"]
mod patches;
#[path = "../../../../../store/tests/it/contract/snapshots.rs"]
mod snapshots;
#[path = "../../../../../store/tests/it/contract/transaction_patches.rs"]
mod transaction_patches;
#[path = "../../../../../store/tests/it/contract/transactions.rs"]
mod transactions;
#[path = "../../../../../store/tests/it/contract/tuples.rs"]
mod tuples;
