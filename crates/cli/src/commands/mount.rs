//! `kvfs mount`: from arguments to a [`Plan`], and then into the daemon.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use kvfs_fs::AtimePolicy;
use kvfs_fuse::mount::{AtimeMode, MountOptions};
use kvfs_kvdb::{Placement, Policy};

use super::remount;
use crate::args::{Command, MountArgs};
use crate::daemon::metrics::MetricsPlace;
use crate::daemon::{self, Plan};
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::names::Table;
use crate::store_dir::StoreDir;
use crate::units::{parse_duration, parse_duration_or_ever, parse_size};
use kvfs_open::{Memory, OpenOptions};

/// Longest commit interval that makes sense (seconds).
const COMMIT_SECONDS_MAX: f64 = 3600.0;

/// Transactions that can be taken back, and how long, unless told otherwise.
const UNDO_COUNT: usize = 16;
const UNDO_AGE: Duration = Duration::from_hours(1);

/// Each one that is kept is two more positions of which merges keep the versions.
const UNDO_COUNT_MAX: usize = 1000;

/// How long a transaction may go without an operation, unless told otherwise: what is forgotten is not kept for good, and
/// what a user comes back to after a day's work is.
const TXN_IDLE: Duration = Duration::from_hours(8);

/// Operations that take as long are told of in the log, unless told otherwise.
const SLOW: Duration = Duration::from_secs(1);

/// Less would not even keep up with an idle store (bytes each second).
const IO_LIMIT_MIN: u64 = 64 << 10;

/// More threads than this do not help.
const WORKERS_MAX: u16 = 256;

/// `words`: all of the command line, the program's name first.
pub(crate) fn run(args: &MountArgs, words: &[OsString]) -> Result<ExitCode> {
    if remount::is_asked_for(args) {
        return remount::run(args);
    }
    let plan = plan(args)?;
    if args.in_background {
        daemon::background::serve(&plan)
    } else if args.foreground {
        daemon::serve(&plan, daemon::log::Target::Terminal, || Ok(()))
    } else {
        daemon::background::start(words, "mounting")
    }
}

/// Whether the arguments of a mount make sense; nothing is mounted.
pub(crate) fn check(command: &Command) -> Result<ExitCode> {
    let Command::Mount(args) = command else { return Ok(ExitCode::SUCCESS) };
    if remount::is_asked_for(args) {
        return mounts::required(&args.dir).map(|_| ExitCode::SUCCESS);
    }
    let plan = plan(args)?;
    if !plan.create || StoreDir::is_occupied(&plan.store) {
        StoreDir::open(&plan.store)?.check_owner(plan.store_owner)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn plan(args: &MountArgs) -> Result<Plan> {
    let wish = Wish {
        store: &args.store,
        dir: Some(&args.dir),
        create: args.create,
        while_used: false,
        size: args.size,
        memory: args.memory,
        workers: args.workers,
        options: &args.options,
        sloppy: args.sloppy,
    };
    wish.plan()
}

/// What a command line asks of a daemon.
pub(super) struct Wish<'a> {
    pub(super) store: &'a Path,
    /// `None`: nowhere.
    pub(super) dir: Option<&'a Path>,
    pub(super) create: bool,
    pub(super) while_used: bool,
    pub(super) size: Option<u64>,
    pub(super) memory: Option<u64>,
    pub(super) workers: Option<u16>,
    pub(super) options: &'a [String],
    /// Unknown options are passed over.
    pub(super) sloppy: bool,
}

/// Refuses what says how a mount is where there is none.
fn check_needs_no_mount(ours: &Ours, mount: &MountOptions) -> Result<()> {
    let is_of_mount = [
        (ours.nonempty, "nonempty"),
        (ours.writeback, "writeback"),
        (ours.nosteer, "nosteer"),
        (ours.io_uring, "io_uring"),
        (ours.nobtime, "nobtime"),
        (ours.workers.is_some(), "workers"),
        (mount.nosuid, "nosuid"),
        (mount.nodev, "nodev"),
        (mount.noexec, "noexec"),
    ];
    let found = is_of_mount.iter().find(|(is_there, _)| *is_there);
    found.map_or(Ok(()), |(_, option)| {
        Err(CliError::new(Code::Usage, format!("{option} is about a mount, and `kvfs serve` makes none")))
    })
}

impl Wish<'_> {
    pub(super) fn plan(&self) -> Result<Plan> {
        let mut mount =
            MountOptions { allow_other: rustix::process::geteuid().is_root(), ..Default::default() };
        let mut ours = Ours::default();
        for list in self.options {
            for option in mount.apply(list).map_err(|error| CliError::new(Code::Usage, error.to_string()))? {
                if !ours.apply(option, &mut mount)? && !self.sloppy {
                    return Err(CliError::new(
                        Code::Usage,
                        format!("unknown mount option \"{option}\"; `kvfs mount --help` lists them"),
                    ));
                }
            }
        }
        if self.dir.is_none() {
            check_needs_no_mount(&ours, &mount)?;
        }
        Ok(Plan {
            store: mounts::resolve(self.store)?,
            dir: self.dir.map(mounts::resolve).transpose()?,
            store_owner: ours.store_owner,
            create: self.create || ours.create,
            while_used: self.while_used,
            size: self.size.or(ours.size),
            nonempty: ours.nonempty,
            writeback: ours.writeback,
            steers: !ours.nosteer,
            io_uring: ours.io_uring,
            nobtime: ours.nobtime,
            workers: self.workers.or(ours.workers).map(usize::from),
            metrics: ours.metrics,
            slow: Some(ours.slow.unwrap_or(SLOW)).filter(|&slow| slow != Duration::MAX),
            cache_trace: ours.cache_trace.as_deref().map(mounts::resolve).transpose()?,
            open: OpenOptions {
                memory: Memory::new(self.memory.or(ours.memory))?,
                read_only: mount.read_only,
                degraded: true,
                atime: match mount.atime {
                    AtimeMode::Relatime => AtimePolicy::Relatime,
                    AtimeMode::Noatime => AtimePolicy::Noatime,
                },
                nodiratime: mount.nodiratime,
                // Without permission checks in the kernel, lists would change that.
                no_acls: ours.noacl || !mount.default_permissions,
                lazytime: ours.lazytime,
                commit_interval: ours.commit_interval,
                undo: Some((ours.undo_count.unwrap_or(UNDO_COUNT), ours.undo_age.unwrap_or(UNDO_AGE))),
                io_limit: ours.io_limit,
                cache_policy: ours.cache.unwrap_or_default(),
                placement: ours.placement,
                txn_idle: Some(ours.txn_idle.unwrap_or(TXN_IDLE)).filter(|&idle| idle != Duration::MAX),
                private_snapshots: ours.private_snapshots,
            },
            mount,
        })
    }
}

