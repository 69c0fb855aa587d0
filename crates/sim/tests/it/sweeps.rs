//! The sweeps: no false alarm on a sound engine, an alarm for each flaw.

use kvfs_device::CrashMode;
use kvfs_sim::crash_sweep::{CrashSweep, assert_survives_crashes, crash_sweep};
use kvfs_sim::engine::DeviceSubject;
use kvfs_sim::fault_sweep::{FaultSweep, assert_survives_faults, fault_sweep};
use kvfs_sim::flip_sweep::{assert_notices_flips, flip_sweep};
use kvfs_sim::ops::{Profile, StepWeights};
use kvfs_sim::seeds;
use kvfs_sim::store_check::assert_like_model;

use crate::log_engine::{Flaw, LogEngine};

const SOUND: LogEngine = LogEngine(Flaw::None);

#[test]
fn a_sound_engine_is_like_the_model() {
    let defaults = Profile::default();
    let profile = Profile { step_weights: StepWeights { crash: 2, ..defaults.step_weights }, ..defaults };
    for seed in seeds(1, 5) {
        assert_like_model(&|| Box::new(DeviceSubject::new(&SOUND, seed).unwrap()), &profile, seed);
    }
}

#[test]
fn a_sound_engine_survives_everything() {
    for seed in seeds(1, 3) {
        let swept = assert_survives_crashes(&SOUND, &CrashSweep::of_steps(50), seed);
        assert!(swept.events > 10 && swept.images > swept.events, "{swept:?}");
        let outcomes = assert_survives_faults(&SOUND, &FaultSweep::of_steps(50), seed);
        assert!(outcomes.stopped > 0, "{outcomes:?}");
        let flips = assert_notices_flips(&SOUND, 50, 40, seed);
        assert!(flips.refused > 0, "{flips:?}");
    }
}

/// What some seed says against a flawed engine.
fn caught(flaw: Flaw, sweep: impl Fn(&LogEngine, u64) -> Option<String>) -> String {
    let engine = LogEngine(flaw);
    let report = (1..=6).find_map(|seed| sweep(&engine, seed));
    report.unwrap_or_else(|| panic!("nothing noticed that the engine {flaw:?}"))
}

#[test]
fn a_missing_flush_is_caught() {
    caught(Flaw::NeverFlushes, |engine, seed| crash_sweep(engine, &CrashSweep::of_steps(50), seed).err());
}

#[test]
fn a_missing_checksum_is_caught() {
    let sweep = CrashSweep { modes: CrashMode::EACH.to_vec(), ..CrashSweep::of_steps(50) };
    caught(Flaw::NeverChecks, |engine, seed| crash_sweep(engine, &sweep, seed).err());
    caught(Flaw::NeverChecks, |engine, seed| flip_sweep(engine, 50, 100, seed).err());
}

#[test]
fn a_forgotten_failure_is_caught() {
    caught(Flaw::ForgetsFailures, |engine, seed| fault_sweep(engine, &FaultSweep::of_steps(50), seed).err());
}

#[test]
fn a_visible_refused_batch_is_caught() {
    caught(Flaw::KeepsRefused, |engine, seed| fault_sweep(engine, &FaultSweep::of_steps(50), seed).err());
}
