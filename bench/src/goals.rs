//! How fast kvfs is to be, as a table, and how far it is from it.
//!
//! Thread safety: constants and pure functions.

use crate::results::{Results, WorkloadInfo};
use crate::values::Values;
use serde::Serialize;

/// Whom kvfs is compared with.
#[derive(Clone, Copy, Debug)]
enum Against {
    One(&'static str),
    /// The fastest of them.
    BestOf(&'static [&'static str]),
}

/// A demand on one row: the other's time divided by that of kvfs is to be at least `factor`.
#[derive(Clone, Copy, Debug)]
struct Goal {
    /// Which of ours: `kvfs`, `library`, `exec` or `exec client`.
    ours: &'static str,
    workload: &'static str,
    against: Against,
    factor: f64,
}

const KERNEL: &[&str] = &["ext4", "xfs", "btrfs"];
const ENGINES: &[&str] = &["rocksdb", "fjall", "surrealkv"];
/// At most 1.15 times the floor's time.
const AT_FLOOR: f64 = 1.0 / 1.15;
/// At most 1.3 times the floor's time.
const NEAR_FLOOR: f64 = 1.0 / 1.3;
/// An aged store may take 1.3 times as long as a fresh one.
const NEAR_FRESH: f64 = 1.0 / 1.3;
/// Creates in a directory of ten million files are to be this fast, measured by those in the first tenth.
const STEADY: f64 = 0.9;
/// What is moved between tiers may make calls of others take so many times as long.
const NEAR_STILL: f64 = 1.0 / 1.2;
/// Rows of kvfs that may take so many seconds.
const SECONDS_MAX: &[(&str, f64)] = &[
    // When other files become popular, until a store on two tiers is nearly as fast as before.
    ("tiers-moved", 300.0),
    ("beyond-take-over-1ms", 10.0),
    ("beyond-take-over-20ms", 10.0),
];
/// What a row of kvfs may ask of object storage.
const REQUESTS_MAX: &[(&str, &str, f64)] =
    &[("beyond-create-1ms", PUT_PER_1000, 20.0), ("beyond-create-20ms", PUT_PER_1000, 20.0)];
/// A detail of rows that make small files.
pub const PUT_PER_1000: &str = "PUT for 1,000 files";
/// So many times as long as before a change no row may take; a throughput may fall by as much.
const NEAR_BEFORE: f64 = 1.05;

const fn goal(workload: &'static str, against: Against, factor: f64) -> Goal {
    Goal { ours: "kvfs", workload, against, factor }
}

/// Of kvfs without a mount.
const fn library(workload: &'static str, against: Against, factor: f64) -> Goal {
    Goal { ours: "library", workload, against, factor }
}

/// Of programs under `kvfs exec` on a store that it serves itself.
const fn exec(workload: &'static str, against: &'static str, factor: f64) -> Goal {
    Goal { ours: "exec", workload, against: Against::One(against), factor }
}

/// Of programs under `kvfs exec` beside a mount.
const fn client(workload: &'static str) -> Goal {
    Goal { ours: "exec client", workload, against: Against::One("kvfs"), factor: 1.5 }
}

