use super::{CrashDevice, CrashEventKind, CrashMode, PowerCut};
use crate::{ATOMIC_BYTES, Device, MemoryDevice, Rng, SECTOR_BYTES};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SECTOR: u64 = SECTOR_BYTES as u64;

fn filled(byte: u8, sectors: usize) -> Vec<u8> {
    vec![byte; sectors * SECTOR_BYTES]
}

/// The first byte of each piece.
fn pieces(image: &[u8]) -> Vec<u8> {
    let uniform = |piece: &[u8]| {
        assert!(piece.iter().all(|&byte| byte == piece[0]), "torn below {ATOMIC_BYTES} bytes");
        piece[0]
    };
    image.chunks(ATOMIC_BYTES).map(uniform).collect()
}

#[test]
fn reads_see_unflushed_writes_and_the_device_beneath_does_not() {
    let beneath = Arc::new(MemoryDevice::new(4 * SECTOR));
    let device = CrashDevice::over(beneath.clone());
    device.write_at(&filled(1, 2), SECTOR).unwrap();
    device.write_at(&filled(2, 1), 2 * SECTOR).unwrap();
    let mut all = filled(9, 4);
    device.read_at(&mut all, 0).unwrap();
    assert_eq!(all, [filled(0, 1), filled(1, 1), filled(2, 1), filled(0, 1)].concat());
    assert!(beneath.snapshot().iter().all(|&byte| byte == 0));
    assert_eq!(device.bytes_unflushed(), 3 * SECTOR);

    device.flush().unwrap();
    assert_eq!(beneath.snapshot(), all);
    assert_eq!(device.bytes_unflushed(), 0);
    device.read_at(&mut all, 0).unwrap();
    assert_eq!(beneath.snapshot(), all);
}

#[test]
fn flushed_content_is_in_every_image() {
    let device = CrashDevice::in_memory(8 * SECTOR, 8 * SECTOR);
    device.write_at(&filled(1, 8), 0).unwrap();
    device.flush().unwrap();
    device.write_at(&filled(2, 4), 0).unwrap();
    for seed in 0..200 {
        let image = device.crash_image(seed, CrashMode::Any).unwrap().snapshot();
        let pieces = pieces(&image);
        assert!(pieces[..32].iter().all(|&byte| byte == 1 || byte == 2), "seed {seed}: {pieces:?}");
        assert!(pieces[32..].iter().all(|&byte| byte == 1), "seed {seed}: {pieces:?}");
    }
}

#[test]
fn each_mode_keeps_what_it_says() {
    let writes = 4u8;
    let device = CrashDevice::in_memory(4 * SECTOR, 4 * SECTOR);
    for write in 0..writes {
        device.write_at(&filled(write + 1, 1), u64::from(write) * SECTOR).unwrap();
    }
    // Which writes survived, as a bit set; None when one was torn.
    let survivors = |seed, mode| -> Vec<Option<bool>> {
        let image = device.crash_image(seed, mode).unwrap().snapshot();
        let kept = |(write, sector): (usize, &[u8])| {
            let pieces = pieces(sector);
            let survived = |byte: &u8| *byte == write as u8 + 1;
            match (pieces.iter().any(survived), pieces.iter().all(survived)) {
                (any, all) if any == all => Some(all),
                _ => None,
            }
        };
        image.chunks(SECTOR_BYTES).enumerate().map(kept).collect()
    };
    let seen = |mode| -> HashSet<Vec<Option<bool>>> { (0..300).map(|seed| survivors(seed, mode)).collect() };

    let all = vec![Some(true); 4];
    let none = vec![Some(false); 4];
    assert_eq!(seen(CrashMode::KeepAll), HashSet::from([all.clone()]));
    assert_eq!(seen(CrashMode::DropAll), HashSet::from([none.clone()]));

    let subsets = seen(CrashMode::KeepSubset);
    assert_eq!(subsets.len(), 16, "every subset of four writes turns up");
    assert!(subsets.iter().flatten().all(Option::is_some), "none is torn");

    let suffixes = seen(CrashMode::KeepSuffix);
    assert_eq!(suffixes.len(), 5);
    assert!(suffixes.iter().all(|kept| kept.is_sorted()), "{suffixes:?}");

    let prefixes = seen(CrashMode::KeepPrefix);
    let rank = |fate: &Option<bool>| match fate {
        Some(true) => 0,
        None => 1,
        Some(false) => 2,
    };
    assert!(prefixes.iter().all(|kept| kept.is_sorted_by_key(rank)), "{prefixes:?}");
    assert!(prefixes.iter().all(|kept| kept.iter().filter(|fate| fate.is_none()).count() <= 1));
    assert!(prefixes.contains(&all) && prefixes.iter().any(|kept| kept.contains(&None)));

    assert!(seen(CrashMode::Tear).iter().any(|kept| kept.iter().all(Option::is_none)));
    let any = seen(CrashMode::Any);
    assert!(any.contains(&all) && any.contains(&none) && any.iter().any(|kept| kept.contains(&None)));
}

