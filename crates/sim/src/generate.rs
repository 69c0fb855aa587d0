//! The generator of steps: keys come from small clusters, so that operations meet each other.

use bytes::{BufMut, Bytes, BytesMut};
use kvfs_device::Rng;
use kvfs_store::{
    BLOCK_BYTES, Compression, Durability, ExtentKind, Isolation, KEY_LEN_MAX, KeyRange, Keyspace,
    KeyspaceKind, Op, Records, Touch,
};

use crate::merge::{Append, Sum};
use crate::ops::{Move, Profile, Reader, SLOTS, Step};
use crate::spaces::{Merge, SPACES, SpaceIndex};

/// Block numbers that puts touch lie below this, but for a few.
const BLOCKS_USUAL: u64 = 48;

/// The steps of `seed`; the last one compares everything.
pub fn generate(profile: &Profile, seed: u64) -> Vec<Step> {
    let mut generator = Generator { rng: Rng::new(seed), profile, written: 0 };
    let mut steps: Vec<Step> = (0..profile.steps).map(|_| generator.step()).collect();
    steps.push(Step::Compare { reader: Reader::Store });
    steps
}

struct Generator<'a> {
    rng: Rng,
    profile: &'a Profile,
    /// Values so far; each value begins with its number, so that no two are equal by chance.
    written: u64,
}

/// Picks an index by weight.
fn pick(rng: &mut Rng, weights: &[u32]) -> usize {
    let mut at = rng.below(weights.iter().map(|&weight| u64::from(weight)).sum());
    for (index, weight) in weights.iter().map(|&weight| u64::from(weight)).enumerate() {
        if at < weight {
            return index;
        }
        at -= weight;
    }
    unreachable!("the number drawn is below the sum of the weights")
}

