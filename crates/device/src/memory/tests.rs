use super::{CHUNK_BYTES, MemoryDevice};
use crate::{Device, Rng, SECTOR_BYTES};
use std::io::ErrorKind;

const SECTOR: u64 = SECTOR_BYTES as u64;

#[test]
fn equals_a_plain_vector_under_random_calls() {
    let seed = 0x4d45_4d01;
    let mut rng = Rng::new(seed);
    let sectors = 64;
    let device = MemoryDevice::new(sectors * SECTOR);
    let mut model = vec![0u8; (sectors * SECTOR) as usize];
    for step in 0..2000 {
        let first = rng.below(sectors);
        let count = rng.range(1, sectors - first + 1);
        let (offset, len) = (first * SECTOR, (count * SECTOR) as usize);
        let range = offset as usize..offset as usize + len;
        if rng.below(3) == 0 {
            let mut data = vec![0; len];
            rng.fill(&mut data);
            device.write_at(&data, offset).unwrap();
            model[range].copy_from_slice(&data);
        } else {
            let mut got = vec![1; len];
            device.read_at(&mut got, offset).unwrap();
            assert!(got == model[range], "seed {seed:#x} step {step}");
        }
    }
    assert!(device.snapshot() == model, "seed {seed:#x}");
    assert!(MemoryDevice::from_image(&model).snapshot() == model, "seed {seed:#x}");
    let copy = MemoryDevice::copy_of(&device, device.len_bytes(), device.len_bytes()).unwrap();
    assert!(copy.snapshot() == model, "seed {seed:#x}");
}

#[test]
fn a_fork_is_independent_both_ways() {
    let origin = MemoryDevice::new(4 * CHUNK_BYTES);
    origin.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    let fork = origin.fork();
    origin.write_at(&[2; SECTOR_BYTES], 0).unwrap();
    fork.write_at(&[3; SECTOR_BYTES], SECTOR).unwrap();
    assert_eq!(origin.snapshot()[0], 2);
    assert_eq!(origin.snapshot()[SECTOR_BYTES], 0);
    assert_eq!(fork.snapshot()[0], 1);
    assert_eq!(fork.snapshot()[SECTOR_BYTES], 3);
}

#[test]
fn takes_memory_for_what_was_written_alone() {
    let device = MemoryDevice::new(1 << 40);
    assert_eq!(device.bytes_allocated(), 0);
    device.write_at(&[7; SECTOR_BYTES], 1 << 39).unwrap();
    assert_eq!(device.bytes_allocated(), CHUNK_BYTES);
}

#[test]
fn grows_to_its_limit_and_not_further() {
    let device = MemoryDevice::growable(SECTOR, 4 * SECTOR);
    device.grow(4 * SECTOR).unwrap();
    assert_eq!(device.len_bytes(), 4 * SECTOR);
    device.grow(2 * SECTOR).unwrap();
    assert_eq!(device.len_bytes(), 4 * SECTOR, "never shrinks");
    assert_eq!(device.grow(5 * SECTOR).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(device.len_bytes(), 4 * SECTOR);
}

#[test]
fn refuses_unaligned_and_out_of_bounds() {
    let device = MemoryDevice::new(2 * SECTOR);
    let mut sector = [0; SECTOR_BYTES];
    assert_eq!(device.read_at(&mut sector, 2 * SECTOR).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(device.read_at(&mut sector, u64::MAX - 4095).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(device.write_at(&sector, 2 * SECTOR).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(device.write_at(&sector, 512).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(device.read_at(&mut sector[..512], 0).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(device.grow(SECTOR + 1).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn parallel_writers_do_not_disturb_each_other() {
    let threads = 4u64;
    let per_thread = 64u64;
    let device = MemoryDevice::new(threads * per_thread * SECTOR);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let device = &device;
            scope.spawn(move || {
                for step in 0..per_thread {
                    let data = [(thread + 1) as u8; SECTOR_BYTES];
                    device.write_at(&data, (step * threads + thread) * SECTOR).unwrap();
                }
            });
        }
    });
    for (index, sector) in device.snapshot().chunks(SECTOR_BYTES).enumerate() {
        assert!(sector.iter().all(|&byte| u64::from(byte) == index as u64 % threads + 1), "sector {index}");
    }
}
