//! What a private write set comes to: the newest change of each key, range deletes without overlaps.
//!
//! Invariants: a range comes before the changes inside of it; these were made after it; a delete inside of a
//! range is left out. So the changes in this order are a batch with the effect of all batches of the set.
//!
//! Thread safety: belongs to one thread.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Batch, Change, ChangeCursor, KeyRange, Keyspace, KeyspaceKind, Result, Seqno};

use super::private::{BlockWrites, OwnWrites};
use crate::format::{RecordIter, RecordKind, RecordRef};
use crate::iter::{CompactionIter, KeepRules, Kept, MergingIter, run_records};
use crate::memtable::{Merger, TombstoneSet, split_block_key};
use crate::table::Access;
use crate::version::Run;

/// One keyspace of a private write set, between two seqnos.
pub(super) struct NetSource {
    pub(super) own: OwnWrites,
    /// What is at or below it does not count.
    pub(super) since: Seqno,
    pub(super) keyspace: u32,
    pub(super) kind: KeyspaceKind,
    pub(super) merger: Merger,
}

impl NetSource {
    /// Of each run what may count: a spill's pieces are of its own time.
    fn runs(&self) -> Vec<Run> {
        self.own.runs(self.keyspace).iter().filter_map(|run| run.part_above(self.since)).collect()
    }

    /// All records that count. The data of blocks is not asked for: they have no values here.
    fn records(&self, runs: &[Run]) -> Counting {
        let in_tables = self.own.tables().map(|table| table.iter(self.keyspace));
        let in_runs = runs.iter().map(|run| run_records(run, Access::Crowded { walks: runs.len() }));
        let records = Box::new(MergingIter::new(in_tables.chain(in_runs).collect()));
        let (since, limit) = (self.since, self.own.limit());
        Counting { records, since, limit, has_values: self.kind == KeyspaceKind::Tuple }
    }

    fn tombstones(&self, runs: &[Run]) -> Arc<TombstoneSet> {
        let in_runs = runs.iter().flat_map(Run::tombstones);
        let in_tables = self.own.tables().map(|table| table.tombstones(self.keyspace));
        let mut sets: Vec<_> = in_tables.chain(in_runs).map(|set| set_above(set, self.since)).collect();
        sets.retain(|set| !set.is_empty());
        match &sets[..] {
            [] => Arc::default(),
            [set] => Arc::clone(set),
            _ => Arc::new(TombstoneSet::union(sets.iter().map(|set| &**set))),
        }
    }
}

/// The tombstones above `since`.
fn set_above(set: Arc<TombstoneSet>, since: Seqno) -> Arc<TombstoneSet> {
    if set.seqno_range().is_none_or(|(oldest, _)| oldest > since) {
        return set;
    }
    Arc::new(TombstoneSet::new(set.list().iter().filter(|tombstone| tombstone.seqno > since).cloned()))
}

/// One element of the net set.
enum Net {
    DeleteRange(Bytes, Bytes),
    Put(Kept),
    Delete(Bytes),
    /// Oldest first.
    Merge(Bytes, Vec<Bytes>),
}

/// Walks over the net set in key order.
struct NetWalk {
    records: CompactionIter,
    tombstones: Arc<TombstoneSet>,
    ranges: VecDeque<KeyRange>,
    ahead: Option<Kept>,
    has_begun: bool,
}

impl NetWalk {
    fn new(source: &NetSource) -> Self {
        let runs = source.runs();
        let tombstones = source.tombstones(&runs);
        let rules = KeepRules { boundaries: Vec::new(), bottom: false, merger: source.merger.clone() };
        Self {
            records: CompactionIter::new(Box::new(source.records(&runs)), [Arc::clone(&tombstones)], rules),
            ranges: ranges(&tombstones),
            tombstones,
            ahead: None,
            has_begun: false,
        }
    }

