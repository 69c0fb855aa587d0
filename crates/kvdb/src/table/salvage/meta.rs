//! The metadata of a damaged piece, put together from what is whole: the blob that the manifest names, and
//! the copies beside the data.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::KeyspaceKind;

use crate::format::{
    Extent, Fingerprints, PieceDesc, PieceMetaHeader, SECTOR_BYTES, Section, ZoneId, ZoneUse,
    decode_fingerprints,
};
use crate::memtable::TombstoneSet;
use crate::salvage::SalvageStream;
use crate::table::RunContext;
use crate::table::index::Content;
use crate::table::meta_read::{MetaReader, tombstones_of};

/// What could be found of a piece's metadata.
pub(super) struct FoundMeta {
    pub(super) header: PieceMetaHeader,
    pub(super) content: Option<Content>,
    /// `None`: they are lost.
    pub(super) tombstones: Option<TombstoneSet>,
    /// `None`: they have to be made anew from the keys.
    pub(super) fingerprints: Option<Fingerprints>,
    /// The blob that the manifest names is whole.
    pub(super) is_whole: bool,
    /// No manifest names the piece.
    pub(super) is_adopted: bool,
}

impl FoundMeta {
    /// Of a piece of which nothing but the data is left.
    pub(super) fn nothing(keyspace: u32, desc: &PieceDesc) -> Self {
        let header = PieceMetaHeader::new(keyspace, desc.id.0, [Section::of(&[]); 3]);
        let (content, tombstones, fingerprints) = (None, None, None);
        Self { header, content, tombstones, fingerprints, is_whole: false, is_adopted: false }
    }

    /// `None` when the index is lost.
    pub(super) fn with_content(mut self) -> Option<(Self, Content)> {
        let content = self.content.take()?;
        Some((self, content))
    }
}

/// Looks for the metadata of `desc`; `None` when no header of it is left.
pub(super) fn find(
    ctx: &Arc<RunContext>,
    keyspace: u32,
    kind: KeyspaceKind,
    desc: &PieceDesc,
) -> Option<FoundMeta> {
    let decode =
        |bytes: &[u8]| PieceMetaHeader::decode(bytes, keyspace, desc.id.0, desc.meta_len, desc.meta_crc).ok();
    let device = ctx.device.as_ref();
    let extents = desc.meta.iter().map(|extent| extent.addr..extent.addr + u64::from(extent.len));
    let mut found = Parts::default();
    found.take(decode, &SalvageStream::new(device, 0, extents).read(0, desc.meta_len.into()));
    let is_whole = found.is_whole();
    if found.index.is_none() || found.tombstones.is_none() {
        for zone_use in &desc.zones {
            let zone = zone_stream(ctx, zone_use.zone);
            for (addr, header) in zone.all_frames(|_, sector| decode(sector)) {
                found.take(decode, &zone.read(addr, header.meta_len().into()));
            }
        }
    }
    let mut found = found.decode(kind, is_whole)?;
    found.content = found.content.filter(|content| content.lies_in(desc, ctx.zones.zone_bytes()));
    Some(found)
}

/// A reader of the copy of index and range tombstones, if it is whole.
pub(in crate::table) fn copy_of(reader: &MetaReader) -> Option<MetaReader> {
    reader.desc.zones.iter().find_map(|zone_use| {
        let zone = zone_stream(&reader.ctx, zone_use.zone);
        zone.all_frames(|_, sector| decode_own(reader, sector))
            .find_map(|(addr, header)| copy_at(reader, &header, addr))
    })
}

/// Whether the piece with this header has a copy of index and range tombstones, which can't be read or is
/// damaged.
pub(in crate::table) fn has_damaged_copy(reader: &MetaReader, header: &PieceMetaHeader) -> bool {
    let desc = &reader.desc;
    let meta: u64 = desc.meta.iter().map(|extent| u64::from(extent.len)).sum();
    let held: u64 = desc.zones.iter().map(|zone_use| zone_use.bytes).sum();
    let Some(len) = held.checked_sub(desc.data_bytes + meta) else { return false };
    let with = |stamp| u64::from(padded(copied_len(header) + stamp));
    if ![0, PieceMetaHeader::STAMP_BYTES as u32].map(with).contains(&len) {
        return false;
    }
    // It was allocated last: nothing of the piece lies behind it in its zone.
    let is_last_in = |zone_use: &ZoneUse| {
        let start = u64::from(zone_use.end).checked_sub(len);
        let addr = start.map(|start| reader.ctx.zones.zone_addr(zone_use.zone) + start);
        addr.is_some_and(|addr| copy_at(reader, header, addr).is_some())
    };
    !desc.zones.iter().any(is_last_in) && copy_of(reader).is_none()
}

fn decode_own(reader: &MetaReader, bytes: &[u8]) -> Option<PieceMetaHeader> {
    let desc = &reader.desc;
    PieceMetaHeader::decode(bytes, reader.keyspace, desc.id.0, desc.meta_len, desc.meta_crc).ok()
}

/// What the copy has of a blob (bytes): all but the fingerprints.
fn copied_len(header: &PieceMetaHeader) -> u32 {
    header.meta_len() - header.fingerprints.len() as u32
}

