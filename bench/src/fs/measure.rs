//! Runs the scenarios on the targets, interleaved, and keeps every time.
//!
//! Thread safety: belongs to one thread.
//!
//! Invariants: within one run every target does the same scenario directly after the others, in an order that
//! rotates from run to run, so that drift of the machine meets all of them alike. Results are saved after
//! every scenario of every target.

use crate::flame::Flames;
use crate::target::Target;
use crate::workload::{Job, SCENARIOS, Scenario, ScenarioName, Sizes, Start, Workload, million};
use anyhow::{Context, Result};
use kvfs_bench::cgroup::MemoryCgroup;
use kvfs_bench::counters::Meter;
use kvfs_bench::results::{Failure, Results, Sample, TargetInfo, WorkloadInfo};
use kvfs_bench::{host, interrupt};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// What is to be done.
pub(crate) struct Plan<'a> {
    pub(crate) scenarios: &'a [ScenarioName],
    pub(crate) sizes: &'a Sizes,
    pub(crate) runs: u32,
    /// Draws where processors spent their time, instead of quoting it.
    pub(crate) flames: Option<&'a Flames>,
}

/// A failed workload on its way to the list of failures.
struct Failed {
    workload: &'static str,
    error: anyhow::Error,
}

/// Runs everything that `results` do not hold yet. A failure of one target does not stop the others.
///
/// # Errors
/// An interruption, or results of other sizes; `results` keep what was measured before.
pub(crate) fn measure(targets: &mut [Box<dyn Target>], plan: &Plan, results: &mut Results) -> Result<()> {
    let scenarios: Vec<&Scenario> =
        SCENARIOS.iter().filter(|scenario| plan.scenarios.contains(&scenario.name)).collect();
    for scenario in &scenarios {
        for workload in scenario.workloads {
            results.describe_workload(WorkloadInfo {
                key: workload.key.into(),
                title: (workload.title)(plan.sizes),
                group: scenario.name.text().into(),
                class: workload.class,
            })?;
        }
    }
    for target in &*targets {
        results.describe_target(describe(&**target));
    }
    for run in 0..plan.runs {
        for scenario in &scenarios {
            for turn in 0..targets.len() {
                let index = (turn + run as usize) % targets.len();
                one_turn(&mut *targets[index], scenario, plan, run, results)?;
            }
        }
    }
    Ok(())
}

fn one_turn(
    target: &mut dyn Target,
    scenario: &Scenario,
    plan: &Plan,
    run: u32,
    results: &mut Results,
) -> Result<()> {
    interrupt::check()?;
    let name = target.name();
    if let Some(reason) = target.unfit_for(scenario.name) {
        if run == 0 {
            eprintln!("{name}: no {}: {reason}", scenario.name.text());
        }
        return Ok(());
    }
    if scenario.workloads.iter().all(|workload| results.holds(workload.key, name, run)) {
        return Ok(());
    }
    let failed = run_scenario(target, scenario, plan, run, results).err();
    interrupt::check()?;
    if let Some(Failed { workload, error }) = failed {
        let error = format!("{error:#}");
        eprintln!("run {run}: {name}: {workload} FAILED: {error}");
        results.add_failure(Failure { target: name.into(), workload: workload.into(), run, error });
        // The next one begins with a new file system; an aged one is left as it is.
        let _ = target.unmount();
    }
    results.describe_target(describe(target));
    results.save()
}

fn describe(target: &dyn Target) -> TargetInfo {
    let peak = target.memory_peak();
    TargetInfo {
        name: target.name().into(),
        about: target.about(),
        resident_bytes_max: peak.map(|peak| peak.resident_bytes_max),
        anonymous_bytes_max: peak.map(|peak| peak.anonymous_bytes_max),
        memory_limit_bytes: target.memory_limit_bytes(),
    }
}

fn run_scenario(
    target: &mut dyn Target,
    scenario: &Scenario,
    plan: &Plan,
    run: u32,
    results: &mut Results,
) -> Result<(), Failed> {
    let mut current = scenario.workloads[0].key;
    let mut work = || -> Result<()> {
        let cgroup = (scenario.name == ScenarioName::Million)
            .then(|| MemoryCgroup::new(million::MEMORY_BYTES))
            .transpose()?;
        if let Some(cgroup) = &cgroup {
            cgroup.enter()?;
        }
        target.set_memory(cgroup.as_ref().map(|_| million::DAEMON_MEMORY_BYTES));
        target.mount_fresh()?;
        let dir = target.dir().join("work");
        fs::create_dir(&dir).context("cannot make the directory of the scenario")?;
        for workload in scenario.workloads {
            current = workload.key;
            let sample = run_workload(target, workload, &dir, run, cgroup.as_ref(), plan)?;
            eprintln!(
                "run {run}: {:10} {:40} {:9.3} s",
                sample.target,
                (workload.title)(plan.sizes),
                sample.seconds
            );
            results.add(sample);
        }
        // An aged file system is used again.
        fs::remove_dir_all(&dir).context("cannot remove the directory of the scenario")?;
        target.unmount()
    };
    let worked = work();
    target.set_memory(None);
    worked.map_err(|error| Failed { workload: current, error })
}

fn run_workload(
    target: &mut dyn Target,
    workload: &Workload,
    dir: &Path,
    run: u32,
    cgroup: Option<&MemoryCgroup>,
    plan: &Plan,
) -> Result<Sample> {
    let sizes = plan.sizes;
    {
        let calls = target.calls(dir)?;
        (workload.prepare)(&Job { dir, calls: &*calls, programs: &target.programs(dir), sizes })?;
    }
    settle(target, workload.start, sizes)?;
    // It has a directory open, so it does not outlast a mount.
    let calls = target.calls(dir)?;
    let programs = target.programs(dir);
    let job = Job { dir, calls: &*calls, programs: &programs, sizes };
    touch_memory(cgroup)?;
    let recording = plan.flames.map(|flames| flames.start(workload.key, target.name())).transpose()?;
    let mut meter = Meter::start(target.probe()?)?;
    let start = Instant::now();
    (workload.run)(&job)?;
    let seconds = start.elapsed().as_secs_f64();
    meter.stop()?;
    if let Some(recording) = recording {
        recording.finish()?;
    }
    target.sync()?;
    let usage = meter.finish()?;
    let (workload, target) = (workload.key.into(), target.name().into());
    Ok(Sample { workload, target, run, seconds, usage, details: Vec::new() })
}

/// Brings the file system and the kernel's caches into the state that the workload is to start from.
fn settle(target: &mut dyn Target, start: Start, sizes: &Sizes) -> Result<()> {
    target.sync()?;
    match start {
        Start::Cold => target.make_cold()?,
        Start::Settled => host::drop_caches()?,
        Start::Warm => {}
    }
    // So that the disk under the tarball is not measured.
    if start == Start::Settled && sizes.tarball.is_file() {
        host::read_through_cache(&sizes.tarball)?;
    }
    Ok(())
}

/// Outside of the cgroup, where it would be more than there is.
fn touch_memory(cgroup: Option<&MemoryCgroup>) -> Result<()> {
    let Some(cgroup) = cgroup else { return host::touch_free_memory() };
    cgroup.leave()?;
    host::touch_free_memory()?;
    cgroup.enter()
}
