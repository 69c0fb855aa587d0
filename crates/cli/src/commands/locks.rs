//! `kvfs locks`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use super::txn::connect;
use crate::args::LocksArgs;
use crate::control::{self, LockLines, Request, Response};
use crate::error::{CliError, Result};
use crate::progress::tell_none;
use crate::report::locks as report;

pub(crate) fn run(args: &LocksArgs) -> Result<ExitCode> {
    let (mut client, _) = connect(args.store.as_deref())?;
    let failed = |error: std::io::Error| CliError::io("write", Path::new("standard output"), &error);
    let mut out = std::io::stdout().lock();
    let (mut after, mut has_heading, mut has_rows) = (None, false, false);
    loop {
        let Response::Locks(page) = client.call(&Request::Locks { after })? else {
            return Err(control::confused());
        };
        let text =
            if args.form.json { as_json(&page) } else { as_text(&page, args.form.numeric, &mut has_heading) };
        out.write_all(text.as_bytes()).map_err(failed)?;
        has_rows |= !text.is_empty();
        after = page.next;
        if after.is_none() {
            if !args.form.json && !has_rows {
                tell_none("transactions have locked anything");
            }
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Rows of a page.
fn as_text(page: &LockLines, numeric: bool, has_heading: &mut bool) -> String {
    let mut text = String::new();
    // Writing to a string never fails.
    let _ = report::page(&mut text, page, numeric, has_heading);
    text
}

fn as_json(page: &LockLines) -> String {
    let mut text = String::new();
    for line in page.doomed.iter().map(report::doomed_json).chain(page.locks.iter().map(report::as_json)) {
        let _ = writeln!(text, "{line}");
    }
    text
}
