//! Reading the metadata blob of a piece: its sections, each verified whenever it comes from the device.
//!
//! Thread safety: pure but for reads of the device.

use std::sync::Arc;

use kvfs_device::AlignedBuf;
use kvfs_store::{KeyspaceKind, Result, StoreError};

use super::RunContext;
use super::index::Content;
use crate::cache::{Charge, Pool};
use crate::format::{
    DecodeError, Extent, Fingerprints, PieceDesc, PieceMetaHeader, SECTOR_BYTES, Section,
    decode_fingerprints, decode_tombstones,
};
use crate::memtable::{RangeTombstone, TombstoneSet};

/// So much is read with the header, in one request (bytes).
const FRONT_BYTES: usize = 64 << 10;

/// The range tombstones in the section of the metadata.
pub(super) fn tombstones_of(section: &[u8]) -> Result<TombstoneSet, DecodeError> {
    let list = decode_tombstones(section)?;
    Ok(TombstoneSet::new(list.into_iter().map(|(start, end, seqno)| RangeTombstone { start, end, seqno })))
}

/// The words for a place in a piece.
pub(super) fn place(what: &str, desc: &PieceDesc, keyspace: u32, addr: u64) -> String {
    format!("{what} of piece {} of keyspace {keyspace} at device address {addr:#x}", desc.id.0)
}

/// Reads parts of a metadata blob, which may lie in several extents.
#[derive(Clone)]
pub(super) struct MetaReader {
    pub(super) ctx: Arc<RunContext>,
    pub(super) keyspace: u32,
    pub(super) kind: KeyspaceKind,
    pub(super) desc: Arc<PieceDesc>,
}

/// A part of a blob, in memory for as long as it takes to decode it.
struct Stretch {
    bytes: Vec<u8>,
    _charge: Charge,
}

/// The header, and what was read together with it.
pub(super) struct Front {
    pub(super) header: PieceMetaHeader,
    blob: Vec<u8>,
}

impl Front {
    /// Of a header that has been read before.
    pub(super) fn known(header: PieceMetaHeader) -> Self {
        Self { header, blob: Vec::new() }
    }
}

impl MetaReader {
    /// The header, which the manifest has the checksum of.
    ///
    /// # Errors
    /// I/O errors, corruption; so does everything else here.
    pub(super) fn front(&self) -> Result<Front> {
        self.check_extents()?;
        // A copy ends before the fingerprints.
        let there: usize = self.desc.meta.iter().map(|extent| extent.len as usize).sum();
        let blob = self.read(0, FRONT_BYTES.min(self.desc.meta_len as usize).min(there))?.bytes;
        let (desc, keyspace) = (&self.desc, self.keyspace);
        let header = PieceMetaHeader::decode(&blob, keyspace, desc.id.0, desc.meta_len, desc.meta_crc)
            .map_err(|error| self.corrupt("header", error))?;
        Ok(Front { header, blob })
    }

    /// Nothing is read for a blob that can't be there, or again and again.
    fn check_extents(&self) -> Result<()> {
        let zone_bytes = self.ctx.zones.zone_bytes();
        let mut extents = self.desc.meta.clone();
        extents.sort_unstable();
        let end = |extent: &Extent| extent.addr.saturating_add(extent.len.into());
        let are_apart = extents.windows(2).all(|pair| end(&pair[0]) <= pair[1].addr);
        let are_there =
            extents.iter().all(|extent| self.desc.holds(extent.addr, extent.len.into(), zone_bytes));
        if are_there && are_apart {
            Ok(())
        } else {
            Err(self
                .corrupt("place", DecodeError("it is outside of the piece's zones, or in one place twice")))
        }
    }

    /// The index, with its seqnos as they are on the device.
    pub(super) fn index(&self, front: &Front) -> Result<Content> {
        let section = self.section("index", front, front.header.index, PieceMetaHeader::BYTES)?;
        let content =
            Content::decode(self.kind, &section.bytes).map_err(|error| self.corrupt("index", error))?;
        if content.lies_in(&self.desc, self.ctx.zones.zone_bytes()) {
            Ok(content)
        } else {
            Err(self.corrupt("index", DecodeError("it names what is outside of the piece's zones")))
        }
    }

    /// The range tombstones, with their seqnos as they are on the device.
    pub(super) fn tombstones(&self, front: &Front) -> Result<TombstoneSet> {
        let from = PieceMetaHeader::BYTES + front.header.index.len();
        let section = self.section("range tombstones", front, front.header.tombstones, from)?;
        tombstones_of(&section.bytes).map_err(|error| self.corrupt("range tombstones", error))
    }

    /// The fingerprints of a piece with so many tuple blocks.
    pub(super) fn fingerprints(&self, front: &Front, blocks: usize) -> Result<Fingerprints> {
        let header = &front.header;
        let from = PieceMetaHeader::BYTES + header.index.len() + header.tombstones.len();
        let section = self.section("fingerprints", front, header.fingerprints, from)?;
        let found =
            decode_fingerprints(&section.bytes).map_err(|error| self.corrupt("fingerprints", error))?;
        if found.ends.len() == blocks {
            Ok(found)
        } else {
            Err(self.corrupt("fingerprints", DecodeError("they are of another number of blocks")))
        }
    }

    fn section(&self, what: &str, front: &Front, section: Section, from: usize) -> Result<Stretch> {
        let stretch = match front.blob.get(from..from + section.len()) {
            Some(bytes) => Stretch { bytes: bytes.to_vec(), _charge: self.charge(0) },
            None => self.read(from, section.len())?,
        };
        if section.matches(&stretch.bytes) {
            Ok(stretch)
        } else {
            Err(self.corrupt(what, DecodeError("checksum does not match")))
        }
    }

    #[track_caller]
    fn charge(&self, bytes: usize) -> Charge {
        self.ctx.accountant.charge(Pool::Io, bytes as u64)
    }

    /// Bytes `from .. from + len` of the blob. They are in memory twice meanwhile, and decoded then.
    fn read(&self, from: usize, len: usize) -> Result<Stretch> {
        let sector = SECTOR_BYTES as usize;
        let charge = self.charge(2 * len);
        self.ctx.make_room_for(0);
        let (mut out, mut extent_from) = (Vec::with_capacity(len), 0_usize);
        for extent in &self.desc.meta {
            let extent_end = extent_from + extent.len as usize;
            let (low, high) = (from.max(extent_from), (from + len).min(extent_end));
            if low < high {
                let skipped = (low - extent_from) / sector * sector;
                let addr = extent.addr + skipped as u64;
                let mut buf = AlignedBuf::zeroed(high - extent_from - skipped);
                self.ctx.device.read_at(buf.as_mut(), addr).map_err(|error| {
                    let place = place("metadata", &self.desc, self.keyspace, addr);
                    StoreError::io(format!("reading {place}"), error)
                })?;
                let start = low - extent_from - skipped;
                out.extend_from_slice(&buf.as_ref()[start..start + high - low]);
            }
            extent_from = extent_end;
        }
        if out.len() < len {
            return Err(self.corrupt("metadata", DecodeError("its extents are shorter than its length")));
        }
        Ok(Stretch { bytes: out, _charge: charge })
    }

    fn corrupt(&self, what: &str, error: DecodeError) -> StoreError {
        let addr = self.desc.meta.first().map_or(0, |extent| extent.addr);
        error.at(place(&format!("metadata ({what})"), &self.desc, self.keyspace, addr))
    }
}
