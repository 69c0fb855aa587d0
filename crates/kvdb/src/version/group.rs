//! The manifest's byte stream: checksummed groups of edits, chained, over a list of zones.
//!
//! Each group names the manifest, its place, the opening that wrote it and the checksum of its
//! predecessor's header, so that nothing which a zone held in an earlier life continues the chain.

use bytes::Bytes;
use kvfs_device::{AlignedBuf, Device};
use kvfs_store::{Result, StoreError};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{
    self, FRAME_HEADER_BYTES as HEADER_BYTES, FrameFields, FrameHeader, SECTOR_BYTES, Superblock, ZoneId,
    payload_crc,
};
use crate::salvage::SalvageStream;

/// The search for later groups reads so many bytes at a time.
const WINDOW_BYTES: usize = 1 << 20;
/// The snapshot at the start of a manifest ends with this group.
pub(super) const FLAG_SNAPSHOT_END: u32 = 1;

/// What the header of a group tells beside its payload.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct GroupFields {
    manifest_seq: U64,
    position: U64,
    epoch: U64,
    previous_crc: U32,
    flags: U32,
    reserved: [u8; 16],
}

impl FrameFields for GroupFields {
    const MAGIC: [u8; 4] = *b"KvMf";
}

type Header = FrameHeader<GroupFields>;

/// Bytes that a group with `payload_len` bytes of edits takes on the device.
pub(super) fn group_len(payload_len: usize) -> u64 {
    format::group_len((HEADER_BYTES + payload_len) as u64)
}

/// A group that belongs to the chain.
pub(super) struct Group {
    pub(super) edits: Bytes,
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
        let fields = GroupFields {
            manifest_seq: self.manifest_seq.into(),
            position: self.end.into(),
            epoch: epoch.into(),
            previous_crc: self.last.0.into(),
            flags: flags.into(),
            reserved: [0; 16],
        };
        let header = Header::new(fields, edits.len(), payload_crc(edits, self.salt), self.salt);
        let mut buf = AlignedBuf::zeroed(HEADER_BYTES + edits.len());
        buf.as_mut()[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        buf.as_mut()[HEADER_BYTES..HEADER_BYTES + edits.len()].copy_from_slice(edits);
        self.for_each_stretch(self.end, buf.len(), |addr, range| {
            let written = device.write_at(&buf.as_ref()[range], addr);
            written.map_err(|error| StoreError::io(format!("writing the manifest at byte {addr}"), error))
        })?;
        self.end += buf.len() as u64;
        self.last = (header.crc(), epoch);
        Ok(())
    }

    /// The next group of the chain, or `None` at its end.
    ///
    /// Groups are flushed one by one, so only the last one can be torn: a group of this manifest
    /// behind the end proves damage, unless an opening before that of the last group left it there.
    pub(super) fn read_next(&mut self, device: &dyn Device) -> Result<Option<Group>> {
        if let Some((header, edits)) = self.read_group(device)? {
            self.go_behind(self.end, &header);
            let is_snapshot_end = header.fields.flags.get() & FLAG_SNAPSHOT_END != 0;
            return Ok(Some(Group { edits, is_snapshot_end }));
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
                if self.header(sector, position).is_some_and(|header| self.may_follow(&header)) {
                    let detail = format!("it is damaged: a later group, at position {position}, is there");
                    return Err(StoreError::corrupt(self.place(), detail));
                }
                position += SECTOR_BYTES;
            }
        }
        Ok(())
    }

    /// Calls `see` with the edits of each whole group of this manifest behind the end, whatever lies in
    /// between; the chain goes on behind it. For repairs.
    pub(super) fn salvage_rest(mut self, device: &dyn Device, see: &mut dyn FnMut(&[u8])) {
        let zones = self.zones.iter().map(|zone| u64::from(zone.0) * self.zone_bytes);
        let stream = SalvageStream::new(device, 0, zones.map(|addr| addr..addr + self.zone_bytes));
        let log = self.clone();
        let headers = stream.frames(self.end..stream.end(), |position, sector| log.header(sector, position));
        for (position, header) in headers {
            if position < self.end || !self.may_follow(&header) {
                continue;
            }
            if let Some(edits) = stream.payload(position, &header, self.salt) {
                self.go_behind(position, &header);
                see(&edits);
            }
        }
    }

    fn go_behind(&mut self, position: u64, header: &Header) {
        self.end = position + header.group_len();
        self.last = (header.crc(), header.fields.epoch.get());
    }

    /// Whether an opening wrote the group that is not before that of the last one.
    fn may_follow(&self, header: &Header) -> bool {
        header.fields.epoch.get() >= self.last.1
    }

    fn read_group(&self, device: &dyn Device) -> Result<Option<(Header, Bytes)>> {
        if self.end >= self.capacity() {
            return Ok(None);
        }
        let mut buf = AlignedBuf::zeroed(SECTOR_BYTES as usize);
        self.read(device, self.end, buf.as_mut())?;
        let Some(header) = self.header(buf.as_ref(), self.end) else { return Ok(None) };
        if header.fields.previous_crc.get() != self.last.0
            || !self.may_follow(&header)
            || self.end + header.group_len() > self.capacity()
        {
            return Ok(None);
        }
        if header.group_len() > SECTOR_BYTES {
            buf = AlignedBuf::zeroed(header.group_len() as usize);
            self.read(device, self.end, buf.as_mut())?;
        }
        Ok(header.payload(&Bytes::from_owner(buf), self.salt).map(|edits| (header, edits)))
    }

    /// The header in `sector`, if it is whole, of this manifest, and was written at `position`.
    fn header(&self, sector: &[u8], position: u64) -> Option<Header> {
        Header::decode(sector, self.salt).filter(|header| {
            header.fields.manifest_seq.get() == self.manifest_seq && header.fields.position.get() == position
        })
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
