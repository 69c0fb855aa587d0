//! `kvfs mount`: from arguments to a [`Plan`], and then into the daemon.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use kvfs_fs::AtimePolicy;
use kvfs_fuse::mount::{AtimeMode, MountOptions};

use super::remount;
use crate::args::{Command, MountArgs};
use crate::daemon::{self, Plan};
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::store_dir::StoreDir;
use kvfs_open::{Memory, OpenOptions};
use options::{Asked, Ours, SLOW, TXN_IDLE, UNDO_AGE, UNDO_COUNT};

pub(crate) mod options;

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
        (ours.follow, "follow"),
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
    /// Switches have the last word.
    fn asked(&self) -> Result<Asked> {
        let allow_other = rustix::process::geteuid().is_root();
        let mount = MountOptions { allow_other, ..Default::default() };
        let mut asked = Asked { mount, ours: Ours::default() };
        for list in self.options {
            asked.apply(list, self.sloppy)?;
        }
        let ours = &mut asked.ours;
        ours.create |= self.create;
        ours.size = self.size.or(ours.size);
        ours.memory = self.memory.or(ours.memory);
        ours.workers = self.workers.or(ours.workers);
        Ok(asked)
    }

    pub(super) fn plan(&self) -> Result<Plan> {
        let asked = self.asked()?;
        let Asked { mount, ours } = asked.clone();
        if self.dir.is_none() {
            check_needs_no_mount(&ours, &mount)?;
        }
        if ours.follow && ours.writeback {
            let message =
                "with writeback the kernel takes no sizes and times from elsewhere, which follow brings";
            return Err(CliError::new(Code::Usage, message.to_owned()));
        }
        Ok(Plan {
            store: if kvfs_open::is_url(self.store) {
                kvfs_open::directory_of_url(self.store)?
            } else {
                mounts::resolve(self.store)?
            },
            dir: self.dir.map(mounts::resolve).transpose()?,
            store_owner: ours.store_owner,
            create: ours.create,
            while_used: self.while_used,
            size: ours.size,
            nonempty: ours.nonempty,
            writeback: ours.writeback,
            steers: !ours.nosteer,
            io_uring: ours.io_uring,
            nobtime: ours.nobtime,
            workers: ours.workers.map(usize::from),
            metrics: ours.metrics,
            slow: Some(ours.slow.unwrap_or(SLOW)).filter(|&slow| slow != Duration::MAX),
            cache_trace: ours.cache_trace.as_deref().map(mounts::resolve).transpose()?,
            open: OpenOptions {
                memory: Memory::new(ours.memory)?,
                read_only: mount.read_only,
                follows: ours.follow,
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
                dirty_bytes: ours.dirty_bytes,
                undo: Some((ours.undo_count.unwrap_or(UNDO_COUNT), ours.undo_age.unwrap_or(UNDO_AGE))),
                io_limit: ours.io_limit,
                cache_policy: ours.cache.unwrap_or_default(),
                placement: ours.placement,
                txn_idle: Some(ours.txn_idle.unwrap_or(TXN_IDLE)).filter(|&idle| idle != Duration::MAX),
                cache_bytes: ours.cache_bytes,
                lease: ours.lease,
                timeout: ours.timeout,
                journals_locally: ours.local_journal,
                takes_over: ours.take_over,
                private_snapshots: ours.private_snapshots,
            },
            mount,
            asked,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use kvfs_kvdb::Policy;

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
            "ro,noexec,commit=0.5,dirty_bytes=64M",
            "noatime,no_allow_other,nonempty,writeback,lazytime,nobtime,nosteer,io_uring",
        ];
        let plan = planned(&options).expect("is valid");
        assert!(!plan.steers && planned(&[]).expect("is valid").steers);
        assert!(plan.io_uring && !planned(&[]).expect("is valid").io_uring);
        assert!(planned(&["private_snapshots"]).expect("is valid").open.private_snapshots);
        let followed = planned(&["ro,follow"]).expect("is valid").open;
        assert!(followed.follows && followed.read_only && !plan.open.follows);
        assert!(planned(&["ro,follow,writeback"]).is_err_and(|error| error.message.contains("follow")));
        let lease = |option| planned(&[option]).expect("is valid").open.lease;
        assert_eq!((lease("lease=5s"), lease("rw")), (Some(Duration::from_secs(5)), None));
        let timeout = |option| planned(&[option]).expect("is valid").open.timeout;
        assert_eq!(
            (timeout("timeout=90s"), timeout("timeout=0"), timeout("rw")),
            (Some(Duration::from_secs(90)), Some(Duration::ZERO), None)
        );
        let remote = planned(&["take_over,cache_size=2G"]).expect("is valid").open;
        assert_eq!((remote.takes_over, remote.cache_bytes), (true, Some(2 << 30)));
        assert!(!plan.open.takes_over && plan.open.cache_bytes.is_none());
        assert!(plan.open.lazytime && plan.nobtime && !plan.open.private_snapshots);
        let plain = planned(&["lazytime,nolazytime"]).expect("is valid");
        assert!(!plain.open.lazytime && !plain.nobtime);
        assert!(plan.writeback && !planned(&[]).expect("is valid").writeback);
        assert!(plan.mount.read_only && plan.mount.noexec && !plan.mount.allow_other && plan.nonempty);
        assert!(plan.open.read_only);
        assert_eq!(plan.open.atime, AtimePolicy::Noatime);
        assert_eq!(plan.open.commit_interval, Some(Duration::from_millis(500)));
        assert_eq!(plan.open.dirty_bytes, Some(64 << 20));
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
            "lease=soon",
            "timeout=soon",
            "metrics=0.0.0.0:9100",
            "memory=x",
            "memory=1M",
            "workers=0",
            "size=",
            "dirty_bytes=x",
            "dirty_bytes=1K",
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
