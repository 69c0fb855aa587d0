//! Measures a store in object storage beside other file systems there, by how far away it is: time and
//! requests.
//!
//! Everything it mounts and starts is undone at the end, after an error and on Ctrl-C as well.

mod bare;
mod delay;
mod rows;
mod sizes;
mod storage;
mod take_over;
mod target;

use anyhow::{Context, Result, bail};
use clap::Parser;
use kvfs_bench::counters::Usage;
use kvfs_bench::mount::WorkDir;
use kvfs_bench::options::Options;
use kvfs_bench::results::{Failure, Results, Sample, TargetInfo, WorkloadInfo};
use kvfs_bench::{host, interrupt, outcome, source};
use rows::{Found, READ, ROWS, Row, Rows, TAKE_OVER, WRITE};
use sizes::{Sizes, Suite};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use storage::Storage;
use target::{Programs, Target, TargetName};

/// Measure a store in object storage beside `JuiceFS`, s3fs and bare requests.
///
/// Run it as root on an idle machine. A server of S3 (versitygw) is started here, and what clients send it
/// arrives later. It drops the kernel's caches, and needs 8 GiB of disk.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  kvfs-bench-beyond --kvfs target/slatedb/release/kvfs --json beyond.json --plots beyond
  kvfs-bench-beyond --kvfs target/slatedb/release/kvfs --sizes trial --runs 1      to try the harness, not to quote
  kvfs-bench-beyond --kvfs target/slatedb/release/kvfs --delays-ms 50 --targets kvfs,juicefs
  kvfs-bench-beyond --report beyond.json                                           the tables again, without measuring"
)]
struct Args {
    /// The kvfs binary, with the engine slatedb
    #[arg(long, value_name = "PATH", required_unless_present = "report")]
    kvfs: Option<PathBuf>,

    /// Where versitygw and juicefs are; what is not there is looked for in the PATH
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,

    /// Only these, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["kvfs", "juicefs", "bare"])]
    targets: Vec<TargetName>,

    /// How much longer an answer of object storage takes than its server does (ms), separated by commas;
    /// goals are for 1 and 20
    #[arg(long, value_delimiter = ',', default_values_t = [1, 20])]
    delays_ms: Vec<u64>,

    /// How much is done
    #[arg(long, value_enum, default_value_t = Suite::Full, overrides_with = "sizes")]
    sizes: Suite,

    /// What random choices follow from; each run adds its number
    #[arg(long, default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    options: Options,
}

fn main() -> ExitCode {
    outcome::exit_code("kvfs-bench-beyond", run(&Args::parse()))
}

/// Measures and reports; false when something failed on the way.
fn run(args: &Args) -> Result<bool> {
    let options = &args.options;
    if let Some(path) = &options.report {
        return outcome::show(&Results::load(path)?, None, options.plots.as_deref());
    }
    host::check_rights()?;
    interrupt::install()?;
    let kvfs = args.kvfs.as_ref().context("--kvfs is missing")?;
    let find = |name: &str| args.programs.as_ref().map(|dir| dir.join(name)).filter(|path| path.is_file());
    let programs = Programs {
        kvfs: kvfs.canonicalize().with_context(|| format!("there is no {}", kvfs.display()))?,
        juicefs: find("juicefs").unwrap_or_else(|| "juicefs".into()),
        server: find("versitygw").unwrap_or_else(|| "versitygw".into()),
    };
    let sizes = Sizes::of(args.sizes);
    let tarball = source::part_tarball(sizes.tree)?;
    let mut results = Results::open(options.json.as_deref(), options.resume)?;
    results.machines.push(host::Machine::describe()?);
    fs::create_dir_all(&options.work)?;
    let work = WorkDir::new(&options.work, "beyond")?;
    let mut measuring = Measuring { args, programs, sizes, tarball, work: work.path(), results };
    let measured = measuring.all();
    let results = measuring.results;
    results.save()?;
    let is_sound = outcome::show(&results, None, options.plots.as_deref())?;
    measured?;
    Ok(is_sound)
}

/// What all measurements share.
struct Measuring<'a> {
    args: &'a Args,
    programs: Programs,
    sizes: Sizes,
    tarball: PathBuf,
    work: &'a Path,
    results: Results,
}

