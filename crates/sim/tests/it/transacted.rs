//! Transactions that are added to an engine, beside the reference model.

use std::sync::Arc;

use kvfs_engine_transactions::Transacted;
use kvfs_sim::ops::Profile;
use kvfs_sim::seeds;
use kvfs_sim::store_check::{Subject, assert_like_model};
use kvfs_store::{Result, Store};

use crate::bare::Bare;

/// More than the transactions come to.
const MEMORY_BYTES: u64 = 64 << 20;

struct Histories {
    bare: Bare,
    store: Option<Arc<Transacted<Bare>>>,
}

impl Histories {
    fn new() -> Self {
        let bare = Bare::default();
        Self { store: Some(Arc::new(Transacted::new(bare.clone(), MEMORY_BYTES))), bare }
    }
}

impl Subject for Histories {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(self.store.as_ref().unwrap()) as Arc<dyn Store>
    }

    fn reopen(&mut self) -> Result<()> {
        self.store = None;
        self.store = Some(Arc::new(Transacted::new(self.bare.clone(), MEMORY_BYTES)));
        Ok(())
    }
}

#[test]
fn transactions_added_to_an_engine_are_like_the_model() {
    for seed in seeds(1, 60) {
        assert_like_model(&|| Box::new(Histories::new()), &Profile::default(), seed);
    }
}
