//! Rows: what is stored under a name, or as an inode's own row.
//!
//! A row is a tag byte, then: an [`Header`] and inline content (file, or directory's own row), or a
//! reference to a directory (inode, subtree, label), or a link to an inode's own row (inode, type).

use std::mem::offset_of;

use bytes::Bytes;
use kvfs_store::{Compression, Tier};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::is_inode;
use super::{Placement, check_name};
use crate::{Attr, FileType, FsError, Project, Result, Timestamp};

/// Tag of a row with attributes. The numbers carry the row format's version: a new layout gets a new tag.
const TAG_INODE: u8 = 0x11;
/// Tag of a reference to a directory.
const TAG_DIRECTORY: u8 = 0x12;
/// Tag of a link to an inode's own row.
const TAG_LINK: u8 = 0x13;

const BLOCK_512_PER_BLOCK: u64 = (kvfs_store::BLOCK_BYTES / 512) as u64;

/// Facts about an inode that spare looking elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RowFlags(pub(crate) u16);

impl RowFlags {
    /// The content is in blocks, not in the row.
    pub(crate) const BLOCKS: Self = Self(1);
    /// Blocks below the size may be absent, or blocks beyond it present. Without this flag exactly the
    /// blocks below the size are present.
    pub(crate) const SPARSE: Self = Self(2);
    /// The inode has (or had) extended attributes.
    pub(crate) const XATTRS: Self = Self(4);
    /// An orphan that may be given a name (`O_TMPFILE` without `O_EXCL`).
    pub(crate) const LINKABLE: Self = Self(8);
    /// It has an access-control list beyond its permission bits.
    pub(crate) const ACCESS_ACL: Self = Self(16);
    /// A directory with a list that it hands down.
    pub(crate) const DEFAULT_ACL: Self = Self(32);
    /// A directory that hands its project down to what is made in it.
    pub(crate) const HANDS_PROJECT_DOWN: Self = Self(64);

    /// How content is to be stored, and in a directory that of new files.
    pub(crate) const COMPRESSION: Self = Self(0x3f00);
    /// On which tier content is wished to lie, and in a directory that of new files: the code of a tier, 0
    /// for none.
    pub(crate) const TIER: Self = Self(0xc000);
    /// What new files and directories take over from their directory.
    pub(crate) const HANDED_DOWN: Self = Self(Self::COMPRESSION.0 | Self::TIER.0);

    pub(crate) fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    /// The flag of a compression.
    pub(crate) fn of_compression(compression: Compression) -> Self {
        Self(u16::from(compression.code()) << 8)
    }

    /// How content is to be stored. A code of a later version is none.
    pub(crate) fn compression(self) -> Compression {
        Compression::from_code(((self.0 & Self::COMPRESSION.0) >> 8) as u8).unwrap_or_default()
    }

    /// The flag of a wish for a tier.
    pub(crate) fn of_tier(tier: Option<Tier>) -> Self {
        Self(tier.map_or(0, |tier| u16::from(tier.code()) << 14))
    }

    /// On which tier content is wished to lie; `None`: where the store decides.
    pub(crate) fn tier(self) -> Option<Tier> {
        Tier::from_code((self.0 >> 14) as u8)
    }

    /// These alone.
    pub(crate) fn only(self, flags: Self) -> Self {
        Self(self.0 & flags.0)
    }

    /// All others.
    pub(crate) fn without(self, flag: Self) -> Self {
        Self(self.0 & !flag.0)
    }
}

impl std::ops::BitOr for RowFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTime {
    seconds: I64,
    nanos: U32,
}

impl From<Timestamp> for RawTime {
    fn from(time: Timestamp) -> Self {
        Self { seconds: I64::new(time.seconds), nanos: U32::new(time.nanos) }
    }
}

impl From<RawTime> for Timestamp {
    fn from(raw: RawTime) -> Self {
        Self { seconds: raw.seconds.get(), nanos: raw.nanos.get() }
    }
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    tag: u8,
    kind: u8,
    flags: U16,
    mode: U32,
    uid: U32,
    gid: U32,
    nlink: U32,
    rdev: U32,
    inode: U64,
    size: U64,
    blocks: U64,
    parent: U64,
    atime: RawTime,
    mtime: RawTime,
    ctime: RawTime,
    btime: RawTime,
}