const GOALS: &[Goal] = &[
    goal("create", Against::One("floor"), AT_FLOOR),
    goal("untar", Against::One("floor"), NEAR_FLOOR),
    goal("chmod-cold", Against::One("floor"), AT_FLOOR),
    goal("rename-tree", Against::One("floor"), AT_FLOOR),
    goal("rm-warm", Against::One("floor"), AT_FLOOR),
    goal("list-stat-cold", Against::BestOf(KERNEL), 2.0),
    goal("small-read-cold", Against::BestOf(KERNEL), 1.5),
    goal("grep-cold", Against::BestOf(KERNEL), 2.1),
    goal("find-cold", Against::BestOf(KERNEL), 0.9),
    goal("installed-grep-cold", Against::BestOf(KERNEL), 1.5),
    goal("installed-find-cold", Against::BestOf(KERNEL), 0.8),
    goal("rm-cold", Against::One("xfs"), 1.4),
    goal("rm-cold", Against::One("btrfs"), 1.4),
    goal("append-fsync", Against::One("ext4"), 4.0),
    goal("append-fsync", Against::One("xfs"), 2.2),
    goal("overwrite-4b", Against::BestOf(KERNEL), 8.0),
    goal("stream-write", Against::One("ext4"), 1.2),
    goal("stream-write-10k", Against::One("ext4"), 0.8),
    goal("stream-read-cold", Against::One("ext4"), 0.95),
    goal("random-read-qd1", Against::One("ext4"), 1.0),
    goal("random-read-qd16", Against::One("ext4"), 0.9),
    goal("million-stat-cold", Against::BestOf(KERNEL), 1.5),
    goal("million-chmod-cold", Against::BestOf(KERNEL), 1.5),
    library("lib-create", Against::One("ext4"), 3.0),
    library("lib-small-create", Against::One("ext4"), 2.5),
    library("lib-stat-warm", Against::BestOf(KERNEL), 2.0),
    library("lib-list-stat-cold", Against::BestOf(KERNEL), 4.0),
    library("lib-small-read-cold", Against::BestOf(KERNEL), 4.0),
    library("lib-chmod-cold", Against::One("ext4"), 1.0),
    library("lib-rm-cold", Against::One("ext4"), 1.0),
    library("lib-rm-warm", Against::One("ext4"), 1.0),
    exec("exec-untar", "kvfs", 4.0),
    exec("exec-untar", "ext4", 1.0),
    client("exec-untar"),
    exec("exec-copy", "kvfs", 4.0),
    exec("exec-copy", "ext4", 1.0),
    client("exec-copy"),
    exec("exec-remove", "kvfs", 4.0),
    exec("exec-remove", "ext4", 1.0),
    client("exec-remove"),
    exec("exec-git-status", "kvfs", 4.0),
    exec("exec-git-status", "ext4", 1.0),
    client("exec-git-status"),
    goal("tpcc-small", Against::One("ext4"), 1.1),
    goal("tpcc-large", Against::One("ext4"), 1.0),
    goal("pgbench", Against::One("ext4"), 1.0),
    goal("sqlite-wal", Against::One("ext4"), 1.0),
    goal("sqlite-delete", Against::One("ext4"), 1.0),
    goal("tiers-mix", Against::One("all fast"), 0.9),
    goal("tiers-mix", Against::One("all slow"), 3.0),
    goal("beyond-create-1ms", Against::One("juicefs"), 2.0),
    goal("beyond-create-20ms", Against::One("juicefs"), 2.0),
    goal("beyond-create-sync-1ms", Against::One("juicefs"), 2.0),
    goal("beyond-create-sync-20ms", Against::One("juicefs"), 2.0),
    goal("beyond-untar-1ms", Against::One("juicefs"), 2.0),
    goal("beyond-untar-20ms", Against::One("juicefs"), 2.0),
    goal("beyond-grep-1ms", Against::One("juicefs"), 1.5),
    goal("beyond-grep-20ms", Against::One("juicefs"), 1.5),
    goal("beyond-write-1ms", Against::One("juicefs"), 1.0),
    goal("beyond-write-20ms", Against::One("juicefs"), 1.0),
    goal("beyond-read-1ms", Against::One("juicefs"), 1.0),
    goal("beyond-read-20ms", Against::One("juicefs"), 1.0),
    goal("beyond-write-1ms", Against::One("bare"), 0.8),
    goal("beyond-write-20ms", Against::One("bare"), 0.8),
    goal("beyond-read-1ms", Against::One("bare"), 0.8),
    goal("beyond-read-20ms", Against::One("bare"), 0.8),
    goal("engine-fill-seq", Against::BestOf(ENGINES), 1.0),
    goal("engine-fill-random", Against::BestOf(ENGINES), 1.0),
    goal("engine-blocks-seq", Against::BestOf(ENGINES), 2.0),
    goal("engine-blocks-random", Against::BestOf(ENGINES), 1.0),
    goal("engine-point-read", Against::BestOf(ENGINES), 0.8),
    goal("engine-scan", Against::BestOf(ENGINES), 0.8),
];

/// What a value is meant to be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Bound {
    /// At most.
    AtMost(f64),
    /// At least.
    AtLeast(f64),
}

impl Bound {
    /// Whether the value is as it is meant to be.
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    /// For people; `show` writes the limit in the unit of the value.
    pub fn text(self, value: f64, show: impl Fn(f64) -> String) -> String {
        let verdict = if self.is_met(value) { "met" } else { "MISSED" };
        match self {
            Self::AtMost(limit) => format!("<= {}: {verdict}", show(limit)),
            Self::AtLeast(limit) => format!(">= {}: {verdict}", show(limit)),
        }
    }
}

