//! Does the rows on the targets, interleaved, and keeps what they measure.
//!
//! Thread safety: belongs to one thread.
//!
//! Invariants: within one run every target does the same row directly after the others, in an order that
//! rotates from run to run. Results are saved after each.

use crate::kill;
use crate::mariadb::{self, Scale};
use crate::postgres;
use crate::row::{Job, Measured, Row, Setup, Sizes};
use crate::server::Templates;
use crate::sqlite;
use crate::target::Target;
use anyhow::{Context, Result};
use kvfs_bench::cgroup::MemoryCgroup;
use kvfs_bench::results::{Failure, Results, Sample};
use kvfs_bench::{host, interrupt};
use std::path::Path;

/// What is to be done.
pub(crate) struct Plan<'a> {
    pub(crate) rows: &'a [Row],
    pub(crate) sizes: &'a Sizes,
    pub(crate) runs: u32,
    /// On targets with a slow device.
    pub(crate) slow_runs: u32,
    pub(crate) run_dir: &'a Path,
    pub(crate) templates: &'a Templates,
}

/// Does everything that `results` do not hold yet. A failure of one target does not stop the others.
///
/// # Errors
/// An interruption, or results of other sizes; `results` keep what was measured before.
pub(crate) fn measure(plan: &Plan, targets: &mut [Target], results: &mut Results) -> Result<()> {
    for row in plan.rows {
        results.describe_workload(row.info.clone())?;
    }
    for target in &*targets {
        results.describe_target(target.describe()?);
    }
    for run in 0..plan.runs {
        let setup = Setup { run_dir: plan.run_dir, templates: plan.templates, sizes: plan.sizes, run };
        for row in plan.rows {
            for turn in 0..targets.len() {
                let index = (turn + run as usize) % targets.len();
                if targets[index].is_slow() && run >= plan.slow_runs {
                    continue;
                }
                one_turn(&mut targets[index], row, &setup, results)?;
            }
        }
    }
    Ok(())
}

fn one_turn(target: &mut Target, row: &Row, setup: &Setup, results: &mut Results) -> Result<()> {
    interrupt::check()?;
    let (workload, name, run) = (&row.info.key, target.name(), setup.run);
    if !row.job.fits(target) || results.holds(workload, name, run) {
        return Ok(());
    }
    let measured = do_row(target, row.job, setup);
    interrupt::check()?;
    let (workload, name) = (workload.clone(), name.to_owned());
    match measured {
        Ok(Measured { seconds, usage, details }) => {
            eprintln!("run {run}: {name:12} {:40} {seconds:9.3} s", row.info.title);
            results.add(Sample { workload, target: name, run, seconds, usage, details });
        }
        Err(error) => {
            let error = format!("{error:#}");
            eprintln!("run {run}: {name}: {workload} FAILED: {error}");
            results.add_failure(Failure { workload, target: name, run, error });
            // The next one begins with a new file system.
            let _ = target.unmount();
        }
    }
    results.describe_target(target.describe()?);
    results.save()
}

fn do_row(target: &mut Target, job: Job, setup: &Setup) -> Result<Measured> {
    // What a daemon takes is in the cgroup from its start on.
    let cgroup = match job {
        Job::Tpcc(scale) => Some((MemoryCgroup::new(scale.memory_bytes)?, scale)),
        _ => None,
    };
    let measured = do_mounted(target, job, cgroup.as_ref(), setup);
    // Before the cgroup goes, which must be empty then.
    let unmounted = target.unmount();
    let measured = measured?;
    unmounted?;
    Ok(measured)
}

/// Mounts and measures.
fn do_mounted(
    target: &mut Target,
    job: Job,
    cgroup: Option<&(MemoryCgroup, Scale)>,
    setup: &Setup,
) -> Result<Measured> {
    if let Some((cgroup, scale)) = cgroup {
        cgroup.enter()?;
        let mounted = target.mount_fresh(Some(scale.daemon_bytes()));
        cgroup.leave()?;
        mounted?;
    } else {
        target.mount_fresh(None)?;
    }
    host::drop_caches()?;
    host::touch_free_memory()?;
    match job {
        Job::Sqlite(mode) => sqlite::measure(target, mode, setup),
        Job::Pgbench => postgres::measure(target, setup),
        Job::Tpcc(scale) => {
            let (cgroup, _) = cgroup.context("TPC-C has a cgroup")?;
            mariadb::measure(target, scale, cgroup, setup)
        }
        Job::Kill(database, victim) => kill::measure(target, database, victim, setup),
    }
}
