use kvfs_device::Rng;

use super::*;

fn key(rng: &mut Rng) -> Bytes {
    let len = rng.range(0, 9) as usize;
    (0..len).map(|_| b'a' + rng.below(3) as u8).collect::<Vec<_>>().into()
}

fn tuple_entries(rng: &mut Rng) -> Vec<TupleEntry> {
    let count = rng.below(40) as usize;
    let mut keys: Vec<Bytes> = (0..count * 2).map(|_| key(rng)).collect();
    keys.sort();
    keys.chunks_exact(2)
        .map(|pair| {
            let bytes = rng.range(1, 100_000) as u32;
            let packed = rng.chance(1, 3).then(|| PackedBlock {
                codec: if rng.chance(1, 2) { Codec::Lz4 } else { Codec::Zstd },
                bytes: rng.below(bytes.into()) as u32,
                crc: rng.next_u64() as u32,
            });
            let packed = packed.filter(|packed| packed.bytes > 0);
            let stored = packed.map_or(bytes, |packed| packed.bytes);
            let seqno_min = rng.next_u64() >> rng.range(8, 60);
            TupleEntry {
                first_key: pair[0].clone(),
                last_key: pair[1].clone(),
                extent: Extent { addr: rng.below(1 << 40) * 4096, len: stored.next_multiple_of(4096) },
                bytes,
                records: rng.next_u64() as u32,
                crc: rng.next_u64() as u32,
                flags: rng.below(8) as u8,
                seqno_min,
                seqno_max: seqno_min + rng.below(1000),
                shift: if rng.chance(1, 3) { rng.below(seqno_min.max(1)) } else { 0 },
                packed,
            }
        })
        .collect()
}

/// How a region of `count` blocks was to be stored, and was.
fn storage(rng: &mut Rng, count: u32) -> (Compression, Option<Unit>) {
    let wishes = [Compression::None, Compression::Lz4, Compression::Zstd(3)];
    let blocks = rng.range(count.max(2).into(), 65) as u32;
    let unit = Unit {
        codec: if rng.chance(1, 2) { Codec::Lz4 } else { Codec::Zstd },
        bytes: rng.range(1, u64::from(blocks) * 4096) as u32,
        blocks,
        skip: rng.below(u64::from(blocks - count) + 1) as u32,
    };
    (wishes[rng.index(3)], rng.chance(1, 2).then_some(unit))
}

fn layer(rng: &mut Rng, has_storage: bool) -> Layer {
    let mut layer = Layer::default();
    let mut prefixes: Vec<Bytes> = (0..4).map(|_| key(rng)).collect();
    prefixes.sort();
    prefixes.dedup();
    for prefix in &prefixes {
        let mut block = 0;
        for _ in 0..rng.below(10) {
            let first = block + rng.below(3) * (rng.next_u64() >> 30);
            let count = rng.range(1, 30) as u32;
            let split = rng.below(count.into()) as u32;
            let mut seqnos = vec![SeqnoSpan { count: count - split, seqno: rng.below(1 << 50) }];
            if split > 0 {
                seqnos.push(SeqnoSpan { count: split, seqno: rng.below(1 << 50) });
            }
            let addr = rng.below(1 << 40) * 4096;
            let (wish, unit) = if has_storage { storage(rng, count) } else { (Compression::None, None) };
            let crcs = if unit.is_some() { 1 } else { count };
            let crcs: Vec<u32> = (0..crcs).map(|_| rng.next_u64() as u32).collect();
            let region = Region { prefix, first, count, addr, seqnos: &seqnos, crcs: &crcs, wish, unit };
            layer.push(region, |_, _| false);
            block = first + u64::from(count);
        }
    }
    layer
}

#[test]
fn tuple_index_round_trips() {
    for seed in 0..200 {
        let entries = tuple_entries(&mut Rng::new(seed));
        let mut out = Vec::new();
        encode_tuples(&mut out, &entries);
        assert_eq!(decode_tuples(&out).as_ref(), Ok(&entries), "seed {seed}");
    }
}

#[test]
fn layers_round_trip() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let layers: Vec<Layer> = (0..rng.below(4)).map(|_| layer(&mut rng, seed % 2 == 0)).collect();
        let mut out = Vec::new();
        encode_layers(&mut out, &layers);
        let decoded = decode_layers(&out).expect("own encoding");
        assert_eq!(decoded.len(), layers.len());
        for (a, b) in layers.iter().zip(&decoded) {
            assert!(a.regions().eq(b.regions()), "seed {seed}");
        }
    }
}

#[test]
fn tombstones_and_fingerprints_round_trip() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut tombstones: Vec<(Bytes, Bytes, Seqno)> = (0..rng.below(30))
            .map(|_| (key(&mut rng), key(&mut rng), rng.next_u64()))
            .filter(|(start, end, _)| start < end)
            .collect();
        tombstones.sort();
        let mut out = Vec::new();
        encode_tombstones(
            &mut out,
            tombstones.len(),
            tombstones.iter().map(|(s, e, n)| (&s[..], &e[..], *n)),
        );
        assert_eq!(decode_tombstones(&out).as_ref(), Ok(&tombstones), "seed {seed}");

        let mut fingerprints = Fingerprints::default();
        let blocks = rng.below(20) as usize;
        for _ in 0..blocks {
            fingerprints.values.extend((0..rng.below(100)).map(|_| 7_u32));
            fingerprints.end_block();
        }
        out.clear();
        encode_fingerprints(&mut out, &fingerprints);
        assert_eq!(decode_fingerprints(&out).as_ref(), Ok(&fingerprints), "seed {seed}");
    }
}