/// Values that stand by themselves: seconds, or shares of 1.
const LIMITS: &[(&str, Bound)] = &[
    // Thesis, table 4.4 and section 4.5: 6,270 of 11,264 zones, 274.82 s instead of 377.71.
    ("defrag.zones-back", Bound::AtLeast(0.55)),
    ("defrag.scan-faster", Bound::AtLeast(0.27)),
    ("full.unlink-max", Bound::AtMost(0.2)),
    ("full.df-at-once", Bound::AtLeast(0.95)),
    ("full.df-kept", Bound::AtLeast(0.95)),
    ("trees.clone", Bound::AtMost(0.01)),
    ("trees.clone-bytes", Bound::AtMost(1_048_576.0)),
    ("trees.command", Bound::AtMost(0.01)),
    ("trees.space-back", Bound::AtMost(60.0)),
    ("edinburgh.kvdb.read-random.ratio", NEAR_BARE),
    ("edinburgh.kvdb.read-seq.ratio", NEAR_BARE),
    ("edinburgh.kvdb.write-random.ratio", NEAR_BARE),
    ("edinburgh.kvdb.write-seq.ratio", NEAR_BARE),
    ("edinburgh.leveldb.read-random.ratio", NEAR_BARE),
    ("edinburgh.leveldb.read-seq.ratio", NEAR_BARE),
    ("edinburgh.leveldb.write-random.ratio", NEAR_BARE),
    ("edinburgh.leveldb.write-seq.ratio", NEAR_BARE),
    ("edinburgh.rocksdb.read-random.ratio", NEAR_BARE),
    ("edinburgh.rocksdb.read-seq.ratio", NEAR_BARE),
    ("edinburgh.rocksdb.write-random.ratio", NEAR_BARE),
    ("edinburgh.rocksdb.write-seq.ratio", NEAR_BARE),
    ("ranges.read-memtable", Bound::AtMost(1.1)),
    ("ranges.read-run", Bound::AtMost(1.1)),
    ("overwrite.amplification", Bound::AtMost(3.2)),
    ("overwrite.write-max", Bound::AtMost(0.2)),
];

/// The library may take 1.25 times as long as the engine below it (Edinburgh kvfs, figures 5.1 to 5.4).
const NEAR_BARE: Bound = Bound::AtMost(1.25);

/// Values that may not fall below those of an earlier run on the same machine.
const KEPT: &[&str] = &["overwrite.throughput"];

/// Every value that there is a goal for.
pub fn keys() -> impl Iterator<Item = &'static str> {
    LIMITS.iter().map(|(key, _)| *key).chain(KEPT.iter().copied())
}

/// Every row that there is a goal for.
pub fn workloads() -> impl Iterator<Item = &'static str> {
    let limited = SECONDS_MAX.iter().map(|(workload, _)| *workload);
    let limited = limited.chain(REQUESTS_MAX.iter().map(|(workload, ..)| *workload));
    GOALS.iter().map(|goal| goal.workload).chain(limited)
}

/// What a value is meant to be, if there is a goal for it; `before` are an earlier run's.
pub fn bound_of(key: &str, before: Option<&Values>) -> Option<Bound> {
    let limit = LIMITS.iter().find(|(limited, _)| *limited == key).map(|&(_, bound)| bound);
    let kept = || {
        let before = before.filter(|_| KEPT.contains(&key))?.summary(key)?;
        Some(Bound::AtLeast(before.median / NEAR_BEFORE))
    };
    limit.or_else(kept)
}

/// A row of kvfs before and after a change.
#[derive(Clone, Debug)]
pub struct Change {
    /// Key of the row.
    pub workload: String,
    /// Seconds, median of the runs.
    pub before: f64,
    /// Likewise.
    pub after: f64,
}

impl Change {
    /// Time after divided by time before.
    pub fn ratio(&self) -> f64 {
        self.after / self.before
    }

    /// Whether it is no slower than measurements differ.
    pub fn is_near(&self) -> bool {
        self.ratio() <= NEAR_BEFORE
    }
}

/// Each row of kvfs that both have in the same sizes.
pub fn changes(before: &Results, after: &Results) -> Vec<Change> {
    let change = |row: &WorkloadInfo| {
        let seconds = |results: &Results| Some(results.seconds(&row.key, "kvfs")?.median);
        Some(Change { workload: row.key.clone(), before: seconds(before)?, after: seconds(after)? })
    };
    after.rows().filter(|row| before.workloads.contains(row)).filter_map(change).collect()
}

/// A goal that could be judged.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Key of the row.
    pub workload: String,
    /// Which of ours: `kvfs`, `kvfs aged`, `library`, `exec` or `exec client`.
    pub ours: &'static str,
    /// Whom it was compared with.
    pub other: &'static str,
    /// `best of ...`, or the other's name.
    pub against: String,
    /// Least ratio that is asked for.
    pub factor: f64,
    /// The other's time divided by ours, median of the runs.
    pub ratio: f64,
}

