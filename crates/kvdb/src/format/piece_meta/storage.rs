//! How blocks and regions were packed, as the indexes tell.
//!
//! Thread safety: pure functions. Invariant: lengths are bounded here, when they are read, so that no code
//! allocates by them later.

use kvfs_store::Compression;

use super::PackedBlock;
use crate::format::codec::{DecodeError, Decoder, Sink};
use crate::format::region::{Region, UNIT_BLOCKS_MAX, Unit};
use crate::format::{Codec, SECTOR_BYTES, TUPLE_BLOCK_BYTES_MAX};

/// What was packed has not become longer, and so claims no memory beyond that of a block.
pub(super) fn decode_packed_block(
    decoder: &mut Decoder<'_>,
    raw_bytes: u32,
) -> Result<PackedBlock, DecodeError> {
    let codec = Codec::from_code(decoder.u8()?)?;
    let packed = PackedBlock { codec, bytes: decoder.varint_u32()?, crc: decoder.u32()? };
    if packed.bytes >= raw_bytes || raw_bytes as usize > TUPLE_BLOCK_BYTES_MAX {
        return Err(DecodeError("a packed block has an absurd length"));
    }
    Ok(packed)
}

/// How a region was to be stored, and was.
pub(super) fn encode_storage(out: &mut Vec<u8>, region: &Region<'_>) {
    out.put_u8(region.wish.code());
    out.put_u8(region.unit.map_or(0, |unit| unit.codec.code()));
    if let Some(Unit { bytes, blocks, skip, .. }) = region.unit {
        out.put_varint(bytes.into());
        out.put_varint(blocks.into());
        out.put_varint(skip.into());
    }
}

/// Of a region with so many blocks.
pub(super) fn decode_storage(
    decoder: &mut Decoder<'_>,
    count: u32,
) -> Result<(Compression, Option<Unit>), DecodeError> {
    let wish = Compression::from_code(decoder.u8()?).ok_or(DecodeError("an unknown compression"))?;
    let codec = decoder.u8()?;
    if codec == 0 {
        return Ok((wish, None));
    }
    let codec = Codec::from_code(codec)?;
    let (bytes, blocks, skip) = (decoder.varint_u32()?, decoder.varint_u32()?, decoder.varint_u32()?);
    let is_within = skip.checked_add(count).is_some_and(|end| end <= blocks);
    if !is_within || blocks > UNIT_BLOCKS_MAX || bytes == 0 || bytes >= blocks * SECTOR_BYTES as u32 {
        return Err(DecodeError("a packed unit has an absurd length"));
    }
    Ok((wish, Some(Unit { codec, bytes, blocks, skip })))
}
