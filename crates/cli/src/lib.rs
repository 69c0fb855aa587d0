//! The `kvfs` command: the only place that wires device, engine, file system and FUSE together.
//!
//! A command talks to the daemon of a mounted store, or opens the store itself: `endpoint`. The daemon
//! is this program too: `daemon`. Everything that fails ends as one line on standard error and an exit
//! code: `error`. Under the names of mount(8)'s helpers it mounts and unmounts: `mount_helper`.

#[macro_use]
mod output;

mod allocator;
mod args;
mod commands;
mod control;
mod control_dir;
mod daemon;
mod endpoint;
mod engine;
mod error;
mod heat;
mod keys;
mod killed_daemon;
mod mount_helper;
mod mounts;
mod names;
mod namespace;
mod open;
mod pages;
mod places;
mod procs;
mod progress;
mod report;
mod staging;
mod store_dir;
mod tree;
mod units;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use error::{Code, Result};

/// What the program does: the words of the command line decide.
pub fn main() -> ExitCode {
    allocator::give_back_soon();
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let (done, exit_code): (_, fn(Code) -> u8) = match mount_helper::called_as(&words) {
        None => {
            let cli = Cli::parse_from(&words);
            let is_json = words.iter().take_while(|word| *word != "--").any(|word| word == "--json");
            progress::allow(cli.quiet, is_json);
            (carry_out(&cli.command, &words), |code| code as u8)
        }
        Some(call) => {
            words.truncate(0);
            words.push("kvfs".into());
            words.extend(call.words);
            let command = Cli::parse_from(&words).command;
            let done =
                if call.is_fake { commands::mount::check(&command) } else { carry_out(&command, &words) };
            (done, mount_helper::exit_code)
        }
    };
    match done {
        Ok(code) => code,
        // As by SIGPIPE: `| head` has all that it wants.
        Err(error) if error.code == Code::ReaderGone => ExitCode::from(error.code as u8),
        Err(error) => {
            eprintln!("kvfs: {error}");
            ExitCode::from(exit_code(error.code))
        }
    }
}

/// Parses a command line and does nothing: for fuzzers.
#[doc(hidden)]
pub fn parse_only(words: impl IntoIterator<Item = OsString>) {
    drop(Cli::try_parse_from(words));
}

/// Runs the command that `words` have given.
fn carry_out(command: &Command, words: &[OsString]) -> Result<ExitCode> {
    match command {
        Command::Mkfs(args) => commands::mkfs::run(args),
        Command::Copy(args) => commands::copy::run(args),
        Command::Grow(args) => commands::grow::run(args),
        Command::Tier(args) => commands::tier::run(args),
        Command::Defrag(args) => commands::defrag::run(args),
        Command::Mount(args) => commands::mount::run(args, words),
        Command::Serve(args) => commands::serve::run(args, words),
        Command::Exec(args) => commands::exec::run(args),
        Command::Umount(args) => commands::umount::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Stats(args) => commands::stats::run(args),
        Command::Heat(args) => commands::heat::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Trace(args) => commands::trace::run(args),
        Command::Kv(args) => commands::kv::run(args),
        Command::Txn(args) => commands::txn::run(args),
        Command::Locks(args) => commands::locks::run(args),
        Command::Debug(args) => commands::debug::run(args),
        Command::Clone(args) => commands::clone::run(args),
        Command::Rm(args) => commands::rm::run(args),
        Command::Snapshot(args) => commands::snapshot::run(args),
        Command::Repository(args) => commands::repository::run(args),
        Command::Branch(args) => commands::branch::run(args),
        Command::Sync(args) => commands::sync::run(args),
        Command::Completions(args) => pages::print_completions(args),
        Command::Pages(args) => pages::write_all(args),
        Command::Get(args) => commands::property::get(args),
        Command::Set(args) => commands::property::set(args),
        Command::Quota(args) => commands::quota::run(args),
        Command::Status(args) => commands::status::run(args),
        Command::Version(args) => Ok(commands::version::run(args)),
    }
}
