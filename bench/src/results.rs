//! Everything that was measured, as it stands in the JSON file. The reports are made from this alone.
//!
//! Thread safety: plain values.
//!
//! Invariants: at most one sample for each workload, target and run; every sample's workload and target is
//! described.

use crate::counters::Usage;
use crate::host::Machine;
use crate::json;
use crate::summary::Summary;
use crate::units::Unit;
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// When the work of a workload is durable; results of different classes are never compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// No sync: the file system decides.
    NoSync,
    /// One fsync at the end.
    SyncAtEnd,
    /// An fsync after each operation.
    SyncEach,
    /// Reads, or changes without a sync, after unmounting and dropping caches.
    Cold,
    /// Reads of what was read just before.
    Warm,
}

impl Class {
    /// For the table.
    pub fn title(self) -> &'static str {
        match self {
            Self::NoSync => "no sync",
            Self::SyncAtEnd => "fsync at end",
            Self::SyncEach => "fsync each",
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadInfo {
    /// Its name in options and goals.
    pub key: String,
    /// For people, with its sizes.
    pub title: String,
    /// What it is measured together with; a figure shows one group.
    pub group: String,
    /// What its times mean.
    pub class: Class,
}

impl WorkloadInfo {
    /// For lists that do not show the class beside: `grep -r, cold`.
    pub fn full_title(&self) -> String {
        format!("{}, {}", self.title, self.class.title())
    }
}

/// A column.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Its name in options and goals.
    pub name: String,
    /// Version, options, and what survives a power cut, in a few words.
    pub about: String,
    /// The most that its daemon took (bytes, resident).
    pub resident_bytes_max: Option<u64>,
    /// Of it the anonymous part.
    pub anonymous_bytes_max: Option<u64>,
    /// What it was allowed to take.
    pub memory_limit_bytes: Option<u64>,
}

impl TargetInfo {
    /// Whether it stayed within the limit; `None` without one, or when nothing was seen.
    pub fn is_within_limit(&self) -> Option<bool> {
        Some(self.resident_bytes_max? <= self.memory_limit_bytes?)
    }
}

/// One timing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Key of the workload.
    pub workload: String,
    /// Name of the target.
    pub target: String,
    /// Counted from 0.
    pub run: u32,
    /// How long it took.
    pub seconds: f64,
    /// And what it used.
    pub usage: Usage,
    /// What else was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Detail>,
}

/// Something that was measured beside the time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detail {
    /// For people.
    pub name: String,
    /// Of the value.
    pub unit: Unit,
    /// Its value.
    pub value: f64,
}

/// A workload that went wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Key of the workload.
    pub workload: String,
    /// Name of the target.
    pub target: String,
    /// Counted from 0.
    pub run: u32,
    /// Why.
    pub error: String,
}

/// The file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Results {
    /// One for each invocation that added something.
    pub machines: Vec<Machine>,
    /// Rows, in the order of the tables.
    pub workloads: Vec<WorkloadInfo>,
    /// Columns, in the order of the tables.
    pub targets: Vec<TargetInfo>,
    /// All timings.
    pub samples: Vec<Sample>,
    /// What went wrong and was not repeated with success.
    pub failures: Vec<Failure>,
    #[serde(skip)]
    path: Option<PathBuf>,
}

impl Results {
    /// Results that are saved in `path`; with `is_resumed` those that are there are kept.
    pub fn open(path: Option<&Path>, is_resumed: bool) -> Result<Self> {
        let mut results = match path {
            Some(path) if is_resumed && path.exists() => Self::load(path)?,
            _ => Self::default(),
        };
        results.path = path.map(Path::to_owned);
        Ok(results)
    }

    /// What an earlier invocation has saved.
    pub fn load(path: &Path) -> Result<Self> {
        json::load(path)
    }

    /// Writes the file, if there is one to write: whole or not at all.
    pub fn save(&self) -> Result<()> {
        self.path.as_ref().map_or(Ok(()), |path| json::save(path, self))
    }

    /// Adds a row, or finds it.
    ///
    /// # Errors
    /// When it is there with other sizes.
    pub fn describe_workload(&mut self, info: WorkloadInfo) -> Result<()> {
        match self.workloads.iter().find(|known| known.key == info.key) {
            Some(known) if *known != info => {
                bail!("the results hold {:?}, this would be {:?}: take another file", known.title, info.title)
            }
            Some(_) => {}
            None => self.workloads.push(info),
        }
        Ok(())
    }

    /// Adds a column or renews its description; the greater of both peaks stays.
    pub fn describe_target(&mut self, info: TargetInfo) {
        match self.targets.iter_mut().find(|known| known.name == info.name) {
            Some(known) => {
                *known = TargetInfo {
                    resident_bytes_max: known.resident_bytes_max.max(info.resident_bytes_max),
                    anonymous_bytes_max: known.anonymous_bytes_max.max(info.anonymous_bytes_max),
                    memory_limit_bytes: info.memory_limit_bytes.max(known.memory_limit_bytes),
                    ..info
                };
            }
            None => self.targets.push(info),
        }
    }

    /// Whether this was measured.
    pub fn holds(&self, workload: &str, target: &str, run: u32) -> bool {
        self.samples.iter().any(|it| it.workload == workload && it.target == target && it.run == run)
    }

