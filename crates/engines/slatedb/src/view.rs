//! Reads at one position: the newest, or that of a snapshot.
//!
//! Thread safety: borrows; any thread.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;
use kvfs_store::blocks::{block_key, block_of, extent, keys_of_blocks};
use kvfs_store::{
    BLOCK_BYTES, BlockRange, Extent, ExtentKind, KeyRange, KeyspaceKind, Result, StoreError, progress,
};
use slatedb::config::{ReadOptions, ScanOptions};
use slatedb::{Db, DbIterator, DbSnapshot, IterationOrder, KeyValue};

use crate::ahead::Fetcher;
use crate::follower::Reader;
use crate::keys::{self, Bounds};
use crate::ranges::DeadRanges;
use crate::segments::Wanted;
use crate::shared::{Database, Shared};
use crate::space::Space;
use crate::wait_limit::Waiter;

/// Called with a key and its value; says whether to go on.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(&[u8], &[u8]) -> Result<bool>;

/// Keys that are looked up at the same time.
const LOOKUPS_MAX: usize = 32;

/// What a scan asks for at once of each table, ahead of what is read (bytes): at least, and at most.
const READ_AHEAD_BYTES: std::ops::RangeInclusive<usize> = 64 << 10..=1 << 20;

/// Longest extent of data that one call looks for (blocks), whose content is read for it: as many as one
/// write has, about.
const EXTENT_BLOCKS_MAX: usize = 64;

/// Requests of a scan that are under way at the same time.
const FETCHES: usize = 4;

/// For messages.
const READING_SEGMENT: &str = "reading a segment";

/// What is read.
#[derive(Clone)]
pub(crate) enum Source<'a> {
    /// The newest state, a fresh position at each call.
    Newest(&'a Db),
    Snapshot(&'a DbSnapshot),
    /// As it stands.
    Reader(Arc<Reader>),
}

/// See the module.
#[derive(Clone)]
pub(crate) struct View<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) source: Source<'a>,
    pub(crate) dead: Arc<DeadRanges>,
    /// Sequence number of the position.
    pub(crate) at: u64,
    pub(crate) waiter: Waiter,
}

impl<'a> View<'a> {
    pub(crate) fn newest(shared: &'a Shared) -> Self {
        match &shared.database {
            Database::Writer(db) => {
                // In this order: what is visible at this position is in the list, or deleted.
                let at = shared.newest();
                Self { shared, source: Source::Newest(db), dead: shared.dead(), at, waiter: Waiter::Caller }
            }
            Database::Reader(follower) => {
                let state = follower.current();
                Self { dead: Arc::clone(&state.meta.dead), ..Self::of_reader(shared, &state.reader) }
            }
        }
    }

    /// Of what a reader has, where nothing is hidden.
    pub(crate) fn of_reader(shared: &'a Shared, reader: &Arc<Reader>) -> Self {
        let (source, waiter) = (Source::Reader(Arc::clone(reader)), Waiter::Caller);
        Self { shared, source, dead: Arc::default(), at: u64::MAX, waiter }
    }

    /// Whether the view does not show this entry of `space`.
    pub(crate) fn hides(&self, space: &Space, entry: &KeyValue) -> bool {
        self.dead.hide(space.number, keys::inner(&entry.key), entry.seq, self.at)
    }

    pub(crate) fn get(&self, space: &Space, key: &[u8]) -> Result<Option<Bytes>> {
        let mut found = self.shared.read(self.waiter, "reading a key", self.look_up(space, key))?;
        self.resolve(space, found.iter_mut())?;
        Ok(found)
    }

    async fn look_up(&self, space: &Space, key: &[u8]) -> Result<Option<Bytes>, slatedb::Error> {
        let full = keys::full(space.number, key);
        let options = ReadOptions::default();
        let found = match &self.source {
            Source::Newest(db) => db.get_key_value_with_options(full, &options).await,
            Source::Snapshot(snapshot) => snapshot.get_key_value_with_options(full, &options).await,
            Source::Reader(reader) => reader.db.get_key_value_with_options(full, &options).await,
        };
        // A copy: the original keeps the block alive that it is a part of.
        let shown = found?.filter(|entry| !self.hides(space, entry));
        Ok(shown.map(|entry| Bytes::copy_from_slice(&entry.value)))
    }

    pub(crate) fn multi_get(&self, space: &Space, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let mut values = Vec::with_capacity(keys.len());
        for some in keys.chunks(LOOKUPS_MAX) {
            let found = try_join_all(some.iter().map(|key| self.look_up(space, key)));
            values.extend(self.shared.read(self.waiter, "reading keys", found)?);
        }
        self.resolve(space, values.iter_mut().flatten())?;
        Ok(values)
    }

