//! Entries of directories as getdents64(2) has them.
//!
//! Thread safety: functions.

use kvfs_fs::DirEntry;

/// Bytes of a record in front of the name: inode number, offset, length of the record, type.
const HEAD_BYTES: usize = 19;

/// Writes a record; returns its length, or none if it does not fit.
pub(crate) fn put(entry: &DirEntry<'_>, space: &mut [u8]) -> Option<usize> {
    // A zero behind the name; eight bytes, so that the next one is aligned.
    let len = (HEAD_BYTES + entry.name.len() + 1).next_multiple_of(8);
    let record = space.get_mut(..len)?;
    record.fill(0);
    record[..8].copy_from_slice(&entry.inode.to_ne_bytes());
    record[8..16].copy_from_slice(&entry.offset.to_ne_bytes());
    record[16..18].copy_from_slice(&(len as u16).to_ne_bytes());
    // The types of directory entries are those of modes, shifted.
    record[18] = (entry.kind.mode_bits() >> 12) as u8;
    record[HEAD_BYTES..HEAD_BYTES + entry.name.len()].copy_from_slice(entry.name);
    Some(len)
}
