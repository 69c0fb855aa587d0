//! The engine of kvfs beside the model: in many configurations, across crashes, faults, bit flips.

use std::sync::Arc;

use kvfs_device::{CrashMode, Device};
use kvfs_kvdb::MergeOptions;
use kvfs_kvdb::Policy;
use kvfs_kvdb::{Background, CreateOptions, Db, Options};
use kvfs_sim::crash_sweep::{CrashSweep, assert_survives_crashes};
use kvfs_sim::engine::{DeviceSubject, Engine, OpenStore};
use kvfs_sim::fault_sweep::{FaultSweep, assert_survives_faults};
use kvfs_sim::flip_sweep::assert_notices_flips;
use kvfs_sim::ops::{OpWeights, Profile, StepWeights};
use kvfs_sim::store_check::assert_like_model;
use kvfs_sim::{of_seed, seeds};
use kvfs_store::clock::ManualClock;
use kvfs_store::{Compression, Result, Store};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// One configuration of the engine.
#[derive(Clone)]
struct Kvdb {
    create: CreateOptions,
    options: Options,
    may_fill_up: bool,
}

impl Kvdb {
    /// Small everything, so that a short run reaches flushes and merges.
    fn small() -> Self {
        let create = CreateOptions {
            zone_bytes: 256 << 10,
            journal_bytes: Some(2 * MIB),
            ..CreateOptions::new(64 * MIB, *b"a store to check")
        };
        let merge =
            MergeOptions { piece_bytes: 256 * KIB, class_bytes_min: 64 * KIB, ..MergeOptions::default() };
        let options = Options {
            memtable_bytes: 64 * KIB,
            tuple_block_bytes: 4 << 10,
            // Of the writes of blocks that are made here, some are shorter.
            bind_bytes_min: 16 << 10,
            undo_count: 3,
            background: Background::Manual,
            merge,
            ..Options::with_memory(16 * MIB)
        };
        Self { create, options, may_fill_up: false }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut engine = Self::small();
        change(&mut engine);
        engine
    }
}

impl Engine for Kvdb {
    fn device_bytes_max(&self) -> u64 {
        self.create.capacity_bytes
    }

    fn may_fill_up(&self) -> bool {
        self.may_fill_up
    }

    fn create(&self, device: Arc<dyn Device>) -> Result<()> {
        Db::create(device, &self.create)
    }

    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn OpenStore>> {
        Ok(Box::new(OpenDb(Db::open(device, self.options.clone(), Arc::new(ManualClock::default()))?)))
    }
}

struct OpenDb(Arc<Db>);

impl OpenStore for OpenDb {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.0) as Arc<dyn Store>
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    fn compact(&self) -> Result<()> {
        self.0.compact()
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.close()
    }

    fn check(&self) -> Result<(), String> {
        let checked = self.0.check().map_err(|error| format!("check: {error}"))?;
        if checked.findings.is_empty() {
            Ok(())
        } else {
            Err(format!("check: {}", checked.findings.join("; ")))
        }
    }
}

/// Everything, with crashes and frequent flushes and merges.
fn profile() -> Profile {
    let step_weights = StepWeights { crash: 1, flush: 6, compact: 4, ..Profile::default().step_weights };
    Profile { step_weights, ..Profile::default() }
}

fn check_with(engine: &Kvdb, profile: &Profile, seed: u64) {
    assert_like_model(&|| Box::new(DeviceSubject::new(engine, seed).unwrap()), profile, seed);
}

/// Runs two seeds (or those of the environment) of one configuration.
fn check(first_seed: u64, engine: &Kvdb) {
    for seed in seeds(first_seed, 2) {
        check_with(engine, &profile(), seed);
    }
}

#[test]
fn like_the_model_when_small() {
    check(100, &Kvdb::small());
}

#[test]
fn like_the_model_when_everything_is_stitched() {
    check(200, &Kvdb::with(|e| e.options.merge.stitch_bytes_min = 0));
}

#[test]
fn like_the_model_when_nothing_is_stitched() {
    check(300, &Kvdb::with(|e| e.options.merge.stitch_bytes_min = u64::MAX));
}

#[test]
fn like_the_model_with_tiny_memtables() {
    check(400, &Kvdb::with(|e| e.options.memtable_bytes = 4 * KIB));
}

#[test]
fn like_the_model_with_two_runs_in_a_class() {
    check(500, &Kvdb::with(|e| e.options.merge.class_runs = 2));
}

