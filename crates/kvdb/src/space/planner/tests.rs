//! Tables of single cases, and simulated stores of all sizes.

use super::*;
use crate::space::passes::{Now, Outcome, PassEnd, Passes};

const ALL: [Budget; 3] = [Budget::Ordinary, Budget::Deleting, Budget::Reserve];

/// The acts of one attempt while nothing that is known changes.
fn acts(budget: Budget, known: Known) -> Vec<Act> {
    acts_when(budget, known, |_, _| ())
}

/// As [`acts`], with what each act changes.
fn acts_when(budget: Budget, mut known: Known, change: impl Fn(Act, &mut Known)) -> Vec<Act> {
    let mut attempt = Attempt::new(budget);
    let mut acts = Vec::new();
    loop {
        let act = attempt.next(&known);
        acts.push(act);
        if matches!(act, Act::Admit | Act::Refuse) {
            return acts;
        }
        assert!(acts.len() < ACTS_MAX + 5, "{acts:?}");
        change(act, &mut known);
    }
}

#[test]
fn caller_that_fits_goes_on_at_once() {
    for budget in ALL {
        assert_eq!(acts(budget, Known { fits: true, is_emptying: true, ..Known::default() }), [Act::Admit]);
    }
}

#[test]
fn cheap_acts_come_before_dear_ones_and_undo_goes_last() {
    let known = Known {
        is_much_unwritten: true,
        is_emptying: true,
        has_steps: true,
        operations: 1,
        operations_for_deletions: 1,
        keeps_undo: true,
        ..Known::default()
    };
    let found = acts_when(Budget::Ordinary, known, |act, known| match act {
        Act::AwaitZones => known.is_emptying = false,
        Act::GiveUpUndo => known.keeps_undo = false,
        _ => {}
    });
    assert_eq!(
        found,
        [
            Act::Flush,
            Act::AwaitZones,
            Act::EndSteps,
            Act::Pass(Budget::Ordinary),
            Act::AwaitReaders,
            Act::GiveUpUndo,
            Act::Pass(Budget::Ordinary),
            Act::AwaitReaders,
            Act::Pass(Budget::Deleting),
            Act::AwaitReaders,
            Act::Refuse
        ]
    );
    assert!(found.len() <= ACTS_MAX);
}

#[test]
fn zones_that_are_emptied_are_waited_for_until_they_are() {
    let mut attempt = Attempt::new(Budget::Ordinary);
    let known = Known { is_emptying: true, ..Known::default() };
    for _ in 0..1000 {
        assert_eq!(attempt.next(&known), Act::AwaitZones);
    }
    assert_eq!(attempt.next(&Known { fits: true, ..known }), Act::Admit);
    assert_ne!(attempt.next(&Known { is_emptying: false, ..known }), Act::AwaitZones);
    assert_ne!(attempt.next(&known), Act::AwaitZones, "once for an attempt");
}

#[test]
fn write_makes_no_pass_where_nothing_has_changed_or_the_last_ones_were_for_nothing() {
    let idle = [Act::AwaitReaders, Act::Refuse];
    assert_eq!(acts(Budget::Ordinary, Known::default()), idle);
    let paused = Known { operations: 8, operations_for_deletions: 8, pause: 8, ..Known::default() };
    assert_eq!(acts(Budget::Ordinary, paused), idle);
    let pass = [Act::Pass(Budget::Ordinary), Act::AwaitReaders, Act::Refuse];
    assert_eq!(acts(Budget::Ordinary, Known { operations: 9, ..paused }), pass);
    assert_eq!(acts(Budget::Deleting, paused), [Act::Pass(Budget::Deleting), Act::AwaitReaders, Act::Refuse]);
}

#[test]
fn pass_for_deletions_follows_one_for_a_write_that_did_not_help() {
    let known = Known { operations: 1, operations_for_deletions: 65, ..Known::default() };
    for pause in [0, 64] {
        let known = Known { operations: pause + 1, pause, ..known };
        assert!(acts(Budget::Ordinary, known).contains(&Act::Pass(Budget::Deleting)), "{pause}");
    }
    let few = Known { pause: 1, operations: 2, operations_for_deletions: 64, ..known };
    assert!(!acts(Budget::Ordinary, few).contains(&Act::Pass(Budget::Deleting)));
}

