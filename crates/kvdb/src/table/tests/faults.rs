use kvfs_device::{AlignedBuf, Call, Device, FaultError, FaultRule, Rng};
use kvfs_store::{BLOCK_BYTES, Compression, KeyspaceKind, StoreError};

use super::{KEYSPACE, Rig, small_options};
use crate::format::{RecordIter, RecordKind, SeqnoSpan};
use crate::memtable::{BlockFill, Lookup, Outcome};
use crate::table::{Access, Packing, Piece, PieceWriter, RunOptions};

fn add_tuples(writer: &mut PieceWriter, count: u64) -> Result<(), StoreError> {
    for n in 0..count {
        writer.add(&n.to_be_bytes(), n + 1, RecordKind::Put, format!("value of {n}").as_bytes())?;
    }
    writer.add_tombstone(b"x", b"y", 99);
    Ok(())
}

fn add_blocks(writer: &mut PieceWriter, count: u64) -> Result<(), StoreError> {
    let mut data = vec![0; count as usize * BLOCK_BYTES];
    Rng::new(1).fill(&mut data);
    writer.add_blocks(0, b"f", 0, &[SeqnoSpan { count: count as u32, seqno: 1 }], &[&data], Compression::None)
}

/// `Ok` or corruption that names keyspace and piece.
fn check_named<T>(result: Result<T, StoreError>, what: &str) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(StoreError::Corrupt { place, .. }) => {
            let named = format!("piece 77 of keyspace {KEYSPACE} at device address 0x");
            assert!(place.contains(&named), "{what}: {place}");
            None
        }
        Err(other) => panic!("{what}: {other}"),
    }
}

#[test]
fn flipped_bits_in_tuple_pieces_are_never_wrong_data() {
    let rig = Rig::new(64 << 10, small_options());
    let mut writer = rig.writer(KeyspaceKind::Tuple, 77);
    add_tuples(&mut writer, 400).expect("space");
    let (desc, piece) = writer.finish().expect("space");
    let mut rng = Rng::new(11);
    let mut found = 0;
    let index = piece.index().expect("readable");
    let in_index = index.tuple_entries().iter().map(|entry| entry.extent);
    let extents: Vec<_> = in_index.chain(desc.meta.iter().copied()).collect();
    for round in 0..400 {
        let extent = extents[rng.index(extents.len())];
        let at = extent.addr + rng.below(extent.len.into());
        rig.device.flip(at, 1 << rng.below(8));
        rig.make_cold(&piece);
        for zone_use in &desc.zones {
            rig.ctx.zones.retain_use(zone_use);
        }
        let opened = Piece::open(rig.ctx.clone(), KEYSPACE, KeyspaceKind::Tuple, &desc, 0);
        if opened.is_err() {
            for zone_use in &desc.zones {
                rig.ctx.zones.release_use(zone_use);
            }
        }
        let Some(opened) = check_named(opened, "open") else {
            found += 1;
            rig.device.clear();
            continue;
        };
        let mut is_found = false;
        for n in (0..420_u64).step_by(7) {
            let key = n.to_be_bytes();
            let mut lookup = Lookup::new(&key, 1000);
            if check_named(opened.lookup(&mut lookup), "lookup").is_none() {
                is_found = true;
                continue;
            }
            match lookup.outcome() {
                Outcome::Found(value) => {
                    assert_eq!(value, format!("value of {n}").as_bytes(), "round {round}");
                }
                Outcome::Pending => assert!(n >= 400, "round {round}: key {n} is there"),
                Outcome::Absent => panic!("round {round}: nothing was deleted"),
            }
        }
        let mut iter = opened.iter(Access::Sequential);
        let mut walked = 0;
        let mut result = iter.first();
        while result.is_ok() && iter.record().is_some() {
            walked += 1;
            result = iter.next();
        }
        match check_named(result, "walk") {
            Some(()) => assert_eq!(walked, 400, "round {round}"),
            None => is_found = true,
        }
        is_found |= check_named(opened.verify(), "verify").is_none();
        found += u32::from(is_found);
        rig.device.clear();
    }
    assert!(found > 100, "only padding goes unnoticed, yet {found} of 400 flips were found");
}