const _: () = assert!(size_of::<RawHeader>() == 104);

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawDirectoryLink {
    tag: u8,
    inode: U64,
    subtree: U64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawInodeLink {
    tag: u8,
    kind: u8,
    inode: U64,
}

/// Attributes as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Inode number.
    pub(crate) inode: u64,
    /// Kind.
    pub(crate) kind: FileType,
    /// See [`RowFlags`].
    pub(crate) flags: RowFlags,
    /// Permission bits (`07777`).
    pub(crate) mode: u32,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Number of names; for directories 2 + number of subdirectories.
    pub(crate) nlink: u32,
    /// Device number; 0 but for devices, in whose place others have their project.
    pub(crate) rdev: u32,
    /// Project that it is counted for; 0: none.
    pub(crate) project: u32,
    /// Bytes; for directories the number of entries.
    pub(crate) size: u64,
    /// Blocks present, of 4 KiB. Without [`RowFlags::SPARSE`] it follows from the size.
    pub(crate) blocks: u64,
    /// Directories: inode of the parent; else 0.
    pub(crate) parent: u64,
    /// Times.
    pub(crate) atime: Timestamp,
    /// Last change of the content.
    pub(crate) mtime: Timestamp,
    /// Last change.
    pub(crate) ctime: Timestamp,
    /// Creation.
    pub(crate) btime: Timestamp,
}

/// Bytes of an encoded [`Header`].
pub(crate) const HEADER_LEN: usize = size_of::<RawHeader>();

impl Header {
    /// A new inode of now.
    pub(crate) fn new(inode: u64, kind: FileType, now: Timestamp) -> Self {
        Self {
            inode,
            kind,
            flags: RowFlags::default(),
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            project: 0,
            size: 0,
            blocks: 0,
            parent: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        }
    }

    /// Whether anything of the inode is, or was, stored beside its row.
    pub(crate) fn has_more_than_its_row(&self) -> bool {
        self.flags.has(RowFlags::BLOCKS | RowFlags::XATTRS | RowFlags::TIER)
    }

    /// Whether the content is in the row.
    pub(crate) fn is_inline(&self) -> bool {
        !self.flags.has(RowFlags::BLOCKS)
    }

    /// The attributes that users see.
    pub(crate) fn attr(&self) -> Attr {
        let blocks = match self.kind {
            FileType::Regular if self.is_inline() => self.size.div_ceil(512),
            FileType::Regular => self.blocks.saturating_mul(BLOCK_512_PER_BLOCK),
            _ => 0,
        };
        Attr {
            inode: self.inode,
            kind: self.kind,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.size,
            blocks,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
        }
    }

    /// What it is counted for, and hands down.
    pub(crate) fn project(&self) -> Project {
        Project { id: self.project, hands_down: self.flags.has(RowFlags::HANDS_PROJECT_DOWN) }
    }

    /// The same with another project.
    pub(crate) fn with_project(mut self, project: Project) -> Self {
        let flag = if project.hands_down { RowFlags::HANDS_PROJECT_DOWN } else { RowFlags::default() };
        self.flags = self.flags.without(RowFlags::HANDS_PROJECT_DOWN) | flag;
        self.project = project.id;
        self
    }

    fn raw(&self) -> RawHeader {
        // A row has no field of its own for the project: only devices have a number, and they have no blocks.
        let (rdev, blocks) = match self.kind {
            FileType::CharDevice | FileType::BlockDevice => (self.rdev, u64::from(self.project)),
            _ => (self.project, self.blocks),
        };
        RawHeader {
            tag: TAG_INODE,
            kind: self.kind as u8,
            flags: U16::new(self.flags.0),
            mode: U32::new(self.mode),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            nlink: U32::new(self.nlink),
            rdev: U32::new(rdev),
            inode: U64::new(self.inode),
            size: U64::new(self.size),
            blocks: U64::new(blocks),
            parent: U64::new(self.parent),
            atime: self.atime.into(),
            mtime: self.mtime.into(),
            ctime: self.ctime.into(),
            btime: self.btime.into(),
        }
    }

    fn from_raw(raw: &RawHeader) -> Option<Self> {
        let kind = FileType::from_d_type(raw.kind)?;
        let (rdev, project, blocks) = match kind {
            FileType::CharDevice | FileType::BlockDevice => (raw.rdev.get(), raw.blocks.get() as u32, 0),
            _ => (0, raw.rdev.get(), raw.blocks.get()),
        };
        Some(Self {
            inode: raw.inode.get(),
            kind,
            flags: RowFlags(raw.flags.get()),
            mode: raw.mode.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            nlink: raw.nlink.get(),
            rdev,
            project,
            size: raw.size.get(),
            blocks,
            parent: raw.parent.get(),
            atime: raw.atime.into(),
            mtime: raw.mtime.into(),
            ctime: raw.ctime.into(),
            btime: raw.btime.into(),
        })
    }
}

/// A decoded row; content is borrowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Row<'a> {
    /// Attributes and inline content (or the target of a symbolic link).
    Inode(Header, &'a [u8]),
    /// The entry is a directory.
    Directory {
        /// Its inode.
        inode: u64,
        /// Where its rows are.
        placement: Placement,
    },
    /// The entry is one of several names of a file.
    Link {
        /// Its inode; the row is under its own subtree.
        inode: u64,
        /// Its kind, for listings.
        kind: FileType,
    },
}

