//! Programs in C and C++ that use every function.

use std::fs;
use std::process::Command;

use crate::compile::{compile, libraries, run, run_program};
use crate::header::{crate_dir, functions, header};
use crate::served::ServedStore;

#[test]
fn c_program_calls_every_function() {
    let source = crate_dir().join("tests/c/all.c");
    let text = fs::read_to_string(&source).expect("reads");
    for name in functions(&header()) {
        assert!(text.contains(&format!("{name}(")), "{name} is called nowhere in {}", source.display());
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("all");
    compile("cc", "-std=c11", &source, &program);
    assert_eq!(run_program(&program, &[dir.path().as_os_str()]), "all functions do what they should\n");
    // The same calls of a store that another process has.
    let served = ServedStore::start();
    let arguments = [served.directory().as_os_str(), "served".as_ref()];
    assert_eq!(run_program(&program, &arguments), "all functions do what they should\n");
    served.stop();
}

#[test]
fn cpp_program_uses_every_method() {
    let source = crate_dir().join("tests/cpp/all.cpp");
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("all");
    compile("c++", "-std=c++17", &source, &program);
    assert_eq!(run_program(&program, &[dir.path().as_os_str()]), "all functions do what they should\n");
}

#[test]
fn store_that_is_made_where_an_empty_one_is_mounted_is_that_one() {
    let served = ServedStore::start();
    let point = served.directory().join("mnt");
    let test = "store_that_is_made_where_an_empty_one_is_mounted_is_that_one";
    let Some(mounted) = served.mount_or_skip(test, &point) else { return };
    let source = crate_dir().join("tests/c/mounted.c");
    let program = served.directory().join("mounted");
    compile("cc", "-std=c11", &source, &program);
    assert_eq!(run_program(&program, &[point.as_os_str()]), "the store is the mounted one\n");
    assert_eq!(fs::read(point.join("file")).expect("is there"), b"text");
    assert!(!point.join("device").exists() && !point.join("inside").exists());
    mounted.unmount();
    served.stop();
}

/// Nothing else is exported, of no dependency.
#[test]
fn library_exports_what_the_header_declares() {
    let library = libraries().join("libkvfs.so");
    let said = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let said = String::from_utf8(said.stdout).expect("prints text");
    let mut exported: Vec<_> = said.lines().filter_map(|line| line.split_whitespace().last()).collect();
    let mut declared = functions(&header());
    exported.sort_unstable();
    declared.sort_unstable();
    assert_eq!(exported, declared);
}
