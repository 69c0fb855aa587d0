//! Pieces that no writer has made.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::{AlignedBuf, Device};
use kvfs_store::{BLOCK_BYTES, Compression, KeyspaceKind, StoreError};

use super::{KEYSPACE, Rig, small_options};
use crate::format::{
    Extent, Layer, Packer, PieceDesc, PieceId, PieceMetaHeader, Region, Section, SeqnoSpan, TupleEntry, Unit,
    crc32c, encode_layers, encode_tuples,
};
use crate::memtable::BlockFill;
use crate::space::{Budget, Stream};
use crate::table::Piece;
use crate::table::held::zone_uses;

const ZONE_BYTES: u32 = 64 << 10;

/// So many bytes that the piece will have.
fn allocate(rig: &Rig, len: u32) -> Extent {
    rig.ctx.zones.allocate(Stream::FlushBlock, len, Budget::Ordinary).expect("there is space")
}

/// A piece with this index and `data`; its metadata lies in a zone of its own, where the manifest says so as
/// often as `times`.
fn open(rig: &Rig, kind: KeyspaceKind, index: &[u8], data: Extent, times: usize) -> Arc<Piece> {
    let header = PieceMetaHeader::new(KEYSPACE, 77, [Section::of(index), Section::of(&[]), Section::of(&[])]);
    let blob = AlignedBuf::from_slice(&[header.encode(), index].concat());
    let meta = rig.ctx.zones.allocate(Stream::Meta, blob.len() as u32, Budget::Ordinary);
    let meta = meta.expect("there is space");
    rig.device.write_at(blob.as_ref(), meta.addr).expect("writes");
    let desc = PieceDesc {
        id: PieceId(77),
        first_key: Bytes::new(),
        last_key: Bytes::from_static(&[0xff; 16]),
        seqno_min: 1,
        seqno_max: 1,
        data_bytes: data.len.into(),
        records: 1,
        tombstones: 0,
        meta: vec![meta; times],
        meta_len: header.meta_len(),
        meta_crc: header.crc(),
        zones: zone_uses(&rig.ctx.zones, vec![data, meta]),
    };
    Piece::open(Arc::clone(&rig.ctx), KEYSPACE, kind, &desc, 0).expect("has no range tombstones")
}

