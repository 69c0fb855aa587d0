//! Offsets of directory listings.
//!
//! Entries are stored in the order of their names, and a listing must be one scan of them; an offset is
//! 63 bits and a name 255 bytes, so no arithmetic leads from one to the other. A cookie kept in each row
//! would need a second index, written at each creation, and would still not lead to the place of an entry
//! that was deleted since. So offsets are given out: each reply is a *batch* of consecutive offsets, and
//! the directory's node remembers the names behind them. Going on after an offset is a binary search and
//! a seek, whatever was created or deleted in between.
//!
//! Memory is bounded: a finished listing drops its names, and so does the oldest batch when a directory
//! has too many. Such a batch still knows the name it began after and its length, which leads to the right
//! place as long as nothing in that one batch was created or deleted since. Offsets live as long as the
//! node, hence longer than any open directory, and don't survive the mount, as nothing does that holds one.

use std::collections::VecDeque;

/// Offset that follows `.`.
pub(crate) const OFFSET_DOT: u64 = 1;
/// Offset that follows `..`.
pub(crate) const OFFSET_DOT_DOT: u64 = 2;

/// Offsets set aside for one reply; more entries than any reply holds.
pub(crate) const BATCH_OFFSETS: u64 = 1 << 20;

/// Names kept per directory (bytes).
const NAME_BYTES_MAX: usize = 1 << 20;

/// Batches remembered per directory.
const BATCHES_MAX: usize = 4096;

/// Where a listing goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resume {
    /// After this name (empty: at the start) …
    pub(crate) after: Box<[u8]>,
    /// … and then this many entries further.
    pub(crate) skip: u64,
}

#[derive(Debug)]
struct Batch {
    first: u64,
    count: u64,
    after: Box<[u8]>,
    /// First offset of the batch that this one went on from, or 0.
    previous: u64,
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

    fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

/// The offsets that a directory has given out.
#[derive(Debug, Default)]
pub(crate) struct CookieBook {
    /// By first offset, ascending.
    batches: VecDeque<Batch>,
    batches_begun: u64,
    name_bytes: usize,
    /// Of the names that batches began after.
    after_bytes: usize,
}

/// A reply in the making.
#[derive(Debug)]
pub(crate) struct BatchInProgress {
    first: u64,
    resumed_from: u64,
    after: Box<[u8]>,
    names: Names,
}

impl BatchInProgress {
    /// The offset of the next entry; `None`: the reply is full.
    pub(crate) fn next_offset(&self) -> Option<u64> {
        let count = self.names.ends.len() as u64;
        (count < BATCH_OFFSETS).then_some(self.first + count)
    }

    /// Whether no entry was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.names.ends.is_empty()
    }

    /// The next entry was taken.
    pub(crate) fn push(&mut self, name: &[u8]) {
        self.names.bytes.extend_from_slice(name);
        self.names.ends.push(self.names.bytes.len() as u32);
    }
}

impl CookieBook {
    /// Memory that is held (bytes).
    pub(crate) fn memory_bytes(&self) -> usize {
        self.batches.capacity() * size_of::<Batch>() + self.name_bytes + self.after_bytes
    }

    /// Where to go on after `offset`; `None`: the offset was never given out, or long ago.
    pub(crate) fn resolve(&self, offset: u64) -> Option<Resume> {
        if offset <= OFFSET_DOT_DOT {
            return Some(Resume { after: Box::default(), skip: 0 });
        }
        let batch = &self.batches[self.position(offset)?];
        let index = offset - batch.first;
        Some(match &batch.names {
            Some(names) => Resume { after: names.get(index as usize).into(), skip: 0 },
            None => Resume { after: batch.after.clone(), skip: index + 1 },
        })
    }

    fn position(&self, offset: u64) -> Option<usize> {
        let index = self.batches.partition_point(|batch| batch.first <= offset).checked_sub(1)?;
        let batch = &self.batches[index];
        (offset - batch.first < batch.count).then_some(index)
    }

    /// Begins a reply that goes on after `offset`, at the name `after`.
    pub(crate) fn begin(&mut self, offset: u64, after: &[u8]) -> BatchInProgress {
        self.batches_begun += 1;
        BatchInProgress {
            first: self.batches_begun * BATCH_OFFSETS,
            resumed_from: offset,
            after: after.into(),
            names: Names::default(),
        }
    }

