//! `kvfs serve`: a daemon without a mount.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use super::mount::Wish;
use crate::args::ServeArgs;
use crate::daemon;
use crate::error::Result;

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
        daemon::background::start(&named_absolutely(words, store, &plan.store), "opening the store")
    }
}

/// The same words with the store as `kvfs status` and other users find it.
fn named_absolutely(words: &[OsString], store: &Path, found: &Path) -> Vec<OsString> {
    let mut words = words.to_vec();
    if let Some(word) = words.iter_mut().skip(2).rfind(|word| word.as_os_str() == store) {
        *word = found.into();
    }
    words
}