/// Options that the FUSE layer leaves to us.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
struct Ours {
    nonempty: bool,
    writeback: bool,
    nosteer: bool,
    io_uring: bool,
    noacl: bool,
    lazytime: bool,
    nobtime: bool,
    commit_interval: Option<Duration>,
    undo_count: Option<usize>,
    undo_age: Option<Duration>,
    txn_idle: Option<Duration>,
    slow: Option<Duration>,
    metrics: Option<MetricsPlace>,
    create: bool,
    size: Option<u64>,
    memory: Option<u64>,
    workers: Option<u16>,
    io_limit: Option<u64>,
    cache: Option<Policy>,
    placement: Option<Placement>,
    cache_trace: Option<PathBuf>,
    private_snapshots: bool,
    store_owner: Option<u32>,
}

impl Ours {
    /// False: the option is unknown.
    fn apply(&mut self, option: &str, mount: &mut MountOptions) -> Result<bool> {
        match option.split_once('=') {
            None if option == "nonempty" => self.nonempty = true,
            None if option == "writeback" => self.writeback = true,
            None if option == "nosteer" => self.nosteer = true,
            None if option == "io_uring" => self.io_uring = true,
            None if option == "acl" => self.noacl = false,
            None if option == "noacl" => self.noacl = true,
            None if option == "lazytime" => self.lazytime = true,
            None if option == "nolazytime" => self.lazytime = false,
            None if option == "nobtime" => self.nobtime = true,
            None if option == "no_allow_other" => mount.allow_other = false,
            Some(("commit", seconds)) => self.commit_interval = Some(parse_commit(seconds)?),
            Some(("undo_count", count)) => self.undo_count = Some(parse_undo_count(count)?),
            Some(("undo_age", age)) => self.undo_age = Some(parse_undo_age(age)?),
            Some(("slow", time)) => self.slow = Some(parse_slow(time)?),
            Some(("metrics", place)) => self.metrics = Some(parse_metrics(place)?),
            Some(("txn_idle", time)) => self.txn_idle = Some(parse_txn_idle(time)?),
            None if option == "private_snapshots" => self.private_snapshots = true,
            None if option == "create" => self.create = true,
            Some(("size", size)) => self.size = Some(parse_bytes(option, size)?),
            Some(("memory", size)) => self.memory = Some(parse_bytes(option, size)?),
            Some(("workers", count)) => self.workers = Some(parse_workers(count)?),
            Some(("store_owner", name)) => self.store_owner = Some(parse_owner(option, name)?),
            Some(("cache", policy)) => self.cache = Some(parse_cache_policy(policy)?),
            Some(("placement", policy)) => self.placement = Some(parse_placement(policy)?),
            Some(("cache_trace", path)) if !path.is_empty() => self.cache_trace = Some(path.into()),
            Some(("io_limit", size)) => self.io_limit = parse_io_limit(option, size)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn parse_commit(text: &str) -> Result<Duration> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= COMMIT_SECONDS_MAX => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(CliError::new(
            Code::Usage,
            format!("commit={text}: seconds, more than 0 and at most {COMMIT_SECONDS_MAX}"),
        )),
    }
}

fn parse_bytes(option: &str, text: &str) -> Result<u64> {
    parse_size(text).map_err(|error| CliError::new(Code::Usage, format!("{option}: {error}")))
}

/// 0: none.
fn parse_io_limit(option: &str, text: &str) -> Result<Option<u64>> {
    let bytes = parse_bytes(option, text)?;
    if (1..IO_LIMIT_MIN).contains(&bytes) {
        let least = format!("{option}: at least {} KiB each second, or 0 for no limit", IO_LIMIT_MIN >> 10);
        return Err(CliError::new(Code::Usage, least));
    }
    Ok(Some(bytes).filter(|&bytes| bytes > 0))
}

pub(super) fn parse_cache_policy(text: &str) -> Result<Policy> {
    text.parse().map_err(|error| CliError::new(Code::Usage, format!("cache={text}: {error}")))
}

pub(super) fn parse_placement(text: &str) -> Result<Placement> {
    text.parse().map_err(|error| CliError::new(Code::Usage, format!("placement={text}: {error}")))
}

fn parse_owner(option: &str, name: &str) -> Result<u32> {
    Table::Users.number(name).map_err(|error| CliError::new(error.code, format!("{option}: {error}")))
}

fn parse_workers(text: &str) -> Result<u16> {
    let count = text.parse().ok().filter(|count| (1..=WORKERS_MAX).contains(count));
    count.ok_or_else(|| {
        CliError::new(Code::Usage, format!("workers={text}: a number from 1 to {WORKERS_MAX}"))
    })
}

fn parse_undo_count(text: &str) -> Result<usize> {
    let count = text.parse().ok().filter(|&count| count <= UNDO_COUNT_MAX);
    count.ok_or_else(|| {
        CliError::new(Code::Usage, format!("undo_count={text}: a number, at most {UNDO_COUNT_MAX}"))
    })
}

fn parse_undo_age(text: &str) -> Result<Duration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    parse_duration(text).map_err(|error| CliError::new(Code::Usage, format!("undo_age={text}: {error}")))
}

