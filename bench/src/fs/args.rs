//! What the command line says, and the targets that follow from it.
//!
//! Thread safety: plain values.

use crate::target::{
    Aged, BINDFS, Backing, Disk, Exec, ExecClient, Floor, GOCRYPTFS, Kvfs, KvfsOptions, Library, Overlay,
    OverlayKind, Target,
};
use crate::workload::ScenarioName;
use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use kvfs_bench::disk::{BTRFS, Device, EXT4, Kind, XFS};
use kvfs_bench::host;
use kvfs_bench::image::Image;
use kvfs_bench::options::Options;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Measure kvfs beside other file systems and the in-memory FUSE floor.
///
/// Run it as root on an idle machine. It drops the kernel's caches again and again, and needs
/// twice --size of disk.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  kvfs-bench --kvfs target/release/kvfs --floor target/release/examples/floor --json bench.json --plots bench
  kvfs-bench --sizes trial --targets ext4 --only small       to try the harness, in seconds
  kvfs-bench --kvfs target/release/kvfs --targets kvfs,ext4 --only tree --runs 3 --json bench.json --resume
  kvfs-bench --report bench.json --plots bench               the tables again, without measuring
  kvfs-bench --report after.json --before before.json        what a change has made faster or slower"
)]
pub(crate) struct Args {
    /// The kvfs binary; without it kvfs is not measured
    #[arg(long, value_name = "PATH")]
    pub(crate) kvfs: Option<PathBuf>,

    /// The in-memory FUSE server; without it the floor is not measured
    #[arg(long, value_name = "PATH")]
    pub(crate) floor: Option<PathBuf>,

    /// Only these, separated by commas [default: all whose programs are there]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) targets: Vec<TargetName>,

    /// How much the workloads do
    #[arg(long, value_enum, default_value_t = Suite::Full, overrides_with = "sizes")]
    pub(crate) sizes: Suite,

    /// Only these scenarios, separated by commas
    #[arg(long, value_name = "SCENARIO", value_enum, value_delimiter = ',')]
    pub(crate) only: Vec<ScenarioName>,

    /// Size of the image and of the store [default: by --sizes 20G, 4G, 2G, 8G]
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

    /// The tarball to unpack (.tar, or .tar.xz) [default: Debian's Linux source, fetched once; a part of it
    /// but with --sizes full]
    #[arg(long, value_name = "PATH")]
    pub(crate) tar: Option<PathBuf>,

    /// Draw a flame graph of every workload into this directory; times are not to be quoted then
    #[arg(long, value_name = "DIR")]
    pub(crate) flames: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) options: Options,

    /// Results of an earlier run on this machine with the same sizes: no row of kvfs may have become slower
    /// than these differ
    #[arg(long, value_name = "JSON")]
    pub(crate) before: Option<PathBuf>,

    /// With --sizes aged: how often the capacity is written before [default: 10]
    #[arg(long, value_name = "TIMES")]
    age: Option<u64>,

    /// Keep the images for the next invocation
    #[arg(long)]
    keep_images: bool,
}

/// How much is done.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// What the goals are meant for
    Full,
    /// A tenth
    Quick,
    /// A hundredth: to try the harness, not to quote
    Trial,
    /// A fourth or an eighth, on kvfs and ext4, fresh and aged
    Aged,
}

impl Suite {
    /// Of the full sizes.
    pub(crate) fn divisor(self) -> u32 {
        match self {
            Self::Full => 1,
            Self::Quick => 10,
            Self::Trial => 100,
            Self::Aged => 8,
        }
    }

    fn image_bytes(self) -> u64 {
        let gib = match self {
            Self::Full => 20,
            Self::Quick => 4,
            Self::Trial => 2,
            Self::Aged => 8,
        };
        gib << 30
    }
}

/// See [`Backing`].
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum StoreIn {
    /// A file that grows as the store fills
    Growing,
    /// A file written in full before, as under the kernel's file systems
    Image,
    /// The loop device that the kernel's file systems are made on
    Loop,
}

/// Names for the targets.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetName {
    Kvfs,
    Ext4,
    Xfs,
    Btrfs,
    Bindfs,
    Gocryptfs,
    Floor,
    /// kvfs in the process of the benchmark
    Library,
    /// kvfs without a mount: programs under `kvfs exec`
    Exec,
    /// The same beside a mount, by its daemon
    ExecClient,
}

impl TargetName {
    /// The program that has to be installed for it, and the package that has it.
    fn needs(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Kvfs | Self::Library | Self::Exec | Self::ExecClient | Self::Floor => None,
            Self::Ext4 => Some(("mkfs.ext4", "e2fsprogs")),
            Self::Xfs => Some(("mkfs.xfs", "xfsprogs")),
            Self::Btrfs => Some(("mkfs.btrfs", "btrfs-progs")),
            Self::Bindfs => Some(("bindfs", "bindfs")),
            Self::Gocryptfs => Some(("gocryptfs", "gocryptfs")),
        }
    }
}

/// Everything that the targets are made from.
struct Maker<'a> {
    args: &'a Args,
    run_dir: &'a Path,
    size_bytes: u64,
    /// Shared by all that need a device; made for the first.
    device: Option<Rc<Device>>,
}

