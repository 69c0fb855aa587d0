//! Reading ahead: what a sequential reader will ask for next, and what a reader has told of, is fetched
//! before it is asked for.
//!
//! Purpose: a request of object storage takes as long as many that are under way at the same time. What was
//! fetched is in the caches of blocks and parts; a reader that comes to a piece which is still under way
//! waits for it instead of asking a second time.
//!
//! Thread safety: shared by all readers; one lock, held for moments. Invariants: what is fetched here changes
//! no answer and reports no error; a stream has at most [`AHEAD_BLOCKS_MAX`] under way, and no more than a
//! part of the cache holds; so many streams are known as [`STREAMS_MAX`] says.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_locks::{Mutex, class};
use kvfs_store::blocks::block_key;
use kvfs_store::{BLOCK_BYTES, BlockRange, KeyRange};
use lru::LruCache;
use slatedb::config::ScanOptions;
use slatedb::{Db, Error};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::cache::BlockCache;
use crate::follower::Reader;
use crate::keys;
use crate::segments::{BlockRef, Segments};

/// Sequences of blocks that are known at a time, by their files.
const STREAMS_MAX: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// What one task fetches at least (blocks): 1 MiB.
const PIECE_BLOCKS: u64 = 256;

/// Pieces that a long window has: each is one request, where it lies in a segment.
const PIECES: u64 = 4;

/// How far ahead of its reader a stream is fetched in the end (blocks): 16 MiB.
const AHEAD_BLOCKS_MAX: u64 = 4096;

/// No stream takes more of the cache of blocks than one of so many parts.
const CACHE_PARTS: u64 = 8;

/// A first read of so many blocks is the beginning of a stream: what reads less may read no more.
const FIRST_BLOCKS_MIN: u64 = 16;

/// The kernel's reads of one file overtake each other: one that begins so near to where the last one ended
/// goes on with it (blocks).
const NEAR_BLOCKS: u64 = 512;

/// Who can be asked for blocks at any time.
#[derive(Clone)]
pub(crate) enum Fetcher {
    Writer(Db),
    Reader(Arc<Reader>),
}

/// See the module.
pub(crate) struct Ahead {
    streams: Mutex<LruCache<(u32, Bytes), Stream>, class::EngineSlatedbAhead>,
    cache: Arc<BlockCache>,
    segments: Arc<Segments>,
    handle: Handle,
}

/// What is known of the blocks of one file.
#[derive(Default)]
struct Stream {
    /// Where the last read has ended.
    next: u64,
    /// Everything up to here was fetched, or is under way.
    fetched: u64,
    /// How far ahead of the reader it is fetched.
    window: u64,
    under_way: Vec<Piece>,
}

/// Blocks that are under way. The sender of `done` goes at the end, however that comes.
struct Piece {
    blocks: Range<u64>,
    done: watch::Receiver<()>,
}

impl Stream {
    /// Notes a read; returns what is to be fetched next, at most `window_max` blocks ahead.
    fn note(&mut self, blocks: &Range<u64>, window_max: u64) -> Option<Range<u64>> {
        let length = blocks.end - blocks.start;
        let is_first = self.next == 0 && self.fetched == 0;
        let goes_on = if is_first {
            blocks.start == 0 && length >= FIRST_BLOCKS_MIN
        } else {
            blocks.start.abs_diff(self.next) <= NEAR_BLOCKS
        };
        if !goes_on {
            (self.next, self.fetched, self.window) = (blocks.end, blocks.end, 0);
            return None;
        }
        self.next = self.next.max(blocks.end);
        self.window = (self.window * 2).clamp(PIECE_BLOCKS, window_max);
        let (from, to) = (self.fetched.max(self.next), self.next.saturating_add(self.window));
        // In whole pieces: one is begun when as much was read.
        let whole = to.saturating_sub(from) / self.piece() * self.piece();
        (whole > 0).then(|| {
            self.fetched = from + whole;
            from..from + whole
        })
    }

    /// What is fetched at a time (blocks).
    fn piece(&self) -> u64 {
        (self.window / PIECES).max(PIECE_BLOCKS)
    }

    fn add(&mut self, blocks: Range<u64>) -> watch::Sender<()> {
        let (sender, done) = watch::channel(());
        self.under_way.retain(|piece| piece.done.has_changed().is_ok());
        self.under_way.push(Piece { blocks, done });
        sender
    }

    /// What is under way of `blocks`.
    fn waited_for(&self, blocks: &Range<u64>) -> Vec<watch::Receiver<()>> {
        let overlaps = |piece: &&Piece| piece.blocks.start < blocks.end && blocks.start < piece.blocks.end;
        self.under_way.iter().filter(overlaps).map(|piece| piece.done.clone()).collect()
    }
}