#[test]
fn like_the_model_with_two_runs_in_a_class_all_stitched_and_tiny_memtables() {
    check(
        600,
        &Kvdb::with(|e| {
            e.options.merge.class_runs = 2;
            e.options.merge.stitch_bytes_min = 0;
            e.options.memtable_bytes = 4 * KIB;
        }),
    );
}

#[test]
fn like_the_model_with_two_runs_in_a_class_none_stitched_and_tiny_memtables() {
    check(
        700,
        &Kvdb::with(|e| {
            e.options.merge.class_runs = 2;
            e.options.merge.stitch_bytes_min = u64::MAX;
            e.options.memtable_bytes = 4 * KIB;
        }),
    );
}

#[test]
fn like_the_model_with_little_memory() {
    check(800, &Kvdb::with(|e| e.options.memory_bytes = 128 * KIB));
}

/// Every index and filter is read anew each time it is needed.
#[test]
fn like_the_model_when_no_index_stays_in_memory() {
    for stitch_bytes_min in [0, 32 * KIB] {
        check(
            860,
            &Kvdb::with(|e| {
                e.options.memory_bytes = KIB;
                e.options.merge.piece_bytes = 16 * KIB;
                e.options.merge.class_bytes_min = 4 * KIB;
                e.options.merge.stitch_bytes_min = stitch_bytes_min;
            }),
        );
    }
}

#[test]
fn like_the_model_when_some_indexes_of_spilled_transactions_stay_in_memory() {
    for seed in seeds(870, 2) {
        let engine = Kvdb::with(|e| {
            e.options.private_bytes = 1;
            e.options.memory_bytes = 16 * KIB;
            e.options.merge.piece_bytes = 16 * KIB;
        });
        check_with(&engine, &transactional(), seed);
    }
}

#[test]
fn survives_crashes_faults_and_flips_when_no_index_stays_in_memory() {
    let engine = Kvdb { options: Options { memory_bytes: KIB, ..eventful().options }, ..eventful() };
    for seed in seeds(50, 1) {
        let swept = assert_survives_crashes(&engine, &CrashSweep::of_steps(40), seed);
        assert!(swept.events > 20, "{swept:?}");
        let outcomes = assert_survives_faults(&engine, &FaultSweep::of_steps(20), seed);
        assert!(outcomes.stopped > 0, "{outcomes:?}");
        let flips = assert_notices_flips(&engine, 60, 100, seed);
        assert!(flips.noticed > 0, "{flips:?}");
    }
}

#[test]
fn like_the_model_with_the_other_cache_policies() {
    for policy in [Policy::Lru, Policy::S3Fifo, Policy::Arc] {
        check(
            850,
            &Kvdb::with(|e| {
                e.options.memory_bytes = 128 * KIB;
                e.options.cache_policy = policy;
            }),
        );
    }
}

#[test]
fn like_the_model_with_tiny_tuple_blocks() {
    check(900, &Kvdb::with(|e| e.options.tuple_block_bytes = 256));
}

#[test]
fn like_the_model_with_few_zones() {
    check(
        1000,
        &Kvdb::with(|e| {
            e.create.capacity_bytes = 40 * 128 * KIB;
            e.create.zone_bytes = 128 << 10;
            e.create.journal_bytes = Some(4 * 128 * KIB);
            e.may_fill_up = true;
        }),
    );
}

#[test]
fn like_the_model_with_tiny_pieces() {
    check(
        1100,
        &Kvdb::with(|e| {
            e.options.merge.piece_bytes = 16 * KIB;
            e.options.merge.class_bytes_min = 4 * KIB;
        }),
    );
}

#[test]
fn like_the_model_with_tiny_zones() {
    check(
        1200,
        &Kvdb::with(|e| {
            e.create.zone_bytes = 64 << 10;
            e.create.journal_bytes = Some(256 * KIB);
        }),
    );
}

#[test]
fn like_the_model_with_default_sizes() {
    check(
        1300,
        &Kvdb {
            create: CreateOptions::new(256 * MIB, *b"a store to check"),
            options: Options { background: Background::Manual, ..Options::with_memory(64 * MIB) },
            may_fill_up: false,
        },
    );
}

#[test]
fn like_the_model_with_many_blocks() {
    let op_weights =
        OpWeights { put: 2, delete: 3, delete_range: 2, merge: 1, put_blocks: 12, patch_block: 6 };
    let profile = Profile { op_weights, put_blocks_max: 80, steps: 250, ..profile() };
    for seed in seeds(1400, 3) {
        let stitch_bytes_min = of_seed(seed, &[32 * KIB, 0, u64::MAX]);
        check_with(&Kvdb::with(|e| e.options.merge.stitch_bytes_min = stitch_bytes_min), &profile, seed);
    }
}

