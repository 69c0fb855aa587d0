//! Measures databases on kvfs beside ext4 and XFS on the same device, kills them, and checks what is there
//! afterwards.
//!
//! Everything it mounts, attaches and starts is undone at the end, after an error and on Ctrl-C as well.

mod args;
mod kill;
mod mariadb;
mod measure;
mod postgres;
mod row;
mod server;
mod sqlite;
mod stats;
mod target;
mod tpcc;

use anyhow::{Result, bail};
use args::Args;
use clap::Parser;
use kvfs_bench::mount::WorkDir;
use kvfs_bench::results::Results;
use kvfs_bench::{host, interrupt, outcome, slow_disk};
use measure::Plan;
use server::Templates;
use std::fs;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = slow_disk::serve_if_asked() {
        return code;
    }
    outcome::exit_code("kvfs-bench-db", run(&Args::parse()))
}

/// Measures and reports; false when something failed on the way.
fn run(args: &Args) -> Result<bool> {
    if let Some(path) = &args.write_sqlite {
        sqlite::write_forever(path, args.journal_mode)?;
    }
    if let Some(path) = &args.options.report {
        return outcome::show(&Results::load(path)?, args.before.as_deref(), args.options.plots.as_deref());
    }
    host::check_rights()?;
    interrupt::install()?;
    let mut results = Results::open(args.options.json.as_deref(), args.options.resume)?;
    results.machines.push(host::Machine::describe()?);
    fs::create_dir_all(&args.options.work)?;
    let work = WorkDir::new(&args.options.work, "db")?;
    let sizes = args.sizes();
    let mut rows = row::rows(&sizes);
    rows.retain(|row| args.wants(row.part) && !row.job.lacks_server());
    let mut targets = args.targets(work.path())?;
    if targets.is_empty() || rows.is_empty() {
        bail!("there is nothing to measure");
    }
    let templates = Templates::new(args.options.work.canonicalize()?.join("db-templates"), args.keep)?;
    let (run_dir, runs, slow_runs) = (work.path(), args.options.runs, args.slow_runs);
    let plan = Plan { rows: &rows, sizes: &sizes, runs, slow_runs, run_dir, templates: &templates };
    let measured = measure::measure(&plan, &mut targets, &mut results);
    drop(targets);
    results.save()?;
    let is_sound = outcome::show(&results, args.before.as_deref(), args.options.plots.as_deref())?;
    measured?;
    Ok(is_sound)
}
