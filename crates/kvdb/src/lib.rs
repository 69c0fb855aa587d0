//! The storage engine of kvfs: a write-optimized, ordered, multi-keyspace store on its devices.
//!
//! Purpose: implements `kvfs_store::Store` with the VT-tree of the KVFS thesis (chapters 2 and 3.2): journal
//! → memtables → runs, merged by size class, with stitching. The way in is [`Db::builder`], which opens or
//! makes a store by its path; everything after that is [`kvfs_store::Store`] and its extensions. Programs
//! with a device of their own use [`Db::create`] and [`Db::open`]; [`repair`] takes a store that can't be
//! opened.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use kvfs_kvdb::Db;
//! use kvfs_store::{Batch, Durability, KeyRange, KeyspaceKind, Read, Store};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("store");
//! let db = Db::builder().open(&path)?;
//! let users = db.open_keyspace("users", KeyspaceKind::Tuple, None)?;
//! let mut batch = Batch::new();
//! batch.put(users, "anna", "1 Road");
//! batch.put(users, "bert", "2 Street");
//! // All of it or nothing, and durable when this returns.
//! db.apply(batch, Durability::Synced)?;
//!
//! let before = db.snapshot()?;
//! let mut removal = Batch::new();
//! removal.delete(users, "anna");
//! db.apply(removal, Durability::Buffered)?;
//! assert_eq!(db.get(users, b"anna")?, None);
//! assert_eq!(before.get(users, b"anna")?.as_deref(), Some(&b"1 Road"[..]));
//!
//! let mut cursor = db.cursor(users, KeyRange::all())?;
//! cursor.next()?;
//! let (key, value) = cursor.entry().ok_or("one is left")?;
//! assert_eq!((key, &value[..]), (&b"bert"[..], &b"2 Street"[..]));
//! drop((cursor, before));
//! db.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Modules, each using only those before it: `format` (pure codecs and record types), `salvage` (the tolerant
//! decoder), `space` (zones), `cache` (blocks, the accountant of memory), `journal`, `memtable`, `table`
//! (pieces of runs), `version` (manifest), `iter`, `compaction`, `commit`; then the owners of an open store,
//! each made from those before it: `runtime`, `layers`, `pressure`, `live`, `order`, `history`, `read`,
//! `commits`, `flush`, `merge`, `devices`, `write`, `txn`; at last `check`, `threads`, [`Db`], `open`,
//! `repair`.
//!
//! Thread safety: `Db` is shared by `Arc`; every method takes `&self`.

mod builder;
mod cache;
mod check;
mod commit;
mod commits;
mod compaction;
mod db;
mod devices;
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
#[cfg(test)]
mod testing;
mod threads;
mod txn;
mod version;
mod write;

pub use builder::Builder;
pub use cache::{CacheAccess, CacheEvent, CacheReplay, CacheTrace, CacheTraceInfo, Policy, UnknownPolicy};
pub use check::{Checked, LostKeys, Unreadable, ZoneInfo, ZoneKind, ZoneMap};
pub use compaction::MergeOptions;
pub use db::Db;
pub use devices::{DeviceInfo, DrainInfo, MissingDevices};
pub use format::FORMAT_VERSION;
pub use kvfs_memory::LiveCharges;
pub use merge::defrag::{DefragLimit, DefragPlan, DefragPolicy, DefragProgress, Defragmented, Fragmentation};
pub use merge::heat_map::{DeviceHeat, HeatCell, HeatMap};
pub use merge::migrate::{MigrationInfo, MigrationPlan};
pub use parts::memory::{ChargedMemory, Ownerless};
pub use repair::{Lost, Repaired, names_other_devices, repair, repair_joined};
pub use runtime::options::{Background, CreateOptions, Options};
pub use space::{BudgetInfo, Placement, UnknownPlacement};
pub use table::LostPart;
