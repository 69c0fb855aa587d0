//! Measures kvfs beside ext4 on the same disk and beside the in-memory FUSE floor, in one run.
//!
//! Everything it mounts and attaches is undone at the end, after an error and on Ctrl-C as well.

mod image;
mod measure;
mod memory;
mod report;
mod target;
mod workload;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use image::Image;
use kvfs_bench::{host, interrupt, source};
use measure::Times;
use report::Report;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use target::{Backing, Ext4, Floor, Kvfs, KvfsOptions, Target};
use workload::{SCENARIOS, Sizes, Workload};

/// Measure kvfs beside ext4 and the in-memory FUSE floor.
///
/// Run it as root on an idle machine. It drops the kernel's caches again and again, and needs
/// twice --size of disk.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  kvfs-bench --kvfs target/release/kvfs --floor target/release/examples/floor
  kvfs-bench --quick --runs 1                     ext4 alone, in a minute
  kvfs-bench --kvfs target/release/kvfs --only untar --memory 256M --json result.json"
)]
struct Args {
    /// The kvfs binary; without it kvfs is not measured
    #[arg(long, value_name = "PATH")]
    kvfs: Option<PathBuf>,

    /// The in-memory FUSE server; without it the floor is not measured
    #[arg(long, value_name = "PATH")]
    floor: Option<PathBuf>,

    /// Leave out ext4
    #[arg(long)]
    no_ext4: bool,

    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Small sizes: to try the harness, not to quote
    #[arg(long)]
    quick: bool,

    /// Only this scenario; may be repeated
    #[arg(long, value_name = "SCENARIO", value_enum)]
    only: Vec<Scenario>,

    /// Where images, stores and mount points go: a directory on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/kvfs-bench")]
    work: PathBuf,

    /// Size of the ext4 image and of the store [default: 20G, with --quick 2G]
    #[arg(long, value_parser = parse_bytes)]
    size: Option<u64>,

    /// What the kvfs store is kept in
    #[arg(long, value_enum, default_value_t = StoreIn::Growing)]
    store_in: StoreIn,

    /// --memory of the kvfs daemon
    #[arg(long, value_parser = parse_bytes)]
    memory: Option<u64>,

    /// One more argument of kvfs mkfs; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    mkfs_arg: Vec<String>,

    /// One more argument of kvfs mount; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    mount_arg: Vec<String>,

    /// The tarball to unpack (.tar, or .tar.xz) [default: Debian's Linux source, fetched once]
    #[arg(long, value_name = "PATH")]
    tar: Option<PathBuf>,

    /// Also write the results to this file
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,

    /// Keep the images for the next invocation
    #[arg(long)]
    keep_images: bool,
}

/// Names for the scenarios.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scenario {
    /// Create files in one directory; list and stat them cold
    Create,
    /// Unpack a source tree; search it cold
    Untar,
    /// Append and fsync
    Append,
    /// Write one large file and fsync; read it cold
    Stream,
}

/// See [`Backing`].
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoreIn {
    /// A file that grows as the store fills
    Growing,
    /// A file written in full before, as under ext4
    Image,
}

impl Scenario {
    fn workloads(self) -> &'static [Workload] {
        SCENARIOS[self as usize]
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("kvfs-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and reports; false when something failed on the way.
fn run(args: &Args) -> Result<bool> {
    host::check_rights()?;
    interrupt::install()?;
    let machine = host::Machine::describe()?;
    let sizes = sizes(args)?;
    let memory_bytes = match args.memory {
        Some(bytes) => bytes,
        // The daemon's default.
        None => (host::memory_total_bytes()? / 4).min(2 << 30),
    };
    fs::create_dir_all(&args.work)?;
    let run_dir = RunDir::new(&args.work)?;
    let mut targets = targets(args, &run_dir.0)?;
    if targets.is_empty() {
        bail!("there is nothing to measure: give --kvfs or --floor, or leave --no-ext4 out");
    }
    let wanted: Vec<Workload> = if args.only.is_empty() {
        SCENARIOS.concat()
    } else {
        args.only.iter().flat_map(|scenario| scenario.workloads()).copied().collect()
    };
    let mut times = Times::default();
    let measured = measure::measure(&mut targets, &wanted, &sizes, args.runs, &mut times);
    let report = Report::new(machine, sizes, args.runs, &targets, memory_bytes, times);
    println!("{}", report.text());
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(&report)?;
        fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    measured?;
    Ok(report.is_sound())
}

fn sizes(args: &Args) -> Result<Sizes> {
    let is_needed = args.only.is_empty() || args.only.contains(&Scenario::Untar);
    let tarball = if is_needed { source::tarball(args.tar.as_deref(), args.quick)? } else { PathBuf::new() };
    Ok(if args.quick {
        Sizes { files: 10_000, appends: 500, stream_bytes: 256 << 20, tarball }
    } else {
        Sizes { files: 200_000, appends: 5_000, stream_bytes: 4 << 30, tarball }
    })
}

fn targets(args: &Args, run_dir: &Path) -> Result<Vec<Box<dyn Target>>> {
    let size_bytes = args.size.unwrap_or(if args.quick { 2 << 30 } else { 20 << 30 });
    let image = |name: &str| -> Result<Rc<Image>> {
        Ok(Rc::new(Image::prepare(&args.work.join(name), size_bytes, args.keep_images)?))
    };
    let mut targets: Vec<Box<dyn Target>> = Vec::new();
    if let Some(program) = &args.kvfs {
        let options = KvfsOptions {
            program: existing(program)?,
            size_bytes,
            memory_bytes: args.memory,
            mkfs_args: args.mkfs_arg.clone(),
            mount_args: args.mount_arg.clone(),
        };
        let backing = match args.store_in {
            StoreIn::Growing => Backing::Growing,
            StoreIn::Image => Backing::Image(image("kvfs.img")?),
        };
        let (store, log) = (run_dir.join("kvfs.store"), run_dir.join("kvfs.log"));
        targets.push(Box::new(Kvfs::new(options, backing, store, run_dir.join("kvfs"), log)?));
    }
    if !args.no_ext4 {
        targets.push(Box::new(Ext4::new(run_dir.join("ext4"), image("ext4.img")?)?));
    }
    if let Some(program) = &args.floor {
        let log = run_dir.join("floor.log");
        targets.push(Box::new(Floor::new(existing(program)?, run_dir.join("floor"), log)?));
    }
    Ok(targets)
}

fn existing(program: &Path) -> Result<PathBuf> {
    program.canonicalize().with_context(|| format!("there is no program {}", program.display()))
}

/// Reads sizes such as `512M` or `20G`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        unit => return Err(format!("{unit} is no unit; use K, M, G or T")),
    };
    let number: u64 = digits.parse().map_err(|error| format!("{digits:?}: {error}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
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