/// `Corrupt`, and it names the piece.
fn assert_corrupt<T>(result: Result<T, StoreError>, what: &str) {
    match result.map(drop) {
        Err(StoreError::Corrupt { place, .. }) => {
            assert!(place.contains(&format!("piece 77 of keyspace {KEYSPACE}")), "{what}: {place}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

fn tuple_index(addr: u64, bytes: u32) -> Vec<u8> {
    let mut index = Vec::new();
    let key = Bytes::from_static(b"key");
    let entry = TupleEntry {
        first_key: key.clone(),
        last_key: key,
        extent: Extent { addr, len: bytes.next_multiple_of(4096) },
        bytes,
        records: 1,
        crc: 0,
        flags: 0,
        seqno_min: 1,
        seqno_max: 1,
        shift: 0,
        packed: None,
    };
    encode_tuples(&mut index, &[entry]);
    index
}

/// A region: first block, number, place, unit, checksums.
type Place = (u64, u32, u64, Option<Unit>, Vec<u32>);

/// Regions of one prefix.
fn block_index(regions: &[Place]) -> Vec<u8> {
    let (mut layer, prefix, mut index) = (Layer::default(), Bytes::from_static(b"f"), Vec::new());
    for &(first, count, addr, unit, ref crcs) in regions {
        let (seqnos, wish) = (&[SeqnoSpan { count, seqno: 1 }], Compression::Lz4);
        let region = Region { prefix: &prefix, first, count, addr, seqnos, crcs, wish, unit };
        layer.push(region, |_, _| false);
    }
    encode_layers(&mut index, &[layer]);
    index
}

fn read(piece: &Piece, first: u64, count: usize) -> Result<Vec<u8>, StoreError> {
    let mut buf = vec![0xee; count * BLOCK_BYTES];
    piece.fill(&mut BlockFill::new(b"f", first, 9, &mut buf))?;
    Ok(buf)
}

#[test]
fn index_that_names_what_the_piece_does_not_have_is_corrupt() {
    let rig = Rig::new(ZONE_BYTES, small_options());
    let data = allocate(&rig, 8192);
    let (zone, others) = (data.addr - data.addr % u64::from(ZONE_BYTES), u64::from(ZONE_BYTES) * 9);
    let places = [
        ("in a zone of others", zone + others, 4096),
        ("behind its bytes", data.addr + 8192, 4096),
        ("partly behind its bytes", data.addr + 4096, 8192),
        ("in no zone", 1 << 50, 4096),
        ("where zones have the same number in 32 bits", (u64::from(ZONE_BYTES) << 32) + data.addr, 4096),
        ("at the end of all addresses", u64::MAX - 8191, 4096),
    ];
    for (what, addr, bytes) in places {
        let retained = || rig.ctx.zones.retain(data);
        retained();
        let piece = open(&rig, KeyspaceKind::Tuple, &tuple_index(addr, bytes), data, 1);
        assert_corrupt(piece.index(), what);
        assert_corrupt(piece.verify(), what);
        retained();
        let count = bytes / 4096;
        let index = block_index(&[(0, count, addr, None, vec![0; count as usize])]);
        let piece = open(&rig, KeyspaceKind::Block, &index, data, 1);
        assert_corrupt(piece.index(), what);
        assert_corrupt(read(&piece, 0, 1), what);
    }
    for times in [1, 2, 4000] {
        let rig = Rig::new(ZONE_BYTES, small_options());
        let data = allocate(&rig, 8192);
        let piece = open(&rig, KeyspaceKind::Tuple, &tuple_index(data.addr, 8000), data, times);
        if times == 1 {
            piece.index().expect("all of it is there");
        } else {
            assert_corrupt(piece.index(), "metadata in one place many times");
        }
    }
}

#[test]
fn place_that_an_index_names_in_several_shapes_is_read_right_or_is_corrupt() {
    let rig = Rig::new(ZONE_BYTES, small_options());
    let data = allocate(&rig, 8192);
    let raw: Vec<u8> = (0..4 * BLOCK_BYTES).map(|at| (at / BLOCK_BYTES) as u8).collect();
    let mut packer = Packer::default();
    let (codec, stored) = packer.pack(&raw, Compression::Lz4).expect("shrinks");
    let on_device = AlignedBuf::from_slice(stored);
    rig.device.write_at(on_device.as_ref(), data.addr).expect("writes");
    let unit = Unit { codec, bytes: stored.len() as u32, blocks: 4, skip: 0 };
    let crc = vec![crc32c(stored)];
    let index = block_index(&[
        // Longer than the one behind it, at the same place.
        (0, 4, data.addr, Some(Unit { bytes: 5000, ..unit }), vec![7]),
        (4, 4, data.addr, Some(unit), crc.clone()),
        // Of more blocks.
        (8, 1, data.addr, Some(Unit { blocks: 8, skip: 7, ..unit }), crc.clone()),
        (20, 1, data.addr, None, vec![crc32c(on_device.as_ref())]),
    ]);
    let piece = open(&rig, KeyspaceKind::Block, &index, data, 1);
    for round in 0..2 {
        assert!(read(&piece, 4, 4).expect("is packed") == raw, "round {round}");
        assert!(read(&piece, 20, 1).expect("is plain") == on_device.as_ref(), "round {round}");
        assert_corrupt(read(&piece, 4, 5), "part of another unit");
        assert_corrupt(read(&piece, 8, 1), "of more blocks");
        rig.make_cold(&piece);
        assert_corrupt(read(&piece, 0, 8), "two lengths");
        assert!(read(&piece, 20, 1).expect("is plain") == on_device.as_ref(), "round {round}");
        assert!(read(&piece, 5, 1).expect("is packed") == raw[BLOCK_BYTES..2 * BLOCK_BYTES]);
    }
    assert_corrupt(piece.verify(), "all of it");
}
