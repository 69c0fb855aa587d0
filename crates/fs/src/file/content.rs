//! What content is made of, for operations of a view: rows and blocks that are read, changes that are staged.

use kvfs_store::Read;

use crate::node::Pin;
use crate::provenance::Provenance;
use crate::schema::{Keyspaces, Row};
use crate::{FileSystem, FileType, FsError, Result};

/// Reads content of files as a view sees it, and stages changes of it. Takes no latch and applies nothing:
/// the operation that uses it must hold the names.
pub(crate) struct Contents<'v> {
    pub(super) read: &'v dyn Read,
    pub(super) keyspaces: Keyspaces,
    pub(super) inline_len_max: u32,
    /// Whether a block can be changed in part without being read.
    pub(super) patches_blindly: bool,
    pub(super) provenance: &'v Provenance,
}

impl<'v> Contents<'v> {
    /// Content as this view sees it.
    pub(crate) fn new(fs: &'v FileSystem) -> Self {
        Self {
            read: fs.origin.read(),
            keyspaces: fs.keyspaces,
            inline_len_max: fs.shared.superblock.inline_len_max(),
            patches_blindly: fs.origin.patches_blindly(),
            provenance: &fs.shared.provenance,
        }
    }

    /// The inline content of a file or the target of a symbolic link, as stored. Latches on its row (all
    /// attributes or blocks) are held, or it is known not to change.
    pub(crate) fn inline_content(&self, node: &Pin<'_>) -> Result<bytes::Bytes> {
        let header = node.header();
        let has_content = matches!(node.kind, FileType::Regular | FileType::Symlink);
        if !has_content || !header.is_inline() || header.size == 0 {
            return Ok(bytes::Bytes::new());
        }
        if let Some(content) = node.content_to_read() {
            return Ok(content);
        }
        let (keyspace, key) = node.row_address(&self.keyspaces);
        let bytes = self.read.get(keyspace, &key)?.ok_or_else(|| {
            FsError::corrupt(format!("inode {}", node.inode), format!("no row under {}", key.escape_ascii()))
        })?;
        let (_, content) = Row::decode_own(node.inode, &bytes)?;
        Ok(bytes.slice_ref(content))
    }
}
