//! How data is to be packed on the device.
//!
//! A setting is a wish: what does not become smaller is stored as it is, and readers never notice.

use crate::{Keyspace, Result};
use std::fmt;
use std::str::FromStr;

/// A method, and how hard to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    /// As it is.
    #[default]
    None,
    /// LZ4: little effort, fast to read.
    Lz4,
    /// Zstandard at a level from 1 to [`Compression::ZSTD_LEVEL_MAX`].
    Zstd(u8),
}

impl Compression {
    /// Greatest level of Zstandard.
    pub const ZSTD_LEVEL_MAX: u8 = 19;
    /// Level of Zstandard when none is named.
    pub const ZSTD_LEVEL_DEFAULT: u8 = 3;

    /// Codes from here on are Zstandard: this plus the level.
    const CODE_ZSTD: u8 = 32;

    /// The byte by which it is stored; 0 is [`Compression::None`].
    pub fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd(level) => Self::CODE_ZSTD + level,
        }
    }

    /// What [`Compression::code`] gave; `None` for any other byte.
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::None),
            1 => Some(Self::Lz4),
            _ => {
                let level = code.checked_sub(Self::CODE_ZSTD)?;
                (1..=Self::ZSTD_LEVEL_MAX).contains(&level).then_some(Self::Zstd(level))
            }
        }
    }

    /// This one, or `other` where this is [`Compression::None`].
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if self == Self::None { other } else { self }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

/// Words that name no compression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no compression; it is none, lz4, zstd or zstd:1 to zstd:19")]
pub struct UnknownCompression(String);

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let level = match text {
            "none" => return Ok(Self::None),
            "lz4" => return Ok(Self::Lz4),
            "zstd" => Some(Self::ZSTD_LEVEL_DEFAULT),
            _ => text.strip_prefix("zstd:").and_then(|level| level.parse().ok()),
        };
        let level = level.filter(|level| (1..=Self::ZSTD_LEVEL_MAX).contains(level));
        level.map(Self::Zstd).ok_or_else(|| UnknownCompression(text.to_owned()))
    }
}

/// Storing values packed. An extension of a [`Store`](crate::Store), which an engine may lack.
pub trait Compress: Send + Sync {
    /// How values of `keyspace` are to be stored from now on, durably when this returns. What was written
    /// before stays as it is until a merge rewrites it. Blocks that were put with a wish of their own
    /// ([`crate::Op::PutBlocks`]) keep to that one.
    ///
    /// # Errors
    /// [`crate::StoreError::Unsupported`] by an engine that does not compress; the store is read-only or
    /// failed.
    fn set_compression(&self, keyspace: Keyspace, compression: Compression) -> Result<()>;

    /// Announces that data may be compressed, durably when this returns: programs that can't read it refuse
    /// the store from then on. Nothing is compressed before.
    ///
    /// # Errors
    /// As [`crate::Compress::set_compression`].
    fn allow_compression(&self) -> Result<()>;

    /// How values of `keyspace` are to be stored.
    fn compression(&self, keyspace: Keyspace) -> Compression;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_codes_lead_back() {
        let all = (1..=Compression::ZSTD_LEVEL_MAX).map(Compression::Zstd);
        for compression in all.chain([Compression::None, Compression::Lz4]) {
            assert_eq!(compression.to_string().parse(), Ok(compression));
            assert_eq!(Compression::from_code(compression.code()), Some(compression));
        }
        assert_eq!("zstd".parse(), Ok(Compression::Zstd(3)));
        for word in ["", "gzip", "zstd:0", "zstd:20", "zstd:x", "lz4:1"] {
            assert!(word.parse::<Compression>().is_err(), "{word}");
        }
        assert_eq!((0..=255).filter_map(Compression::from_code).count(), 21);
    }
}
