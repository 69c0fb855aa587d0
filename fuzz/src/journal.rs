//! The payload of a group of the journal.

use bytes::Bytes;

/// Reads every record of the input.
pub fn run(data: &[u8]) {
    kvfs_kvdb::fuzzing::read_journal_payload(&Bytes::copy_from_slice(data));
}