/// The copy at `addr`, if there is one, and it is whole.
fn copy_at(reader: &MetaReader, header: &PieceMetaHeader, addr: u64) -> Option<MetaReader> {
    if reader.desc.meta.iter().any(|extent| extent.addr == addr) {
        return None;
    }
    let len = copied_len(header);
    let stream = SalvageStream::of_range(reader.ctx.device.as_ref(), addr..addr + u64::from(padded(len)));
    let mut parts = Parts::default();
    parts.take(|bytes| decode_own(reader, bytes), &stream.read(addr, len.into()));
    let meta = vec![Extent { addr, len: padded(len) }];
    (parts.index.is_some() && parts.tombstones.is_some()).then(|| MetaReader {
        desc: Arc::new(PieceDesc { meta, ..PieceDesc::clone(&reader.desc) }),
        ..reader.clone()
    })
}

/// A zone of pieces, whatever it holds; positions are addresses.
pub(super) fn zone_stream(ctx: &RunContext, zone: ZoneId) -> SalvageStream<'_> {
    let start = ctx.zones.zone_addr(zone);
    SalvageStream::of_range(ctx.device.as_ref(), start..start + u64::from(ctx.zones.zone_bytes()))
}

/// Sections that matched their checksums.
#[derive(Default)]
struct Parts {
    header: Option<PieceMetaHeader>,
    index: Option<Bytes>,
    tombstones: Option<Bytes>,
    fingerprints: Option<Bytes>,
}

impl Parts {
    fn is_whole(&self) -> bool {
        self.index.is_some() && self.tombstones.is_some() && self.fingerprints.is_some()
    }

    /// Takes what is still missing from a blob, if it begins with the header.
    fn take(&mut self, decode: impl Fn(&[u8]) -> Option<PieceMetaHeader>, blob: &Bytes) {
        let Some(header) = decode(blob) else { return };
        self.header = Some(header);
        let mut from = PieceMetaHeader::BYTES;
        for (section, place) in [
            (&header.index, &mut self.index),
            (&header.tombstones, &mut self.tombstones),
            (&header.fingerprints, &mut self.fingerprints),
        ] {
            let range = from..from + section.len();
            from = range.end;
            if place.is_none() && blob.get(range.clone()).is_some_and(|bytes| section.matches(bytes)) {
                *place = Some(blob.slice(range));
            }
        }
    }

    /// `None` without a header.
    fn decode(self, kind: KeyspaceKind, is_whole: bool) -> Option<FoundMeta> {
        let content = self.index.and_then(|index| Content::decode(kind, &index).ok());
        let fits = |fingerprints: &Fingerprints| {
            content.as_ref().is_none_or(|content| content.tuple_entries().len() == fingerprints.ends.len())
        };
        let fingerprints = self.fingerprints.filter(|_| kind == KeyspaceKind::Tuple);
        let fingerprints = fingerprints.and_then(|bytes| decode_fingerprints(&bytes).ok()).filter(fits);
        Some(FoundMeta {
            header: self.header?,
            content,
            tombstones: self.tombstones.and_then(|bytes| tombstones_of(&bytes).ok()),
            fingerprints,
            is_whole,
            is_adopted: false,
        })
    }
}

/// All pieces in `zone` whose index is whole, by keyspace and number, with the address of a blob; one that
/// has its fingerprints comes before one that has not. With `salt`, those with a stamp alone: others may be
/// content of files, or what another store has left on the device. A piece of range tombstones alone may be
/// of either kind: it has none.
pub(super) fn strays(
    zone: &SalvageStream<'_>,
    salt: Option<u32>,
    all: &mut HashMap<(u32, u64), (u64, Option<KeyspaceKind>, FoundMeta)>,
) {
    for (addr, header) in zone.all_frames(|_, sector| PieceMetaHeader::peek(sector)) {
        if salt.is_some_and(|salt| !is_stamped(zone, addr, &header, salt)) {
            continue;
        }
        let mut parts = Parts::default();
        parts.take(PieceMetaHeader::peek, &zone.read(addr, header.meta_len().into()));
        // Pieces of tuples have fingerprints, those of blocks have none.
        let kind = if header.fingerprints.is_empty() { KeyspaceKind::Block } else { KeyspaceKind::Tuple };
        let Some(found) = parts.decode(kind, true) else { continue };
        let has_data = !matches!(&found.content, Some(Content::Blocks(layers)) if layers.is_empty());
        let kind = has_data.then_some(kind);
        let is_better = all
            .get(&header.owner())
            .is_none_or(|(.., known)| known.fingerprints.is_none() && found.fingerprints.is_some());
        if found.content.is_some() && found.tombstones.is_some() && is_better {
            all.insert(header.owner(), (addr, kind, found));
        }
    }
}

/// Whether the store's stamp is behind the blob at `addr`, or behind what a copy has of it.
fn is_stamped(zone: &SalvageStream<'_>, addr: u64, header: &PieceMetaHeader, salt: u32) -> bool {
    let stamp = header.stamp(salt);
    let is_at = |end: u32| {
        let in_sector = u64::from(end) % SECTOR_BYTES;
        let tail = zone.read(addr + u64::from(end) - in_sector, in_sector + stamp.len() as u64);
        tail.ends_with(&stamp)
    };
    is_at(header.meta_len()) || is_at(copied_len(header))
}

/// The length of a blob on the device, as extents have it.
pub(super) fn padded(len: u32) -> u32 {
    len.next_multiple_of(SECTOR_BYTES as u32)
}
