//! The metadata of a damaged piece, put together from what is whole: the blob that the manifest names, and the
//! copies beside the data.

use std::collections::HashMap;
use std::sync::Arc;

use kvfs_device::{AlignedBuf, read_around};
use kvfs_store::KeyspaceKind;

use super::scan::{Scan, for_each_sector};
use crate::format::{Fingerprints, PieceDesc, PieceMetaHeader, SECTOR_BYTES, decode_fingerprints};
use crate::memtable::TombstoneSet;
use crate::run::RunContext;
use crate::run::index::Content;
use crate::run::meta_read::tombstones_of;

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
}

/// Looks for the metadata of `desc`; `None` when no header of it is left.
pub(super) fn find(
    ctx: &Arc<RunContext>,
    keyspace: u32,
    kind: KeyspaceKind,
    desc: &PieceDesc,
) -> Option<FoundMeta> {
    let mut found = Parts::default();
    found.look_at(&named_blob(ctx, desc), keyspace, desc);
    let is_whole = found.is_whole();
    if found.index.is_none() || found.tombstones.is_none() {
        for blob in copies(ctx, keyspace, desc) {
            found.look_at(&blob, keyspace, desc);
        }
    }
    let header = found.header?;
    let content = found.index.and_then(|index| Content::decode(kind, &index).ok());
    let blocks = match &content {
        Some(Content::Tuples(entries)) => Some(entries.len()),
        _ => None,
    };
    let fingerprints = found.fingerprints.and_then(|bytes| decode_fingerprints(&bytes, blocks?).ok());
    Some(FoundMeta {
        header,
        content,
        tombstones: found.tombstones.and_then(|bytes| tombstones_of(&bytes).ok()),
        fingerprints,
        is_whole,
    })
}

/// Sections that matched their checksums.
#[derive(Default)]
struct Parts {
    header: Option<PieceMetaHeader>,
    index: Option<Vec<u8>>,
    tombstones: Option<Vec<u8>>,
    fingerprints: Option<Vec<u8>>,
}

impl Parts {
    fn is_whole(&self) -> bool {
        self.index.is_some() && self.tombstones.is_some() && self.fingerprints.is_some()
    }

    fn look_at(&mut self, blob: &[u8], keyspace: u32, desc: &PieceDesc) {
        let decoded = PieceMetaHeader::decode(blob, keyspace, desc.id.0, desc.meta_len, desc.meta_crc);
        let Some(header) = decoded.ok().or(self.header) else { return };
        self.header = Some(header);
        let mut from = PieceMetaHeader::BYTES;
        let mut section = |section: &crate::format::Section, place: &mut Option<Vec<u8>>| {
            let bytes = blob.get(from..from + section.len());
            from += section.len();
            if let Some(bytes) = bytes.filter(|bytes| place.is_none() && section.matches(bytes)) {
                *place = Some(bytes.to_vec());
            }
        };
        section(&header.index, &mut self.index);
        section(&header.tombstones, &mut self.tombstones);
        section(&header.fingerprints, &mut self.fingerprints);
    }
}

/// The blob at the place that the manifest names, zeros where it can't be read.
fn named_blob(ctx: &RunContext, desc: &PieceDesc) -> Vec<u8> {
    let mut blob = Vec::with_capacity(desc.meta_len as usize);
    for extent in &desc.meta {
        let mut buf = AlignedBuf::zeroed(extent.len as usize);
        read_around(ctx.device.as_ref(), buf.as_mut(), extent.addr);
        blob.extend_from_slice(buf.as_ref());
    }
    blob.truncate(desc.meta_len as usize);
    blob
}

/// What lies behind each header of the piece in its zones, up to the end of the zone.
fn copies(ctx: &RunContext, keyspace: u32, desc: &PieceDesc) -> Vec<Vec<u8>> {
    let mut blobs = Vec::new();
    for zone_use in &desc.zones {
        let scan = Scan::of(ctx, zone_use.zone);
        for_each_sector(&scan, |addr, sector| {
            let decoded = PieceMetaHeader::decode(sector, keyspace, desc.id.0, desc.meta_len, desc.meta_crc);
            if let Ok(header) = decoded {
                let len = PieceMetaHeader::BYTES + header.index.len() + header.tombstones.len();
                blobs.push(scan.read(addr, len));
            }
        });
    }
    blobs
}

/// A piece that was found without the manifest.
pub(super) struct Stray {
    pub(super) header: PieceMetaHeader,
    pub(super) kind: KeyspaceKind,
    pub(super) content: Content,
    pub(super) tombstones: TombstoneSet,
    pub(super) fingerprints: Option<Fingerprints>,
    /// Where the longest blob of it lies.
    pub(super) addr: u64,
}

/// All pieces in the zone of `scan` whose index is whole, by keyspace and number; one that has its fingerprints comes
/// before one that has not.
pub(super) fn strays(scan: &Scan<'_>, all: &mut HashMap<(u32, u64), Stray>) {
    for_each_sector(scan, |addr, sector| {
        let Some(header) = PieceMetaHeader::peek(sector) else { return };
        let blob = scan.read(addr, header.meta_len() as usize);
        let (keyspace, piece) = header.owner();
        let index_end = PieceMetaHeader::BYTES + header.index.len();
        let tombstones_end = index_end + header.tombstones.len();
        let sections = [
            (&header.index, PieceMetaHeader::BYTES..index_end),
            (&header.tombstones, index_end..tombstones_end),
            (&header.fingerprints, tombstones_end..header.meta_len() as usize),
        ];
        let [index, tombstones, fingerprints] =
            sections.map(|(section, range)| blob.get(range).filter(|bytes| section.matches(bytes)));
        let (Some(index), Some(tombstones)) = (index, tombstones) else { return };
        let Ok(tombstones) = tombstones_of(tombstones) else { return };
        let as_kind = |kind| Content::decode(kind, index).ok().map(|content| (kind, content));
        // Pieces of tuples have fingerprints, those of blocks have none.
        let kind = if header.fingerprints.is_empty() { KeyspaceKind::Block } else { KeyspaceKind::Tuple };
        let Some((kind, content)) = as_kind(kind) else { return };
        let fingerprints = match &content {
            Content::Tuples(entries) => {
                fingerprints.and_then(|bytes| decode_fingerprints(bytes, entries.len()).ok())
            }
            Content::Blocks(_) => None,
        };
        let known = all.get(&(keyspace, piece));
        if known.is_none_or(|known| known.fingerprints.is_none() && fingerprints.is_some()) {
            all.insert((keyspace, piece), Stray { header, kind, content, tombstones, fingerprints, addr });
        }
    });
}

/// The length of a blob on the device, as extents have it.
pub(super) fn padded(len: u32) -> u32 {
    len.next_multiple_of(SECTOR_BYTES as u32)
}
