//! The codec of prologue, frames, and what the first and the last frame say.
//!
//! Thread safety: pure functions. Invariant: whatever bytes come, decoding ends with a value or `None`, and
//! takes no more memory than the bytes do.

use crc_fast::{CrcAlgorithm, Digest};
use kvfs_kv::KeyspaceOwner;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{SnapshotId, StreamError, StreamId};

/// Of a stream's prologue; offsets 0 to 11 keep their meaning in every version.
const SIGNATURE: [u8; 8] = *b"\x89kvfsnd\n";
const VERSION: u32 = 1;

/// Of a stream that may have references.
const VERSION_WITH_CLONES: u32 = 2;

/// Bytes of a [`Prologue`].
pub const PROLOGUE_BYTES: usize = size_of::<RawPrologue>();

/// Bytes of a frame before its payload.
pub const FRAME_HEADER_BYTES: usize = size_of::<RawFrame>();

/// Most bytes of a frame's payload: one record of the greatest size, and more than a sender puts together.
pub(super) const PAYLOAD_BYTES_MAX: usize = 2 << 20;

/// Of the file system's rows, and what may come beside them: this, and what the features add to it. Another
/// layout of rows is another number.
const ROWS_VERSION: u32 = 1;

/// Rows may have projects.
const WITH_PROJECTS: u32 = 1;

/// References may come, and where blocks of clones came from.
const WITH_CLONES: u32 = 2;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPrologue {
    signature: [u8; 8],
    version: U32,
    flags: U32,
    stream: [u8; 16],
    offset: U64,
    bytes_expected: U64,
    reserved: [u8; 12],
    checksum: U32,
}

const _: () = assert!(PROLOGUE_BYTES == 64);

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFrame {
    kind: U32,
    payload_len: U32,
    position: U64,
    checksum: U32,
}

const _: () = assert!(FRAME_HEADER_BYTES == 20);

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawId {
    store: [u8; 16],
    position: U64,
    created: U64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawBegin {
    rows_version: U32,
    inline_len_max: U32,
    inode_next: U64,
    to: RawId,
    from: RawId,
    has_from: U32,
    to_name_len: U32,
    from_name_len: U32,
}

const _: () = assert!(size_of::<RawBegin>() == 92);

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawKeyspace {
    has_owner: U32,
    uid: U32,
    gid: U32,
    mode: U32,
}

const _: () = assert!(size_of::<RawKeyspace>() == 16);

/// The checksum of everything in a stream.
fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}

/// What comes before the frames: not a part of the stream's bytes, and another one at each resumption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prologue {
    /// Which stream.
    pub stream: StreamId,
    /// Where in it the frames that follow begin (bytes).
    pub offset: u64,
    /// About how many bytes the whole stream has; 0: unknown. For progress bars only.
    pub bytes_expected: u64,
    /// The stream may have references. Says it to a receiver that knows none, before the first frame does.
    pub has_clones: bool,
}

impl Prologue {
    /// The bytes.
    pub fn encode(&self) -> [u8; PROLOGUE_BYTES] {
        let mut raw = RawPrologue {
            signature: SIGNATURE,
            version: if self.has_clones { VERSION_WITH_CLONES } else { VERSION }.into(),
            flags: 0.into(),
            stream: self.stream.0,
            offset: self.offset.into(),
            bytes_expected: self.bytes_expected.into(),
            reserved: [0; 12],
            checksum: 0.into(),
        };
        raw.checksum = crc32c(&[&raw.as_bytes()[..PROLOGUE_BYTES - 4]]).into();
        let mut bytes = [0; PROLOGUE_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// # Errors
    /// [`StreamError::NotAStream`], [`StreamError::OtherVersion`], [`StreamError::Damaged`].
    pub fn decode(bytes: &[u8; PROLOGUE_BYTES]) -> Result<Self, StreamError> {
        let raw = RawPrologue::ref_from_bytes(bytes).map_err(|_| StreamError::NotAStream)?;
        if raw.signature != SIGNATURE {
            return Err(StreamError::NotAStream);
        }
        let has_clones = match raw.version.get() {
            VERSION => false,
            VERSION_WITH_CLONES => true,
            version => return Err(StreamError::OtherVersion(version)),
        };
        if raw.checksum != crc32c(&[&bytes[..PROLOGUE_BYTES - 4]]) {
            return Err(StreamError::Damaged { position: 0, what: "the prologue's checksum is wrong" });
        }
        Ok(Self {
            stream: StreamId(raw.stream),
            offset: raw.offset.get(),
            bytes_expected: raw.bytes_expected.get(),
            has_clones,
        })
    }
}

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameKind {
    Begin,
    Keyspace,
    Records,
    End,
    References,
}

impl FrameKind {
    const ALL: [Self; 5] = [Self::Begin, Self::Keyspace, Self::Records, Self::End, Self::References];

    fn number(self) -> u32 {
        match self {
            Self::Begin => 1,
            Self::Keyspace => 2,
            Self::Records => 3,
            Self::End => 4,
            Self::References => 5,
        }
    }
}

/// A frame's header, decoded but not verified.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHeader {
    pub(super) kind: FrameKind,
    pub(super) payload_len: usize,
    checksum: u32,
}

impl FrameHeader {
    /// The header of a frame that belongs at `position`; else what is wrong with it.
    pub(super) fn decode(bytes: &[u8; FRAME_HEADER_BYTES], position: u64) -> Result<Self, &'static str> {
        let raw = RawFrame::ref_from_bytes(bytes).map_err(|_| "it has no header")?;
        let kind = FrameKind::ALL.into_iter().find(|kind| raw.kind == kind.number());
        let kind = kind.ok_or("a frame of an unknown kind")?;
        if raw.position != position {
            return Err("a frame from another place");
        }
        let payload_len = raw.payload_len.get() as usize;
        if payload_len > PAYLOAD_BYTES_MAX {
            return Err("a frame that is too long");
        }
        Ok(Self { kind, payload_len, checksum: raw.checksum.get() })
    }

