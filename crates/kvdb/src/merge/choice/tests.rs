//! Tables of the choice.

use super::*;
use crate::space::Stream;

const ZONE_BYTES: u64 = 1000;

fn zone(number: u32, state: ZoneState, bytes_live: u64) -> ZoneRow {
    ZoneRow { zone: ZoneId(number), state, bytes_live, bytes_filled: 1000, stretches: 1, takes_new: true }
}

fn closed(live: &[u64]) -> Vec<ZoneRow> {
    (0..).zip(live).map(|(number, &live)| zone(number, ZoneState::Closed, live)).collect()
}

fn chosen(zones: Vec<ZoneRow>, gain_bytes: u64, room_bytes: u64, live_percent_max: u64) -> Vec<u32> {
    let limits = Limits { gain_bytes, room_bytes, live_percent_max, gain_bytes_min: 300 };
    let mut numbers: Vec<u32> = emptiest(zones, ZONE_BYTES, &limits).iter().map(|zone| zone.zone.0).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn the_emptiest_zones_come_first_until_enough_is_gained() {
    let zones = || closed(&[950, 800, 700, 750, 900]);
    assert_eq!(chosen(zones(), 550, 9999, 90), [2, 3]);
    assert_eq!(chosen(zones(), 551, 9999, 90), [1, 2, 3]);
    assert_eq!(chosen(zones(), 9999, 9999, 90), [1, 2, 3], "others cost too much");
    assert_eq!(chosen(zones(), 9999, 1500, 90), [2, 3], "what is copied has to fit");
    assert_eq!(chosen(zones(), 0, 9999, 90), [0; 0]);
    assert_eq!(chosen(zones(), 250, 9999, 90), [2], "300 are gained, which is worth it");
    assert_eq!(chosen(closed(&[701]), 250, 9999, 90), [0; 0]);
}

#[test]
fn poor_zones_are_emptied_for_nothing_in_particular() {
    let zones = || closed(&[599, 600, 1]);
    assert_eq!(chosen(zones(), 0, 9999, 60), [0, 2]);
    assert_eq!(chosen(zones(), 0, 599, 60), [2]);
}

#[test]
fn zones_that_would_not_be_free_are_left_alone() {
    let zones = vec![
        zone(0, ZoneState::System, 0),
        zone(1, ZoneState::Open(Stream::Meta), 100),
        zone(2, ZoneState::Free, 0),
        zone(3, ZoneState::Manifest, 0),
        zone(4, ZoneState::Closed, 100),
        zone(5, ZoneState::Closed, 200),
        ZoneRow { bytes_filled: 500, ..zone(6, ZoneState::Closed, 200) },
        ZoneRow { takes_new: false, ..zone(7, ZoneState::Closed, 100) },
    ];
    let zone_use = |(zone, bytes)| ZoneUse { zone: ZoneId(zone), bytes, pieces: 1, end: 990 };
    let uses = [(1, 100), (4, 40), (4, 60), (5, 199), (6, 200), (7, 100)].map(zone_use);
    let found = emptiable(zones, ZONE_BYTES, uses.iter());
    assert_eq!(found.iter().map(|zone| zone.zone).collect::<Vec<_>>(), [ZoneId(4)]);
    assert_eq!(available_bytes(&found, ZONE_BYTES), 900);
    assert_eq!(available_bytes(&closed(&[800, 799]), ZONE_BYTES), 201, "what is to be counted on");
}

/// What a step finds that has `near` of these, its merge all that is live in `held`.
fn chosen_of_step(zones: &[ZoneRow], begun: &[u32], held: &[u32], near: &[u32], room_bytes: u64) -> Vec<u32> {
    let all = emptiest(
        zones.to_vec(),
        ZONE_BYTES,
        &Limits { gain_bytes: u64::MAX, room_bytes: u64::MAX, live_percent_max: 90, gain_bytes_min: 0 },
    );
    let step = Step {
        begun: &Victims::new(begun.to_vec(), ZONE_BYTES),
        held: held.iter().map(|&number| (ZoneId(number), zones[number as usize].bytes_live)).collect(),
        near: near.iter().map(|&number| ZoneId(number)).collect(),
        room_bytes,
    };
    of_step(zones, &all, &step)
}

#[test]
fn a_step_empties_what_lies_before_it_and_in_no_keys_behind_it() {
    let zones = closed(&[500, 700, 600, 950, 100]);
    assert_eq!(chosen_of_step(&zones, &[], &[0, 1, 2, 3, 4], &[0, 2, 3], 9999), [0, 2], "3 is too full");
    assert_eq!(chosen_of_step(&zones, &[], &[1, 2], &[0, 2], 9999), [2], "of 0 something lies elsewhere");
    assert_eq!(chosen_of_step(&zones, &[], &[0, 1, 2, 4], &[], 9999), [0; 0]);
}

#[test]
fn what_a_step_copies_fits_with_what_was_begun() {
    let zones = closed(&[500, 700, 600]);
    let all = [0, 1, 2];
    assert_eq!(chosen_of_step(&zones, &[1], &all, &all, 1800), [1, 0, 2], "what has begun goes on");
    assert_eq!(chosen_of_step(&zones, &[1], &all, &all, 1799), [1, 0], "the emptiest first");
    assert_eq!(chosen_of_step(&zones, &[1], &[], &[], 0), [1], "though part of it is behind the step");
    assert_eq!(chosen_of_step(&closed(&[0, 700]), &[0, 1], &[], &[], 9999), [1], "0 is free");
    let open = [ZoneRow { state: ZoneState::Open(Stream::Meta), ..zones[0] }];
    assert_eq!(chosen_of_step(&open, &[0], &[0], &[0], 9999), [0; 0], "it was emptied, and is filled again");
}