impl Verdict {
    /// Whether the goal is reached.
    pub fn is_reached(&self) -> bool {
        self.ratio >= self.factor
    }

    /// For people.
    pub fn text(&self) -> String {
        if self.is_reached() {
            return "reached".into();
        }
        let missing = (1.0 - self.ratio / self.factor) * 100.0;
        format!("FALLS SHORT by {missing:.0} %: {:.2} x the time allowed", self.factor / self.ratio)
    }
}

/// Judges every goal whose rows were measured: the table on fresh stores, then aged stores against fresh
/// ones, then how a directory that grows slows down.
pub fn judge(results: &Results) -> Vec<Verdict> {
    let fresh = GOALS.iter().filter_map(|goal| {
        let (other, against) = match goal.against {
            Against::One(other) => (other, other.to_owned()),
            Against::BestOf(among) => {
                (results.best(goal.workload, among)?, format!("best of {}", among.join(", ")))
            }
        };
        judge_one(results, goal.workload, goal.ours, (other, against), goal.factor)
    });
    let aged = results.rows().filter_map(|row| {
        judge_one(results, &row.key, "kvfs aged", ("kvfs", "kvfs, fresh".into()), NEAR_FRESH)
    });
    fresh.chain(aged).chain(judge_twins(results)).chain(judge_limits(results)).collect()
}

/// Rows of one file system that are the same work at another time, and what the first row's time is to be in
/// times of the second's.
const TWINS: &[(&str, &str, &str, f64)] = &[
    ("library", "large-create-first", "large-create-last", STEADY),
    ("kvfs", "tiers-p99-read", "tiers-p99-read-moving", NEAR_STILL),
    ("kvfs", "tiers-p99-sync", "tiers-p99-sync-moving", NEAR_STILL),
];

fn judge_twins(results: &Results) -> impl Iterator<Item = Verdict> {
    TWINS.iter().filter_map(|&(ours, first, second, factor)| {
        let ratio = results.seconds(first, ours)?.median / results.seconds(second, ours)?.median;
        let (against, workload) = (format!("{first} of itself"), second.to_owned());
        Some(Verdict { workload, ours, other: ours, against, factor, ratio })
    })
}

fn judge_limits(results: &Results) -> impl Iterator<Item = Verdict> {
    let seconds = SECONDS_MAX.iter().filter_map(|&(workload, limit)| {
        Some((workload, results.seconds(workload, "kvfs")?.median, limit, format!("{limit} s")))
    });
    let requests = REQUESTS_MAX.iter().filter_map(|&(workload, detail, limit)| {
        Some((workload, results.detail(workload, "kvfs", detail)?, limit, format!("{limit} {detail}")))
    });
    seconds.chain(requests).map(|(workload, value, limit, against)| {
        let (workload, ratio) = (workload.to_owned(), limit / value.max(1.0));
        Verdict { workload, ours: "kvfs", other: "the limit", against, factor: 1.0, ratio }
    })
}

