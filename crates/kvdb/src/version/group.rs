//! The manifest's byte stream: checksummed groups of edits, chained, over a list of zones.
//!
//! Each group names the manifest, its place, the opening that wrote it and the checksum of its
//! predecessor's header, so that nothing which a zone held in an earlier life continues the chain.

use kvfs_device::{AlignedBuf, Device};
use kvfs_store::{Result, StoreError};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{Crc32c, SECTOR_BYTES, Superblock, ZoneId};

const MAGIC: [u8; 4] = *b"KvMf";
/// Length of a group's header (bytes).
pub(super) const HEADER_BYTES: usize = 64;
/// The search for later groups reads so many bytes at a time.
const WINDOW_BYTES: usize = 1 << 20;
/// The snapshot at the start of a manifest ends with this group.
pub(super) const FLAG_SNAPSHOT_END: u32 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 4],
    crc: U32,
    payload_crc: U32,
    payload_len: U32,
    manifest_seq: U64,
    position: U64,
    epoch: U64,
    previous_crc: U32,
    flags: U32,
    reserved: [u8; 16],
}

const _: () = assert!(size_of::<Raw>() == HEADER_BYTES);

impl Raw {
    fn checksum(&self, salt: u32) -> u32 {
        let mut crc = Crc32c::salted(salt);
        let mut raw = *self;
        raw.crc = U32::ZERO;
        crc.update(raw.as_bytes());
        crc.finish()
    }
}

/// Bytes that a group with `payload_len` bytes of edits takes on the device.
pub(super) fn group_len(payload_len: usize) -> u64 {
    ((HEADER_BYTES + payload_len) as u64).next_multiple_of(SECTOR_BYTES)
}

/// A group that belongs to the chain.
pub(super) struct Group {
    pub(super) edits: Vec<u8>,
    pub(super) is_snapshot_end: bool,
}

/// The stream of one manifest, and how far it goes.
#[derive(Debug, Clone)]
pub(super) struct GroupLog {
    zone_bytes: u64,
    zones: Vec<ZoneId>,
    salt: u32,
    manifest_seq: u64,
    /// Where the next group goes (bytes from the start of the stream).
    end: u64,
    /// Header checksum and epoch of the last group.
    last: (u32, u64),
}

impl GroupLog {
    /// The stream that the superblock names, at its start.
    pub(super) fn new(superblock: &Superblock) -> Self {
        Self {
            zone_bytes: superblock.zone_bytes.into(),
            zones: superblock.manifest_zones.clone(),
            salt: superblock.salt(),
            manifest_seq: superblock.manifest_seq,
            end: 0,
            last: (0, 0),
        }
    }

    /// Length of the stream's zones (bytes).
    pub(super) fn capacity(&self) -> u64 {
        self.zones.len() as u64 * self.zone_bytes
    }

    /// Bytes of groups so far.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Whether a group with so many bytes of edits still fits.
    pub(super) fn has_room(&self, payload_len: usize) -> bool {
        self.end + group_len(payload_len) <= self.capacity()
    }

