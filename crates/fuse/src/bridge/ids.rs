//! The space of node ids: which part of it belongs to what.
//!
//! ```text
//! bit 63   62 … 48          47 … 0
//!      0   0                inode number           the mounted view
//!      0   1 … 0x7ffe       inode number           a snapshot's view, of this index
//!      0   0x7fff           number                 the hidden directory and what is in it
//! ```
//!
//! Inode numbers that users see are divided in the same way: device and inode number are the same for two
//! names if and only if they are of one file of one view, which is how programs recognise hard links.
//!
//! Thread safety: plain functions. Invariants: inode numbers stay below 2^48 ([`kvfs_fs::INODE_MAX`]).

use kvfs_fs::INODE_MAX;

const INODE_BITS: u32 = 48;
const INODE_MASK: u64 = (1 << INODE_BITS) - 1;
const HIDDEN_INDEX: u64 = 0x7fff;

/// Views that can have an index at the same time.
pub(super) const VIEW_INDEX_MAX: u16 = 0x7ffe;

const _: () = assert!(INODE_MAX <= INODE_MASK, "an inode number has its bits to itself");

/// What a node belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Of the mounted view.
    Mounted,
    /// Of the snapshot's view with this index.
    Snapshot(u16),
    /// Hidden.
    Hidden,
    /// Unassigned.
    Nowhere,
}

/// What `node` belongs to.
pub(super) fn place(node: u64) -> Place {
    match node >> INODE_BITS {
        0 => Place::Mounted,
        HIDDEN_INDEX => Place::Hidden,
        index @ 1..HIDDEN_INDEX => Place::Snapshot(index as u16),
        _ => Place::Nowhere,
    }
}

/// The part of a node id below its place.
pub(super) fn inode(node: u64) -> u64 {
    node & INODE_MASK
}

/// What a snapshot's view with this index adds to its inode numbers.
pub(super) fn base(index: u16) -> u64 {
    u64::from(index) << INODE_BITS
}

/// The id of a hidden node with this number, of which the lower 48 bits count.
pub(super) fn hidden(number: u64) -> u64 {
    HIDDEN_INDEX << INODE_BITS | inode(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_one_place_and_keeps_its_number() {
        for number in [1, 2, INODE_MASK] {
            assert_eq!((place(number), inode(number)), (Place::Mounted, number));
            for index in [1, 2, VIEW_INDEX_MAX] {
                let node = base(index) + number;
                assert_eq!((place(node), inode(node)), (Place::Snapshot(index), number));
            }
            assert_eq!((place(hidden(number)), inode(hidden(number))), (Place::Hidden, number));
        }
        assert_eq!(place(u64::MAX), Place::Nowhere);
        assert!(i64::try_from(hidden(INODE_MASK)).is_ok(), "programs keep inode numbers in signed words");
    }
}
