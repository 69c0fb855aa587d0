//! The storage engine of kvfs: a write-optimized, ordered, multi-keyspace store on one device.
//!
//! Purpose: implements `kvfs_store::Store` with the VT-tree of the KVFS thesis (chapters 2 and 3.2):
//! journal → memtables → runs, merged by size class, with stitching.
//!
//! Modules, each using only those before it: [`mod@format`] (pure codecs and record types), `salvage` (the tolerant decoder), `space` (zones), `cache` (blocks, the
//! accountant of memory), `journal`, `memtable`, `table` (pieces of runs), `version` (manifest), `iter`, `compaction`, `commit`;
//! then the owners of an open store, each made from those before it: `runtime`, `layers`, `pressure`, `live`, `order`, `history`,
//! `read`, `commits`, `flush`, `merge`, `write`, `txn`; at last `check`, `threads`, [`Db`], `open`, `repair`.
//!
//! Thread safety: `Db` is shared by `Arc`; every method takes `&self`.

mod builder;
mod cache;
mod check;
mod commit;
mod commits;
mod compaction;
mod db;
mod flush;
pub mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod history;
mod iter;
mod journal;
mod layers;
mod live;
mod memtable;
mod merge;
mod open;
mod order;
mod parts;
mod pressure;
mod read;
mod repair;
mod runtime;
mod salvage;
mod space;
mod table;
mod threads;
mod txn;
mod version;
mod write;

pub use builder::Builder;
pub use cache::Policy;
pub use check::{Checked, LostKeys, Unreadable, ZoneInfo, ZoneKind, ZoneMap};
pub use compaction::MergeOptions;
pub use db::Db;
pub use format::FORMAT_VERSION;
pub use merge::defrag::{DefragLimit, DefragPlan, DefragPolicy, DefragProgress, Defragmented, Fragmentation};
pub use repair::{Lost, Repaired, repair};
pub use runtime::options::{Background, CreateOptions, Options};
pub use table::LostPart;
