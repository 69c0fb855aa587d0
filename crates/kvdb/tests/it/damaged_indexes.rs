//! Damaged metadata of a piece: the store opens, and everything else is read and written.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_device::{AlignedBuf, Device, MemoryDevice, SECTOR_BYTES};
use kvfs_kvdb::repair;
use kvfs_store::{BLOCK_BYTES, Batch, Durability, KeyspaceKind, Read, Store, StoreError};

use super::basics::{create, open, put, rows};
use super::repair::{SPACES, content_of, sample, used_sectors};

/// The sectors that piece metadata begins in, by header: the blob that the manifest names, and its copy.
fn metadata_of(medium: &MemoryDevice) -> BTreeMap<Vec<u8>, Vec<usize>> {
    let mut found: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    for sector in used_sectors(medium) {
        let mut buf = AlignedBuf::zeroed(SECTOR_BYTES);
        medium.read_at(buf.as_mut(), (sector * SECTOR_BYTES) as u64).expect("reads");
        if buf.as_ref().starts_with(b"KVpm") {
            found.entry(buf.as_ref()[..40].to_vec()).or_default().push(sector);
        }
    }
    found
}

/// Changes a byte of the index, or, if the header is to go, of that.
fn damage(medium: &MemoryDevice, sector: usize, takes_header: bool) {
    let at = (sector * SECTOR_BYTES) as u64;
    let mut buf = AlignedBuf::zeroed(SECTOR_BYTES);
    medium.read_at(buf.as_mut(), at).expect("reads");
    buf.as_mut()[if takes_header { 8 } else { 60 }] ^= 0xff;
    medium.write_at(buf.as_ref(), at).expect("writes");
}

#[test]
fn store_with_a_damaged_index_opens_and_reads_it_from_its_copy() {
    let sample = sample(0x0d_a3a6);
    let expected = sample.content(sample.history.last().expect("not empty").0.0);
    let mut told = 0;
    for (number, sector) in metadata_of(&sample.medium).into_values().flatten().enumerate() {
        let medium = sample.medium.fork();
        damage(&medium, sector, number % 2 == 0);
        for memory in [64 << 20, 1 << 10] {
            let device: Arc<dyn Device> = Arc::new(medium.fork());
            let db = open(&device, |options| {
                options.read_only = true;
                options.memory_bytes = memory;
            });
            assert!(content_of(&db) == expected, "sector {sector}, read-only");
        }
        let device: Arc<dyn Device> = Arc::new(medium);
        let db = open(&device, |_| {});
        told += usize::from(!db.check().expect("checks").findings.is_empty());
        assert!(content_of(&db) == expected, "sector {sector}");
        put(&db, rows(&db), "key0000", "new");
        db.flush().expect("flushes");
        db.compact().expect("merges");
        let mut found = content_of(&db);
        assert_eq!(found[0].remove(&b"key0000"[..]).as_deref(), Some(&b"new"[..]));
        assert!(found[0].iter().eq(expected[0].iter().filter(|(key, _)| key[..] != b"key0000"[..])));
        assert!(found[1] == expected[1], "sector {sector}, merged");
        db.close().expect("closes");
    }
    assert!(told > 3, "{told} sectors were told");
}

