//! `kvfs serve`: a daemon without a mount.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use super::mount::Wish;
use crate::args::ServeArgs;
use crate::control::{self, Daemon};
use crate::daemon;
use crate::error::{Code, Result};
use crate::store_dir::StoreDir;

/// `words`: all of the command line, the program's name first.
pub(crate) fn run(args: &ServeArgs, words: &[OsString]) -> Result<ExitCode> {
    let ServeArgs { store, create, while_used, size, memory, options, .. } = args;
    let wish = Wish {
        store,
        dir: None,
        create: *create,
        while_used: *while_used,
        size: *size,
        memory: *memory,
        workers: None,
        options,
        sloppy: false,
    };
    let plan = wish.plan()?;
    if args.in_background {
        daemon::background::serve(&plan)
    } else if args.foreground {
        daemon::serve(&plan, daemon::log::Target::Terminal, || Ok(()))
    } else {
        match daemon::background::start(&named_absolutely(words, store, &plan.store), "opening the store") {
            Err(error) if plan.while_used && error.code == Code::InUse && is_served(&plan.store)? => {
                Ok(ExitCode::SUCCESS)
            }
            done => done,
        }
    }
}

/// Whether another one serves the store without a mount, or has just done it.
fn is_served(store: &Path) -> Result<bool> {
    Ok(match control::connect(&StoreDir::open(store)?)? {
        Daemon::Serving { dir, .. } => dir.as_os_str().is_empty(),
        Daemon::Closing(_) => true,
        Daemon::Absent => false,
    })
}

/// The same words with the store as `kvfs status` and other users find it.
fn named_absolutely(words: &[OsString], store: &Path, found: &Path) -> Vec<OsString> {
    let mut words = words.to_vec();
    if let Some(word) = words.iter_mut().skip(2).rfind(|word| word.as_os_str() == store) {
        *word = found.into();
    }
    words
}