#[test]
fn deletion_takes_the_reserve_where_merges_are_stuck_and_no_write_does() {
    let known = Known { is_stuck: true, fits_reserve: true, ..Known::default() };
    assert_eq!(acts(Budget::Deleting, known).last(), Some(&Act::Admit));
    assert_eq!(acts(Budget::Ordinary, known).last(), Some(&Act::Refuse));
    assert_eq!(acts(Budget::Deleting, Known { is_stuck: false, ..known }).last(), Some(&Act::Refuse));
}

#[test]
fn flush_that_found_no_space_has_a_pass_made_without_a_flush() {
    let known = Known { is_much_unwritten: true, has_steps: true, ..Known::default() };
    assert_eq!(
        acts(Budget::Reserve, known),
        [Act::Pass(Budget::Reserve), Act::AwaitReaders, Act::Refuse],
        "also where no operation came since the last one"
    );
}

/// What an attempt's passes have freed, where `free_after` says what each act leaves free of 100 bytes.
fn freed_by(budget: Budget, known: Known, free_after: &[(Act, u64)]) -> Option<u64> {
    let mut attempt = Attempt::new(budget);
    let mut known = Known { free_bytes: 100, ..known };
    loop {
        let act = attempt.next(&known);
        if matches!(act, Act::Admit | Act::Refuse) {
            return attempt.freed_bytes();
        }
        let after = free_after.iter().find(|(of, _)| *of == act);
        known.free_bytes = after.map_or(known.free_bytes, |(_, bytes)| *bytes);
        known.is_emptying &= act != Act::AwaitZones;
        known.keeps_undo &= act != Act::GiveUpUndo;
    }
}

#[test]
fn what_passes_freed_is_measured_from_before_the_first_pass_and_not_from_the_flush() {
    let known = Known {
        is_much_unwritten: true,
        is_emptying: true,
        has_steps: true,
        operations: u64::MAX,
        operations_for_deletions: u64::MAX,
        ..Known::default()
    };
    let flush_takes = [(Act::Flush, 40), (Act::Pass(Budget::Ordinary), 90)];
    assert_eq!(freed_by(Budget::Ordinary, known, &flush_takes), Some(50));
    let others_give = [(Act::Flush, 200), (Act::AwaitZones, 300), (Act::EndSteps, 400)];
    assert_eq!(freed_by(Budget::Ordinary, known, &others_give), Some(0));
    let in_the_end = [
        (Act::EndSteps, 10),
        (Act::Pass(Budget::Ordinary), 20),
        (Act::Pass(Budget::Deleting), 50),
        (Act::AwaitReaders, 60),
    ];
    assert_eq!(freed_by(Budget::Ordinary, known, &in_the_end), Some(50), "from the first to the last");
    assert_eq!(freed_by(Budget::Ordinary, known, &[(Act::Pass(Budget::Ordinary), 1)]), Some(0), "none");
}

#[test]
fn attempt_without_passes_or_of_a_stuck_flush_tells_writes_nothing_of_what_passes_free() {
    let idle = Known { is_much_unwritten: true, ..Known::default() };
    assert_eq!(freed_by(Budget::Ordinary, idle, &[(Act::Flush, 900)]), None);
    let frees = [(Act::Pass(Budget::Deleting), 900), (Act::Pass(Budget::Reserve), 900)];
    let known = Known { operations: 1, ..Known::default() };
    assert_eq!(freed_by(Budget::Deleting, known, &frees), Some(800));
    assert_eq!(freed_by(Budget::Reserve, known, &frees), None);
}

