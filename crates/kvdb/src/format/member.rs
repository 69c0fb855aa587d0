//! The label of a device that is not the first one of its store: whose it is, and where its zones are.
//!
//! Thread safety: plain data. Invariants: a device has its label, flushed, before the manifest names it, and
//! for as long as it does; the label lies twice, so that rot in one copy costs nothing.

use std::io;

use kvfs_device::{AlignedBuf, Device};
use kvfs_store::{StoreError, Tier};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{SECTOR_BYTES, SUPERBLOCK_ADDRS, ZoneId, crc32c};

/// Where the first zone of such a device begins on it (bytes).
pub const MEMBER_DATA_FROM: u64 = 1 << 20;

/// Where the two copies begin (bytes): where the first device has its superblocks.
const LABEL_ADDRS: [u64; 2] = SUPERBLOCK_ADDRS;
const LABEL_BYTES: usize = SECTOR_BYTES as usize;
const MAGIC: [u8; 8] = *b"\x89kvfsM\r\n";
/// The checksum covers everything behind itself.
const CRC_FROM: usize = 12;
const VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Label {
    magic: [u8; 8],
    crc: U32,
    version: U32,
    store: [u8; 16],
    id: U32,
    zone_bytes: U32,
    first_zone: U32,
    zones: U32,
    member: [u8; 16],
    tier: u8,
    reserved: [u8; 15],
}

const _: () = assert!(size_of::<Label>() == 80);

/// A device of a store, beside its first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Unique among the devices that the store has; the first one has 0.
    pub id: u32,
    /// Random: no other device ever has it.
    pub uuid: [u8; 16],
    /// How quick it is.
    pub tier: Tier,
    /// Its first zone, in the numbers of the store.
    pub first_zone: ZoneId,
    /// How many it has.
    pub zones: u32,
}

impl Member {
    /// Behind its last zone.
    pub fn end(&self) -> u32 {
        self.first_zone.0.saturating_add(self.zones)
    }

    /// How many zones a device of `len` bytes has beside its label.
    pub fn zones_of(len: u64, zone_bytes: u32) -> u32 {
        let zones = len.saturating_sub(MEMBER_DATA_FROM) / u64::from(zone_bytes);
        u32::try_from(zones).unwrap_or(u32::MAX)
    }

    /// Writes the label to `device` and flushes it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write(&self, device: &dyn Device, store: [u8; 16], zone_bytes: u32) -> Result<(), StoreError> {
        let mut label = Label {
            magic: MAGIC,
            crc: U32::ZERO,
            version: VERSION.into(),
            store,
            id: self.id.into(),
            zone_bytes: zone_bytes.into(),
            first_zone: self.first_zone.0.into(),
            zones: self.zones.into(),
            member: self.uuid,
            tier: self.tier.code(),
            reserved: [0; 15],
        };
        label.crc = crc32c(&label.as_bytes()[CRC_FROM..]).into();
        write_sector(device, label.as_bytes())
    }

    /// Takes the label away: the device is no store's any more.
    ///
    /// # Errors
    /// I/O errors.
    pub fn wipe(device: &dyn Device) -> Result<(), StoreError> {
        write_sector(device, &[])
    }

    /// What the label of `device` says, if it has one of that store.
    ///
    /// # Errors
    /// Neither copy can be read.
    pub fn read(device: &dyn Device, store: [u8; 16], zone_bytes: u32) -> Result<Option<Self>, StoreError> {
        let mut failure = None;
        for addr in LABEL_ADDRS {
            match Self::read_copy(device, addr, store, zone_bytes) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error) => {
                    failure = Some(StoreError::io(format!("reading the label at byte {addr}"), error));
                }
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// Where copies of this label on `device` begin (bytes) that are damaged or can't be read.
    pub fn damaged_copies(&self, device: &dyn Device, store: [u8; 16], zone_bytes: u32) -> Vec<u64> {
        let is_good = |addr| matches!(Self::read_copy(device, addr, store, zone_bytes), Ok(Some(label)) if label == *self);
        LABEL_ADDRS.into_iter().filter(|&addr| !is_good(addr)).collect()
    }

    fn read_copy(
        device: &dyn Device,
        addr: u64,
        store: [u8; 16],
        zone_bytes: u32,
    ) -> io::Result<Option<Self>> {
        if addr + LABEL_BYTES as u64 > device.len_bytes() {
            return Ok(None);
        }
        let mut buf = AlignedBuf::zeroed(LABEL_BYTES);
        device.read_at(buf.as_mut(), addr)?;
        let Ok((label, _)) = Label::ref_from_prefix(buf.as_ref()) else { return Ok(None) };
        let is_ours = label.magic == MAGIC
            && label.crc.get() == crc32c(&label.as_bytes()[CRC_FROM..])
            && label.version.get() == VERSION
            && label.store == store
            && label.zone_bytes.get() == zone_bytes;
        let (first_zone, zones) = (ZoneId(label.first_zone.get()), label.zones.get());
        let tier = Tier::from_code(label.tier).filter(|_| is_ours);
        Ok(tier.map(|tier| Self { id: label.id.get(), uuid: label.member, tier, first_zone, zones }))
    }
}

/// Writes `bytes`, and zeros behind them, over both copies.
fn write_sector(device: &dyn Device, bytes: &[u8]) -> Result<(), StoreError> {
    let mut sector = AlignedBuf::zeroed(LABEL_BYTES);
    sector.as_mut()[..bytes.len()].copy_from_slice(bytes);
    for addr in LABEL_ADDRS {
        let written = device.write_at(sector.as_ref(), addr).and_then(|()| device.flush());
        written.map_err(|error| StoreError::io(format!("writing the label at byte {addr}"), error))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kvfs_device::MemoryDevice;

    use super::*;

    #[test]
    fn a_label_is_read_from_either_copy_by_its_own_store_alone() {
        let device = MemoryDevice::new(4 << 20);
        let (tier, first_zone) = (Tier::Slow, ZoneId(700));
        let member = Member { id: 3, uuid: [9; 16], tier, first_zone, zones: 40 };
        assert_eq!(Member::read(&device, [7; 16], 65536).expect("reads"), None);
        member.write(&device, [7; 16], 65536).expect("writes");
        for addr in LABEL_ADDRS {
            assert_eq!(Member::read(&device, [7; 16], 65536).expect("reads"), Some(member));
            device.write_at(&[1; LABEL_BYTES], addr).expect("writes");
        }
        assert_eq!(Member::read(&device, [7; 16], 65536).expect("reads"), None, "both are gone");
        member.write(&device, [7; 16], 65536).expect("writes");
        assert_eq!(Member::read(&device, [8; 16], 65536).expect("reads"), None, "another store's");
        Member::wipe(&device).expect("writes");
        assert_eq!(Member::read(&device, [7; 16], 65536).expect("reads"), None);
        assert_eq!(Member::zones_of(MEMBER_DATA_FROM + 3 * 65536 + 5, 65536), 3);
    }
}
