//! What is stored of quotas: usage, limits, and since when a soft limit is overstepped; for each user, group
//! and project.
//!
//! Thread safety: plain values. Invariant: usage is only ever added to, so that changes commute.

use std::fmt;

use bytes::Bytes;
use kvfs_store::{MergeFunction, StoreError, Touch};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Limits, QuotaKind, Usage};
use crate::{FsError, Result};

const VERSION: u32 = 1;

const USAGE: u8 = 0;
const LIMITS: u8 = 1;
const SINCE: u8 = 2;

/// What a record is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Usage,
    Limits,
    Since,
}

/// Since when soft limits are overstepped (seconds since 1970); 0: they are not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Since {
    pub(super) bytes: u64,
    pub(super) inodes: u64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawUsage {
    bytes: I64,
    inodes: I64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLimits {
    version: U32,
    bytes_soft: U64,
    bytes_hard: U64,
    inodes_soft: U64,
    inodes_hard: U64,
    grace_seconds: U64,
}

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSince {
    version: U32,
    bytes: U64,
    inodes: U64,
}

const _: () = assert!(size_of::<RawUsage>() == 16 && size_of::<RawLimits>() == 44);

/// The key of the record that says whether everything has been counted.
pub(super) const STATE_KEY: &[u8] = b"state";

/// Lowest and highest keys of all that is about users, groups and projects.
pub(super) const ACCOUNTS: (&[u8], &[u8]) = (b"g", b"v");

pub(super) fn key(kind: QuotaKind, id: u32, part: Part) -> Bytes {
    let tag = match part {
        Part::Usage => USAGE,
        Part::Limits => LIMITS,
        Part::Since => SINCE,
    };
    let mut key = vec![kind.letter()];
    key.extend(id.to_be_bytes());
    key.push(tag);
    key.into()
}

/// What a key of the keyspace is about; `None`: the state, or no key of ours.
pub(super) fn parse_key(key: &[u8]) -> Option<(QuotaKind, u32, Part)> {
    let (&letter, rest) = key.split_first()?;
    let (id, tag) = rest.split_first_chunk::<4>()?;
    let part = match tag {
        [USAGE] => Part::Usage,
        [LIMITS] => Part::Limits,
        [SINCE] => Part::Since,
        _ => return None,
    };
    Some((QuotaKind::from_letter(letter)?, u32::from_be_bytes(*id), part))
}

pub(super) fn encode_usage(usage: Usage) -> Bytes {
    let raw = RawUsage { bytes: usage.bytes.into(), inodes: usage.inodes.into() };
    Bytes::copy_from_slice(raw.as_bytes())
}

/// # Errors
/// Corruption: the bytes are no such record. So with the others.
pub(super) fn decode_usage(bytes: &[u8]) -> Result<Usage> {
    let raw = RawUsage::read_from_bytes(bytes).map_err(|_| corrupt("usage"))?;
    Ok(Usage { bytes: raw.bytes.get(), inodes: raw.inodes.get() })
}

pub(super) fn encode_limits(limits: &Limits) -> Bytes {
    let raw = RawLimits {
        version: VERSION.into(),
        bytes_soft: limits.bytes_soft.into(),
        bytes_hard: limits.bytes_hard.into(),
        inodes_soft: limits.inodes_soft.into(),
        inodes_hard: limits.inodes_hard.into(),
        grace_seconds: limits.grace_seconds.into(),
    };
    Bytes::copy_from_slice(raw.as_bytes())
}

pub(super) fn decode_limits(bytes: &[u8]) -> Result<Limits> {
    let raw = RawLimits::read_from_bytes(bytes).ok().filter(|raw| raw.version == VERSION);
    let raw = raw.ok_or_else(|| corrupt("limits"))?;
    Ok(Limits {
        bytes_soft: raw.bytes_soft.get(),
        bytes_hard: raw.bytes_hard.get(),
        inodes_soft: raw.inodes_soft.get(),
        inodes_hard: raw.inodes_hard.get(),
        grace_seconds: raw.grace_seconds.get(),
    })
}

pub(super) fn encode_since(since: Since) -> Bytes {
    let raw = RawSince { version: VERSION.into(), bytes: since.bytes.into(), inodes: since.inodes.into() };
    Bytes::copy_from_slice(raw.as_bytes())
}

pub(super) fn decode_since(bytes: &[u8]) -> Result<Since> {
    let raw = RawSince::read_from_bytes(bytes).ok().filter(|raw| raw.version == VERSION);
    let raw = raw.ok_or_else(|| corrupt("overstepped limits"))?;
    Ok(Since { bytes: raw.bytes.get(), inodes: raw.inodes.get() })
}

/// Whether everything has been counted.
pub(super) fn encode_state(is_counted: bool) -> Bytes {
    let words = [U32::new(VERSION), U32::new(u32::from(is_counted))];
    Bytes::copy_from_slice(words.as_bytes())
}

pub(super) fn decode_state(bytes: &[u8]) -> Result<bool> {
    match <[U32; 2]>::read_from_bytes(bytes).map(|words| words.map(U32::get)) {
        Ok([VERSION, state @ 0..=1]) => Ok(state == 1),
        _ => Err(corrupt("state")),
    }
}

/// What of quotas a record is about that says nothing that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InvalidRecord {
    /// Whether everything has been counted.
    State,
    Usage(QuotaKind, u32),
    Limits(QuotaKind, u32),
    /// Since when limits are overstepped.
    Since(QuotaKind, u32),
}

