//! The superblock: the root of the store, in two slots at the start of the device.
//!
//! Invariants: a write goes to the slot that does not hold the current content, and is flushed
//! before the next one; so one slot is always whole. A change of the manifest's zones must write
//! *both* slots before the old zones are given away: then each slot alone is enough, and rot in
//! one of them costs nothing. Layout: `docs/FORMAT.md`, "Superblock".

use kvfs_device::{AlignedBuf, Device};
use kvfs_store::StoreError;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::features::{FORMAT_VERSION, FORMAT_VERSION_PLAIN};
use super::{SECTOR_BYTES, ZoneId, crc32c};

/// Bytes of one slot that count.
pub const SUPERBLOCK_BYTES: usize = 4096;

/// Where the two slots begin (bytes from the start of the device).
pub const SUPERBLOCK_ADDRS: [u64; 2] = [0, 32768];

/// Most zones that the manifest may have.
pub const MANIFEST_ZONES_MAX: usize = (SUPERBLOCK_BYTES - size_of::<Head>()) / size_of::<U32>();

/// Smallest size of a zone (bytes).
pub const ZONE_BYTES_MIN: u32 = 64 << 10;

/// Greatest size of a zone (bytes).
pub const ZONE_BYTES_MAX: u32 = 1 << 30;

/// See [`Superblock::has_stamps`]. A program that does not know it writes zero, and pieces without a stamp.
const HAS_STAMPS: u8 = 1;

const MAGIC: [u8; 8] = *b"\x89kvfs\r\n\x1a";
/// The checksum covers everything behind itself.
const CRC_FROM: usize = 12;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    crc: U32,
    format_version: U32,
    uuid: [u8; 16],
    generation: U64,
    capacity_bytes: U64,
    epoch: U64,
    manifest_seq: U64,
    zone_bytes: U32,
    journal_first: U32,
    journal_zones: U32,
    manifest_zones_len: U32,
    flags: u8,
    reserved: [u8; 47],
}

const _: () = assert!(size_of::<Head>() == 128 && MANIFEST_ZONES_MAX == 992);
const _: () = assert!(std::mem::offset_of!(Head, format_version) == CRC_FROM);

/// What a store is made of, and where its manifest begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the store, random at its creation; salts the checksums of journal and manifest.
    pub uuid: [u8; 16],
    /// Number of this content; the highest valid one counts.
    pub generation: u64,
    /// From [`FORMAT_VERSION_PLAIN`] to [`FORMAT_VERSION`].
    pub format_version: u32,
    /// Size of a zone (bytes), a power of two.
    pub zone_bytes: u32,
    /// How far the store may reach (bytes); the device may be shorter and grow up to it.
    pub capacity_bytes: u64,
    /// First zone of the journal area.
    pub journal_first: ZoneId,
    /// Number of zones of the journal area.
    pub journal_zones: u32,
    /// Number of the writable opening, counted up at each, before anything else is written.
    pub epoch: u64,
    /// The zones of the manifest, in the order of its bytes.
    pub manifest_zones: Vec<ZoneId>,
    /// Number of this manifest, counted up when it is rewritten.
    pub manifest_seq: u64,
    /// Each piece of the store has a stamp ([`PieceMetaHeader::stamp`](super::PieceMetaHeader::stamp)).
    pub has_stamps: bool,
}

/// Why a device has no usable superblock.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SuperblockError {
    /// Neither slot bears the signature.
    #[error("this is not a kvfs store{}; give another path, or create a store", if *blank { " (it is blank)" } else { "" })]
    NotKvfs {
        /// Whether both slots hold zeros alone: nothing is lost by creating a store here.
        blank: bool,
    },
    /// A store, but of another version of the format.
    #[error("the store has format version {found}, this program knows {known}; use a kvfs that fits it")]
    OtherVersion {
        /// What the store says.
        found: u32,
        /// [`FORMAT_VERSION`].
        known: u32,
    },
    /// The signature is there, and neither slot is valid.
    #[error("both superblocks are damaged ({details}); restore the store from a backup")]
    Damaged {
        /// What is wrong with each slot.
        details: String,
    },
    /// Reading or writing failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<SuperblockError> for StoreError {
    fn from(error: SuperblockError) -> Self {
        match error {
            SuperblockError::Store(error) => error,
            SuperblockError::Damaged { details } => Self::corrupt("both superblocks", details),
            other => {
                Self::io("opening the store", std::io::Error::new(std::io::ErrorKind::InvalidData, other))
            }
        }
    }
}

