use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_device::{AlignedBuf, Call, Rng};
use kvfs_store::{BLOCK_BYTES, Compression, KeyspaceKind, Seqno};

use super::{Rig, small_options};
use crate::format::{RecordIter, SeqnoSpan};
use crate::memtable::{BlockFill, BlockState, Lookup, Outcome, block_key};
use crate::table::{Access, Piece, PieceWriter, RunOptions};

/// Versions of each block, newest first: seqno and content.
type Model = BTreeMap<(Vec<u8>, u64), Vec<(Seqno, Vec<u8>)>>;
/// A block and one version of it.
type Entry<'a> = (&'a (Vec<u8>, u64), &'a (Seqno, Vec<u8>));
type Tombstones = Vec<(Vec<u8>, Vec<u8>, Seqno)>;

const PREFIXES: [&[u8]; 3] = [b"aa", b"ab", b"b\0"];

fn random_block(rng: &mut Rng) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    rng.fill(&mut block);
    block
}

/// A block that shrinks, or in one of four cases does not.
fn soft_block(rng: &mut Rng) -> Vec<u8> {
    let mut block = random_block(rng);
    if !rng.chance(1, 4) {
        let noise = rng.range(1, 2000) as usize;
        block[noise..].fill(rng.below(256) as u8);
    }
    block
}

/// What a stretch is wished to be stored as; `None` for even seeds.
fn wish(seed: u64, rng: &mut Rng) -> Compression {
    let wishes = [Compression::None, Compression::Lz4, Compression::Lz4, Compression::Zstd(3)];
    if seed.is_multiple_of(2) { Compression::None } else { wishes[rng.index(wishes.len())] }
}

/// Bytes of a piece that would be there if nothing was packed, and that are.
fn bytes_raw_and_stored(piece: &Piece) -> (u64, u64) {
    (piece.raw_bytes(), piece.desc().data_bytes)
}

/// Blocks with holes, stretches, and in some stretches several versions.
fn random_model(rng: &mut Rng) -> Model {
    let mut model = Model::new();
    let mut seqno = 1000;
    for prefix in PREFIXES {
        for _ in 0..rng.range(1, 8) {
            let (first, count) = (rng.below(150), rng.range(1, 40));
            for block in first..first + count {
                if rng.chance(1, 8) {
                    seqno += 1;
                }
                let versions = model.entry((prefix.to_vec(), block)).or_default();
                let data = soft_block(rng);
                if versions.len() == 3 {
                    versions.pop();
                }
                if versions.first().is_none_or(|newest| newest.0 < seqno) {
                    versions.insert(0, (seqno, data));
                }
            }
            seqno += 1;
        }
    }
    model
}

fn layer_of(model: &Model, layer: usize) -> Vec<Entry<'_>> {
    model.iter().filter_map(|(key, versions)| Some((key, versions.get(layer)?))).collect()
}

/// Adds a layer in stretches of random length, as a flush would.
fn add_layer(seed: u64, writer: &mut PieceWriter, model: &Model, layer: usize, rng: &mut Rng) {
    let blocks = layer_of(model, layer);
    let adjacent = |a: &Entry<'_>, b: &Entry<'_>| a.0.0 == b.0.0 && a.0.1 + 1 == b.0.1;
    for stretch in blocks.chunk_by(adjacent) {
        let mut rest = stretch;
        while !rest.is_empty() {
            let now;
            (now, rest) = rest.split_at(rng.range(1, rest.len() as u64 + 1) as usize);
            let spans: Vec<SeqnoSpan> =
                now.iter().map(|(_, version)| SeqnoSpan { count: 1, seqno: version.0 }).collect();
            let data: Vec<&[u8]> = now.iter().map(|(_, version)| &version.1[..]).collect();
            let (prefix, first) = now[0].0;
            let wish = wish(seed, rng);
            writer.add_blocks(layer, prefix, *first, &spans, &data, wish).expect("space");
        }
    }
}

fn write(rig: &Rig, seed: u64, model: &Model, tombstones: &Tombstones, rng: &mut Rng) -> Arc<Piece> {
    let mut writer = rig.writer(KeyspaceKind::Block, 3);
    for layer in 0..3 {
        add_layer(seed, &mut writer, model, layer, rng);
    }
    for (start, end, seqno) in tombstones {
        writer.add_tombstone(start, end, *seqno);
    }
    let (desc, piece) = writer.finish().expect("space");
    assert_eq!(desc.records, model.values().map(|versions| versions.len() as u64).sum::<u64>());
    piece
}