impl Generator<'_> {
    fn step(&mut self) -> Step {
        let w = &self.profile.step_weights;
        let weights = [
            w.apply,
            w.sync,
            w.snapshot_create,
            w.snapshot_drop,
            w.get,
            w.multi_get,
            w.cursor_open,
            w.cursor_move,
            w.read_blocks,
            w.next_extent,
            w.compare,
            w.reopen,
            w.crash,
            w.flush,
            w.compact,
            w.txn_begin,
            w.txn_apply,
            w.txn_changed,
            w.txn_changes,
            w.txn_commit,
            w.txn_abort,
            w.named_create,
            w.named_delete,
            w.named_compare,
            w.txn_prepare,
            w.txn_checkpoint,
            w.txn_fork,
            w.txn_fork_compare,
        ];
        let slot = self.rng.index(SLOTS);
        match pick(&mut self.rng, &weights) {
            0 => self.apply(),
            1 => Step::Sync,
            2 => Step::SnapshotCreate { slot },
            3 => Step::SnapshotDrop { slot },
            4 => {
                let space = self.space();
                Step::Get { reader: self.reader(), space, key: self.key(space) }
            }
            5 => {
                let space = self.space();
                let keys = (0..self.rng.index(6)).map(|_| self.key(space)).collect();
                Step::MultiGet { reader: self.reader(), space, keys }
            }
            6 => {
                let space = self.space();
                Step::CursorOpen { slot, reader: self.reader(), space, range: self.range(space) }
            }
            7 => Step::CursorMove { slot, moves: self.moves() },
            8 => self.read_blocks(),
            9 => self.next_extent(),
            10 => Step::Compare { reader: self.reader() },
            11 => Step::Reopen,
            12 => Step::Crash,
            13 => Step::Flush,
            14 => Step::Compact,
            15 => {
                let isolation = if self.one_in(3) { Isolation::Serializable } else { Isolation::Snapshot };
                Step::TxnBegin { slot, isolation }
            }
            16 => Step::TxnApply { slot, ops: self.ops() },
            17 => {
                let (space, records) = self.records();
                Step::TxnChanged { slot, space, records }
            }
            18 => Step::TxnChanges { slot },
            19 => Step::TxnCommit { slot, durability: self.durability() },
            20 => Step::TxnAbort { slot },
            21 => Step::NamedCreate { slot },
            22 => Step::NamedDelete { slot },
            23 => Step::NamedCompare { slot },
            24 => Step::TxnPrepare { slot },
            25 => Step::TxnCheckpoint { slot },
            26 => Step::TxnFork { slot },
            _ => {
                let (space, records) = self.records();
                Step::TxnForkCompare { slot, space, records }
            }
        }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.chance(1, u64::from(n))
    }

    fn letter(&mut self) -> u8 {
        b'a' + self.rng.below(4) as u8
    }

    fn reader(&mut self) -> Reader {
        match self.rng.below(4) {
            0..2 => Reader::Store,
            2 => Reader::Snapshot(self.rng.index(SLOTS)),
            _ => Reader::Txn(self.rng.index(SLOTS)),
        }
    }

    /// The first keyspaces are the busiest.
    fn space(&mut self) -> SpaceIndex {
        pick(&mut self.rng, &[6, 6, 3, 3, 1]) as SpaceIndex
    }

    fn space_where(&mut self, fits: fn(usize) -> bool) -> SpaceIndex {
        loop {
            let space = self.space();
            if fits(space as usize) {
                return space;
            }
        }
    }

    fn apply(&mut self) -> Step {
        Step::Apply { ops: self.ops(), durability: self.durability() }
    }

    fn ops(&mut self) -> Vec<Op> {
        let count = 1 + self.rng.index(self.profile.batch_ops_max);
        (0..count).map(|_| self.op()).collect()
    }

    fn durability(&mut self) -> Durability {
        if self.one_in(self.profile.synced_one_in) { Durability::Synced } else { Durability::Buffered }
    }

    fn records(&mut self) -> (SpaceIndex, Records) {
        let space = self.space();
        let records = match self.rng.below(3) {
            0 => {
                let touch = match self.rng.below(4) {
                    0 => Touch::default(),
                    1 => Touch { exclusive: 0, increment: 1 },
                    _ => Touch::ALL,
                };
                Records::Key { key: self.key(space), touch }
            }
            1 => Records::Range(self.range(space)),
            _ => {
                let space = self.space_where(|space| SPACES[space].kind == KeyspaceKind::Block);
                let count = if self.one_in(10) { u64::MAX } else { self.rng.below(20) };
                return (space, Records::Blocks { prefix: self.prefix(), first: self.block(), count });
            }
        };
        (space, records)
    }

    fn op(&mut self) -> Op {
        let w = &self.profile.op_weights;
        match pick(&mut self.rng, &[w.put, w.delete, w.delete_range, w.merge, w.put_blocks, w.patch_block]) {
            0 => {
                let space = self.space_where(|space| SPACES[space].kind == KeyspaceKind::Tuple);
                Op::Put { keyspace: Keyspace(space), key: self.key(space), value: self.value() }
            }
            1 => {
                let space = self.space();
                Op::Delete { keyspace: Keyspace(space), key: self.key(space) }
            }
            2 => {
                let space = self.space();
                let range = self.range(space);
                // Sometimes empty or backwards, which deletes nothing.
                let end = range.end.unwrap_or_else(|| Bytes::from_static(&[0xff; 9]));
                Op::DeleteRange { keyspace: Keyspace(space), start: range.start, end }
            }
            3 => {
                let space = self.space_where(|space| SPACES[space].merge != Merge::None);
                let operand = self.operand(SPACES[space as usize].merge);
                Op::Merge { keyspace: Keyspace(space), key: self.key(space), operand }
            }
            4 => self.put_blocks(),
            _ => self.patch_block(),
        }
    }

    /// Mostly a few bytes of the few blocks that all writers write to; at times up to the whole block.
    fn patch_block(&mut self) -> Op {
        let space = self.space_where(|space| SPACES[space].kind == KeyspaceKind::Block);
        let block = if self.one_in(3) { self.block() } else { self.rng.below(4) };
        let offset = match self.rng.below(4) {
            0 => 0,
            1 => self.rng.index(64),
            _ => self.rng.index(BLOCK_BYTES),
        };
        let rest = BLOCK_BYTES - offset;
        let len = if self.one_in(6) { 1 + self.rng.index(rest) } else { rest.min(1 + self.rng.index(40)) };
        self.written += 1;
        let mut data = self.written.to_le_bytes().to_vec();
        data.resize(len, self.rng.next_u64() as u8);
        let (keyspace, prefix, data) = (Keyspace(space), self.prefix(), data.into());
        let (offset, compression) = (offset as u16, self.wish());
        Op::PatchBlock { keyspace, prefix, block, offset, data, compression }
    }

    fn put_blocks(&mut self) -> Op {
        let space = self.space_where(|space| SPACES[space].kind == KeyspaceKind::Block);
        let first = self.block();
        let few = if self.one_in(4) { self.profile.put_blocks_max } else { 3 };
        let count = 1 + self.rng.index(few);
        let count = count.min((u64::MAX - first) as usize);
        let mut data = BytesMut::with_capacity(count * BLOCK_BYTES);
        for _ in 0..count {
            self.written += 1;
            let fill = self.rng.next_u64() as u8;
            data.put_u64(self.written);
            data.put_bytes(fill, BLOCK_BYTES - 8);
        }
        let (keyspace, prefix, data) = (Keyspace(space), self.prefix(), data.freeze());
        Op::PutBlocks { keyspace, prefix, first, data, compression: self.wish() }
    }

    /// Draws no random number, so that a seed means the same with and without wishes.
    fn wish(&self) -> Compression {
        let wishes = [Compression::Lz4, Compression::Zstd(1), Compression::Lz4, Compression::None];
        if self.profile.wishes { wishes[self.written as usize / 7 % wishes.len()] } else { Compression::None }
    }

    fn value(&mut self) -> Bytes {
        self.written += 1;
        let len = if self.one_in(self.profile.long_one_in) {
            self.rng.index(60_000)
        } else if self.one_in(10) {
            return Bytes::new();
        } else {
            self.rng.index(self.profile.value_len_max)
        };
        let fill = self.rng.next_u64() as u8;
        let mut value = BytesMut::from(self.written.to_string().as_bytes());
        value.put_bytes(fill, len);
        value.freeze()
    }

    fn operand(&mut self, merge: Merge) -> Bytes {
        match merge {
            Merge::Sum if self.one_in(8) => Sum::operand(self.rng.next_u64()),
            Merge::Sum => Sum::operand(self.rng.below(100)),
            Merge::Append | Merge::None => {
                self.written += 1;
                let rest = if self.one_in(6) { String::new() } else { format!("{},", self.written) };
                Append::operand(self.one_in(8), rest.as_bytes())
            }
        }
    }

    fn key(&mut self, space: SpaceIndex) -> Bytes {
        match SPACES[space as usize].kind {
            KeyspaceKind::Tuple => self.tuple_key(),
            KeyspaceKind::Block => {
                let block = self.block();
                block_key(&self.prefix(), block)
            }
        }
    }

    fn tuple_key(&mut self) -> Bytes {
        if self.one_in(self.profile.long_one_in) {
            let len = if self.one_in(8) { KEY_LEN_MAX } else { self.rng.range(1, 600) as usize };
            let mut key = vec![b'L'; len];
            key[len - 1] = self.letter();
            return key.into();
        }
        match self.rng.below(10) {
            0..5 => (0..self.rng.range(1, 4) as usize).map(|_| self.letter()).collect(),
            5..8 => format!("dir{}/name-{:03}", self.rng.below(3), self.rng.below(60)).into(),
            8 => (0..self.rng.range(1, 4) as usize).map(|_| [0, 1, 0xfe, 0xff][self.rng.index(4)]).collect(),
            _ => Bytes::copy_from_slice(&self.rng.below(64).to_be_bytes()),
        }
    }

    /// Prefix of block keys: inode numbers, and two that begin others.
    fn prefix(&mut self) -> Bytes {
        match self.rng.below(20) {
            0 => Bytes::new(),
            1 => Bytes::from_static(&[0]),
            _ => Bytes::copy_from_slice(&(1 + self.rng.below(4)).to_be_bytes()),
        }
    }

    fn block(&mut self) -> u64 {
        match self.rng.below(30) {
            0 => u64::MAX - 1 - self.rng.below(8),
            1..4 => 250 + self.rng.below(300),
            _ => self.rng.below(BLOCKS_USUAL),
        }
    }

    fn range(&mut self, space: SpaceIndex) -> KeyRange {
        let key = self.key(space);
        match self.rng.below(8) {
            0 => KeyRange::all(),
            1 => KeyRange::prefix(&key[..self.rng.index(key.len() + 1)]),
            2 => KeyRange { start: key, end: None },
            3 => KeyRange::new(key, self.key(space)),
            4 if SPACES[space as usize].kind == KeyspaceKind::Block => {
                let prefix = self.prefix();
                KeyRange::new(block_key(&prefix, self.block()), block_key(&prefix, u64::MAX))
            }
            _ => {
                let other = self.key(space);
                if key <= other { KeyRange::new(key, other) } else { KeyRange::new(other, key) }
            }
        }
    }

    fn moves(&mut self) -> Vec<Move> {
        let mut moves = Vec::new();
        for _ in 0..self.rng.range(1, 5) as usize {
            let space = self.space();
            let (jump, onward) = match self.rng.below(6) {
                0 => (Some(Move::First), Move::Next),
                1 => (Some(Move::Last), Move::Prev),
                2 => (Some(Move::Seek(self.key(space))), Move::Next),
                3 => (Some(Move::SeekBack(self.key(space))), Move::Prev),
                4 => (None, Move::Next),
                _ => (None, Move::Prev),
            };
            moves.extend(jump);
            // Mostly in one direction, but turning around is where iterators go wrong.
            for _ in 0..self.rng.index(6) {
                moves.push(if self.one_in(5) { Move::Prev } else { onward.clone() });
            }
        }
        moves
    }

    fn read_blocks(&mut self) -> Step {
        let space = self.space_where(|space| SPACES[space].kind == KeyspaceKind::Block);
        let first = self.block();
        let count = self.rng.index(24).min((u64::MAX - first) as usize);
        Step::ReadBlocks { reader: self.reader(), space, prefix: self.prefix(), first, count }
    }

    fn next_extent(&mut self) -> Step {
        let space = self.space_where(|space| SPACES[space].kind == KeyspaceKind::Block);
        let kind = if self.rng.chance(1, 2) { ExtentKind::Data } else { ExtentKind::Hole };
        let from = if self.one_in(30) { u64::MAX } else { self.block() };
        let end = if self.one_in(3) { from.saturating_add(self.rng.below(40)) } else { u64::MAX };
        Step::NextExtent { reader: self.reader(), space, prefix: self.prefix(), blocks: from..end, kind }
    }
}

fn block_key(prefix: &[u8], block: u64) -> Bytes {
    [prefix, &block.to_be_bytes()].concat().into()
}
