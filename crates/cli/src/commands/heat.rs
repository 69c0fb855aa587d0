//! `kvfs heat`.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal};
use std::path::Path;
use std::process::ExitCode;

use rustix::termios::tcgetwinsize;

use crate::args::HeatArgs;
use crate::control::{self, HeatLines, Request, Response, TierRequest};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Result};
use crate::heat;
use crate::output::print;

/// Cells in a row of a file, and of a terminal that does not say how wide it is.
const WIDTH_OF_FILE: usize = 128;
const WIDTH_OF_TERMINAL: usize = 80;

/// Rows of cells of all devices together, about: in a terminal with colours (two a line), without, and in a
/// file.
const ROWS_IN_COLOUR: usize = 40;
const ROWS_IN_CHARACTERS: usize = 24;
const ROWS_OF_FILE: usize = 64;

pub(crate) fn run(args: &HeatArgs) -> Result<ExitCode> {
    let is_colour = io::stdout().is_terminal() && wants_colour();
    let (width, rows) = match (&args.png, is_colour) {
        (None, false) if !args.json => (columns() - 2, ROWS_IN_CHARACTERS),
        (None, true) if !args.json => (columns(), ROWS_IN_COLOUR),
        _ => (WIDTH_OF_FILE, ROWS_OF_FILE),
    };
    let width = args.width.map_or(width, usize::from);
    let lines = lines(args.target.as_deref().or(args.store.as_deref()), width * rows)?;
    match &args.png {
        Some(path) => {
            let (across, down) = write_file(path, &lines, width)?;
            println!("{}: {across} x {down} pixels", path.display());
        }
        None if args.json => print(&heat::as_json(&lines))?,
        None => print(&heat::as_text(&lines, width, is_colour))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// As <https://no-color.org> has it.
fn wants_colour() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Of the terminal; at least as many as a picture needs.
fn columns() -> usize {
    let told = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    told.filter(|columns| *columns > 0).unwrap_or(WIDTH_OF_TERMINAL).max(16)
}

fn lines(target: Option<&Path>, cells_max: usize) -> Result<HeatLines> {
    let (lines, is_mounted) = Endpoint::with(target, true, |endpoint| {
        let is_mounted = endpoint.is_of_daemon();
        match endpoint.call(&Request::Tier(TierRequest::Heat { cells_max: cells_max as u32 }))? {
            Response::Heat(lines) => Ok((lines, is_mounted)),
            _ => Err(control::confused()),
        }
    })?;
    if !is_mounted {
        eprintln!(
            "kvfs: the store is not mounted, and no reads of it are counted: what it holds is shown as cold"
        );
    } else if !lines.was_counted {
        eprintln!("kvfs: reads are counted from now on, until the unmount; look again later");
    }
    Ok(lines)
}

fn write_file(path: &Path, lines: &HeatLines, width: usize) -> Result<(usize, usize)> {
    let failed = |error: &io::Error| CliError::io("write", path, error);
    let file = File::create(path).map_err(|error| failed(&error))?;
    heat::write_png(BufWriter::new(file), lines, width).map_err(|error| match error {
        png::EncodingError::IoError(error) => failed(&error),
        other => failed(&io::Error::other(other)),
    })
}
