//! What the checkpoint of a branch says of it: its name, its owner, which inode numbers are its own.

use bytes::Bytes;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const VERSION: u32 = 1;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    version: U32,
    uid: U32,
    inode_from: U64,
}

const _: () = assert!(size_of::<Raw>() == 16);

/// A branch, as its checkpoint keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BranchRecord {
    /// Unique in the store.
    pub(crate) name: String,
    /// Its owner.
    pub(crate) uid: u32,
    /// Inodes of the branch with this number or a greater one were made in it.
    pub(crate) inode_from: u64,
}

impl BranchRecord {
    pub(crate) fn encode(&self) -> Bytes {
        let raw = Raw { version: VERSION.into(), uid: self.uid.into(), inode_from: self.inode_from.into() };
        [raw.as_bytes(), self.name.as_bytes()].concat().into()
    }

    /// `None`: the checkpoint is not one of a branch.
    pub(crate) fn decode(owner: &[u8]) -> Option<Self> {
        let (raw, name) = Raw::read_from_prefix(owner).ok()?;
        let name = String::from_utf8(name.to_vec()).ok()?;
        let is_known = raw.version == VERSION && !name.is_empty();
        is_known.then(|| Self { name, uid: raw.uid.get(), inode_from: raw.inode_from.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::BranchRecord;

    #[test]
    fn records_of_branches_have_these_bytes() {
        let record = BranchRecord { name: "try".into(), uid: 1000, inode_from: 0x1234 };
        let bytes = record.encode();
        assert_eq!(&bytes[..], b"\x01\0\0\0\xe8\x03\0\0\x34\x12\0\0\0\0\0\0try");
        assert_eq!(BranchRecord::decode(&bytes), Some(record));
        for bad in [&b""[..], b"me", &bytes[..16], b"\x02\0\0\0\xe8\x03\0\0\x34\x12\0\0\0\0\0\0try"] {
            assert_eq!(BranchRecord::decode(bad), None);
        }
    }
}
