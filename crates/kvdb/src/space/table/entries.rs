//! What is known of each zone, by number.
//!
//! Numbers leave gaps: a first device that may grow far is followed by the zones of others. So entries are
//! made by the chunk, where a device has zones.
//!
//! Thread safety: plain data. Invariant: each zone that is there has an entry; zones that are not there may
//! have one, too.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut, Range};

use crate::space::ZoneState;

/// Zones of a chunk.
const CHUNK_ZONES: u32 = 256;

pub(super) struct Entry {
    pub(super) state: ZoneState,
    /// Where the next extent begins (offset in the zone).
    pub(super) bump: u32,
    pub(super) generation: u32,
    /// Contiguous stretches that pieces refer to; a hint for defragmentation.
    pub(super) stretches: u32,
    pub(super) bytes_live: u64,
}

impl Entry {
    fn free() -> Self {
        Self { state: ZoneState::Free, bump: 0, generation: 0, stretches: 0, bytes_live: 0 }
    }

    pub(super) fn is_of_data(&self) -> bool {
        matches!(self.state, ZoneState::Open(_) | ZoneState::Closed)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Entries {
    chunks: BTreeMap<u32, Box<[Entry]>>,
}

impl Entries {
    /// The zones have entries from now on; those that have one keep it.
    pub(super) fn add(&mut self, zones: Range<u32>) {
        for chunk in zones.start / CHUNK_ZONES..zones.end.div_ceil(CHUNK_ZONES) {
            self.chunk(chunk);
        }
    }

    /// The chunk of that number, made if there is none.
    fn chunk(&mut self, chunk: u32) -> &mut [Entry] {
        let new = || (0..CHUNK_ZONES).map(|_| Entry::free()).collect();
        self.chunks.entry(chunk).or_insert_with(new)
    }

    /// That of a zone which the store may not have.
    pub(super) fn get(&self, zone: u32) -> Option<&Entry> {
        Some(&self.chunks.get(&(zone / CHUNK_ZONES))?[(zone % CHUNK_ZONES) as usize])
    }

    /// All that there are, by number.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &Entry)> {
        self.chunks.iter().flat_map(|(chunk, entries)| (chunk * CHUNK_ZONES..).zip(entries))
    }

    /// Those of these zones.
    pub(super) fn of(&self, zones: Range<u32>) -> impl Iterator<Item = (u32, &Entry)> {
        let chunks = zones.start / CHUNK_ZONES..zones.end.div_ceil(CHUNK_ZONES);
        let entries = self.chunks.range(chunks);
        let numbered = entries.flat_map(|(chunk, entries)| (chunk * CHUNK_ZONES..).zip(entries));
        numbered.filter(move |(zone, _)| zones.contains(zone))
    }
}

impl Index<u32> for Entries {
    type Output = Entry;

    fn index(&self, zone: u32) -> &Entry {
        &self.chunks[&(zone / CHUNK_ZONES)][(zone % CHUNK_ZONES) as usize]
    }
}

impl IndexMut<u32> for Entries {
    fn index_mut(&mut self, zone: u32) -> &mut Entry {
        &mut self.chunk(zone / CHUNK_ZONES)[(zone % CHUNK_ZONES) as usize]
    }
}
