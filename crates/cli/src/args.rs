//! The command line, as clap sees it.

mod branch;
mod clone;
mod copy;
mod debug;
mod defrag;
mod exec;
mod front;
mod grow;
mod heat;
mod kv;
mod mkfs;
mod property;
mod quota;
mod repository;
mod rm;
mod serve;
mod snapshot;
mod tier;
mod top;
mod trace;
mod txn;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::units::parse_size;
pub(crate) use branch::{BranchArgs, BranchCommand};
pub(crate) use clone::CloneArgs;
pub(crate) use copy::CopyArgs;
pub(crate) use debug::{DebugArgs, DebugCommand, DebugLeaksArgs, DebugLocksArgs};
pub(crate) use defrag::{DefragArgs, PolicyArg};
pub(crate) use exec::{ExecArgs, StaticArg};
pub(crate) use front::{CompletionsArgs, PagesArgs, StatusArgs, SyncArgs, TableForm};
pub(crate) use grow::GrowArgs;
pub(crate) use heat::HeatArgs;
pub(crate) use kv::{KvArgs, KvCommand, KvRange};
pub(crate) use mkfs::{MkfsArgs, NewStoreArgs};
pub(crate) use property::{GetArgs, SetArgs, Setting};
pub(crate) use quota::{ProjectCommand, QuotaArgs, QuotaCommand, QuotaOf};
pub(crate) use repository::{PlaceArgs, PruneArgs, RepositoryArgs, RepositoryCommand};
pub(crate) use rm::RmArgs;
pub(crate) use serve::ServeArgs;
pub(crate) use snapshot::{
    PullArgs, PushArgs, ReceiveArgs, SendArgs, SnapshotArgs, SnapshotCommand, TargetArgs,
};
pub(crate) use tier::{
    DeviceArg, TierAddArgs, TierArgs, TierCommand, TierDevicesArgs, TierDrainArgs, TierLimitArgs,
    TierListArgs, TierPlacementArgs,
};
pub(crate) use top::TopArgs;
pub(crate) use trace::TraceArgs;
pub(crate) use txn::{BeginArgs, IsolationArg, RunArgs, TxnArgs, TxnCommand, TxnLockArgs};

const AFTER_HELP: &str = "\
Examples:
  kvfs mkfs ~/store                        make a store in a directory
  kvfs mount ~/store ~/mnt                 mount it (in the background)
  kvfs mount --create ~/store ~/mnt        the same; makes a missing store
  cd ~/mnt && kvfs kv put tags song.mp3 'artist=…'
  kvfs txn run -- make install             all of it, or nothing
  kvfs snapshot create before-upgrade      and `snapshot restore`
  kvfs umount ~/mnt

Exit codes:
  0 done             1 failed, or key not found   2 wrong usage      3 in use
  4 not a store, or of another version            5 damaged          6 no space
  7 missing rights   8 mount point unfit          9 not mounted
  10 a transaction that was to be undone was built on: nothing happened
  11 repaired, nothing is lost                    12 repaired, with losses
  75 a transaction met another one: nothing happened, try again
  124 the time of `txn run --timeout` was over: nothing happened
  141 the reader of standard output has gone (`| head`)
`txn run` and `txn join` pass on the exit code of their command.";