/// What one layer of the store says of a block: undecided, absent or data.
fn expected<'a>(
    model: &'a Model,
    tombstones: &Tombstones,
    prefix: &[u8],
    block: u64,
    snapshot: Seqno,
) -> (BlockState, &'a [u8]) {
    let key = block_key(prefix, block);
    let tombstone = tombstones
        .iter()
        .filter(|(start, end, seqno)| *start <= key && key < *end && *seqno <= snapshot)
        .map(|(_, _, seqno)| *seqno)
        .max();
    let versions = model.get(&(prefix.to_vec(), block)).map_or(&[][..], Vec::as_slice);
    match (versions.iter().find(|(seqno, _)| *seqno <= snapshot), tombstone) {
        (Some((seqno, data)), tombstone) if tombstone.is_none_or(|tombstone| tombstone <= *seqno) => {
            (BlockState::Data, data)
        }
        (_, Some(_)) => (BlockState::Absent, &[]),
        _ => (BlockState::Unknown, &[]),
    }
}

fn check_fills(seed: u64, piece: &Piece, model: &Model, tombstones: &Tombstones, rng: &mut Rng) {
    for _ in 0..150 {
        let prefix = PREFIXES[rng.index(3)];
        let (first, count) = (rng.below(180), rng.range(1, 60) as usize);
        let snapshot = if rng.chance(1, 2) { Seqno::MAX } else { 990 + rng.below(120) };
        let bound = if rng.chance(1, 3) { block_key(prefix, first + rng.below(50)) } else { Vec::new() };
        let mut buf = AlignedBuf::zeroed(count * BLOCK_BYTES);
        let mut presence = BlockFill::presence(prefix, first, count, snapshot);
        piece.fill_from(&mut presence, &bound).expect("readable");
        let mut fill = BlockFill::new(prefix, first, snapshot, buf.as_mut());
        piece.fill_from(&mut fill, &bound).expect("readable");
        let states: Vec<BlockState> = (0..count).map(|position| fill.state(position)).collect();
        drop(fill);
        for (position, state) in states.into_iter().enumerate() {
            let block = first + position as u64;
            let (mut wanted, data) = expected(model, tombstones, prefix, block, snapshot);
            if block_key(prefix, block) < bound {
                wanted = BlockState::Unknown;
            }
            assert_eq!(state, wanted, "seed {seed}: block {block} of {prefix:?} at {snapshot}");
            assert_eq!(presence.state(position), wanted, "seed {seed}: presence of block {block}");
            if wanted == BlockState::Data {
                let read = &buf.as_ref()[position * BLOCK_BYTES..][..BLOCK_BYTES];
                assert!(read == data, "seed {seed}: data of block {block} of {prefix:?}");
            }
        }
    }
}

fn check_points(seed: u64, piece: &Piece, model: &Model, tombstones: &Tombstones, rng: &mut Rng) {
    for _ in 0..200 {
        let (prefix, block) = (PREFIXES[rng.index(3)], rng.below(200));
        let snapshot = if rng.chance(1, 2) { Seqno::MAX } else { 990 + rng.below(120) };
        let key = block_key(prefix, block);
        let mut lookup = Lookup::new(&key, snapshot);
        piece.lookup(&mut lookup).expect("readable");
        let wanted = match expected(model, tombstones, prefix, block, snapshot) {
            (BlockState::Data, data) => Outcome::Found(data.to_vec().into()),
            (BlockState::Absent, _) => Outcome::Absent,
            (BlockState::Unknown, _) => Outcome::Pending,
        };
        assert!(*lookup.outcome() == wanted, "seed {seed}: block {block} of {prefix:?} at {snapshot}");
        assert_eq!(piece.may_contain(&key).expect("readable"), model.contains_key(&(prefix.to_vec(), block)));
        let blocks = block..if rng.chance(1, 2) { u64::MAX } else { block + rng.below(20) };
        let next = model
            .range((prefix.to_vec(), blocks.start)..(prefix.to_vec(), blocks.end))
            .find(|(_, versions)| versions.iter().any(|(seqno, _)| *seqno <= snapshot))
            .map(|(key, _)| key.1);
        assert_eq!(
            piece.next_block(prefix, blocks.clone(), snapshot).expect("readable"),
            next,
            "seed {seed}: {blocks:?} at {snapshot}"
        );
    }
}

