//! The record of a user's keyspace: whose it is, and what others may do.

use bytes::Bytes;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::keys::KeyspaceOwner;
use crate::{FsError, Result};

const VERSION: u32 = 1;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    version: U32,
    uid: U32,
    gid: U32,
    mode: U32,
}

const _: () = assert!(size_of::<Raw>() == 16);

pub(crate) fn encode_keyspace(owner: KeyspaceOwner) -> Bytes {
    let KeyspaceOwner { uid, gid, mode } = owner;
    let raw = Raw { version: VERSION.into(), uid: uid.into(), gid: gid.into(), mode: mode.into() };
    Bytes::copy_from_slice(raw.as_bytes())
}

/// # Errors
/// Corruption: the bytes are no such record.
pub(crate) fn decode_keyspace(name: &str, bytes: &[u8]) -> Result<KeyspaceOwner> {
    let raw = Raw::read_from_bytes(bytes).ok().filter(|raw| raw.version == VERSION && raw.mode <= 0o777);
    let raw = raw.ok_or_else(|| {
        FsError::corrupt(format!("keyspace \"{name}\""), "its record says nothing that is known")
    })?;
    Ok(KeyspaceOwner { uid: raw.uid.get(), gid: raw.gid.get(), mode: raw.mode.get() })
}
