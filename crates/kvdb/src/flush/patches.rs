//! Patches of blocks: what becomes of them when their memtable is flushed.
//!
//! Runs hold whole blocks alone. So a flush reads what its patches lie on, in key order, a window of blocks
//! at a time and many requests at once: one after the other would take as long as the writers had saved. A
//! block that can't be read is left out, and told: it stays what it is, unreadable, and all others are
//! written. That is so for the data of single blocks alone. Where one of the devices answers nothing any
//! more, or an index is damaged, the flush ends as ever, and the journal still has the patches.
//!
//! Thread safety: a window is read by threads of its own, which end before it is written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use kvfs_device::Device;
use kvfs_store::{BLOCK_BYTES, Result, Seqno, StoreError};

use crate::flush::Flusher;
use crate::format::{RecordKind, SUPERBLOCK_ADDRS};
use crate::iter::Kept;
use crate::memtable::{BlockFill, BlockState, MemTable, block_key, split_block_key};
use crate::runtime::options::Background;
use crate::table::LostPart;
use crate::version::{Run, RunId};

/// Records that are resolved, and then written, together.
pub(crate) const WINDOW_RECORDS: usize = 1024;

/// Blocks that are read in one request when they follow each other.
const REQUEST_BLOCKS_MAX: usize = 64;

/// Requests under way.
const READERS: usize = 16;

/// Requests that one more reader is worth.
const REQUESTS_PER_READER: usize = 4;

/// Lost blocks of one flush that are named in the log; of more only the number is told.
const NAMED_MAX: usize = 16;

impl Flusher {
    /// How many requests a flush may have under way.
    pub(crate) fn flush_readers(&self) -> usize {
        // Tests that count the calls of the device need them in one order.
        if self.runtime.options.background == Background::Manual { 1 } else { READERS }
    }
}

/// A part of a run that a repair has found to be gone.
pub(crate) struct Gone {
    /// Keys and seqnos.
    pub(crate) part: LostPart,
    /// Age and number of the run.
    pub(crate) place: (Seqno, RunId),
}

impl Gone {
    /// Whether this may be what a patch of `key` at `seqno` lay on: neither `table`, which has the patch, nor
    /// a newer run among `runs` knows all of the block.
    fn is_base_of(
        &self,
        key: &[u8],
        seqno: Seqno,
        (keyspace, table): (u32, &MemTable),
        runs: &[Arc<Run>],
    ) -> Result<bool> {
        let Some((prefix, block)) = split_block_key(key).filter(|_| self.part.may_hold(key)) else {
            return Ok(false);
        };
        let mut fill = BlockFill::bases(prefix, block, 1, seqno);
        table.fill(keyspace, &mut fill);
        for run in runs.iter().filter(|run| (run.age, run.id) > self.place) {
            run.fill(&mut fill)?;
        }
        Ok(fill.state(0) == BlockState::Unknown)
    }
}

/// What lies below the patches of a table that is written.
pub(crate) struct Below {
    /// Everything older of the keyspace, newest first.
    runs: Vec<Arc<Run>>,
    readers: usize,
    /// What a repair has found to be gone of the keyspace.
    gone: Vec<Gone>,
    /// Keys of blocks whose patches are lost, because what they lie on is damaged.
    pub(crate) lost: Vec<Bytes>,
}

/// What is being written.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    /// Has the patches.
    pub(crate) table: &'a MemTable,
    /// Of which this keyspace is taken.
    pub(crate) keyspace: u32,
    /// Where everything else is.
    pub(crate) device: &'a dyn Device,
}

/// Consecutive blocks that are read at one position.
struct Request {
    prefix: Bytes,
    first: u64,
    snapshot: Seqno,
    /// Their records in the window.
    records: Vec<usize>,
}

/// Each block of a request; `None`: damaged.
type Blocks = Vec<Option<Bytes>>;

impl Below {
    /// `readers`: how many requests may be under way at once.
    pub(crate) fn new(runs: Vec<Arc<Run>>, readers: usize) -> Self {
        Self { runs, readers, gone: Vec::new(), lost: Vec::new() }
    }

