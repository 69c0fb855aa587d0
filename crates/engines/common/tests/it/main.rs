//! The contract of a store, judged on a database in memory that deletes ranges in pages, and what a sudden
//! end in the middle leaves.
#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

#[path = "../databases/contract.rs"]
mod contract;
#[path = "../../../../store/tests/it/contract/fixture.rs"]
#[expect(dead_code, reason = "some of it is for engines with transactions")]
mod fixture;
mod pages;
mod sketch;
#[path = "../databases/store.rs"]
mod store;

use fixture::{Append, Fixture, listing, text};
use sketch::Sketch as Tested;
use store::Plain;
