//! Defragmentation.

use std::sync::Arc;

use kvfs_device::{CrashMode, Device, Rng};
use kvfs_store::{Keyspace, KeyspaceKind, Store};

use crate::DefragPolicy::{Rewrite, Sparse};
use crate::merge::tests::emptying::{BLOCKS, Fills, flush, same, write};
use crate::merge::tests::steps::leave;
use crate::merge::tests::{ZONE_BYTES, crash_device, memory, open_on};
use crate::space::Budget;
use crate::{Db, DefragLimit, Fragmentation};

const FILES: u32 = 40;

/// Files of a zone each, of which half of the blocks, here and there, were overwritten: what is dead was
/// merged away.
fn aged(db: &Db, seed: u64) -> (Keyspace, Fills) {
    let mut rng = Rng::new(seed);
    let data = db.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
    let mut fills = vec![vec![1; BLOCKS as usize]; FILES as usize];
    for (file, fills) in (0..).zip(&fills) {
        write(db, data, file, 0, fills);
    }
    flush(db);
    for _ in 0..2 {
        for (file, fills) in (0..).zip(&mut fills) {
            for first in (0..BLOCKS).step_by(8) {
                if rng.below(3) > 0 {
                    continue;
                }
                let part = &mut fills[first as usize..][..8];
                part.fill(rng.range(2, 256) as u8);
                write(db, data, file, first, part);
            }
        }
        flush(db);
    }
    db.parts.merger.reclaim(Budget::Deleting).expect("merges");
    (data, fills)
}

#[test]
fn defragmentation_gives_partly_used_zones_back_and_joins_stretches() {
    for (seed, policy) in [(1, Sparse), (2, Rewrite)] {
        let db = open_on(memory());
        let (data, fills) = aged(&db, seed);
        let plan = db.defrag_plan(policy);
        assert!(plan.zones > 10 && plan.bytes > 0, "{policy:?}: {plan:?}");
        let mut told = Vec::new();
        let done = db.defragment(policy, &DefragLimit::default(), &mut |progress| {
            told.push(progress);
            true
        });
        let done = done.expect("empties zones");
        assert!(done.is_complete && done.before == plan.now, "{policy:?}: {done:?}");
        assert!(done.after.zones_used <= done.after.zones_needed + 3, "{policy:?}: {done:?}");
        assert!(done.after.stretch_bytes_mean() > done.before.stretch_bytes_mean(), "{policy:?}: {done:?}");
        assert!(told.is_sorted_by_key(|progress| progress.bytes_done), "{policy:?}");
        assert!(
            told.last().is_some_and(|last| last.bytes_done == last.bytes),
            "{policy:?}: {:?}",
            told.last()
        );
        same(&db, data, &fills, &format!("{policy:?}"));
        let again = db.defrag_plan(Sparse);
        assert!(again.bytes < plan.bytes / 4, "{policy:?}: it would be done again: {again:?}");
    }
}

#[test]
fn defragmentation_of_a_full_store_makes_room_for_writes() {
    let db = open_on(memory());
    let (data, fills) = aged(&db, 3);
    let _taken = leave(&db, 8);
    let free_bytes = || db.parts.runtime.ctx.zones.free_bytes(Budget::Ordinary);
    assert!(free_bytes() < ZONE_BYTES.into(), "only gaps");
    let done = db.defragment(Sparse, &DefragLimit::default(), &mut |_| true).expect("empties zones");
    assert!(done.is_complete && done.after.zones_used < done.before.zones_used, "{done:?}");
    assert!(free_bytes() > 4 * u64::from(ZONE_BYTES), "{} bytes", free_bytes());
    same(&db, data, &fills, "full");
}

#[test]
fn defragmentation_that_is_told_to_end_keeps_what_it_has_done() {
    let db = open_on(memory());
    let (data, fills) = aged(&db, 4);
    let _taken = leave(&db, 10);
    let done = db.defragment(Sparse, &DefragLimit::default(), &mut |progress| {
        progress.bytes_done <= progress.bytes / 3
    });
    let done = done.expect("empties zones");
    assert!(!done.is_complete && done.bytes_moved > 0, "{done:?}");
    same(&db, data, &fills, "told to end");
    assert!(db.defragment(Sparse, &DefragLimit::default(), &mut |_| true).expect("goes on").is_complete);
    same(&db, data, &fills, "gone on");
}

#[test]
fn a_power_cut_at_any_step_of_defragmentation_loses_nothing() {
    let device = crash_device();
    let db = open_on(Arc::clone(&device) as Arc<dyn Device>);
    let (data, fills) = aged(&db, 5);
    let _taken = leave(&db, 12);
    let before = device.events_len();
    assert!(
        db.defragment(Sparse, &DefragLimit::default(), &mut |_| true).expect("empties zones").is_complete
    );
    let after = device.events_len();
    assert!(after > before + 40, "{before}..{after}");
    for event in (before..=after).step_by(7) {
        let what = format!("event {event} of {before}..{after}");
        let mode = [CrashMode::KeepSubset, CrashMode::Tear][event / 7 % 2];
        let image = device.image_at(event, 5, mode).expect("is in the log");
        let opened = open_on(Arc::new(image));
        opened.open_keyspace("data", KeyspaceKind::Block, None).expect("opens");
        same(&opened, data, &fills, &what);
    }
}

#[test]
fn defragmentation_is_worth_it_from_a_quarter_of_the_zones_and_eight_of_them_on() {
    let is_worth_it =
        |zones_used, zones_needed| Fragmentation { zones_used, zones_needed, ..<_>::default() }.is_worth_it();
    assert!(is_worth_it(32, 24) && is_worth_it(8, 0) && is_worth_it(1000, 750));
    assert!(!is_worth_it(33, 25) && !is_worth_it(9, 2) && !is_worth_it(0, 0) && !is_worth_it(1000, 751));
}

#[test]
fn defragmentation_beside_a_reader_of_what_it_replaces_leaves_space_for_deletions() {
    let db = open_on(memory());
    let (data, fills) = aged(&db, 6);
    let _taken = leave(&db, 16);
    let reader = db.parts.live.view();
    let done = db.defragment(Sparse, &DefragLimit::default(), &mut |_| true).expect("empties zones");
    assert!(!done.is_complete, "{done:?}");
    let left = db.parts.runtime.ctx.zones.free_bytes(Budget::Reserve) / u64::from(ZONE_BYTES);
    assert!(left >= 10, "{left} zones are left");
    same(&db, data, &fills, "with a reader");
    drop(reader);
    let done = db.defragment(Sparse, &DefragLimit::default(), &mut |_| true).expect("goes on");
    assert!(done.is_complete && done.after.zones_used < done.after.zones_needed + 8, "{done:?}");
    same(&db, data, &fills, "without one");
}
