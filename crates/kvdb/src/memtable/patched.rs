//! Reads of patched blocks in one memtable.
//!
//! A read that has met many patches of a block keeps what they come to, as a [fold](super::folds).
//!
//! Thread safety: any number of readers at once, at positions that are published.

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Seqno};

use super::{
    UNREADABLE, fill::BlockFill, folds::CHAIN_LEN_MAX, growth::Growth, keyspace::KeyspaceTable,
    patch::Overlay,
};
use crate::format::RecordKind;

/// What the patches of a block lie on in this table.
enum Below {
    /// Older layers have it.
    Older,
    /// A range tombstone, or nothing else counts because all bytes are known.
    Nothing,
    Block(Bytes),
}

impl KeyspaceTable {
    /// Takes the undecided block at `position`, whose newest visible version is a patch that nothing hides,
    /// through this table. `hidden`: of the newest range tombstone over it, 0: none. Returns what a fold
    /// takes that was made. O(log n) and the patches since the last fold.
    pub(super) fn fill_patched(&self, fill: &mut BlockFill<'_>, position: usize, hidden: Seqno) -> Growth {
        if fill.do_patches_decide() {
            fill.mark_data(position..position + 1);
            return Growth::default();
        }
        let key = fill.key(position);
        let mut chain = Overlay::default();
        let (newest, len, below) = self.take_chain(&key, fill.snapshot(), hidden, &mut chain);
        let is_readable = !matches!(&below, Below::Block(block) if *block == UNREADABLE);
        let is_long = len > CHAIN_LEN_MAX && is_readable;
        let growth = if is_long { self.fold(&key, newest, &chain, &below) } else { Growth::default() };
        fill.patch(position, chain);
        match below {
            Below::Block(block) => fill.settle(position, Some(&block)),
            Below::Nothing => fill.settle(position, None),
            Below::Older => {}
        }
        growth
    }

    /// Gathers the patches of `key` that count at `snapshot`: the seqno of the newest one, how many records
    /// it took, and what they lie on.
    fn take_chain(
        &self,
        key: &[u8],
        snapshot: Seqno,
        hidden: Seqno,
        chain: &mut Overlay,
    ) -> (Seqno, usize, Below) {
        let (mut newest, mut len) = (0, 0);
        for version in self.versions(key, snapshot) {
            let record = version.record();
            newest = newest.max(record.seqno);
            if hidden > record.seqno || chain.is_whole() {
                return (newest, len, Below::Nothing);
            }
            if record.kind != RecordKind::Merge {
                return (newest, len, Below::Block(version.value_owned()));
            }
            chain.put_below(version.value());
            len += 1;
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
