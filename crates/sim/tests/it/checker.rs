//! The checkers: no false alarm on a sound store, an alarm for each broken promise.

use kvfs_sim::crash_check::History;
use kvfs_sim::ops::{Profile, Step, StepWeights, generate};
use kvfs_sim::seeds;
use kvfs_sim::store_check::{Report, assert_like_model, check};
use kvfs_store::{Batch, Position, Transactions, TxnOptions};

use crate::mutant::{Mutation, RecorderSubject};

/// A profile in which the power fails now and then.
fn profile() -> Profile {
    let defaults = Profile::default();
    Profile { step_weights: StepWeights { crash: 2, ..defaults.step_weights }, ..defaults }
}

/// The first failure that a few seeds find.
fn caught(mutation: Mutation) -> Report {
    let make = || Box::new(RecorderSubject::new(mutation)) as _;
    let report = (1..=8).find_map(|seed| check(&make, &profile(), seed).err());
    *report.unwrap_or_else(|| panic!("nothing noticed that the store {mutation:?}"))
}

#[test]
fn a_sound_store_raises_no_alarm() {
    for seed in seeds(1, 20) {
        assert_like_model(&|| Box::new(RecorderSubject::new(Mutation::Sound)), &profile(), seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_steps() {
    let steps = generate(&profile(), 7);
    assert_eq!(steps.len(), profile().steps + 1);
    assert_eq!(steps, generate(&profile(), 7));
    assert_ne!(steps, generate(&profile(), 8));
}

#[test]
fn a_lost_delete_is_caught() {
    caught(Mutation::LosesDeletes);
}

#[test]
fn a_range_delete_that_takes_its_end_is_caught() {
    let report = caught(Mutation::ClosedRanges);
    assert!(report.steps.len() <= 8, "{report}");
}

#[test]
fn a_reordered_batch_is_caught_and_shrunk() {
    let report = caught(Mutation::ReordersBatches);
    // A batch of two operations and a look at the result are enough.
    assert!(report.steps.len() <= 3, "{report}");
    let ops: usize =
        report.steps.iter().map(|step| if let Step::Apply { ops, .. } = step { ops.len() } else { 0 }).sum();
    assert!(ops <= 3, "{report}");
}

#[test]
fn a_leaky_snapshot_is_caught() {
    let report = caught(Mutation::LeakySnapshots);
    assert!(report.to_string().contains("snapshot_create"), "{report}");
    assert!(report.to_string().contains(&format!("KVFS_SIM_SEED={}", report.seed)), "{report}");
}

#[test]
fn a_skipping_cursor_is_caught() {
    caught(Mutation::SkippingCursors);
}

#[test]
fn an_unfilled_hole_is_caught() {
    caught(Mutation::UnfilledHoles);
}

#[test]
fn a_forgetful_close_is_caught() {
    caught(Mutation::ForgetfulClose);
}

#[test]
fn a_lost_synced_batch_is_caught() {
    let report = caught(Mutation::LosesSynced);
    let message = &report.failure.message;
    assert!(message.contains("no prefix") || message.contains("and the position"), "{report}");
}

#[test]
fn a_gap_in_history_is_caught() {
    let report = caught(Mutation::TornHistory);
    assert!(report.failure.message.contains("no prefix"), "{report}");
}

#[test]
fn half_a_batch_is_caught() {
    let report = caught(Mutation::HalfBatch);
    let message = &report.failure.message;
    assert!(message.contains("no prefix") || message.contains("and the position"), "{report}");
}

#[test]
fn a_position_that_is_told_twice_is_caught() {
    let report = caught(Mutation::TellsLowPosition);
    assert!(report.failure.message.contains("the position Position"), "{report}");
}

#[test]
fn states_around_the_last_commits_outlast_syncs_and_crashes() {
    let mut history = History::new(Position(0)).unwrap();
    let put = |history: &History, value: &'static str| {
        let mut batch = Batch::new();
        batch.put(history.handles().get(2), "k", value);
        batch
    };
    for number in 1..=20 {
        let txn = history.model().begin(TxnOptions::default()).unwrap();
        txn.apply(put(&history, "v")).unwrap();
        assert!(history.record_commit(&*txn, Position(number)).unwrap());
    }
    history.record_sync();
    history.forget_before_synced();
    let known = |history: &History| {
        (0..=20).filter(|&at| history.state_at_position(Position(at)).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(known(&history), (12..=20).collect::<Vec<_>>());
    let txn = history.model().begin(TxnOptions::default()).unwrap();
    txn.apply(put(&history, "lost")).unwrap();
    history.record_commit(&*txn, Position(21)).unwrap();
    history.rewind(20, Position(20)).unwrap();
    assert_eq!(known(&history), (12..=20).collect::<Vec<_>>());
    assert!(history.state_at_position(Position(21)).is_none());
}
