//! Compilers of the machine, and programs that they make.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::header::crate_dir;

/// What finds errors of memory while a program runs.
const SANITIZERS: &str = "-fsanitize=address,undefined";

/// Where cargo has put the library for these tests.
pub(crate) fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its path");
    test.parent().expect("it lies in a directory").to_owned()
}

pub(crate) fn run(command: &mut Command) -> Output {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/setup.sh test"));
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    output
}

/// Whether programs of this compiler run with sanitizers; not every machine has their libraries.
fn sanitizes(compiler: &str) -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let (source, program) = (dir.path().join("a.c"), dir.path().join("a"));
        std::fs::write(&source, "int main(void) { return 0; }\n").expect("writes");
        let made = Command::new(compiler).args([SANITIZERS, "-o"]).args([&program, &source]).output();
        made.is_ok_and(|made| made.status.success())
            && Command::new(&program).output().is_ok_and(|ran| ran.status.success())
    })
}

/// Compiles `source` as `program`, with all warnings as errors, linked with the shared library.
pub(crate) fn compile(compiler: &str, standard: &str, source: &Path, program: &Path) {
    let mut command = Command::new(compiler);
    command.args([standard, "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]);
    command.arg(format!("-DKVFS_TEST_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
    if sanitizes("cc") {
        command.args([SANITIZERS, "-fno-sanitize-recover=all"]);
    }
    command.arg("-I").arg(crate_dir().join("include"));
    command.arg("-o").arg(program).arg(source).arg("-L").arg(libraries());
    run(command.args(["-lkvfs", "-lpthread"]));
}

/// Runs a program that uses the shared library.
pub(crate) fn run_program(program: &Path, arguments: &[&OsStr]) -> String {
    // By the name that programs are linked with.
    let by_name = tempfile::tempdir().expect("a directory");
    let name = format!("libkvfs.so.{}", env!("CARGO_PKG_VERSION_MAJOR"));
    std::os::unix::fs::symlink(libraries().join("libkvfs.so"), by_name.path().join(name)).expect("links");
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", by_name.path());
    String::from_utf8(run(&mut command).stdout).expect("prints text")
}
