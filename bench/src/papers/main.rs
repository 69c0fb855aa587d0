//! Measures experiments of the papers that kvfs follows, beside what these have published, and what space
//! costs: on a full store, and on one that is written over and over.
//!
//! Each part has a file, makes its own store below `--work`, and removes it at the end.

mod defrag;
mod edinburgh;
mod files;
mod full;
mod overwrite;
mod ranges;
mod rig;
mod table;
mod thresholds;
mod trees;
mod zones;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use kvfs_bench::mount::WorkDir;
use kvfs_bench::units::Unit;
use kvfs_bench::values::{Part, Value, Values};
use kvfs_bench::{host, interrupt, json, outcome};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// What the program has: many threads that write at once meet in the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measure experiments of the papers, and full and aged stores.
///
/// Run it as root on an idle machine. It drops the kernel's caches, and needs 10 GiB of disk.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  kvfs-bench-papers --kvfs target/release/kvfs --json papers.json
  kvfs-bench-papers --only defrag --runs 3                   the engine alone
  kvfs-bench-papers --kvfs target/release/kvfs --quick       to try the harness, not to quote
  kvfs-bench-papers --kvfs target/release/kvfs --json papers.json --resume --before earlier.json"
)]
struct Args {
    /// The kvfs binary; without it only what needs no mount is measured
    #[arg(long, value_name = "PATH")]
    kvfs: Option<PathBuf>,

    /// How often everything is measured
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), overrides_with = "runs")]
    runs: u32,

    /// Small sizes
    #[arg(long)]
    quick: bool,

    /// Only these parts, separated by commas
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    only: Vec<PartName>,

    /// What random choices follow from; each run adds its number
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// A directory on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/kvfs-bench")]
    work: PathBuf,

    /// Also keep the results in this file, saved part by part
    #[arg(long, value_name = "PATH", overrides_with = "json")]
    json: Option<PathBuf>,

    /// Keep what --json holds and measure only what is missing
    #[arg(long, requires = "json")]
    resume: bool,

    /// Results of an earlier run on this machine, whose throughput is to be kept
    #[arg(long, value_name = "JSON")]
    before: Option<PathBuf>,

    /// Measure nothing: show what this file holds
    #[arg(long, value_name = "JSON")]
    report: Option<PathBuf>,
}

/// Names for the parts.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PartName {
    /// The thesis's defragmentation of a store whose zones are partly used (table 4.4)
    Defrag,
    /// The thesis's under-utilized zones by stitching threshold (figures 4.9, 4.10)
    Thresholds,
    /// A store full of small files: all deleted in random order
    Full,
    /// A store at 85 %, written over ten times with a snapshot held
    Overwrite,
    /// A large tree, removed as a whole
    Trees,
    /// Range tombstones: what they cost reads
    Ranges,
    /// The library beside the bare engine, as the Edinburgh kvfs has it (figures 5.1 to 5.5)
    Edinburgh,
}

/// A line of the table.
#[derive(Clone, Copy)]
struct Row {
    /// Its name in the JSON file and in goals.
    key: &'static str,
    title: &'static str,
    unit: Unit,
    /// What the paper has.
    published: Option<f64>,
}

const fn row(key: &'static str, title: &'static str, unit: Unit, published: Option<f64>) -> Row {
    Row { key, title, unit, published }
}

/// A part, and how it is done once.
struct PartInfo {
    name: PartName,
    key: &'static str,
    /// With its sizes.
    title: fn(&Setup) -> String,
    /// Where it is from, and what differs.
    source: &'static str,
    needs_mount: bool,
    rows: &'static [Row],
    measure: fn(&Setup, &mut Findings) -> Result<()>,
}

/// In the order in which they are done.
const PARTS: &[PartInfo] = &[
    defrag::PART,
    thresholds::PART,
    full::PART,
    overwrite::PART,
    trees::PART,
    ranges::PART,
    edinburgh::PART,
];

