//! Offsets of directory listings.
//!
//! Entries are stored in the order of their names, and a listing must be one scan of them; an offset is 63
//! bits and a name 255 bytes, so no arithmetic leads from one to the other. A cookie kept in each row would
//! need a second index, written at each creation, and would still not lead to the place of an entry that was
//! deleted since. So offsets are given out: each *name* gets the next one when it is listed for the first
//! time, and the directory's node remembers it. Going on after an offset is a seek to its name, whatever was
//! created or deleted in between; a name that is listed again has the offset that it had, so neither seeks
//! nor repeated listings make the table grow.
//!
//! Names lie in chunks, in the order in which they were listed. That is their own order as long as one
//! listing goes through the directory, and then a new name is one that comes behind all others; the index
//! that finds a known name is made when one comes that does not. The names of a chunk were neighbours in one
//! listing: where several listings take turns, or new names lie between known ones, a new chunk begins.
//!
//! Memory is bounded: above [`NAME_BYTES_MAX`] the oldest chunk gives its names up, but for the first. Its
//! offsets then lead to the first name and as many entries further as there were, which is the right place as
//! long as nothing in that one chunk was created or deleted since. Above [`CHUNKS_MAX`] the oldest such chunk
//! goes. Offsets live as long as the node, hence longer than any open directory, and don't survive the mount,
//! as nothing does that holds one.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

/// Offset that follows `.`.
pub(crate) const OFFSET_DOT: u64 = 1;
/// Offset that follows `..`.
pub(crate) const OFFSET_DOT_DOT: u64 = 2;
/// Offset of the first name.
const OFFSET_FIRST: u64 = OFFSET_DOT_DOT + 1;

/// Names in a chunk, at most.
const CHUNK_LEN: u64 = 256;

/// Names kept per directory (bytes), with what finds them.
const NAME_BYTES_MAX: usize = 1 << 20;

/// Chunks remembered per directory: eight million names that one listing gave offsets to.
const CHUNKS_MAX: usize = 1 << 15;

/// What one name takes in the index (bytes), at most.
const INDEX_ENTRY_BYTES: usize = 36;

/// Where a listing goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resume {
    /// After this name (empty: at the start) …
    pub(crate) after: Box<[u8]>,
    /// … and then this many entries further.
    pub(crate) skip: u64,
}

#[derive(Debug)]
struct Chunk {
    /// Of its first name.
    number: u64,
    first: Box<[u8]>,
    names: Option<Names>,
}

#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Names {
    fn get(&self, index: usize) -> &[u8] {
        let start = index.checked_sub(1).map_or(0, |previous| self.ends[previous] as usize);
        &self.bytes[start..self.ends[index] as usize]
    }

    fn push(&mut self, name: &[u8]) {
        self.bytes.extend_from_slice(name);
        self.ends.push(self.bytes.len() as u32);
        if self.ends.len() as u64 == CHUNK_LEN {
            self.bytes.shrink_to_fit();
        }
    }

    fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.ends.len() * size_of::<u32>()
    }
}

/// The offsets that a directory has given out.
#[derive(Debug, Default)]
pub(crate) struct CookieTable {
    chunks: VecDeque<Chunk>,
    /// Of the chunks, the first so many have no names. The last one always has.
    nameless: usize,
    names_len: u64,
    /// From the hash of a name to its number; `None`: each name came behind all others.
    index: Option<HashMap<u64, u64>>,
    hasher: RandomState,
    name_bytes: usize,
    first_bytes: usize,
    memory_told: usize,
}

