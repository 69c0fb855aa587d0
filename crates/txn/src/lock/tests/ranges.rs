//! Sets of stretches against an array of modes.

use super::super::ranges::Ranges;
use super::super::span::{Cut, Span, Stretch};
use super::model::Random;
use crate::{LockName, Mode};

const MODES: [Mode; 3] = [Mode::Shared, Mode::Exclusive, Mode::Increment];
const SIZE: u64 = 24;

#[test]
fn stretches_behave_as_an_array_of_modes() {
    for seed in 1..=300 {
        let mut random = Random::new(seed);
        let mut ranges: Ranges<u64> = Ranges::default();
        let mut array: Vec<Option<Mode>> = vec![None; SIZE as usize + 1];
        let (mut names, mut bytes) = (0, 0);
        for step in 0..40 {
            let first = random.below(SIZE);
            let count = 1 + random.below(6);
            // The last element stands for everything to the end.
            let end = Some(first + count).filter(|end| *end <= SIZE && random.below(12) > 0);
            let mode = MODES[random.below(3) as usize];
            let stretch = Stretch { start: first, end };
            let growth = ranges.add(&stretch, mode);
            names += growth.names;
            bytes += growth.bytes;
            let last = end.unwrap_or(SIZE + 1) as usize;
            for held in &mut array[first as usize..last] {
                *held = Some(held.map_or(mode, |held| held.union(mode)));
            }
            let mut shown: Vec<Option<Mode>> = vec![None; array.len()];
            let mut before: Option<(Option<u64>, Mode)> = None;
            for (stretch, mode) in ranges.iter() {
                assert!(!stretch.is_empty());
                if let Some((end, last_mode)) = before {
                    let end = end.expect("only the last one is unbounded");
                    assert!(end < stretch.start || (end == stretch.start && mode != last_mode));
                }
                before = Some((stretch.end, mode));
                shown[stretch.start as usize..stretch.end.unwrap_or(SIZE + 1) as usize].fill(Some(mode));
            }
            assert_eq!(shown, array, "seed {seed} step {step}");
            assert_eq!(names, ranges.len() as isize, "seed {seed} step {step}");
            assert!(bytes >= names * 24);
            let from = random.below(SIZE) as usize;
            let to = from + 1 + random.below(5) as usize;
            let wanted = Stretch { start: from as u64, end: Some(to as u64) };
            let part = &array[from..to.min(array.len())];
            for mode in MODES {
                let conflicts = part.iter().flatten().any(|held| !held.compatible(mode));
                assert_eq!(
                    ranges.any_overlapping(&wanted, |held| !held.compatible(mode)),
                    conflicts,
                    "{seed}"
                );
                let covers = part.iter().all(|held| held.is_some_and(|held| held.covers(mode)));
                assert_eq!(ranges.covers(&wanted, mode), covers, "seed {seed} step {step} {wanted:?} {mode}");
            }
        }
    }
}

#[test]
fn a_place_after_a_key_is_the_place_before_its_successor() {
    let keys: [&[u8]; 7] = [b"", b"\0", b"a", b"a\0", b"a\0\0", b"a\x01", b"b"];
    for a in keys {
        for b in keys {
            for (after_a, after_b) in [(false, false), (false, true), (true, false), (true, true)] {
                let spelled = |key: &[u8], after: bool| {
                    let mut key = key.to_vec();
                    key.extend(after.then_some(0));
                    key
                };
                let cut = |key: &[u8], after| Cut { bytes: key.into(), after };
                assert_eq!(
                    cut(a, after_a).cmp(&cut(b, after_b)),
                    spelled(a, after_a).cmp(&spelled(b, after_b)),
                    "{a:?} {after_a} {b:?} {after_b}"
                );
            }
        }
    }
}

#[test]
fn names_overlap_as_their_meaning_says() {
    let entry = |name| Span::of(&LockName::Entry { directory: 1, name });
    let all = Span::of(&LockName::Entries { directory: 1 });
    assert!(entry(b"a").overlaps(&entry(b"a")) && entry(b"a").overlaps(&all) && all.overlaps(&entry(b"")));
    assert!(!entry(b"a").overlaps(&entry(b"a\0")) && !entry(b"a").overlaps(&entry(b"")));
    let whole = Span::of(&LockName::file(1));
    let last = Span::of(&LockName::Blocks { inode: 1, first: u64::MAX - 1, end: u64::MAX });
    assert!(whole.overlaps(&last));
}
