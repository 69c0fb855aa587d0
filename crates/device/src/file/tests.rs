use super::FileDevice;
use crate::{AlignedBuf, Device, SECTOR_BYTES};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::path::PathBuf;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// A file that goes away with its test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("kvfs-device-{}-{name}", std::process::id())))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // Never made, if the test failed early.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn works_through_the_page_cache_too() {
    let file = TempFile::new("buffered");
    let mut device = FileDevice::create(&file.0, 8 * SECTOR).unwrap();
    let flags = fcntl_getfl(&device.file).unwrap();
    fcntl_setfl(&device.file, flags.difference(OFlags::DIRECT)).unwrap();
    device.is_direct = false;

    let mut memory = AlignedBuf::zeroed(3 * SECTOR_BYTES);
    let unaligned = &mut memory.as_mut()[8..8 + 2 * SECTOR_BYTES];
    assert!(!device.needs_bounce(unaligned.as_ptr()));
    unaligned.fill(4);
    device.write_at(unaligned, 3 * SECTOR).unwrap();
    device.flush().unwrap();
    unaligned.fill(0);
    device.read_at(unaligned, 3 * SECTOR).unwrap();
    assert!(unaligned.iter().all(|&byte| byte == 4));
}

#[test]
fn space_is_found_by_writing_where_fallocate_is_missing() {
    let file = TempFile::new("written");
    let device = FileDevice::create(&file.0, SECTOR).unwrap();
    device.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    device.allocate_by_writing(SECTOR, 200 * SECTOR).unwrap();
    let bytes = std::fs::read(&file.0).unwrap();
    assert_eq!(bytes.len() as u64, 200 * SECTOR);
    assert!(bytes[..SECTOR_BYTES].iter().all(|&byte| byte == 1), "what was there stays");
    assert!(bytes[SECTOR_BYTES..].iter().all(|&byte| byte == 0));
}
