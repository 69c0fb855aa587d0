//! How fast kvfs is to be, as a table, and how far it is from it.
//!
//! Thread safety: constants and pure functions.

use crate::results::Results;

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
    workload: &'static str,
    against: Against,
    factor: f64,
}

const KERNEL: &[&str] = &["ext4", "xfs", "btrfs"];
const ENGINES: &[&str] = &["rocksdb", "fjall", "surrealkv"];
/// At most 1.3 times the floor's time.
const NEAR_FLOOR: f64 = 1.0 / 1.3;
/// An aged store may take 1.5 times as long as a fresh one.
const NEAR_FRESH: f64 = 1.0 / 1.5;

const fn goal(workload: &'static str, against: Against, factor: f64) -> Goal {
    Goal { workload, against, factor }
}

const GOALS: &[Goal] = &[
    goal("create", Against::One("floor"), NEAR_FLOOR),
    goal("untar", Against::One("floor"), NEAR_FLOOR),
    goal("chmod-cold", Against::One("floor"), NEAR_FLOOR),
    goal("rm-warm", Against::One("floor"), NEAR_FLOOR),
    goal("list-stat-cold", Against::BestOf(KERNEL), 1.7),
    goal("small-read-cold", Against::BestOf(KERNEL), 1.5),
    goal("grep-cold", Against::BestOf(KERNEL), 1.7),
    goal("rm-cold", Against::One("xfs"), 1.4),
    goal("rm-cold", Against::One("btrfs"), 1.4),
    goal("append-fsync", Against::One("ext4"), 2.0),
    goal("append-fsync", Against::One("xfs"), 1.3),
    goal("overwrite-4b", Against::BestOf(KERNEL), 2.0),
    goal("stream-write", Against::One("ext4"), 0.7),
    goal("stream-read-cold", Against::One("ext4"), 0.65),
    goal("random-read-qd1", Against::One("ext4"), 0.8),
    goal("million-stat-cold", Against::BestOf(KERNEL), 1.5),
    goal("million-chmod-cold", Against::BestOf(KERNEL), 1.5),
    goal("engine-fill-seq", Against::BestOf(ENGINES), 1.0),
    goal("engine-fill-random", Against::BestOf(ENGINES), 1.0),
    goal("engine-blocks-seq", Against::BestOf(ENGINES), 2.0),
    goal("engine-blocks-random", Against::BestOf(ENGINES), 1.0),
    goal("engine-point-read", Against::BestOf(ENGINES), 0.8),
    goal("engine-scan", Against::BestOf(ENGINES), 0.8),
];

/// A goal that could be judged.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// Key of the row.
    pub workload: String,
    /// Which of ours: `kvfs` or `kvfs aged`.
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

/// Judges every goal whose rows were measured: the table on fresh stores, then aged stores against fresh ones.
pub fn judge(results: &Results) -> Vec<Verdict> {
    let fresh = GOALS.iter().filter_map(|goal| {
        let (other, against) = match goal.against {
            Against::One(other) => (other, other.to_owned()),
            Against::BestOf(among) => {
                (results.best(goal.workload, among)?, format!("best of {}", among.join(", ")))
            }
        };
        judge_one(results, goal.workload, "kvfs", (other, against), goal.factor)
    });
    let aged = results.rows().filter_map(|row| {
        judge_one(results, &row.key, "kvfs aged", ("kvfs", "kvfs, fresh".into()), NEAR_FRESH)
    });
    fresh.chain(aged).collect()
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
    use crate::results::Sample;

    fn results(times: &[(&str, &str, f64)]) -> Results {
        let mut results = Results::default();
        for &(workload, target, seconds) in times {
            let (workload, target) = (workload.into(), target.into());
            results.add(Sample { workload, target, run: 0, seconds, usage: Usage::default() });
        }
        results
    }

    #[test]
    fn the_best_rival_is_what_counts() {
        let times = [("grep-cold", "ext4", 4.0), ("grep-cold", "xfs", 3.0), ("grep-cold", "kvfs", 2.0)];
        let verdicts = judge(&results(&times));
        assert_eq!(verdicts.len(), 1);
        assert_eq!(verdicts[0].other, "xfs");
        assert!(!verdicts[0].is_reached(), "1.5 of 1.7");
        assert_eq!(verdicts[0].text(), "FALLS SHORT by 12 %: 1.13 x the time allowed");
    }

    #[test]
    fn near_the_floor_is_enough_where_that_is_asked() {
        let verdicts = judge(&results(&[("create", "floor", 1.0), ("create", "kvfs", 1.29)]));
        assert!(verdicts[0].is_reached());
        let verdicts = judge(&results(&[("create", "floor", 1.0), ("create", "kvfs", 1.31)]));
        assert!(!verdicts[0].is_reached());
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        assert!(judge(&results(&[("create", "kvfs", 1.0)])).is_empty());
    }
}
