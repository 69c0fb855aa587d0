//! The metadata of an open piece: what is known of it, and the rest on demand.
//!
//! Thread safety: shared by `Arc` with its piece; immutable but for what is loaded and evicted. A reader that
//! needs the index gets a guard, and keeps it for as long as it is needed. Invariant: the index in memory has
//! the base in its seqnos; that on the device has not.
//!
//! Index and range tombstones that can't be read are taken from their copy beside the data, which is looked
//! for once.

use std::io;
use std::sync::OnceLock;

use kvfs_store::{KeyspaceKind, Result, Seqno, StoreError};

use super::filtering::KeyFilter;
use super::index::{Content, Facts};
use super::meta_read::{Front, MetaReader};
use super::salvage::{copy_of, has_damaged_copy};
use crate::cache::{Page, PageRef, Pool};
use crate::format::{Fingerprints, PieceMetaHeader};
use crate::memtable::TombstoneSet;

/// Where the index of a piece that is put together can be had from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// From its metadata, whenever it is needed.
    Device,
    /// Only from memory: its metadata is damaged.
    Memory,
}

/// See the module.
pub(super) struct Metadata {
    reader: MetaReader,
    base: Seqno,
    /// Known once any metadata was read.
    header: OnceLock<PieceMetaHeader>,
    /// Known once the index was in memory.
    facts: OnceLock<Facts>,
    /// Known once something could not be read; `None`: there is no copy that can.
    copy: OnceLock<Option<MetaReader>>,
    /// Set at the opening where the range tombstones are on a device that is missing. Every read that comes
    /// to the piece ends with it: they may hide what is older.
    lost: OnceLock<StoreError>,
    index: Page<Content>,
    filter: KeyFilter,
}

impl Metadata {
    /// Nothing is in memory yet.
    pub(super) fn new(reader: MetaReader, base: Seqno) -> Self {
        let filter = KeyFilter::new(&reader.ctx.pages, reader.kind);
        Self::with_filter(reader, base, filter)
    }

    fn with_filter(reader: MetaReader, base: Seqno, filter: KeyFilter) -> Self {
        let index = Page::new(&reader.ctx.pages, Pool::Index);
        let (header, facts, copy) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { reader, base, header, facts, copy, lost: OnceLock::new(), index, filter }
    }

    /// The same metadata with its seqnos counted from `base` on, read by `reader` from now on. O(index) if
    /// that is in memory.
    pub(super) fn rebased(&self, reader: MetaReader, base: Seqno) -> Self {
        let new = Self::with_filter(reader, base, self.filter.shared());
        if let Some(header) = self.header.get() {
            new.put_header(*header);
        }
        if let Some(facts) = self.facts.get() {
            new.facts.get_or_init(|| *facts);
        }
        if let Some(copy) = self.copy.get() {
            new.copy.get_or_init(|| copy.clone());
        }
        if let Some(lost) = self.lost.get() {
            new.lost.get_or_init(|| lost.clone());
        }
        if let Some(index) = self.index.peek() {
            let mut content = (*index).clone();
            content.rebase(base.wrapping_sub(self.base));
            let bytes = content.memory_bytes();
            new.index.put(content, bytes);
        }
        new
    }

    #[cfg(test)]
    pub(super) fn reader(&self) -> &MetaReader {
        &self.reader
    }

    /// What its seqnos count from.
    pub(super) fn base(&self) -> Seqno {
        self.base
    }

    /// Layout of the data.
    pub(super) fn kind(&self) -> KeyspaceKind {
        self.reader.kind
    }

    pub(super) fn put_header(&self, header: PieceMetaHeader) {
        self.header.get_or_init(|| header);
    }

    /// Puts in what was just read or made, with its seqnos as they are on the device.
    pub(super) fn put_index(&self, content: Content, source: Source) {
        let (content, bytes) = self.taken(content);
        match source {
            Source::Device => self.index.put(content, bytes),
            Source::Memory => self.index.pin(content, bytes),
        }
    }

    /// What was read, as it is in memory, and its size (bytes).
    fn taken(&self, mut content: Content) -> (Content, usize) {
        self.facts.get_or_init(|| Facts::of(&content));
        content.rebase(self.base);
        let bytes = content.memory_bytes();
        (content, bytes)
    }

