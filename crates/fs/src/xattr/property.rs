//! How content is stored, as an attribute that is not listed: tools that copy attributes leave it alone.
//!
//! New files and directories take it over from their directory, and keep it wherever they are moved. What is
//! there already stays as it is until it is written again.

use bytes::Bytes;
use kvfs_store::{Batch, Compression};

use super::{read_wants, wants};
use crate::node::{Node, Pin};
use crate::schema::{RowFlags, RowPatch};
use crate::{Caller, FileSystem, FileType, FsError, Result, XattrMode};

/// Its name. Its value is `none`, `lz4`, or `zstd:` with a level.
pub const COMPRESSION_ATTRIBUTE: &[u8] = b"kvfs.compression";

fn has_content(node: &Node) -> Result<()> {
    if matches!(node.kind, FileType::Directory | FileType::Regular) {
        return Ok(());
    }
    Err(FsError::NotSupported("only files and directories have a compression"))
}

impl FileSystem {
    pub(super) fn compression_of(&self, caller: &Caller, node: &Pin<'_>) -> Result<Bytes> {
        has_content(node)?;
        self.lock_read(caller, &read_wants(node.inode))?;
        let _settled = self.nodes.settled();
        let value = node.header().flags.compression().to_string();
        self.confirm_read()?;
        Ok(value.into())
    }

    pub(super) fn set_compression_of(
        &self,
        caller: &Caller,
        node: &Pin<'_>,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        has_content(node)?;
        if mode == XattrMode::Create {
            return Err(FsError::Exists);
        }
        let words = std::str::from_utf8(value).ok().and_then(|text| text.trim_end().parse().ok());
        let compression: Compression =
            words.ok_or(FsError::Invalid("a compression is none, lz4, zstd or zstd:1 to zstd:19"))?;
        let _guard = self.latch(caller, &wants(node))?;
        if node.header().flags.compression() == compression {
            return Ok(());
        }
        self.store.allow_compression()?;
        let patch = RowPatch::changed(self.now());
        let patch = patch.with_flags(RowFlags::of_compression(compression), RowFlags::COMPRESSION);
        self.apply_to_node(Batch::new(), node, &patch)?;
        Ok(())
    }
}
