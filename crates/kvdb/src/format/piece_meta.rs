//! The metadata blob of a piece: header, sparse index, range tombstones, key fingerprints.
//!
//! Layout in `docs/FORMAT.md`, "Pieces". Thread safety: pure functions. Invariant: decoders check
//! order and sums and never panic; they are given sections whose checksum matched.

mod storage;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use kvfs_store::{Compression, Seqno};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::codec::{DecodeError, Decoder, Sink};
use super::region::{Layer, Region, SeqnoSpan, Unit, cmp_block_keys};
use super::varint::{KeyBudget, put_key, put_varint_delta, take_key, varint_delta};
use super::{Codec, Extent, SECTOR_BYTES};
use storage::{decode_packed_block, decode_storage, encode_storage};

/// The letters `KVpm`.
const MAGIC: u32 = u32::from_le_bytes(*b"KVpm");

/// Length and checksum of one section of the blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Section {
    len: U32,
    crc: U32,
}

impl Section {
    /// Describes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self { len: (bytes.len() as u32).into(), crc: super::crc32c(bytes).into() }
    }

    /// Length (bytes).
    pub fn len(&self) -> usize {
        self.len.get() as usize
    }

    /// Whether the section has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `bytes` are those that were described.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        bytes.len() == self.len() && super::crc32c(bytes) == self.crc.get()
    }
}

/// Start of the metadata blob. The manifest has its CRC-32C, and it has those of the sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct PieceMetaHeader {
    magic: U32,
    keyspace: U32,
    piece: U64,
    /// Sparse index, directly behind the header.
    pub index: Section,
    /// Range tombstones, directly behind the index.
    pub tombstones: Section,
    /// Key fingerprints, directly behind the tombstones.
    pub fingerprints: Section,
}

impl PieceMetaHeader {
    /// Size on disk.
    pub const BYTES: usize = 40;
    /// Size of the stamp, which is right behind the blob, and behind each copy of its start.
    pub const STAMP_BYTES: usize = 4;

    /// The header of the blob of `piece`.
    pub fn new(keyspace: u32, piece: u64, sections: [Section; 3]) -> Self {
        let [index, tombstones, fingerprints] = sections;
        Self {
            magic: MAGIC.into(),
            keyspace: keyspace.into(),
            piece: piece.into(),
            index,
            tombstones,
            fingerprints,
        }
    }

    /// Length of the blob (bytes).
    pub fn meta_len(&self) -> u32 {
        (Self::BYTES + self.index.len() + self.tombstones.len() + self.fingerprints.len()) as u32
    }

    /// CRC-32C of the header, which the manifest keeps.
    pub fn crc(&self) -> u32 {
        super::crc32c(self.as_bytes())
    }

    /// The bytes on disk.
    pub fn encode(&self) -> &[u8] {
        self.as_bytes()
    }

    /// What tells that a store with this salt has written the blob: users, who do not know the salt, can't
    /// make it.
    pub fn stamp(&self, salt: u32) -> [u8; Self::STAMP_BYTES] {
        let mut crc = super::Crc32c::salted(salt);
        crc.update(self.as_bytes());
        crc.finish().to_le_bytes()
    }

    /// Keyspace and piece that it is about.
    pub fn owner(&self) -> (u32, u64) {
        (self.keyspace.get(), self.piece.get())
    }

    /// What looks like the start of a blob: only the checksums of the sections tell whether it is one.
    pub fn peek(bytes: &[u8]) -> Option<Self> {
        let (header, _) = Self::read_from_prefix(bytes).ok()?;
        let sections = [header.index, header.tombstones, header.fingerprints];
        let len: u64 = sections.iter().map(|section| section.len() as u64).sum();
        (header.magic.get() == MAGIC && len <= u64::from(u32::MAX) / 2).then_some(header)
    }

    /// Decodes the start of a blob, which must be that of `piece` and have the length `meta_len`.
    ///
    /// # Errors
    /// What does not match.
    pub fn decode(
        bytes: &[u8],
        keyspace: u32,
        piece: u64,
        meta_len: u32,
        crc: u32,
    ) -> Result<Self, DecodeError> {
        let (header, _) =
            Self::read_from_prefix(bytes).map_err(|_| DecodeError("shorter than its header"))?;
        if header.magic.get() != MAGIC {
            return Err(DecodeError("no metadata here (wrong magic number)"));
        }
        if header.crc() != crc {
            return Err(DecodeError("checksum of the header does not match"));
        }
        if header.keyspace.get() != keyspace || header.piece.get() != piece {
            return Err(DecodeError("belongs to another piece"));
        }
        let len = Self::BYTES + header.index.len() + header.tombstones.len() + header.fingerprints.len();
        if len != meta_len as usize {
            return Err(DecodeError("the sections do not add up to the length"));
        }
        Ok(header)
    }
}

