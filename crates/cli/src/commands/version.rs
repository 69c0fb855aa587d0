//! `kvfs version`.

use std::process::ExitCode;

use crate::args::JsonArgs;

pub(crate) fn run(args: &JsonArgs) -> ExitCode {
    let (program, format) = (env!("CARGO_PKG_VERSION"), kvfs_kvdb::FORMAT_VERSION);
    if args.json {
        println!("{}", serde_json::json!({ "version": program, "format": format }));
    } else {
        println!("kvfs {program}, on-disk format {format}");
    }
    ExitCode::SUCCESS
}