#[test]
fn images_follow_from_the_seed() {
    let device = CrashDevice::in_memory(16 * SECTOR, 16 * SECTOR);
    let mut rng = Rng::new(5);
    for _ in 0..10 {
        let mut data = filled(0, 3);
        rng.fill(&mut data);
        device.write_at(&data, rng.below(13) * SECTOR).unwrap();
    }
    let image = |seed| device.crash_image(seed, CrashMode::Tear).unwrap().snapshot();
    assert!(image(1) == image(1));
    assert!(image(1) != image(2));
}

#[test]
fn the_later_of_overlapping_writes_wins_where_both_survive() {
    let device = CrashDevice::in_memory(SECTOR, SECTOR);
    device.write_at(&filled(1, 1), 0).unwrap();
    device.write_at(&filled(2, 1), 0).unwrap();
    let first = |seed| device.crash_image(seed, CrashMode::KeepSubset).unwrap().snapshot()[0];
    let seen: HashSet<u8> = (0..100).map(first).collect();
    assert_eq!(seen, HashSet::from([0, 1, 2]), "neither, only the first, the second");
    assert_eq!(device.crash_image(0, CrashMode::KeepAll).unwrap().snapshot()[0], 2);
}

#[test]
fn image_at_rebuilds_every_moment_in_any_order() {
    let seed = 77;
    let mut rng = Rng::new(seed);
    let device = CrashDevice::in_memory(8 * SECTOR, 8 * SECTOR).with_log().unwrap();
    let mut durable = vec![device.crash_image(0, CrashMode::DropAll).unwrap().snapshot()];
    let mut newest = durable.clone();
    for _ in 0..60 {
        match rng.below(4) {
            0 => device.flush().unwrap(),
            _ => device.write_at(&filled(rng.next_u64() as u8, 2), rng.below(7) * SECTOR).unwrap(),
        }
        durable.push(device.crash_image(0, CrashMode::DropAll).unwrap().snapshot());
        newest.push(device.crash_image(0, CrashMode::KeepAll).unwrap().snapshot());
    }
    assert_eq!(device.events_len(), 60);
    assert_eq!(device.events().len(), 60);
    let mut order: Vec<usize> = (0..=60).collect();
    for pass in 0..2 {
        for &index in &order {
            let at = |mode| device.image_at(index, 0, mode).unwrap().snapshot();
            assert!(at(CrashMode::DropAll) == durable[index], "seed {seed} pass {pass} event {index}");
            assert!(at(CrashMode::KeepAll) == newest[index], "seed {seed} pass {pass} event {index}");
        }
        rng.shuffle(&mut order);
    }
    assert_eq!(device.image_at(61, 0, CrashMode::Any).err().map(|e| e.kind()), Some(ErrorKind::InvalidInput));
    let without = CrashDevice::in_memory(SECTOR, SECTOR);
    assert_eq!(without.image_at(0, 0, CrashMode::Any).err().map(|e| e.kind()), Some(ErrorKind::Unsupported));
}

