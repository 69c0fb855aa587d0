//! Keys of `LevelDB`: the number of the keyspace (big-endian `u32`, from 1 on), then the key. Number 0 is
//! what is of no keyspace.
//!
//! The number alone is a key, too, which is always there: the fence between two keyspaces. An iterator has no
//! bound, and walks over deleted keys to the next that is there; without fences a search in one keyspace
//! would walk over all that was deleted from the next.
//!
//! Thread safety: functions.

use kvfs_store::{Keyspace, KeyspaceKind};

/// Before each key (bytes).
pub(crate) const PREFIX_BYTES: usize = 4;

/// In number 0, before the numbers of keyspaces: their kinds and names.
const SPACE: &[u8] = b"space:";

const TUPLES: u8 = b't';
const BLOCKS: u8 = b'b';

/// What the keys of a keyspace begin with.
pub(crate) fn prefix(keyspace: Keyspace) -> [u8; PREFIX_BYTES] {
    (keyspace.0 + 1).to_be_bytes()
}

/// The first key that a keyspace can have: none is empty.
pub(crate) fn first(keyspace: Keyspace) -> Vec<u8> {
    join(prefix(keyspace), &[0])
}

/// What the keys of the next one begin with, behind all of this one.
pub(crate) fn prefix_behind(keyspace: Keyspace) -> [u8; PREFIX_BYTES] {
    (keyspace.0 + 2).to_be_bytes()
}

pub(crate) fn join(prefix: [u8; PREFIX_BYTES], key: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(PREFIX_BYTES + key.len());
    whole.extend_from_slice(&prefix);
    whole.extend_from_slice(key);
    whole
}

/// Of what is of no keyspace.
pub(crate) fn meta(key: &[u8]) -> Vec<u8> {
    join([0; PREFIX_BYTES], key)
}

/// Of the record of a keyspace.
pub(crate) fn space(keyspace: Keyspace) -> Vec<u8> {
    let mut key = meta(SPACE);
    key.extend_from_slice(&keyspace.0.to_be_bytes());
    key
}

/// The record of a keyspace.
pub(crate) fn space_record(name: &str, kind: KeyspaceKind) -> Vec<u8> {
    let kind = match kind {
        KeyspaceKind::Tuple => TUPLES,
        KeyspaceKind::Block => BLOCKS,
    };
    [&[kind], name.as_bytes()].concat()
}

/// What such a record says; `None`: it is damaged.
pub(crate) fn parse_space(record: &[u8]) -> Option<(String, KeyspaceKind)> {
    let (kind, name) = record.split_first()?;
    let kind = match *kind {
        TUPLES => KeyspaceKind::Tuple,
        BLOCKS => KeyspaceKind::Block,
        _ => return None,
    };
    Some((String::from_utf8(name.to_vec()).ok()?, kind))
}