#[test]
fn flipped_bits_in_block_pieces_are_never_wrong_data() {
    let rig = Rig::new(128 << 10, small_options());
    let mut writer = rig.writer(KeyspaceKind::Block, 77);
    add_blocks(&mut writer, 60).expect("space");
    let (_, piece) = writer.finish().expect("space");
    let mut wanted = vec![0; 60 * BLOCK_BYTES];
    piece.fill(&mut BlockFill::new(b"f", 0, 9, &mut wanted)).expect("readable");
    let mut rng = Rng::new(5);
    let index = piece.index().expect("readable");
    for round in 0..60 {
        let regions: Vec<_> = index.layers()[0].regions().collect();
        let region = regions[rng.index(regions.len())];
        let block = region.first + rng.below(region.count.into());
        rig.device.flip(region.addr_of(block) + rng.below(4096), 1 << rng.below(8));
        rig.make_cold(&piece);
        for count in [1, 3, 60] {
            let first = block.min(60 - count);
            let mut buf = vec![0; count as usize * BLOCK_BYTES];
            let filled = piece.fill(&mut BlockFill::new(b"f", first, 9, &mut buf));
            assert!(check_named(filled, "fill").is_none(), "round {round}: the flip shows");
        }
        assert!(check_named(piece.verify(), "verify").is_none());
        let other = (block + 30) % 60;
        let mut buf = vec![0; BLOCK_BYTES];
        piece.fill(&mut BlockFill::new(b"f", other, 9, &mut buf)).expect("an intact block reads");
        assert!(buf == wanted[other as usize * BLOCK_BYTES..][..BLOCK_BYTES]);
        rig.device.clear();
    }
}

#[test]
fn a_misdirected_piece_is_refused() {
    let rig = Rig::new(64 << 10, small_options());
    let mut writer = rig.writer(KeyspaceKind::Tuple, 77);
    add_tuples(&mut writer, 40).expect("space");
    let (desc, _piece) = writer.finish().expect("space");
    let other = Piece::open(rig.ctx.clone(), KEYSPACE + 1, KeyspaceKind::Tuple, &desc, 0);
    assert!(matches!(other, Err(StoreError::Corrupt { .. })));
    for zone_use in &desc.zones {
        rig.ctx.zones.retain_use(zone_use);
    }
    let as_blocks = Piece::open(rig.ctx.clone(), KEYSPACE, KeyspaceKind::Block, &desc, 0);
    let index = as_blocks.and_then(|piece| piece.index().map(drop));
    assert!(matches!(index, Err(StoreError::Corrupt { .. })));
}

/// Exchanges two stretches of the device of one length.
fn exchange(rig: &Rig, one: u64, other: u64, len: usize) {
    let (mut first, mut second) = (AlignedBuf::zeroed(len), AlignedBuf::zeroed(len));
    rig.device.read_at(first.as_mut(), one).expect("reads");
    rig.device.read_at(second.as_mut(), other).expect("reads");
    rig.device.write_at(first.as_ref(), other).expect("writes");
    rig.device.write_at(second.as_ref(), one).expect("writes");
}

#[test]
fn whole_blocks_in_each_others_places_are_refused() {
    let rig = Rig::new(64 << 10, small_options());
    let mut writer = rig.writer(KeyspaceKind::Tuple, 77);
    add_tuples(&mut writer, 400).expect("space");
    let (_, piece) = writer.finish().expect("space");
    let index = piece.index().expect("readable");
    let entries = index.tuple_entries();
    let [one, other] = [entries[1].extent, entries[2].extent];
    assert_eq!(one.len, other.len);
    exchange(&rig, one.addr, other.addr, one.len as usize);
    rig.make_cold(&piece);
    let mut refused = 0;
    for n in 0..400_u64 {
        let key = n.to_be_bytes();
        let mut lookup = Lookup::new(&key, 1000);
        if check_named(piece.lookup(&mut lookup), "lookup").is_none() {
            refused += 1;
            continue;
        }
        let Outcome::Found(value) = lookup.outcome() else { panic!("key {n} is there") };
        assert_eq!(value, format!("value of {n}").as_bytes());
    }
    assert!(refused > 0, "the keys of both blocks are refused");
    assert!(check_named(piece.verify(), "verify").is_none());

    let mut writer = rig.writer(KeyspaceKind::Block, 77);
    add_blocks(&mut writer, 8).expect("space");
    let (_, piece) = writer.finish().expect("space");
    let index = piece.index().expect("readable");
    let addr_of = |block| {
        let layer = &index.layers()[0];
        let region = layer
            .regions()
            .find(|region| (region.first..region.first + u64::from(region.count)).contains(&block));
        region.expect("is there").addr_of(block)
    };
    exchange(&rig, addr_of(2), addr_of(5), BLOCK_BYTES);
    rig.make_cold(&piece);
    for block in 0..8 {
        let mut buf = vec![0; BLOCK_BYTES];
        let filled = piece.fill(&mut BlockFill::new(b"f", block, 9, &mut buf));
        assert_eq!(check_named(filled, "fill").is_none(), block == 2 || block == 5, "block {block}");
    }
}