    /// Whether header and payload are as they were written.
    pub(super) fn verify(&self, header: &[u8; FRAME_HEADER_BYTES], payload: &[u8]) -> bool {
        crc32c(&[&header[..FRAME_HEADER_BYTES - 4], payload]) == self.checksum
    }
}

/// A whole frame.
pub(super) fn encode_frame(kind: FrameKind, position: u64, payload: &[u8]) -> Vec<u8> {
    let mut raw = RawFrame {
        kind: kind.number().into(),
        payload_len: (payload.len() as u32).into(),
        position: position.into(),
        checksum: 0.into(),
    };
    raw.checksum = crc32c(&[&raw.as_bytes()[..FRAME_HEADER_BYTES - 4], payload]).into();
    [raw.as_bytes(), payload].concat()
}

/// What the first frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// The snapshot that the stream leads to, and its name.
    pub to: (SnapshotId, String),
    /// The one from which it leads; `None`: from nothing.
    pub from: Option<(SnapshotId, String)>,
    /// Largest content kept in a row (bytes).
    pub inline_len_max: u32,
    /// Every inode number from here on is unused in it.
    pub inode_next: u64,
    /// Rows may have projects.
    pub has_projects: bool,
    /// References may come, and where blocks of clones came from.
    pub has_clones: bool,
}

impl Begin {
    /// Identity of the stream that begins so.
    pub fn stream(&self) -> StreamId {
        StreamId::of(self.from.as_ref().map(|(id, _)| id), &self.to.0)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let from = self.from.as_ref();
        let from_name = from.map_or("", |(_, name)| name);
        let nothing = SnapshotId { store: [0; 16], position: 0, created: 0 };
        let features = [(self.has_projects, WITH_PROJECTS), (self.has_clones, WITH_CLONES)];
        let features = features.into_iter().map(|(has, feature)| if has { feature } else { 0 });
        let rows_version = ROWS_VERSION + features.sum::<u32>();
        let raw = RawBegin {
            rows_version: rows_version.into(),
            inline_len_max: self.inline_len_max.into(),
            inode_next: self.inode_next.into(),
            to: raw_id(&self.to.0),
            from: raw_id(from.map_or(&nothing, |(id, _)| id)),
            has_from: u32::from(from.is_some()).into(),
            to_name_len: (self.to.1.len() as u32).into(),
            from_name_len: (from_name.len() as u32).into(),
        };
        [raw.as_bytes(), self.to.1.as_bytes(), from_name.as_bytes()].concat()
    }

    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let (raw, names) = RawBegin::ref_from_prefix(payload).ok()?;
        let (to_name, from_name) = names.split_at_checked(raw.to_name_len.get() as usize)?;
        let features = raw.rows_version.get().checked_sub(ROWS_VERSION)?;
        let (has_projects, has_clones) = (features & WITH_PROJECTS != 0, features & WITH_CLONES != 0);
        if features & !(WITH_PROJECTS | WITH_CLONES) != 0 {
            return None;
        }
        if from_name.len() != raw.from_name_len.get() as usize {
            return None;
        }
        let name = |bytes: &[u8]| {
            let name = String::from_utf8(bytes.to_vec()).ok()?;
            kvfs_store::check_snapshot_name(&name).is_ok().then_some(name)
        };
        let from = match raw.has_from.get() {
            0 => None,
            1 => Some((id_of(&raw.from), name(from_name)?)),
            _ => return None,
        };
        let to = (id_of(&raw.to), name(to_name)?);
        let (inline_len_max, inode_next) = (raw.inline_len_max.get(), raw.inode_next.get());
        let is_sane = inline_len_max <= crate::INLINE_LEN_LIMIT && inode_next <= crate::INODE_MAX;
        is_sane.then_some(Self { to, from, inline_len_max, inode_next, has_projects, has_clones })
    }
}

fn raw_id(id: &SnapshotId) -> RawId {
    RawId { store: id.store, position: id.position.into(), created: id.created.into() }
}

fn id_of(raw: &RawId) -> SnapshotId {
    SnapshotId { store: raw.store, position: raw.position.get(), created: raw.created.get() }
}

/// A user's keyspace, and its owner.
pub(super) fn encode_keyspace(name: &str, owner: Option<KeyspaceOwner>) -> Vec<u8> {
    let KeyspaceOwner { uid, gid, mode } = owner.unwrap_or(KeyspaceOwner { uid: 0, gid: 0, mode: 0 });
    let raw = RawKeyspace {
        has_owner: u32::from(owner.is_some()).into(),
        uid: uid.into(),
        gid: gid.into(),
        mode: mode.into(),
    };
    [raw.as_bytes(), name.as_bytes()].concat()
}

pub(super) fn decode_keyspace(payload: &[u8]) -> Option<(String, Option<KeyspaceOwner>)> {
    let (raw, name) = RawKeyspace::ref_from_prefix(payload).ok()?;
    let name = String::from_utf8(name.to_vec()).ok()?;
    kvfs_kv::check_name(&name, &crate::view::RESERVED).ok()?;
    let owner = KeyspaceOwner { uid: raw.uid.get(), gid: raw.gid.get(), mode: raw.mode.get() };
    match raw.has_owner.get() {
        0 => Some((name, None)),
        1 if owner.mode <= 0o777 => Some((name, Some(owner))),
        _ => None,
    }
}