fn check_walks(seed: u64, piece: &Arc<Piece>, model: &Model, access: Access, rng: &mut Rng) {
    let records: Vec<(Vec<u8>, Seqno, &[u8])> = model
        .iter()
        .flat_map(|(key, versions)| {
            versions.iter().map(|(seqno, data)| (block_key(&key.0, key.1), *seqno, &data[..]))
        })
        .collect();
    let mut iter = piece.iter(access);
    iter.first().expect("readable");
    for (key, seqno, data) in &records {
        let record = iter.record().map(|r| (r.key.to_vec(), r.seqno));
        assert_eq!(record.as_ref(), Some(&(key.clone(), *seqno)), "seed {seed}");
        assert!(iter.value().expect("readable") == *data, "seed {seed}: {key:?}");
        iter.next().expect("readable");
    }
    assert!(iter.record().is_none());
    iter.last().expect("readable");
    for (key, seqno, _) in records.iter().rev() {
        let record = iter.record().map(|r| (r.key.to_vec(), r.seqno));
        assert_eq!(record.as_ref(), Some(&(key.clone(), *seqno)), "seed {seed}");
        iter.prev().expect("readable");
    }
    for _ in 0..200 {
        let mut key = block_key(PREFIXES[rng.index(3)], rng.below(200));
        match rng.below(6) {
            0 => key.truncate(rng.below(10) as usize),
            1 => key.push(rng.below(256) as u8),
            _ => {}
        }
        let seqno = 990 + rng.below(120);
        let at = if rng.chance(1, 2) {
            iter.seek(&key, seqno).expect("readable");
            records.partition_point(|r| (&r.0, std::cmp::Reverse(r.1)) < (&key, std::cmp::Reverse(seqno)))
        } else {
            iter.seek_before(&key).expect("readable");
            records.partition_point(|r| r.0 < key).wrapping_sub(1)
        };
        let record = iter.record().map(|r| (r.key.to_vec(), r.seqno));
        let wanted = records.get(at).map(|(key, seqno, _)| (key.clone(), *seqno));
        assert_eq!(record, wanted, "seed {seed}: around {key:?}");
    }
}

fn random_tombstones(rng: &mut Rng) -> Tombstones {
    let key = |rng: &mut Rng| block_key(PREFIXES[rng.index(3)], rng.below(200));
    (0..rng.below(8))
        .map(|_| (key(rng), key(rng), 990 + rng.below(120)))
        .filter(|(start, end, _)| start < end)
        .collect()
}

#[test]
fn pieces_agree_with_sorted_maps() {
    for seed in 0..16 {
        let mut rng = Rng::new(seed);
        let rig = Rig::new(65536 << rng.below(4), small_options());
        let model = random_model(&mut rng);
        let tombstones = random_tombstones(&mut rng);
        let piece = write(&rig, seed, &model, &tombstones, &mut rng);
        let (raw, stored) = bytes_raw_and_stored(&piece);
        assert_eq!(stored < raw, !seed.is_multiple_of(2), "seed {seed}: {stored} of {raw} bytes");
        for piece in [rig.reopen(&piece), piece] {
            check_fills(seed, &piece, &model, &tombstones, &mut rng);
            check_points(seed, &piece, &model, &tombstones, &mut rng);
            check_walks(seed, &piece, &model, Access::Random, &mut rng);
            check_walks(seed, &piece, &model, Access::Sequential, &mut rng);
            assert!(piece.verify().is_ok(), "seed {seed}");
        }
        assert_eq!(rig.bytes_live(), 0, "seed {seed}");
    }
}

