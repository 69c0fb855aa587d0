//! Reads of patched blocks in one memtable.
//!
//! A block may be patched any number of times before its memtable is flushed. A read that has met many of these
//! patches keeps what they come to, as a *fold*: so the next read has only the newer ones to meet, and n patches and m
//! reads take O(n + m) steps, not O(n · m).
//!
//! Thread safety: a fold at seqno s stands for everything that the table has of its key at or below s. The reader that makes
//! it must read at a snapshot that is published, so that all of this is there, and stays what it is. Two readers that make
//! the same one make it alike.

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Seqno};

use super::{fill::BlockFill, growth::Growth, keyspace::KeyspaceTable, patch::Overlay};
use crate::format::RecordKind;

/// Patches that a read meets before it keeps what they come to.
const CHAIN_LEN_MAX: usize = 32;

/// What the patches of a block lie on in this table.
enum Below {
    /// Older layers have it.
    Older,
    /// A range tombstone, or nothing else counts because all bytes are known.
    Nothing,
    Block(Bytes),
}

impl KeyspaceTable {
    /// Takes the undecided block at `position`, whose newest visible version is a patch that nothing hides, through
    /// this table. `hidden`: of the newest range tombstone over it, 0: none. Returns what a fold takes that was made.
    /// O(log n) and the patches since the last fold.
    pub(super) fn fill_patched(&self, fill: &mut BlockFill<'_>, position: usize, hidden: Seqno) -> Growth {
        if fill.do_patches_decide() {
            fill.mark_data(position..position + 1);
            return Growth::default();
        }
        let key = fill.key(position);
        let mut chain = Overlay::default();
        let (newest, len, below) = self.take_chain(&key, fill.snapshot(), hidden, &mut chain);
        let is_long = len > CHAIN_LEN_MAX;
        let growth = if is_long { self.fold(&key, newest, &chain, &below) } else { Growth::default() };
        fill.patch(position, chain);
        match below {
            Below::Block(block) => fill.settle(position, Some(&block)),
            Below::Nothing => fill.settle(position, None),
            Below::Older => {}
        }
        growth
    }

    /// Gathers the patches of `key` that count at `snapshot`: the seqno of the newest one, how many records it took,
    /// and what they lie on.
    fn take_chain(
        &self,
        key: &[u8],
        snapshot: Seqno,
        hidden: Seqno,
        chain: &mut Overlay,
    ) -> (Seqno, usize, Below) {
        let fold = self.folds.seek(key, snapshot).filter(|fold| fold.record().key == key);
        let folded = fold.as_ref().map_or(0, |fold| fold.record().seqno);
        let mut node = self.records.seek(key, snapshot);
        let (mut newest, mut len) = (0, 0);
        while let Some(at) = &mut node {
            let record = at.record();
            if record.key != key {
                break;
            }
            newest = newest.max(record.seqno);
            if hidden > record.seqno || chain.is_whole() {
                return (newest, len, Below::Nothing);
            }
            let known = fold.as_ref().filter(|_| folded >= record.seqno);
            let source = known.unwrap_or(at);
            if source.record().kind != RecordKind::Merge {
                return (newest, len, Below::Block(source.value_owned()));
            }
            chain.put_below(source.value());
            len += 1;
            if known.is_some() || !at.advance() {
                break;
            }
        }
        (newest, len, if chain.is_whole() { Below::Nothing } else { Below::Older })
    }

    /// Keeps what `chain` comes to.
    fn fold(&self, key: &[u8], seqno: Seqno, chain: &Overlay, below: &Below) -> Growth {
        let whole = |mut block: Vec<u8>| {
            chain.apply(&mut block);
            (RecordKind::Put, Bytes::from(block))
        };
        let (kind, value) = match below {
            Below::Older => (RecordKind::Merge, chain.operand()),
            Below::Nothing => whole(vec![0; BLOCK_BYTES]),
            Below::Block(block) => whole(block.to_vec()),
        };
        self.folds.insert(key, seqno, kind, &value)
    }
}
