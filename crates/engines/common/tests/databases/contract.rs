//! What every engine must have, and transactions, as they are added to it.

type Fixture = crate::Fixture<crate::Plain>;

#[path = "../../../../store/tests/it/contract/atomicity.rs"]
mod atomicity;
#[path = "../../../../store/tests/it/contract/blocks.rs"]
mod blocks;
#[path = "../../../../store/tests/it/contract/clones.rs"]
mod clones;
#[path = "../../../../store/tests/it/contract/cursors.rs"]
mod cursors;
#[path = "../../../../store/tests/it/contract/limits.rs"]
mod limits;
#[path = "../../../../store/tests/it/contract/patches.rs"]
mod patches;
#[path = "../../../../store/tests/it/contract/transaction_patches.rs"]
mod transaction_patches;
#[path = "../../../../store/tests/it/contract/transactions.rs"]
mod transactions;
#[path = "../../../../store/tests/it/contract/tuples.rs"]
mod tuples;