const _: () = assert!(size_of::<PieceMetaHeader>() == PieceMetaHeader::BYTES);

/// What the sparse index says of one tuple block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TupleEntry {
    /// Smallest key.
    pub first_key: Bytes,
    /// Greatest key (inclusive).
    pub last_key: Bytes,
    /// Place on the device, padding included.
    pub extent: Extent,
    /// Bytes of the block, padding excluded.
    pub bytes: u32,
    /// Number of records.
    pub records: u32,
    /// Checksum in the header of the block.
    pub crc: u32,
    /// `HAS_…` bits.
    pub flags: u8,
    /// Smallest seqno.
    pub seqno_min: Seqno,
    /// Greatest seqno.
    pub seqno_max: Seqno,
    /// What is added to each seqno that the block itself states; the two above have it in them already.
    pub shift: Seqno,
    /// How the block was packed; `None`: it is there as it is.
    pub packed: Option<PackedBlock>,
}

/// What a reader must know of a packed tuple block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedBlock {
    /// How.
    pub codec: Codec,
    /// Bytes on the device, padding excluded.
    pub bytes: u32,
    /// Their CRC-32C.
    pub crc: u32,
}

impl TupleEntry {
    /// The block has a delete record.
    pub const HAS_DELETES: u8 = 1;
    /// The block has a merge record.
    pub const HAS_MERGES: u8 = 2;
    /// A key of the block has several versions, perhaps in the neighbouring block.
    pub const HAS_VERSIONS: u8 = 4;
    /// On the device only: a shift follows.
    const HAS_SHIFT: u8 = 8;
    /// On the device only: how it was packed follows.
    const IS_PACKED: u8 = 16;

    /// Counts the seqnos of the block from `base` on.
    pub fn rebase(&mut self, base: Seqno) {
        for seqno in [&mut self.seqno_min, &mut self.seqno_max, &mut self.shift] {
            *seqno = seqno.wrapping_add(base);
        }
    }
}

/// Appends the index of a tuple piece.
pub fn encode_tuples(out: &mut Vec<u8>, entries: &[TupleEntry]) {
    out.put_varint(entries.len() as u64);
    let mut previous: &[u8] = &[];
    let (mut sector, mut seqno) = (0, 0);
    for entry in entries {
        put_key(out, &entry.first_key, previous);
        put_key(out, &entry.last_key, &entry.first_key);
        put_varint_delta(out, entry.extent.addr / SECTOR_BYTES, sector);
        out.put_varint(entry.bytes.into());
        out.put_varint(entry.records.into());
        out.put_u32(entry.crc);
        let shifted = if entry.shift == 0 { 0 } else { TupleEntry::HAS_SHIFT };
        let packed = if entry.packed.is_none() { 0 } else { TupleEntry::IS_PACKED };
        out.put_varint((entry.flags | shifted | packed).into());
        put_varint_delta(out, entry.seqno_min, seqno);
        out.put_varint(entry.seqno_max - entry.seqno_min);
        if entry.shift != 0 {
            put_varint_delta(out, entry.shift, entry.seqno_min);
        }
        if let Some(packed) = &entry.packed {
            out.put_u8(packed.codec.code());
            out.put_varint(packed.bytes.into());
            out.put_u32(packed.crc);
        }
        previous = &entry.last_key;
        sector = (entry.extent.addr + u64::from(entry.extent.len)) / SECTOR_BYTES;
        seqno = entry.seqno_min;
    }
}

