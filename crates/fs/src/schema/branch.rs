//! What the checkpoint of a branch says of it: its name, its owner, which inode numbers are its own, of which
//! directory it is, and of which branch.

use bytes::Bytes;
use kvfs_store::TxnId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Of everything.
const VERSION: u32 = 1;
/// Of one directory: its inode number comes before the name, and its path, from the first slash on, behind.
const VERSION_OF_DIRECTORY: u32 = 2;
/// One that has to do with branches of branches: [`RawKin`] comes before the name.
const VERSION_OF_KIN: u32 = 3;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    version: U32,
    uid: U32,
    inode_from: U64,
}

const _: () = assert!(size_of::<Raw>() == 16);

/// Zeros: there is none.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawKin {
    root: U64,
    parent: U64,
    parent_operations: U64,
    merged: U64,
}

const _: () = assert!(size_of::<RawKin>() == 32);

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
    /// The branch that it is one of; `None`: of the main line.
    pub(crate) fork: Option<Fork>,
    /// The branch of this one that was brought into it last. It may still be there, after a crash.
    pub(crate) merged: Option<TxnId>,
}

/// Where a branch of a branch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fork {
    /// The other one.
    pub(crate) parent: TxnId,
    /// So many operations of it led there.
    pub(crate) operations: u64,
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
        let version = match (&self.root, self.fork, self.merged) {
            (None, None, None) => VERSION,
            (Some(_), None, None) => VERSION_OF_DIRECTORY,
            _ => VERSION_OF_KIN,
        };
        let raw = Raw { version: version.into(), uid: self.uid.into(), inode_from: self.inode_from.into() };
        let root = U64::new(self.root.as_ref().map_or(0, |root| root.inode));
        let kin = RawKin {
            root,
            parent: self.fork.map_or(0, |fork| fork.parent.0).into(),
            parent_operations: self.fork.map_or(0, |fork| fork.operations).into(),
            merged: self.merged.map_or(0, |id| id.0).into(),
        };
        let more = match version {
            VERSION => &[][..],
            VERSION_OF_DIRECTORY => root.as_bytes(),
            _ => kin.as_bytes(),
        };
        let path = self.root.as_ref().map_or(&[][..], |root| &root.path);
        [raw.as_bytes(), more, self.name.as_bytes(), path].concat().into()
    }

    /// `None`: the checkpoint is not one of a branch.
    pub(crate) fn decode(owner: &[u8]) -> Option<Self> {
        let (raw, rest) = Raw::read_from_prefix(owner).ok()?;
        let (kin, rest) = match raw.version.get() {
            VERSION => (RawKin::new_zeroed(), rest),
            VERSION_OF_DIRECTORY => {
                let (root, rest) = U64::read_from_prefix(rest).ok()?;
                (RawKin { root, ..RawKin::new_zeroed() }, rest)
            }
            VERSION_OF_KIN => RawKin::read_from_prefix(rest).ok()?,
            _ => return None,
        };
        let known = |number: U64| Some(number.get()).filter(|&number| number != 0);
        let (name, root) = match known(kin.root) {
            None => (rest, None),
            Some(inode) => {
                let (name, path) = rest.split_at(rest.iter().position(|&byte| byte == b'/')?);
                (name, Some(BranchRoot { inode, path: path.to_vec() }))
            }
        };
        Some(Self {
            name: String::from_utf8(name.to_vec()).ok().filter(|name| !name.is_empty())?,
            uid: raw.uid.get(),
            inode_from: raw.inode_from.get(),
            root,
            fork: known(kin.parent)
                .map(|parent| Fork { parent: TxnId(parent), operations: kin.parent_operations.get() }),
            merged: known(kin.merged).map(TxnId),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{BranchRecord, BranchRoot, Fork};
    use bytes::Bytes;
    use kvfs_store::TxnId;

    fn record(root: Option<BranchRoot>) -> BranchRecord {
        BranchRecord { name: "try".into(), uid: 1000, inode_from: 0x1234, root, fork: None, merged: None }
    }

    #[test]
    fn records_of_branches_have_these_bytes() {
        let record = record(None);
        let bytes = record.encode();
        assert_eq!(&bytes[..], b"\x01\0\0\0\xe8\x03\0\0\x34\x12\0\0\0\0\0\0try");
        assert_eq!(BranchRecord::decode(&bytes), Some(record));
        for bad in [&b""[..], b"me", &bytes[..16], b"\x04\0\0\0\xe8\x03\0\0\x34\x12\0\0\0\0\0\0try"] {
            assert_eq!(BranchRecord::decode(bad), None);
        }
    }

    #[test]
    fn records_of_branches_of_directories_have_these_bytes() {
        let root = Some(BranchRoot { inode: 0x56, path: b"/a/\xff".to_vec() });
        let record = record(root);
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

    #[test]
    fn records_of_branches_of_branches_have_these_bytes() {
        let fork = Some(Fork { parent: TxnId(5), operations: 0x678 });
        let of_all = BranchRecord { fork, ..record(None) };
        let begin = b"\x03\0\0\0\xe8\x03\0\0\x34\x12\0\0\0\0\0\0";
        let kin = |root: u64, parent: u64, operations: u64, merged: u64| {
            [root, parent, operations, merged].map(u64::to_le_bytes).concat()
        };
        let bytes = |kin: Vec<u8>, names: &[u8]| Bytes::from([begin, &kin[..], names].concat());
        assert_eq!(of_all.encode(), bytes(kin(0, 5, 0x678, 0), b"try"));
        let root = Some(BranchRoot { inode: 0x56, path: b"/a".to_vec() });
        let of_directory = BranchRecord { fork, merged: Some(TxnId(9)), ..record(root) };
        assert_eq!(of_directory.encode(), bytes(kin(0x56, 5, 0x678, 9), b"try/a"));
        let taken_into = BranchRecord { merged: Some(TxnId(9)), ..record(None) };
        for record in [of_all, of_directory, taken_into] {
            assert_eq!(BranchRecord::decode(&record.encode()), Some(record));
        }
        assert_eq!(BranchRecord::decode(&bytes(kin(0, 5, 0x678, 0), b"")), None);
        assert_eq!(BranchRecord::decode(&bytes(kin(0x56, 5, 0x678, 0), b"try")), None);
    }
}