/// Every combination of what is known, of which nothing changes: each attempt ends.
#[test]
fn every_attempt_ends() {
    for bits in 0_u32..1 << 8 {
        let has = |bit: u32| bits >> bit & 1 == 1;
        for (budget, pause) in ALL.into_iter().flat_map(|budget| [(budget, 0), (budget, 64)]) {
            let known = Known {
                fits: false,
                fits_reserve: has(0),
                free_bytes: 0,
                is_much_unwritten: has(1),
                is_emptying: false,
                has_steps: has(2),
                operations: if has(3) { u64::MAX } else { 0 },
                operations_for_deletions: if has(4) { u64::MAX } else { 0 },
                pause,
                keeps_undo: has(5),
                is_stuck: has(6),
            };
            let known_later = |act, known: &mut Known| {
                if act == Act::GiveUpUndo && has(7) {
                    known.keeps_undo = false;
                }
            };
            let found = acts_when(budget, known, known_later);
            assert!(found.len() <= ACTS_MAX, "{known:?}: {found:?}");
        }
    }
}

/// Random numbers that a seed repeats (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }

    fn is_one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A store by its sums (bytes): what passes, readers, snapshots and undo do to them.
struct Store {
    capacity: u64,
    /// What ordinary writes leave.
    reserve: u64,
    /// What deletions leave for merges.
    merge_bytes: u64,
    /// A zone.
    zone_bytes: u64,
    live: u64,
    /// Deleted and overwritten; the next pass frees it.
    dead: u64,
    /// As `dead`, but a snapshot sees it.
    dead_of_snapshot: u64,
    /// As `dead`, but it is kept for undo.
    dead_of_undo: u64,
    /// As `dead`, but a position sees it that is pinned without a name: nothing tells when that has gone.
    dead_of_pin: u64,
    pin: Option<u64>,
    /// The newest operation when the last pass began.
    last_pass: u64,
    /// Freed by a pass; a reader holds it.
    held_by_reader: u64,
    is_read: bool,
    /// What waits to be written counts as so much more than it needs.
    unwritten: u64,
    /// Written by steps, and not brought in.
    of_steps: u64,
    /// Zones that are being emptied give so much back.
    emptying: u64,
    passes: Passes,
    last: u64,
    /// Of all attempts, and how many were refused.
    acts: u64,
    refused: u64,
}

impl Store {
    fn new(capacity: u64) -> Self {
        let zone_bytes = (capacity / 512).clamp(256 << 10, 64 << 20);
        let reserve = (16 * zone_bytes).max(capacity / 100).min(capacity / 4);
        Self {
            capacity,
            reserve,
            merge_bytes: (4 * zone_bytes).min(reserve / 2),
            zone_bytes,
            live: 0,
            dead: 0,
            dead_of_snapshot: 0,
            dead_of_undo: 0,
            dead_of_pin: 0,
            pin: None,
            last_pass: 0,
            held_by_reader: 0,
            is_read: false,
            unwritten: 0,
            of_steps: 0,
            emptying: 0,
            passes: Passes::default(),
            last: 0,
            acts: 0,
            refused: 0,
        }
    }

    fn free(&self) -> u64 {
        let held = self.dead_of_snapshot + self.dead_of_undo + self.dead_of_pin + self.held_by_reader;
        let taken = self.live + self.dead + held + self.unwritten + self.of_steps + self.emptying;
        self.capacity.saturating_sub(taken)
    }

    fn left_by(&self, budget: Budget) -> u64 {
        match budget {
            Budget::Ordinary => self.reserve,
            Budget::Deleting => self.merge_bytes,
            Budget::Reserve => 0,
        }
    }

    fn fits(&self, bytes: u64, budget: Budget) -> bool {
        self.free() >= self.left_by(budget) + bytes
    }

    fn known(&self, bytes: u64, budget: Budget) -> Known {
        let now = Now { last: self.last, pins: self.pin.into_iter().collect(), is_read: self.is_read };
        let operations = |budget| self.passes.operations_since(budget, &now);
        Known {
            fits: self.fits(bytes, budget),
            fits_reserve: self.fits(bytes, Budget::Reserve),
            free_bytes: self.free(),
            is_much_unwritten: self.unwritten > self.zone_bytes,
            is_emptying: self.emptying > 0,
            has_steps: self.of_steps > 0,
            operations: operations(budget),
            operations_for_deletions: operations(Budget::Deleting),
            pause: self.passes.pause(),
            keeps_undo: self.dead_of_undo > 0,
            is_stuck: self.passes.is_stuck(),
        }
    }

