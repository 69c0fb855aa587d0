//! Records about received snapshots: which one a local name stands for, and one that still waits for its
//! name.

use bytes::Bytes;
use kvfs_store::Seqno;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::transfer::SnapshotId;
use crate::{FsError, Result};

const VERSION: u32 = 1;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawReceived {
    version: U32,
    store: [u8; 16],
    position: U64,
    created: U64,
}

const _: () = assert!(size_of::<RawReceived>() == 36);

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawReceiving {
    version: U32,
    created: U64,
}

const _: () = assert!(size_of::<RawReceiving>() == 12);

/// A state that was received and committed, and whose snapshot is still to be named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Receiving {
    pub(crate) name: String,
    /// In the store where it was made (nanoseconds since 1970).
    pub(crate) created: u64,
}

pub(crate) fn encode_received(id: &SnapshotId) -> Bytes {
    let raw = RawReceived {
        version: VERSION.into(),
        store: id.store,
        position: id.position.into(),
        created: id.created.into(),
    };
    Bytes::copy_from_slice(raw.as_bytes())
}

/// # Errors
/// Corruption: the bytes are no such record.
pub(crate) fn decode_received(name: &str, bytes: &[u8]) -> Result<SnapshotId> {
    let raw = RawReceived::read_from_bytes(bytes).ok().filter(|raw| raw.version == VERSION);
    let raw = raw.ok_or_else(|| {
        FsError::corrupt(
            format!("snapshot \"{name}\""),
            "the record of its origin says nothing that is known",
        )
    })?;
    let position: Seqno = raw.position.get();
    Ok(SnapshotId { store: raw.store, position, created: raw.created.get() })
}

/// The record of a private snapshot; its key says all.
pub(crate) fn encode_private() -> Bytes {
    Bytes::copy_from_slice(U32::from(VERSION).as_bytes())
}

/// # Errors
/// Corruption: the bytes are no such record.
pub(crate) fn decode_private(name: &str, bytes: &[u8]) -> Result<()> {
    match U32::read_from_bytes(bytes) {
        Ok(version) if version == VERSION => Ok(()),
        _ => Err(FsError::corrupt(
            format!("snapshot \"{name}\""),
            "the record that makes it private says nothing that is known",
        )),
    }
}

pub(crate) fn encode_receiving(receiving: &Receiving) -> Bytes {
    let raw = RawReceiving { version: VERSION.into(), created: receiving.created.into() };
    [raw.as_bytes(), receiving.name.as_bytes()].concat().into()
}

/// # Errors
/// Corruption: the bytes are no such record.
pub(crate) fn decode_receiving(bytes: &[u8]) -> Result<Receiving> {
    let decoded = RawReceiving::read_from_prefix(bytes).ok().filter(|(raw, _)| raw.version == VERSION);
    let decoded = decoded.and_then(|(raw, name)| Some((raw, String::from_utf8(name.to_vec()).ok()?)));
    let (raw, name) = decoded.ok_or_else(|| {
        FsError::corrupt("the record of a received snapshot", "it says nothing that is known")
    })?;
    Ok(Receiving { name, created: raw.created.get() })
}