#[test]
fn failing_writes_release_everything() {
    for kind in [KeyspaceKind::Tuple, KeyspaceKind::Block] {
        let mut failures = 0;
        for nth in 0..40 {
            let rig = Rig::new(64 << 10, small_options());
            rig.device.add(FaultRule::once(Call::Write, nth, FaultError::EIO));
            let mut writer = rig.writer(kind, 77);
            let added = match kind {
                KeyspaceKind::Tuple => add_tuples(&mut writer, 3000),
                KeyspaceKind::Block => add_blocks(&mut writer, 50),
            };
            let result = added.and_then(|()| writer.finish()).map(drop);
            if let Err(error) = result {
                assert!(matches!(error, StoreError::Io { .. }), "{error}");
                failures += 1;
            }
            assert_eq!(rig.bytes_live(), 0, "{kind:?}, write {nth}: dropped or failed, nothing is held");
        }
        assert!(failures > 3, "{kind:?}: {failures} failures");
    }
}

#[test]
fn a_full_store_gives_full_and_releases_everything() {
    let rig = Rig::new(64 << 20, small_options());
    let mut writer = rig.writer(KeyspaceKind::Block, 77);
    let error = loop {
        if let Err(error) = add_blocks(&mut writer, 50) {
            break error;
        }
    };
    assert!(matches!(error, StoreError::Full), "{error}");
    drop(writer);
    assert_eq!(rig.bytes_live(), 0);
}

#[test]
fn failing_reads_are_errors_that_name_the_place() {
    let rig = Rig::new(64 << 10, small_options());
    let mut writer = rig.writer(KeyspaceKind::Tuple, 77);
    add_tuples(&mut writer, 400).expect("space");
    let (_, piece) = writer.finish().expect("space");
    rig.device.add(FaultRule::from(Call::Read, 0, FaultError::EIO));
    let key = 5_u64.to_be_bytes();
    let error = piece.lookup(&mut Lookup::new(&key, 1000)).expect_err("the device fails");
    assert!(error.to_string().contains("piece 77 of keyspace 5"), "{error}");
    assert!(piece.iter(Access::Random).first().is_err());
    rig.device.clear();
    let mut lookup = Lookup::new(&key, 1000);
    piece.lookup(&mut lookup).expect("readable again");
    assert_eq!(lookup.outcome(), &Outcome::Found("value of 5".into()));
}

#[test]
fn a_block_of_an_older_write_is_not_taken_for_the_newer_one() {
    let rig = Rig::new(64 << 10, small_options());
    let mut pieces = Vec::new();
    for (id, value) in [(76, b"old!"), (77, b"new!")] {
        let mut writer = rig.writer(KeyspaceKind::Tuple, id);
        writer.add(b"key", 5, RecordKind::Put, value).expect("space");
        pieces.push(writer.finish().expect("space").1);
    }
    let [old, new] =
        [&pieces[0], &pieces[1]].map(|piece| piece.index().expect("readable").tuple_entries()[0].extent);
    let mut block = vec![0; old.len as usize];
    rig.ctx.device.read_at(&mut block, old.addr).expect("readable");
    // The device lost the newer write: a block is there, and its own checksum is right.
    rig.ctx.device.write_at(&block, new.addr).expect("writable");
    let read = pieces[1].lookup(&mut Lookup::new(b"key", 9));
    assert!(check_named(read, "lookup").is_none(), "the index names another block");
}