/// What a part works with.
struct Setup<'a> {
    program: Option<&'a Path>,
    work: &'a Path,
    is_quick: bool,
    seed: u64,
}

impl Setup<'_> {
    fn program(&self) -> Result<&Path> {
        self.program.context("this part needs --kvfs")
    }
}

/// What a part has measured.
#[derive(Default)]
struct Findings {
    values: Vec<Value>,
    notes: Vec<String>,
}

impl Findings {
    fn add(&mut self, key: &str, value: f64) {
        self.values.push(Value { key: key.to_owned(), value });
    }

    fn note(&mut self, note: String) {
        eprintln!("  {note}");
        self.notes.push(note);
    }
}

fn main() -> ExitCode {
    outcome::exit_code("kvfs-bench-papers", run(&Args::parse()))
}

/// Measures and reports; false when a part failed on the way.
fn run(args: &Args) -> Result<bool> {
    let before: Option<Values> = args.before.as_deref().map(json::load).transpose()?;
    if let Some(path) = &args.report {
        print!("{}", table::text(&json::load(path)?, before.as_ref()));
        return Ok(true);
    }
    host::check_rights()?;
    interrupt::install()?;
    let canonical = |path: &PathBuf| {
        path.canonicalize().with_context(|| format!("there is no program {}", path.display()))
    };
    let program = args.kvfs.as_ref().map(canonical).transpose()?;
    let mut values = Values::open(args.json.as_deref(), args.resume)?;
    values.machines.push(host::Machine::describe()?);
    fs::create_dir_all(&args.work)?;
    let work = WorkDir::new(&args.work, "papers")?;
    let mut is_sound = true;
    for run in 0..args.runs {
        let setup = Setup {
            program: program.as_deref(),
            work: work.path(),
            is_quick: args.quick,
            seed: args.seed + u64::from(run),
        };
        for part in PARTS.iter().filter(|part| args.only.is_empty() || args.only.contains(&part.name)) {
            interrupt::check()?;
            is_sound &= one_part(part, &setup, run, &mut values)?;
        }
    }
    print!("{}", table::text(&values, before.as_ref()));
    Ok(is_sound)
}

/// Does what is not there yet; false when it failed.
fn one_part(part: &PartInfo, setup: &Setup, run: u32, values: &mut Values) -> Result<bool> {
    let title = (part.title)(setup);
    if values.holds(part.key, &title, run)? {
        return Ok(true);
    }
    if part.needs_mount && setup.program.is_none() {
        eprintln!("{title}: not measured without --kvfs");
        return Ok(true);
    }
    eprintln!("run {run}: {title}, seed {}", setup.seed);
    let mut findings = Findings::default();
    let start = Instant::now();
    let measured = (part.measure)(setup, &mut findings);
    let seconds = start.elapsed().as_secs_f64();
    if let Err(error) = measured {
        if interrupt::is_interrupted() {
            bail!("interrupted");
        }
        eprintln!("run {run}: {title} FAILED: {error:#}");
        return Ok(false);
    }
    eprintln!("run {run}: {title}: {seconds:.0} s");
    let Findings { values: found, notes } = findings;
    let (name, seed) = (part.key.to_owned(), setup.seed);
    values.add(Part { name, title, run, seed, seconds, values: found, notes });
    values.save()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvfs_bench::goals;

    #[test]
    fn what_the_makefile_gives_may_be_given_again() {
        let line = "kvfs-bench-papers --json a --runs 3 --json b --runs 1 --only full,defrag";
        let args = Args::parse_from(line.split(' '));
        assert!(args.runs == 1 && args.json == Some("b".into()) && args.only.len() == 2);
    }

    #[test]
    fn every_goal_of_values_has_its_row() {
        let keys: Vec<&str> = PARTS.iter().flat_map(|part| part.rows).map(|row| row.key).collect();
        for key in goals::keys() {
            assert!(keys.contains(&key), "{key}");
        }
        assert!(PARTS.iter().all(|part| part.rows.iter().all(|row| row.key.starts_with(part.key))));
    }
}