#[test]
fn stitched_regions_read_like_copied_ones() {
    for seed in 0..16 {
        let mut rng = Rng::new(seed);
        let rig = Rig::new(128 << 10, small_options());
        let model = random_model(&mut rng);
        let source = write(&rig, seed, &model, &Vec::new(), &mut rng);
        let mut writer = rig.writer(KeyspaceKind::Block, 2);
        let mut kept = Model::new();
        let mut buf = AlignedBuf::zeroed(0);
        for (layer, regions) in source.index().expect("readable").layers().iter().enumerate() {
            for (index, region) in regions.regions().enumerate() {
                // A part at the front, or all, is kept; one way or the other.
                let count = rng.range(1, u64::from(region.count) + 1) as u32;
                if rng.chance(2, 3) {
                    writer.stitch_region(layer, &source, layer, index, region.first, count).expect("space");
                } else {
                    source.read_region_blocks(layer, index, region.first, count, &mut buf).expect("readable");
                    let spans: Vec<SeqnoSpan> =
                        region.spans(region.first, region.first + u64::from(count)).map(|(_, s)| s).collect();
                    let data = &buf.as_ref()[..count as usize * BLOCK_BYTES];
                    let wish = wish(seed, &mut rng);
                    writer
                        .add_blocks(layer, region.prefix, region.first, &spans, &[data], wish)
                        .expect("space");
                }
                for block in region.first..region.first + u64::from(count) {
                    let key = (region.prefix.to_vec(), block);
                    let version = model[&key][layer].clone();
                    kept.entry(key).or_default().push(version);
                }
            }
        }
        let (_, piece) = writer.finish().expect("space");
        drop(source);
        for piece in [rig.reopen(&piece), piece] {
            check_fills(seed, &piece, &kept, &Vec::new(), &mut rng);
            check_points(seed, &piece, &kept, &Vec::new(), &mut rng);
            check_walks(seed, &piece, &kept, Access::Sequential, &mut rng);
        }
        assert_eq!(rig.bytes_live(), 0, "seed {seed}");
    }
}

#[test]
fn a_large_file_is_few_regions_and_one_read() {
    let mut rng = Rng::new(1);
    let rig = Rig::new(8 << 20, RunOptions::default());
    let mut data = vec![0; 4 << 20];
    rng.fill(&mut data);
    let mut writer = rig.writer(KeyspaceKind::Block, 1);
    for (index, part) in data.chunks(128 << 10).enumerate() {
        let spans = [SeqnoSpan { count: 32, seqno: 10 + index as u64 }];
        writer.add_blocks(0, b"f", index as u64 * 32, &spans, &[part], Compression::None).expect("space");
    }
    let (_, piece) = writer.finish().expect("space");
    assert_eq!(piece.index().expect("readable").layers()[0].len(), 1, "adjacent writes are one region");
    let mut buf = AlignedBuf::zeroed(1 << 20);
    let reads_before = rig.device.counts().of(Call::Read);
    let mut fill = BlockFill::new(b"f", 100, Seqno::MAX, buf.as_mut());
    piece.fill(&mut fill).expect("readable");
    assert!(fill.is_complete());
    assert_eq!(rig.device.counts().of(Call::Read), reads_before + 1);
    assert!(buf.as_ref() == &data[100 * BLOCK_BYTES..100 * BLOCK_BYTES + (1 << 20)]);
    assert_eq!(rig.ctx.cache.bytes(), 0, "large reads leave the cache alone");
}

#[test]
fn prefixes_of_any_length_keep_key_order() {
    let mut rng = Rng::new(5);
    let rig = Rig::new(1 << 20, small_options());
    // Keys of the longer prefix lie between blocks 0 and 1 of the shorter one.
    let long: &[u8] = b"p\0\0\0\0\0\0\0\0";
    let mut blocks = vec![(&b"p"[..], 0), (long, 7), (long, 8), (b"p", 1), (b"p", 2)];
    blocks.sort_by_key(|(prefix, block)| block_key(prefix, *block));
    assert_eq!(blocks[1].0, long);
    let data: Vec<Vec<u8>> = blocks.iter().map(|_| random_block(&mut rng)).collect();
    let mut writer = rig.writer(KeyspaceKind::Block, 1);
    for ((prefix, block), data) in blocks.iter().zip(&data) {
        let spans = [SeqnoSpan { count: 1, seqno: 5 }];
        writer.add_blocks(0, prefix, *block, &spans, &[data], Compression::None).expect("space");
    }
    let (_, piece) = writer.finish().expect("space");
    let piece = rig.reopen(&piece);
    let mut buf = vec![0; 3 * BLOCK_BYTES];
    let mut fill = BlockFill::new(b"p", 0, 10, &mut buf);
    piece.fill(&mut fill).expect("readable");
    assert!(fill.is_complete());
    assert!(buf[BLOCK_BYTES..2 * BLOCK_BYTES] == data[3][..]);
    assert_eq!(piece.next_block(b"p", 1..2, 10).expect("readable"), Some(1));
    assert_eq!(piece.next_block(long, 0..u64::MAX, 10).expect("readable"), Some(7));
    let mut iter = piece.iter(Access::Random);
    iter.first().expect("readable");
    for (prefix, block) in blocks {
        assert_eq!(iter.record().map(|r| r.key.to_vec()), Some(block_key(prefix, block)));
        iter.next().expect("readable");
    }
}

