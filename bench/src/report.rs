//! Turns times into a table for people and JSON for programs.
//!
//! Thread safety: pure functions of their arguments.

use crate::measure::{Failure, Times};
use crate::memory::MemoryPeak;
use crate::target::Target;
use crate::workload::{DurabilityClass, Goal, SCENARIOS, Sizes, Workload};
use kvfs_bench::host::Machine;
use kvfs_bench::summary::Summary;
use serde::Serialize;
use std::fmt::Write;

/// How far the resident set of the kvfs daemon may pass its `--memory` (bytes).
const MEMORY_SLACK_BYTES: u64 = 64 << 20;

/// Everything that one invocation has found out.
#[derive(Serialize)]
pub(crate) struct Report {
    machine: Machine,
    sizes: Sizes,
    runs: u32,
    targets: Vec<TargetReport>,
    workloads: Vec<WorkloadReport>,
    failures: Vec<Failure>,
}

#[derive(Serialize)]
struct TargetReport {
    name: &'static str,
    durability: &'static str,
    memory_peak: Option<MemoryPeak>,
    memory_limit_bytes: Option<u64>,
    is_within_memory_limit: Option<bool>,
}

#[derive(Serialize)]
struct WorkloadReport {
    workload: Workload,
    title: String,
    class: DurabilityClass,
    seconds: Vec<TargetTimes>,
    kvfs_to_ext4: Option<Summary>,
    kvfs_to_floor: Option<Summary>,
    goal: Option<GoalReport>,
}

#[derive(Serialize)]
struct TargetTimes {
    target: &'static str,
    summary: Option<Summary>,
}

#[derive(Serialize)]
struct GoalReport {
    text: String,
    is_met: bool,
}

impl Report {
    /// Draws the sums. `memory_bytes` is the ceiling that the kvfs daemon was given or has by default.
    pub(crate) fn new(
        machine: Machine,
        sizes: Sizes,
        runs: u32,
        targets: &[Box<dyn Target>],
        memory_bytes: u64,
        times: Times,
    ) -> Self {
        let names: Vec<&'static str> = targets.iter().map(|target| target.name()).collect();
        let mut workloads: Vec<WorkloadReport> = SCENARIOS
            .iter()
            .flat_map(|scenario| scenario.iter())
            .map(|&workload| workload_report(workload, &sizes, &names, &times))
            .filter(|report| report.seconds.iter().any(|times| times.summary.is_some()))
            .collect();
        // Stable: within a class the order of the scenarios stays.
        workloads.sort_by_key(|report| report.class);
        let targets = targets.iter().map(|target| target_report(&**target, memory_bytes)).collect();
        Self { machine, sizes, runs, targets, workloads, failures: times.failures }
    }

    /// Whether every workload succeeded and memory stayed within its limit.
    pub(crate) fn is_sound(&self) -> bool {
        self.failures.is_empty()
            && self.targets.iter().all(|target| target.is_within_memory_limit != Some(false))
    }

    /// The table.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{}\n{} runs, interleaved; seconds: median [min-max]; ratios: median of the runs' own\n\n",
            self.machine.line(),
            self.runs
        );
        let cell_width = 25;
        // Writing to a string cannot fail.
        let _ = write!(text, "{:13}{:28}", "durability", "workload");
        for target in &self.targets {
            let _ = write!(text, "{:cell_width$}", target.name);
        }
        let _ = writeln!(text, "{:cell_width$}{:cell_width$}goal", "kvfs/ext4", "kvfs/floor");
        for report in &self.workloads {
            let _ = write!(text, "{:13}{:28}", report.class.title(), report.title);
            for times in &report.seconds {
                let _ = write!(text, "{:cell_width$}", cell(times.summary.as_ref(), 3));
            }
            for ratio in [&report.kvfs_to_ext4, &report.kvfs_to_floor] {
                let _ = write!(text, "{:cell_width$}", cell(ratio.as_ref(), 2));
            }
            let goal = report.goal.as_ref().map_or(String::new(), |goal| {
                format!("{}: {}", goal.text, if goal.is_met { "met" } else { "MISSED" })
            });
            let _ = writeln!(text, "{goal}");
        }
        text.push('\n');
        for target in &self.targets {
            let _ = writeln!(text, "{:6} {}{}", target.name, target.durability, memory_text(target));
        }
        for failure in &self.failures {
            let Failure { target, workload, run, error } = failure;
            let _ = writeln!(text, "FAILED run {run}: {target}: {}: {error}", workload.title(&self.sizes));
        }
        text
    }
}

fn cell(summary: Option<&Summary>, digits: usize) -> String {
    match summary {
        Some(Summary { median, min, max, .. }) => {
            format!("{median:.digits$} [{min:.digits$}-{max:.digits$}]")
        }
        None => "-".into(),
    }
}

fn memory_text(target: &TargetReport) -> String {
    let Some(peak) = target.memory_peak else { return String::new() };
    let mib = |bytes: u64| bytes >> 20;
    let mut text = format!(
        "; peak resident {} MiB, anonymous {} MiB",
        mib(peak.resident_bytes_max),
        mib(peak.anonymous_bytes_max)
    );
    if let (Some(limit), Some(is_within)) = (target.memory_limit_bytes, target.is_within_memory_limit) {
        let verdict = if is_within { "met" } else { "MISSED" };
        // Writing to a string cannot fail.
        let _ = write!(text, "; limit --memory + 64 MiB = {} MiB: {verdict}", mib(limit));
    }
    text
}

fn target_report(target: &dyn Target, memory_bytes: u64) -> TargetReport {
    let memory_peak = target.memory_peak();
    let is_limited = target.name() == "kvfs";
    let memory_limit_bytes = is_limited.then_some(memory_bytes + MEMORY_SLACK_BYTES);
    let is_within_memory_limit =
        memory_limit_bytes.zip(memory_peak).map(|(limit, peak)| peak.resident_bytes_max <= limit);
    let (name, durability) = (target.name(), target.durability());
    TargetReport { name, durability, memory_peak, memory_limit_bytes, is_within_memory_limit }
}

fn workload_report(
    workload: Workload,
    sizes: &Sizes,
    names: &[&'static str],
    times: &Times,
) -> WorkloadReport {
    let median = |target| Some(Summary::of(times.of(workload, target))?.median);
    let kvfs_to_ext4 = Summary::of(times.ratios(workload, "kvfs", "ext4"));
    let kvfs_to_floor = Summary::of(times.ratios(workload, "kvfs", "floor"));
    let goal = match workload.goal() {
        Goal::FasterThanExt4(factor) => kvfs_to_ext4.as_ref().map(|ratio| GoalReport {
            text: format!("{factor} x faster than ext4"),
            is_met: ratio.median <= 1.0 / factor,
        }),
        Goal::NearFloor(factor) => match (median("floor"), median("ext4"), &kvfs_to_floor) {
            (Some(floor), Some(ext4), Some(ratio)) if floor > ext4 => {
                Some(GoalReport { text: format!("<= {factor} x floor"), is_met: ratio.median <= factor })
            }
            _ => None,
        },
    };
    let seconds = names
        .iter()
        .map(|&target| TargetTimes { target, summary: Summary::of(times.of(workload, target)) })
        .collect();
    let title = workload.title(sizes);
    WorkloadReport { workload, title, class: workload.class(), seconds, kvfs_to_ext4, kvfs_to_floor, goal }
}
