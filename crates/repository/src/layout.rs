//! Names of objects.
//!
//! Thread safety: plain values. Invariant: a name has one meaning, and says nothing of the content but for
//! its hash, which has a key where the repository has one.

use std::fmt;

use kvfs_fs::transfer::StreamId;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::chunks;

/// What says that there is a repository, and how it is encrypted.
pub(crate) const CONFIG: &str = "kvfs-repository";
/// Manifests, by the identity of the stream that leads to the snapshot.
pub(crate) const SNAPSHOTS: &str = "snapshots";
/// Chunks, in 256 directories.
pub(crate) const CHUNKS: &str = "chunks";
/// Lists of chunks that nothing refers to.
pub(crate) const MARKS: &str = "marks";
/// What says that pushes are under way.
pub(crate) const PUSHING: &str = "pushing";

/// How long the content of an object may be (bytes), by its name: what claims more is not read.
pub(crate) fn bytes_max(object: &str) -> usize {
    match object.split('/').next() {
        Some(CONFIG) => 64 << 10,
        // A million of small chunks of the recipe, and more.
        Some(SNAPSHOTS) => 256 << 20,
        Some(MARKS) => 64 << 20,
        _ => chunks::BYTES_MAX,
    }
}

/// Identity of a chunk: what it holds, and who wrote it.
///
/// A chunk that was marked as unused is not used again; the same content then comes as a chunk of another
/// generation.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub(crate) struct ChunkId {
    /// Of the content.
    pub(crate) hash: [u8; 32],
    /// Of the push that wrote it.
    pub(crate) generation: [u8; 4],
}

const _: () = assert!(size_of::<ChunkId>() == 36);

impl ChunkId {
    /// The object's name.
    pub(crate) fn object(&self) -> String {
        format!("{CHUNKS}/{:02x}/{self}", self.hash[0])
    }

    /// Of the object's name, without its directories.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (hash, generation) = name.split_once('-')?;
        Some(Self { hash: from_hex(hash)?, generation: from_hex(generation)? })
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", hex(&self.hash), hex(&self.generation))
    }
}

/// The object of a snapshot's manifest.
pub(crate) fn manifest_object(id: StreamId) -> String {
    format!("{SNAPSHOTS}/{id}")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        use fmt::Write;
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// `None`: not so many bytes, or other characters than those that [`hex`] writes.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_found_by_their_names() {
        let id = ChunkId { hash: [0xa7; 32], generation: [1, 2, 3, 0xff] };
        let object = id.object();
        let (dir, name) = object.rsplit_once('/').unwrap();
        assert_eq!(dir, "chunks/a7");
        assert_eq!(ChunkId::parse(name), Some(id));
        for wrong in ["", "-", &name[1..], &name.to_uppercase(), &name.replace('-', "")] {
            assert_eq!(ChunkId::parse(wrong), None, "{wrong}");
        }
    }
}
