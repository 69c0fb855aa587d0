//! `copy_file_range`: a large aligned range that goes behind the end of a file is cloned where the engine can
//! do that (`clone_range`), all others are copied.

use bytes::Bytes;

use super::clone_range::{RangeCloner, Ranges};
use super::end_of;
use super::read::read_uncounted;
use super::write::Writer;
use crate::attr::PrivilegeLoss;
use crate::{Caller, FileSystem, FsError, NodeId, Result, WriteFlags, Written};

/// Bytes copied by one call; the caller goes on.
const COPY_LEN_MAX: u64 = 4 << 20;

impl FileSystem {
    /// Copies up to `length` bytes between files; may copy less, like the system call: at most 4 MiB, unless
    /// they can be cloned. What is copied is one atomic write, which takes set-id bits away as the caller's
    /// credentials say.
    ///
    /// # Errors
    /// `Invalid` for overlapping ranges of one file; else as reading and writing.
    pub fn copy_file_range(
        &self,
        caller: &Caller,
        source: NodeId,
        source_offset: u64,
        target: NodeId,
        target_offset: u64,
        length: u64,
    ) -> Result<Written> {
        // What the source does not have is in no range's way.
        let available = self.locker().pin_file(source)?.header().size.saturating_sub(source_offset);
        let length = length.min(available);
        let (source_end, target_end) = (source_offset + length, end_of(target_offset, length)?);
        if source == target && source_offset < target_end && target_offset < source_end {
            return Err(FsError::Invalid("overlapping ranges of one file"));
        }
        let ranges = Ranges { source: source_offset, target: target_offset, len: length };
        if let Some(cloned) = RangeCloner::new(self).clone_range(caller, source, target, ranges)? {
            return Ok(cloned);
        }
        let length = length.min(COPY_LEN_MAX) as usize;
        let mut buffer = vec![0; length];
        let length = read_uncounted(self, caller, source, source_offset, &mut buffer)?;
        buffer.truncate(length);
        let (data, flags) = (Bytes::from(buffer), WriteFlags::default());
        let (writer, place) = (Writer::new(self), (target, target_offset));
        writer.write(&self.gate(), caller, place, data, flags, PrivilegeLoss::AsCaller)
    }
}
