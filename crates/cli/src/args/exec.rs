//! The command line of `kvfs exec`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::BeginArgs;

const EXEC_EXAMPLES: &str = "\
Examples:
  kvfs exec -s ~/store -- git clone https://… /kvfs/project
  kvfs exec -s ~/store -- bash                       a shell; `cd /kvfs`
  kvfs exec -s ~/store --txn -- make -C /kvfs/project install
  kvfs exec -s ~/store --create --at /data -- tar xf all.tar -C /data

Needs neither a mount nor root nor /dev/fuse. A store that no daemon has is
served (as by `kvfs serve`) until the last of these commands has ended. Programs
need to be dynamically linked against glibc; --static says what becomes of
others. The command's exit status is passed on; 75: with --txn, a conflict, and
nothing happened.";

/// What becomes of programs that would not see the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StaticArg {
    /// They are not started
    Refuse,
    /// A line says so, and they are started
    Warn,
    /// They are started
    Allow,
}

/// Run a program on a store without a mount.
#[derive(Debug, Args)]
#[command(after_help = EXEC_EXAMPLES)]
pub(crate) struct ExecArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", value_name = "STORE|DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Where the command sees the root of the store: an absolute path
    #[arg(long, value_name = "PATH", default_value = "/kvfs")]
    pub(crate) at: PathBuf,
    /// Make the store if there is none
    #[arg(long)]
    pub(crate) create: bool,
    /// Programs that are linked statically or written in Go
    #[arg(long = "static", value_enum, default_value = "refuse", value_name = "WHAT")]
    pub(crate) of_static: StaticArg,
    /// In a transaction: committed when the command succeeds, else nothing happened
    #[arg(long)]
    pub(crate) txn: bool,
    /// How the transaction is begun
    #[command(flatten, next_help_heading = "Options of --txn")]
    pub(crate) begin: BeginArgs,
    /// Command and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}