    fn pass(&mut self, budget: Budget) {
        (self.unwritten, self.of_steps) = (0, 0);
        // Two runs need a little more than what deletions leave; a pass for deletions goes on with less.
        let needed =
            if budget == Budget::Ordinary { self.merge_bytes + 2 * self.zone_bytes } else { self.zone_bytes };
        let has_failed = self.free() < needed;
        if !has_failed {
            // A reader holds what is freed, and hides some of it.
            let hidden = if self.is_read { self.dead / 2 } else { 0 };
            let freed = std::mem::replace(&mut self.dead, hidden) - hidden;
            self.held_by_reader += if self.is_read { freed } else { 0 };
        }
        self.last_pass = self.last;
        let start = self.passes.begin(self.last, self.pin.into_iter().collect());
        let outcome = if has_failed { Outcome::Stuck } else { Outcome::Complete };
        self.passes.note_end(PassEnd { start, budget, outcome, is_read: self.is_read });
    }

    /// As the engine does: acts until there is space, or the caller is refused.
    fn find_space(&mut self, bytes: u64, budget: Budget, random: &mut Random) -> bool {
        let mut attempt = Attempt::new(budget);
        let mut count = 0;
        let is_admitted = loop {
            let known = self.known(bytes, budget);
            let act = attempt.next(&known);
            self.acts += 1;
            count += usize::from(act != Act::AwaitZones);
            assert!(count <= ACTS_MAX, "no attempt goes on for ever");
            match act {
                Act::Admit => break true,
                Act::Refuse => break false,
                Act::Flush => self.unwritten = 0,
                Act::AwaitZones => {
                    // Little by little.
                    self.emptying -= self.emptying.min(self.zone_bytes);
                }
                Act::EndSteps => self.of_steps = 0,
                Act::Pass(budget) => self.pass(budget),
                Act::AwaitReaders => {
                    if self.is_read && random.is_one_in(2) {
                        self.end_reader();
                    } else if self.is_read {
                        self.passes.note_reader_timeout(self.passes.ended());
                    }
                }
                Act::GiveUpUndo => {
                    self.dead += std::mem::take(&mut self.dead_of_undo);
                    self.passes.note_garbage();
                }
            }
        };
        self.refused += u64::from(!is_admitted);
        if let Some(freed) = attempt.freed_bytes() {
            self.passes.note_freed(freed, self.zone_bytes);
        }
        is_admitted
    }

    fn end_reader(&mut self) {
        (self.is_read, self.held_by_reader) = (false, 0);
    }

    /// Whether a pass may have kept something for it.
    fn end_pin(&mut self) -> bool {
        self.dead += std::mem::take(&mut self.dead_of_pin);
        self.pin.take().is_some_and(|pin| pin < self.last_pass)
    }

    /// What passes can free, and nothing holds.
    fn can_be_freed(&self) -> u64 {
        self.dead + self.dead_of_undo + self.held_by_reader + self.unwritten + self.of_steps + self.emptying
    }

    fn write(&mut self, bytes: u64, random: &mut Random) -> bool {
        if !self.find_space(bytes, Budget::Ordinary, random) {
            return false;
        }
        self.last += 1;
        self.live += bytes;
        true
    }

    /// Part of what is live becomes dead, or a snapshot's, or is kept for undo.
    fn kill(&mut self, bytes: u64, has_snapshot: bool, keeps_undo: bool) {
        let bytes = bytes.min(self.live);
        self.live -= bytes;
        *(if has_snapshot {
            &mut self.dead_of_snapshot
        } else if self.pin.is_some() {
            &mut self.dead_of_pin
        } else if keeps_undo {
            &mut self.dead_of_undo
        } else {
            &mut self.dead
        }) += bytes;
    }
}

