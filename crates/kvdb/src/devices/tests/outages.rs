//! A device that does not answer for a while, beside others that do.

use super::*;

/// What block `at` of a file is once a patch of [`patch`] is in it.
fn patched(file: u64, at: usize) -> Vec<u8> {
    let mut block = content(file, 1)[at * BLOCK_BYTES..][..BLOCK_BYTES].to_vec();
    block[9..14].copy_from_slice(b"small");
    block
}

/// Files on a slow device, parts of whose blocks were written anew and synced, and that device. No block of
/// them is in memory.
fn with_patches(first: &Arc<dyn Device>, slow: &Arc<FaultDevice<MemoryDevice>>) -> Arc<Db> {
    create(first);
    let db = open(first, &[], options()).expect("opens");
    db.add_device(Arc::clone(slow) as _, Tier::Slow).expect("adds");
    (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
    db.close().expect("closes");
    drop(db);
    let db = open(first, &[Arc::clone(slow) as _], options()).expect("opens");
    for file in 0..FILES {
        let mut batch = Batch::new();
        batch.patch_block(files(&db), file.to_be_bytes().to_vec(), file, 9, b"small".to_vec());
        db.apply(batch, Durability::Synced).expect("applies");
    }
    db
}

#[test]
fn synced_small_writes_outlive_a_flush_while_one_of_several_devices_reads_nothing() {
    // The device answers again after so many reads.
    for reads in (1..=8).chain([10_000]) {
        let (first, slow) = (first(), Arc::new(FaultDevice::new(MemoryDevice::new(SLOW_BYTES))));
        let db = with_patches(&first, &slow);
        (0..reads).for_each(|nth| slow.add(FaultRule::once(Call::Read, nth, FaultError::EIO)));
        let flushed = db.flush();
        assert!(slow.faults() > 0, "the flush needs what lies there");
        if reads == 10_000 {
            let error = flushed.expect_err("the device reads nothing");
            assert!(matches!(error, StoreError::Io { .. }), "{error}");
        }
        drop(db);
        slow.clear();
        let db = open(&first, &[Arc::clone(&slow) as _], options()).expect("opens");
        for file in 0..FILES {
            let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
            db.read_blocks(files(&db), &file.to_be_bytes(), file, block.as_mut()).expect("reads");
            assert!(block.as_ref() == patched(file, file as usize), "{reads} reads failed, file {file}");
        }
        db.close().expect("closes");
    }
}

#[test]
fn a_sector_that_can_not_be_read_costs_its_own_block_beside_devices_that_answer() {
    let (first, slow) = (first(), Arc::new(FaultDevice::new(MemoryDevice::new(SLOW_BYTES))));
    let db = with_patches(&first, &slow);
    let mut image = AlignedBuf::zeroed(SLOW_BYTES as usize);
    slow.read_at(image.as_mut(), 0).expect("reads");
    let lost = &content(3, 1)[3 * BLOCK_BYTES..][..BLOCK_BYTES];
    let sector = image.as_ref().chunks(BLOCK_BYTES).position(|sector| sector == lost).expect("lies there");
    let at = (sector * BLOCK_BYTES) as u64;
    slow.lose(at..at + 1);
    // One copy of the label is enough to tell that the device reads.
    slow.lose(0..1);
    db.flush().expect("one broken sector is no failure of the store");
    for file in 0..FILES {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        let read = db.read_blocks(files(&db), &file.to_be_bytes(), file, block.as_mut());
        assert_eq!(read.is_err(), file == 3, "file {file}");
        assert!(file == 3 || block.as_ref() == patched(file, file as usize), "file {file}");
    }
}

#[test]
fn opening_fails_and_loses_nothing_when_a_device_vanishes_during_the_replay() {
    for error in [FaultError::Kind(io::ErrorKind::UnexpectedEof), FaultError::EIO] {
        for read_only in [true, false] {
            let (first, slow) = (first(), Arc::new(FaultDevice::new(MemoryDevice::new(SLOW_BYTES))));
            create(&first);
            let db = open(&first, &[], options()).expect("opens");
            db.add_device(Arc::clone(&slow) as _, Tier::Slow).expect("adds");
            (0..FILES).for_each(|file| write(&db, file, 1).expect("writes"));
            db.flush().expect("flushes");
            // These are in the journal, which tells where their blocks lie on the slow device. Nothing behind
            // the last one says that it was flushed.
            (0..FILES).for_each(|file| write(&db, file, 2).expect("writes"));
            drop(db);
            let others = [Arc::clone(&slow) as Arc<dyn Device>];
            let mut reads = 0;
            loop {
                let faults = slow.faults();
                slow.add(FaultRule::from_any(reads, error));
                let opened = open(&first, &others, Options { read_only, ..options() });
                slow.clear();
                if slow.faults() == faults {
                    opened.expect("opens with the device");
                    break;
                }
                match opened {
                    // Its label could not be read.
                    Ok(db) => assert!(read_only && db.devices()[1].is_missing, "{error:?}, call {reads}"),
                    Err(error) => {
                        assert!(error.to_string().contains("the slow device 1"), "call {reads}: {error}");
                    }
                }
                reads += 1;
            }
            assert!(reads >= FILES, "{reads}: each of these is read");
            check(&open(&first, &others, options()).expect("opens"), 2);
        }
    }
}