    fn next(&mut self) -> Result<Option<Net>> {
        if !self.has_begun {
            self.records.first()?;
            self.ahead = self.records.next_kept()?;
            self.has_begun = true;
        }
        loop {
            let is_range_next = match (&self.ahead, self.ranges.front()) {
                (Some(kept), Some(range)) => range.start <= kept.key,
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if is_range_next && let Some(KeyRange { start, end: Some(end) }) = self.ranges.pop_front() {
                return Ok(Some(Net::DeleteRange(start, end)));
            }
            let Some(kept) = self.ahead.take() else { return Ok(None) };
            self.ahead = self.records.next_kept()?;
            match kept.kind {
                RecordKind::Put => return Ok(Some(Net::Put(kept))),
                RecordKind::Delete if self.tombstones.fragment_at(&kept.key).is_some() => {}
                RecordKind::Delete => return Ok(Some(Net::Delete(kept.key))),
                RecordKind::Merge => return self.operands(kept).map(Some),
            }
        }
    }

    /// The key of `net`, or where its range begins. Of a block, all others of its prefix are passed over.
    fn pass_over(&mut self, net: Net) -> Result<Bytes> {
        let key = match net {
            // What comes in it may be of other prefixes.
            Net::DeleteRange(start, _) => return Ok(start),
            Net::Put(kept) => kept.key,
            Net::Delete(key) | Net::Merge(key, _) => key,
        };
        let Some((prefix, _)) = split_block_key(&key) else { return Ok(key) };
        // Behind its last block.
        let behind = [prefix, &[u8::MAX; 8], &[0]].concat();
        while self.ranges.front().is_some_and(|range| range.start[..] < behind[..]) {
            self.ranges.pop_front();
        }
        if self.ahead.as_ref().is_some_and(|kept| kept.key[..] < behind[..]) {
            self.records.seek(&behind)?;
            self.ahead = self.records.next_kept()?;
        }
        Ok(key)
    }

    /// The key of the next record, if no range comes before it.
    fn next_key(&self) -> Option<&Bytes> {
        let key = self.ahead.as_ref().map(|kept| &kept.key)?;
        self.ranges.front().is_none_or(|range| range.start > *key).then_some(key)
    }

    /// All operands of the key of `newest`. There is no private base: else there were a value.
    fn operands(&mut self, newest: Kept) -> Result<Net> {
        let mut operands = vec![newest.value];
        while let Some(older) = self.ahead.take_if(|kept| kept.key == newest.key) {
            operands.push(older.value);
            self.ahead = self.records.next_kept()?;
        }
        operands.reverse();
        Ok(Net::Merge(newest.key, operands))
    }
}

/// The stretches of keys under any tombstone; those that touch are one.
fn ranges(tombstones: &TombstoneSet) -> VecDeque<KeyRange> {
    let mut ranges: VecDeque<KeyRange> = VecDeque::new();
    for fragment in tombstones.fragments() {
        match ranges.back_mut() {
            Some(last) if last.end.as_ref() == Some(fragment.start) => last.end = Some(fragment.end.clone()),
            _ => ranges.push_back(KeyRange::new(fragment.start.clone(), fragment.end.clone())),
        }
    }
    ranges
}

/// The net changes of one keyspace, for a caller that looks at a transaction.
pub(crate) struct NetChanges {
    walk: NetWalk,
    kind: KeyspaceKind,
    /// Read while it was seen whether a stretch of blocks goes on.
    ahead: Option<Net>,
}

impl NetChanges {
    pub(super) fn new(source: &NetSource) -> Self {
        Self { walk: NetWalk::new(source), kind: source.kind, ahead: None }
    }

    /// The stretch of blocks that begins with the one under `key`.
    fn stretch(&mut self, key: &Bytes) -> Result<Option<Change>> {
        let Some((prefix, first)) = split_block_key(key) else { return Ok(None) };
        let mut count = 1;
        loop {
            match self.walk.next()? {
                Some(Net::Put(kept)) if split_block_key(&kept.key) == Some((prefix, first + count)) => {
                    count += 1;
                }
                other => {
                    self.ahead = other;
                    return Ok(Some(Change::Blocks { prefix: key.slice(..prefix.len()), first, count }));
                }
            }
        }
    }
}

impl ChangeCursor for NetChanges {
    fn next_place(&mut self) -> Result<Option<Bytes>> {
        let net = match self.ahead.take() {
            Some(net) => Some(net),
            None => self.walk.next()?,
        };
        net.map(|net| self.walk.pass_over(net)).transpose()
    }

