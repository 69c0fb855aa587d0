//! Segments: objects of the content of large files, beside the tables of `SlateDB`.
//!
//! Purpose: what goes into the database is sent to object storage several times: with the log, with a table,
//! and by each compaction. So a run of blocks that is long enough goes to an object of its own kind, once,
//! and in the database a reference stands for each block (`record.rs`). Reads of ranges, patches, snapshots
//! and differences are about entries of the database, as without it.
//!
//! A segment is filled by several batches, sent when it is full or when what refers to it is to be sent
//! (`gate.rs`), and never changed. One that no block refers to any more is found and removed by a thread
//! (`sweep.rs`).
//!
//! Thread safety: shared by all threads; short locks. Batches append under the order lock.
//!
//! Invariants: no object of the database refers to a segment that is not there, so a crash leaves at most
//! segments that nothing refers to. The number of a segment is that of one opening of the store and a count
//! in it, and is never used again.

mod gate;
mod parts;
mod positions;
mod queue;
mod record;
mod run;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use kvfs_locks::{Mutex, class};
use kvfs_store::{BLOCK_BYTES, Result, StoreError};
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectStore, ObjectStoreExt};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::meta::Meta;
use crate::options::{SlateOptions, parts_bytes};
use parts::{PART_BLOCKS, PART_BYTES, PartKey, Parts};
use queue::Queue;

pub(crate) use gate::Gate;
pub(crate) use positions::{Held, Positions};
pub(crate) use record::{BYTES, BlockRef, Extent, parse_number};
pub(crate) use sweep::Sweeper;

/// Where they lie, below the prefix of the store.
const DIRECTORY: &str = "segments";

/// Parts that one request asks for at most: 4 MiB.
const FETCH_PARTS: u16 = 32;

/// Requests that one reader has under way at the same time.
const FETCHES: usize = 8;

/// Between two attempts at a request: at first, and at most.
const PAUSES: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(2);

/// The next pause between attempts, twice as long as the last one.
struct Pause(Duration);

impl Pause {
    fn first() -> Self {
        Self(*PAUSES.start())
    }

    async fn take(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(*PAUSES.end());
    }
}

/// Segments that are not sent yet, at most; then writers wait.
const PENDING_MAX: usize = 8;

/// A block that is wanted, and where in a buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) reference: BlockRef,
    pub(crate) offset: usize,
}

/// Blocks that were appended to one segment.
struct Piece {
    segment: u64,
    /// Number of the first one in it.
    index: u16,
    count: u16,
}

/// What was written, and is not sent yet.
#[derive(Default)]
struct Pending {
    /// The upper half of the numbers of segments.
    epoch: u32,
    /// The lower half of the next one.
    next: u32,
    filling: Option<(u64, BytesMut)>,
    sealed: BTreeMap<u64, Bytes>,
    /// All segments, sent or not (bytes).
    stored_bytes: u64,
    /// The store says that it has segments.
    is_told: bool,
}

impl Pending {
    fn bytes(&self) -> usize {
        let filling = self.filling.as_ref().map_or(0, |(_, content)| content.len());
        filling + self.sealed.values().map(Bytes::len).sum::<usize>()
    }

    fn content(&self, segment: u64) -> Option<&[u8]> {
        match &self.filling {
            Some((filling, content)) if *filling == segment => Some(content),
            _ => self.sealed.get(&segment).map(|content| &content[..]),
        }
    }
}

/// See the module.
pub(crate) struct Segments {
    service: Arc<dyn ObjectStore>,
    directory: Path,
    /// Blocks of a full one.
    blocks_max: u16,
    run_blocks_min: usize,
    pending: Mutex<Pending, class::EngineSlatedbSegmentsPending>,
    /// Told of each segment that is sent.
    sent: watch::Sender<()>,
    parts: Arc<Parts>,
    /// Of all requests for parts (bytes).
    received: AtomicU64,
    positions: Arc<Positions>,
    queue: Queue,
    handle: Handle,
}

