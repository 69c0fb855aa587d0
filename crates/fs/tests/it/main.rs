//! Tests of the file system over the reference store.

#![expect(clippy::unwrap_used, reason = "in tests a failed unwrap is a failed test")]

mod accesses;
mod acls;
mod anomalies;
mod areas;
#[path = "../../../engines/transactions/tests/it/bare.rs"]
mod bare;
mod branches;
mod branches_of_branches;
mod branches_of_directories;
mod checkpointed_copies;
mod clones;
mod compression;
mod copy;
mod deep;
mod detached;
mod detached_views;
mod driver;
mod emptied;
mod engine;
mod exclusive;
mod follow;
mod full;
mod full_removals;
mod histories;
mod hostile;
mod idle;
mod inline;
mod interleaved;
mod keys;
mod leaving_trees;
mod orphans;
mod prefix;
mod privileges;
mod projects;
mod quotas;
mod random;
mod reference;
mod reframed;
mod repair;
mod replicas;
mod restored_trees;
mod scans;
mod sent_clones;
mod setup;
mod snapshots;
mod threads;
mod tiers;
mod times;
mod transfer;
mod undo;
mod unwritten;
mod user_locks;
mod views;
mod xattrs;