impl<'a> Row<'a> {
    /// Decodes a row; `None` when it is no row.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        Self::parse_numbered(bytes).filter(|row| is_inode(row.inode()))
    }

    /// Whatever the number is.
    fn parse_numbered(bytes: &'a [u8]) -> Option<Self> {
        match *bytes.first()? {
            TAG_INODE => {
                let (raw, content) = RawHeader::ref_from_prefix(bytes).ok()?;
                Some(Self::Inode(Header::from_raw(raw)?, content))
            }
            TAG_DIRECTORY => {
                let (raw, label) = RawDirectoryLink::ref_from_prefix(bytes).ok()?;
                let label = Bytes::copy_from_slice(label);
                let placement = Placement { subtree: raw.subtree.get(), label };
                Some(Self::Directory { inode: raw.inode.get(), placement })
            }
            TAG_LINK => {
                let raw = RawInodeLink::ref_from_bytes(bytes).ok()?;
                Some(Self::Link { inode: raw.inode.get(), kind: FileType::from_d_type(raw.kind)? })
            }
            _ => None,
        }
    }

    /// Decodes the row under `key`, and refuses a name that no entry may have: programs and front ends take
    /// names as they are, and one with a `/` leads elsewhere.
    pub(crate) fn decode(key: &[u8], bytes: &'a [u8]) -> Result<Self> {
        let corrupt = |detail| FsError::corrupt(format!("row {}", key.escape_ascii()), detail);
        let row = Self::parse(bytes).ok_or_else(|| {
            corrupt(format!("{} bytes with tag {:?} are no row", bytes.len(), bytes.first()))
        })?;
        if let Some((_, name)) = Placement::parse_key(key).filter(|(_, name)| !name.is_empty()) {
            check_name(name).map_err(|error| corrupt(error.to_string()))?;
        }
        match &row {
            // Else what is in it could have keys that are none of a row.
            Self::Directory { inode, placement } if *placement != Placement::own_subtree(*inode) => {
                Err(corrupt(format!("inode {inode} is not its own subtree")))
            }
            _ => Ok(row),
        }
    }

    /// Decodes an own row (or orphan row), which must hold the attributes of `inode`.
    pub(crate) fn decode_own(inode: u64, bytes: &'a [u8]) -> Result<(Header, &'a [u8])> {
        match Self::parse(bytes) {
            Some(Self::Inode(header, content)) if header.inode == inode => Ok((header, content)),
            other => {
                Err(FsError::corrupt(format!("own row of inode {inode}"), format!("it holds {other:?}")))
            }
        }
    }

    /// Inode that the row is, or refers to.
    pub(crate) fn inode(&self) -> u64 {
        match self {
            Self::Inode(header, _) => header.inode,
            Self::Directory { inode, .. } | Self::Link { inode, .. } => *inode,
        }
    }

    /// Kind of that inode.
    pub(crate) fn kind(&self) -> FileType {
        match self {
            Self::Inode(header, _) => header.kind,
            Self::Directory { .. } => FileType::Directory,
            Self::Link { kind, .. } => *kind,
        }
    }
}

/// How the inline content in a row is to be stored; cheap, since merges ask it of every row.
pub(crate) fn row_compression(bytes: &[u8]) -> Compression {
    let flags = offset_of!(RawHeader, flags);
    match bytes {
        [TAG_INODE, ..] if bytes.len() > HEADER_LEN => {
            RowFlags(u16::from_le_bytes([bytes[flags], bytes[flags + 1]])).compression()
        }
        _ => Compression::None,
    }
}

/// Encodes attributes and inline content.
pub(crate) fn encode_row(header: &Header, content: &[u8]) -> Bytes {
    let mut row = Vec::with_capacity(HEADER_LEN + content.len());
    row.extend_from_slice(header.raw().as_bytes());
    row.extend_from_slice(content);
    row.into()
}

/// Encodes a reference to a directory.
pub(crate) fn encode_directory_link(inode: u64, placement: &Placement) -> Bytes {
    let raw =
        RawDirectoryLink { tag: TAG_DIRECTORY, inode: U64::new(inode), subtree: U64::new(placement.subtree) };
    let mut row = raw.as_bytes().to_vec();
    row.extend_from_slice(&placement.label);
    row.into()
}

/// Encodes a link to an inode's own row.
pub(crate) fn encode_inode_link(inode: u64, kind: FileType) -> Bytes {
    let raw = RawInodeLink { tag: TAG_LINK, kind: kind as u8, inode: U64::new(inode) };
    Bytes::copy_from_slice(raw.as_bytes())
}