#[test]
fn growth_is_durable_by_a_flush_only() {
    let device = CrashDevice::in_memory(2 * SECTOR, 4 * SECTOR).with_log().unwrap();
    device.grow(4 * SECTOR).unwrap();
    device.write_at(&filled(3, 1), 3 * SECTOR).unwrap();
    let lens = |device: &CrashDevice| -> HashSet<u64> {
        let len = |seed| device.crash_image(seed, CrashMode::Any).unwrap().len_bytes();
        (0..100).map(len).collect()
    };
    assert_eq!(lens(&device), HashSet::from([2 * SECTOR, 4 * SECTOR]));
    device.flush().unwrap();
    assert_eq!(lens(&device), HashSet::from([4 * SECTOR]));
    assert_eq!(device.grow(5 * SECTOR).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(device.events_len(), 3, "a growth that failed is no event");
    let image = device.crash_image(0, CrashMode::DropAll).unwrap();
    assert_eq!(image.grow(5 * SECTOR).unwrap_err().kind(), ErrorKind::StorageFull, "the limit is kept");
}

#[test]
fn power_failure_leaves_the_same_image_beneath_and_stops_every_call() {
    for mode in CrashMode::EACH {
        for seed in 0..20 {
            let beneath = Arc::new(MemoryDevice::new(6 * SECTOR));
            let device = CrashDevice::over(beneath.clone());
            device.write_at(&filled(1, 6), 0).unwrap();
            device.flush().unwrap();
            device.write_at(&filled(2, 3), 0).unwrap();
            device.write_at(&filled(3, 2), 3 * SECTOR).unwrap();
            let expected = device.crash_image(seed, mode).unwrap().snapshot();

            assert!(device.is_powered());
            device.fail_power(seed, mode).unwrap();
            assert!(!device.is_powered());
            assert!(beneath.snapshot() == expected, "{mode:?} seed {seed}");
            device.read_at(&mut filled(0, 1), 0).unwrap_err();
            device.write_at(&filled(4, 1), 0).unwrap_err();
            device.flush().unwrap_err();
            device.grow(7 * SECTOR).unwrap_err();
            device.fail_power(seed + 1, CrashMode::KeepAll).unwrap();
            assert!(beneath.snapshot() == expected, "nothing changes after the power failure");
        }
    }
}

#[test]
fn an_armed_cut_fails_exactly_the_call_it_names() {
    for event_index in 0..4 {
        let beneath = Arc::new(MemoryDevice::new(4 * SECTOR));
        let device = CrashDevice::over(beneath.clone());
        device.cut_power_at(PowerCut { event_index, seed: 1, mode: CrashMode::KeepAll });
        let steps: [&dyn Fn() -> std::io::Result<()>; 4] = [
            &|| device.write_at(&filled(1, 1), 0),
            &|| device.flush(),
            &|| device.write_at(&filled(2, 1), SECTOR),
            &|| device.flush(),
        ];
        let done = steps.iter().take_while(|step| step().is_ok()).count();
        assert_eq!(done, event_index);
        let sectors: Vec<u8> = beneath.snapshot().chunks(SECTOR_BYTES).map(|sector| sector[0]).collect();
        let expected = [u8::from(event_index > 0), if event_index > 2 { 2 } else { 0 }, 0, 0];
        assert_eq!(sectors, expected, "cut at {event_index}");
    }
}

#[test]
fn the_observer_may_take_images() {
    let device = Arc::new(CrashDevice::in_memory(2 * SECTOR, 2 * SECTOR).with_log().unwrap());
    let flushes = Arc::new(AtomicUsize::new(0));
    let (weak, counted) = (Arc::downgrade(&device), flushes.clone());
    device.on_event(move |event| {
        let device = weak.upgrade().unwrap();
        let image = device.image_at(event.index + 1, 0, CrashMode::DropAll).unwrap().snapshot();
        if event.kind == CrashEventKind::Flush {
            counted.fetch_add(1, Ordering::Relaxed);
            assert_eq!(image[0], 1);
        } else {
            assert_eq!((image[0], event.len), (0, SECTOR));
        }
    });
    device.write_at(&filled(1, 1), 0).unwrap();
    device.flush().unwrap();
    assert_eq!(flushes.load(Ordering::Relaxed), 1);
}

#[test]
fn parallel_writers_and_flushes_lose_nothing_that_was_flushed() {
    let threads = 4u64;
    let steps = 50u64;
    let device = CrashDevice::in_memory(threads * steps * SECTOR, threads * steps * SECTOR);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let device = &device;
            scope.spawn(move || {
                for step in 0..steps {
                    let sector = thread * steps + step;
                    device.write_at(&filled(thread as u8 + 1, 1), sector * SECTOR).unwrap();
                    device.flush().unwrap();
                    let image = device.crash_image(step, CrashMode::DropAll).unwrap();
                    let mut got = filled(0, 1);
                    image.read_at(&mut got, sector * SECTOR).unwrap();
                    assert_eq!(got[0], thread as u8 + 1, "thread {thread} step {step}");
                }
            });
        }
    });
    assert_eq!(device.bytes_unflushed(), 0);
}