#[test]
fn many_threads_read_one_piece() {
    let rig = Rig::new(64 << 10, small_options());
    let mut writer = rig.writer(KeyspaceKind::Tuple, 77);
    add_tuples(&mut writer, 2000).expect("space");
    let (_, piece) = writer.finish().expect("space");
    let piece = rig.reopen(&piece);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (piece, ctx) = (&piece, &rig.ctx);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for round in 0..2000_u64 {
                    let n = rng.below(2100);
                    let key = n.to_be_bytes();
                    let mut lookup = Lookup::new(&key, 10_000);
                    piece.lookup(&mut lookup).expect("readable");
                    let value = format!("value of {n}").into();
                    let wanted = if n < 2000 { Outcome::Found(value) } else { Outcome::Pending };
                    assert_eq!(lookup.outcome(), &wanted, "thread {thread}");
                    if round % 100 == 0 {
                        ctx.cache.shrink_to(8 << 10);
                    }
                }
            });
        }
    });
}

/// Whatever bit of a packed unit or block flips, padding aside: the read fails, and names the place.
#[test]
fn damage_to_packed_data_is_found_before_it_is_unpacked() {
    for (seed, compression) in [(1, Compression::Lz4), (2, Compression::Zstd(3))] {
        let rig = Rig::new(128 << 10, RunOptions { tuple_block_bytes: 8 << 10, ..small_options() });
        let packing = Packing { compression, merger: None };
        let mut writer = rig.writer(KeyspaceKind::Block, 77).packing(packing.clone());
        let data: Vec<u8> = (0..64 * BLOCK_BYTES).map(|at| (at / 300 % 251) as u8).collect();
        let span = SeqnoSpan { count: 64, seqno: 1 };
        writer.add_blocks(0, b"f", 0, &[span], &[&data], Compression::None).expect("space");
        let (_, blocks) = writer.finish().expect("space");
        let mut writer = rig.writer(KeyspaceKind::Tuple, 77).packing(packing);
        add_tuples(&mut writer, 2000).expect("space");
        let (_, tuples) = writer.finish().expect("space");
        let mut rng = Rng::new(seed);
        let [regions, entries] = [&blocks, &tuples].map(|piece| piece.index().expect("readable"));
        for _ in 0..200 {
            let region = regions.layers()[0].region(rng.index(regions.layers()[0].len()));
            let unit = region.unit.expect("it shrinks");
            rig.device.flip(region.addr + rng.below(unit.bytes.into()), 1 << rng.below(8));
            rig.make_cold(&blocks);
            for count in [1, u64::from(region.count)] {
                let mut buf = vec![0; count as usize * BLOCK_BYTES];
                let filled = blocks.fill(&mut BlockFill::new(b"f", region.first, 9, &mut buf));
                assert!(check_named(filled, "fill").is_none(), "seed {seed}: the flip shows");
            }
            assert!(check_named(blocks.verify(), "verify").is_none(), "seed {seed}");
            let entry = &entries.tuple_entries()[rng.index(entries.tuple_entries().len())];
            let packed = entry.packed.expect("it shrinks");
            rig.device.flip(entry.extent.addr + rng.below(packed.bytes.into()), 1 << rng.below(8));
            rig.make_cold(&tuples);
            let read = tuples.lookup(&mut Lookup::new(&entry.first_key, 1 << 20));
            assert!(check_named(read, "lookup").is_none(), "seed {seed}: the flip shows");
            assert!(check_named(tuples.verify(), "verify").is_none(), "seed {seed}");
            rig.device.clear();
        }
        let mut buf = vec![0; data.len()];
        rig.make_cold(&blocks);
        blocks.fill(&mut BlockFill::new(b"f", 0, 9, &mut buf)).expect("undamaged again");
        assert!(buf == data);
    }
}

