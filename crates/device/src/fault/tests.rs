use super::{Call, FaultDevice, FaultError, FaultRule};
use crate::{Device, MemoryDevice, SECTOR_BYTES};
use std::io::{self, ErrorKind};

const SECTOR: u64 = SECTOR_BYTES as u64;

fn device() -> FaultDevice<MemoryDevice> {
    FaultDevice::new(MemoryDevice::growable(8 * SECTOR, 16 * SECTOR))
}

/// A small workload that makes every call.
fn workload(device: &dyn Device) -> io::Result<()> {
    device.write_at(&[1; SECTOR_BYTES], 0)?;
    device.flush()?;
    device.read_at(&mut [0; SECTOR_BYTES], 0)?;
    device.grow(16 * SECTOR)?;
    device.allocate(0, SECTOR)?;
    device.write_at(&[2; SECTOR_BYTES], 15 * SECTOR)?;
    device.flush()
}

#[test]
fn every_single_call_can_be_failed() {
    let clean = device();
    workload(&clean).unwrap();
    let total = clean.counts().total();
    assert_eq!(total, 7);
    assert_eq!(clean.faults(), 0);
    for nth in 0..total {
        let faulty = device();
        faulty.add(FaultRule::once_any(nth, FaultError::EIO));
        let error = workload(&faulty).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5), "call {nth}");
        assert_eq!((faulty.faults(), faulty.counts().total()), (1, nth + 1));
    }
}

#[test]
fn once_passes_again_and_from_stays() {
    let faulty = device();
    faulty.add(FaultRule::once(Call::Write, 1, FaultError::EIO));
    faulty.add(FaultRule::from(Call::Flush, 1, FaultError::Kind(ErrorKind::TimedOut)));
    faulty.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    faulty.write_at(&[1; SECTOR_BYTES], 0).unwrap_err();
    faulty.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    faulty.flush().unwrap();
    for _ in 0..3 {
        assert_eq!(faulty.flush().unwrap_err().kind(), ErrorKind::TimedOut);
    }
    faulty.clear();
    faulty.flush().unwrap();
    assert_eq!((faulty.counts().of(Call::Flush), faulty.counts().of(Call::Write)), (5, 3));
}

#[test]
fn enospc_reads_as_storage_full() {
    let faulty = device();
    faulty.add(FaultRule::from(Call::Grow, 0, FaultError::ENOSPC));
    assert_eq!(faulty.grow(16 * SECTOR).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(faulty.len_bytes(), 8 * SECTOR);
}

#[test]
fn a_torn_write_leaves_its_start() {
    let faulty = device();
    faulty.add(FaultRule::once(Call::Write, 0, FaultError::EIO).torn(2 * SECTOR_BYTES + 100));
    faulty.write_at(&[9; 4 * SECTOR_BYTES], SECTOR).unwrap_err();
    let image = faulty.inner().snapshot();
    let written: Vec<bool> = image.chunks(SECTOR_BYTES).map(|sector| sector[0] == 9).collect();
    assert_eq!(written, [false, true, true, false, false, false, false, false]);
}

#[test]
fn flips_falsify_reads_only_and_only_their_byte() {
    let faulty = device();
    faulty.flip(SECTOR + 7, 0b0001_0001);
    let mut sectors = [0; 2 * SECTOR_BYTES];
    faulty.read_at(&mut sectors, SECTOR).unwrap();
    assert_eq!(sectors[7], 0b0001_0001);
    assert_eq!(sectors.iter().filter(|&&byte| byte != 0).count(), 1);
    faulty.read_at(&mut sectors, 2 * SECTOR).unwrap();
    assert!(sectors.iter().all(|&byte| byte == 0));
    assert!(faulty.inner().snapshot().iter().all(|&byte| byte == 0));
}
