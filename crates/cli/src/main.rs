//! The `kvfs` command: the only place that wires device, engine, file system and FUSE together.
//!
//! A command talks to the daemon of a mounted store, or opens the store itself: [`endpoint`]. The daemon
//! is this program too: [`daemon`]. Everything that fails ends as one line on standard error and an exit
//! code: [`error`].

mod allocator;
mod args;
mod commands;
mod control;
mod daemon;
mod endpoint;
mod error;
mod hidden;
mod keys;
mod mounts;
mod namespace;
mod open;
mod report;
mod service;
mod staging;
mod store_dir;
mod units;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    allocator::give_back_soon();
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Mkfs(args) => commands::mkfs::run(args),
        Command::Mount(args) => commands::mount::run(args),
        Command::Umount(args) => commands::umount::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Stats(args) => commands::stats::run(args),
        Command::Kv(args) => commands::kv::run(args),
        Command::Txn(args) => commands::txn::run(args),
        Command::Locks(args) => commands::locks::run(args),
        Command::Snapshot(args) => commands::snapshot::run(args),
        Command::Branch(args) => commands::branch::run(args),
        Command::Quota(args) => commands::quota::run(args),
        Command::Version(args) => Ok(commands::version::run(args)),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("kvfs: {error}");
            ExitCode::from(error.code as u8)
        }
    }
}