/// Why one slot does not count.
enum SlotError {
    NoMagic { blank: bool },
    OtherVersion(u32),
    Damaged(String),
}

impl Superblock {
    /// The bytes of one slot. The manifest has at most [`MANIFEST_ZONES_MAX`] zones.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        assert!(self.manifest_zones.len() <= MANIFEST_ZONES_MAX, "the manifest has too many zones");
        let head = Head {
            magic: MAGIC,
            crc: U32::ZERO,
            format_version: self.format_version.into(),
            uuid: self.uuid,
            generation: self.generation.into(),
            capacity_bytes: self.capacity_bytes.into(),
            epoch: self.epoch.into(),
            manifest_seq: self.manifest_seq.into(),
            zone_bytes: self.zone_bytes.into(),
            journal_first: self.journal_first.0.into(),
            journal_zones: self.journal_zones.into(),
            manifest_zones_len: (self.manifest_zones.len() as u32).into(),
            flags: if self.has_stamps { HAS_STAMPS } else { 0 },
            reserved: [0; 47],
        };
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let (head_bytes, zones) = bytes.split_at_mut(size_of::<Head>());
        head_bytes.copy_from_slice(head.as_bytes());
        for (slot, zone) in zones.chunks_exact_mut(size_of::<U32>()).zip(&self.manifest_zones) {
            slot.copy_from_slice(&zone.0.to_le_bytes());
        }
        let crc = crc32c(&bytes[CRC_FROM..]);
        bytes[8..CRC_FROM].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads one slot.
    ///
    /// # Errors
    /// As [`Superblock::read_newest`], as far as one slot can tell.
    pub fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Self, SuperblockError> {
        Self::decode_slot(bytes).map_err(|error| match error {
            SlotError::NoMagic { blank } => SuperblockError::NotKvfs { blank },
            SlotError::OtherVersion(found) => SuperblockError::OtherVersion { found, known: FORMAT_VERSION },
            SlotError::Damaged(details) => SuperblockError::Damaged { details },
        })
    }

    fn decode_slot(bytes: &[u8]) -> Result<Self, SlotError> {
        let damaged = |detail: &str| SlotError::Damaged(detail.to_owned());
        let (head, zones) = Head::ref_from_prefix(bytes).map_err(|_| damaged("too short"))?;
        if head.magic != MAGIC {
            return Err(SlotError::NoMagic { blank: bytes.iter().all(|&byte| byte == 0) });
        }
        if head.crc.get() != crc32c(&bytes[CRC_FROM..]) {
            return Err(damaged("the checksum does not match"));
        }
        if !(FORMAT_VERSION_PLAIN..=FORMAT_VERSION).contains(&head.format_version.get()) {
            return Err(SlotError::OtherVersion(head.format_version.get()));
        }
        let zones_len = head.manifest_zones_len.get() as usize;
        if zones_len > MANIFEST_ZONES_MAX {
            return Err(damaged("the manifest has too many zones"));
        }
        let zone = |bytes: &[u8]| ZoneId(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let superblock = Self {
            uuid: head.uuid,
            generation: head.generation.get(),
            format_version: head.format_version.get(),
            zone_bytes: head.zone_bytes.get(),
            capacity_bytes: head.capacity_bytes.get(),
            journal_first: ZoneId(head.journal_first.get()),
            journal_zones: head.journal_zones.get(),
            epoch: head.epoch.get(),
            manifest_zones: zones.chunks_exact(size_of::<U32>()).take(zones_len).map(zone).collect(),
            manifest_seq: head.manifest_seq.get(),
            has_stamps: head.flags & HAS_STAMPS != 0,
        };
        superblock.check().map_err(damaged)?;
        Ok(superblock)
    }

    /// Whether the parts fit each other: a checksum does not tell that.
    fn check(&self) -> Result<(), &'static str> {
        if !self.zone_bytes.is_power_of_two() || !(ZONE_BYTES_MIN..=ZONE_BYTES_MAX).contains(&self.zone_bytes)
        {
            return Err("the zone size is not a power of two from 64 KiB to 1 GiB");
        }
        let zones = self.capacity_bytes / u64::from(self.zone_bytes);
        let journal_end = u64::from(self.journal_first.0) + u64::from(self.journal_zones);
        if zones > u64::from(u32::MAX) || journal_end > zones || self.journal_first.0 == 0 {
            return Err("the journal lies outside of the store");
        }
        if self
            .manifest_zones
            .iter()
            .any(|zone| u64::from(zone.0) < journal_end || u64::from(zone.0) >= zones)
        {
            return Err("the manifest lies outside of the data zones");
        }
        Ok(())
    }

