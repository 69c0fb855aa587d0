//! `kvfs version`.

use std::process::ExitCode;

use crate::args::JsonArgs;

pub(crate) fn run(args: &JsonArgs) -> ExitCode {
    let (program, format) = (env!("CARGO_PKG_VERSION"), kvfs_kvdb::FORMAT_VERSION);
    if args.json {
        println!("{}", serde_json::json!({ "version": program, "format": format }));
    } else {
        print!("{}", line());
    }
    ExitCode::SUCCESS
}

/// For people, with a line break.
pub(crate) fn line() -> String {
    format!("kvfs {}, on-disk format {}\n", env!("CARGO_PKG_VERSION"), kvfs_kvdb::FORMAT_VERSION)
}
