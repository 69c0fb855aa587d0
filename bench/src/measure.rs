//! Runs the scenarios on the targets, interleaved, and keeps every time.
//!
//! Thread safety: belongs to one thread.
//!
//! Invariants: within one run every target does the same scenario directly after the others, in an
//! order that rotates from run to run, so that drift of the machine meets all of them alike.

use crate::target::Target;
use crate::workload::{DurabilityClass, SCENARIOS, Sizes, Workload};
use crate::{host, interrupt};
use anyhow::Result;
use serde::Serialize;
use std::collections::HashMap;
use std::time::Instant;

/// Every time that was taken.
#[derive(Default)]
pub(crate) struct Times {
    /// Seconds by run; a run that failed has none.
    seconds: HashMap<(Workload, &'static str), Vec<Option<f64>>>,
    pub(crate) failures: Vec<Failure>,
}

/// A workload that went wrong.
#[derive(Serialize)]
pub(crate) struct Failure {
    pub(crate) target: &'static str,
    pub(crate) workload: Workload,
    pub(crate) run: u32,
    pub(crate) error: String,
}

/// A failed workload on its way to the list of failures.
struct Failed {
    workload: Workload,
    error: anyhow::Error,
}

impl Times {
    /// Seconds of all runs that succeeded.
    pub(crate) fn of(&self, workload: Workload, target: &'static str) -> Vec<f64> {
        self.by_run(workload, target).iter().copied().flatten().collect()
    }

    /// `numerator / denominator` of every run in which both succeeded.
    pub(crate) fn ratios(
        &self,
        workload: Workload,
        numerator: &'static str,
        denominator: &'static str,
    ) -> Vec<f64> {
        let pairs = self.by_run(workload, numerator).iter().zip(self.by_run(workload, denominator));
        pairs.filter_map(|(numerator, denominator)| Some((*numerator)? / (*denominator)?)).collect()
    }

    fn by_run(&self, workload: Workload, target: &'static str) -> &[Option<f64>] {
        self.seconds.get(&(workload, target)).map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, workload: Workload, target: &'static str, run: u32, seconds: f64) {
        let by_run = self.seconds.entry((workload, target)).or_default();
        by_run.resize(run as usize, None);
        by_run.push(Some(seconds));
    }
}

/// Runs everything `runs` times. A failure of one target does not stop the others.
///
/// # Errors
/// Only an interruption; `times` keeps what was measured before.
pub(crate) fn measure(
    targets: &mut [Box<dyn Target>],
    wanted: &[Workload],
    sizes: &Sizes,
    runs: u32,
    times: &mut Times,
) -> Result<()> {
    for run in 0..runs {
        for scenario in SCENARIOS {
            if !scenario.iter().any(|workload| wanted.contains(workload)) {
                continue;
            }
            for turn in 0..targets.len() {
                interrupt::check()?;
                let index = (turn + run as usize) % targets.len();
                let target = &mut *targets[index];
                let failed = run_scenario(target, scenario, sizes, run, times).err();
                interrupt::check()?;
                if let Some(Failed { workload, error }) = failed {
                    let (target, error) = (target.name(), format!("{error:#}"));
                    eprintln!("run {run}: {target}: {} FAILED: {error}", workload.title(sizes));
                    times.failures.push(Failure { target, workload, run, error });
                }
            }
        }
    }
    Ok(())
}

fn run_scenario(
    target: &mut dyn Target,
    scenario: &[Workload],
    sizes: &Sizes,
    run: u32,
    times: &mut Times,
) -> Result<(), Failed> {
    let mut current = scenario[0];
    let mut work = || -> Result<()> {
        target.mount_fresh()?;
        std::fs::create_dir(target.dir().join("work"))?;
        for &workload in scenario {
            current = workload;
            settle(target, workload, sizes)?;
            let start = Instant::now();
            workload.run(target.dir(), sizes)?;
            let seconds = start.elapsed().as_secs_f64();
            eprintln!("run {run}: {:6} {:28} {seconds:8.3} s", target.name(), workload.title(sizes));
            times.add(workload, target.name(), run, seconds);
        }
        target.unmount()
    };
    work().map_err(|error| Failed { workload: current, error })
}

/// Brings the machine into the state that the workload is to start from.
fn settle(target: &mut dyn Target, workload: Workload, sizes: &Sizes) -> Result<()> {
    host::sync_file_system(target.dir())?;
    if workload.class() == DurabilityClass::ColdRead {
        target.make_cold()?;
    } else {
        host::drop_caches()?;
    }
    workload.prepare(sizes)?;
    host::touch_free_memory()
}