    /// Replaces references by what they stand for.
    pub(crate) fn resolve<'v>(
        &self,
        space: &Space,
        values: impl IntoIterator<Item = &'v mut Bytes>,
    ) -> Result<()> {
        let mut referring: Vec<_> = values
            .into_iter()
            .filter_map(|value| space.reference(value).map(|reference| (reference, value)))
            .collect();
        if referring.is_empty() {
            return Ok(());
        }
        let content = self.shared.segments.read_all(referring.iter().map(|(reference, _)| *reference));
        let content = self.shared.within_limit(self.waiter, READING_SEGMENT, content)?;
        for ((_, value), block) in referring.iter_mut().zip(content.chunks(BLOCK_BYTES)) {
            **value = Bytes::copy_from_slice(block);
        }
        Ok(())
    }

    /// Over the entries within `bounds`, hidden ones included, and with references as they are; about `bytes`
    /// will be read.
    pub(crate) fn scan(&self, bounds: Bounds, order: IterationOrder, bytes: usize) -> Result<DbIterator> {
        let ahead = bytes.clamp(*READ_AHEAD_BYTES.start(), *READ_AHEAD_BYTES.end());
        let options = ScanOptions::default()
            .with_order(order)
            .with_cache_blocks(true)
            .with_read_ahead_bytes(ahead)
            .with_max_fetch_tasks(FETCHES);
        self.shared.read(self.waiter, "beginning a scan", async {
            match &self.source {
                Source::Newest(db) => db.scan_with_options(bounds, &options).await,
                Source::Snapshot(snapshot) => snapshot.scan_with_options(bounds, &options).await,
                Source::Reader(reader) => reader.db.scan_with_options(bounds, &options).await,
            }
        })
    }

    /// The next entry of `scan` that the view shows.
    pub(crate) fn next(&self, space: &Space, scan: &mut DbIterator) -> Result<Option<KeyValue>> {
        loop {
            match self.shared.read_on(self.waiter, "scanning", scan.next())? {
                // There may be any number.
                Some(entry) if self.hides(space, &entry) => progress::check_wanted()?,
                next => return Ok(next),
            }
        }
    }

    pub(crate) fn read_blocks(&self, space: &Space, prefix: &[u8], first: u64, buf: &mut [u8]) -> Result<()> {
        space.expect_kind(KeyspaceKind::Block, "read_blocks")?;
        let count = (buf.len() / BLOCK_BYTES) as u64;
        let Some(end) = first.checked_add(count).filter(|_| buf.len().is_multiple_of(BLOCK_BYTES)) else {
            return Err(StoreError::BlockShape { first, len: buf.len() });
        };
        let under_way = self.shared.ahead.reads(|| self.fetcher(), space.number, prefix, first..end);
        if !under_way.is_empty() {
            self.shared.read(self.waiter, "reading ahead", async {
                under_way.end().await;
                Ok(())
            })?;
        }
        if count == 1 {
            match self.get(space, &block_key(prefix, first))? {
                Some(block) => place(&block, 0, buf)?,
                None => buf.fill(0),
            }
            return Ok(());
        }
        buf.fill(0);
        let range = KeyRange::new(block_key(prefix, first), block_key(prefix, end));
        let bytes = buf.len();
        let mut wanted = Vec::new();
        self.walk(space, &range, bytes, &mut |key, value| {
            if let Some(block) = block_of(prefix, key) {
                let offset = (block - first) as usize * BLOCK_BYTES;
                match space.reference(value) {
                    Some(reference) => wanted.push(Wanted { reference, offset }),
                    None => place(value, offset, buf)?,
                }
            }
            Ok(true)
        })?;
        if wanted.is_empty() {
            return Ok(());
        }
        self.shared.within_limit(self.waiter, READING_SEGMENT, self.shared.segments.read(&wanted, buf))
    }

    pub(crate) fn next_extent(
        &self,
        space: &Space,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        space.expect_kind(KeyspaceKind::Block, "next_extent")?;
        if blocks.is_empty() {
            return Ok(None);
        }
        let bounds = keys::bounds(space.number, &keys_of_blocks(prefix, &blocks));
        let mut scan = self.scan(bounds, IterationOrder::Ascending, 0)?;
        let mut failed = None;
        let mut present = std::iter::from_fn(|| {
            loop {
                match self.next(space, &mut scan) {
                    Ok(entry) => {
                        let entry = entry?;
                        if let Some(block) = block_of(prefix, keys::inner(&entry.key)) {
                            return Some(block);
                        }
                    }
                    Err(error) => {
                        failed = Some(error);
                        return None;
                    }
                }
            }
        });
        let found = match kind {
            ExtentKind::Data => extent(blocks, kind, &mut present.by_ref().take(EXTENT_BLOCKS_MAX)),
            ExtentKind::Hole => extent(blocks, kind, &mut present),
        };
        failed.map_or(Ok(found), Err)
    }

    /// Fetches these blocks meanwhile.
    pub(crate) fn will_need(&self, space: &Space, ranges: Vec<BlockRange>) {
        self.shared.ahead.will_need(self.fetcher(), space.number, ranges);
    }

    /// For what is read ahead: of the newest state, most of whose tables are those of its snapshots.
    fn fetcher(&self) -> Fetcher {
        match &self.source {
            Source::Newest(_) | Source::Snapshot(_) => self.shared.fetcher(),
            Source::Reader(reader) => Fetcher::Reader(Arc::clone(reader)),
        }
    }

    /// Calls `visit` for each entry of `range`, with references as they are, until it says no; about `bytes`
    /// will be read.
    pub(crate) fn walk(&self, space: &Space, range: &KeyRange, bytes: usize, visit: Visit<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let bounds = keys::bounds(space.number, range);
        let mut scan = self.scan(bounds, IterationOrder::Ascending, bytes)?;
        while let Some(entry) = self.next(space, &mut scan)? {
            if !visit(keys::inner(&entry.key), &entry.value)? {
                break;
            }
        }
        Ok(())
    }
}

/// Copies a block to its place.
fn place(block: &[u8], offset: usize, buf: &mut [u8]) -> Result<()> {
    if block.len() != BLOCK_BYTES {
        return Err(StoreError::corrupt("SlateDB", format!("a block has {} bytes", block.len())));
    }
    buf[offset..offset + BLOCK_BYTES].copy_from_slice(block);
    Ok(())
}
