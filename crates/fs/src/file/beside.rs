//! Content that is changed beside a kernel, which writes its pages of it back whole.
//!
//! A dirty page has bytes that its program has not changed, as they were when the kernel read it. What
//! another front end has changed of these since must not be taken back by it.
//!
//! Thread safety: an observer is called by any thread, with the changed bytes held, and holds nothing but its
//! own.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::Contents;
use super::write::{Writer, write_counted};
use crate::node::Pin;
use crate::schema::Header;
use crate::{Caller, FileSystem, NodeId, Result, WriteFlags, Written};

/// Is told of content that changes, for a kernel that may have pages of it.
pub trait ContentObserver: fmt::Debug + Send + Sync {
    /// These bytes of `node` have changed. Called while the operation still holds them: no other one has
    /// written them since, and each that has read them as they were has ended. Must neither wait nor use the
    /// file system.
    fn content_changed(&self, node: NodeId, bytes: Range<u64>);
}

/// Says which of these bytes were changed beside the kernel, which may have them as they were before:
/// ascending, and none touches the next one.
pub type ChangedBeside<'a> = &'a dyn Fn(Range<u64>) -> Vec<Range<u64>>;

/// As [`FileSystem::write`], of pages that a kernel writes back: bytes that were changed beside it stay as
/// they are, and so does the size where they go on behind it.
///
/// # Errors
/// As there.
pub fn write_pages(
    fs: &FileSystem,
    caller: &Caller,
    node: NodeId,
    offset: u64,
    data: Bytes,
    flags: WriteFlags,
    changed_beside: ChangedBeside<'_>,
) -> Result<Written> {
    write_counted(fs, &Writer::of_pages(fs, changed_beside), caller, (node, offset), data, flags)
}

impl Contents<'_> {
    /// What is left of `data`, which belongs at `offset`: with the content of now where that has `changed`.
    pub(super) fn without_changed(
        &self,
        node: &Pin<'_>,
        header: &Header,
        offset: u64,
        data: &[u8],
        changed: &[Range<u64>],
    ) -> Result<Bytes> {
        let mut left = data.to_vec();
        let end = offset + data.len() as u64;
        for bytes in changed {
            let (start, stop) = (bytes.start.max(offset), bytes.end.min(end));
            if start < stop {
                self.read_now(
                    node,
                    header,
                    start,
                    &mut left[(start - offset) as usize..(stop - offset) as usize],
                )?;
            }
        }
        if let Some(last) = changed.last().filter(|last| last.end >= end) {
            // The file may have been cut there.
            let end = header.size.max(last.start).clamp(offset, end);
            left.truncate((end - offset) as usize);
        }
        Ok(left.into())
    }

    /// Fills `buffer` with the content from `offset` on; zeros beyond the end.
    fn read_now(&self, node: &Pin<'_>, header: &Header, offset: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.fill(0);
        let len = header.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        if len > 0 {
            self.read_part(node, header, offset, len, &mut buffer[..len])?;
        }
        Ok(())
    }
}
