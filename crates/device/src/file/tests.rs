use super::FileDevice;
use crate::{AlignedBuf, Device, SECTOR_BYTES};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

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

#[test]
fn allocated_hole_reads_as_before_and_takes_its_space() {
    let file = TempFile::new("allocated");
    let device = FileDevice::create(&file.0, 0).unwrap();
    let len = 256 * SECTOR;
    device.extend(len).unwrap();
    assert_eq!(device.len_bytes(), len);
    let taken = || std::fs::metadata(&file.0).unwrap().blocks() * 512;
    assert!(taken() < len / 4, "an extension is a hole: {} bytes", taken());
    let content = AlignedBuf::from_slice(&[7; 3 * SECTOR_BYTES]);
    device.write_at(content.as_ref(), 100 * SECTOR).unwrap();
    for _ in 0..2 {
        device.allocate(0, len).unwrap();
        assert!(taken() >= len, "{} bytes", taken());
        let mut all = AlignedBuf::zeroed(len as usize);
        device.read_at(all.as_mut(), 0).unwrap();
        let (written, at) = (content.as_ref(), 100 * SECTOR_BYTES);
        assert_eq!(&all.as_ref()[at..at + written.len()], written);
        assert!(all.as_ref()[..at].iter().chain(&all.as_ref()[at + written.len()..]).all(|&byte| byte == 0));
    }
    assert!(device.allocate(0, len + SECTOR).is_err(), "behind the end there is nothing to allocate");
}

fn taken(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

fn filled_with(byte: u8, len: u64) -> AlignedBuf {
    AlignedBuf::from_slice(&vec![byte; len as usize])
}

#[test]
fn allocation_without_fallocate_writes_the_holes_and_keeps_the_content() {
    let file = TempFile::new("rewritten");
    let device = FileDevice::create(&file.0, 0).unwrap();
    // As on NFS: no way to set space aside, none to ask for holes.
    device.sets_space_aside.store(false, Ordering::Relaxed);
    let len = 300 * SECTOR;
    device.extend(len).unwrap();
    device.write_at(filled_with(7, 3 * SECTOR).as_ref(), 100 * SECTOR).unwrap();
    assert!(taken(&file.0) < len / 4, "an extension is a hole: {} bytes", taken(&file.0));
    for _ in 0..2 {
        device.allocate(0, len).unwrap();
        assert!(taken(&file.0) >= len, "{} bytes have their space", taken(&file.0));
        let mut all = AlignedBuf::zeroed(len as usize);
        device.read_at(all.as_mut(), 0).unwrap();
        for (number, sector) in all.as_ref().chunks(SECTOR_BYTES).enumerate() {
            let expected = if (100..103).contains(&number) { 7 } else { 0 };
            assert!(sector.iter().all(|&byte| byte == expected), "sector {number}");
        }
    }
}

/// A host file system of 1 MiB, where the test may mount.
struct SmallHost(PathBuf);

impl SmallHost {
    fn mount(name: &str) -> Option<Self> {
        let dir = std::env::temp_dir().join(format!("kvfs-device-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let host = Self(dir);
        let mount = ["-t", "tmpfs", "-o", "size=1M", "tmpfs"];
        let mounted = Command::new("mount").args(mount).arg(&host.0).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(host);
        }
        eprintln!("skipped: {name} needs the right to mount");
        None
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        // Not mounted, where the test may not.
        let _ = Command::new("umount").arg(&self.0).output();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn failed_allocation_is_a_clean_refusal_and_gives_back_what_it_took() {
    for with_fallocate in [true, false] {
        let Some(host) = SmallHost::mount("failed_allocation") else { return };
        let path = host.0.join("device");
        let device = FileDevice::create(&path, 0).unwrap();
        device.sets_space_aside.store(with_fallocate, Ordering::Relaxed);
        device.extend(400 * SECTOR).unwrap();
        device.write_at(filled_with(9, 2 * SECTOR).as_ref(), 150 * SECTOR).unwrap();
        let before = taken(&path);
        for _ in 0..3 {
            let refused = device.allocate(0, 400 * SECTOR).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "{refused}");
            if with_fallocate {
                assert_eq!(taken(&path), before, "what was taken is given back");
            }
        }
        let mut content = AlignedBuf::zeroed(2 * SECTOR_BYTES);
        device.read_at(content.as_mut(), 150 * SECTOR).unwrap();
        assert!(content.as_ref().iter().all(|&byte| byte == 9), "what was written stays");
        // What fits still can be had, and is then certain although the rest of the medium is filled.
        device.allocate(100 * SECTOR, 60 * SECTOR).unwrap();
        let filled = std::fs::write(host.0.join("other"), vec![1; 1 << 20]);
        assert_eq!(filled.unwrap_err().kind(), io::ErrorKind::StorageFull);
        device.write_at(filled_with(3, 60 * SECTOR).as_ref(), 100 * SECTOR).unwrap();
    }
}

#[test]
fn room_of_a_file_leaves_out_what_its_holes_will_take() {
    let Some(host) = SmallHost::mount("room_of_a_file") else { return };
    let device = FileDevice::create(host.0.join("device"), 0).unwrap();
    let empty = device.room_bytes().unwrap();
    device.extend(100 * SECTOR).unwrap();
    assert_eq!(device.room_bytes(), Some(empty - 100 * SECTOR));
    device.allocate(20 * SECTOR, 30 * SECTOR).unwrap();
    assert_eq!(device.room_bytes(), Some(empty - 100 * SECTOR), "it was promised before");
    let room = device.room_bytes().unwrap();
    device.grow(device.len_bytes() + room).unwrap();
    assert_eq!(device.room_bytes(), Some(0));
    device.allocate(0, 100 * SECTOR).unwrap();
}

#[test]
fn reserved_file_has_its_space_and_its_content_and_too_large_a_one_is_as_it_was() {
    let Some(host) = SmallHost::mount("reserved_file") else { return };
    let path = host.0.join("device");
    let device = FileDevice::create(&path, 0).unwrap();
    device.extend(100 * SECTOR).unwrap();
    device.write_at(filled_with(9, 2 * SECTOR).as_ref(), 50 * SECTOR).unwrap();
    let before = taken(&path);
    let refused = device.reserve(1 << 21).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    assert_eq!((device.len_bytes(), taken(&path)), (100 * SECTOR, before));
    assert!(device.reserve(150 * SECTOR).unwrap());
    assert_eq!((device.len_bytes(), taken(&path)), (150 * SECTOR, 150 * SECTOR));
    let filled = std::fs::write(host.0.join("other"), vec![1; 1 << 20]);
    assert_eq!(filled.unwrap_err().kind(), io::ErrorKind::StorageFull);
    let mut content = AlignedBuf::zeroed(2 * SECTOR_BYTES);
    device.read_at(content.as_mut(), 50 * SECTOR).unwrap();
    assert!(content.as_ref().iter().all(|&byte| byte == 9), "what was written stays");
    device.write_at(filled_with(3, 150 * SECTOR).as_ref(), 0).unwrap();
}

#[test]
fn file_without_fallocate_is_as_long_as_asked_for_and_says_that_it_has_no_space() {
    let file = TempFile::new("unreserved");
    let device = FileDevice::create(&file.0, 0).unwrap();
    device.sets_space_aside.store(false, Ordering::Relaxed);
    assert!(!device.reserve(16 * SECTOR).unwrap());
    assert_eq!((device.len_bytes(), taken(&file.0)), (16 * SECTOR, 0));
}
