//! The `kvfs` program; all of it is in the library of the same crate, where fuzzers reach it, too.

use std::process::ExitCode;

fn main() -> ExitCode {
    kvfs_cli::main()
}
