//! Reading.

use bytes::Bytes;
use kvfs_store::BLOCK_BYTES;
use kvfs_txn::Want;

use super::accesses::AccessKind;
use super::{BLOCK, Contents, all_blocks, blocks_name};
use crate::attr::AccessTimes;
use crate::node::{NodeTable, Pin};
use crate::scan::Foresight;
use crate::schema::{Header, block_prefix};
use crate::view::{Locker, Origin};
use crate::{Caller, FileSystem, FsError, NodeId, Result};

impl FileSystem {
    /// Fills `buffer` from `offset` on; returns the bytes read, short only at the end of the file. Sees each
    /// write wholly or not at all. Fastest when `offset` and the buffer's length are multiples of 4096.
    ///
    /// # Errors
    /// `IsDirectory`, store errors.
    pub fn read(&self, caller: &Caller, node: NodeId, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let length = read_uncounted(self, caller, node, offset, buffer)?;
        let now = self.shared.clock.monotonic();
        self.shared.accesses.note(node.0, AccessKind::Read, offset, length as u64, now);
        Ok(length)
    }
}

/// As [`FileSystem::read`], of which no access is counted.
pub(super) fn read_uncounted(
    fs: &FileSystem,
    caller: &Caller,
    node: NodeId,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize> {
    let reader = Reader::new(fs);
    let node = reader.locker.pin_file(node)?;
    let length = reader.read(caller, &node, offset, buffer)?;
    if length > 0 {
        // It may write, and so wait for space, which commits and writers need not wait for.
        AccessTimes::new(fs).note(caller, &node);
    }
    Ok(length)
}

/// Reads content for operations that hold no names yet.
pub(crate) struct Reader<'v> {
    origin: &'v Origin,
    nodes: &'v NodeTable,
    locker: Locker<'v>,
    contents: Contents<'v>,
    foresight: Foresight<'v>,
}

impl<'v> Reader<'v> {
    /// That of this view.
    pub(crate) fn new(fs: &'v FileSystem) -> Self {
        Self {
            origin: &fs.origin,
            nodes: &fs.nodes,
            locker: fs.locker(),
            contents: Contents::new(fs),
            foresight: Foresight::new(fs),
        }
    }

    /// As [`FileSystem::read`], without the access time.
    fn read(&self, caller: &Caller, node: &Pin<'_>, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let _settled = self.nodes.settled(node);
        if offset >= node.header().size || buffer.is_empty() {
            return Ok(0);
        }
        let end = offset.saturating_add(buffer.len() as u64);
        let _names =
            self.locker.latch_to_read(caller, &[Want::shared(blocks_name(node.inode, offset, end))])?;
        let header = node.header();
        let length = header.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        if length == 0 {
            return Ok(0);
        }
        let is_inline = header.is_inline();
        if !is_inline
            && offset == 0
            && let Some(directory) = node.parent_inode()
        {
            self.foresight.reads(directory, node.inode);
        }
        self.contents.read_part(node, &header, offset, length, buffer)?;
        if is_inline && offset + length as u64 == header.size {
            // A reader that has read to the end keeps the content itself: the kernel in its page cache.
            self.nodes.drop_content(node);
        }
        self.origin.confirm_read()?;
        Ok(length)
    }

    /// Inline content or the target of a link.
    pub(crate) fn content(&self, caller: &Caller, node: &Pin<'_>) -> Result<Bytes> {
        let _settled = self.nodes.settled(node);
        let _names = self.locker.latch_to_read(caller, &[Want::shared(all_blocks(node.inode))])?;
        let content = self.contents.inline_content(node)?;
        self.origin.confirm_read()?;
        Ok(content)
    }
}

impl Contents<'_> {
    /// Reads `length` bytes, which lie before the end of the file; uses the rest of `buffer` as room for
    /// whole blocks.
    pub(super) fn read_part(
        &self,
        node: &Pin<'_>,
        header: &Header,
        offset: u64,
        length: usize,
        buffer: &mut [u8],
    ) -> Result<()> {
        if !header.is_inline() {
            return self.read_blocks(node.inode, offset, length, buffer);
        }
        let (content, start) = (self.inline_content(node)?, offset as usize);
        let Some(wanted) = content.get(start..start + length) else {
            return Err(FsError::corrupt(
                format!("inode {}", node.inode),
                format!("{} bytes of inline content, size {}", content.len(), header.size),
            ));
        };
        buffer[..length].copy_from_slice(wanted);
        Ok(())
    }

    /// The same, of a file with blocks.
    fn read_blocks(&self, inode: u64, offset: u64, length: usize, buffer: &mut [u8]) -> Result<()> {
        let (prefix, data) = (block_prefix(inode), self.keyspaces.data);
        let first = offset / BLOCK;
        let skew = (offset % BLOCK) as usize;
        let whole = (skew + length).next_multiple_of(BLOCK_BYTES);
        if skew == 0 && whole <= buffer.len() {
            return Ok(self.read.read_blocks(data, &prefix, first, &mut buffer[..whole])?);
        }
        // One read at one position, so that no write is seen in part.
        let mut blocks = vec![0; whole];
        self.read.read_blocks(data, &prefix, first, &mut blocks)?;
        buffer[..length].copy_from_slice(&blocks[skew..skew + length]);
        Ok(())
    }
}