/// Small files, one behind the other, read about in that order: few requests, and the cache is left alone.
#[test]
fn walks_over_small_files_read_ahead() {
    const FILES: u64 = 3000;
    let seed = 20;
    let mut rng = Rng::new(seed);
    let rig = Rig::new(8 << 20, RunOptions::default());
    let mut writer = rig.writer(KeyspaceKind::Block, 1);
    let mut files = Vec::new();
    for number in 0..FILES {
        let blocks: Vec<Vec<u8>> = (0..rng.range(1, 4)).map(|_| random_block(&mut rng)).collect();
        let span = SeqnoSpan { count: blocks.len() as u32, seqno: number + 1 };
        let data: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        writer.add_blocks(0, &number.to_be_bytes(), 0, &[span], &data, Compression::None).expect("space");
        files.push(blocks.concat());
    }
    let (desc, piece) = writer.finish().expect("space");
    let read = |number: u64| {
        let expected = &files[number as usize];
        let mut buf = AlignedBuf::zeroed(expected.len());
        let prefix = number.to_be_bytes();
        let mut fill = BlockFill::new(&prefix, 0, Seqno::MAX, buf.as_mut());
        piece.fill(&mut fill).expect("readable");
        assert!(fill.is_complete(), "seed {seed}, file {number}");
        drop(fill);
        assert!(buf.as_ref() == &expected[..], "seed {seed}, file {number}");
    };
    let requests_min = desc.data_bytes.div_ceil(rig.ctx.windows.window_bytes_max());
    let mut order: Vec<u64> = (0..FILES).collect();
    for group in order.chunks_mut(16) {
        group.sort_by_key(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    let reads_before = rig.device.counts().of(Call::Read);
    for &number in &order {
        read(number);
    }
    let reads = rig.device.counts().of(Call::Read) - reads_before;
    // Where a window begins in the middle of a group, what lies before it is read, too.
    assert!(reads <= requests_min * 3 + 16, "{reads} requests, {requests_min} would do");
    assert!(rig.ctx.cache.bytes() <= 64 << 10, "{} bytes cached", rig.ctx.cache.bytes());

    let reads_before = rig.device.counts().of(Call::Read);
    for number in 0..FILES / 2 {
        read(number);
        read(number + FILES / 2);
    }
    let reads = rig.device.counts().of(Call::Read) - reads_before;
    assert!(reads <= requests_min * 2 + 16, "{reads} requests for two walks at once");
}

/// A walk over records, as two states are compared by: few requests, and the cache is left alone.
#[test]
fn walks_over_records_of_blocks_read_ahead() {
    const FILES: u64 = 40;
    const BLOCKS: u64 = 100;
    let mut rng = Rng::new(21);
    let rig = Rig::new(8 << 20, RunOptions::default());
    let mut writer = rig.writer(KeyspaceKind::Block, 1);
    let mut written = Vec::new();
    for number in 0..FILES {
        let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| random_block(&mut rng)).collect();
        let span = SeqnoSpan { count: BLOCKS as u32, seqno: number + 1 };
        let data: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        writer.add_blocks(0, &number.to_be_bytes(), 0, &[span], &data, Compression::None).expect("space");
        written.extend(blocks);
    }
    let (desc, piece) = writer.finish().expect("space");
    let reads_before = rig.device.counts().of(Call::Read);
    let mut iter = Arc::new(piece).iter(Access::Random);
    iter.first().expect("readable");
    for block in &written {
        assert!(iter.record().is_some() && iter.value().expect("readable") == block[..]);
        iter.next().expect("readable");
    }
    assert!(iter.record().is_none());
    let reads = rig.device.counts().of(Call::Read) - reads_before;
    let windows = desc.data_bytes.div_ceil(rig.ctx.windows.window_bytes_max());
    assert!(reads <= windows * 3 + 16, "{reads} requests, {windows} windows");
    assert!(rig.ctx.cache.bytes() <= 64 << 10, "{} bytes cached", rig.ctx.cache.bytes());
}

/// Requests past the cache: the next one is read while one is in use, and nothing where they are scattered.
#[test]
fn large_reads_one_behind_the_other_are_read_ahead() {
    const BLOCKS: u64 = 4096;
    const AT_ONCE: u64 = 32;
    let seed = 22;
    let mut rng = Rng::new(seed);
    let rig = Rig::new(4 << 20, RunOptions::default());
    let data: Vec<Vec<u8>> = (0..BLOCKS).map(|_| random_block(&mut rng)).collect();
    let mut writer = rig.writer(KeyspaceKind::Block, 1);
    for (first, part) in (0..BLOCKS).step_by(1024).zip(data.chunks(1024)) {
        let span = SeqnoSpan { count: part.len() as u32, seqno: 1 };
        let part: Vec<&[u8]> = part.iter().map(Vec::as_slice).collect();
        writer.add_blocks(0, b"file", first, &[span], &part, Compression::None).expect("space");
    }
    let (desc, piece) = writer.finish().expect("space");
    let read = |request: u64| {
        let first = request * AT_ONCE;
        let mut buf = AlignedBuf::zeroed(AT_ONCE as usize * BLOCK_BYTES);
        let mut fill = BlockFill::new(b"file", first, Seqno::MAX, buf.as_mut());
        piece.fill(&mut fill).expect("readable");
        assert!(fill.is_complete(), "seed {seed}, block {first}");
        drop(fill);
        assert!(
            buf.as_ref() == data[first as usize..][..AT_ONCE as usize].concat(),
            "seed {seed}, block {first}"
        );
    };
    let requests = BLOCKS / AT_ONCE;
    let reads_of = |order: &[u64]| {
        rig.make_cold(&piece);
        let reads_before = rig.device.counts().of(Call::Read);
        for &request in order {
            read(request);
            rig.ctx.windows.wait_for_reads();
        }
        rig.device.counts().of(Call::Read) - reads_before
    };
    let in_order: Vec<u64> = (0..requests).collect();
    let mut scattered: Vec<u64> = in_order.iter().map(|number| number * 37 % requests).collect();
    assert_eq!(reads_of(&in_order), requests, "no thread reads ahead");
    rig.ctx.windows.while_served(|| {
        while !rig.ctx.windows.can_plan() {
            std::thread::yield_now();
        }
        let (windows, zones) =
            (desc.data_bytes.div_ceil(rig.ctx.windows.window_bytes_max()), desc.zones.len() as u64);
        let reads = reads_of(&in_order);
        // The first two requests of a zone may need reads of their own, and its last window is shorter.
        assert!(reads <= windows + zones * 3 + 8, "{reads} requests for {windows} windows in {zones} zones");
        assert_eq!(reads_of(&scattered), requests);
        scattered.reverse();
        assert_eq!(reads_of(&scattered), requests);
    });
}

/// Small packed files, one behind the other, read in that order, and a large one.
#[test]
fn packed_units_are_read_together() {
    const FILES: u64 = 2000;
    let seed = 21;
    let mut rng = Rng::new(seed);
    let rig = Rig::new(8 << 20, RunOptions::default());
    let mut writer = rig.writer(KeyspaceKind::Block, 1);
    let mut files = Vec::new();
    for number in 0..FILES {
        let count = if number == FILES - 1 { 512 } else { rng.range(2, 6) };
        let blocks: Vec<Vec<u8>> = (0..count).map(|_| soft_block(&mut rng)).collect();
        let span = SeqnoSpan { count: blocks.len() as u32, seqno: number + 1 };
        let data: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        let prefix = number.to_be_bytes();
        writer.add_blocks(0, &prefix, 0, &[span], &data, Compression::Lz4).expect("space");
        files.push(blocks.concat());
    }
    let (desc, piece) = writer.finish().expect("space");
    let reads_before = rig.device.counts().of(Call::Read);
    for (number, expected) in (0_u64..).zip(&files) {
        let mut buf = AlignedBuf::zeroed(expected.len());
        let prefix = number.to_be_bytes();
        piece.fill(&mut BlockFill::new(&prefix, 0, Seqno::MAX, buf.as_mut())).expect("readable");
        assert!(buf.as_ref() == &expected[..], "seed {seed}, file {number}");
    }
    let reads = rig.device.counts().of(Call::Read) - reads_before;
    assert!(desc.data_bytes < piece.raw_bytes() * 3 / 4, "{} of {}", desc.data_bytes, piece.raw_bytes());
    assert!(reads <= desc.data_bytes.div_ceil(1 << 20) * 3 + 24, "{reads} requests");
}
