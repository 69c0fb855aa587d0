//! The `kvfs` command: the only place that wires device, engine, file system and FUSE together.
//!
//! A command talks to the daemon of a mounted store, or opens the store itself: [`endpoint`]. The daemon
//! is this program too: [`daemon`]. Everything that fails ends as one line on standard error and an exit
//! code: [`error`].

mod args;
mod commands;
mod control;
mod daemon;
mod endpoint;
mod error;
mod mounts;
mod namespace;
mod open;
mod service;
mod store_dir;
mod units;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

/// Rows are allocated by the workers and freed by the flush thread, in bursts as large as a memtable; this
/// allocator gives such memory back, where the C library's keeps it in the arena of each thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Mkfs(args) => commands::mkfs::run(args),
        Command::Mount(args) => commands::mount::run(args),
        Command::Umount(args) => commands::umount::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Stats(args) => commands::stats::run(args),
        Command::Kv(args) => commands::kv::run(args),
        Command::Txn(args) => commands::txn::run(args),
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
