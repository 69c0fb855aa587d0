//! How content is stored, on which tier, and which project it counts for, as attributes that are not listed:
//! tools that copy attributes leave them alone.
//!
//! New files and directories take them over from their directory, and keep them wherever they are moved. What
//! is there already is compressed when it is written again, and goes to the wished tier when merges copy it.

use bytes::Bytes;
use kvfs_store::{Batch, Store, Tier};

use super::{read_wants, wants};
use crate::node::{Node, NodeTable, Pin};
use crate::orphan::Orphans;
use crate::schema::RowFlags;
use crate::view::{Locker, NodeWriter, Origin, Shared};
use crate::{Caller, FileSystem, FileType, FsError, Project, Result, XattrMode};

/// Its name. Its value is `none`, `lz4`, or `zstd:` with a level.
pub const COMPRESSION_ATTRIBUTE: &[u8] = b"kvfs.compression";

/// Its name. Its value is `fast`, `slow`, or `auto`: where the store decides.
pub const TIER_ATTRIBUTE: &[u8] = b"kvfs.tier";

/// Its name. Its value is what [`crate::FileAccesses::parse`] reads.
pub const ACCESSES_ATTRIBUTE: &[u8] = b"kvfs.accesses";

const NO_TIER: &str = "auto";

/// Its name. Its value is the number of a project, 0 for none, in decimal digits; of a directory that does
/// not hand its project down, followed by ` alone`.
pub const PROJECT_ATTRIBUTE: &[u8] = b"kvfs.project";

const ALONE: &str = " alone";

fn parse_project(value: &[u8]) -> Option<Project> {
    let text = std::str::from_utf8(value).ok()?.trim_end();
    let (digits, hands_down) = text.strip_suffix(ALONE).map_or((text, true), |digits| (digits, false));
    let id = digits.parse().ok()?;
    Some(Project { id, hands_down: hands_down && id != 0 })
}

fn has_content(node: &Node) -> Result<()> {
    if matches!(node.kind, FileType::Directory | FileType::Regular) {
        return Ok(());
    }
    Err(FsError::NotSupported("only files and directories have a compression and a tier"))
}

/// The value of [`PROJECT_ATTRIBUTE`].
pub(super) fn project_text(project: Project, kind: FileType) -> Bytes {
    let Project { id, hands_down } = project;
    let is_alone = id != 0 && !hands_down && kind == FileType::Directory;
    format!("{id}{}", if is_alone { ALONE } else { "" }).into()
}

/// The project that a value of [`PROJECT_ATTRIBUTE`] means, which every file has.
pub(super) fn project_of(value: &[u8], mode: XattrMode) -> Result<Project> {
    if mode == XattrMode::Create {
        return Err(FsError::Exists);
    }
    parse_project(value).ok_or(FsError::Invalid("a project is a number below 2^32"))
}

/// How content is stored, or where: a part of the flags of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    Compression,
    Tier,
}

impl Storage {
    pub(super) fn by_name(name: &[u8]) -> Option<Self> {
        match name {
            COMPRESSION_ATTRIBUTE => Some(Self::Compression),
            TIER_ATTRIBUTE => Some(Self::Tier),
            _ => None,
        }
    }

    /// The value that stands for nothing being set.
    pub(super) fn unset(self) -> &'static [u8] {
        match self {
            Self::Compression => b"none",
            Self::Tier => NO_TIER.as_bytes(),
        }
    }

    /// The flags of it.
    fn mask(self) -> RowFlags {
        match self {
            Self::Compression => RowFlags::COMPRESSION,
            Self::Tier => RowFlags::TIER,
        }
    }

    /// The value that a row with these flags has.
    pub(crate) fn value(self, flags: RowFlags) -> String {
        match self {
            Self::Compression => flags.compression().to_string(),
            Self::Tier => flags.tier().map_or_else(|| NO_TIER.to_owned(), |tier| tier.to_string()),
        }
    }

    /// The flags of a value.
    fn parse(self, value: &[u8]) -> Result<RowFlags> {
        let words = std::str::from_utf8(value).ok().map(str::trim_end);
        match self {
            Self::Compression => {
                let compression = words.and_then(|words| words.parse().ok());
                compression
                    .map(RowFlags::of_compression)
                    .ok_or(FsError::Invalid("a compression is none, lz4, zstd or zstd:1 to zstd:19"))
            }
            Self::Tier if words == Some(NO_TIER) => Ok(RowFlags::of_tier(None)),
            Self::Tier => {
                let tier: Option<Tier> = words.and_then(|words| words.parse().ok());
                let tier = tier.ok_or(FsError::Invalid("a tier is fast, slow or auto"))?;
                Ok(RowFlags::of_tier(Some(tier)))
            }
        }
    }
}

/// How content of a view is stored, and where.
pub(super) struct StorageAttribute<'v> {
    what: Storage,
    origin: &'v Origin,
    nodes: &'v NodeTable,
    locker: Locker<'v>,
    orphans: Orphans<'v>,
    writer: NodeWriter<'v>,
    shared: &'v Shared,
    store: &'v dyn Store,
}

impl<'v> StorageAttribute<'v> {
    pub(super) fn new(fs: &'v FileSystem, what: Storage) -> Self {
        Self {
            what,
            origin: &fs.origin,
            nodes: &fs.nodes,
            locker: fs.locker(),
            orphans: fs.orphans(),
            writer: fs.writer(),
            shared: &fs.shared,
            store: &*fs.store,
        }
    }

    /// The value of the attribute.
    pub(super) fn get(&self, caller: &Caller, node: &Pin<'_>) -> Result<Bytes> {
        has_content(node)?;
        self.locker.lock_read(caller, &read_wants(node.inode))?;
        let _settled = self.nodes.settled(node);
        let value = self.what.value(node.header().flags);
        self.origin.confirm_read()?;
        Ok(value.into())
    }

    /// Sets it: a compression for what is written from now on, a tier for what is there, too.
    pub(super) fn set(&self, caller: &Caller, node: &Pin<'_>, value: &[u8], mode: XattrMode) -> Result<()> {
        has_content(node)?;
        if mode == XattrMode::Create {
            return Err(FsError::Exists);
        }
        let (mask, wanted) = (self.what.mask(), self.what.parse(value)?);
        let gate = self.shared.quotas.gate(self.writer);
        let mut names = self.locker.latch(caller, &wants(node))?;
        self.orphans.give_row(&gate, &mut names, node)?;
        if RowFlags(node.header().flags.0 & mask.0) == wanted && self.locker.may_skip_equal() {
            return Ok(());
        }
        let mut batch = Batch::new();
        match self.what {
            Storage::Compression if wanted != RowFlags::default() => self.store.allow_compression()?,
            Storage::Tier if node.kind == FileType::Regular => {
                self.shared.tiers.stage(&mut batch, node.inode, wanted.tier())?;
            }
            Storage::Compression | Storage::Tier => {}
        }
        let patch = names.changed(node)?.with_flags(wanted, mask);
        self.writer.apply_to_node(batch, node, &patch)?;
        Ok(())
    }
}
