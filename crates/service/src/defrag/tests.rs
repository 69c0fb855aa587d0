//! Who defragments a store, and what ends that, without an engine.

use super::*;
use crate::testing::{PIECES, TestEngine, World, assert_denied, stranger};

const REQUEST: DefragRequest = DefragRequest { rewrite: false, bytes_per_second: 0, dry_run: false };

#[test]
fn store_is_defragmented_for_root_and_its_owner_alone() {
    let world = World::new(false);
    let (store, own) = (world.unmounted(), Caller::own());
    let denied = "only root and the store's owner defragment it";
    assert_denied(store.defrag_plan(&stranger(), false), denied);
    assert_denied(store.defragment(&stranger(), REQUEST), denied);
    assert_eq!(world.engine.pieces.load(Ordering::Relaxed), 0);
    assert_eq!(store.defrag_plan(&own, true).expect("plans").zones, 9);
    let limited = DefragRequest { bytes_per_second: 100, ..REQUEST };
    let done = store.defragment(&own, limited).expect("defragments");
    assert!(done.is_complete && done.bytes_moved == 100 + PIECES);
}

#[test]
fn defragmentation_ends_behind_the_piece_when_the_gate_is_stopped() {
    let mut world = World::new(false);
    let flag = Arc::clone(world.defrag.flag());
    let on_piece = Box::new(move || flag.store(true, Ordering::Relaxed));
    world.engine = TestEngine { on_piece: Some(on_piece), ..TestEngine::default() };
    let done = world.unmounted().defragment(&Caller::own(), REQUEST).expect("ends");
    assert!(!done.is_complete);
    assert_eq!(world.engine.pieces.load(Ordering::Relaxed), 1);
}

#[test]
fn second_defragmentation_at_a_time_is_refused() {
    let world = World::new(false);
    let _running = world.defrag.running.lock();
    let refused = world.unmounted().defragment(&Caller::own(), REQUEST).expect_err("is refused");
    assert_eq!(refused.kind(), ErrorKind::InUse);
    // The plan is told all the same.
    assert_eq!(world.unmounted().defrag_plan(&Caller::own(), false).expect("plans").zones, 3);
}