    /// As it is under repair: what lies on something that is `gone` is lost, too.
    pub(crate) fn without(gone: Vec<Gone>, runs: Vec<Arc<Run>>) -> Self {
        Self { gone, ..Self::new(runs, 1) }
    }

    /// Of a table without patches.
    pub(crate) fn nothing() -> Self {
        Self::new(Vec::new(), 1)
    }

    /// Turns the patches among `window` (all that is kept of its keys) into whole blocks, or takes them out
    /// where these are damaged. `boundaries` are the positions that are read at, ascending.
    ///
    /// # Errors
    /// I/O errors that concern more than single blocks; corruption of what is no block.
    pub(crate) fn resolve(
        &mut self,
        source: Source<'_>,
        boundaries: &[Seqno],
        window: &mut Vec<Kept>,
    ) -> Result<()> {
        let requests = requests_of(window, boundaries);
        if requests.is_empty() {
            return Ok(());
        }
        let read = self.read_all(&requests, |request| self.read(source, request));
        let mut resolved = Vec::with_capacity(window.len());
        for (request, blocks) in requests.iter().zip(read) {
            resolved.extend(request.records.iter().copied().zip(blocks?));
        }
        // Of each key the newest version that is lost.
        let mut lost: BTreeMap<Bytes, Seqno> = BTreeMap::new();
        for (record, _) in resolved.iter().filter(|(_, block)| block.is_none()) {
            let Kept { key, seqno, .. } = &window[*record];
            let newest = lost.entry(key.clone()).or_default();
            *newest = (*newest).max(*seqno);
        }
        for (record, block) in resolved {
            let kept = &mut window[record];
            // Nor an older version that could be read after all: it would look like the newest one. A newer
            // one lies on something else, or could be read: it is whole.
            let is_lost = lost.get(&kept.key).is_some_and(|&newest| kept.seqno <= newest);
            if let Some(block) = block.filter(|_| !is_lost) {
                (kept.kind, kept.value) = (RecordKind::Put, block);
            }
        }
        window.retain(|kept| kept.kind != RecordKind::Merge);
        self.lost.extend(lost.into_keys());
        Ok(())
    }

