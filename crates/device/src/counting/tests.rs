use super::{CountingDevice, IoCounts};
use crate::{Device, MemoryDevice, SECTOR_BYTES};

const SECTOR: u64 = SECTOR_BYTES as u64;

#[test]
fn counts_what_succeeded_and_nothing_else() {
    let device = CountingDevice::new(MemoryDevice::growable(4 * SECTOR, 8 * SECTOR));
    device.write_at(&[1; 2 * SECTOR_BYTES], 0).unwrap();
    let earlier = device.counts();
    device.read_at(&mut [0; SECTOR_BYTES], SECTOR).unwrap();
    device.read_at(&mut [0; SECTOR_BYTES], 4 * SECTOR).unwrap_err();
    device.flush().unwrap();
    device.grow(8 * SECTOR).unwrap();
    device.grow(9 * SECTOR).unwrap_err();
    let expected = IoCounts { reads: 1, flushes: 1, grows: 1, bytes_read: SECTOR, ..IoCounts::default() };
    assert_eq!(device.counts() - earlier, expected);
    assert_eq!((earlier.writes, earlier.bytes_written), (1, 2 * SECTOR));
    assert_eq!(device.inner().len_bytes(), device.len_bytes());
}
