//! The storage engine of kvfs: a write-optimized, ordered, multi-keyspace store on one device.
//!
//! Purpose: implements `kvfs_store::Store` with the VT-tree of the KVFS thesis (chapters 2 and 3.2):
//! journal → memtables → runs, merged by size class, with stitching.
//!
//! Modules, each using only those before it: [`mod@format`] (pure codecs and record types), [`zone`]
//! (space), [`cache`] (block cache, memory accountant), [`journal`], [`memtable`], [`run`],
//! [`version`] (manifest and the live set of runs), [`iter`], [`compaction`], [`commit`], [`db`].
//!
//! Thread safety: `Db` is shared by `Arc`; every method takes `&self`.

pub mod cache;
pub mod commit;
pub mod compaction;
pub mod db;
pub mod format;
pub mod iter;
pub mod journal;
pub mod memtable;
pub mod run;
pub mod version;
pub mod zone;

pub use db::{
    Background, Checked, CreateOptions, Db, Lost, LostKeys, Options, Repaired, ZoneInfo, ZoneKind, ZoneMap,
    repair,
};
pub use format::FORMAT_VERSION;
pub use run::LostPart;
