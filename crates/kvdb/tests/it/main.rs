//! The engine through its façade, on a device in memory.

mod basics;
mod binding;
mod caching;
mod checkpoints;
mod clones;
mod clones_of_clones;
mod damaged_indexes;
mod folds;
mod forks;
mod gathering;
mod overwritten;
mod paging;
mod patches;
mod private_merges;
mod pruned;
mod repair;
mod snapshots;
mod space;
mod spilled;
mod spilled_faults;
mod transactions;
mod undo;