/// A transactional file system and key-value store in one.
#[derive(Debug, Parser)]
#[command(name = "kvfs", version, about, after_help = AFTER_HELP, max_term_width = 80)]
pub(crate) struct Cli {
    /// No progress bars; they are for terminals only, at any rate
    #[arg(long, short = 'q', global = true)]
    pub(crate) quiet: bool,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a new store
    Mkfs(MkfsArgs),
    /// Copy a whole store to a new one, of the same or another engine
    Copy(CopyArgs),
    /// Make a store larger, mounted or not
    Grow(GrowArgs),
    /// Fast and slow devices of a store: which there are, and how they come and go
    Tier(TierArgs),
    /// Give partly used zones back and join what is scattered, mounted or not
    Defrag(DefragArgs),
    /// Mount a store
    Mount(MountArgs),
    /// Serve a store to other programs without a mount
    Serve(ServeArgs),
    /// Run a program on a store without a mount
    Exec(ExecArgs),
    /// Unmount, or end what `kvfs serve` has begun, after everything is written
    #[command(after_help = "Examples:\n  kvfs umount ~/mnt\n  kvfs umount --abort-open ~/mnt\n  \
        kvfs umount --checkpoint-open ~/mnt      and later `kvfs branch merge txn-17`\n  \
        kvfs umount ~/store                      what `kvfs serve` has begun")]
    Umount(UmountArgs),
    /// Verify every checksum and cross-reference
    Check(CheckArgs),
    /// Counters of a mounted store
    Stats(StatsArgs),
    /// What a mounted store does just now, second by second
    Top(TopArgs),
    /// A picture of hot and cold: how often what lies where is read
    Heat(HeatArgs),
    /// Each operation on files, keys and transactions as it ends
    Trace(TraceArgs),
    /// Ordered key-value data beside the files
    Kv(KvArgs),
    /// Transactions over files and keys
    Txn(TxnArgs),
    /// What transactions have locked, and which wait for it
    Locks(LocksArgs),
    /// What goes on inside of a daemon: why it hangs
    Debug(DebugArgs),
    /// Remove whole trees, all or nothing
    Rm(RmArgs),
    /// A file or a whole tree a second time, without its content being copied
    Clone(CloneArgs),
    /// Named snapshots of all files and keys
    Snapshot(SnapshotArgs),
    /// Places outside of the store to which snapshots are pushed
    Repository(RepositoryArgs),
    /// Writable copies of all files and keys, or of a directory, to be merged or deleted
    Branch(BranchArgs),
    /// What is mounted where, by which user, since when
    Status(StatusArgs),
    /// Wait until everything done so far survives a power cut
    Sync(SyncArgs),
    /// Completions for a shell
    Completions(CompletionsArgs),
    /// Write pages of the manual and completions below a directory
    #[command(hide = true)]
    Pages(PagesArgs),
    /// Show properties of files, directories and keyspaces
    Get(GetArgs),
    /// Change properties of files, directories and keyspaces
    Set(SetArgs),
    /// What users and groups have in files, and may have
    Quota(QuotaArgs),
    /// Version of the program and of the on-disk format
    #[command(after_help = "Examples:\n  kvfs version\n  kvfs version --json")]
    Version(JsonArgs),
}

