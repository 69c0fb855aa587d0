//! What the command line says, and the targets and rows that follow from it.
//!
//! Thread safety: plain values.

use crate::row::{PartName, Sizes};
use crate::sqlite::JournalMode;
use crate::target::{Disk, System, Target};
use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use kvfs_bench::disk::{Device, EXT4, Kind, XFS};
use kvfs_bench::host;
use kvfs_bench::image::Image;
use kvfs_bench::options::Options;
use kvfs_bench::slow_disk::{HARD_DISK, SlowDisk};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Measure databases on kvfs, ext4 and XFS.
///
/// Run it as root on an idle machine. It starts servers of its own, as the users mysql and postgres, in
/// directories of its own, and never touches those of the system.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  kvfs-bench-db --kvfs target/release/kvfs --json db.json --plots db
  kvfs-bench-db --kvfs target/release/kvfs --sizes trial            to try the harness, in minutes
  kvfs-bench-db --kvfs target/release/kvfs --only sqlite --targets kvfs,ext4 --runs 5
  kvfs-bench-db --kvfs target/release/kvfs --json db.json --resume  after an interruption
  kvfs-bench-db --report db.json --plots db                         the tables again, without measuring"
)]
pub(crate) struct Args {
    /// The kvfs binary; without it kvfs is not measured
    #[arg(long, value_name = "PATH")]
    pub(crate) kvfs: Option<PathBuf>,

    /// Only these, separated by commas [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    targets: Vec<TargetName>,

    /// How often on targets with a slow device, which have no goals
    #[arg(long, default_value_t = 1, overrides_with = "slow_runs")]
    pub(crate) slow_runs: u32,

    /// How much is done
    #[arg(long, value_enum, default_value_t = Suite::Full, overrides_with = "sizes")]
    sizes: Suite,

    /// Only these parts, separated by commas
    #[arg(long, value_name = "PART", value_enum, value_delimiter = ',')]
    only: Vec<PartName>,

    /// Rows that are inserted one by one [default: by --sizes 5000, 1000, 200]
    #[arg(long, value_name = "COUNT")]
    rows: Option<u32>,

    /// Scale of pgbench: so many times 100,000 accounts [default: by --sizes 20, 5, 1]
    #[arg(long, value_name = "SCALE", value_parser = clap::value_parser!(u32).range(1..))]
    pgbench_scale: Option<u32>,

    /// Scales of TPC-C, separated by commas: warehouses of about 100 MB [default: by --sizes 2,6,15; 2,5; 1]
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    warehouses: Vec<u32>,

    /// Memory of TPC-C's server and the file system together (MiB), separated by commas [default: by --sizes
    /// 512,1024; 512; 512]
    #[arg(long, value_name = "MIB", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(384..))]
    memory: Vec<u32>,

    /// Clients of TPC-C
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    terminals: u32,

    /// How long each run of pgbench and TPC-C is measured [default: by --sizes 20, 10, 3]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,

    /// What the store of kvfs is kept in
    #[arg(long, value_enum, default_value_t = StoreIn::Loop)]
    store_in: StoreIn,

    #[command(flatten)]
    pub(crate) options: Options,

    /// Results of an earlier run on this machine with the same sizes: no row of kvfs may have become slower
    /// than these differ
    #[arg(long, value_name = "JSON")]
    pub(crate) before: Option<PathBuf>,

    /// Keep images and loaded databases for the next invocation
    #[arg(long)]
    pub(crate) keep: bool,

    /// Write rows into this database until killed: what the program starts itself as, to be killed
    #[arg(long, hide = true)]
    pub(crate) write_sqlite: Option<PathBuf>,

    /// Of that database
    #[arg(long, hide = true, value_enum, default_value_t = JournalMode::Wal)]
    pub(crate) journal_mode: JournalMode,
}

/// How much is done.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// What the goals are meant for
    Full,
    /// Less of everything
    Quick,
    /// To try the harness, not to quote
    Trial,
}

/// What the store of kvfs is kept in.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoreIn {
    /// The loop device that the other file systems are made on
    Loop,
    /// A file that grows as the store fills
    Growing,
}

/// Names for the targets.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TargetName {
    Kvfs,
    Ext4,
    Xfs,
    /// kvfs on a fast and a slow device
    KvfsTiered,
    KvfsSlow,
    Ext4Slow,
    XfsSlow,
}

impl TargetName {
    /// Its column.
    fn text(self) -> &'static str {
        match self {
            Self::Kvfs => "kvfs",
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::KvfsTiered => "kvfs tiered",
            Self::KvfsSlow => "kvfs slow",
            Self::Ext4Slow => "ext4 slow",
            Self::XfsSlow => "xfs slow",
        }
    }

    fn is_on_fast(self) -> bool {
        matches!(self, Self::Kvfs | Self::Ext4 | Self::Xfs | Self::KvfsTiered)
    }

    fn is_on_slow(self) -> bool {
        !self.is_on_fast() || self == Self::KvfsTiered
    }

    /// `None`: it is kvfs.
    fn kernel(self) -> Option<&'static Kind> {
        match self {
            Self::Ext4 | Self::Ext4Slow => Some(&EXT4),
            Self::Xfs | Self::XfsSlow => Some(&XFS),
            Self::Kvfs | Self::KvfsTiered | Self::KvfsSlow => None,
        }
    }
}

