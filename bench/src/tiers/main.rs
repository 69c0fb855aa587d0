//! Measures a store on a fast and a slow device beside stores on one of them, and beside ext4.
//!
//! Everything it mounts and attaches is undone at the end, after an error and on Ctrl-C as well.

use anyhow::Result;
use clap::Parser;
use kvfs_bench::image::Image;
use kvfs_bench::mount::WorkDir;
use kvfs_bench::slow_disk::{self, HARD_DISK, Rates, SlowDisk};
use kvfs_bench::units::Unit;
use kvfs_bench::{host, interrupt};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure a store on two tiers.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// A directory on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/kvfs-bench")]
    work: PathBuf,
}

fn main() -> ExitCode {
    if let Some(code) = slow_disk::serve_if_asked() {
        return code;
    }
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvfs-bench-tiers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    host::check_rights()?;
    interrupt::install()?;
    fs::create_dir_all(&args.work)?;
    let work = WorkDir::new(&args.work, "tiers")?;
    let image = Image::prepare(&work.path().join("slow.img"), 1 << 30, false)?;
    let disk = SlowDisk::new(work.path(), image, HARD_DISK)?;
    let rates = Rates::measure(disk.device())?;
    println!(
        "slow disk: {}, {:.0} reads and {:.0} writes of 4 KiB each second",
        Unit::BytesPerSecond.text(rates.bytes_per_second),
        rates.reads_per_second,
        rates.writes_per_second
    );
    rates.check(HARD_DISK)
}