impl Ahead {
    /// What is read goes into `cache`.
    pub(crate) fn new(cache: Arc<BlockCache>, segments: Arc<Segments>, handle: Handle) -> Self {
        Self { streams: Mutex::new(LruCache::new(STREAMS_MAX)), cache, segments, handle }
    }

    fn window_max(&self) -> u64 {
        let bytes_max = self.cache.bytes_max().min(self.segments.parts().bytes_max());
        let blocks = bytes_max as u64 / BLOCK_BYTES as u64 / CACHE_PARTS;
        blocks.clamp(PIECE_BLOCKS, AHEAD_BLOCKS_MAX)
    }

    /// Notes that these blocks are read now, and fetches what comes next. Returns what to wait for before
    /// they are read.
    pub(crate) fn reads(
        &self,
        fetcher: impl FnOnce() -> Fetcher,
        space: u32,
        prefix: &[u8],
        blocks: Range<u64>,
    ) -> UnderWay {
        let mut streams = self.streams.lock();
        let stream = streams.get_or_insert_mut((space, Bytes::copy_from_slice(prefix)), Stream::default);
        let waits = stream.waited_for(&blocks);
        if let Some(next) = stream.note(&blocks, self.window_max()) {
            let fetcher = fetcher();
            let length = stream.piece();
            let starts = (next.start..next.end).step_by(length as usize);
            for piece in starts.map(|start| start..(start + length).min(next.end)) {
                let done = stream.add(piece.clone());
                let range = BlockRange {
                    prefix: Bytes::copy_from_slice(prefix),
                    first: piece.start,
                    count: piece.end - piece.start,
                };
                self.spawn(fetcher.clone(), space, vec![(range, done)]);
            }
        }
        UnderWay(waits)
    }

    /// Fetches these ranges, in the order of keys, of each no more than a stream has under way.
    pub(crate) fn will_need(&self, fetcher: Fetcher, space: u32, mut ranges: Vec<BlockRange>) {
        let blocks_max = self.window_max();
        ranges.retain_mut(|range| {
            range.count = range.count.min(blocks_max);
            range.count > 0
        });
        ranges.sort_unstable_by(|left, right| (&left.prefix, left.first).cmp(&(&right.prefix, right.first)));
        let mut streams = self.streams.lock();
        let noted = ranges.into_iter().map(|range| {
            let stream = streams.get_or_insert_mut((space, range.prefix.clone()), Stream::default);
            let blocks = range.first..range.first.saturating_add(range.count);
            if stream.next == 0 {
                stream.fetched = stream.fetched.max(blocks.end);
            }
            (range, stream.add(blocks))
        });
        let noted: Vec<_> = noted.collect();
        drop(streams);
        self.spawn(fetcher, space, noted);
    }

    /// Reads the ranges one after another; nothing is done with what is read, but that it is in the caches.
    fn spawn(&self, fetcher: Fetcher, space: u32, ranges: Vec<(BlockRange, watch::Sender<()>)>) {
        let segments = Arc::clone(&self.segments);
        self.handle.spawn(async move {
            for (range, done) in ranges {
                // Who reads it meets the same error.
                let Ok(referred) = fetch(&fetcher, space, &range).await else { return };
                let warmed = segments.warm(&referred).await;
                drop(done);
                if warmed.is_err() {
                    return;
                }
            }
        });
    }
}

/// Reads a range of blocks; returns what they refer to.
async fn fetch(fetcher: &Fetcher, space: u32, range: &BlockRange) -> Result<Vec<BlockRef>, Error> {
    let end = range.first.saturating_add(range.count);
    let keys = KeyRange::new(block_key(&range.prefix, range.first), block_key(&range.prefix, end));
    let bounds = keys::bounds(space, &keys);
    let bytes = range.count as usize * BLOCK_BYTES;
    let options = ScanOptions::default().with_cache_blocks(true).with_read_ahead_bytes(bytes);
    let mut scan = match fetcher {
        Fetcher::Writer(db) => db.scan_with_options(bounds, &options).await?,
        Fetcher::Reader(reader) => reader.db.scan_with_options(bounds, &options).await?,
    };
    let mut referred = Vec::new();
    while let Some(entry) = scan.next().await? {
        referred.extend(BlockRef::parse(&entry.value));
    }
    Ok(referred)
}

/// What a reader waits for.
pub(crate) struct UnderWay(Vec<watch::Receiver<()>>);

impl UnderWay {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns when all of it has come, or will not.
    pub(crate) async fn end(self) {
        for mut done in self.0 {
            // Nothing is sent: it ends with its sender.
            while done.changed().await.is_ok() {}
        }
    }
}

#[cfg(test)]
mod tests;