    /// The first zone behind the journal area.
    pub fn first_data_zone(&self) -> ZoneId {
        ZoneId(self.journal_first.0 + self.journal_zones)
    }

    /// What the checksums of journal and manifest start with.
    pub fn salt(&self) -> u32 {
        crc32c(&self.uuid)
    }

    /// Writes this content to the slot that its generation selects, and flushes the device.
    ///
    /// # Errors
    /// I/O errors, which the caller must treat as sticky.
    pub fn write(&self, device: &dyn Device) -> Result<(), StoreError> {
        let addr = SUPERBLOCK_ADDRS[(self.generation % 2) as usize];
        let what = || format!("writing the superblock at byte {addr}");
        device
            .write_at(AlignedBuf::from_slice(&self.encode()).as_ref(), addr)
            .and_then(|()| device.flush())
            .map_err(|error| StoreError::io(what(), error))
    }

    /// Writes both slots, one after the other; the generation rises by two.
    ///
    /// # Errors
    /// As [`Superblock::write`].
    pub fn write_both(&mut self, device: &dyn Device) -> Result<(), StoreError> {
        for _ in SUPERBLOCK_ADDRS {
            self.generation += 1;
            self.write(device)?;
        }
        Ok(())
    }

    /// What is wrong with either slot, one line each.
    pub fn damaged_slots(device: &dyn Device) -> Vec<String> {
        let look = |addr: u64| {
            let mut buf = AlignedBuf::zeroed(SUPERBLOCK_BYTES);
            let error = match device.read_at(buf.as_mut(), addr) {
                Err(error) => error.to_string(),
                Ok(()) => match Self::decode_slot(buf.as_ref()) {
                    Err(SlotError::NoMagic { .. }) => "it bears no signature".to_owned(),
                    Err(SlotError::Damaged(detail)) => detail,
                    Err(SlotError::OtherVersion(_)) | Ok(_) => return None,
                },
            };
            Some(format!("the superblock at byte {addr} is damaged: {error}; the other one serves"))
        };
        SUPERBLOCK_ADDRS.into_iter().filter_map(look).collect()
    }

    /// The valid superblock with the highest generation. A slot that is damaged or can't be read
    /// is passed over, with a warning, as long as the other one is good.
    ///
    /// # Errors
    /// Not a store, another version, both slots damaged, or neither can be read.
    pub fn read_newest(device: &dyn Device) -> Result<Self, SuperblockError> {
        let mut newest: Option<Self> = None;
        let mut io_error = None;
        let mut details = Vec::new();
        let mut blank = true;
        for addr in SUPERBLOCK_ADDRS {
            let mut buf = AlignedBuf::zeroed(SUPERBLOCK_BYTES);
            if addr + SUPERBLOCK_BYTES as u64 > device.len_bytes() {
                continue;
            }
            if let Err(error) = device.read_at(buf.as_mut(), addr) {
                tracing::warn!(addr, %error, "a superblock can't be read");
                io_error = Some(StoreError::io(format!("reading the superblock at byte {addr}"), error));
                continue;
            }
            match Self::decode_slot(buf.as_ref()) {
                Ok(found) if newest.as_ref().is_none_or(|best| best.generation < found.generation) => {
                    newest = Some(found);
                }
                Ok(_) => {}
                Err(SlotError::OtherVersion(found)) => {
                    return Err(SuperblockError::OtherVersion { found, known: FORMAT_VERSION });
                }
                Err(SlotError::NoMagic { blank: slot_blank }) => blank &= slot_blank,
                Err(SlotError::Damaged(detail)) => {
                    tracing::warn!(addr, detail, "a superblock is damaged");
                    details.push(format!("at byte {addr}: {detail}"));
                }
            }
        }
        match (newest, io_error) {
            (Some(superblock), _) => Ok(superblock),
            (None, Some(error)) => Err(error.into()),
            (None, None) if details.is_empty() => Err(SuperblockError::NotKvfs { blank }),
            (None, None) => Err(SuperblockError::Damaged { details: details.join("; ") }),
        }
    }
}

const _: () = assert!(SUPERBLOCK_BYTES as u64 == SECTOR_BYTES);

#[cfg(test)]
mod tests;
