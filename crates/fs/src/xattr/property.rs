//! How content is stored, and which project it counts for, as attributes that are not listed: tools that copy
//! attributes leave them alone.
//!
//! New files and directories take it over from their directory, and keep it wherever they are moved. What is
//! there already stays as it is until it is written again.

use bytes::Bytes;
use kvfs_store::{Batch, Compression, Store};

use super::{read_wants, wants};
use crate::node::{Node, NodeTable, Pin};
use crate::orphan::Orphans;
use crate::schema::{RowFlags, RowPatch};
use crate::view::{Locker, NodeWriter, Origin, Shared};
use crate::{Caller, FileSystem, FileType, FsError, Project, Result, XattrMode};

/// Its name. Its value is `none`, `lz4`, or `zstd:` with a level.
pub const COMPRESSION_ATTRIBUTE: &[u8] = b"kvfs.compression";

/// Its name. Its value is the number of a project, 0 for none, in decimal digits; of a directory that does not hand its
/// project down, followed by ` alone`.
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
    Err(FsError::NotSupported("only files and directories have a compression"))
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

/// How content of a view is stored.
pub(super) struct CompressionAttribute<'v> {
    origin: &'v Origin,
    nodes: &'v NodeTable,
    locker: Locker<'v>,
    orphans: Orphans<'v>,
    writer: NodeWriter<'v>,
    shared: &'v Shared,
    store: &'v dyn Store,
}

impl<'v> CompressionAttribute<'v> {
    pub(super) fn new(fs: &'v FileSystem) -> Self {
        Self {
            origin: &fs.origin,
            nodes: &fs.nodes,
            locker: fs.locker(),
            orphans: fs.orphans(),
            writer: fs.writer(),
            shared: &fs.shared,
            store: &*fs.store,
        }
    }

    /// The value of [`COMPRESSION_ATTRIBUTE`].
    pub(super) fn get(&self, caller: &Caller, node: &Pin<'_>) -> Result<Bytes> {
        has_content(node)?;
        self.locker.lock_read(caller, &read_wants(node.inode))?;
        let _settled = self.nodes.settled();
        let value = node.header().flags.compression().to_string();
        self.origin.confirm_read()?;
        Ok(value.into())
    }

    /// Sets it, for what is written from now on.
    pub(super) fn set(&self, caller: &Caller, node: &Pin<'_>, value: &[u8], mode: XattrMode) -> Result<()> {
        has_content(node)?;
        if mode == XattrMode::Create {
            return Err(FsError::Exists);
        }
        let words = std::str::from_utf8(value).ok().and_then(|text| text.trim_end().parse().ok());
        let compression: Compression =
            words.ok_or(FsError::Invalid("a compression is none, lz4, zstd or zstd:1 to zstd:19"))?;
        let gate = self.shared.quotas.gate(self.writer);
        let mut names = self.locker.latch(caller, &wants(node))?;
        self.orphans.give_row(&gate, &mut names, node)?;
        if node.header().flags.compression() == compression {
            return Ok(());
        }
        self.store.allow_compression()?;
        let patch = RowPatch::changed(self.shared.time());
        let patch = patch.with_flags(RowFlags::of_compression(compression), RowFlags::COMPRESSION);
        self.writer.apply_to_node(Batch::new(), node, &patch)?;
        Ok(())
    }
}
