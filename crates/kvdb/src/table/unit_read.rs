//! Reads of packed units: each is verified, then unpacked as a whole, and in the block cache, unpacked, under
//! its address.

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result, StoreError};

use super::piece::Piece;
use crate::format::{DecodeError, Region, Unit};

/// Where `block` of `region` begins in the unpacked unit.
pub(super) fn unit_offset(region: &Region<'_>, unit: &Unit, block: u64) -> usize {
    (u64::from(unit.skip) + (block - region.first)) as usize * BLOCK_BYTES
}

/// Length of the unpacked unit (bytes).
pub(super) fn raw_len(region: &Region<'_>) -> usize {
    region.unit.map_or(0, |unit| unit.blocks as usize * BLOCK_BYTES)
}

impl Piece {
    /// The unpacked unit of `region`, from the cache or the device.
    pub(super) fn unit(&self, region: &Region<'_>) -> Result<Bytes> {
        if let Some(cached) = self.storage().cached(region.addr, raw_len(region)) {
            return Ok(cached.bytes().clone());
        }
        let raw = self.read_unit(region)?;
        Ok(self.storage().cache_own(region.addr, raw.into()))
    }

    /// The unpacked unit of `region`, from the device.
    pub(super) fn read_unit(&self, region: &Region<'_>) -> Result<Vec<u8>> {
        let mut stored = AlignedBuf::zeroed(region.extent().len as usize);
        self.storage().read(stored.as_mut(), region.addr)?;
        self.unpack_unit(region, stored.as_ref())
    }

    /// Verifies and unpacks what was read of a unit.
    pub(crate) fn unpack_unit(&self, region: &Region<'_>, stored: &[u8]) -> Result<Vec<u8>> {
        let mut raw = vec![0; raw_len(region)];
        self.unpack_into(region, stored, &mut raw)?;
        Ok(raw)
    }

    /// As [`Self::unpack_unit`], into `raw`.
    pub(super) fn unpack_into(&self, region: &Region<'_>, stored: &[u8], raw: &mut [u8]) -> Result<()> {
        region.unpack(stored, raw).map_err(|error| self.corrupt_unit(region, error))
    }

    /// Verifies what was read of a unit, without unpacking it.
    ///
    /// # Errors
    /// Corruption.
    pub(crate) fn verify_unit(&self, region: &Region<'_>, stored: &[u8]) -> Result<()> {
        region.verify_unit(stored).map(drop).map_err(|error| self.corrupt_unit(region, error))
    }

    fn corrupt_unit(&self, region: &Region<'_>, error: DecodeError) -> StoreError {
        let detail = format!("{error} (blocks {} to {})", region.first, region.end() - 1);
        self.storage().corrupt("packed data blocks", region.addr, &detail)
    }
}