    /// Reads the range tombstones, with their seqnos as they are on the device, and, if wanted, the index, if
    /// it can be read. Tombstones on a device that is missing make every later use of the index an error.
    ///
    /// # Errors
    /// I/O errors and corruption of range tombstones and their copy.
    pub(super) fn preload(&self, wants_index: bool) -> Result<TombstoneSet> {
        let has_tombstones = self.reader.desc.tombstones > 0;
        if !wants_index && !has_tombstones {
            return Ok(TombstoneSet::new([]));
        }
        let front = self.reader.front().inspect(|front| self.put_header(front.header));
        let section = || front.as_ref().map_err(StoreError::clone);
        let tombstones = if has_tombstones {
            let read = section().and_then(|front| self.reader.tombstones(front));
            match self.or_copied(read, MetaReader::tombstones) {
                Err(error) if is_missing(&error) => {
                    self.lost.get_or_init(|| error);
                    return Ok(TombstoneSet::new([]));
                }
                tombstones => tombstones?,
            }
        } else {
            TombstoneSet::new([])
        };
        if wants_index {
            match section().and_then(|front| self.reader.index(front)) {
                Ok(content) => self.put_index(content, Source::Device),
                Err(error) => tracing::error!(%error, "an index can't be read; the store opens without it"),
            }
        }
        Ok(tombstones)
    }

    /// What was read of the metadata, or, if that can't be, what `again` reads of the copy.
    fn or_copied<T>(
        &self,
        read: Result<T>,
        again: impl FnOnce(&MetaReader, &Front) -> Result<T>,
    ) -> Result<T> {
        let Err(error) = read else { return read };
        let found = self.copy.get_or_init(|| {
            let copy = copy_of(&self.reader);
            let is_copied = copy.is_some();
            tracing::error!(%error, is_copied, "metadata can't be read; `kvfs check --repair` mends it");
            copy
        });
        let Some(copy) = found else { return Err(error) };
        copy.front().and_then(|front| again(copy, &front)).or(Err(error))
    }

    fn load_index(&self) -> Result<(Content, usize)> {
        if let Some(error) = self.lost.get() {
            return Err(error.clone());
        }
        let read = self.front().and_then(|front| self.reader.index(&front));
        let (content, bytes) = self.taken(self.or_copied(read, MetaReader::index)?);
        self.reader.ctx.make_room_for(bytes);
        Ok((content, bytes))
    }

    /// The header, read if it is not known yet.
    fn front(&self) -> Result<Front> {
        if let Some(header) = self.header.get() {
            return Ok(Front::known(*header));
        }
        let front = self.reader.front()?;
        self.put_header(front.header);
        Ok(front)
    }

    /// The sparse index for one look-up, read and verified if it is not in memory.
    pub(super) fn glance(&self) -> Result<PageRef<Content>> {
        self.index.get(|| self.load_index())
    }

    /// What is known of the index, which is read if it has never been in memory.
    pub(super) fn facts(&self) -> Result<Facts> {
        if let Some(facts) = self.known_facts() {
            return Ok(facts);
        }
        let index = self.glance()?;
        Ok(*self.facts.get_or_init(|| Facts::of(&index)))
    }

    /// As [`Self::facts`], if the index has been in memory.
    pub(super) fn known_facts(&self) -> Option<Facts> {
        self.facts.get().copied()
    }

    /// The key fingerprints of each tuple block, read from the device.
    pub(super) fn fingerprints(&self) -> Result<Fingerprints> {
        let blocks = self.facts()?.blocks;
        self.reader.fingerprints(&self.front()?, blocks)
    }

    /// Who has asked for keys, and what the filter says while it is in memory.
    pub(super) fn filter(&self) -> &KeyFilter {
        &self.filter
    }

    /// Whether a tuple piece may have a record with `key`, by its filter, which is read if that is worth it:
    /// else, and if that fails, yes. The failure is logged.
    pub(super) fn passes_filter(&self, key: &[u8]) -> bool {
        self.filter.passes(&self.reader.ctx, self.reader.desc.records, key, || self.fingerprints())
    }

    /// Whether there is a copy of index and range tombstones that is damaged.
    ///
    /// # Errors
    /// The header can't be read.
    pub(super) fn has_damaged_copy(&self) -> Result<bool> {
        Ok(has_damaged_copy(&self.reader, &self.front()?.header))
    }

    /// Reads and verifies every section anew.
    pub(super) fn verify(&self) -> Result<()> {
        let front = self.reader.front()?;
        let index = self.reader.index(&front)?;
        self.reader.tombstones(&front)?;
        self.reader.fingerprints(&front, index.tuple_entries().len()).map(drop)
    }
}

/// Whether it is an error of a device that is missing: then the store is only read.
fn is_missing(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
