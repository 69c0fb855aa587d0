//! Stores without transactions get them: the contract of the traits over the reference model, whose own are
//! hidden; memory, names, outcomes.
#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

mod added;
mod bare;
#[path = "../../../common/tests/databases/contract.rs"]
mod contract;
#[path = "../../../../store/tests/it/contract/fixture.rs"]
mod fixture;

use std::sync::Arc;

use kvfs_engine_transactions::Transacted;
use kvfs_store::Store;

use bare::Bare;
use fixture::{Append, Engine, Fixture, listing, text};

/// An engine that transactions were added to.
struct Plain;

impl Engine for Plain {
    fn keeping(_undo_count: usize) -> Arc<dyn Store> {
        Arc::new(Transacted::new(Bare::default(), MEMORY_BYTES))
    }
}

/// Of which transactions may hold a quarter.
const MEMORY_BYTES: u64 = 64 << 20;
