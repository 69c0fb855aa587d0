//! Measures the engine of kvfs beside other embedded ones: equal memory, equal durability, stores of four
//! times the memory.
//!
//! Each engine works in a process of its own, in a cgroup that holds its memory and the page cache it uses.

mod engine;
mod workload;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use engine::{KINDS, Kind};
use kvfs_bench::cgroup::MemoryCgroup;
use kvfs_bench::results::{Failure, Results, Sample, TargetInfo};
use kvfs_bench::{host, interrupt, outcome};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use workload::{Bench, Sizes, StoreName};

/// What kvfs uses: memtables come and go in bursts, which the C library's allocator keeps.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure the engine of kvfs beside RocksDB, fjall, SurrealKV and LMDB. Run it as root on an idle machine.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  kvfs-bench-engines --json bench.json --resume --plots bench     into the results of kvfs-bench
  kvfs-bench-engines --sizes trial --runs 1                       to try the harness, not to quote"
)]
struct Args {
    /// Only these, separated by commas
    #[arg(long, value_delimiter = ',')]
    targets: Vec<String>,

    /// How often everything is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..), overrides_with = "runs")]
    runs: u32,

    /// Memory of each engine; its stores are four times as large
    #[arg(long, value_enum, default_value_t = Suite::Full, overrides_with = "sizes")]
    sizes: Suite,

    /// Only the workloads of these stores, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<StoreName>,

    /// A directory on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/kvfs-bench")]
    work: PathBuf,

    /// Also keep the results in this file, saved step by step
    #[arg(long, value_name = "PATH", overrides_with = "json")]
    json: Option<PathBuf>,

    /// Keep what --json holds and measure only what is missing
    #[arg(long, requires = "json")]
    resume: bool,

    /// Also write a page with tables and figures into this directory
    #[arg(long, value_name = "DIR", overrides_with = "plots")]
    plots: Option<PathBuf>,

    /// Be the process of one engine
    #[arg(long, hide = true)]
    child: Option<String>,

    /// Its run
    #[arg(long, hide = true, default_value_t = 0)]
    run: u32,
}

/// How much is done.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// 128 MiB
    Full,
    /// 16 MiB
    Quick,
    /// Small stores: to try the harness, not to quote
    Trial,
}

impl Suite {
    fn sizes(self) -> Sizes {
        match self {
            Self::Full => Sizes::new(128 << 20),
            Self::Quick => Sizes::new(16 << 20),
            Self::Trial => Sizes::trial(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Quick => "quick",
            Self::Trial => "trial",
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = match &args.child {
        Some(name) => be_child(&args, name).map(|()| true),
        None => run(&args),
    };
    outcome::exit_code("kvfs-bench-engines", ended)
}

impl Args {
    /// Those that are filled: all, or some.
    fn stores(&self) -> Vec<StoreName> {
        let all = StoreName::value_variants().iter();
        all.copied().filter(|name| self.only.is_empty() || self.only.contains(name)).collect()
    }
}

fn run(args: &Args) -> Result<bool> {
    host::check_rights()?;
    interrupt::install()?;
    let mut results = Results::open(args.json.as_deref(), args.resume)?;
    results.machines.push(host::Machine::describe()?);
    let infos = workload::infos(args.sizes.sizes(), &args.stores());
    for info in &infos {
        results.describe_workload(info.clone())?;
    }
    let kinds = kinds(&args.targets)?;
    fs::create_dir_all(&args.work)?;
    for run in 0..args.runs {
        for turn in 0..kinds.len() {
            let kind = kinds[(turn + run as usize) % kinds.len()];
            describe(&mut results, kind);
            if infos.iter().all(|info| results.holds(&info.key, kind.name, run)) {
                continue;
            }
            let failed = run_child(args, kind, run, &mut results).err();
            interrupt::check()?;
            if let Some(error) = failed {
                let missing = infos.iter().find(|info| !results.holds(&info.key, kind.name, run));
                let workload = missing.map_or("the end", |info| &info.key).to_owned();
                let error = format!("{error:#}");
                eprintln!("run {run}: {}: {workload} FAILED: {error}", kind.name);
                results.add_failure(Failure { workload, target: kind.name.into(), run, error });
            }
            results.save()?;
        }
    }
    outcome::show(&results, None, args.plots.as_deref())
}

fn kinds(names: &[String]) -> Result<Vec<&'static Kind>> {
    for name in names {
        ensure!(KINDS.iter().any(|kind| kind.name == name), "there is no engine {name}");
    }
    Ok(KINDS.iter().filter(|kind| names.is_empty() || names.iter().any(|name| name == kind.name)).collect())
}

/// The column of kvfs may be that of the file system already, whose description stays.
fn describe(results: &mut Results, kind: &Kind) {
    if !results.targets.iter().any(|target| target.name == kind.name) {
        let (name, about) = (kind.name.into(), kind.about.into());
        results.describe_target(TargetInfo { name, about, ..TargetInfo::default() });
    }
}

fn run_child(args: &Args, kind: &Kind, run: u32, results: &mut Results) -> Result<()> {
    host::touch_free_memory()?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--child", kind.name, "--run", &run.to_string(), "--sizes", args.sizes.name()])
        .args(args.only.iter().flat_map(|name| ["--only", name.as_str()]))
        .arg("--work")
        .arg(&args.work)
        // As the daemon has it: what is free goes back after so many milliseconds.
        .env("MIMALLOC_PURGE_DELAY", "10")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().context("the child has no output")?;
    for line in BufReader::new(output).lines() {
        let sample: Sample = serde_json::from_str(&line?).context("the child says something else")?;
        eprintln!("run {run}: {:10} {:24} {:9.3} s", kind.name, sample.workload, sample.seconds);
        results.add(sample);
        results.save()?;
    }
    let status = child.wait()?;
    if !status.success() {
        // One that was killed has removed nothing.
        let _ = fs::remove_dir_all(WorkDir::path(&args.work, child.id()));
        MemoryCgroup::remove_of(child.id());
        bail!("its process ended with {status}");
    }
    Ok(())
}

/// Does the work of one engine and prints a sample on each line.
fn be_child(args: &Args, name: &str) -> Result<()> {
    interrupt::install()?;
    let kind = KINDS.iter().find(|kind| kind.name == name).context("there is no such engine")?;
    let sizes = args.sizes.sizes();
    let dir = WorkDir::new(&args.work)?;
    let cgroup = MemoryCgroup::new(sizes.process_bytes())?;
    cgroup.enter()?;
    let mut report = |sample: Sample| {
        let mut output = std::io::stdout().lock();
        writeln!(output, "{}", serde_json::to_string(&sample)?)?;
        Ok(output.flush()?)
    };
    Bench { kind, dir: &dir.0, sizes, run: args.run, report: &mut report }.all(&args.stores())
}

/// Removed at the end.
struct WorkDir(PathBuf);

impl WorkDir {
    fn new(parent: &Path) -> Result<Self> {
        let path = Self::path(parent, std::process::id());
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// That of a process.
    fn path(parent: &Path, process: u32) -> PathBuf {
        parent.join(format!("engines-{process}"))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}