/// Data that is packed where that wins a sector: by keyspace, by the wishes of blocks, by both.
#[test]
fn like_the_model_when_data_is_compressed() {
    let op_weights =
        OpWeights { put: 4, delete: 3, delete_range: 2, merge: 2, put_blocks: 8, patch_block: 6 };
    let profile = Profile { op_weights, put_blocks_max: 80, steps: 250, wishes: true, ..profile() };
    let settings = [Compression::None, Compression::Lz4, Compression::Zstd(3)];
    for seed in seeds(2200, 6) {
        let engine = Kvdb::with(|e| {
            e.options.compression = of_seed(seed, &settings);
            e.options.merge.stitch_bytes_min = of_seed(seed, &[32 * KIB, 0, u64::MAX, 8 * KIB]);
            e.options.private_bytes = of_seed(seed, &[64 * KIB, 16 * MIB]);
        });
        check_with(&engine, &profile, seed);
    }
}

#[test]
fn survives_crashes_faults_and_flips_of_compressed_data() {
    let compressed = Kvdb {
        options: Options { compression: Compression::Lz4, tuple_block_bytes: 8 << 10, ..eventful().options },
        ..eventful()
    };
    for seed in seeds(40, 1) {
        let swept = assert_survives_crashes(&compressed, &CrashSweep::of_steps(40), seed);
        assert!(swept.events > 20, "{swept:?}");
        let outcomes = assert_survives_faults(&compressed, &FaultSweep::of_steps(20), seed);
        assert!(outcomes.stopped > 0, "{outcomes:?}");
        let flips = assert_notices_flips(&compressed, 60, 100, seed);
        assert!(flips.noticed + flips.refused > 0, "{flips:?}");
    }
}

#[test]
fn like_the_model_with_long_keys_and_values() {
    let profile = Profile { long_one_in: 5, steps: 250, ..profile() };
    for seed in seeds(1500, 2) {
        check_with(&Kvdb::small(), &profile, seed);
    }
}

/// Much is written in transactions.
fn transactional() -> Profile {
    let step_weights = StepWeights {
        apply: 20,
        txn_begin: 6,
        txn_apply: 40,
        txn_changes: 6,
        txn_prepare: 4,
        txn_commit: 6,
        txn_abort: 2,
        ..profile().step_weights
    };
    Profile { step_weights, ..profile() }
}

#[test]
fn like_the_model_when_transactions_spill_with_every_batch() {
    for seed in seeds(1600, 3) {
        check_with(&Kvdb::with(|e| e.options.private_bytes = 1), &transactional(), seed);
    }
}

/// Checkpoints, and forks of them, of much that is written after each.
#[test]
fn like_the_model_when_transactions_fork() {
    for seed in seeds(2500, 8) {
        let private_bytes = of_seed(seed, &[1, 64 * KIB, 1 << 20, 1]);
        let engine = Kvdb::with(|e| {
            e.options.private_bytes = private_bytes;
            e.options.memtable_bytes = 16 * KIB;
            e.options.merge.class_runs = 2;
        });
        let step_weights = StepWeights {
            apply: 10,
            txn_begin: 3,
            txn_checkpoint: 8,
            txn_fork: 8,
            txn_fork_compare: 30,
            txn_commit: 2,
            txn_abort: 1,
            ..transactional().step_weights
        };
        check_with(&engine, &Profile { step_weights, steps: 1000, ..transactional() }, seed);
    }
}

#[test]
fn like_the_model_when_transactions_spill_now_and_then() {
    for seed in seeds(1700, 3) {
        let engine = Kvdb::with(|e| {
            e.options.private_bytes = 64 * KIB;
            e.options.memtable_bytes = 16 * KIB;
        });
        check_with(&engine, &transactional(), seed);
    }
}

#[test]
fn like_the_model_when_spilled_runs_are_merged_at_once() {
    for seed in seeds(1800, 4) {
        let stitch_bytes_min = of_seed(seed, &[0, u64::MAX]);
        let engine = Kvdb::with(|e| {
            e.options.private_bytes = 1;
            e.options.memtable_bytes = 4 * KIB;
            e.options.merge.class_runs = 2;
            e.options.merge.stitch_bytes_min = stitch_bytes_min;
            e.options.tuple_block_bytes = 256;
        });
        let step_weights = StepWeights { compact: 12, ..transactional().step_weights };
        check_with(&engine, &Profile { step_weights, ..transactional() }, seed);
    }
}