/// Decodes what [`encode_tuples`] wrote. All keys share one allocation.
///
/// # Errors
/// What is malformed.
pub fn decode_tuples(bytes: &[u8]) -> Result<Vec<TupleEntry>, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let count = count(&mut decoder)?;
    let mut entries = Vec::with_capacity(count);
    let mut arena = Vec::with_capacity(bytes.len());
    let mut key_ends = Vec::with_capacity(count * 2);
    let (mut key, mut budget) = (Vec::new(), KeyBudget::of(bytes.len()));
    let (mut sector, mut seqno) = (0, 0);
    for _ in 0..count {
        for _ in 0..2 {
            take_key(&mut decoder, &mut key)?;
            budget.take(&key)?;
            arena.extend_from_slice(&key);
            key_ends.push(arena.len());
        }
        let addr = sector_addr(varint_delta(&mut decoder, sector)?)?;
        let bytes = decoder.varint_u32()?;
        let records = decoder.varint_u32()?;
        let crc = decoder.u32()?;
        let flags = decoder.varint_u32()? as u8;
        let seqno_min = varint_delta(&mut decoder, seqno)?;
        let seqno_max = seqno_min.checked_add(decoder.varint()?).ok_or(DecodeError("a seqno overflows"))?;
        let has_shift = flags & TupleEntry::HAS_SHIFT != 0;
        let shift = if has_shift { varint_delta(&mut decoder, seqno_min)? } else { 0 };
        let is_packed = flags & TupleEntry::IS_PACKED != 0;
        let packed = if is_packed { Some(decode_packed_block(&mut decoder, bytes)?) } else { None };
        let stored = packed.map_or(bytes, |packed| packed.bytes);
        let len = stored.checked_next_multiple_of(SECTOR_BYTES as u32).filter(|&len| len > 0);
        let extent = Extent { addr, len: len.ok_or(DecodeError("a block has no or too many bytes"))? };
        let (first_key, last_key) = (Bytes::new(), Bytes::new());
        entries.push(TupleEntry {
            first_key,
            last_key,
            extent,
            bytes,
            records,
            crc,
            flags: flags & !(TupleEntry::HAS_SHIFT | TupleEntry::IS_PACKED),
            seqno_min,
            seqno_max,
            shift,
            packed,
        });
        sector = addr / SECTOR_BYTES + u64::from(extent.len) / SECTOR_BYTES;
        seqno = seqno_min;
    }
    end(&decoder)?;
    arena.shrink_to_fit();
    let arena = Bytes::from(arena);
    let mut at = 0;
    for (entry, ends) in entries.iter_mut().zip(key_ends.chunks_exact(2)) {
        entry.first_key = arena.slice(at..ends[0]);
        entry.last_key = arena.slice(ends[0]..ends[1]);
        at = ends[1];
    }
    let sorted = entries.iter().all(|entry| entry.first_key <= entry.last_key)
        && entries.windows(2).all(|pair| pair[0].last_key <= pair[1].first_key);
    if sorted { Ok(entries) } else { Err(DecodeError("the blocks are not in key order")) }
}

/// Appends the index of a block piece.
pub fn encode_layers(out: &mut Vec<u8>, layers: &[Layer]) {
    let plain = |region: Region<'_>| region.unit.is_none() && region.wish == Compression::None;
    let has_storage = !layers.iter().flat_map(Layer::regions).all(plain);
    if has_storage {
        // No layers, and yet something follows: what no index without storage says.
        out.put_varint(0);
    }
    out.put_varint(layers.len() as u64);
    for layer in layers {
        out.put_varint(layer.len() as u64);
        let mut previous: &[u8] = &[];
        let (mut block, mut sector, mut seqno) = (0, 0, 0);
        for region in layer.regions() {
            if region.prefix[..] != *previous {
                block = 0;
            }
            put_key(out, region.prefix, previous);
            put_varint_delta(out, region.first, block);
            out.put_varint(region.count.into());
            put_varint_delta(out, region.addr / SECTOR_BYTES, sector);
            if has_storage {
                encode_storage(out, &region);
            }
            out.put_varint(region.seqnos.len() as u64);
            for span in region.seqnos {
                out.put_varint(span.count.into());
                put_varint_delta(out, span.seqno, seqno);
                seqno = span.seqno;
            }
            previous = region.prefix;
            block = region.end();
            let extent = region.extent();
            sector = (extent.addr + u64::from(extent.len)) / SECTOR_BYTES;
        }
        for crc in layer.regions().flat_map(|region| region.crcs) {
            out.put_u32(*crc);
        }
    }
}