const MOUNT_EXAMPLES: &str = "\
Options for -o, separated by commas:
  ro rw exec noexec suid nosuid dev nodev
                      as in mount(8)
  relatime (default) noatime nodiratime
                      when reading changes access times
  allow_other         let other users in (default for root; others need
                      user_allow_other in /etc/fuse.conf)
  no_allow_other      only the mounting user
  commit=SECONDS      longest time that a change stays only in memory (1)
  dirty_bytes=SIZE    writers wait while more than so much of what was written
                      is not safe on the device, such as 64M; from half of it
                      on it is made so in the background (0: no bound but
                      commit=)
  undo_count=N        transactions that `kvfs txn undo` can take back (16)
  undo_age=TIME       and how long after their commit, such as 30m or 1d (1h);
                      0 for either: none
  txn_idle=TIME       transactions without an operation for so long are
                      aborted (8h); 0: never
  slow=TIME           operations that take as long are told of in the log, with
                      path, process and user (1s); 0: none. What waits for
                      another owner's lock does not count
  metrics=unix:PATH   serve /metrics for Prometheus by HTTP on a socket, for
  metrics=ADDR:PORT   this user and root; or on a port of this host, such as
                      127.0.0.1:9100, for all who can reach it
  noacl               permission bits alone count: access-control lists are
                      neither heeded, shown nor inherited
  nonempty            mount over what is in DIR
  writeback           the kernel collects writes (faster small ones), and there
                      are no transactions over files
  nosteer             serve wherever the scheduler likes, not on the CPU of the
                      program that asks
  io_uring            take requests from a queue for each CPU, which serves
                      several programs at once faster; where the kernel has
                      none (Linux 6.14, and Y in
                      /sys/module/fuse/parameters/enable_uring), the log says
                      so, and all is as without it
  lazytime            access times stay in memory until the inode changes, an
                      fsync or `kvfs sync`, the unmount, or for a day
  remount             change ro, rw, exec, suid, dev, commit= and placement=
                      of a mount that is there; others are refused, unless
                      they are as they were
  nobtime             no birth times: statx is answered by the kernel alone
  memory=SIZE workers=N size=SIZE create
                      as the switches of these names, for /etc/fstab
  io_limit=SIZE       merges read and write at most so much each second, such
                      as 50M; writers slow down when it is too little
  cache=POLICY        which blocks leave the block cache first: tiered (the
                      default; those of slow devices stay longest), s3fifo,
                      arc or lru; for as long as it is mounted
  cache_trace=FILE    record what is asked of the block cache in a new file, at
                      most 1 GiB, until the unmount
  placement=POLICY    on which devices of a store with fast and slow ones
                      content of files goes for which `kvfs set` says nothing:
                      static (slow; the default), sequential-to-slow, hot-cold,
                      endurance:SIZE, or several joined by +, see `kvfs tier
                      --help`; for as long as it is mounted (default: as the
                      store keeps it)
  cache_size=SIZE     how much of a store in object storage is kept on the local
                      disk, in its directory, at most (1G); 0: nothing
  durability=WHERE    of a store in object storage: what fsync waits for.
                      storage (the default): the object storage; local: a
                      journal in the store's directory on the local disk, much
                      sooner. Object storage has it within the commit interval;
                      until then it is lost with this disk, and to a mount
                      elsewhere
  follow              with ro: what a mount elsewhere writes to a store in
                      object storage is shown, at most 2 s after it was made
                      durable (default: the state of the opening stays)
  lease=TIME          of a store in object storage: a mount elsewhere takes it
                      over, unasked, when this one has shown no sign of life for
                      so long (6s; from 1s to 10m)
  timeout=TIME        of a store in object storage that does not answer: calls
                      that need it fail with EIO after so long (1m; from 5s to
                      24h, 0: never); nothing is lost by that, and all goes on
                      by itself when it answers again
  take_over           a store in object storage that a mount elsewhere has open,
                      and alive, is taken from it: that one takes no more writes
  private_snapshots   snapshots are shown to root and the store's owner alone
  store_owner=USER    mount the store of another user, which may contain
                      anything; without this such a store is refused

Examples:
  kvfs mount ~/store ~/mnt
  kvfs mount --create -o noatime,nodev ~/store ~/mnt
  kvfs mount --foreground --memory 256M ~/store ~/mnt
  mount -t fuse.kvfs ~/store ~/mnt         by mount(8), fstab(5)";

#[derive(Debug, Args)]
#[command(after_help = MOUNT_EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a command")]
pub(crate) struct MountArgs {
    /// The store; one in object storage also by its URL
    pub(crate) store: PathBuf,
    /// Existing, empty directory to mount on
    pub(crate) dir: PathBuf,
    /// Make the store when it is missing
    #[arg(long)]
    pub(crate) create: bool,
    /// Stay in the foreground and log to standard error
    #[arg(long, short = 'f')]
    pub(crate) foreground: bool,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Ceiling for memory, such as 512M (default: a quarter of RAM, at most 2G)
    #[arg(long, value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Threads that serve requests (default: two for each processor, 8 to 16)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: Option<u16>,
    /// Size limit when --create makes the store
    #[arg(long, value_parser = parse_size, requires = "create")]
    pub(crate) size: Option<u64>,
    /// Pass over options that are not known
    #[arg(long)]
    pub(crate) sloppy: bool,
    /// Set by the parent that waits for this process to be ready
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub(crate) in_background: bool,
}