fn judge_one(
    results: &Results,
    workload: &str,
    ours: &'static str,
    (other, against): (&'static str, String),
    factor: f64,
) -> Option<Verdict> {
    let ratio = results.ratios(workload, other, ours)?.median;
    Some(Verdict { workload: workload.to_owned(), ours, other, against, factor, ratio })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Usage;
    use crate::results::{Class, Detail, Sample, WorkloadInfo};
    use crate::units::Unit;
    use crate::values::{Part, Value};

    fn results(times: &[(&str, &str, f64)]) -> Results {
        let mut results = Results::default();
        for &(workload, target, seconds) in times {
            let info = WorkloadInfo {
                key: workload.into(),
                title: workload.into(),
                group: "g".into(),
                class: Class::NoSync,
            };
            results.describe_workload(info).expect("the same");
            let (workload, target) = (workload.into(), target.into());
            results.add(Sample {
                workload,
                target,
                run: 0,
                seconds,
                usage: Usage::default(),
                details: Vec::new(),
            });
        }
        results
    }

    #[test]
    fn the_best_rival_is_what_counts() {
        let times = [("grep-cold", "ext4", 4.0), ("grep-cold", "xfs", 3.0), ("grep-cold", "kvfs", 2.0)];
        let verdicts = judge(&results(&times));
        assert_eq!(verdicts.len(), 1);
        assert_eq!(verdicts[0].other, "xfs");
        assert!(!verdicts[0].is_reached(), "1.5 of 2.1");
        assert_eq!(verdicts[0].text(), "FALLS SHORT by 29 %: 1.40 x the time allowed");
    }

    #[test]
    fn near_the_floor_is_enough_where_that_is_asked() {
        let verdicts = judge(&results(&[("untar", "floor", 1.0), ("untar", "kvfs", 1.29)]));
        assert!(verdicts[0].is_reached());
        let verdicts = judge(&results(&[("untar", "floor", 1.0), ("untar", "kvfs", 1.31)]));
        assert!(!verdicts[0].is_reached());
    }

    #[test]
    fn the_library_has_goals_of_its_own_and_is_measured_by_its_beginning() {
        let times =
            [("lib-create", "ext4", 3.1), ("lib-create", "library", 1.0), ("lib-create", "kvfs", 9.0)];
        let verdicts = judge(&results(&times));
        assert!(verdicts.len() == 1 && verdicts[0].is_reached() && verdicts[0].ours == "library");
        let times = [("large-create-first", "library", 1.0), ("large-create-last", "library", 1.2)];
        let verdicts = judge(&results(&times));
        assert!(verdicts.len() == 1 && !verdicts[0].is_reached());
    }

    #[test]
    fn a_store_on_two_tiers_is_measured_by_its_parts_and_by_itself() {
        let times = [
            ("tiers-mix", "kvfs", 1.0),
            ("tiers-mix", "all fast", 0.95),
            ("tiers-mix", "all slow", 2.9),
            ("tiers-p99-read", "kvfs", 1.0),
            ("tiers-p99-read-moving", "kvfs", 1.3),
            ("tiers-moved", "kvfs", 299.0),
        ];
        let verdicts = judge(&results(&times));
        let reached: Vec<_> = verdicts.iter().map(Verdict::is_reached).collect();
        assert_eq!(reached, [true, false, false, true]);
    }

    #[test]
    fn requests_have_limits_as_seconds_have() {
        let mut results =
            results(&[("beyond-create-1ms", "kvfs", 9.0), ("beyond-take-over-1ms", "kvfs", 11.0)]);
        let detail = |value| vec![Detail { name: PUT_PER_1000.into(), unit: Unit::Count, value }];
        results.samples[0].details = detail(20.0);
        let reached = |results: &Results| judge(results).iter().map(Verdict::is_reached).collect::<Vec<_>>();
        assert_eq!(reached(&results), [false, true]);
        results.samples[0].details = detail(21.0);
        assert_eq!(reached(&results), [false, false]);
    }

    #[test]
    fn aged_rows_are_judged_against_their_fresh_twins() {
        let times = [("append-fsync", "kvfs", 1.0), ("append-fsync", "kvfs aged", 1.29)];
        let verdicts = judge(&results(&times));
        assert!(verdicts.len() == 1 && verdicts[0].is_reached());
        let times = [("append-fsync", "kvfs", 1.0), ("append-fsync", "kvfs aged", 1.31)];
        assert!(!judge(&results(&times))[0].is_reached());
    }

    #[test]
    fn values_have_limits_and_some_may_not_fall() {
        let bound = bound_of("full.unlink-max", None).expect("a goal");
        assert!(bound.is_met(0.2) && !bound.is_met(0.21));
        assert_eq!(bound.text(0.3, |limit| format!("{limit} s")), "<= 0.2 s: MISSED");
        assert_eq!(bound_of("overwrite.throughput", None), None);
        let mut before = Values::default();
        for (run, value) in [(0, 90.0), (1, 105.0), (2, 200.0)] {
            before.add(Part {
                name: "overwrite".into(),
                run,
                values: vec![Value { key: "overwrite.throughput".into(), value }],
                ..Part::default()
            });
        }
        let bound = bound_of("overwrite.throughput", Some(&before)).expect("measured before");
        assert!(bound.is_met(101.0) && !bound.is_met(99.0), "{bound:?}");
        assert_eq!(bound_of("overwrite.fsync-max", Some(&before)), None);
    }

    #[test]
    fn rows_before_and_after_a_change_are_compared_by_their_medians() {
        let mut before =
            results(&[("create", "kvfs", 1.0), ("untar", "kvfs", 2.0), ("rm-cold", "kvfs", 1.0)]);
        let after = results(&[("create", "kvfs", 1.04), ("untar", "kvfs", 2.2)]);
        let found = changes(&before, &after);
        let near: Vec<_> = found.iter().map(|row| (row.workload.as_str(), row.is_near())).collect();
        assert_eq!(near, [("create", true), ("untar", false)]);
        before.workloads[0].title = "create of other sizes".into();
        assert_eq!(changes(&before, &after).len(), 1);
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        assert!(judge(&results(&[("create", "kvfs", 1.0)])).is_empty());
    }
}