/// Decodes what [`encode_layers`] wrote.
///
/// # Errors
/// What is malformed.
pub fn decode_layers(bytes: &[u8]) -> Result<Vec<Layer>, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let mut layers = count(&mut decoder)?;
    let has_storage = layers == 0 && !decoder.is_empty();
    if has_storage {
        layers = count(&mut decoder)?;
    }
    let mut budget = KeyBudget::of(bytes.len());
    let mut layer = |_| decode_layer(&mut decoder, has_storage, &mut budget);
    let layers = (0..layers).map(&mut layer).collect::<Result<_, _>>()?;
    end(&decoder)?;
    Ok(layers)
}

struct RegionHead {
    prefix: Bytes,
    first: u64,
    count: u32,
    addr: u64,
    spans: usize,
    storage: (Compression, Option<Unit>),
}

impl RegionHead {
    fn crcs(&self) -> usize {
        if self.storage.1.is_some() { 1 } else { self.count as usize }
    }
}

fn decode_layer(
    decoder: &mut Decoder<'_>,
    has_storage: bool,
    budget: &mut KeyBudget,
) -> Result<Layer, DecodeError> {
    let count = count(decoder)?;
    let mut heads: Vec<RegionHead> = Vec::with_capacity(count);
    let mut spans = Vec::with_capacity(count);
    let mut key = Vec::new();
    let mut prefix = Bytes::new();
    let (mut block, mut sector, mut seqno, mut crcs_len) = (0, 0, 0, 0_usize);
    for _ in 0..count {
        take_key(decoder, &mut key)?;
        if prefix[..] != key[..] {
            budget.take(&key)?;
            prefix = Bytes::copy_from_slice(&key);
            block = 0;
        }
        let first = varint_delta(decoder, block)?;
        let count = decoder.varint_u32()?;
        let addr = sector_addr(varint_delta(decoder, sector)?)?;
        block = first.checked_add(count.into()).ok_or(DecodeError("a region ends past the last block"))?;
        let storage = if has_storage { decode_storage(decoder, count)? } else { (Compression::None, None) };
        let stored = storage.1.map_or(count, |unit| unit.stored_len() / SECTOR_BYTES as u32);
        sector = addr / SECTOR_BYTES + u64::from(stored);
        let before = heads.last().map(|last| (&last.prefix[..], last.first + u64::from(last.count) - 1));
        if before.is_some_and(|before| cmp_block_keys(before, (&prefix, first)).is_ge()) {
            return Err(DecodeError("the regions are not in order"));
        }
        let spans_at = spans.len();
        decode_spans(decoder, count, &mut seqno, &mut spans)?;
        let spans = spans.len() - spans_at;
        let head = RegionHead { prefix: prefix.clone(), first, count, addr, spans, storage };
        crcs_len += head.crcs();
        heads.push(head);
    }
    let crcs: Vec<u32> = decoder
        .take(crcs_len.checked_mul(4).ok_or(DecodeError("too many blocks"))?)?
        .as_chunks::<4>()
        .0
        .iter()
        .map(|crc| u32::from_le_bytes(*crc))
        .collect();
    let mut layer = Layer::default();
    let (mut crcs, mut spans) = (&crcs[..], &spans[..]);
    for head in &heads {
        let (region_crcs, region_spans);
        (region_crcs, crcs) = crcs.split_at(head.crcs());
        (region_spans, spans) = spans.split_at(head.spans);
        let (wish, unit) = head.storage;
        let region = Region {
            prefix: &head.prefix,
            first: head.first,
            count: head.count,
            addr: head.addr,
            seqnos: region_spans,
            crcs: region_crcs,
            wish,
            unit,
        };
        layer.push(region, |_, _| false);
    }
    layer.shrink_to_fit();
    Ok(layer)
}

fn decode_spans(
    decoder: &mut Decoder<'_>,
    blocks: u32,
    seqno: &mut Seqno,
    spans: &mut Vec<SeqnoSpan>,
) -> Result<(), DecodeError> {
    let mut left = blocks;
    for _ in 0..count(decoder)? {
        let count = decoder.varint_u32()?;
        left = left.checked_sub(count).ok_or(DecodeError("more seqnos than blocks"))?;
        *seqno = varint_delta(decoder, *seqno)?;
        if count == 0 {
            return Err(DecodeError("a seqno of no block"));
        }
        spans.push(SeqnoSpan { count, seqno: *seqno });
    }
    if left > 0 || blocks == 0 {
        return Err(DecodeError("fewer seqnos than blocks, or no blocks"));
    }
    Ok(())
}

