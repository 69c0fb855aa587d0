//! Packing: a stretch of bytes in fewer sectors.
//!
//! What is packed bears no header: codec, lengths and checksum are in the index of the piece. Unpacking is
//! told both lengths and writes nowhere else, so that bytes which imitate a packed stretch can make neither
//! more nor other bytes than were announced.
//!
//! Thread safety: a [`Packer`] belongs to one thread; unpacking keeps its tables by thread. Invariant:
//! unpacking never panics, whatever the bytes.

#[cfg(test)]
mod tests;

use std::cell::RefCell;

use kvfs_store::Compression;

use super::{DecodeError, SECTOR_BYTES};

/// How bytes were packed: what a reader must know, whatever was wished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// An LZ4 block, without its length in front.
    Lz4,
    /// One Zstandard frame.
    Zstd,
}

impl Codec {
    /// The number on the device.
    pub fn code(self) -> u8 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// The codec with this number.
    ///
    /// # Errors
    /// There is none.
    pub fn from_code(code: u8) -> Result<Self, DecodeError> {
        match code {
            1 => Ok(Self::Lz4),
            2 => Ok(Self::Zstd),
            _ => Err(DecodeError("packed by an unknown codec")),
        }
    }
}

/// Packs one stretch after the other; keeps its tables and its buffer.
#[derive(Default)]
pub struct Packer {
    /// The level that it was made for.
    zstd: Option<(u8, zstd::bulk::Compressor<'static>)>,
    out: Vec<u8>,
}

impl Packer {
    /// `raw` in fewer sectors; `None` when it would take as many as it does now, or nothing is wished.
    pub fn pack(&mut self, raw: &[u8], compression: Compression) -> Option<(Codec, &[u8])> {
        let sector = SECTOR_BYTES as usize;
        // One sector less, or it is not worth the reader's time.
        let bytes_max = (raw.len().div_ceil(sector).checked_sub(1)?) * sector;
        if bytes_max == 0 || compression == Compression::None {
            return None;
        }
        let (codec, len) = match compression {
            Compression::None => return None,
            Compression::Lz4 => {
                self.reserve(lz4_flex::block::get_maximum_output_size(raw.len()));
                (Codec::Lz4, lz4_flex::block::compress_into(raw, &mut self.out).ok()?)
            }
            Compression::Zstd(level) => {
                if self.zstd.as_ref().is_none_or(|(made_for, _)| *made_for != level) {
                    self.zstd = Some((level, zstd::bulk::Compressor::new(level.into()).ok()?));
                }
                self.reserve(bytes_max);
                // What does not fit is refused, and so is not worth it.
                let (_, zstd) = self.zstd.as_mut()?;
                (Codec::Zstd, zstd.compress_to_buffer(raw, &mut self.out[..bytes_max]).ok()?)
            }
        };
        (len <= bytes_max).then(|| (codec, &self.out[..len]))
    }

    /// What [`Packer::pack`] gave last, which had so many bytes.
    pub fn packed(&self, len: usize) -> &[u8] {
        &self.out[..len]
    }

    fn reserve(&mut self, bytes: usize) {
        if self.out.len() < bytes {
            self.out.resize(bytes, 0);
        }
    }
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").field("out_bytes", &self.out.len()).finish_non_exhaustive()
    }
}

thread_local! {
    static ZSTD: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Unpacks `stored`, which becomes exactly `raw`.
///
/// # Errors
/// Bytes that no [`Packer::pack`] made of so many bytes.
pub fn unpack(codec: Codec, stored: &[u8], raw: &mut [u8]) -> Result<(), DecodeError> {
    let malformed = DecodeError("packed data can't be unpacked");
    let len = match codec {
        Codec::Lz4 => lz4_flex::block::decompress_into(stored, raw).map_err(|_| malformed)?,
        Codec::Zstd => ZSTD.with_borrow_mut(|cell| {
            if cell.is_none() {
                *cell = zstd::bulk::Decompressor::new().ok();
            }
            let zstd = cell.as_mut().ok_or(DecodeError("there is no memory to unpack data"))?;
            zstd.decompress_to_buffer(stored, raw).map_err(|_| malformed)
        })?,
    };
    if len == raw.len() { Ok(()) } else { Err(DecodeError("packed data has another length than announced")) }
}