#[test]
fn damage_never_panics() {
    let mut rng = Rng::new(3);
    let mut images = [Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    encode_tuples(&mut images[0], &tuple_entries(&mut rng));
    encode_layers(&mut images[1], &[layer(&mut rng, false), layer(&mut rng, false)]);
    encode_tombstones(&mut images[2], 2, [(&b"a"[..], &b"b"[..], 7), (b"ab", b"c", 5)].into_iter());
    encode_fingerprints(&mut images[3], &Fingerprints { ends: vec![2, 3], values: vec![1, 2, 3] });
    encode_layers(&mut images[4], &[layer(&mut rng, true), layer(&mut rng, true)]);
    for _ in 0..5000 {
        for image in &images {
            let mut damaged = image.clone();
            let at = rng.index(damaged.len());
            damaged[at] = rng.next_u64() as u8;
            damaged.truncate(rng.range(1, damaged.len() as u64 + 1) as usize);
            let _ = decode_tuples(&damaged);
            let _ = decode_layers(&damaged);
            let _ = decode_tombstones(&damaged);
            let _ = decode_fingerprints(&damaged);
        }
    }
}

#[test]
fn header_refuses_other_pieces_and_damage() {
    let sections = [Section::of(b"index"), Section::of(b""), Section::of(b"prints")];
    let header = PieceMetaHeader::new(3, 77, sections);
    let len = (PieceMetaHeader::BYTES + 11) as u32;
    let crc = crate::format::crc32c(header.encode());
    assert_eq!(PieceMetaHeader::decode(header.encode(), 3, 77, len, crc), Ok(header));
    assert!(PieceMetaHeader::decode(header.encode(), 4, 77, len, crc).is_err());
    assert!(PieceMetaHeader::decode(header.encode(), 3, 78, len, crc).is_err());
    assert!(PieceMetaHeader::decode(header.encode(), 3, 77, len + 1, crc).is_err());
    for bit in 0..PieceMetaHeader::BYTES * 8 {
        let mut damaged = header.encode().to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(PieceMetaHeader::decode(&damaged, 3, 77, len, crc).is_err(), "bit {bit}");
    }
}

/// Entries with these keys, which share what they can.
fn tuples_of(count: usize, key: &Bytes) -> Vec<u8> {
    let entry = TupleEntry {
        first_key: key.clone(),
        last_key: key.clone(),
        extent: Extent { addr: 0, len: 4096 },
        bytes: 4096,
        records: 1,
        crc: 0,
        flags: 0,
        seqno_min: 0,
        seqno_max: 0,
        shift: 0,
        packed: None,
    };
    let mut section = Vec::new();
    encode_tuples(&mut section, &vec![entry; count]);
    section
}

fn layers_of(count: usize, key: &Bytes) -> Vec<u8> {
    let mut layer = Layer::default();
    for n in 0..count as u64 {
        let prefix = Bytes::from([key, &n.to_be_bytes()[..]].concat());
        let (seqnos, crcs, wish) = (&[SeqnoSpan { count: 1, seqno: 1 }], &[0], Compression::None);
        let region = Region { prefix: &prefix, first: 0, count: 1, addr: 0, seqnos, crcs, wish, unit: None };
        layer.push(region, |_, _| false);
    }
    let mut section = Vec::new();
    encode_layers(&mut section, &[layer]);
    section
}

fn tombstones_of(count: usize, key: &Bytes) -> Vec<u8> {
    let (end, mut section) = ([&key[..], &[0]].concat(), Vec::new());
    encode_tombstones(&mut section, count, (0..count).map(|_| (&key[..], &end[..], 1)));
    section
}

#[test]
fn sections_of_many_long_keys_are_read_and_those_of_too_long_ones_refused() {
    type Encode = fn(usize, &Bytes) -> Vec<u8>;
    type Decode = fn(&[u8]) -> Result<usize, DecodeError>;
    let sections: [(&str, Encode, Decode); 3] = [
        ("tuples", tuples_of, |section| decode_tuples(section).map(|entries| entries.len())),
        ("layers", layers_of, |section| decode_layers(section).map(|layers| layers[0].len())),
        ("tombstones", tombstones_of, |section| decode_tombstones(section).map(|all| all.len())),
    ];
    for (what, encode, decode) in sections {
        let longest = Bytes::from(vec![7; kvfs_store::KEY_LEN_MAX - 8]);
        // Range tombstones of several tables come to more than one piece has of anything else.
        for (count, key) in [(30_000, &longest), (100_000, &Bytes::from_static(b"a short key"))] {
            assert_eq!(decode(&encode(count, key)), Ok(count), "{what}");
        }
        let longer = Bytes::from(vec![7; kvfs_store::KEY_LEN_MAX + 10]);
        assert!(decode(&encode(1, &longer)).is_err(), "{what}: a key that can't be");
    }
}