impl Segments {
    /// Of the store below `prefix`.
    pub(crate) fn new(
        service: Arc<dyn ObjectStore>,
        prefix: &Path,
        options: &SlateOptions,
        handle: Handle,
    ) -> Self {
        Self {
            service,
            directory: prefix.clone().join(DIRECTORY),
            blocks_max: options.segment_blocks(),
            run_blocks_min: options.segments.run_blocks_min,
            pending: Mutex::default(),
            sent: watch::channel(()).0,
            parts: Arc::new(Parts::new(parts_bytes(options.memory_bytes), options.parts_dir())),
            received: AtomicU64::new(0),
            positions: Arc::default(),
            queue: Queue::default(),
            handle,
        }
    }

    /// The writer has opened the store for the `epoch`th time, when it said this.
    pub(crate) fn begin(&self, epoch: u64, meta: &Meta) -> Result<()> {
        let too_often = || StoreError::corrupt("SlateDB", format!("the store was opened {epoch} times"));
        let epoch = u32::try_from(epoch).map_err(|_| too_often())?;
        let (stored_bytes, is_told) = (meta.segment_bytes, meta.has_segments);
        *self.pending.lock() = Pending { epoch, stored_bytes, is_told, ..Pending::default() };
        Ok(())
    }

    /// Whether the next batch is the first one that refers to segments; asked once.
    fn is_first(&self) -> bool {
        !std::mem::replace(&mut self.pending.lock().is_told, true)
    }

    /// Whether the store says that it may have segments.
    pub(crate) fn set_told(&self, is_told: bool) {
        self.pending.lock().is_told = is_told;
    }

    /// Shorter runs of blocks stay in the database.
    pub(crate) fn run_blocks_min(&self) -> usize {
        self.run_blocks_min
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    pub(crate) fn positions(&self) -> &Arc<Positions> {
        &self.positions
    }

    /// What finds segments that nothing refers to is to look at these, of which there are records.
    pub(crate) fn suspect(&self, segments: BTreeSet<u64>) {
        self.queue.suspect(segments);
    }

    /// All of them (bytes).
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.pending.lock().stored_bytes
    }