fn parse_txn_idle(text: &str) -> Result<Duration> {
    parse_duration_or_ever(text)
        .map_err(|error| CliError::new(Code::Usage, format!("txn_idle={text}: {error}")))
}

fn parse_slow(text: &str) -> Result<Duration> {
    parse_duration_or_ever(text).map_err(|error| CliError::new(Code::Usage, format!("slow={text}: {error}")))
}

fn parse_metrics(text: &str) -> Result<MetricsPlace> {
    text.parse().map_err(|error| CliError::new(Code::Usage, format!("metrics={text}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(options: &[&str]) -> Result<Plan> {
        plan(&args(options))
    }

    fn args(options: &[&str]) -> MountArgs {
        MountArgs {
            store: PathBuf::from("/store"),
            dir: PathBuf::from("/mnt"),
            create: false,
            foreground: false,
            options: options.iter().map(|&text| text.to_owned()).collect(),
            memory: None,
            workers: None,
            size: None,
            sloppy: options.contains(&"sloppy"),
            in_background: false,
        }
    }

    #[test]
    fn options_reach_kernel_engine_and_file_system() {
        let options = [
            "ro,noexec,commit=0.5",
            "noatime,no_allow_other,nonempty,writeback,lazytime,nobtime,nosteer,io_uring",
        ];
        let plan = planned(&options).expect("is valid");
        assert!(!plan.steers && planned(&[]).expect("is valid").steers);
        assert!(plan.io_uring && !planned(&[]).expect("is valid").io_uring);
        assert!(planned(&["private_snapshots"]).expect("is valid").open.private_snapshots);
        assert!(plan.open.lazytime && plan.nobtime && !plan.open.private_snapshots);
        let plain = planned(&["lazytime,nolazytime"]).expect("is valid");
        assert!(!plain.open.lazytime && !plain.nobtime);
        assert!(plan.writeback && !planned(&[]).expect("is valid").writeback);
        assert!(plan.mount.read_only && plan.mount.noexec && !plan.mount.allow_other && plan.nonempty);
        assert!(plan.open.read_only);
        assert_eq!(plan.open.atime, AtimePolicy::Noatime);
        assert_eq!(plan.open.commit_interval, Some(Duration::from_millis(500)));
        assert_eq!(plan.open.undo, Some((UNDO_COUNT, UNDO_AGE)));
        assert!(!plan.open.no_acls && planned(&["noacl"]).expect("is valid").open.no_acls);
        let idle = |option| planned(&[option]).expect("is valid").open.txn_idle;
        assert_eq!(idle("rw"), Some(TXN_IDLE));
        assert_eq!((idle("txn_idle=30s"), idle("txn_idle=0")), (Some(Duration::from_secs(30)), None));
        let slow = |option| planned(&[option]).expect("is valid").slow;
        assert_eq!(
            (slow("rw"), slow("slow=20ms"), slow("slow=0")),
            (Some(SLOW), Some(Duration::from_millis(20)), None)
        );
        let limits = [("io_limit=50M", Some(50 << 20)), ("io_limit=0", None), ("rw", None)];
        for (option, limit) in limits {
            assert_eq!(planned(&[option]).expect("is valid").open.io_limit, limit);
        }
        for policy in Policy::ALL {
            let plan = planned(&[&format!("cache={policy}")]).expect("is valid");
            assert_eq!(plan.open.cache_policy, policy);
        }
        assert_eq!(planned(&[]).expect("is valid").open.cache_policy, Policy::default());
        let placement = planned(&["placement=hot-cold+endurance:20G"]).expect("is valid").open.placement;
        assert_eq!(
            placement.map(|placement| placement.to_string()).as_deref(),
            Some("hot-cold+endurance:20G")
        );
        assert_eq!(planned(&[]).expect("is valid").open.placement, None, "the store keeps it");
        let trace = planned(&["cache_trace=/tmp/./a.trace"]).expect("is valid").cache_trace;
        assert_eq!(trace.as_deref(), Some(Path::new("/tmp/a.trace")));
        assert_eq!(planned(&["store_owner=1000"]).expect("is valid").store_owner, Some(1000));
        assert_eq!(planned(&["store_owner=root"]).expect("is valid").store_owner, Some(0));
        let plan = planned(&["undo_count=0,undo_age=30m"]).expect("is valid");
        assert_eq!(plan.open.undo, Some((0, Duration::from_mins(30))));
    }

    #[test]
    fn lines_of_fstab_say_everything_with_options() {
        let list =
            "rw,defaults,_netdev,noauto,nofail,user=me,x-systemd.automount,X-mount.mkdir,comment=a,uhelper=b";
        let plan = planned(&[list, "memory=512M,workers=3,size=2G,create"]).expect("is valid");
        assert_eq!(plan.open.memory.bytes(), 512 << 20);
        assert_eq!((plan.workers, plan.size, plan.create), (Some(3), Some(2 << 30), true));
        assert!(planned(&["sloppy", "sparkle"]).is_ok(), "mount -s passes over what is not known");
    }

    #[test]
    fn a_mount_that_is_only_checked_needs_no_store_that_it_would_make() {
        let checked = |options: &[&str]| {
            let store = PathBuf::from("/nowhere/at/all");
            check(&Command::Mount(MountArgs { store, ..args(options) }))
        };
        assert!(checked(&["create"]).is_ok());
        assert!(checked(&[]).is_err());
    }

    #[test]
    fn options_that_make_no_sense_are_named() {
        for wrong in [
            "commit=0",
            "commit=-1",
            "commit=x",
            "commit",
            "commit=inf",
            "sparkle",
            "sparkle=1",
            "undo_count=x",
            "undo_count=-1",
            "undo_count=1001",
            "undo_age=x",
            "txn_idle=x",
            "slow=soon",
            "metrics=0.0.0.0:9100",
            "memory=x",
            "memory=1M",
            "workers=0",
            "size=",
            "io_limit=x",
            "io_limit=1K",
            "cache=",
            "cache=clock",
            "placement=hot",
            "cache_trace=",
            "store_owner=no such user",
        ] {
            let error = planned(&[wrong]).expect_err("is refused");
            assert_eq!(error.code, Code::Usage, "{wrong}");
            let name = wrong.split('=').next().unwrap_or_default();
            assert!(error.message.contains(name), "{}", error.message);
        }
    }
}
