//! What is counted, what cools down, and what fits, without devices.

use std::ops::Range;

use kvfs_device::Rng;

use super::*;

const STRETCH_BYTES: u64 = STRETCH_BLOCKS * BLOCK_BYTES as u64;

fn name(file: u64) -> [u8; 8] {
    file.to_be_bytes()
}

fn space(stretches: u64, free: u64) -> FastSpace {
    FastSpace { bytes_total: stretches * STRETCH_BYTES, bytes_free: free * STRETCH_BYTES }
}

/// Of `files` files of 16 stretches, those of `hot` are asked for nine times in ten.
fn ask(heat: &Heat, rng: &mut Rng, hot: Range<u64>, files: u64, times: u64) {
    for _ in 0..times {
        let is_hot = !rng.next_u64().is_multiple_of(10);
        let file =
            if is_hot { hot.start + rng.next_u64() % (hot.end - hot.start) } else { rng.next_u64() % files };
        heat.note(&name(file), rng.next_u64() % (16 * STRETCH_BLOCKS), 1);
    }
}

/// How many of the files' stretches belong on a tier.
fn wishing(heat: &Heat, files: Range<u64>, tier: Tier) -> usize {
    let stretches = files.flat_map(|file| (0..16).map(move |stretch| (file, stretch * STRETCH_BLOCKS)));
    stretches.filter(|&(file, first)| heat.wish_of(&name(file), first, STRETCH_BLOCKS) == Some(tier)).count()
}

#[test]
fn nothing_is_counted_or_wished_before_it_is_turned_on_and_settled() {
    let heat = Heat::default();
    heat.note(b"file", 0, 1);
    assert!(!heat.is_unsettled() && heat.wish_of(b"file", 0, 1).is_none());
    heat.turn_on(1 << 30);
    (0..200).for_each(|_| heat.note(b"file", 0, 1));
    assert_eq!((heat.count(b"file", STRETCH_BLOCKS - 1), heat.count(b"file", STRETCH_BLOCKS)), (200, 0));
    assert_eq!(heat.wish_of(b"file", 0, 1), None);
    heat.settle(space(4096, 4096));
    assert_eq!(heat.wish_of(b"file", 0, 1), Some(Tier::Fast));
    // A part of it is enough; what is cold stays while there is room.
    assert_eq!(heat.wish_of(b"file", 0, 10 * STRETCH_BLOCKS), Some(Tier::Fast));
    assert_eq!(heat.wish_of(b"other", 0, 1), None);
    heat.settle(space(4096, 100));
    assert_eq!(heat.wish_of(b"other", 0, 1), Some(Tier::Slow));
    heat.note_space(space(4096, 2000));
    assert_eq!(heat.wish_of(b"other", 0, 1), None);
    heat.forget_levels();
    assert_eq!(heat.wish_of(b"file", 0, 1), None);
}

#[test]
fn a_hot_set_that_moves_is_found_again_and_no_more_is_hot_than_fits() {
    let (files, seed) = (2000, 7);
    let (heat, mut rng) = (Heat::default(), Rng::new(seed));
    // Room for 100 files; the hot set has 50.
    let fast = space(1600, 10);
    heat.turn_on(fast.bytes_total);
    ask(&heat, &mut rng, 0..50, files, 40_000);
    assert!(heat.is_unsettled());
    heat.settle(fast);
    assert!(!heat.is_unsettled());
    let hot = wishing(&heat, 0..50, Tier::Fast);
    assert!(hot >= 700, "{hot} of 800");
    let others = wishing(&heat, 50..files, Tier::Fast);
    assert!(others < 1600, "{others} of {}", (files - 50) * 16);
    let cold = wishing(&heat, 50..files, Tier::Slow);
    assert!(cold > 28_000, "{cold}");

    ask(&heat, &mut rng, 1000..1050, files, 240_000);
    heat.settle(fast);
    let (now, before) = (wishing(&heat, 1000..1050, Tier::Fast), wishing(&heat, 0..50, Tier::Fast));
    assert!(now >= 700 && before < 100, "{now} and {before} of 800");

    // Everything is asked for as often: no more is hot than fits.
    ask(&heat, &mut rng, 0..files, files, 400_000);
    heat.settle(fast);
    let hot = wishing(&heat, 0..files, Tier::Fast);
    assert!(hot <= 1600, "{hot} fit");
}

#[test]
fn fast_devices_of_any_size_have_cells_for_all_that_they_hold() {
    for fast_bytes in [1 << 20, 1 << 30, 1 << 38, (1 << 38) + (1 << 30), 1 << 40, 5 << 40, 1 << 46] {
        let heat = Heat::default();
        heat.turn_on(fast_bytes);
        let sketch = heat.sketch.load_full().expect("is on");
        let (cells, stretches) = (sketch.cells.len() as u64, stretches_in(fast_bytes, sketch.stretch_blocks));
        assert!(cells <= CELLS_MAX && stretches * CELLS_PER_STRETCH <= cells, "{fast_bytes}: {cells}");
        // What is longer is counted as one.
        heat.note(b"file", sketch.stretch_blocks - 1, 1);
        let counts = [0, sketch.stretch_blocks].map(|block| heat.count(b"file", block));
        assert_eq!(counts, [1, 0], "{fast_bytes}");
        let parts: Vec<_> = heat.stretches_of(1, sketch.stretch_blocks).collect();
        let end = sketch.stretch_blocks;
        assert_eq!(parts, [1..end, end..end + 1], "{fast_bytes}");
    }
}

#[test]
fn counting_begins_anew_when_a_much_larger_fast_device_has_come() {
    let (files, seed) = (2000, 11);
    let (heat, mut rng) = (Heat::default(), Rng::new(seed));
    heat.turn_on(space(1600, 10).bytes_total);
    ask(&heat, &mut rng, 0..50, files, 40_000);
    heat.settle(space(1600, 10));
    assert!(heat.has_levels());
    let fast = space(16_000, 14_000);
    heat.settle(fast);
    assert!(!heat.has_levels() && heat.is_on(), "nothing is known yet");
    // As long as it counts, less is no other matter.
    ask(&heat, &mut rng, 0..files, files, 600_000);
    heat.settle(space(15_000, 100));
    assert!(heat.has_levels());
    heat.settle(fast);
    let hot = wishing(&heat, 0..files, Tier::Fast);
    assert!(hot <= 12_000, "{hot} of 12000 that fit are hot");
}
