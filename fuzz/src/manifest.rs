//! The edits of a manifest.

/// Decodes edits and applies them, as an opening does; what was decoded is what is encoded again.
pub fn run(data: &[u8]) {
    kvfs_kvdb::fuzzing::read_manifest_edits(data);
}
