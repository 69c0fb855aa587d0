//! How a program of this package ends: what it shows, and what its exit code says.
//!
//! Thread safety: functions without state.

use crate::results::Results;
use crate::{page, report};
use anyhow::Result;
use std::path::Path;
use std::process::ExitCode;

/// 0: all went well. 2: something failed on the way, and is told of in the results. 1: an error, which is
/// printed.
pub fn exit_code(program: &str, is_sound: Result<bool>) -> ExitCode {
    match is_sound {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the tables, with what has changed since the results in `before`, and writes the page into `plots`.
/// False: something failed on the way.
///
/// # Errors
/// There are no such results, or of other sizes; the page can't be written.
pub fn show(results: &Results, before: Option<&Path>, plots: Option<&Path>) -> Result<bool> {
    println!("{}", report::text(results));
    if let Some(before) = before {
        println!("{}", report::changes(&Results::load(before)?, results));
    }
    if let Some(dir) = plots {
        println!("figures: {}", page::write(dir, results)?.display());
    }
    Ok(results.is_sound())
}
