//! The file system's own record: format version, fixed choices, inode numbers given out.

use bytes::Bytes;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{FsError, INLINE_LEN_LIMIT, INODE_MAX, MkfsOptions, Result};

const MAGIC: [u8; 8] = *b"kvfs-fs\0";
const VERSION: u32 = 1;

/// Of a store that has, or had, quotas: a kvfs that does not know of them must not change its files.
const VERSION_WITH_QUOTAS: u32 = 2;

/// Of a store that has, or had, projects, which are counted and handed down; it may have quotas, too.
const VERSION_WITH_PROJECTS: u32 = 3;

/// First inode number for files; the lower ones are reserved.
const INODE_FIRST: u64 = 16;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    inline_len_max: U32,
    inode_next: U64,
}

const _: () = assert!(size_of::<Raw>() == 24);

/// The decoded record. It is put whole under one key, by the thread that reserves inode numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Largest content kept in a row (bytes).
    pub(crate) inline_len_max: u32,
    /// Every inode number from here on is unused.
    pub(crate) inode_next: u64,
    /// Usage is counted, or was once, or may have been.
    pub(crate) has_quotas: bool,
    /// Something has a project, or had one.
    pub(crate) has_projects: bool,
}

/// Refuses a threshold that no store has.
pub(crate) fn check_inline_len_max(bytes: u32) -> Result<()> {
    if bytes > INLINE_LEN_LIMIT {
        return Err(FsError::Invalid("the inline threshold is at most 65536 bytes"));
    }
    Ok(())
}

impl Superblock {
    pub(crate) fn new(options: &MkfsOptions) -> Result<Self> {
        check_inline_len_max(options.inline_len_max)?;
        let (inline_len_max, inode_next) = (options.inline_len_max, INODE_FIRST);
        Ok(Self { inline_len_max, inode_next, has_quotas: false, has_projects: false })
    }

    pub(crate) fn encode(self) -> Bytes {
        let version = match (self.has_projects, self.has_quotas) {
            (true, _) => VERSION_WITH_PROJECTS,
            (false, true) => VERSION_WITH_QUOTAS,
            (false, false) => VERSION,
        };
        let raw = Raw {
            magic: MAGIC,
            version: U32::new(version),
            inline_len_max: U32::new(self.inline_len_max),
            inode_next: U64::new(self.inode_next),
        };
        Bytes::copy_from_slice(raw.as_bytes())
    }

    /// Whether it is such a record, perhaps of another version, and not a damaged one.
    pub(crate) fn bears_signature(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let raw = Raw::read_from_bytes(bytes)
            .map_err(|_| FsError::corrupt("file-system superblock", format!("{} bytes long", bytes.len())))?;
        if raw.magic != MAGIC {
            return Err(FsError::Format("the store holds no kvfs file system; run `kvfs mkfs`".into()));
        }
        let (has_quotas, has_projects) = match raw.version.get() {
            VERSION => (false, false),
            VERSION_WITH_QUOTAS => (true, false),
            VERSION_WITH_PROJECTS => (true, true),
            version => {
                return Err(FsError::Format(format!(
                    "file-system format {version} is none of {VERSION} to {VERSION_WITH_PROJECTS}, which this kvfs knows; use a matching \
                     kvfs"
                )));
            }
        };
        let (inline_len_max, inode_next) = (raw.inline_len_max.get(), raw.inode_next.get());
        if inline_len_max > INLINE_LEN_LIMIT || inode_next > INODE_MAX {
            return Err(FsError::corrupt(
                "file-system superblock",
                format!("the inline threshold is {inline_len_max}, and the next inode number {inode_next}"),
            ));
        }
        Ok(Self { inline_len_max, inode_next, has_quotas, has_projects })
    }
}