#[test]
fn like_the_model_when_transactions_commit_by_way_of_runs() {
    for seed in seeds(2100, 4) {
        let batch_commit_bytes_max = of_seed(seed, &[0, 4096]);
        let engine = Kvdb::with(|e| e.options.batch_commit_bytes_max = batch_commit_bytes_max);
        check_with(&engine, &transactional(), seed);
    }
}

#[test]
fn like_the_model_when_transactions_spill_many_blocks() {
    let op_weights =
        OpWeights { put: 2, delete: 3, delete_range: 2, merge: 1, put_blocks: 12, patch_block: 6 };
    let profile = Profile { op_weights, put_blocks_max: 60, steps: 250, ..transactional() };
    for seed in seeds(1900, 2) {
        let private_bytes = of_seed(seed, &[1, 256 * KIB]);
        check_with(&Kvdb::with(|e| e.options.private_bytes = private_bytes), &profile, seed);
    }
}

#[test]
fn like_the_model_when_transactions_spill_and_the_store_fills_up() {
    for seed in seeds(2000, 2) {
        let engine = Kvdb::with(|e| {
            e.create.capacity_bytes = 48 * 128 * KIB;
            e.create.zone_bytes = 128 << 10;
            e.create.journal_bytes = Some(4 * 128 * KIB);
            e.options.private_bytes = 32 * KIB;
            e.may_fill_up = true;
        });
        check_with(&engine, &transactional(), seed);
    }
}

#[test]
fn survives_a_crash_at_every_event_of_spilled_transactions() {
    for seed in seeds(20, 3) {
        let private_bytes = of_seed(seed, &[1, 1, 8 * KIB]);
        let batch_commit_bytes_max = 4096;
        let options = Options { private_bytes, batch_commit_bytes_max, ..eventful().options };
        let engine = Kvdb { options, ..eventful() };
        let swept = assert_survives_crashes(&engine, &CrashSweep::of_steps(50), seed);
        assert!(swept.events > 50, "{swept:?}");
    }
}

#[test]
fn survives_a_fault_at_every_call_of_spilled_transactions() {
    for seed in seeds(30, 3) {
        let engine = Kvdb { options: Options { private_bytes: 1, ..eventful().options }, ..eventful() };
        let outcomes = assert_survives_faults(&engine, &FaultSweep::of_steps(30), seed);
        assert!(outcomes.stopped > 0, "{outcomes:?}");
    }
}

/// Tiny memtables and eager merges, so that a short run has all kinds of events.
fn eventful() -> Kvdb {
    Kvdb::with(|e| {
        e.options.memtable_bytes = 32 * KIB;
        e.options.merge.class_runs = 2;
        e.create.capacity_bytes = 16 * MIB;
        e.create.zone_bytes = 64 << 10;
        e.create.journal_bytes = Some(512 * KIB);
    })
}

#[test]
fn survives_a_crash_at_every_event() {
    for seed in seeds(1, 2) {
        let swept = assert_survives_crashes(&eventful(), &CrashSweep::of_steps(40), seed);
        assert!(swept.events > 50, "{swept:?}");
    }
}

#[test]
fn survives_torn_writes() {
    let sweep =
        CrashSweep { modes: vec![CrashMode::Tear, CrashMode::KeepSuffix], ..CrashSweep::of_steps(40) };
    for seed in seeds(10, 1) {
        assert_survives_crashes(&eventful(), &sweep, seed);
    }
}

#[test]
fn survives_a_fault_at_every_call() {
    for seed in seeds(1, 3) {
        let outcomes = assert_survives_faults(&eventful(), &FaultSweep::of_steps(30), seed);
        assert!(outcomes.stopped > 0, "{outcomes:?}");
    }
}

#[test]
fn survives_lasting_faults() {
    let sweep = FaultSweep { lasting: true, calls_step: 3, ..FaultSweep::of_steps(30) };
    for seed in seeds(5, 1) {
        let outcomes = assert_survives_faults(&eventful(), &sweep, seed);
        assert!(outcomes.stopped > 0, "{outcomes:?}");
    }
}

#[test]
fn notices_flipped_bits() {
    for seed in seeds(1, 2) {
        let flips = assert_notices_flips(&eventful(), 60, 100, seed);
        assert!(flips.noticed + flips.refused > 0, "{flips:?}");
    }
}