    /// Remembers a reply. An empty one ends its listing.
    pub(crate) fn finish(&mut self, reply: BatchInProgress) {
        let previous = self.position(reply.resumed_from).map_or(0, |index| self.batches[index].first);
        if reply.is_empty() {
            return self.forget_names_of_listing(previous);
        }
        let mut names = reply.names;
        names.bytes.shrink_to_fit();
        names.ends.shrink_to_fit();
        self.name_bytes += names.memory_bytes();
        self.after_bytes += reply.after.len();
        let batch = Batch {
            first: reply.first,
            count: names.ends.len() as u64,
            after: reply.after,
            previous,
            names: Some(names),
        };
        let index = self.batches.partition_point(|other| other.first < batch.first);
        self.batches.insert(index, batch);
        self.shrink();
    }

    fn forget_names_of_listing(&mut self, mut first: u64) {
        while first != 0 {
            let Some(index) = self.position(first) else { return };
            let previous = self.batches[index].previous;
            if !self.forget_names(index) {
                return;
            }
            first = previous;
        }
    }

    /// Whether there were any.
    fn forget_names(&mut self, index: usize) -> bool {
        let Some(names) = self.batches[index].names.take() else { return false };
        self.name_bytes -= names.memory_bytes();
        true
    }

    fn shrink(&mut self) {
        let mut index = 0;
        while self.name_bytes > NAME_BYTES_MAX && index + 1 < self.batches.len() {
            self.forget_names(index);
            index += 1;
        }
        while self.batches.len() > BATCHES_MAX {
            self.forget_names(0);
            self.after_bytes -= self.batches.pop_front().map_or(0, |batch| batch.after.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(book: &mut CookieBook, offset: u64, names: &[&str]) -> Vec<u64> {
        let after = book.resolve(offset).unwrap().after;
        let mut batch = book.begin(offset, &after);
        let offsets = names
            .iter()
            .map(|name| {
                let offset = batch.next_offset().unwrap();
                batch.push(name.as_bytes());
                offset
            })
            .collect();
        book.finish(batch);
        offsets
    }

    #[test]
    fn offsets_lead_back_to_names() {
        let mut book = CookieBook::default();
        let first = reply(&mut book, 0, &["a", "b", "c"]);
        let second = reply(&mut book, first[1], &["bb", "c"]);
        assert!(first.iter().chain(&second).all(|&offset| offset > OFFSET_DOT_DOT));
        for (offset, name) in first.iter().zip(["a", "b", "c"]).chain(second.iter().zip(["bb", "c"])) {
            assert_eq!(book.resolve(*offset), Some(Resume { after: name.as_bytes().into(), skip: 0 }));
        }
        assert_eq!(book.resolve(second[1] + 1), None);
        assert_eq!(book.resolve(7), None);
    }

    #[test]
    fn a_finished_listing_keeps_only_where_its_batches_began() {
        let mut book = CookieBook::default();
        let other = reply(&mut book, 0, &["a"]);
        let first = reply(&mut book, 0, &["a", "b"]);
        let second = reply(&mut book, first[1], &["c", "d"]);
        reply(&mut book, second[1], &[]);
        assert_eq!(book.resolve(second[0]), Some(Resume { after: b"b"[..].into(), skip: 1 }));
        assert_eq!(book.resolve(first[1]), Some(Resume { after: b""[..].into(), skip: 2 }));
        assert_eq!(book.resolve(other[0]), Some(Resume { after: b"a"[..].into(), skip: 0 }));
    }

    #[test]
    fn memory_is_bounded() {
        let mut book = CookieBook::default();
        let name = "n".repeat(255);
        let names: Vec<&str> = std::iter::repeat_n(name.as_str(), 1000).collect();
        let mut offset = 0;
        for _ in 0..BATCHES_MAX + 10 {
            offset = *reply(&mut book, offset, &names[..if offset == 0 { 1000 } else { 3 }]).last().unwrap();
        }
        assert!(book.name_bytes <= NAME_BYTES_MAX + (1 << 18));
        assert_eq!(book.batches.len(), BATCHES_MAX);
        assert_eq!(book.after_bytes, book.batches.iter().map(|batch| batch.after.len()).sum::<usize>());
        assert!(
            book.memory_bytes() <= NAME_BYTES_MAX + (1 << 18) + BATCHES_MAX * (255 + 2 * size_of::<Batch>())
        );
        assert_eq!(book.resolve(offset).unwrap().skip, 0);
    }
}
