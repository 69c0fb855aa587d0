//! What the checkpoint of a branch says of it: its name, its owner, which inode numbers are its own, of which
//! directory it is.

use bytes::Bytes;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Of everything.
const VERSION: u32 = 1;
/// Of one directory: its inode number comes before the name, and its path, from the first slash on, behind.
const VERSION_OF_DIRECTORY: u32 = 2;

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
    /// What it is a branch of; `None`: of everything.
    pub(crate) root: Option<BranchRoot>,
}

/// The directory that a branch is one of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchRoot {
    /// Its inode number.
    pub inode: u64,
    /// Its path from the root of the store when the branch was made.
    pub path: Vec<u8>,
}

impl BranchRecord {
    pub(crate) fn encode(&self) -> Bytes {
        let version = if self.root.is_some() { VERSION_OF_DIRECTORY } else { VERSION };
        let raw = Raw { version: version.into(), uid: self.uid.into(), inode_from: self.inode_from.into() };
        let inode = self.root.as_ref().map(|root| U64::new(root.inode));
        let path = self.root.as_ref().map_or(&[][..], |root| &root.path);
        let inode = inode.as_ref().map_or(&[][..], IntoBytes::as_bytes);
        [raw.as_bytes(), inode, self.name.as_bytes(), path].concat().into()
    }

    /// `None`: the checkpoint is not one of a branch.
    pub(crate) fn decode(owner: &[u8]) -> Option<Self> {
        let (raw, rest) = Raw::read_from_prefix(owner).ok()?;
        let (name, root) = match raw.version.get() {
            VERSION => (rest, None),
            VERSION_OF_DIRECTORY => {
                let (inode, rest) = U64::read_from_prefix(rest).ok()?;
                let (name, path) = rest.split_at(rest.iter().position(|&byte| byte == b'/')?);
                (name, Some(BranchRoot { inode: inode.get(), path: path.to_vec() }))
            }
            _ => return None,
        };
        let name = String::from_utf8(name.to_vec()).ok().filter(|name| !name.is_empty())?;
        Some(Self { name, uid: raw.uid.get(), inode_from: raw.inode_from.get(), root })
    }
}

#[cfg(test)]
mod tests {
    use super::{BranchRecord, BranchRoot};

    #[test]
    fn records_of_branches_have_these_bytes() {
        let record = BranchRecord { name: "try".into(), uid: 1000, inode_from: 0x1234, root: None };
        let bytes = record.encode();
        assert_eq!(&bytes[..], b"\x01\0\0\0\xe8\x03\0\0\x34\x12\0\0\0\0\0\0try");
        assert_eq!(BranchRecord::decode(&bytes), Some(record));
        for bad in [&b""[..], b"me", &bytes[..16], b"\x03\0\0\0\xe8\x03\0\0\x34\x12\0\0\0\0\0\0try"] {
            assert_eq!(BranchRecord::decode(bad), None);
        }
    }

    #[test]
    fn records_of_branches_of_directories_have_these_bytes() {
        let root = Some(BranchRoot { inode: 0x56, path: b"/a/\xff".to_vec() });
        let record = BranchRecord { name: "try".into(), uid: 1000, inode_from: 0x1234, root };
        let bytes = record.encode();
        let expected = b"\x02\0\0\0\xe8\x03\0\0\x34\x12\0\0\0\0\0\0\x56\0\0\0\0\0\0\0try/a/\xff";
        assert_eq!(&bytes[..], expected);
        assert_eq!(BranchRecord::decode(&bytes), Some(record));
        for bad in [
            &bytes[..20],
            &bytes[..24],
            &bytes[..27],
            b"\x02\0\0\0\xe8\x03\0\0\x34\x12\0\0\0\0\0\0\x56\0\0\0\0\0\0\0/a",
        ] {
            assert_eq!(BranchRecord::decode(bad), None);
        }
    }
}
