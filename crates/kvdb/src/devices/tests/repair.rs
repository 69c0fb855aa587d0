//! Repairs of stores with several devices.

use super::*;
use crate::format::Superblock;
use crate::space::ZoneState;
use crate::{MissingDevices, Repaired, repair_joined};

const KEYSPACES: [(&str, KeyspaceKind); 2] = [("files", KeyspaceKind::Block), ("rows", KeyspaceKind::Tuple)];

/// A closed store with rows on the first device, and blocks of files on the other one, which is slow.
fn closed() -> (Arc<dyn Device>, Arc<dyn Device>) {
    let (first, slow) = (first(), memory(SLOW_BYTES));
    create(&first);
    let db = open(&first, &[], options()).expect("opens");
    // In the order of their numbers, as a repair without a manifest names them.
    files(&db);
    db.add_device(Arc::clone(&slow), Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.flush().expect("flushes");
    assert!(live(&db, 1) >= FILES * BLOCKS * BLOCK_BYTES as u64);
    db.close().expect("closes");
    (first, slow)
}

fn repaired(first: &Arc<dyn Device>, slow: &Arc<dyn Device>) -> Repaired {
    let others = [memory(SLOW_BYTES), Arc::clone(slow)];
    repair_joined(first, &others, &KEYSPACES).expect("a repair ends")
}

fn opened(first: &Arc<dyn Device>, slow: &Arc<dyn Device>) -> Arc<Db> {
    open(first, std::slice::from_ref(slow), options()).expect("opens")
}

#[test]
fn sound_store_of_several_devices_is_left_as_it_is() {
    let (first, slow) = closed();
    let found = repaired(&first, &slow);
    assert!(found.findings.is_empty() && found.lost.is_empty() && !found.is_uncertain, "{found:?}");
    check(&opened(&first, &slow), 1);
}

#[test]
fn repair_without_a_device_of_the_store_is_refused_and_writes_nothing() {
    let (first, slow) = closed();
    let bytes = |device: &Arc<dyn Device>| {
        let mut bytes = AlignedBuf::zeroed(device.len_bytes() as usize);
        device.read_at(bytes.as_mut(), 0).expect("reads");
        bytes
    };
    let before = bytes(&first);
    let error = repair_joined(&first, &[memory(SLOW_BYTES)], &KEYSPACES).expect_err("is refused");
    let StoreError::Io { source, .. } = &error else { panic!("{error}") };
    assert!(
        source.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<MissingDevices>),
        "{error}"
    );
    assert!(bytes(&first).as_ref() == before.as_ref());
    check(&opened(&first, &slow), 1);
}

#[test]
fn damage_on_a_slow_device_costs_the_blocks_that_it_has_hit() {
    let (first, slow) = closed();
    let at = MEMBER_DATA_FROM + 2 * ZONE_BYTES;
    slow.write_at(AlignedBuf::zeroed(BLOCK_BYTES).as_ref(), at).expect("damages");
    let found = repaired(&first, &slow);
    let blocks: Vec<_> = found.lost.iter().map(|lost| (&*lost.keyspace, lost.part.first.len())).collect();
    assert_eq!(blocks, [("files", 16)], "{found:?}");
    let again = repaired(&first, &slow);
    assert!(again.findings.is_empty(), "{again:?}");

    let db = opened(&first, &slow);
    let mut holes = 0;
    for file in 0..FILES {
        let mut found = AlignedBuf::zeroed(BLOCKS as usize * BLOCK_BYTES);
        db.read_blocks(files(&db), &file.to_be_bytes(), 0, found.as_mut()).expect("reads");
        let wanted = content(file, 1);
        let pairs = found.as_ref().chunks_exact(BLOCK_BYTES).zip(wanted.chunks_exact(BLOCK_BYTES));
        for (found, wanted) in pairs.filter(|(found, wanted)| found != wanted) {
            assert!(found.iter().all(|&byte| byte == 0), "no byte of {} is another one", wanted.len());
            holes += 1;
        }
    }
    assert_eq!(holes, 1);
}

#[test]
fn devices_and_pieces_of_a_lost_manifest_are_found_by_labels_and_zones() {
    let (first, slow) = closed();
    let superblock = Superblock::read_newest(first.as_ref()).expect("is there");
    for zone in &superblock.manifest_zones {
        let zeros = AlignedBuf::zeroed(ZONE_BYTES as usize);
        first.write_at(zeros.as_ref(), u64::from(zone.0) * ZONE_BYTES).expect("damages");
    }
    assert!(open(&first, std::slice::from_ref(&slow), options()).is_err());
    let found = repaired(&first, &slow);
    assert!(found.is_uncertain && found.lost.is_empty(), "{found:?}");
    let db = opened(&first, &slow);
    check(&db, 1);
    assert!(live(&db, 1) >= FILES * BLOCKS * BLOCK_BYTES as u64, "it is a device of the store again");
    (0..FILES).for_each(|file| write(&db, file, 2).expect("writes"));
    db.compact().expect("merges");
    check(&db, 2);
}

#[test]
fn a_repair_grows_the_first_device_where_others_lie_behind_it() {
    let (whole, slow) = closed();
    let db = opened(&whole, &slow);
    let in_use = db.parts.runtime.ctx.zones.rows().into_iter().filter(|row| row.state != ZoneState::Free);
    let last = in_use.map(|row| u64::from(row.zone.0)).filter(|&zone| zone < FIRST_ZONES).max();
    db.close().expect("closes");
    drop(db);
    // Nothing behind what is in use.
    let len = (last.expect("has a manifest") + 1) * ZONE_BYTES;
    let mut content = AlignedBuf::zeroed(len as usize);
    whole.read_at(content.as_mut(), 0).expect("reads");
    let first: Arc<dyn Device> = Arc::new(MemoryDevice::growable(len, FIRST_ZONES * ZONE_BYTES));
    first.write_at(content.as_ref(), 0).expect("writes");
    let at = MEMBER_DATA_FROM + 2 * ZONE_BYTES;
    slow.write_at(AlignedBuf::zeroed(BLOCK_BYTES).as_ref(), at).expect("damages");
    assert!(!repaired(&first, &slow).lost.is_empty());
    assert!((len + 1..FIRST_ZONES * ZONE_BYTES).contains(&first.len_bytes()), "{}", first.len_bytes());
    let again = repaired(&first, &slow);
    assert!(again.findings.is_empty(), "{again:?}");
}

#[test]
fn damaged_copy_of_superblock_or_label_is_told_by_a_check_and_mended_by_a_repair() {
    let (first, slow) = closed();
    for at in [0, 32768] {
        let db = opened(&first, &slow);
        for device in [&first, &slow] {
            device.write_at(&[7; BLOCK_BYTES], at).expect("damages");
        }
        let findings = db.check().expect("checks").findings;
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains(&format!("superblock at byte {at}")), "{findings:?}");
        assert!(findings[1].contains(&format!("label at byte {at} of the slow device 1")), "{findings:?}");
        db.close().expect("closes");
        drop(db);
        assert_eq!(repaired(&first, &slow).findings, findings);
        assert!(repaired(&first, &slow).findings.is_empty());
        check(&opened(&first, &slow), 1);
    }
}