/// One operation, or one thing that happens beside. A snapshot is held while `has_snapshot`.
fn happen(store: &mut Store, has_snapshot: &mut bool, random: &mut Random) {
    let most = store.zone_bytes * 2;
    match random.below(17) {
        0..8 => {
            let bytes = random.below(most);
            if store.write(bytes, random) {
                let overwrites = random.is_one_in(2);
                store.kill(if overwrites { bytes } else { 0 }, *has_snapshot, random.is_one_in(4));
            } else {
                assert_refusal_is_right(store, bytes, Budget::Ordinary, random);
            }
        }
        8..11 => {
            // One, or so many that they take their part of the reserve.
            let count = if random.is_one_in(32) { random.below(300) } else { 1 };
            for _ in 0..count {
                if !store.find_space(4 << 10, Budget::Deleting, random) {
                    assert_refusal_is_right(store, 4 << 10, Budget::Deleting, random);
                    break;
                }
                store.last += 1;
                // Its tombstones, until a pass has gone over them.
                store.dead += random.below(store.zone_bytes / 4);
                // Little as a rule, so that the store stays full.
                let bytes = if random.is_one_in(512) { store.live / 4 } else { random.below(most / 32) };
                store.kill(bytes, *has_snapshot, random.is_one_in(8));
            }
        }
        11 if random.is_one_in(8) => *has_snapshot = true,
        11 => {
            // Its garbage is for the next pass.
            *has_snapshot = false;
            store.dead += std::mem::take(&mut store.dead_of_snapshot);
            store.passes.note_garbage();
        }
        12 => store.is_read |= random.is_one_in(4),
        13 => store.end_reader(),
        15 if store.pin.is_none() => store.pin = random.is_one_in(4).then_some(store.last),
        15 => drop(store.end_pin()),
        14 => {
            // What waits has been admitted; steps may take of the reserve what passes for deletions leave.
            let bytes = random.below(most);
            if random.is_one_in(2) && store.fits(bytes, Budget::Ordinary) {
                store.unwritten += bytes;
            } else {
                store.of_steps += random.below(store.free().saturating_sub(2 * store.zone_bytes));
            }
        }
        _ => {
            let bytes = random.below(most).min(store.dead);
            store.dead -= bytes;
            store.emptying += bytes;
        }
    }
}

/// What was refused gets the space as soon as what holds it has gone: at once if that is a reader, or a pin
/// that a pass has heeded, else
/// within the pause between passes.
fn assert_refusal_is_right(store: &mut Store, bytes: u64, budget: Budget, random: &mut Random) {
    let missing = (store.left_by(budget) + bytes).saturating_sub(store.free());
    if store.can_be_freed() + store.dead_of_pin < missing {
        return;
    }
    let was_read = store.is_read;
    store.end_reader();
    let was_held = store.end_pin();
    let attempts_max = if was_read || was_held { 1 } else { 2 + PAUSE_MAX };
    for _ in 0..attempts_max {
        if store.find_space(bytes, budget, random) {
            return;
        }
        // Another operation, which changes nothing else.
        store.last += 1;
    }
    panic!(
        "false ENOSPC: {bytes} bytes, {budget:?}, {} free, {} can be freed, {} in reserve, {:?}",
        store.free(),
        store.can_be_freed(),
        store.reserve,
        store.passes
    );
}

#[test]
fn simulated_stores_refuse_nothing_that_has_space() {
    let seed = u64::from(std::process::id()) << 16 | 0x5eed;
    eprintln!("seed {seed:#x}");
    let (mut operations, mut acts, mut refused) = (0, 0, 0);
    for capacity_mib in [64_u64, 256, 1 << 10, 16 << 10, 512 << 10, 8 << 20] {
        for round in 0..4 {
            let mut random = Random(seed ^ capacity_mib << 32 ^ round << 8);
            let mut store = Store::new(capacity_mib << 20);
            store.live = (store.capacity - store.reserve) / 8 * (4 + round);
            let mut has_snapshot = false;
            for _ in 0..100_000 {
                happen(&mut store, &mut has_snapshot, &mut random);
            }
            operations += store.last;
            acts += store.acts;
            refused += store.refused;
        }
    }
    eprintln!("{operations} operations, {acts} acts, {refused} refused");
    assert!(refused > 10_000 && acts > operations + refused, "most stores are full most of the time");
}
