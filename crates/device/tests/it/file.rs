//! `FileDevice` on real file systems.

use crate::TempDir;
use kvfs_device::{AlignedBuf, Device, FileDevice, OpenError, Rng, SECTOR_BYTES};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Set for the child of `open_in_another_process_is_in_use`.
const CHILD_PATH: &str = "KVFS_DEVICE_TEST_CHILD_PATH";

/// Random reads, writes and growths against a plain vector, with and without aligned memory.
fn compare_with_vector(device: &FileDevice, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut model = vec![0u8; device.len_bytes() as usize];
    let mut memory = AlignedBuf::zeroed(1024 * SECTOR_BYTES);
    for step in 0..200 {
        if step % 50 == 49 {
            let len = device.len_bytes() + rng.range(1, 20) * SECTOR;
            device.grow(len).unwrap();
            model.resize(len as usize, 0);
        }
        let sectors = device.len_bytes() / SECTOR;
        let first = rng.below(sectors);
        let count = rng.range(1, (sectors - first + 1).min(600));
        let (offset, len) = (first * SECTOR, (count * SECTOR) as usize);
        // Starting 8 bytes in, the memory does not suit direct I/O.
        let start = if rng.chance(1, 2) { 0 } else { 8 };
        let buf = &mut memory.as_mut()[start..start + len];
        if rng.chance(1, 2) {
            rng.fill(buf);
            device.write_at(buf, offset).unwrap();
            model[offset as usize..][..len].copy_from_slice(buf);
        } else {
            device.read_at(buf, offset).unwrap();
            assert!(*buf == model[offset as usize..][..len], "seed {seed:#x} step {step}");
        }
    }
    device.flush().unwrap();
    let read_back = fs::read(device.path()).unwrap();
    assert!(read_back == model, "seed {seed:#x}: the file itself");
}

#[test]
fn equals_a_vector_on_disk() {
    let dir = TempDir::new();
    let device = FileDevice::create(dir.join("disk"), 700 * SECTOR).unwrap();
    println!("{device:?}");
    compare_with_vector(&device, 0xd15c);
}

#[test]
fn equals_a_vector_in_a_memory_file_system() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        println!("no /dev/shm here");
        return;
    }
    let dir = TempDir::below(shm);
    let device = FileDevice::create(dir.join("disk"), 700 * SECTOR).unwrap();
    println!("{device:?}");
    compare_with_vector(&device, 0x7e4f);
}

#[test]
fn reopened_contents_are_the_same_and_length_is_whole_sectors() {
    let dir = TempDir::new();
    let path = dir.join("disk");
    let device = FileDevice::create(&path, 3 * SECTOR - 1).unwrap();
    assert_eq!(device.len_bytes(), 3 * SECTOR);
    device.write_at(&[5; SECTOR_BYTES], 2 * SECTOR).unwrap();
    device.flush().unwrap();
    drop(device);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4 * SECTOR - 1).unwrap();

    let device = FileDevice::open(&path, false).unwrap();
    assert_eq!(device.len_bytes(), 3 * SECTOR);
    let mut sector = [0; SECTOR_BYTES];
    device.read_at(&mut sector, 2 * SECTOR).unwrap();
    assert_eq!(sector, [5; SECTOR_BYTES]);
    assert_eq!(device.read_at(&mut sector, 3 * SECTOR).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert!(!device.is_block_device());
}

