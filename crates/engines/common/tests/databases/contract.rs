//! What every engine must have: those parts of the contract that are on no extension.

type Fixture = crate::Fixture<crate::Plain>;

#[path = "../../../../store/tests/it/contract/atomicity.rs"]
mod atomicity;
#[path = "../../../../store/tests/it/contract/blocks.rs"]
mod blocks;
#[path = "../../../../store/tests/it/contract/cursors.rs"]
mod cursors;
#[path = "../../../../store/tests/it/contract/limits.rs"]
mod limits;
#[path = "../../../../store/tests/it/contract/patches.rs"]
mod patches;
#[path = "../../../../store/tests/it/contract/tuples.rs"]
mod tuples;