impl Args {
    /// Whether this part was asked for.
    pub(crate) fn wants(&self, part: PartName) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// How much each part does.
    pub(crate) fn sizes(&self) -> Sizes {
        let of_suite = |full, quick, trial| match self.sizes {
            Suite::Full => full,
            Suite::Quick => quick,
            Suite::Trial => trial,
        };
        Sizes {
            image_bytes: u64::from(of_suite(8_u32, 4, 1)) << 30,
            sqlite_rows: self.rows.unwrap_or(of_suite(5000, 1000, 200)),
            pgbench_scale: self.pgbench_scale.unwrap_or(of_suite(20, 5, 1)),
            warehouses: self.warehouses(),
            memories: self.memories(),
            terminals: self.terminals,
            seconds: self.seconds.unwrap_or(of_suite(20, 10, 3)).into(),
        }
    }

    fn warehouses(&self) -> Vec<u32> {
        let mut warehouses = match self.sizes {
            _ if !self.warehouses.is_empty() => self.warehouses.clone(),
            Suite::Full => vec![2, 6, 15],
            Suite::Quick => vec![2, 5],
            Suite::Trial => vec![1],
        };
        warehouses.sort_unstable();
        warehouses.dedup();
        warehouses
    }

    fn memories(&self) -> Vec<u64> {
        let mut mib = match self.sizes {
            _ if !self.memory.is_empty() => self.memory.clone(),
            Suite::Full => vec![512, 1024],
            Suite::Quick | Suite::Trial => vec![512],
        };
        mib.dedup();
        mib.into_iter().map(|mib| u64::from(mib) << 20).collect()
    }

    /// The targets in the order of the tables; those whose programs are missing are left out with a message.
    /// Mount points, stores and logs are made in `run_dir`.
    pub(crate) fn targets(&self, run_dir: &Path) -> Result<Vec<Target>> {
        let all = TargetName::value_variants();
        let names = if self.targets.is_empty() { all } else { &self.targets };
        let image = |name| Image::prepare(&self.options.work.join(name), self.sizes().image_bytes, self.keep);
        let (mut fast, mut slow) = (None, None);
        if names.iter().any(|name| name.is_on_fast()) {
            fast = Some(Rc::new(Disk::Fast(Device::new(image("db.img")?)?)));
        }
        if names.iter().any(|name| name.is_on_slow()) {
            slow = Some(Rc::new(Disk::Slow(SlowDisk::new(run_dir, image("db-slow.img")?, HARD_DISK)?)));
        }
        let mut targets = Vec::new();
        for name in names {
            let disks = [(name.is_on_fast(), &fast), (name.is_on_slow(), &slow)];
            let disks: Vec<Rc<Disk>> =
                disks.into_iter().filter(|(is_on, _)| *is_on).filter_map(|(_, disk)| disk.clone()).collect();
            targets.extend(match name.kernel() {
                Some(kind) => kernel(name.text(), kind, disks, run_dir)?,
                None => self.kvfs(name.text(), disks, run_dir)?,
            });
        }
        Ok(targets)
    }

    fn kvfs(&self, name: &'static str, devices: Vec<Rc<Disk>>, run_dir: &Path) -> Result<Option<Target>> {
        let Some(program) = &self.kvfs else { return Ok(None) };
        let program =
            program.canonicalize().with_context(|| format!("there is no program {}", program.display()))?;
        let grows_to =
            (self.store_in == StoreIn::Growing && name == "kvfs").then_some(self.sizes().image_bytes);
        let system = System::kvfs(program, run_dir, name, grows_to);
        Ok(Some(Target::new(name, system, devices, run_dir)?))
    }
}

/// `None` when its program is missing.
fn kernel(
    name: &'static str,
    kind: &'static Kind,
    devices: Vec<Rc<Disk>>,
    run_dir: &Path,
) -> Result<Option<Target>> {
    if !host::has_program(kind.mkfs) {
        eprintln!("{} is missing: {name} is not measured", kind.mkfs);
        return Ok(None);
    }
    Ok(Some(Target::new(name, System::Kernel(kind), devices, run_dir)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_the_makefile_gives_may_be_given_again() {
        let line = "kvfs-bench-db --runs 3 --json a --runs 1 --json b --only sqlite --targets kvfs,ext4";
        let args = Args::parse_from(line.split(' '));
        assert!(args.options.runs == 1 && args.options.json == Some("b".into()) && args.targets.len() == 2);
        assert!(args.wants(PartName::Sqlite));
    }
}
