//! Measures transactions: the engine as a library, then `kvfs txn run` on a mount.
//!
//! The experiments are those of the KVFS thesis (figures 4.1 to 4.3, 4.6 to 4.8) in sizes for one machine of
//! today, and what its authors left for later: group commit. Everything is made below `--work` and removed at
//! the end.

mod clients;
mod ends;
mod library;
mod plots;
mod project;
mod rig;
mod tree;

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use kvfs_bench::goals::Bound;
use kvfs_bench::mount::WorkDir;
use kvfs_bench::summary::Summary;
use kvfs_bench::{host, interrupt};
use serde::Serialize;

/// What the program has: many threads that write at once meet in the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure transactions in the engine and on a mount.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  kvfs-bench-txn                                   the engine alone, any user
  kvfs-bench-txn --kvfs target/release/kvfs        and a mount; root
  kvfs-bench-txn --quick --runs 1                  to try the harness, not to quote"
)]
struct Args {
    /// The kvfs binary; without it only the library is measured
    #[arg(long, value_name = "PATH")]
    kvfs: Option<PathBuf>,

    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Small sizes
    #[arg(long)]
    quick: bool,

    /// Only what has this in its name
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,

    /// A directory on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/kvfs-bench")]
    work: PathBuf,

    /// Also write the results to this file
    #[arg(long, value_name = "PATH", overrides_with = "json")]
    json: Option<PathBuf>,

    /// Also draw the results beside those of the thesis: a page and SVG files in this directory
    #[arg(long, value_name = "DIR", overrides_with = "plots")]
    plots: Option<PathBuf>,
}

/// One thing that is measured, several times.
#[derive(Serialize)]
struct Row {
    name: String,
    unit: &'static str,
    value: Summary,
    /// The median against that of another row.
    ratio: Option<Ratio>,
}

#[derive(Serialize)]
struct Ratio {
    to: String,
    value: f64,
    goal: Option<Bound>,
}

/// One experiment: what it is called, and how it is done once. Those of a group are done one after the other
/// in each run, so that drift of the machine meets all of them.
pub(crate) struct Experiment {
    /// For the table.
    pub(crate) name: String,
    /// Of the value.
    pub(crate) unit: &'static str,
    /// Another experiment that came before, to compare with, and what the ratio is meant to be.
    pub(crate) against: Option<(String, Option<Bound>)>,
    /// What the value itself is meant to be.
    pub(crate) goal: Option<Bound>,
    /// Does it once.
    pub(crate) measure: Box<dyn FnMut() -> Result<f64>>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvfs-bench-txn: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    interrupt::install()?;
    fs::create_dir_all(&args.work)?;
    let machine = host::Machine::describe()?;
    let work = WorkDir::new(&args.work, "txn")?;
    let mut experiments = library::experiments(work.path(), args.quick);
    if let Some(program) = &args.kvfs {
        host::check_rights()?;
        let program = program.canonicalize().with_context(|| format!("no program {}", program.display()))?;
        experiments.extend(tree::experiments(&program, work.path(), args.quick)?);
    }
    experiments.retain(|experiment| experiment.name.contains(&args.only));
    let mut values = vec![Vec::new(); experiments.len()];
    for run in 0..args.runs {
        for (experiment, values) in experiments.iter_mut().zip(&mut values) {
            interrupt::check()?;
            let value = (experiment.measure)().with_context(|| format!("{}, run {run}", experiment.name))?;
            eprintln!("run {run}: {:48} {value:12.3} {}", experiment.name, experiment.unit);
            values.push(value);
        }
    }
    let rows = rows(&experiments, values);
    println!("{}\n{} runs, interleaved\n", machine.line(), args.runs);
    print!("{}", table(&experiments, &rows));
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&rows)?;
        fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(dir) = &args.plots {
        let machine = format!("{} {} runs, interleaved.", machine.line(), args.runs);
        plots::write(dir, &machine, &rows)?;
        println!("\nfigures: {}", dir.join("index.html").display());
    }
    Ok(())
}

fn rows(experiments: &[Experiment], values: Vec<Vec<f64>>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (experiment, values) in experiments.iter().zip(values) {
        let Some(value) = Summary::of(values) else { continue };
        let ratio = experiment.against.as_ref().and_then(|(to, goal)| {
            let other = rows.iter().find(|row| row.name == *to)?;
            Some(Ratio { to: to.clone(), value: value.median / other.value.median, goal: *goal })
        });
        rows.push(Row { name: experiment.name.clone(), unit: experiment.unit, value, ratio });
    }
    rows
}

fn table(experiments: &[Experiment], rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        let Summary { median, min, max, .. } = &row.value;
        // Writing to a string cannot fail.
        let _ = write!(text, "{:48} {median:12.3} [{min:.3}-{max:.3}] {}", row.name, row.unit);
        let own = experiments.iter().find(|experiment| experiment.name == row.name);
        if let Some(goal) = own.and_then(|experiment| experiment.goal) {
            let _ = write!(text, "  {}", goal.text(*median, |limit| limit.to_string()));
        }
        if let Some(ratio) = &row.ratio {
            let _ = write!(text, "  {:.3} x {}", ratio.value, ratio.to);
            if let Some(goal) = ratio.goal {
                let _ = write!(text, "  {}", goal.text(ratio.value, |limit| limit.to_string()));
            }
        }
        text.push('\n');
    }
    text
}