#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// The mount point, or a store that is served without a mount
    pub(crate) dir: PathBuf,
    /// Detach even when files are still open; the store closes when the last one is
    #[arg(long, short = 'l')]
    pub(crate) lazy: bool,
    /// Abort open transactions instead of refusing
    #[arg(long)]
    pub(crate) abort_open: bool,
    /// Keep open transactions as branches `txn-ID` instead of refusing
    #[arg(long, conflicts_with = "abort_open")]
    pub(crate) checkpoint_open: bool,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  kvfs check ~/store
  kvfs check ~/mnt                             while mounted
  kvfs check --repair --dry-run ~/store        what a repair would do
  kvfs check --repair --copy-to ~/new ~/store  repair a copy only
  kvfs check --repair ~/store                  repair it in place

A repair keeps all that is undamaged, and lists what is lost: paths and ranges
of bytes, keys. What has no name any more is in lost+found/ afterwards. A repair
that is cut off can be repeated.

Exit codes of a repair: 0 nothing was wrong; 11 repaired, nothing is lost; 12
repaired, and what is lost was listed; 5 something is damaged still. With
--dry-run they say what a repair would come to.";

#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub(crate) struct CheckArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    pub(crate) target: Option<PathBuf>,
    /// The same
    #[arg(short = 's', long = "store", value_name = "STORE|DIR", conflicts_with = "target")]
    pub(crate) store: Option<PathBuf>,
    /// Put right what is damaged, in a store that is not mounted
    #[arg(long)]
    pub(crate) repair: bool,
    /// Leave the store as it is: copy what can be read of it to a new one, and repair that
    #[arg(long, value_name = "NEWSTORE", requires = "repair", conflicts_with = "dry_run")]
    pub(crate) copy_to: Option<PathBuf>,
    /// Say what a repair would do, and write nothing
    #[arg(long, requires = "repair")]
    pub(crate) dry_run: bool,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvfs stats\n  kvfs stats --json ~/mnt\n  kvfs stats --memory ~/mnt\n  kvfs stats --zones -s ~/store\n  \
        kvfs stats --file ~/mnt/db/*.ibd         how each is read and written, and\n  \
        \u{20}                                        on which tier it lies\n\n\
        Reads that the kernel answers from its page cache are not counted. What is\n\
        on no tier is in memory, in the journal, or in the row of its file."
)]
pub(crate) struct StatsArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    pub(crate) target: Option<PathBuf>,
    /// The same
    #[arg(short = 's', long = "store", value_name = "STORE|DIR", conflicts_with = "target")]
    pub(crate) store: Option<PathBuf>,
    /// A picture of the zones of the device, and how fragmented it is
    #[arg(long)]
    pub(crate) zones: bool,
    /// What holds memory, now and at most, by pool and by size of what is charged
    #[arg(long, conflicts_with = "zones")]
    pub(crate) memory: bool,
    /// How files were read and written since the mount, stretch by stretch: how much, how long ago, in
    /// which pattern; and what lies on which tier
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["target", "store", "zones", "memory"])]
    pub(crate) file: Vec<PathBuf>,
    /// For machines: exact numbers
    #[arg(long)]
    pub(crate) json: bool,
}

const LOCKS_EXAMPLES: &str = "\
Examples:
  kvfs locks                               of the mount of the current directory
  kvfs locks -n                            numbers of users, not their names
  kvfs locks -s ~/mnt --json | jq 'select(.waiters_count > 0)'
  cat ~/mnt/.kvfs/locks                    the same, without the command

Shown are locks that a transaction of yours holds or waits for; root sees all.";

#[derive(Debug, Args)]
#[command(after_help = LOCKS_EXAMPLES)]
pub(crate) struct LocksArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", value_name = "STORE|DIR")]
    pub(crate) store: Option<PathBuf>,
    /// How it is shown; in JSON one object a line
    #[command(flatten)]
    pub(crate) form: TableForm,
}

#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}