#[test]
fn a_file_shortened_meanwhile_gives_an_error_and_not_zeros() {
    let dir = TempDir::new();
    let device = FileDevice::create(dir.join("disk"), 8 * SECTOR).unwrap();
    fs::OpenOptions::new().write(true).open(device.path()).unwrap().set_len(2 * SECTOR).unwrap();
    let error = device.read_at(AlignedBuf::zeroed(4 * SECTOR_BYTES).as_mut(), 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn space_is_allocated_by_create_and_grow() {
    let dir = TempDir::new();
    let path = dir.join("disk");
    let allocated = || fs::metadata(&path).unwrap().blocks() * 512;
    let device = FileDevice::create(&path, 256 * SECTOR).unwrap();
    assert!(allocated() >= 256 * SECTOR);
    device.grow(512 * SECTOR).unwrap();
    assert!(allocated() >= 512 * SECTOR);
    device.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    assert_eq!(device.len_bytes(), 512 * SECTOR);
    assert_eq!(fs::metadata(&path).unwrap().len(), 512 * SECTOR);
}

#[test]
fn a_growth_that_fails_leaves_length_and_contents() {
    let dir = TempDir::new();
    let path = dir.join("disk");
    let device = FileDevice::create(&path, 4 * SECTOR).unwrap();
    device.write_at(&[1; SECTOR_BYTES], 3 * SECTOR).unwrap();
    // More than any disk has, and more than a file may have.
    for len in [1 << 52, i64::MAX as u64 / SECTOR * SECTOR] {
        assert_eq!(device.grow(len).unwrap_err().kind(), ErrorKind::StorageFull, "{len} bytes");
        assert_eq!(device.len_bytes(), 4 * SECTOR);
        assert_eq!(fs::metadata(&path).unwrap().len(), 4 * SECTOR);
    }
    device.grow(8 * SECTOR).unwrap();
    let mut sector = [0; SECTOR_BYTES];
    device.read_at(&mut sector, 3 * SECTOR).unwrap();
    assert_eq!(sector, [1; SECTOR_BYTES]);
}

#[test]
fn a_creation_that_fails_leaves_nothing_behind() {
    let dir = TempDir::new();
    let path = dir.join("disk");
    let error = FileDevice::create(&path, 1 << 52).unwrap_err();
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
    assert!(!path.exists());
}

#[test]
fn a_second_opening_is_in_use() {
    let dir = TempDir::new();
    let path = dir.join("disk");
    let writer = FileDevice::create(&path, SECTOR).unwrap();
    for read_only in [false, true] {
        let error = FileDevice::open(&path, read_only).unwrap_err();
        assert!(matches!(error, OpenError::InUse { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    drop(writer);
    let reader = FileDevice::open(&path, true).unwrap();
    let _second_reader = FileDevice::open(&path, true).unwrap();
    assert!(matches!(FileDevice::open(&path, false), Err(OpenError::InUse { .. })));
    assert_eq!(reader.write_at(&[0; SECTOR_BYTES], 0).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(reader.grow(2 * SECTOR).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert!(reader.is_read_only());
}

#[test]
fn open_in_another_process_is_in_use() {
    let dir = TempDir::new();
    let path = dir.join("disk");
    let device = FileDevice::create(&path, SECTOR).unwrap();
    let child_says = || {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "file::child_opens_the_device", "--ignored", "--nocapture"])
            .env(CHILD_PATH, &path)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let while_open = child_says();
    assert!(while_open.contains("child: in use"), "{while_open}");
    drop(device);
    let after = child_says();
    assert!(after.contains("child: opened"), "{after}");
}

#[test]
#[ignore = "the child process of open_in_another_process_is_in_use"]
fn child_opens_the_device() {
    let Some(path) = std::env::var_os(CHILD_PATH) else { return };
    match FileDevice::open(path, false) {
        Ok(_) => println!("child: opened"),
        Err(OpenError::InUse { .. }) => println!("child: in use"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_failure_to_open_has_its_type() {
    let dir = TempDir::new();
    let path = dir.join("disk");
    let open = |path: &Path| FileDevice::open(path, false);
    assert!(matches!(open(&path), Err(OpenError::NotFound { .. })));
    assert!(matches!(open(&dir.0), Err(OpenError::NotAFileOrBlockDevice { .. })));
    assert!(matches!(open(Path::new("/dev/null")), Err(OpenError::NotAFileOrBlockDevice { .. })));
    assert!(matches!(open(&path.join("below")), Err(OpenError::NotFound { .. })));

    drop(FileDevice::create(&path, SECTOR).unwrap());
    assert!(matches!(FileDevice::create(&path, SECTOR), Err(OpenError::Exists { .. })));
    assert!(matches!(open(&path.join("below")), Err(OpenError::Io { .. })), "a file is no directory");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    match open(&path) {
        Err(OpenError::Permission { .. }) => {}
        Ok(_) if is_root() => {}
        other => panic!("{other:?}"),
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A loop device over a file, detached at the end.
struct Loop(String);

impl Loop {
    fn over(path: &Path) -> io::Result<Self> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(path).output()?;
        if !output.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        Ok(Self(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // Nothing more can be done about a device that stays attached.
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
#[ignore = "needs root and a free loop device"]
fn block_devices_have_a_fixed_size_and_can_be_claimed_once() {
    let dir = TempDir::new();
    let path = dir.join("image");
    fs::File::create(&path).unwrap().set_len(1 << 20 | 512).unwrap();
    let block = Loop::over(&path).unwrap();

    let device = FileDevice::open(&block.0, false).unwrap();
    assert!(device.is_block_device());
    assert_eq!(device.len_bytes(), 1 << 20, "rounded down to whole sectors");
    assert!(matches!(FileDevice::open(&block.0, false), Err(OpenError::InUse { .. })));
    device.grow(1 << 20).unwrap();
    assert_eq!(device.grow(2 << 20).unwrap_err().kind(), ErrorKind::Unsupported);

    device.write_at(&[7; 4 * SECTOR_BYTES], 0).unwrap();
    device.flush().unwrap();
    let mut sectors = vec![1; 4 * SECTOR_BYTES];
    device.read_at(&mut sectors, 0).unwrap();
    assert!(sectors.iter().all(|byte| *byte == 7));
}
