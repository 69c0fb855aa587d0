//! The command line of `kvfs serve`.

use std::path::PathBuf;

use clap::Args;

use crate::units::parse_size;

const SERVE_EXAMPLES: &str = "\
Examples:
  kvfs serve ~/store                       serve it, in the background
  kvfs serve --create --size 20G ~/store   the same; makes a missing store
  kvfs kv put -s ~/store tags song.mp3 'artist=…'
  kvfs snapshot create -s ~/store before   as on a mounted store
  kvfs umount ~/store                      end it

Programs reach the files through STORE/files.sock (libkvfs), keys and
transactions through STORE/kv.sock. No mount is made, so neither /dev/fuse nor
fusermount3 is needed. `kvfs mount` serves all of this, too.

Options for -o, separated by commas, as for `kvfs mount`: ro, relatime, noatime,
nodiratime, lazytime, noacl, commit=, dirty_bytes=, undo_count=, undo_age=,
txn_idle=, slow=, metrics=, io_limit=, cache=, cache_trace=, placement=,
cache_size=, durability=, lease=, timeout=, take_over, private_snapshots,
store_owner=, no_allow_other, memory=, size=, create.";

/// `kvfs serve`.
#[derive(Debug, Args)]
#[command(after_help = SERVE_EXAMPLES)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct ServeArgs {
    /// The store
    pub(crate) store: PathBuf,
    /// Make the store when it is missing
    #[arg(long)]
    pub(crate) create: bool,
    /// End when the last program that uses the files has ended, as `kvfs exec` does it
    #[arg(long)]
    pub(crate) while_used: bool,
    /// Stay in the foreground and log to standard error (default: to STORE/kvfs.log)
    #[arg(long, short = 'f')]
    pub(crate) foreground: bool,
    /// Options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Ceiling for memory, such as 512M (default: a quarter of RAM, at most 2G)
    #[arg(long, value_parser = parse_size)]
    pub(crate) memory: Option<u64>,
    /// Size limit when --create makes the store
    #[arg(long, value_parser = parse_size, requires = "create")]
    pub(crate) size: Option<u64>,
    /// Set by the parent that waits for this process to be ready
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub(crate) in_background: bool,
}
