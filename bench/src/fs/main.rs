//! Measures kvfs beside other file systems on the same disk and beside the in-memory FUSE floor, in one run.
//!
//! Everything it mounts and attaches is undone at the end, after an error and on Ctrl-C as well.

mod args;
mod flame;
mod measure;
mod target;
mod workload;

use anyhow::{Context, Result, bail};
use args::{Args, Suite};
use clap::Parser;
use flame::Flames;
use kvfs_bench::results::Results;
use kvfs_bench::{host, interrupt, outcome, source};
use measure::Plan;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use workload::{SCENARIOS, ScenarioName, Sizes};

/// What the program has: the library works in this process.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    outcome::exit_code("kvfs-bench", run(&Args::parse()))
}

/// Measures and reports; false when something failed on the way.
fn run(args: &Args) -> Result<bool> {
    if let Some(path) = &args.options.report {
        return outcome::show(&Results::load(path)?, args.before.as_deref(), args.options.plots.as_deref());
    }
    host::check_rights()?;
    interrupt::install()?;
    let mut results = Results::open(args.options.json.as_deref(), args.options.resume)?;
    results.machines.push(host::Machine::describe()?);
    let scenarios: Vec<ScenarioName> = match (args.only.as_slice(), args.sizes) {
        ([], Suite::Aged) => SCENARIOS
            .iter()
            .map(|it| it.name)
            .filter(|it| !matches!(it, ScenarioName::Million | ScenarioName::Exec) && !it.is_by_calls())
            .collect(),
        ([], _) => SCENARIOS.iter().map(|scenario| scenario.name).collect(),
        (only, _) => only.to_vec(),
    };
    let tarball = if scenarios.iter().any(|scenario| scenario.needs_source()) {
        source::tarball(args.tar.as_deref(), args.sizes != Suite::Full)?
    } else {
        PathBuf::new()
    };
    let sizes = Sizes::new(args.sizes.divisor(), tarball);
    let flames = args.flames.as_deref().map(Flames::new).transpose()?;
    fs::create_dir_all(&args.options.work)?;
    let run_dir = RunDir::new(&args.options.work)?;
    let mut targets = args::targets(args, &run_dir.0)?;
    if targets.is_empty() {
        bail!("there is nothing to measure");
    }
    let plan =
        Plan { scenarios: &scenarios, sizes: &sizes, runs: args.options.runs, flames: flames.as_ref() };
    let measured = measure::measure(&mut targets, &plan, &mut results);
    results.save()?;
    let is_sound = outcome::show(&results, args.before.as_deref(), args.options.plots.as_deref())?;
    measured?;
    Ok(is_sound)
}

/// Mount points, stores and logs of this invocation. Removed at the end, unless something is still
/// mounted below: then a removal could reach into it.
struct RunDir(PathBuf);

impl RunDir {
    fn new(work: &Path) -> Result<Self> {
        let path = work.canonicalize()?.join(format!("run-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// Removes files and empty directories only, so nothing below a mount point is at risk.
    fn remove(&self) -> std::io::Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                fs::remove_dir(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        fs::remove_dir(&self.0)
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}