/// The targets in the order of the tables; those whose programs are missing are left out with a message.
pub(crate) fn targets(args: &Args, run_dir: &Path) -> Result<Vec<Box<dyn Target>>> {
    let size_bytes = args.size.unwrap_or(args.sizes.image_bytes());
    let mut maker = Maker { args, run_dir, size_bytes, device: None };
    let names: Vec<TargetName> = match (args.targets.as_slice(), args.sizes) {
        ([], Suite::Aged) => vec![TargetName::Kvfs, TargetName::Ext4],
        ([], _) => TargetName::value_variants().to_vec(),
        (names, _) => names.to_vec(),
    };
    let mut targets: Vec<Box<dyn Target>> = Vec::new();
    for name in names {
        targets.extend(maker.target(name, "")?);
        if args.sizes == Suite::Aged {
            targets.extend(maker.aged(name)?);
        }
    }
    Ok(targets)
}

impl Maker<'_> {
    /// `None` when its program is missing. `suffix` keeps files apart when there are two of a kind.
    fn target(&mut self, name: TargetName, suffix: &str) -> Result<Option<Box<dyn Target>>> {
        if let Some((program, package)) = name.needs()
            && !host::has_program(program)
        {
            eprintln!("{program} is missing (package {package}): not measured");
            return Ok(None);
        }
        Ok(Some(match name {
            TargetName::Kvfs => match &self.args.kvfs {
                Some(program) => Box::new(self.kvfs(program, suffix)?),
                None => return Ok(None),
            },
            TargetName::Library => match &self.args.kvfs {
                Some(program) => {
                    let kvfs = self.kvfs(program, "-library")?;
                    Box::new(Library::new(kvfs, self.args.memory)?)
                }
                None => return Ok(None),
            },
            TargetName::Exec => match &self.args.kvfs {
                Some(program) => Box::new(Exec::new(self.kvfs(program, "-exec")?)),
                None => return Ok(None),
            },
            TargetName::ExecClient => match &self.args.kvfs {
                Some(program) => Box::new(ExecClient::new(self.kvfs(program, "-exec-client")?)),
                None => return Ok(None),
            },
            TargetName::Floor => match &self.args.floor {
                Some(program) => {
                    let (dir, log) = (self.run_dir.join("floor"), self.run_dir.join("floor.log"));
                    Box::new(Floor::new(existing(program)?, dir, log)?)
                }
                None => return Ok(None),
            },
            TargetName::Ext4 => self.disk(&EXT4, suffix)?,
            TargetName::Xfs => self.disk(&XFS, suffix)?,
            TargetName::Btrfs => self.disk(&BTRFS, suffix)?,
            TargetName::Bindfs => self.overlay(&BINDFS)?,
            TargetName::Gocryptfs => self.overlay(&GOCRYPTFS)?,
        }))
    }

    /// With an image and a store of its own, which keep their age.
    fn aged(&mut self, name: TargetName) -> Result<Option<Box<dyn Target>>> {
        let aged_name = match name {
            TargetName::Kvfs => "kvfs aged",
            TargetName::Ext4 => "ext4 aged",
            TargetName::Xfs => "xfs aged",
            TargetName::Btrfs => "btrfs aged",
            _ => bail!("--sizes aged is for kvfs, ext4, xfs and btrfs"),
        };
        let fresh = self.device.take();
        let inner = self.target(name, "-aged");
        self.device = fresh;
        let aged = |inner| Box::new(Aged::new(inner, aged_name, self.args.age)) as Box<dyn Target>;
        Ok(inner?.map(aged))
    }

    fn image(&self, name: &str) -> Result<Image> {
        Image::prepare(&self.args.options.work.join(name), self.size_bytes, self.args.keep_images)
    }

    fn device(&mut self, suffix: &str) -> Result<Rc<Device>> {
        if let Some(device) = &self.device {
            return Ok(Rc::clone(device));
        }
        let device = Rc::new(Device::new(self.image(&format!("disk{suffix}.img"))?)?);
        Ok(Rc::clone(self.device.insert(device)))
    }

    fn disk(&mut self, kind: &'static Kind, suffix: &str) -> Result<Box<dyn Target>> {
        let suffix = if suffix.is_empty() { String::new() } else { format!("{suffix}-{}", kind.name) };
        let dir = self.run_dir.join(format!("{}{suffix}", kind.name));
        Ok(Box::new(Disk::new(kind, dir, self.device(&suffix)?)?))
    }

    fn overlay(&mut self, kind: &'static OverlayKind) -> Result<Box<dyn Target>> {
        Ok(Box::new(Overlay::new(kind, self.run_dir, self.device("")?)?))
    }

    fn kvfs(&mut self, program: &Path, suffix: &str) -> Result<Kvfs> {
        let args = self.args;
        let options = KvfsOptions {
            program: existing(program)?,
            size_bytes: self.size_bytes,
            memory_bytes: args.memory,
            default_memory_bytes: (host::memory_total_bytes()? / 4).min(2 << 30),
            mkfs_args: args.mkfs_arg.clone(),
            mount_args: args.mount_arg.clone(),
        };
        let backing = match args.store_in {
            StoreIn::Growing => Backing::Growing,
            StoreIn::Image => Backing::Image(self.image(&format!("kvfs{suffix}.img"))?),
            StoreIn::Loop => Backing::Device(self.device(suffix)?),
        };
        let path = |end: &str| self.run_dir.join(format!("kvfs{suffix}{end}"));
        Kvfs::new(options, backing, path(".store"), path(""), path(".log"))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_makefile_gives_may_be_given_again() {
        let line = "kvfs-bench --sizes full --runs 3 --runs 1 --sizes trial";
        let args = Args::parse_from(line.split(' '));
        assert!(args.options.runs == 1 && args.sizes == Suite::Trial);
    }
}