impl fmt::Display for InvalidRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, kind, id) = match self {
            Self::State => return write!(f, "state of quotas"),
            Self::Usage(kind, id) => ("usage", kind, id),
            Self::Limits(kind, id) => ("limits", kind, id),
            Self::Since(kind, id) => ("times of grace", kind, id),
        };
        write!(f, "{what} of {} {id}", kind.word())
    }
}

/// Looks whether a record can be decoded; `None`: it can, or is none of ours.
pub(crate) fn invalid_record(key: &[u8], value: &[u8]) -> Option<InvalidRecord> {
    if key == STATE_KEY {
        return decode_state(value).is_err().then_some(InvalidRecord::State);
    }
    let (kind, id, part) = parse_key(key)?;
    match part {
        Part::Usage => decode_usage(value).is_err().then_some(InvalidRecord::Usage(kind, id)),
        Part::Limits => decode_limits(value).is_err().then_some(InvalidRecord::Limits(kind, id)),
        Part::Since => decode_since(value).is_err().then_some(InvalidRecord::Since(kind, id)),
    }
}

fn corrupt(what: &str) -> FsError {
    FsError::corrupt(format!("the {what} of quotas"), "it says nothing that is known")
}

/// Adds changes of usage up.
#[derive(Debug)]
pub(crate) struct QuotaMerge;

fn usage_of(key: &[u8], bytes: &[u8]) -> Result<Usage, StoreError> {
    decode_usage(bytes).map_err(|_| {
        let place = format!("quota record {}", key.escape_ascii());
        StoreError::corrupt(place, format!("{} bytes are no usage", bytes.len()))
    })
}

impl MergeFunction for QuotaMerge {
    fn resolve(
        &self,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Option<Bytes>, StoreError> {
        let mut sum = base.map_or(Ok(Usage::default()), |base| usage_of(key, base))?;
        for operand in operands {
            sum = sum.plus(usage_of(key, operand)?);
        }
        Ok(Some(encode_usage(sum)))
    }

    fn fold(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Bytes> {
        Some(encode_usage(decode_usage(older).ok()?.plus(decode_usage(newer).ok()?)))
    }

    fn touch(&self, _key: &[u8], _operand: &[u8]) -> Touch {
        Touch { exclusive: 0, increment: 1 }
    }
}