impl Measuring<'_> {
    fn all(&mut self) -> Result<()> {
        for delay_ms in &self.args.delays_ms {
            for row in ROWS {
                let key = row_key(row, *delay_ms);
                let (title, group) =
                    (format!("{}; {delay_ms} ms", (row.title)(&self.sizes)), format!("{delay_ms} ms"));
                self.results.describe_workload(WorkloadInfo { key, title, group, class: row.class })?;
            }
        }
        for run in 0..self.args.options.runs {
            for delay_ms in &self.args.delays_ms {
                for name in &self.args.targets {
                    self.one(*name, *delay_ms, run)?;
                }
            }
        }
        Ok(())
    }

    /// Does what is not there yet.
    fn one(&mut self, name: TargetName, delay_ms: u64, run: u32) -> Result<()> {
        if self.results.holds(&row_key(&READ, delay_ms), name.key(), run) {
            return Ok(());
        }
        if name == TargetName::Juicefs && !is_there(&self.programs.juicefs) {
            eprintln!("{}: left out, for there is no such program", name.key());
            return Ok(());
        }
        eprintln!("run {run}, {delay_ms} ms: {}", name.key());
        let (about, key) = (name.about(&self.programs), name.key().to_owned());
        self.results.describe_target(TargetInfo { name: key.clone(), about, ..TargetInfo::default() });
        let mut found = Vec::new();
        let measured = self.measure(name, Duration::from_millis(delay_ms), run, &mut found);
        for Found { row, took, details } in found {
            let (workload, target, seconds) = (row_key(row, delay_ms), key.clone(), took.as_secs_f64());
            self.results.add(Sample { workload, target, run, seconds, usage: Usage::default(), details });
        }
        if let Err(error) = measured {
            if interrupt::is_interrupted() {
                bail!("interrupted");
            }
            eprintln!("    FAILED: {error:#}");
            let (workload, error) = (format!("beyond, {delay_ms} ms"), format!("{error:#}"));
            self.results.add_failure(Failure { workload, target: key, run, error });
        }
        self.results.save()
    }

    fn measure(&mut self, name: TargetName, delay: Duration, run: u32, found: &mut Vec<Found>) -> Result<()> {
        let storage = Storage::new(&self.programs.server, self.work, delay)?;
        let seed = self.args.seed + u64::from(run);
        if name == TargetName::Bare {
            let (written, read) = bare::measure(&storage, self.sizes.stream_bytes, seed)?;
            found.extend([(&WRITE, written), (&READ, read)].map(|(row, took)| Found {
                row,
                took,
                details: Vec::new(),
            }));
            return Ok(());
        }
        let target = Target::new(name, &self.programs, &storage, self.work)?;
        let mut rows = Rows {
            target,
            storage: &storage,
            sizes: &self.sizes,
            tarball: &self.tarball,
            seed,
            found: Vec::new(),
        };
        let done = rows.run();
        found.append(&mut rows.found);
        done?;
        let peak = rows.target.remove()?;
        self.results.describe_target(TargetInfo {
            name: name.key().into(),
            about: name.about(&self.programs),
            resident_bytes_max: Some(peak.resident_bytes_max),
            anonymous_bytes_max: Some(peak.anonymous_bytes_max),
            memory_limit_bytes: None,
        });
        drop(storage);
        if name == TargetName::Kvfs {
            let storage = Storage::new(&self.programs.server, self.work, delay)?;
            let took = take_over::measure(&self.programs.kvfs, &storage, self.work, self.sizes.take_overs)?;
            eprintln!("    {}: {took:.2?}", TAKE_OVER.key);
            let longest = took.into_iter().max().context("there is one")?;
            found.push(Found { row: &TAKE_OVER, took: longest, details: Vec::new() });
        }
        Ok(())
    }
}

/// A row at one distance.
fn row_key(row: &Row, delay_ms: u64) -> String {
    format!("{}-{delay_ms}ms", row.key)
}

fn is_there(program: &Path) -> bool {
    program.is_file() || program.to_str().is_some_and(host::has_program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvfs_bench::goals;

    #[test]
    fn what_the_makefile_gives_may_be_given_again() {
        let line = "kvfs-bench-beyond --kvfs k --json a --plots p --runs 3 --json b --runs 1 --sizes trial";
        let args = Args::parse_from(line.split(' '));
        assert!(args.options.runs == 1 && args.options.json == Some("b".into()) && args.delays_ms == [1, 20]);
    }

    #[test]
    fn every_goal_has_its_row() {
        let keys: Vec<_> = [1, 20].iter().flat_map(|delay| ROWS.map(|row| row_key(row, *delay))).collect();
        for workload in goals::workloads().filter(|workload| workload.starts_with("beyond-")) {
            assert!(keys.iter().any(|key| key == workload), "{workload}");
        }
    }
}
