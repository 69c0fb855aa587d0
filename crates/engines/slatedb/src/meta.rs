//! What the database says of itself: the identity of the store, its keyspaces, the ranges that were deleted,
//! and whether it has segments, or a journal elsewhere.
//!
//! Thread safety: plain values. Invariant: all of it is of one state.

use std::sync::Arc;

use kvfs_store::{KeyRange, KeyspaceKind, Result, StoreError};

use crate::journal::OpenJournal;
use crate::keys;
use crate::ranges::{self, DeadRange, DeadRanges};
use crate::segments;
use crate::space::{self, Space};
use crate::view::View;

/// What is of no keyspace, beside the records of keyspaces and deleted ranges: the identity of the store, and
/// the version of all this.
pub(crate) const UUID: &[u8] = b"uuid";
pub(crate) const VERSION: &[u8] = b"version";
pub(crate) const VERSION_NOW: &[u8] = b"1";
/// Of a store that has segments, which it does not go back from.
pub(crate) const VERSION_SEGMENTS: &[u8] = b"2";
/// Of a store, with segments or without, while the journal of a local disk may hold more than it has.
pub(crate) const VERSION_JOURNAL: &[u8] = b"3";

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Meta {
    pub(crate) uuid: [u8; 16],
    /// By number.
    pub(crate) spaces: Vec<Arc<Space>>,
    pub(crate) dead: Arc<DeadRanges>,
    /// Its version says that it may have some.
    pub(crate) has_segments: bool,
    pub(crate) journal: Option<OpenJournal>,
    /// All segments (bytes).
    pub(crate) segment_bytes: u64,
}

impl Meta {
    /// Reads it in `view`, which hides nothing of it.
    pub(crate) fn read(view: &View<'_>) -> Result<Self> {
        let meta = Space::new(keys::META, "", KeyspaceKind::Tuple);
        let version = view.get(&meta, VERSION)?;
        let has_segments = match version.as_deref().unwrap_or_default() {
            VERSION_NOW => false,
            VERSION_SEGMENTS | VERSION_JOURNAL => true,
            other => {
                let text = format!("the store has version \"{}\", not 1, 2 or 3", other.escape_ascii());
                return Err(StoreError::corrupt("SlateDB", text));
            }
        };
        let journal = OpenJournal::read(view, &meta)?;
        let segment_bytes = segments::parse_number(view.get(&meta, segments::BYTES)?.as_deref())?;
        let uuid = view.get(&meta, UUID)?.unwrap_or_default();
        let uuid = <[u8; 16]>::try_from(&uuid[..])
            .map_err(|_| StoreError::corrupt("SlateDB", "the uuid of the store is missing"))?;
        let mut spaces = Vec::new();
        view.walk(&meta, &KeyRange::prefix(space::RECORDS), 0, &mut |key, value| {
            spaces.push(Arc::new(Space::parse(key, value)?));
            Ok(true)
        })?;
        spaces.sort_by_key(|space| space.number);
        let mut dead = Vec::new();
        view.walk(&meta, &KeyRange::prefix(ranges::RECORDS), 0, &mut |key, value| {
            dead.push(Arc::new(DeadRange::parse(key, value)?));
            Ok(true)
        })?;
        Ok(Self { uuid, spaces, dead: Arc::new(DeadRanges::new(dead)), has_segments, journal, segment_bytes })
    }
}
