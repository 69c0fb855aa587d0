//! Tests of the superblock.

use kvfs_device::{CrashDevice, CrashMode, MemoryDevice};

use super::*;

fn superblock(generation: u64) -> Superblock {
    Superblock {
        uuid: *b"0123456789abcdef",
        generation,
        format_version: FORMAT_VERSION_PLAIN,
        zone_bytes: 64 << 10,
        capacity_bytes: 100 << 16,
        journal_first: ZoneId(1),
        journal_zones: 4,
        epoch: 9,
        manifest_zones: vec![ZoneId(7), ZoneId(5)],
        manifest_seq: 3,
        has_stamps: true,
    }
}

fn slot(superblock: &Superblock) -> [u8; SUPERBLOCK_BYTES] {
    superblock.encode()
}

#[test]
fn a_slot_has_these_bytes_and_survives_encoding() {
    let without_stamps = Superblock { has_stamps: false, ..superblock(0x0102) };
    let bytes = slot(&without_stamps);
    assert_eq!(&bytes[..8], b"\x89kvfs\r\n\x1a");
    assert_eq!(bytes[8..12], 0xcca4_51ce_u32.to_le_bytes(), "checksum");
    assert_eq!(&bytes[12..16], &[1, 0, 0, 0]);
    assert_eq!(&bytes[16..32], b"0123456789abcdef");
    assert_eq!(&bytes[32..40], &[2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(&bytes[40..48], &(100_u64 << 16).to_le_bytes());
    assert_eq!((bytes[48], bytes[56]), (9, 3));
    assert_eq!(&bytes[64..80], &[0, 0, 1, 0, 1, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(&bytes[128..136], &[7, 0, 0, 0, 5, 0, 0, 0]);
    assert!(bytes[80..128].iter().chain(&bytes[136..]).all(|&byte| byte == 0));
    assert_eq!(Superblock::decode(&bytes).unwrap(), without_stamps);

    let with_stamps = slot(&superblock(0x0102));
    assert_eq!((with_stamps[80], &with_stamps[81..]), (1, &bytes[81..]));
    assert_eq!(Superblock::decode(&with_stamps).unwrap(), superblock(0x0102));

    let full = Superblock {
        manifest_zones: (5..5 + MANIFEST_ZONES_MAX as u32).map(ZoneId).collect(),
        ..superblock(1)
    };
    let full = Superblock { capacity_bytes: 2000 << 16, ..full };
    assert_eq!(Superblock::decode(&slot(&full)).unwrap(), full);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = slot(&superblock(1));
    for bit in 0..200 * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn parts_that_do_not_fit_each_other_are_damage() {
    let wrong = [
        Superblock { zone_bytes: 100_000, ..superblock(1) },
        Superblock { zone_bytes: 4096, ..superblock(1) },
        Superblock { journal_zones: 100, ..superblock(1) },
        Superblock { journal_first: ZoneId(0), ..superblock(1) },
        Superblock { manifest_zones: vec![ZoneId(4)], ..superblock(1) },
        Superblock { manifest_zones: vec![ZoneId(100)], ..superblock(1) },
    ];
    for superblock in wrong {
        let decoded = Superblock::decode(&slot(&superblock));
        assert!(matches!(decoded, Err(SuperblockError::Damaged { .. })), "{superblock:?}");
    }
}

#[test]
fn errors_tell_what_is_there() {
    let device = MemoryDevice::new(64 << 10);
    let read = || Superblock::read_newest(&device);
    assert!(matches!(read(), Err(SuperblockError::NotKvfs { blank: true })));
    device.write_at(&[7; 4096], 0).unwrap();
    assert!(matches!(read(), Err(SuperblockError::NotKvfs { blank: false })));
    superblock(0).write(&device).unwrap();
    assert_eq!(read().unwrap(), superblock(0));

    let mut other = slot(&superblock(1));
    other[12] = 10;
    let crc = crc32c(&other[12..]);
    other[8..12].copy_from_slice(&crc.to_le_bytes());
    device.write_at(AlignedBuf::from_slice(&other).as_ref(), SUPERBLOCK_ADDRS[1]).unwrap();
    assert!(matches!(read(), Err(SuperblockError::OtherVersion { found: 10, known: 9 })));

    for addr in SUPERBLOCK_ADDRS {
        let mut bytes = slot(&superblock(0));
        bytes[2000] = 1;
        device.write_at(AlignedBuf::from_slice(&bytes).as_ref(), addr).unwrap();
    }
    assert!(matches!(read(), Err(SuperblockError::Damaged { .. })));
    assert!(matches!(StoreError::from(read().unwrap_err()), StoreError::Corrupt { .. }));
}

#[test]
fn the_newest_whole_slot_counts() {
    let device = MemoryDevice::new(64 << 10);
    let mut current = superblock(0);
    current.write(&device).unwrap();
    for round in 1..10 {
        current.epoch += 1;
        current.write_both(&device).unwrap();
        assert_eq!(current.generation, 2 * round);
        assert_eq!(Superblock::read_newest(&device).unwrap(), current);
    }
    // Either slot may rot: the other one says the same.
    for addr in SUPERBLOCK_ADDRS {
        let image = device.fork();
        image.write_at(&[0; 4096], addr).unwrap();
        let found = Superblock::read_newest(&image).unwrap();
        assert_eq!(Superblock { generation: current.generation, ..found }, current);
    }
}

#[test]
fn a_crash_leaves_the_old_or_the_new_superblock() {
    let device = CrashDevice::in_memory(64 << 10, 64 << 10).with_log().unwrap();
    let mut current = superblock(0);
    current.write(&device).unwrap();
    let mut durable = vec![(device.events_len(), current.clone())];
    for _ in 0..5 {
        current.epoch += 1;
        current.write_both(&device).unwrap();
        durable.push((device.events_len(), current.clone()));
    }
    for event in durable[0].0..=device.events_len() {
        for seed in 0..20 {
            let image = device.image_at(event, seed, CrashMode::Any).unwrap();
            let found = Superblock::read_newest(&image).unwrap();
            let before = durable.iter().rfind(|(at, _)| *at <= event).unwrap();
            let (low, high) = (before.1.epoch, before.1.epoch + 1);
            assert!((low..=high).contains(&found.epoch), "event {event}, seed {seed}: epoch {}", found.epoch);
        }
    }
}
