//! The contract of a store, judged on `LevelDB`, and what survives a process.
#![cfg(feature = "libleveldb")]
#![expect(clippy::unwrap_used, reason = "a test that fails here has failed")]

#[path = "../../../common/tests/databases/contract.rs"]
mod contract;
#[path = "../../../../fs/tests/it/driver.rs"]
mod driver;
#[path = "../../../common/tests/databases/failing.rs"]
mod failing;
mod fences;
#[path = "../../../common/tests/databases/files.rs"]
mod files;
#[path = "../../../../store/tests/it/contract/fixture.rs"]
#[expect(dead_code, reason = "some of it is for engines with transactions")]
mod fixture;
#[path = "../../../common/tests/databases/lasting.rs"]
mod lasting;
mod power_cut;
#[path = "../../../../fs/tests/it/reference.rs"]
mod reference;
#[path = "../../../../fs/tests/it/setup.rs"]
#[expect(dead_code, reason = "some of it is for other tests of the file system")]
mod setup;
#[path = "../../../common/tests/databases/store.rs"]
mod store;
#[path = "../../../../fs/tests/it/threads.rs"]
mod threads;

use std::path::Path;
use std::sync::Arc;

use kvfs_engine_common::{Database, DatabaseOptions};
use kvfs_engine_leveldb::Level as Tested;
use kvfs_store::{Batch, Durability, KeyspaceKind, Read, Result, Store};

use fixture::{Append, Engine, Fixture, listing, text};
use store::{MEMORY_BYTES, Plain, TestStore, create, open};
