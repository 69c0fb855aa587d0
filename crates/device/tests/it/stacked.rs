//! Devices over devices, as the tests of the layers above use them.

use crate::TempDir;
use kvfs_device::{
    Call, CountingDevice, CrashDevice, CrashMode, Device, FaultDevice, FaultError, FaultRule, FileDevice,
    MemoryDevice, PowerCut, Rng, SECTOR_BYTES,
};
use std::sync::Arc;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// A log of sectors: each append writes a sector with its number, flushes, and then counts.
fn append_until_failure(device: &dyn Device, rng: &mut Rng) -> u64 {
    let mut acknowledged = 0;
    while acknowledged < device.len_bytes() / SECTOR {
        let mut sector = [0; SECTOR_BYTES];
        rng.fill(&mut sector);
        sector[..8].copy_from_slice(&(acknowledged + 1).to_le_bytes());
        let appended = device.write_at(&sector, acknowledged * SECTOR).and_then(|()| device.flush());
        if appended.is_err() {
            break;
        }
        acknowledged += 1;
    }
    acknowledged
}

/// How many sectors from the start carry their number.
fn recover(device: &dyn Device) -> u64 {
    let sectors = device.len_bytes() / SECTOR;
    let carries_its_number = |&sector: &u64| {
        let mut bytes = [0; SECTOR_BYTES];
        device.read_at(&mut bytes, sector * SECTOR).unwrap();
        bytes[..8] == (sector + 1).to_le_bytes()
    };
    (0..sectors).take_while(carries_its_number).count() as u64
}

#[test]
fn what_was_flushed_survives_a_power_cut_on_a_real_file() {
    for seed in 0..40 {
        let dir = TempDir::new();
        let path = dir.join("disk");
        let mut rng = Rng::new(seed);
        let file = Arc::new(FileDevice::create(&path, 20 * SECTOR).unwrap());
        let device = CrashDevice::over(file);
        let cut = PowerCut { event_index: rng.index(40), seed, mode: CrashMode::Any };
        device.cut_power_at(cut);
        let acknowledged = append_until_failure(&device, &mut rng);
        assert!(!device.is_powered());
        drop(device);

        let recovered = recover(&FileDevice::open(&path, false).unwrap());
        let torn_in_flight = acknowledged + 1;
        assert!((acknowledged..=torn_in_flight).contains(&recovered), "{cut:?}: {recovered}, {acknowledged}");
    }
}

#[test]
fn a_missing_flush_is_found_at_some_event() {
    let device = CrashDevice::in_memory(2 * SECTOR, 2 * SECTOR).with_log().unwrap();
    // The pointer at 0 must never be there without what it points to at 1, but no flush parts them.
    device.write_at(&[1; SECTOR_BYTES], SECTOR).unwrap();
    device.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    device.flush().unwrap();
    let broken = |&(index, seed): &(usize, u64)| {
        let image = device.image_at(index, seed, CrashMode::Any).unwrap().snapshot();
        image[0] == 1 && image[SECTOR_BYTES..].contains(&0)
    };
    let points = (0..=device.events_len()).flat_map(|index| (0..50).map(move |seed| (index, seed)));
    let found: Vec<(usize, u64)> = points.filter(broken).collect();
    assert!(!found.is_empty());
    assert!(found.iter().all(|&(index, _)| index == 2), "only between the second write and the flush");
}

#[test]
fn faults_pass_through_the_stack_and_are_not_counted_as_done() {
    let faulty = Arc::new(FaultDevice::new(MemoryDevice::new(8 * SECTOR)));
    let device = CountingDevice::new(CrashDevice::over(faulty.clone()));
    faulty.add(FaultRule::once(Call::Flush, 1, FaultError::EIO));
    device.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    device.flush().unwrap();
    device.write_at(&[2; SECTOR_BYTES], 0).unwrap();
    assert_eq!(device.flush().unwrap_err().raw_os_error(), Some(5));
    assert_eq!(device.inner().bytes_unflushed(), SECTOR, "a failed flush covers nothing");
    device.flush().unwrap();
    assert_eq!((device.counts().writes, device.counts().flushes), (2, 2));
    assert_eq!(faulty.faults(), 1);
}