    /// Writes a group that has room, not durably.
    pub(super) fn append(&mut self, device: &dyn Device, epoch: u64, edits: &[u8], flags: u32) -> Result<()> {
        assert!(self.has_room(edits.len()), "a manifest group has room");
        let mut payload_crc = Crc32c::salted(self.salt);
        payload_crc.update(edits);
        let mut raw = Raw {
            magic: MAGIC,
            crc: U32::ZERO,
            payload_crc: payload_crc.finish().into(),
            payload_len: (edits.len() as u32).into(),
            manifest_seq: self.manifest_seq.into(),
            position: self.end.into(),
            epoch: epoch.into(),
            previous_crc: self.last.0.into(),
            flags: flags.into(),
            reserved: [0; 16],
        };
        raw.crc = raw.checksum(self.salt).into();
        let mut buf = AlignedBuf::zeroed(HEADER_BYTES + edits.len());
        buf.as_mut()[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        buf.as_mut()[HEADER_BYTES..HEADER_BYTES + edits.len()].copy_from_slice(edits);
        self.for_each_stretch(self.end, buf.len(), |addr, range| {
            let written = device.write_at(&buf.as_ref()[range], addr);
            written.map_err(|error| StoreError::io(format!("writing the manifest at byte {addr}"), error))
        })?;
        self.end += buf.len() as u64;
        self.last = (raw.crc.get(), epoch);
        Ok(())
    }

    /// The next group of the chain, or `None` at its end.
    ///
    /// Groups are flushed one by one, so only the last one can be torn: a group of this manifest
    /// behind the end proves damage, unless an opening before that of the last group left it there.
    pub(super) fn read_next(&mut self, device: &dyn Device) -> Result<Option<Group>> {
        if let Some((raw, edits)) = self.read_group(device)? {
            self.end += group_len(edits.len());
            self.last = (raw.crc.get(), raw.epoch.get());
            return Ok(Some(Group { edits, is_snapshot_end: raw.flags.get() & FLAG_SNAPSHOT_END != 0 }));
        }
        self.check_end(device)?;
        Ok(None)
    }

    /// Whether the chain may really end here.
    fn check_end(&self, device: &dyn Device) -> Result<()> {
        let mut window = AlignedBuf::zeroed(WINDOW_BYTES);
        let mut position = self.end + SECTOR_BYTES;
        while position < self.capacity() {
            let len = (self.capacity() - position).min(window.len() as u64) as usize;
            self.read(device, position, &mut window.as_mut()[..len])?;
            for sector in window.as_ref()[..len].chunks_exact(SECTOR_BYTES as usize) {
                if self.header(sector, position).is_some_and(|raw| raw.epoch.get() >= self.last.1) {
                    let detail = format!("it is damaged: a later group, at position {position}, is there");
                    return Err(StoreError::corrupt(self.place(), detail));
                }
                position += SECTOR_BYTES;
            }
        }
        Ok(())
    }

    /// The next whole group of this manifest behind the end, whatever lies in between; the chain goes on there.
    /// For repairs.
    pub(super) fn skip_damage(&mut self, device: &dyn Device) -> Option<Vec<u8>> {
        let sector_bytes = SECTOR_BYTES as usize;
        let mut position = self.end;
        let mut sector = AlignedBuf::zeroed(sector_bytes);
        while position < self.capacity() {
            let is_read = self.read(device, position, sector.as_mut()).is_ok();
            if let Some(raw) = is_read.then(|| self.header(sector.as_ref(), position)).flatten()
                && raw.epoch.get() >= self.last.1
                && let Some(edits) = self.payload_at(device, position, &raw)
            {
                self.end = position + group_len(edits.len());
                self.last = (raw.crc.get(), raw.epoch.get());
                return Some(edits);
            }
            position += SECTOR_BYTES;
        }
        None
    }

    /// The edits of a group, if they are whole.
    fn payload_at(&self, device: &dyn Device, position: u64, raw: &Raw) -> Option<Vec<u8>> {
        let len = raw.payload_len.get() as usize;
        if position + group_len(len) > self.capacity() {
            return None;
        }
        let mut buf = AlignedBuf::zeroed(group_len(len) as usize);
        self.read(device, position, buf.as_mut()).ok()?;
        let edits = buf.as_ref()[HEADER_BYTES..HEADER_BYTES + len].to_vec();
        let mut crc = Crc32c::salted(self.salt);
        crc.update(&edits);
        (crc.finish() == raw.payload_crc.get()).then_some(edits)
    }

    fn read_group(&self, device: &dyn Device) -> Result<Option<(Raw, Vec<u8>)>> {
        if self.end >= self.capacity() {
            return Ok(None);
        }
        let mut sector = AlignedBuf::zeroed(SECTOR_BYTES as usize);
        self.read(device, self.end, sector.as_mut())?;
        let Some(raw) = self.header(sector.as_ref(), self.end) else { return Ok(None) };
        let payload_len = raw.payload_len.get() as usize;
        if raw.previous_crc.get() != self.last.0
            || raw.epoch.get() < self.last.1
            || !self.has_room(payload_len)
        {
            return Ok(None);
        }
        let mut buf = sector;
        if group_len(payload_len) > SECTOR_BYTES {
            buf = AlignedBuf::zeroed(HEADER_BYTES + payload_len);
            self.read(device, self.end, buf.as_mut())?;
        }
        let edits = buf.as_ref()[HEADER_BYTES..HEADER_BYTES + payload_len].to_vec();
        let mut payload_crc = Crc32c::salted(self.salt);
        payload_crc.update(&edits);
        Ok((payload_crc.finish() == raw.payload_crc.get()).then_some((raw, edits)))
    }

    /// The header in `sector`, if it is whole, of this manifest, and was written at `position`.
    fn header(&self, sector: &[u8], position: u64) -> Option<Raw> {
        let (raw, _) = Raw::ref_from_prefix(sector).ok()?;
        let is_here = raw.magic == MAGIC
            && raw.manifest_seq.get() == self.manifest_seq
            && raw.position.get() == position
            && raw.crc.get() == raw.checksum(self.salt);
        is_here.then_some(*raw)
    }

    fn read(&self, device: &dyn Device, position: u64, buf: &mut [u8]) -> Result<()> {
        self.for_each_stretch(position, buf.len(), |addr, range| {
            let read = device.read_at(&mut buf[range], addr);
            read.map_err(|error| StoreError::io(format!("reading the manifest at byte {addr}"), error))
        })
    }

    /// Calls `each` with the device address and the range of a buffer, once per zone it touches.
    fn for_each_stretch(
        &self,
        position: u64,
        len: usize,
        mut each: impl FnMut(u64, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let mut done = 0;
        while done < len {
            let at = position + done as u64;
            let (zone, offset) = ((at / self.zone_bytes) as usize, at % self.zone_bytes);
            let stretch = (len - done).min((self.zone_bytes - offset) as usize);
            each(u64::from(self.zones[zone].0) * self.zone_bytes + offset, done..done + stretch)?;
            done += stretch;
        }
        Ok(())
    }

    /// Names the group at the end, for messages.
    pub(super) fn place(&self) -> String {
        format!("the manifest group at position {} of manifest {}", self.end, self.manifest_seq)
    }
}