    /// Written and not sent yet (bytes).
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending.lock().bytes() as u64
    }

    /// Asked of object storage, because they were not near (bytes).
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether more may be appended now.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.lock().bytes() < PENDING_MAX * usize::from(self.blocks_max) * BLOCK_BYTES
    }

    /// Is told of each segment that is sent.
    pub(crate) fn sent(&self) -> watch::Receiver<()> {
        self.sent.subscribe()
    }

    fn path(&self, segment: u64) -> Path {
        self.directory.clone().join(format!("{segment:016x}"))
    }

    /// Appends blocks of one file; returns where they lie. The caller holds the order lock until what refers
    /// to them is committed.
    fn append(self: &Arc<Self>, blocks: &[Bytes]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut left = blocks;
        let mut pending = self.pending.lock();
        while !left.is_empty() {
            let (segment, mut content) = pending.filling.take().unwrap_or_else(|| {
                let segment = u64::from(pending.epoch) << 32 | u64::from(pending.next);
                pending.next += 1;
                (segment, BytesMut::with_capacity(usize::from(self.blocks_max) * BLOCK_BYTES))
            });
            let index = content.len() / BLOCK_BYTES;
            let (now, later) = left.split_at(left.len().min(usize::from(self.blocks_max) - index));
            for block in now {
                content.extend_from_slice(block);
            }
            left = later;
            pending.stored_bytes += (now.len() * BLOCK_BYTES) as u64;
            // Both are at most the blocks of a segment.
            pieces.push(Piece { segment, index: index as u16, count: now.len() as u16 });
            let is_full = content.len() == usize::from(self.blocks_max) * BLOCK_BYTES;
            pending.filling = Some((segment, content));
            if is_full {
                self.seal(&mut pending);
            }
        }
        pieces
    }

    /// The segment that is being filled is sent as it is.
    fn seal(self: &Arc<Self>, pending: &mut Pending) {
        let Some((segment, content)) = pending.filling.take() else { return };
        let content = content.freeze();
        pending.sealed.insert(segment, content.clone());
        self.handle.spawn(send(Arc::clone(self), segment, content));
    }

    /// Returns when everything that was appended before is sent.
    pub(crate) async fn pass(self: &Arc<Self>) {
        let mut sent = self.sent();
        let last = {
            let mut pending = self.pending.lock();
            self.seal(&mut pending);
            pending.sealed.last_key_value().map(|(last, _)| *last)
        };
        let Some(last) = last else { return };
        let is_sent = || self.pending.lock().sealed.range(..=last).next().is_none();
        while !is_sent() {
            if sent.changed().await.is_err() {
                return;
            }
        }
    }

    /// So many blocks are written. Where there are segments, others are looked at for it.
    pub(crate) fn written(&self, blocks: usize) {
        if blocks > 0 && self.stored_bytes() > 0 {
            self.queue.written(blocks, usize::from(self.blocks_max));
        }
    }

    /// A segment has gone, of which so much had counted.
    fn removed(&self, bytes: u64) {
        let mut pending = self.pending.lock();
        pending.stored_bytes = pending.stored_bytes.saturating_sub(bytes);
    }

    /// Whether blocks may still be appended to it.
    fn is_filling(&self, segment: u64) -> bool {
        matches!(self.pending.lock().filling, Some((filling, _)) if filling == segment)
    }

    /// Reads blocks to their places in `buf`, however long object storage takes.
    ///
    /// # Errors
    /// A segment is missing, or damaged.
    pub(crate) async fn read(&self, wanted: &[Wanted], buf: &mut [u8]) -> Result<()> {
        let stored = self.read_pending(wanted, buf);
        if stored.is_empty() {
            return Ok(());
        }
        let parts = self.find(parts_of(stored.iter().map(|wanted| &wanted.reference))).await?;
        let damaged: Vec<_> = stored.into_iter().filter(|wanted| !place(&parts, wanted, buf)).collect();
        if damaged.is_empty() {
            return Ok(());
        }
        // The copies that are near may be: once more, and then the object is.
        let keys = parts_of(damaged.iter().map(|wanted| &wanted.reference));
        for segment in keys.iter().map(|key| key.segment).collect::<BTreeSet<_>>() {
            self.parts.forget(segment);
        }
        let parts = self.fetch(keys).await?;
        match damaged.iter().find(|wanted| !place(&parts, wanted, buf)) {
            None => {
                self.keep(&parts);
                Ok(())
            }
            Some(Wanted { reference, .. }) => Err(damage(reference)),
        }
    }

    /// As [`Segments::read`], one behind the other.
    ///
    /// # Errors
    /// As [`Segments::read`].
    pub(crate) async fn read_all(&self, references: impl Iterator<Item = BlockRef>) -> Result<Bytes> {
        let wanted: Vec<_> = (0..)
            .zip(references)
            .map(|(at, reference)| Wanted { reference, offset: at * BLOCK_BYTES })
            .collect();
        let mut content = vec![0; wanted.len() * BLOCK_BYTES];
        self.read(&wanted, &mut content).await?;
        Ok(content.into())
    }

    /// Reads blocks of one segment from object storage, and compares them with what was written.
    ///
    /// # Errors
    /// As [`Segments::read`].
    pub(crate) async fn verify(&self, references: &[BlockRef]) -> Result<()> {
        let parts = self.fetch(parts_of(references.iter())).await?;
        let is_damaged =
            |reference: &&BlockRef| !block_in(&parts, reference).is_some_and(|block| reference.is_of(block));
        references.iter().find(is_damaged).map_or(Ok(()), |reference| Err(damage(reference)))
    }

    /// Has the parts of these blocks in memory.
    ///
    /// # Errors
    /// As [`Segments::read`].
    pub(crate) async fn warm(&self, references: &[BlockRef]) -> Result<()> {
        let stored: Vec<_> = {
            let pending = self.pending.lock();
            references.iter().filter(|reference| pending.content(reference.segment).is_none()).collect()
        };
        self.find(parts_of(stored.into_iter())).await.map(drop)
    }

    /// Reads those that are not sent yet; returns the others.
    fn read_pending(&self, wanted: &[Wanted], buf: &mut [u8]) -> Vec<Wanted> {
        let pending = self.pending.lock();
        let is_stored = |wanted: &&Wanted| {
            let Wanted { reference, offset } = wanted;
            let content = pending.content(reference.segment);
            let start = usize::from(reference.index) * BLOCK_BYTES;
            if let Some(block) = content.and_then(|content| content.get(start..start + BLOCK_BYTES)) {
                buf[*offset..offset + BLOCK_BYTES].copy_from_slice(block);
                return false;
            }
            true
        };
        wanted.iter().filter(is_stored).copied().collect()
    }

    /// The parts, wherever they are.
    async fn find(&self, keys: BTreeSet<PartKey>) -> Result<BTreeMap<PartKey, Bytes>> {
        let mut found = BTreeMap::new();
        let mut missing = BTreeSet::new();
        for key in keys {
            match self.parts.in_memory(key) {
                Some(part) => drop(found.insert(key, part)),
                None => drop(missing.insert(key)),
            }
        }
        if !missing.is_empty() && self.parts.has_disk() {
            let (parts, keys) = (Arc::clone(&self.parts), missing.clone());
            let read = move || keys.into_iter().filter_map(|key| Some((key, parts.on_disk(key)?))).collect();
            // It fails when the runtime ends, and so does what comes then.
            let read: Vec<_> = self.handle.spawn_blocking(read).await.unwrap_or_default();
            for (key, part) in read {
                missing.remove(&key);
                self.parts.keep(key, part.clone());
                found.insert(key, part);
            }
        }
        if !missing.is_empty() {
            let fetched = self.fetch(missing).await?;
            self.keep(&fetched);
            found.extend(fetched);
        }
        Ok(found)
    }

    /// Parts from object storage; neighbours come together.
    async fn fetch(&self, keys: BTreeSet<PartKey>) -> Result<BTreeMap<PartKey, Bytes>> {
        let mut groups: Vec<(PartKey, u16)> = Vec::new();
        for key in keys {
            match groups.last_mut() {
                Some((first, count))
                    if first.segment == key.segment
                        && first.part + *count == key.part
                        && *count < FETCH_PARTS =>
                {
                    *count += 1;
                }
                _ => groups.push((key, 1)),
            }
        }
        let fetches = groups.into_iter().map(|(first, count)| self.get_parts(first, count));
        let fetched: Vec<_> = futures::stream::iter(fetches).buffer_unordered(FETCHES).try_collect().await?;
        Ok(fetched.into_iter().flatten().collect())
    }

    async fn get_parts(&self, first: PartKey, count: u16) -> Result<Vec<(PartKey, Bytes)>> {
        let start = first.offset();
        let end = start + u64::from(count) * PART_BYTES as u64;
        let parts = self.get(first.segment, start..end).await?;
        let key = |at: u16| PartKey { segment: first.segment, part: first.part + at };
        Ok((0..).zip(parts).map(|(at, part)| (key(at), part)).collect())
    }

    /// Has parts in memory and on the local disk.
    fn keep(&self, parts: &BTreeMap<PartKey, Bytes>) {
        for (key, part) in parts {
            self.parts.keep(*key, part.clone());
        }
        if let Some(permit) = self.parts.permit() {
            let (near, parts) = (Arc::clone(&self.parts), parts.clone());
            self.handle.spawn_blocking(move || {
                near.write_all(&parts);
                drop(permit);
            });
        }
    }

    /// Gets a range of a segment, as parts; one that ends earlier gives less.
    async fn get(&self, segment: u64, range: std::ops::Range<u64>) -> Result<Vec<Bytes>> {
        let path = self.path(segment);
        let damaged = |what| Err(StoreError::corrupt(format!("segment {segment:016x}"), what));
        let mut pause = Pause::first();
        loop {
            let options = GetOptions { range: Some(range.clone().into()), ..GetOptions::default() };
            let got = async { parted(self.service.get_opts(&path, options).await?).await };
            match got.await {
                Ok(parts) => {
                    let bytes: usize = parts.iter().map(Bytes::len).sum();
                    self.received.fetch_add(bytes as u64, Ordering::Relaxed);
                    return Ok(parts);
                }
                Err(object_store::Error::NotFound { .. }) => return damaged("it is missing"),
                Err(error) => {
                    tracing::debug!(%path, %error, "a part of a segment was asked for in vain");
                    // What is asked for behind its end is an error, too.
                    if self.service.head(&path).await.is_ok_and(|meta| meta.size <= range.start) {
                        return damaged("it is too short");
                    }
                }
            }
            pause.take().await;
        }
    }
}

