use std::sync::Arc;

use super::OverlayDevice;
use crate::{
    AlignedBuf, Device, FaultDevice, FaultError, FaultRule, MemoryDevice, SECTOR_BYTES, read_around,
};

#[test]
fn what_is_written_above_stays_above() {
    let below = Arc::new(MemoryDevice::from_image(&vec![7; 8 * SECTOR_BYTES]));
    let device = OverlayDevice::over(Arc::clone(&below) as Arc<dyn Device>);
    device
        .write_at(AlignedBuf::from_slice(&[9; 2 * SECTOR_BYTES]).as_ref(), 3 * SECTOR_BYTES as u64)
        .unwrap();
    device.grow(10 * SECTOR_BYTES as u64).unwrap();
    let mut buf = AlignedBuf::zeroed(10 * SECTOR_BYTES);
    device.read_at(buf.as_mut(), 0).unwrap();
    let fills: Vec<u8> = buf.as_ref().chunks(SECTOR_BYTES).map(|sector| sector[0]).collect();
    assert_eq!(fills, [7, 7, 7, 9, 9, 7, 7, 7, 0, 0]);
    assert!(below.snapshot().iter().all(|&byte| byte == 7), "the medium is as it was");
    assert_eq!(device.bytes_written(), 2 * SECTOR_BYTES as u64);
    assert!(device.read_at(buf.as_mut(), SECTOR_BYTES as u64).is_err(), "beyond the end");
}

#[test]
fn what_cannot_be_read_is_zeros_and_the_rest_is_there() {
    let device = FaultDevice::new(MemoryDevice::from_image(&[7; 4 * SECTOR_BYTES]));
    // The whole at once, then the second sector.
    device.add(FaultRule::once(crate::Call::Read, 0, FaultError::EIO));
    device.add(FaultRule::once(crate::Call::Read, 2, FaultError::EIO));
    let mut buf = vec![1; 6 * SECTOR_BYTES];
    assert_eq!(read_around(&device, &mut buf, 0), 3 * SECTOR_BYTES as u64);
    let fills: Vec<u8> = buf.chunks(SECTOR_BYTES).map(|sector| sector[0]).collect();
    assert_eq!(fills, [7, 0, 7, 7, 0, 0]);
}