    /// As many at once as are worth it.
    fn read_all(
        &self,
        requests: &[Request],
        read: impl Fn(&Request) -> Result<Blocks> + Sync,
    ) -> Vec<Result<Blocks>> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            while let at = next.fetch_add(1, Ordering::Relaxed)
                && let Some(request) = requests.get(at)
            {
                done.push((at, read(request)));
            }
            done
        };
        let helpers = self.readers.min(requests.len().div_ceil(REQUESTS_PER_READER)).saturating_sub(1);
        let mut done = std::thread::scope(|scope| {
            let builder = || std::thread::Builder::new().name("kvfs-flush-read".into());
            // Where there can be no more threads, those that are there do it.
            let started: Vec<_> =
                (0..helpers).map_while(|_| builder().spawn_scoped(scope, work).ok()).collect();
            let mut done = work();
            for thread in started {
                match thread.join() {
                    Ok(others) => done.extend(others),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            done
        });
        done.sort_unstable_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, blocks)| blocks).collect()
    }

    /// All blocks of a request. When that fails they are read a second time, one by one.
    fn read(&self, source: Source<'_>, request: &Request) -> Result<Blocks> {
        let count = request.records.len();
        match self.read_blocks(source, request, request.first, count) {
            Ok(bytes) => {
                let block = |at: usize| bytes.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES);
                Ok((0..count).map(|at| Some(block(at))).collect())
            }
            Err(StoreError::Corrupt { .. } | StoreError::Io { .. }) => self.read_single(source, request),
            Err(error) => Err(error),
        }
    }

    fn read_single(&self, source: Source<'_>, request: &Request) -> Result<Blocks> {
        let mut single = Vec::with_capacity(request.records.len());
        for block in (request.first..).take(request.records.len()) {
            self.find_base(source, request, block)?;
            let mut read = self.read_blocks(source, request, block, 1);
            if let Err(error @ StoreError::Io { .. }) = read {
                // Which device it was is not known: all have to answer. A block that could be read says
                // nothing: it may have come from memory, or be a hole.
                if !source.device.answers(&SUPERBLOCK_ADDRS) {
                    return Err(error);
                }
                // The device may have begun to answer just now.
                read = self.read_blocks(source, request, block, 1);
            }
            single.push(match read {
                Ok(bytes) => Some(bytes),
                Err(error @ (StoreError::Io { .. } | StoreError::Corrupt { .. })) => {
                    let keyspace = source.keyspace;
                    tracing::debug!(keyspace, block, %error, "a patched block is damaged");
                    None
                }
                Err(error) => return Err(error),
            });
        }
        Ok(single)
    }

    /// Looks for the piece that has what a patch of `block` lies on, and reads none of its data: when this
    /// fails, it is not known whether the block is damaged.
    fn find_base(&self, source: Source<'_>, request: &Request, block: u64) -> Result<()> {
        let mut fill = BlockFill::bases(&request.prefix, block, 1, request.snapshot);
        self.fill(source, &mut fill).map_err(|error| match error {
            StoreError::Corrupt { place, detail } => {
                let detail = format!("{detail}, and a part of a block below it was written anew");
                StoreError::Corrupt { place, detail: format!("{detail}: `kvfs check --repair` mends it") }
            }
            other => other,
        })
    }

    /// Takes a read through the table and everything older.
    fn fill(&self, source: Source<'_>, fill: &mut BlockFill<'_>) -> Result<()> {
        source.table.fill(source.keyspace, fill);
        for run in &self.runs {
            if fill.is_complete() {
                break;
            }
            run.fill(fill)?;
        }
        Ok(())
    }

    fn read_blocks(&self, source: Source<'_>, request: &Request, first: u64, count: usize) -> Result<Bytes> {
        for block in (first..).take(count) {
            let key = block_key(&request.prefix, block);
            for gone in &self.gone {
                if gone.is_base_of(&key, request.snapshot, (source.keyspace, source.table), &self.runs)? {
                    return Err(StoreError::corrupt("a patched block", "what it lies on is gone"));
                }
            }
        }
        let mut buf = vec![0; count * BLOCK_BYTES];
        let mut fill = BlockFill::new(&request.prefix, first, request.snapshot, &mut buf);
        self.fill(source, &mut fill)?;
        fill.finish()?;
        Ok(buf.into())
    }

    /// Names what is lost in the log; returns how many blocks that are.
    pub(crate) fn tell_lost(&self, keyspace: &str) -> u64 {
        for key in self.lost.iter().take(NAMED_MAX) {
            let key = key.escape_ascii();
            tracing::error!(keyspace, %key, "a block is damaged on the medium: what was written over a part of it is lost; run `kvfs check`");
        }
        if self.lost.len() > NAMED_MAX {
            tracing::error!(keyspace, blocks = self.lost.len(), "more blocks are damaged; run `kvfs check`");
        }
        self.lost.len() as u64
    }
}

/// What has to be read for the patches among `window`, which is in record order.
fn requests_of(window: &[Kept], boundaries: &[Seqno]) -> Vec<Request> {
    let stripe = |seqno| boundaries.partition_point(|&boundary| boundary < seqno);
    let mut requests: Vec<Request> = Vec::new();
    for (at, kept) in window.iter().enumerate().filter(|(_, kept)| kept.kind == RecordKind::Merge) {
        let Some((prefix, block)) = split_block_key(&kept.key) else { continue };
        match requests.last_mut() {
            // Between two boundaries nothing else of the block is visible: a common position will do.
            Some(last)
                if last.records.len() < REQUEST_BLOCKS_MAX
                    && last.first + last.records.len() as u64 == block
                    && last.prefix[..] == *prefix
                    && stripe(last.snapshot) == stripe(kept.seqno) =>
            {
                last.records.push(at);
                last.snapshot = last.snapshot.max(kept.seqno);
            }
            _ => {
                let prefix = kept.key.slice(..prefix.len());
                requests.push(Request { prefix, first: block, snapshot: kept.seqno, records: vec![at] });
            }
        }
    }
    requests
}

#[cfg(test)]
mod tests;