/// Content as parts, each in memory of its own, so that none keeps its neighbours alive.
async fn parted(got: GetResult) -> object_store::Result<Vec<Bytes>> {
    let mut content = got.into_stream();
    let mut parts = Vec::new();
    let mut part = BytesMut::new();
    while let Some(more) = content.try_next().await? {
        let mut more = &more[..];
        while !more.is_empty() {
            if part.is_empty() {
                part.reserve(PART_BYTES);
            }
            let (now, later) = more.split_at(more.len().min(PART_BYTES - part.len()));
            part.extend_from_slice(now);
            more = later;
            if part.len() == PART_BYTES {
                parts.push(std::mem::take(&mut part).freeze());
            }
        }
    }
    if !part.is_empty() {
        parts.push(part.freeze());
    }
    Ok(parts)
}

/// Sends a segment, however long that takes.
async fn send(segments: Arc<Segments>, segment: u64, content: Bytes) {
    let path = segments.path(segment);
    let mut pause = Pause::first();
    while let Err(error) = segments.service.put(&path, content.clone().into()).await {
        tracing::debug!(%path, %error, "a segment was sent in vain");
        pause.take().await;
    }
    segments.pending.lock().sealed.remove(&segment);
    segments.sent.send_replace(());
}

fn parts_of<'a>(references: impl Iterator<Item = &'a BlockRef>) -> BTreeSet<PartKey> {
    references.map(|reference| PartKey::of(reference.segment, reference.index)).collect()
}

fn damage(reference: &BlockRef) -> StoreError {
    let BlockRef { segment, index, .. } = reference;
    StoreError::corrupt(format!("segment {segment:016x}, block {index}"), "it is not what was written")
}

fn block_in<'p>(parts: &'p BTreeMap<PartKey, Bytes>, reference: &BlockRef) -> Option<&'p [u8]> {
    let start = usize::from(reference.index % PART_BLOCKS) * BLOCK_BYTES;
    parts.get(&PartKey::of(reference.segment, reference.index))?.get(start..start + BLOCK_BYTES)
}

/// Copies a block to its place, if it is what was written.
fn place(parts: &BTreeMap<PartKey, Bytes>, wanted: &Wanted, buf: &mut [u8]) -> bool {
    let Wanted { reference, offset } = wanted;
    let block = block_in(parts, reference).filter(|block| reference.is_of(block));
    let Some(block) = block else { return false };
    buf[*offset..offset + BLOCK_BYTES].copy_from_slice(block);
    true
}