#[test]
fn store_whose_index_is_lost_with_its_copy_opens_and_reads_the_rest() {
    const KEYS: usize = 4000;
    let medium = Arc::new(MemoryDevice::growable(0, 160 * (256 << 10)));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    create(&device, 160);
    let key = |number: usize| format!("key{number:05}").into_bytes();
    let db = open(&device, |options| options.merge.piece_bytes = 128 << 10);
    let mut batch = Batch::new();
    for number in 0..KEYS {
        batch.put(rows(&db), key(number), vec![number as u8; 200]);
    }
    db.apply(batch, Durability::Buffered).expect("applies");
    db.flush().expect("flushes");
    db.close().expect("closes");
    drop(db);

    let pieces = metadata_of(&medium);
    assert!(pieces.len() > 3, "{} pieces", pieces.len());
    let mut lost_pieces = 0;
    for sectors in pieces.into_values() {
        assert!(sectors.len() > 1, "there is a copy");
        let medium = medium.fork();
        for &sector in &sectors {
            damage(&medium, sector, false);
        }
        let device: Arc<dyn Device> = Arc::new(medium);
        for read_only in [true, false] {
            let db = open(&device, |options| options.read_only = read_only);
            let mut lost = 0;
            for number in 0..KEYS {
                match db.get(rows(&db), &key(number)) {
                    Ok(value) => assert_eq!(value.as_deref(), Some(&vec![number as u8; 200][..])),
                    Err(StoreError::Corrupt { .. }) => lost += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(lost < KEYS / 2, "{lost} of {KEYS} are lost");
            lost_pieces += usize::from(lost > 0);
            if !read_only {
                put(&db, rows(&db), "new", "value");
                db.flush().expect("flushes");
                db.close().expect("closes");
            }
        }
    }
    assert!(lost_pieces > 5, "{lost_pieces}");
}

#[test]
fn damaged_copy_of_an_index_is_told_by_a_check_and_written_anew_by_a_repair() {
    let sample = sample(0x0d_c09e);
    let mut told = 0;
    let sound: Arc<dyn Device> = Arc::new(sample.medium.fork());
    let expected = content_of(&open(&sound, |options| options.read_only = true));
    for (number, sector) in metadata_of(&sample.medium).into_values().flatten().enumerate() {
        let medium = sample.medium.fork();
        damage(&medium, sector, number % 2 == 0);
        let device: Arc<dyn Device> = Arc::new(medium);
        let findings = || {
            let db = open(&device, |options| options.read_only = true);
            assert!(content_of(&db) == expected, "sector {sector}");
            db.check().expect("checks").findings
        };
        let before = findings();
        let repaired = repair(&device, &SPACES).expect("a repair ends");
        assert_eq!(before.is_empty(), repaired.findings.is_empty(), "{sector}: {before:?}, {repaired:?}");
        assert!(repaired.lost.is_empty(), "{sector}: {repaired:?}");
        told +=
            usize::from(before.iter().any(|finding| finding.contains("the copy of its index is damaged")));
        assert!(findings().is_empty(), "sector {sector}");
        let again = repair(&device, &SPACES).expect("a repair ends");
        assert!(again.findings.is_empty(), "{sector}: {again:?}");
    }
    assert!(told > 3, "{told} copies were told");
}

#[test]
fn repair_without_the_index_of_overwritten_blocks_tells_that_they_may_be_older() {
    let medium = Arc::new(MemoryDevice::growable(0, 160 * (256 << 10)));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    create(&device, 160);
    let db = open(&device, |_| {});
    let data = db.open_keyspace(SPACES[1].0, SPACES[1].1, None).expect("opens");
    let mut batch = Batch::new();
    batch.put_blocks(data, &b"f"[..], 0, vec![1; 10 * BLOCK_BYTES]);
    db.apply(batch, Durability::Buffered).expect("applies");
    db.flush().expect("flushes");
    let old = metadata_of(&medium);
    // From the one end of a sparse file to the other, and a hole in between.
    let mut batch = Batch::new();
    let key = |block: u64| [&b"f"[..], &block.to_be_bytes()].concat();
    batch.delete_range(data, key(5), key(7));
    batch.put_blocks(data, &b"f"[..], 0, vec![2; BLOCK_BYTES]);
    batch.put_blocks(data, &b"f"[..], 1 << 41, vec![2; BLOCK_BYTES]);
    db.apply(batch, Durability::Buffered).expect("applies");
    db.flush().expect("flushes");
    db.close().expect("closes");
    drop(db);
    let new = metadata_of(&medium);
    let sectors: Vec<usize> =
        new.into_iter().filter(|(header, _)| !old.contains_key(header)).flat_map(|(_, at)| at).collect();
    assert_eq!(sectors.len(), 2, "one piece, and the copy of its index");
    for sector in sectors {
        damage(&medium, sector, false);
    }
    let repaired = repair(&device, &SPACES).expect("ends");
    assert_eq!(repaired.lost.len(), 1, "{repaired:?}");
    let db = open(&device, |_| {});
    let told = db.lost_keys(&repaired.lost[0]).expect("reads");
    assert_eq!((told.gone_max, told.blocks), (None, Vec::new()), "any block in the range");
    let found = content_of(&db);
    let expected = [0, 1, 2, 3, 4, 7, 8, 9].map(|block| (key(block), vec![1; BLOCK_BYTES]));
    let found: Vec<_> = found[1].iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert!(found == expected, "what was deleted stays deleted");
}

#[test]
fn rows_that_have_lost_their_index_are_told_from_dead_ones_of_another_keyspace() {
    let medium = Arc::new(MemoryDevice::growable(0, 160 * (256 << 10)));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    create(&device, 160);
    let db = open(&device, |_| {});
    let notes = db.open_keyspace("notes", KeyspaceKind::Tuple, None).expect("opens");
    // In one zone, and with keys between those of the rows.
    let mut batch = Batch::new();
    for number in 0..400 {
        for first in ['a', 'z'] {
            batch.put(rows(&db), format!("{first}{number:03}").into_bytes(), vec![number as u8; 100]);
        }
        batch.put(notes, format!("m{number:03}").into_bytes(), vec![number as u8; 100]);
    }
    db.apply(batch, Durability::Buffered).expect("applies");
    db.flush().expect("flushes");
    let mut batch = Batch::new();
    batch.delete_range(notes, &b"m"[..], &b"n"[..]);
    db.apply(batch, Durability::Buffered).expect("applies");
    db.flush().expect("flushes");
    db.compact().expect("merges");
    let expected = content_of(&db);
    db.close().expect("closes");
    drop(db);
    for sector in metadata_of(&medium).into_values().flatten() {
        damage(&medium, sector, false);
    }
    let repaired = repair(&device, &SPACES).expect("ends");
    assert!(!repaired.findings.is_empty() && repaired.lost.is_empty(), "{repaired:?}");
    assert!(content_of(&open(&device, |_| {})) == expected);
}
