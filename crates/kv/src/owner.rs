//! The owner of a user's keyspace, what others may do, and the record of both.

use bytes::Bytes;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::KvError;

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

/// The owner of a keyspace, and what others may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyspaceOwner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Nine bits as of a file; those for execution mean nothing.
    pub mode: u32,
}

impl KeyspaceOwner {
    /// What a keyspace without a record has: no user's id, and no rights.
    pub(crate) const NO_OWNER: Self = Self { uid: u32::MAX, gid: u32::MAX, mode: 0 };

    /// Whether a user in these groups may do all that `access` asks for (4: read, 2: write).
    pub fn allows(&self, uid: u32, groups: &[u32], access: u32) -> bool {
        let shift = match () {
            () if uid == self.uid => 6,
            () if groups.contains(&self.gid) => 3,
            () => 0,
        };
        (self.mode >> shift) & access == access
    }

    /// The record.
    pub fn encode(self) -> Bytes {
        let Self { uid, gid, mode } = self;
        let raw = Raw { version: VERSION.into(), uid: uid.into(), gid: gid.into(), mode: mode.into() };
        Bytes::copy_from_slice(raw.as_bytes())
    }

    /// What the record of keyspace `name` says.
    ///
    /// # Errors
    /// `Corrupt`: the bytes are no such record.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self, KvError> {
        let raw = Raw::read_from_bytes(bytes).ok().filter(|raw| raw.version == VERSION && raw.mode <= 0o777);
        let raw = raw.ok_or_else(|| KvError::Corrupt(name.to_owned()))?;
        Ok(Self { uid: raw.uid.get(), gid: raw.gid.get(), mode: raw.mode.get() })
    }

    /// With the bits of the mode that mean something.
    pub(crate) fn settled(self) -> Self {
        Self { mode: self.mode & 0o777, ..self }
    }
}