impl CookieTable {
    /// Memory that is held (bytes), as it was told last.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_told
    }

    /// Memory that was held when this was called last, and now (bytes).
    pub(crate) fn tell_memory(&mut self) -> (usize, usize) {
        let records = self.chunks.capacity() * size_of::<Chunk>() + self.first_bytes;
        let now = records + self.named_bytes();
        (std::mem::replace(&mut self.memory_told, now), now)
    }

    /// Where to go on after `offset`; `None`: the offset was never given out, or millions of names ago.
    pub(crate) fn resolve(&self, offset: u64) -> Option<Resume> {
        let Some(number) = offset.checked_sub(OFFSET_FIRST) else {
            return Some(Resume { after: Box::default(), skip: 0 });
        };
        let chunk = self.chunk(number).filter(|_| number < self.names_len)?;
        let place = number - chunk.number;
        Some(match &chunk.names {
            Some(names) => Resume { after: names.get(place as usize).into(), skip: 0 },
            None => Resume { after: chunk.first.clone(), skip: place },
        })
    }

    /// The offset of `name`, which a listing has come by next after the entry at offset `previous`.
    pub(crate) fn offset_of(&mut self, name: &[u8], previous: u64) -> u64 {
        let newest = OFFSET_FIRST + self.names_len.saturating_sub(1);
        match self.last_name().map(|last| name.cmp(last)) {
            // The one that was too much for the reply before.
            Some(Ordering::Equal) => return newest,
            Some(Ordering::Less) if self.index.is_none() => self.make_index(),
            _ => {}
        }
        let hash = self.index.is_some().then(|| self.hasher.hash_one(name));
        if let Some(number) = hash.and_then(|hash| self.find(hash, name)) {
            return OFFSET_FIRST + number;
        }
        let number = self.push(name, previous == newest);
        if let (Some(index), Some(hash)) = (&mut self.index, hash) {
            index.insert(hash, number);
        }
        self.shrink();
        OFFSET_FIRST + number
    }

    fn chunk(&self, number: u64) -> Option<&Chunk> {
        let next = self.chunks.partition_point(|chunk| chunk.number <= number);
        self.chunks.get(next.checked_sub(1)?)
    }

    fn name(&self, number: u64) -> Option<&[u8]> {
        let chunk = self.chunk(number)?;
        Some(chunk.names.as_ref()?.get((number - chunk.number) as usize))
    }

    fn last_name(&self) -> Option<&[u8]> {
        self.name(self.names_len.checked_sub(1)?)
    }

    fn find(&self, hash: u64, name: &[u8]) -> Option<u64> {
        let number = *self.index.as_ref()?.get(&hash)?;
        // Of two names with one hash the later one is found: the other gets a new offset when it is listed
        // again.
        (self.name(number)? == name).then_some(number)
    }

    /// `goes_on`: the listing came by the newest name right before.
    fn push(&mut self, name: &[u8], goes_on: bool) -> u64 {
        let number = self.names_len;
        let has_room = self.chunks.back().is_some_and(|chunk| number - chunk.number < CHUNK_LEN);
        if !(goes_on && has_room) {
            self.first_bytes += name.len();
            self.chunks.push_back(Chunk { number, first: name.into(), names: Some(Names::default()) });
        }
        if let Some(names) = self.chunks.back_mut().and_then(|chunk| chunk.names.as_mut()) {
            let bytes_before = names.memory_bytes();
            names.push(name);
            self.name_bytes += names.memory_bytes() - bytes_before;
        }
        self.names_len += 1;
        number
    }

    fn make_index(&mut self) {
        let first = self.chunks.get(self.nameless).map_or(self.names_len, |chunk| chunk.number);
        let numbered = (first..self.names_len).filter_map(|number| Some((self.name(number)?, number)));
        self.index = Some(numbered.map(|(name, number)| (self.hasher.hash_one(name), number)).collect());
        self.shrink();
    }

    fn named_bytes(&self) -> usize {
        self.name_bytes + self.index.as_ref().map_or(0, |index| index.len() * INDEX_ENTRY_BYTES)
    }

    fn shrink(&mut self) {
        while self.named_bytes() > NAME_BYTES_MAX && self.nameless + 1 < self.chunks.len() {
            let Chunk { number: first, names, .. } = &mut self.chunks[self.nameless];
            let (first, Some(names)) = (*first, names.take()) else { return };
            self.name_bytes -= names.memory_bytes();
            self.nameless += 1;
            let Some(index) = &mut self.index else { continue };
            for (name, number) in (0..names.ends.len()).map(|index| names.get(index)).zip(first..) {
                let hash = self.hasher.hash_one(name);
                if index.get(&hash) == Some(&number) {
                    index.remove(&hash);
                }
            }
        }
        while self.chunks.len() > CHUNKS_MAX && self.nameless > 0 {
            self.first_bytes -= self.chunks.pop_front().map_or(0, |chunk| chunk.first.len());
            self.nameless -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(name: &[u8], skip: u64) -> Resume {
        Resume { after: name.into(), skip }
    }

    #[test]
    fn offsets_lead_back_to_names() {
        let mut table = CookieTable::default();
        let names: [&[u8]; 5] = [b"a", b"b", b"c", b"bb", b"cc"];
        let offsets = names.map(|name| table.offset_of(name, 0));
        for (offset, name) in offsets.into_iter().zip(names) {
            assert!(offset > OFFSET_DOT_DOT);
            assert_eq!(table.resolve(offset), Some(at(name, 0)));
        }
        assert_eq!(table.resolve(offsets[4] + 1), None);
        assert_eq!(table.resolve(OFFSET_DOT_DOT), Some(at(b"", 0)));
    }

    #[test]
    fn name_that_is_listed_again_keeps_its_offset() {
        let mut table = CookieTable::default();
        let names: Vec<String> = (0..3000).map(|index| format!("{index:04}")).collect();
        let list = |table: &mut CookieTable| -> Vec<u64> {
            let mut previous = OFFSET_DOT_DOT;
            let offset_of = |name: &String| {
                previous = table.offset_of(name.as_bytes(), previous);
                previous
            };
            names.iter().map(offset_of).collect()
        };
        let offsets = list(&mut table);
        assert_eq!(
            table.offset_of(b"2999", offsets[2998]),
            offsets[2999],
            "it did not fit into the reply before"
        );
        assert!(table.index.is_none(), "one listing needs none");
        assert_eq!(table.chunks.len(), 3000_usize.div_ceil(CHUNK_LEN as usize));
        let new = table.offset_of(b"0007-new", offsets[7]);
        for _ in 0..3 {
            assert_eq!(list(&mut table), offsets);
        }
        assert_eq!(table.offset_of(b"0007-new", offsets[7]), new);
        assert_eq!(table.names_len, 3001);
    }

    /// The next `count` names behind `offset`, and the offset of the last one.
    fn list<'n>(
        table: &mut CookieTable,
        names: &'n [Vec<u8>],
        offset: u64,
        count: usize,
    ) -> (&'n [Vec<u8>], u64) {
        let Resume { after, skip } = table.resolve(offset).expect("was given out");
        let start = names.partition_point(|name| **name <= *after) + skip as usize;
        let listed = &names[start..names.len().min(start + count)];
        let last = listed.iter().fold(offset, |previous, name| table.offset_of(name, previous));
        (listed, last)
    }

    #[test]
    fn listings_that_take_turns_in_a_large_directory_list_each_name_once() {
        let mut table = CookieTable::default();
        let names: Vec<Vec<u8>> = (0..12_000).map(|index| format!("{index:0>200}").into_bytes()).collect();
        let mut listings = [(Vec::new(), 0), (Vec::new(), list(&mut table, &names, 0, 6000).1)];
        let starts = [0, 6000];
        for _ in 0..50 {
            for (listed, offset) in &mut listings {
                let (more, last) = list(&mut table, &names, *offset, 30);
                listed.extend(more);
                *offset = last;
            }
        }
        // Others push out the names of these.
        list(&mut table, &names, 0, names.len());
        for ((mut listed, offset), start) in listings.into_iter().zip(starts) {
            assert!(table.chunk(offset - OFFSET_FIRST).expect("is there").names.is_none());
            listed.extend(list(&mut table, &names, offset, names.len()).0);
            assert!(listed.into_iter().eq(&names[start..]), "from {start} on");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut table = CookieTable::default();
        let name = |index: usize| format!("{index:0>200}").into_bytes();
        let first = table.offset_of(&name(0), OFFSET_DOT_DOT);
        for round in 0..3 {
            let mut previous = OFFSET_DOT_DOT;
            for index in 0..20_000 {
                previous = table.offset_of(&name(index), previous);
            }
            let (_, held) = table.tell_memory();
            assert!(held <= NAME_BYTES_MAX + CHUNKS_MAX * (200 + size_of::<Chunk>()), "{round}: {held}");
            assert!(table.named_bytes() <= NAME_BYTES_MAX);
        }
        assert_eq!(
            table.resolve(first + 300),
            Some(at(&name(256), 44)),
            "which is right while nothing changes there"
        );
        assert_eq!(table.resolve(first + 256), Some(at(&name(256), 0)));
        assert_eq!(table.first_bytes, table.chunks.len() * 200);
    }

    #[test]
    fn oldest_offsets_go_after_millions_of_names() {
        let mut table = CookieTable::default();
        let total = (CHUNKS_MAX as u64 + 4) * CHUNK_LEN;
        let mut previous = OFFSET_DOT_DOT;
        for number in 0..total {
            previous = table.offset_of(&number.to_be_bytes(), previous);
        }
        assert_eq!(table.chunks.len(), CHUNKS_MAX);
        assert_eq!(table.resolve(OFFSET_FIRST), None);
        assert_eq!(table.resolve(OFFSET_FIRST + 4 * CHUNK_LEN), Some(at(&(4 * CHUNK_LEN).to_be_bytes(), 0)));
        assert_eq!(table.resolve(OFFSET_FIRST + total - 1), Some(at(&(total - 1).to_be_bytes(), 0)));
    }
}
