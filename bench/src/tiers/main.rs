//! Measures a store on a fast and a slow device beside stores on one of them, and beside ext4.
//!
//! Everything it mounts and attaches is undone at the end, after an error and on Ctrl-C as well.

mod load;
mod phases;
mod sizes;
mod target;

use anyhow::{Context, Result, bail};
use clap::Parser;
use kvfs_bench::image::{Image, Loop};
use kvfs_bench::mount::WorkDir;
use kvfs_bench::options::Options;
use kvfs_bench::results::{Failure, Results, Sample, TargetInfo, WorkloadInfo};
use kvfs_bench::slow_disk::{self, HARD_DISK, Rates, SlowDisk};
use kvfs_bench::units::Unit;
use kvfs_bench::{host, interrupt, outcome, source};
use phases::{Phases, ROWS};
use sizes::{Sizes, Suite};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use target::{Devices, Target, TargetName};

/// What the program has: threads that wait for a device meet in the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure a store on two tiers beside stores on one of them, and ext4.
///
/// Run it as root on an idle machine. It drops the kernel's caches, and needs 75, 13 or 5 GiB of disk, by
/// --sizes.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  kvfs-bench-tiers --kvfs target/release/kvfs --json tiers.json --plots tiers
  kvfs-bench-tiers --kvfs target/release/kvfs --sizes trial --runs 1        to try the harness, not to quote
  kvfs-bench-tiers --kvfs target/release/kvfs --json tiers.json --resume    after an interruption
  kvfs-bench-tiers --report tiers.json                                      the tables again, without measuring"
)]
struct Args {
    /// The kvfs binary
    #[arg(long, value_name = "PATH", required_unless_present = "report")]
    kvfs: Option<PathBuf>,

    /// Only these, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    targets: Vec<TargetName>,

    /// How much is done
    #[arg(long, value_enum, default_value_t = Suite::Full, overrides_with = "sizes")]
    sizes: Suite,

    /// What random choices follow from; each run adds its number
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// The tarball to unpack [default: Debian's Linux source, fetched once; a part of it but with --sizes
    /// full]
    #[arg(long, value_name = "PATH")]
    tar: Option<PathBuf>,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    if let Some(code) = slow_disk::serve_if_asked() {
        return code;
    }
    outcome::exit_code("kvfs-bench-tiers", run(&Args::parse()))
}

/// Measures and reports; false when something failed on the way.
fn run(args: &Args) -> Result<bool> {
    if let Some(path) = &args.options.report {
        return outcome::show(&Results::load(path)?, None, args.options.plots.as_deref());
    }
    host::check_rights()?;
    interrupt::install()?;
    let program = args.kvfs.as_ref().context("--kvfs is missing")?;
    let program = program.canonicalize().with_context(|| format!("there is no {}", program.display()))?;
    let tarball = source::tarball(args.tar.as_deref(), args.sizes != Suite::Full)?;
    let mut results = Results::open(args.options.json.as_deref(), args.options.resume)?;
    results.machines.push(host::Machine::describe()?);
    fs::create_dir_all(&args.options.work)?;
    let work = WorkDir::new(&args.options.work, "tiers")?;
    let measured = measure(args, &program, &tarball, work.path(), &mut results);
    results.save()?;
    let is_sound = outcome::show(&results, None, args.options.plots.as_deref())?;
    measured?;
    Ok(is_sound)
}

fn measure(args: &Args, program: &Path, tarball: &Path, work: &Path, results: &mut Results) -> Result<()> {
    let sizes = Sizes::of(args.sizes);
    let hot_mib = sizes.hot_bytes >> 20;
    for row in ROWS {
        let title = format!("{} ({hot_mib} MiB hot)", row.title);
        let (key, group) = (row.key.into(), "tiers".into());
        results.describe_workload(WorkloadInfo { key, title, group, class: row.class })?;
    }
    let image = |name: &str, bytes| Image::prepare(&work.join(name), bytes, false);
    let (fast, whole) = (image("fast.img", sizes.fast_bytes)?, image("whole.img", sizes.whole_bytes)?);
    let (fast_loop, whole_loop) = (Loop::attach(fast.path())?, Loop::attach(whole.path())?);
    let slow = SlowDisk::new(work, image("slow.img", sizes.whole_bytes)?, HARD_DISK)?;
    let rates = Rates::measure(slow.device())?;
    let Rates { bytes_per_second, reads_per_second, writes_per_second } = rates;
    let bytes = Unit::BytesPerSecond.text(bytes_per_second);
    eprintln!(
        "slow disk: {bytes}; {reads_per_second:.0} reads, {writes_per_second:.0} writes of 4 KiB each second"
    );
    rates.check(HARD_DISK)?;
    let devices = Devices { fast: fast_loop.device(), fast_whole: whole_loop.device(), slow: slow.device() };
    let is_wanted = |name: &TargetName| args.targets.is_empty() || args.targets.contains(name);
    for run in 0..args.options.runs {
        for name in TargetName::ALL.into_iter().filter(is_wanted) {
            // The last row: all others were measured before it.
            if ROWS.last().is_some_and(|row| results.holds(row.key, name.key(), run)) {
                continue;
            }
            eprintln!("run {run}: {}", name.key());
            let describe =
                TargetInfo { name: name.key().into(), about: name.about().into(), ..TargetInfo::default() };
            results.describe_target(describe);
            let mut target = Target::new(name, program, work, &devices, sizes.memory_bytes)?;
            let mut phases = Phases {
                target: &mut target,
                has_two_tiers: name == TargetName::Kvfs,
                sizes: &sizes,
                seed: args.seed + u64::from(run),
                tarball,
                found: Vec::new(),
            };
            let done = phases.run();
            let found = phases.found;
            target.remove()?;
            for (key, seconds, usage) in found {
                let (workload, target) = (key.into(), name.key().into());
                let details = Vec::new();
                results.add(Sample { workload, target, run, seconds, usage, details });
            }
            if let Err(error) = done {
                if interrupt::is_interrupted() {
                    bail!("interrupted");
                }
                eprintln!("    FAILED: {error:#}");
                let (workload, target, error) = ("tiers".into(), name.key().into(), format!("{error:#}"));
                results.add_failure(Failure { workload, target, run, error });
            }
            results.save()?;
        }
    }
    Ok(())
}