    fn next(&mut self) -> Result<Option<Change>> {
        let net = match self.ahead.take() {
            Some(net) => net,
            None => match self.walk.next()? {
                Some(net) => net,
                None => return Ok(None),
            },
        };
        Ok(Some(match net {
            Net::DeleteRange(start, end) => match end.strip_suffix(&[0]) {
                // That is how a block is deleted.
                Some(key) if self.kind == KeyspaceKind::Block && *key == start => {
                    if self.walk.next_key() == Some(&start) {
                        return self.next();
                    }
                    Change::Delete { key: start }
                }
                _ => Change::DeleteRange { start, end },
            },
            Net::Put(kept) if self.kind == KeyspaceKind::Block => return self.stretch(&kept.key),
            Net::Put(kept) => Change::Put { key: kept.key, value: kept.value },
            Net::Delete(key) => Change::Delete { key },
            Net::Merge(key, operands) => Change::Merge { key, operands },
        }))
    }
}

/// Blocks of one operation that follow each other.
struct Stretch {
    key: Bytes,
    seqno: Seqno,
    first: u64,
    count: u64,
}

/// Appends the net changes of one keyspace to `batch`. The data of blocks is not copied: it is cut out of
/// what the operations brought.
pub(super) fn net_batch(source: &NetSource, block_writes: &BlockWrites, batch: &mut Batch) -> Result<()> {
    let keyspace = Keyspace(source.keyspace);
    let mut walk = NetWalk::new(source);
    let mut open: Option<Stretch> = None;
    loop {
        let net = walk.next()?;
        if let Some(Net::Put(kept)) = &net
            && source.kind == KeyspaceKind::Block
            && let Some((prefix, block)) = split_block_key(&kept.key)
        {
            if let Some(stretch) = &mut open
                && stretch.seqno == kept.seqno
                && stretch.first + stretch.count == block
                && stretch.key[..stretch.key.len() - 8] == *prefix
            {
                stretch.count += 1;
                continue;
            }
            close(open.take(), source, block_writes, batch);
            open = Some(Stretch { key: kept.key.clone(), seqno: kept.seqno, first: block, count: 1 });
            continue;
        }
        close(open.take(), source, block_writes, batch);
        match net {
            None => return Ok(()),
            Some(Net::DeleteRange(start, end)) => batch.delete_range(keyspace, start, end),
            Some(Net::Put(kept)) => batch.put(keyspace, kept.key, kept.value),
            Some(Net::Delete(key)) => batch.delete(keyspace, key),
            Some(Net::Merge(key, operands)) => {
                for operand in operands {
                    batch.merge(keyspace, key.clone(), operand);
                }
            }
        }
    }
}

fn close(stretch: Option<Stretch>, source: &NetSource, block_writes: &BlockWrites, batch: &mut Batch) {
    let Some(Stretch { key, seqno, first, count }) = stretch else { return };
    let (first_written, written) = &block_writes[&seqno];
    let start = (first - first_written) as usize * BLOCK_BYTES;
    let data = written.slice(start..start + count as usize * BLOCK_BYTES);
    let prefix = key.slice(..key.len() - 8);
    let compression = source.own.compression(source.keyspace, &prefix);
    batch.put_blocks_packed(Keyspace(source.keyspace), prefix, first, data, compression);
}

/// The records between two seqnos, on forward walks.
struct Counting {
    records: Box<dyn RecordIter>,
    /// Exclusive.
    since: Seqno,
    /// Inclusive.
    limit: Seqno,
    /// Else they are taken for empty, and not read.
    has_values: bool,
}

impl Counting {
    fn pass_others(&mut self) -> Result<()> {
        let counts = |record: RecordRef<'_>| record.seqno > self.since && record.seqno <= self.limit;
        while self.records.record().is_some_and(|record| !counts(record)) {
            self.records.next()?;
        }
        Ok(())
    }
}

impl RecordIter for Counting {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        self.records.seek(key, seqno)?;
        self.pass_others()
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.records.seek_before(key)
    }

    fn first(&mut self) -> Result<()> {
        self.records.first()?;
        self.pass_others()
    }

    fn last(&mut self) -> Result<()> {
        self.records.last()
    }

    fn next(&mut self) -> Result<()> {
        self.records.next()?;
        self.pass_others()
    }

    fn prev(&mut self) -> Result<()> {
        self.records.prev()
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        self.records.record()
    }

    fn value(&mut self) -> Result<Bytes> {
        if self.has_values { self.records.value() } else { Ok(Bytes::new()) }
    }
}