/// Whatever bit of the metadata flips while nothing of it is in memory: answers are right or say what is
/// damaged, and once the medium is whole again all are right.
#[test]
fn an_index_that_is_damaged_when_it_is_read_again_gives_no_wrong_answer() {
    for kind in [KeyspaceKind::Tuple, KeyspaceKind::Block] {
        let rig = Rig::new(64 << 10, small_options());
        let mut writer = rig.writer(kind, 77).copying_meta(false);
        match kind {
            KeyspaceKind::Tuple => add_tuples(&mut writer, 400).expect("space"),
            KeyspaceKind::Block => add_blocks(&mut writer, 60).expect("space"),
        }
        let (desc, piece) = writer.finish().expect("space");
        rig.ctx.accountant.set_bytes_ceiling(0);
        let rebased = piece.rebased(1000);
        let look = |piece: &Piece| {
            let (key, expected) = match kind {
                KeyspaceKind::Tuple => (7_u64.to_be_bytes().to_vec(), "value of 7".into()),
                KeyspaceKind::Block => ([&b"f"[..], &7_u64.to_be_bytes()].concat(), block_of_add(7)),
            };
            let mut lookup = Lookup::new(&key, 2000);
            check_named(piece.lookup(&mut lookup), "lookup")
                .inspect(|()| assert_eq!(lookup.outcome(), &Outcome::Found(expected)))
        };
        let mut rng = Rng::new(17);
        let mut found = 0;
        for _ in 0..200 {
            rig.ctx.pages.shrink();
            assert!(rig.ctx.pages.bytes() < 500, "only range tombstones stay");
            let extent = desc.meta[rng.index(desc.meta.len())];
            rig.device.flip(extent.addr + rng.below(desc.meta_len.into()), 1 << rng.below(8));
            rig.make_cold(&piece);
            let is_found = [&piece, &rebased].map(|piece| look(piece).is_none());
            assert_eq!(is_found[0], is_found[1], "the same piece");
            found += u32::from(is_found[0]);
            assert!(check_named(piece.verify(), "verify").is_none(), "a check reads all of it");
            rig.device.clear();
            assert!(look(&piece).is_some() && look(&rebased).is_some(), "right again");
        }
        assert!(found > 5, "{kind:?}: {found} of 200 flips were found by a look-up");
    }
}

fn block_of_add(number: usize) -> bytes::Bytes {
    let mut data = vec![0; 60 * BLOCK_BYTES];
    Rng::new(1).fill(&mut data);
    bytes::Bytes::from(data).slice(number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES)
}

/// Requests of a read-ahead that came back wrong, from a device that has everything right.
#[test]
fn window_of_blocks_that_was_read_wrong_once_gives_way_to_what_the_device_has() {
    for compression in [Compression::None, Compression::Lz4] {
        for reads_all in [false, true] {
            let rig = Rig::new(1 << 20, small_options());
            let packing = Packing { compression, merger: None };
            let mut writer = rig.writer(KeyspaceKind::Block, 77).packing(packing);
            let data: Vec<u8> = (0..64 * BLOCK_BYTES).map(|at| (at / 300 % 251) as u8).collect();
            let span = SeqnoSpan { count: 64, seqno: 1 };
            writer.add_blocks(0, b"f", 0, &[span], &[&data], Compression::None).expect("space");
            let (_, piece) = writer.finish().expect("space");
            let index = piece.index().expect("readable");
            let layer = &index.layers()[0];
            let region = layer.region(layer.len() - 1);
            let wrong = region.end() - 4;
            let addr = if region.unit.is_some() { region.addr } else { region.addr_of(wrong) };
            let fill = |blocks: std::ops::Range<u64>| {
                let at = blocks.start as usize * BLOCK_BYTES..blocks.end as usize * BLOCK_BYTES;
                let mut buf = vec![0; at.len()];
                let mut fill = BlockFill::new(b"f", blocks.start, 9, &mut buf);
                piece.fill(&mut fill).expect("readable");
                assert!(fill.is_complete());
                assert!(buf == data[at], "{compression:?}: blocks {blocks:?}");
            };
            rig.device.flip(addr, 1);
            rig.make_cold(&piece);
            let mut before = 0..wrong;
            while !piece.storage().has_window(&(addr..addr + 1)) {
                let block = before.next().expect("a walk is read ahead of");
                fill(block..block + 1);
            }
            rig.device.clear();
            if reads_all { fill(region.first..region.end()) } else { fill(wrong..wrong + 1) }
        }
    }
}

#[test]
fn window_of_tuples_that_was_read_wrong_once_gives_way_to_what_the_device_has() {
    let rig = Rig::new(1 << 20, small_options());
    let mut writer = rig.writer(KeyspaceKind::Tuple, 77);
    add_tuples(&mut writer, 400).expect("space");
    let (_, piece) = writer.finish().expect("space");
    let index = piece.index().expect("readable");
    let wrong = index.tuple_entries().last().expect("is there").extent;
    rig.device.flip(wrong.addr + 20, 1);
    rig.make_cold(&piece);
    let mut iter = piece.iter(Access::Random);
    iter.first().expect("readable");
    let mut count = 0;
    while iter.record().is_some() {
        count += 1;
        if piece.storage().has_window(&(wrong.addr..wrong.addr + 1)) {
            rig.device.clear();
        }
        iter.next().expect("readable");
    }
    assert_eq!(count, 400);
}
