//! What the traits mean: tests that every engine passes, and those of the model alone.
#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

#[path = "contract/fixture.rs"]
mod fixture;
mod kvdb;
mod model;
mod on_kvdb;
mod on_kvdb_runs;
mod on_kvdb_spilling;
mod on_kvdb_spilling_runs;
mod on_model;

use std::sync::Arc;

use kvfs_store::Store;
use kvfs_store::model::ModelStore;

use fixture::{Append, Engine, Fixture, listing, text};

struct Model;

impl Engine for Model {
    fn keeping(undo_count: usize) -> Arc<dyn Store> {
        let store = ModelStore::new();
        store.keep_for_undo(undo_count);
        Arc::new(store)
    }
}