/// Appends range tombstones, sorted by start.
pub fn encode_tombstones<'a>(
    out: &mut Vec<u8>,
    count: usize,
    tombstones: impl Iterator<Item = (&'a [u8], &'a [u8], Seqno)>,
) {
    out.put_varint(count as u64);
    let mut previous: &[u8] = &[];
    let mut seqno_previous = 0;
    for (start, end, seqno) in tombstones {
        put_key(out, start, previous);
        put_key(out, end, start);
        put_varint_delta(out, seqno, seqno_previous);
        previous = start;
        seqno_previous = seqno;
    }
}

/// Decodes what [`encode_tombstones`] wrote: start, end, seqno.
///
/// # Errors
/// What is malformed.
pub fn decode_tombstones(bytes: &[u8]) -> Result<Vec<(Bytes, Bytes, Seqno)>, DecodeError> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut decoder = Decoder::new(bytes);
    let count = count(&mut decoder)?;
    let mut tombstones = Vec::with_capacity(count);
    let (mut start, mut end_key, mut seqno) = (Vec::new(), Vec::new(), 0);
    let mut budget = KeyBudget::of(bytes.len());
    for _ in 0..count {
        take_key(&mut decoder, &mut start)?;
        end_key.clone_from(&start);
        take_key(&mut decoder, &mut end_key)?;
        budget.take(&start).and_then(|()| budget.take(&end_key))?;
        seqno = varint_delta(&mut decoder, seqno)?;
        if start >= end_key {
            return Err(DecodeError("a range tombstone over nothing"));
        }
        tombstones.push((Bytes::copy_from_slice(&start), Bytes::copy_from_slice(&end_key), seqno));
    }
    end(&decoder)?;
    Ok(tombstones)
}

/// Key fingerprints, block by block: what the filter is built from, and what a stitched block
/// brings along, so that its keys are not read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fingerprints {
    /// Where the fingerprints of each block end in `values`.
    pub ends: Vec<u32>,
    /// The fingerprints.
    pub values: Vec<u32>,
}

impl Fingerprints {
    /// The fingerprints of the block at `index`.
    pub fn of_block(&self, index: usize) -> &[u32] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.values[start as usize..self.ends[index] as usize]
    }

    /// Ends the current block.
    pub fn end_block(&mut self) {
        self.ends.push(self.values.len() as u32);
    }
}

/// Appends the fingerprints.
pub fn encode_fingerprints(out: &mut Vec<u8>, fingerprints: &Fingerprints) {
    let mut previous = 0;
    for &end in &fingerprints.ends {
        out.put_varint(u64::from(end - previous));
        previous = end;
    }
    out.reserve(fingerprints.values.len() * 4);
    for &value in &fingerprints.values {
        out.put_u32(value);
    }
}

/// Decodes what [`encode_fingerprints`] wrote, of as many blocks as add up to its length.
///
/// # Errors
/// What is malformed.
pub fn decode_fingerprints(bytes: &[u8]) -> Result<Fingerprints, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let (mut ends, mut end) = (Vec::new(), 0_u32);
    // With each number of a block less is left and more is needed, so at most one count of blocks adds up.
    while decoder.len() > end as usize * 4 {
        let count = decoder.varint_u32()?;
        end = end.checked_add(count).ok_or(DecodeError("too many fingerprints"))?;
        ends.push(end);
    }
    if decoder.len() != end as usize * 4 {
        return Err(DecodeError("the fingerprints do not add up to the length"));
    }
    let (chunks, _) = decoder.take(decoder.len())?.as_chunks::<4>();
    Ok(Fingerprints { ends, values: chunks.iter().map(|value| u32::from_le_bytes(*value)).collect() })
}

/// A number of things that take at least one byte each: an absurd one fails before memory is taken.
fn count(decoder: &mut Decoder<'_>) -> Result<usize, DecodeError> {
    let count = decoder.varint()?;
    usize::try_from(count)
        .ok()
        .filter(|&count| count <= decoder.len())
        .ok_or(DecodeError("counts more than its bytes can hold"))
}

fn sector_addr(sector: u64) -> Result<u64, DecodeError> {
    sector.checked_mul(SECTOR_BYTES).ok_or(DecodeError("an address is past the end of any device"))
}

fn end(decoder: &Decoder<'_>) -> Result<(), DecodeError> {
    if decoder.is_empty() { Ok(()) } else { Err(DecodeError("bytes are left over")) }
}
