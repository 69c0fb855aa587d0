use super::*;
use crate::{Call, CountingDevice, FaultDevice, FaultError, FaultRule, MemoryDevice, SECTOR_BYTES};

const SECTOR: u64 = SECTOR_BYTES as u64;

type Counted = Arc<CountingDevice<MemoryDevice>>;

/// A first device of 4 sectors that may grow to 8, and one of 10 behind that, whose first two sectors are not
/// in the store.
fn two() -> (Counted, Counted, JoinedDevice) {
    let memory =
        |sectors: u64| Arc::new(CountingDevice::new(MemoryDevice::growable(sectors * SECTOR, 16 * SECTOR)));
    let (first, second) = (memory(4), memory(10));
    let joined = JoinedDevice::new(Arc::clone(&first) as _, Arc::default());
    joined.append(Segment {
        start: 8 * SECTOR,
        device: Arc::clone(&second) as _,
        offset: 2 * SECTOR,
        len: 8 * SECTOR,
        written: Arc::default(),
    });
    (first, second, joined)
}

fn sector(fill: u8) -> [u8; SECTOR_BYTES] {
    [fill; SECTOR_BYTES]
}

fn first_byte(device: &dyn Device, at: u64) -> io::Result<u8> {
    let mut one = sector(0);
    device.read_at(&mut one, at * SECTOR).map(|()| one[0])
}

#[test]
fn a_range_over_the_border_lies_on_both_devices() {
    let (first, second, joined) = two();
    assert_eq!(joined.len_bytes(), 16 * SECTOR);
    joined.grow(8 * SECTOR).unwrap();
    assert_eq!(first.len_bytes(), 8 * SECTOR);
    let data: Vec<u8> = (1..=4).flat_map(sector).collect();
    joined.write_at(&data, 6 * SECTOR).unwrap();
    let mut found = vec![0; data.len()];
    joined.read_at(&mut found, 6 * SECTOR).unwrap();
    assert_eq!(found, data);
    let on = |device: &Counted, at| first_byte(device.as_ref(), at).unwrap();
    assert_eq!([on(&first, 6), on(&first, 7), on(&second, 2), on(&second, 3)], [1, 2, 3, 4]);
    assert_eq!([on(&second, 0), on(&second, 1)], [0, 0], "what lies before the segment is not touched");
}

#[test]
fn what_is_on_no_device_is_refused() {
    let (_, _, joined) = two();
    assert!(joined.write_at(&[0; 2 * SECTOR_BYTES], 15 * SECTOR).is_err());
    let past_the_end = joined.read_at(&mut [0; SECTOR_BYTES], 16 * SECTOR).unwrap_err();
    assert_eq!(past_the_end.kind(), io::ErrorKind::UnexpectedEof);
    assert!(first_byte(&joined, 5).is_err(), "the first device has not grown to it");
    assert_eq!(joined.grow(9 * SECTOR).unwrap_err().kind(), io::ErrorKind::Unsupported);
    joined.remove(8 * SECTOR);
    assert_eq!(joined.len_bytes(), 4 * SECTOR);
    joined.grow(9 * SECTOR).unwrap();
}

#[test]
fn the_first_flush_reaches_all_devices_and_each_later_one_those_that_were_written_to() {
    let (first, second, joined) = two();
    let flushes = || (first.counts().flushes, second.counts().flushes);
    joined.flush().unwrap();
    assert_eq!(flushes(), (1, 1));
    joined.write_at(&sector(1), 0).unwrap();
    joined.flush().unwrap();
    joined.flush().unwrap();
    assert_eq!(flushes(), (2, 1));
    joined.write_at(&sector(1), 0).unwrap();
    joined.write_at(&sector(1), 9 * SECTOR).unwrap();
    joined.flush().unwrap();
    assert_eq!(flushes(), (3, 2));
}

#[test]
fn a_missing_device_fails_by_name_and_leaves_the_others_to_be_read() {
    let here = Arc::new(MemoryDevice::new(SECTOR));
    here.write_at(&sector(5), 0).unwrap();
    let joined = JoinedDevice::new(here, Arc::default());
    let device = Arc::new(MissingDevice::new("the slow disk", SECTOR));
    joined.append(Segment { start: SECTOR, device, offset: 0, len: SECTOR, written: Arc::default() });
    assert_eq!(first_byte(&joined, 0).unwrap(), 5);
    let error = first_byte(&joined, 1).unwrap_err();
    assert!(error.to_string().contains("the slow disk is missing"), "{error}");
}

#[test]
fn devices_answer_when_each_of_them_reads_at_one_of_the_offsets() {
    let memory = || Arc::new(FaultDevice::new(MemoryDevice::new(4 * SECTOR)));
    let (first, second) = (memory(), memory());
    let joined = JoinedDevice::new(Arc::clone(&first) as _, Arc::default());
    let (start, offset, len) = (8 * SECTOR, 3 * SECTOR, SECTOR);
    joined.append(Segment { start, device: Arc::clone(&second) as _, offset, len, written: Arc::default() });
    let answers = || joined.answers(&[0, 2 * SECTOR]);
    for one in [&first, &second] {
        assert!(answers());
        one.lose(0..1);
        assert!(answers(), "the other offset serves");
        one.lose(2 * SECTOR..3 * SECTOR);
        assert!(!answers());
        one.clear();
    }
}

#[test]
fn device_that_ends_before_its_length_is_not_taken_for_one_that_never_got_that_far() {
    let memory =
        |sectors: u64| Arc::new(FaultDevice::new(MemoryDevice::growable(sectors * SECTOR, 16 * SECTOR)));
    let (first, second) = (memory(4), memory(8));
    let joined = JoinedDevice::new(Arc::clone(&first) as _, Arc::default());
    let (start, len) = (8 * SECTOR, 8 * SECTOR);
    joined.append(Segment {
        start,
        device: Arc::clone(&second) as _,
        offset: 0,
        len,
        written: Arc::default(),
    });
    let kind = |at| first_byte(&joined, at).unwrap_err().kind();
    assert_eq!(kind(4), io::ErrorKind::UnexpectedEof, "the first device has not grown to it");
    for (device, at) in [(&first, 3), (&second, 8)] {
        device.add(FaultRule::from(Call::Read, 0, FaultError::Kind(io::ErrorKind::UnexpectedEof)));
        assert_eq!(kind(at), io::ErrorKind::Other, "sector {at}");
    }
}