    /// Adds a timing; one of the same run is replaced, and a failure of it forgotten.
    pub fn add(&mut self, sample: Sample) {
        let (workload, target, run) = (&sample.workload, &sample.target, sample.run);
        self.samples.retain(|it| it.workload != *workload || it.target != *target || it.run != run);
        self.failures.retain(|it| it.workload != *workload || it.target != *target || it.run != run);
        self.samples.push(sample);
    }

    /// Notes a failure.
    pub fn add_failure(&mut self, failure: Failure) {
        let Failure { workload, target, run, .. } = &failure;
        self.failures.retain(|it| it.workload != *workload || it.target != *target || it.run != *run);
        self.failures.push(failure);
    }

    /// All timings of a cell.
    pub fn of<'a>(&'a self, workload: &'a str, target: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |it| it.workload == workload && it.target == target)
    }

    /// Seconds of a cell.
    pub fn seconds(&self, workload: &str, target: &str) -> Option<Summary> {
        Summary::of(self.of(workload, target).map(|sample| sample.seconds).collect())
    }

    /// `numerator / denominator`, formed for every run in which both succeeded.
    pub fn ratios(&self, workload: &str, numerator: &str, denominator: &str) -> Option<Summary> {
        let ratio = |sample: &Sample| {
            let other = self.of(workload, denominator).find(|other| other.run == sample.run)?;
            Some(sample.seconds / other.seconds)
        };
        Summary::of(self.of(workload, numerator).filter_map(ratio).collect())
    }

    /// Median of something that samples of a cell have.
    pub fn median(
        &self,
        workload: &str,
        target: &str,
        value: impl Fn(&Sample) -> Option<f64>,
    ) -> Option<f64> {
        Some(Summary::of(self.of(workload, target).filter_map(value).collect())?.median)
    }

    /// What else was measured in a row: names and units, in the order of the first that has them.
    pub fn details(&self, workload: &str) -> Vec<(&str, Unit)> {
        let mut found: Vec<(&str, Unit)> = Vec::new();
        for detail in self.samples.iter().filter(|it| it.workload == workload).flat_map(|it| &it.details) {
            if !found.iter().any(|(name, _)| *name == detail.name) {
                found.push((&detail.name, detail.unit));
            }
        }
        found
    }

    /// Median of something that was measured beside the time.
    pub fn detail(&self, workload: &str, target: &str, name: &str) -> Option<f64> {
        self.median(workload, target, |sample| {
            sample.details.iter().find(|detail| detail.name == name).map(|detail| detail.value)
        })
    }

    /// The target with the least median among these.
    pub fn best<'a>(&self, workload: &str, among: &[&'a str]) -> Option<&'a str> {
        among
            .iter()
            .filter_map(|&target| Some((target, self.seconds(workload, target)?.median)))
            .min_by(|(_, left), (_, right)| left.total_cmp(right))
            .map(|(target, _)| target)
    }

    /// Rows that hold something.
    pub fn rows(&self) -> impl Iterator<Item = &WorkloadInfo> {
        self.workloads.iter().filter(|info| self.samples.iter().any(|sample| sample.workload == info.key))
    }

    /// Whether every workload succeeded and memory stayed within its limits.
    pub fn is_sound(&self) -> bool {
        self.failures.is_empty() && self.targets.iter().all(|target| target.is_within_limit() != Some(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(target: &str, run: u32, seconds: f64) -> Sample {
        Sample {
            workload: "w".into(),
            target: target.into(),
            run,
            seconds,
            usage: Usage::default(),
            details: Vec::new(),
        }
    }

    #[test]
    fn a_repeated_run_replaces_its_timing_and_its_failure() {
        let mut results = Results::default();
        results.add_failure(Failure {
            workload: "w".into(),
            target: "a".into(),
            run: 0,
            error: "gone".into(),
        });
        results.add(sample("a", 0, 1.0));
        results.add(sample("a", 0, 2.0));
        assert!(results.failures.is_empty());
        let seconds = results.seconds("w", "a").expect("measured");
        assert!((seconds.median - 2.0).abs() < 1e-9 && results.samples.len() == 1);
    }

    #[test]
    fn ratios_are_formed_run_by_run() {
        let mut results = Results::default();
        for (target, run, seconds) in
            [("a", 0, 4.0), ("a", 1, 9.0), ("b", 0, 2.0), ("b", 1, 3.0), ("b", 2, 1.0)]
        {
            results.add(sample(target, run, seconds));
        }
        let ratios = results.ratios("w", "a", "b").expect("both measured");
        assert!((ratios.min - 2.0).abs() < 1e-9 && (ratios.max - 3.0).abs() < 1e-9);
        assert_eq!(results.best("w", &["a", "b", "c"]), Some("b"));
    }

    #[test]
    fn other_sizes_do_not_mix() {
        let info = |title: &str| WorkloadInfo {
            key: "w".into(),
            title: title.into(),
            group: "g".into(),
            class: Class::NoSync,
        };
        let mut results = Results::default();
        results.describe_workload(info("10 files")).expect("new");
        results.describe_workload(info("10 files")).expect("the same");
        assert!(results.describe_workload(info("20 files")).is_err());
    }
}
